//! Peers: other engines, each a process that answers the same prompts in turn with our configurations.
//!
//! A peer reads and writes lines of JSON. When its models are loaded it says who it is ([`Hello`]);
//! then it gets a prompt's tokens at a time (`Question`) and answers with its own (`Reply`),
//! greedily. While others answer, it waits for its next line. `bench/peers` has those that we know.

use crate::record::{AnswerRecord, Counts, TurnRecord};
use crate::run::Answerer;
use crate::times::Times;
use crate::{BenchError, Contestant, Engines, Prompt};
use forerun::{Commit, DrafterKind, TokenId, WeightType};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// How long a peer may load, or answer one prompt, before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// Bytes of the longest line that a peer may say.
const LONGEST_LINE: u64 = 1 << 26;
/// Waited before every answer, so that the threads of the one before have gone to sleep.
const SETTLE: Duration = Duration::from_millis(20);

/// A peer to start, and what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSpec {
    /// What it is called.
    pub name: String,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// The weight type whose plain decoding it is compared with; it must have loaded the same one.
    pub weight_type: Option<WeightType>,
    /// Who drafts for it, each compared with ours of the same kind: none, model, prompt-lookup.
    pub drafters: Vec<DrafterKind>,
    /// Tokens drafted in a row.
    pub draft_tokens: Vec<usize>,
}

/// One thing that a peer is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTask {
    /// Which peer.
    pub peer: usize,
    /// Who drafts.
    pub drafter: DrafterKind,
    /// Tokens drafted in a row; 0 where nobody drafts.
    pub draft_tokens: usize,
}

/// A peer's first line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its version, and how it was built.
    pub version: String,
    /// Threads that it computes on.
    pub threads: usize,
    /// The type of its weights, as it calls it.
    pub weights: String,
}

/// What a peer is asked.
#[derive(Clone, Debug, Serialize)]
struct Question<'a> {
    /// `none`, `model` or `prompt-lookup`.
    drafter: String,
    draft_tokens: usize,
    prompt: &'a [TokenId],
    max_tokens: usize,
    /// Whether to go on behind an end of text.
    ignore_eos: bool,
}

/// What a peer answers. Times are its own, from the question on, in nanoseconds.
#[derive(Clone, Debug, Default, Deserialize)]
struct Reply {
    tokens: Vec<TokenId>,
    total_ns: u64,
    /// When tokens came, and how many.
    commits: Vec<(u64, usize)>,
    /// Of every target pass behind the prompt's: tokens that were drafted for it, and accepted.
    #[serde(default)]
    rounds: Vec<(u64, u64)>,
    #[serde(default)]
    peak_memory_bytes: Option<u64>,
    /// Instead of all else: why there is no answer.
    #[serde(default)]
    error: Option<String>,
}

/// A running peer.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    questions: Sender<Vec<u8>>,
    lines: Receiver<std::io::Result<String>>,
    patience: Duration,
    hello: Hello,
}

/// Reads a peer's lines until it ends, or nobody wants them any more.
fn lines_of(replies: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (send, receive) = channel();
    spawn(move || {
        let mut replies = BufReader::new(replies);
        loop {
            let mut line = String::new();
            let read = replies.by_ref().take(LONGEST_LINE).read_line(&mut line);
            let last = !matches!(read, Ok(count) if count > 0);
            if matches!(read, Ok(0)) || send.send(read.map(|_| line)).is_err() || last {
                return;
            }
        }
    });
    receive
}

/// Writes a peer's lines as it takes them in: one that does not read must not hold up who asks, whose
/// patience ends. The peer's own end ends the writing.
fn lines_to(mut questions: ChildStdin) -> Sender<Vec<u8>> {
    let (send, receive) = channel::<Vec<u8>>();
    spawn(move || {
        for line in receive {
            if questions.write_all(&line).is_err() {
                return;
            }
        }
    });
    send
}

impl Process {
    fn start(spec: &PeerSpec, patience: Duration) -> Result<Self, BenchError> {
        let failed = |reason: String| BenchError::Peer { name: spec.name.clone(), reason };
        let (program, arguments) =
            spec.command.split_first().ok_or_else(|| failed("its command is empty".into()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{program} does not start: {error}")))?;
        let (Some(questions), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes".into()));
        };
        let name = spec.name.clone();
        let (questions, lines) = (lines_to(questions), lines_of(replies));
        let mut process = Self { name, child, questions, lines, patience, hello: Hello::default() };
        process.hello = process.read()?;
        Ok(process)
    }

    fn read<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, BenchError> {
        let reason = match self.lines.recv_timeout(self.patience) {
            Err(RecvTimeoutError::Disconnected) => "it ended; what it said stands above".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                format!("it said nothing for {} s, and was ended", self.patience.as_secs())
            }
            Ok(Ok(line)) => match serde_json::from_str(&line) {
                Ok(read) => return Ok(read),
                Err(error) => {
                    format!("it said {:?}, which is none of its lines: {error}", cut(&line))
                }
            },
            Ok(Err(error)) => error.to_string(),
        };
        Err(BenchError::Peer { name: self.name.clone(), reason })
    }

    fn ask(&mut self, question: &Question<'_>) -> Result<Reply, BenchError> {
        let failed = |reason: String| BenchError::Peer { name: self.name.clone(), reason };
        let mut line = serde_json::to_vec(question).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        // If nobody writes it any more, the peer has ended, which reading tells.
        drop(self.questions.send(line));
        let reply: Reply = self.read()?;
        let reason = match &reply.error {
            Some(reason) => reason.clone(),
            None => match reply.flaw(question) {
                Some(flaw) => format!("its answer cannot be right: {flaw}"),
                None => return Ok(reply),
            },
        };
        Err(BenchError::Peer { name: self.name.clone(), reason })
    }
}

impl Reply {
    /// What cannot be, in an answer to a question.
    fn flaw(&self, question: &Question<'_>) -> Option<String> {
        let (count, wanted) = (self.tokens.len(), question.max_tokens);
        let committed = self.commits.iter().fold(0_usize, |sum, own| sum.saturating_add(own.1));
        let last_ns = self.commits.iter().map(|&(at_ns, _)| at_ns).max().unwrap_or(0);
        if count == 0 || count > wanted || (question.ignore_eos && count < wanted) {
            let exactly = if question.ignore_eos { "" } else { "1 to " };
            return Some(format!("{count} tokens where {exactly}{wanted} were asked for"));
        }
        if committed != count {
            return Some(format!("{count} tokens, of which {committed} have a time"));
        }
        if self.total_ns == 0 || last_ns > self.total_ns {
            return Some(format!("a token at {last_ns} ns of {} ns", self.total_ns));
        }
        let drafted = |&(drafted, accepted): &(u64, u64)| {
            accepted <= drafted && drafted <= question.draft_tokens as u64
        };
        if self.rounds.len() > count || !self.rounds.iter().all(drafted) {
            return Some(format!("rounds of more than {} draft tokens", question.draft_tokens));
        }
        let early = self.commits.windows(2).any(|pair| pair[1].0 < pair[0].0);
        early.then(|| "tokens that came before earlier ones".to_owned())
    }
}

/// The beginning of a line that may be long.
fn cut(line: &str) -> String {
    line.chars().take(120).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whoever has ended already cannot be ended again.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Our engines and running peers, who answer in turn.
pub struct Field {
    engines: Engines,
    peers: Vec<Process>,
    contestants: Vec<Contestant>,
}

impl Field {
    /// Starts the peers of some contestants beside our engines; `specs` are those that tasks name.
    ///
    /// # Errors
    /// If a peer does not start, or computes on another number of threads than what it is compared with.
    pub fn new(
        engines: Engines,
        specs: &[PeerSpec],
        contestants: &[Contestant],
        unequal_cores: bool,
    ) -> Result<Self, BenchError> {
        let peers = specs
            .iter()
            .map(|spec| Process::start(spec, PATIENCE))
            .collect::<Result<Vec<_>, _>>()?;
        let mut contestants = contestants.to_vec();
        for index in 0..contestants.len() {
            let Some(task) = &contestants[index].peer else { continue };
            let cores = peers[task.peer].hello.threads;
            let baseline = &contestants[contestants[index].baseline];
            if cores != baseline.cores && !unequal_cores {
                return Err(BenchError::UnequalCores {
                    name: contestants[index].name.clone(),
                    cores,
                    baseline: baseline.name.clone(),
                    baseline_cores: baseline.cores,
                });
            }
            contestants[index].cores = cores;
        }
        Ok(Self { engines, peers, contestants })
    }

    /// Our engines.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// What the peers said of themselves, in the order of their specs.
    pub fn hellos(&self) -> impl Iterator<Item = &Hello> {
        self.peers.iter().map(|peer| &peer.hello)
    }

    /// Who takes part; the peers' numbers of cores are known by now.
    #[must_use]
    pub fn contestants(&self) -> &[Contestant] {
        &self.contestants
    }
}

impl Answerer for Field {
    fn answer(
        &mut self,
        contestant: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError> {
        if !self.peers.is_empty() {
            sleep(SETTLE);
        }
        let own = &self.contestants[contestant];
        let Some(task) = &own.peer else {
            return self.engines.answer(contestant, prompt, repeat, sample);
        };
        let request = self.engines.request();
        let tokens = self.engines.encode(prompt)?;
        let question = Question {
            drafter: task.drafter.to_string(),
            draft_tokens: task.draft_tokens,
            prompt: &tokens,
            max_tokens: request.max_tokens,
            ignore_eos: request.ignore_eos,
        };
        let max_tokens = request.max_tokens;
        let reply = self.peers[task.peer].ask(&question)?;
        let counts = counts(&reply, task.drafter);
        Ok(AnswerRecord {
            configuration: own.name.clone(),
            prompt: prompt.id.clone(),
            category: prompt.category.clone(),
            repeat,
            peak_memory_bytes: reply.peak_memory_bytes,
            turns: vec![TurnRecord {
                text: self.engines.decode(&reply.tokens),
                finish: if reply.tokens.len() < max_tokens { "eos" } else { "max_tokens" }.into(),
                prompt_tokens: tokens.len(),
                seed: 0,
                total_ns: reply.total_ns,
                commits: reply
                    .commits
                    .iter()
                    .map(|&(at_ns, tokens)| Commit { at_ns, tokens })
                    .collect(),
                tokens: reply.tokens,
                counts,
                times: Times::default(),
                rounds: Vec::new(),
                trace: None,
            }],
        })
    }
}

/// What can be counted from a reply. A model drafts a chain, and so passes once a token.
fn counts(reply: &Reply, drafter: DrafterKind) -> Counts {
    let mut counts = Counts {
        committed: reply.tokens.len() as u64,
        committing_forwards: reply.commits.len() as u64,
        target_forwards: reply.commits.len() as u64,
        ..Counts::default()
    };
    for &(drafted, accepted) in &reply.rounds {
        counts.draft_tokens += drafted;
        counts.scored_rows += drafted + 1;
        let accepted = accepted.min(drafted) as usize;
        let tested = (accepted + 1).min(drafted as usize);
        if counts.tested.len() < tested {
            counts.tested.resize(tested, 0);
            counts.accepted.resize(tested, 0);
        }
        counts.tested[..tested].iter_mut().for_each(|count| *count += 1);
        counts.accepted[..accepted].iter_mut().for_each(|count| *count += 1);
    }
    if drafter.has_model() {
        counts.drafter_forwards = counts.draft_tokens;
    }
    counts
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_counted_as_our_own() {
        let reply = Reply {
            tokens: vec![1; 8],
            commits: vec![(5, 1), (9, 4), (12, 2), (15, 1)],
            rounds: vec![(3, 3), (3, 1), (2, 0)],
            ..Reply::default()
        };
        let counts = counts(&reply, DrafterKind::Model);
        assert_eq!((counts.committed, counts.committing_forwards), (8, 4));
        assert_eq!((counts.draft_tokens, counts.drafter_forwards, counts.scored_rows), (8, 8, 11));
        assert_eq!((counts.tested, counts.accepted), (vec![3, 2, 1], vec![2, 1, 1]));
        assert_eq!(super::counts(&reply, DrafterKind::PromptLookup).drafter_forwards, 0);
    }

    fn spec(script: &str) -> PeerSpec {
        PeerSpec {
            name: "shell".into(),
            command: ["sh", "-c", script].map(String::from).to_vec(),
            weight_type: None,
            drafters: vec![DrafterKind::None],
            draft_tokens: Vec::new(),
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_peer_answers_line_by_line() {
        let script = r#"echo '{"version": "1", "threads": 2, "weights": "f32"}'
            while read -r line; do
                case $line in *'"max_tokens":2'*) ;; *) exit 1;; esac
                echo '{"tokens": [7, 8], "total_ns": 30, "commits": [[10, 1], [30, 1]]}'
            done"#;
        let mut process = Process::start(&spec(script), PATIENCE).unwrap();
        assert_eq!((process.hello.threads, process.hello.weights.as_str()), (2, "f32"));
        let question = |max_tokens| Question {
            drafter: "none".into(),
            draft_tokens: 0,
            prompt: &[1, 2],
            max_tokens,
            ignore_eos: true,
        };
        for _ in 0..2 {
            assert_eq!(process.ask(&question(2)).unwrap().tokens, [7, 8]);
        }
        let error = process.ask(&question(4)).unwrap_err().to_string();
        assert!(error.contains("\"shell\"") && error.contains("it ended"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_a_peer_cannot_do_is_told() {
        let error = |script: &str| Process::start(&spec(script), PATIENCE).unwrap_err().to_string();
        assert!(error("echo nonsense").contains("it said \"nonsense"));
        assert!(error("true").contains("it ended"));
        let none = PeerSpec { command: vec!["/nowhere/at/all".into()], ..spec("") };
        assert!(
            Process::start(&none, PATIENCE).unwrap_err().to_string().contains("does not start")
        );
        let failing = r#"echo '{"version": "1", "threads": 1, "weights": "f32"}'; read -r line
            echo '{"tokens": [], "total_ns": 0, "commits": [], "error": "too long"}'"#;
        let mut process = Process::start(&spec(failing), PATIENCE).unwrap();
        let question = Question {
            drafter: "none".into(),
            draft_tokens: 0,
            prompt: &[],
            max_tokens: 1,
            ignore_eos: false,
        };
        assert!(process.ask(&question).unwrap_err().to_string().contains("too long"));
    }

    #[cfg(unix)]
    #[test]
    fn a_peer_that_hangs_is_ended() {
        let error = Process::start(&spec("exec sleep 600"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("it said nothing"), "{error}");
    }

    /// A pipe takes in 64 KiB before somebody reads.
    #[cfg(unix)]
    #[test]
    fn a_peer_that_does_not_read_is_ended() {
        let hello = r#"echo '{"version": "1", "threads": 1, "weights": "f32"}'"#;
        let mut process =
            Process::start(&spec(&format!("{hello}; exec sleep 600")), PATIENCE).unwrap();
        process.patience = Duration::from_millis(50);
        let question = Question {
            drafter: "none".into(),
            draft_tokens: 0,
            prompt: &vec![12_345; 50_000],
            max_tokens: 1,
            ignore_eos: false,
        };
        let error = process.ask(&question).unwrap_err().to_string();
        assert!(error.contains("it said nothing"), "{error}");
        // One that is gone is told apart.
        let mut process = Process::start(&spec(hello), PATIENCE).unwrap();
        let error = process.ask(&question).unwrap_err().to_string();
        assert!(error.contains("it ended"), "{error}");
    }

    #[test]
    fn answers_that_cannot_be_are_refused() {
        let right = Reply {
            tokens: vec![7, 8],
            total_ns: 30,
            commits: vec![(10, 1), (30, 1)],
            ..Reply::default()
        };
        let question = |max_tokens, ignore_eos| Question {
            drafter: "none".into(),
            draft_tokens: 0,
            prompt: &[1],
            max_tokens,
            ignore_eos,
        };
        assert_eq!(right.flaw(&question(2, true)), None);
        assert_eq!(right.flaw(&question(3, false)), None);
        for (reply, question, word) in [
            (right.clone(), question(1, false), "1 to 1 were asked for"),
            (right.clone(), question(3, true), "where 3 were asked for"),
            (Reply { commits: vec![(10, 1)], ..right.clone() }, question(2, true), "1 have a time"),
            (Reply { total_ns: 20, ..right.clone() }, question(2, true), "of 20 ns"),
            (Reply { total_ns: 0, ..right.clone() }, question(2, true), "of 0 ns"),
            (Reply { rounds: vec![(9, 9)], ..right.clone() }, question(2, true), "0 draft tokens"),
            (Reply { commits: vec![(30, 1), (10, 1)], ..right }, question(2, true), "earlier"),
        ] {
            let flaw = reply.flaw(&question).unwrap();
            assert!(flaw.contains(word), "{flaw}");
        }
    }
}

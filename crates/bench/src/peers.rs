//! Peers: other engines that answer the same prompts, each in its own process.
//!
//! A peer reads and writes lines of JSON:
//!
//! 1. When its models are loaded, it writes a line about itself ([`PeerInfo`]).
//! 2. It reads the tokens of a prompt (`Question`), decodes greedily, and writes the tokens of its
//!    answer (`Reply`).
//! 3. While other participants answer, it waits for its next line.
//!
//! The folder `bench/peers` contains peers for some engines.

use crate::record::{AnswerRecord, Counts, TurnRecord};
use crate::run::Answerer;
use crate::times::TimeBreakdown;
use crate::{BenchError, Engines, Participant, Prompt};
use forerun::{Commit, DrafterKind, TokenId, WeightTypes};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Time in which a peer must load, or answer one prompt.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Largest length of a line from a peer, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 26;
/// Pause before every answer, in which the threads of the previous participant go to sleep.
const SETTLE: Duration = Duration::from_millis(20);

/// A peer to start, and its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSpec {
    /// The name of the peer.
    pub name: String,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// The weight type of the peer. It is compared with our plain decoding of the same type.
    pub weight_type: Option<WeightTypes>,
    /// The drafters of the peer: none, model, prompt-lookup. Each is compared with ours of the same
    /// kind.
    pub drafters: Vec<DrafterKind>,
    /// The draft lengths.
    pub draft_tokens: Vec<usize>,
}

/// A task of a peer: a drafter with a draft length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTask {
    /// The index of the peer.
    pub peer: usize,
    /// The kind of drafter.
    pub drafter: DrafterKind,
    /// The draft length; 0 without a drafter.
    pub draft_tokens: usize,
}

/// The first line of a peer, which describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// The version of the peer and its build.
    pub version: String,
    /// The number of threads that it computes on.
    pub threads: usize,
    /// The peer's own name for the type of its weights.
    pub weights: String,
}

#[derive(Clone, Debug, Serialize)]
struct Question<'a> {
    /// `none`, `model` or `prompt-lookup`.
    drafter: String,
    draft_tokens: usize,
    prompt: &'a [TokenId],
    max_tokens: usize,
    /// Whether to continue after an end of text.
    ignore_eos: bool,
}

/// The reply of a peer. Its times are measured by the peer, in nanoseconds since the question.
#[derive(Clone, Debug, Default, Deserialize)]
struct Reply {
    tokens: Vec<TokenId>,
    total_ns: u64,
    /// The time and the number of tokens of each commit.
    commits: Vec<(u64, usize)>,
    /// The number of drafted and of accepted tokens for every target pass after the prompt's.
    #[serde(default)]
    rounds: Vec<(u64, u64)>,
    #[serde(default)]
    peak_memory_bytes: Option<u64>,
    /// The reason why there is no answer. The other fields are then ignored.
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
    timeout: Duration,
    info: PeerInfo,
}

/// Starts a thread that reads the lines of a peer until the peer exits or the receiver is dropped.
fn read_lines(replies: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (send, receive) = channel();
    spawn(move || {
        let mut replies = BufReader::new(replies);
        loop {
            let mut line = String::new();
            let read = replies.by_ref().take(MAX_LINE_BYTES).read_line(&mut line);
            let last = !matches!(read, Ok(count) if count > 0);
            if matches!(read, Ok(0)) || send.send(read.map(|_| line)).is_err() || last {
                return;
            }
        }
    });
    receive
}

/// Starts a thread that writes lines to a peer until the peer exits. Without it, a peer that does
/// not read would block the caller beyond the timeout.
fn write_lines(mut questions: ChildStdin) -> Sender<Vec<u8>> {
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
    fn start(spec: &PeerSpec, timeout: Duration) -> Result<Self, BenchError> {
        let failed = |reason: String| BenchError::Peer { name: spec.name.clone(), reason };
        let (program, arguments) =
            spec.command.split_first().ok_or_else(|| failed("its command is empty".into()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("cannot start {program}: {error}")))?;
        let (Some(questions), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("its standard input and output are not available".into()));
        };
        let name = spec.name.clone();
        let (questions, lines) = (write_lines(questions), read_lines(replies));
        let mut process =
            Self { name, child, questions, lines, timeout, info: PeerInfo::default() };
        process.info = process.read()?;
        Ok(process)
    }

    fn read<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, BenchError> {
        let reason = match self.lines.recv_timeout(self.timeout) {
            Err(RecvTimeoutError::Disconnected) => {
                "it exited; see its own messages above".to_owned()
            }
            Err(RecvTimeoutError::Timeout) => {
                format!("it wrote nothing for {} s and was stopped", self.timeout.as_secs())
            }
            Ok(Ok(line)) => match serde_json::from_str(&line) {
                Ok(read) => return Ok(read),
                Err(error) => {
                    format!("it wrote {:?}, which is not the expected line: {error}", cut(&line))
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
        // Sending fails only if the peer has exited, which the following read reports.
        drop(self.questions.send(line));
        let reply: Reply = self.read()?;
        let reason = match &reply.error {
            Some(reason) => reason.clone(),
            None => match reply.flaw(question) {
                Some(flaw) => format!("its reply is invalid: {flaw}"),
                None => return Ok(reply),
            },
        };
        Err(BenchError::Peer { name: self.name.clone(), reason })
    }
}

impl Reply {
    /// Returns what is invalid in a reply to a question, or `None` if the reply is valid.
    fn flaw(&self, question: &Question<'_>) -> Option<String> {
        let (count, requested) = (self.tokens.len(), question.max_tokens);
        let committed =
            self.commits.iter().fold(0_usize, |sum, (_, tokens)| sum.saturating_add(*tokens));
        let last_ns = self.commits.iter().map(|&(at_ns, _)| at_ns).max().unwrap_or(0);
        if count == 0 || count > requested || (question.ignore_eos && count < requested) {
            let range = if question.ignore_eos { "" } else { "1 to " };
            return Some(format!("it has {count} tokens, but {range}{requested} were requested"));
        }
        if committed != count {
            return Some(format!("it has {count} tokens, but commits of {committed}"));
        }
        if self.total_ns == 0 || last_ns > self.total_ns {
            let total_ns = self.total_ns;
            return Some(format!("its last commit is at {last_ns} ns, its end at {total_ns} ns"));
        }
        let drafted = |&(drafted, accepted): &(u64, u64)| {
            accepted <= drafted && drafted <= question.draft_tokens as u64
        };
        if self.rounds.len() > count || !self.rounds.iter().all(drafted) {
            return Some(format!(
                "it has more rounds than tokens, or rounds of more than {} draft tokens",
                question.draft_tokens
            ));
        }
        let is_unordered = self.commits.windows(2).any(|pair| pair[1].0 < pair[0].0);
        is_unordered.then(|| "its commits are not in the order of their times".to_owned())
    }
}

/// Returns the beginning of a line.
fn cut(line: &str) -> String {
    line.chars().take(120).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Our engines and the running peers.
pub struct EnginesAndPeers {
    engines: Engines,
    peers: Vec<Process>,
    participants: Vec<Participant>,
}

impl EnginesAndPeers {
    /// Starts the peers. `specs` are the specifications to which the tasks of the participants
    /// refer.
    ///
    /// # Errors
    /// If a peer does not start, or if it has another number of threads than its baseline and
    /// `unequal_cores` is not set.
    pub fn new(
        engines: Engines,
        specs: &[PeerSpec],
        participants: &[Participant],
        unequal_cores: bool,
    ) -> Result<Self, BenchError> {
        let peers = specs
            .iter()
            .map(|spec| Process::start(spec, TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        let mut participants = participants.to_vec();
        for index in 0..participants.len() {
            let Some(task) = &participants[index].peer else { continue };
            let cores = peers[task.peer].info.threads;
            let baseline = &participants[participants[index].baseline];
            if cores != baseline.cores && !unequal_cores {
                return Err(BenchError::UnequalCores {
                    name: participants[index].name.clone(),
                    cores,
                    baseline: baseline.name.clone(),
                    baseline_cores: baseline.cores,
                });
            }
            participants[index].cores = cores;
        }
        Ok(Self { engines, peers, participants })
    }

    /// Returns our engines.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// Returns the descriptions of the peers in the order of their specifications.
    pub fn peer_infos(&self) -> impl Iterator<Item = &PeerInfo> {
        self.peers.iter().map(|peer| &peer.info)
    }

    /// Returns the participants, with the actual numbers of cores of the peers.
    #[must_use]
    pub fn participants(&self) -> &[Participant] {
        &self.participants
    }
}

impl Answerer for EnginesAndPeers {
    fn answer(
        &mut self,
        participant: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError> {
        if !self.peers.is_empty() {
            sleep(SETTLE);
        }
        let asked = &self.participants[participant];
        let Some(task) = &asked.peer else {
            return self.engines.answer(participant, prompt, repeat, sample);
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
            configuration: asked.name.clone(),
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
                times: TimeBreakdown::default(),
                rounds: Vec::new(),
                trace: None,
            }],
        })
    }
}

/// Derives the counters of an answer from a reply. A draft model drafts a chain, with one pass per
/// token.
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
    if drafter.has_model() || drafter.is_in_target() {
        counts.drafter_forwards = counts.draft_tokens;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_peers_are_counted_like_ours() {
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
        let mut process = Process::start(&spec(script), TIMEOUT).unwrap();
        assert_eq!((process.info.threads, process.info.weights.as_str()), (2, "f32"));
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
        assert!(error.contains("\"shell\"") && error.contains("it exited"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn failures_of_peers_are_reported() {
        let error = |script: &str| Process::start(&spec(script), TIMEOUT).unwrap_err().to_string();
        assert!(error("echo nonsense").contains("it wrote \"nonsense"));
        assert!(error("true").contains("it exited"));
        let missing = PeerSpec { command: vec!["/nowhere/at/all".into()], ..spec("") };
        let error = Process::start(&missing, TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("cannot start /nowhere/at/all"), "{error}");
        let failing = r#"echo '{"version": "1", "threads": 1, "weights": "f32"}'; read -r line
            echo '{"tokens": [], "total_ns": 0, "commits": [], "error": "too long"}'"#;
        let mut process = Process::start(&spec(failing), TIMEOUT).unwrap();
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
    fn a_peer_that_hangs_is_stopped() {
        let error = Process::start(&spec("exec sleep 600"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("it wrote nothing"), "{error}");
    }

    /// The question is longer than the 64 KiB that a pipe buffers.
    #[cfg(unix)]
    #[test]
    fn a_peer_that_does_not_read_is_stopped() {
        let info = r#"echo '{"version": "1", "threads": 1, "weights": "f32"}'"#;
        let mut process =
            Process::start(&spec(&format!("{info}; exec sleep 600")), TIMEOUT).unwrap();
        process.timeout = Duration::from_millis(50);
        let question = Question {
            drafter: "none".into(),
            draft_tokens: 0,
            prompt: &vec![12_345; 50_000],
            max_tokens: 1,
            ignore_eos: false,
        };
        let error = process.ask(&question).unwrap_err().to_string();
        assert!(error.contains("it wrote nothing"), "{error}");
        // A peer that has exited gives another error.
        let mut process = Process::start(&spec(info), TIMEOUT).unwrap();
        let error = process.ask(&question).unwrap_err().to_string();
        assert!(error.contains("it exited"), "{error}");
    }

    #[test]
    fn invalid_replies_are_rejected() {
        let valid = Reply {
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
        assert_eq!(valid.flaw(&question(2, true)), None);
        assert_eq!(valid.flaw(&question(3, false)), None);
        for (reply, question, word) in [
            (valid.clone(), question(1, false), "1 to 1 were requested"),
            (valid.clone(), question(3, true), "but 3 were requested"),
            (Reply { commits: vec![(10, 1)], ..valid.clone() }, question(2, true), "commits of 1"),
            (Reply { total_ns: 20, ..valid.clone() }, question(2, true), "its end at 20 ns"),
            (Reply { total_ns: 0, ..valid.clone() }, question(2, true), "its end at 0 ns"),
            (Reply { rounds: vec![(9, 9)], ..valid.clone() }, question(2, true), "0 draft tokens"),
            (Reply { commits: vec![(30, 1), (10, 1)], ..valid }, question(2, true), "order"),
        ] {
            let flaw = reply.flaw(&question).unwrap();
            assert!(flaw.contains(word), "{flaw}");
        }
    }
}

//! Jobs of `mpirun` with this program, and how they end.

use forerun::checkpoint::Config;
use forerun::{
    AdditionalDrafter, Answer, DraftTokens, DrafterKind, Engine, Method, Options, Plan, Request,
    SamplingOptions, Verification, VerificationChoice,
};
use forerun_formats::checkpoint::random::{example_config, write_random_pair};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How the ranks of a test reach each other.
pub(crate) const TRANSPORTS: [&str; 2] = ["vader,self", "tcp,self"];

/// After how many seconds without a sign of life a rank counts as lost in these tests.
pub(crate) const TIMEOUT: u64 = 4;

/// The most time that a job may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// A random target and a drafter that is often right, with room for long texts.
pub(crate) struct Models(TempDir);

impl Models {
    pub(crate) fn make() -> Self {
        Self::of(&example_config())
    }

    pub(crate) fn of(config: &Config) -> Self {
        let models = Self(tempfile::tempdir().unwrap());
        let config = Config { max_position_embeddings: 16_384, ..config.clone() };
        write_random_pair(&models.path("target"), &models.path("drafter"), &config, 2, 0.3, 5)
            .unwrap();
        models
    }

    /// Writes the drafter as a PARD model, which differs by a mask token. Returns its path.
    pub(crate) fn pard(&self) -> String {
        let (from, to) = (self.path("drafter"), self.path("pard"));
        std::fs::create_dir_all(&to).unwrap();
        for entry in from.read_dir().unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        let file = to.join("config.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["pard_token"] = 7.into();
        std::fs::write(&file, config.to_string()).unwrap();
        to.display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// What all ranks of a job do.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) target: String,
    pub(crate) drafter: String,
    pub(crate) method: String,
    pub(crate) kind: String,
    pub(crate) placement: String,
    pub(crate) also_prompt_lookup: bool,
    pub(crate) work: Work,
    pub(crate) fault: Option<Fault>,
    /// The number of processes, if it is not that of the placement.
    pub(crate) ranks: Option<usize>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Answers all requests.
    Answer,
    /// Answers until the job ends.
    AnswerForEver,
    /// Measures round trips and bytes.
    Measure,
    /// Measures how long all ranks take to gather numbers, and then answers.
    Gather,
    /// Gathers several MiB between all ranks, and then answers.
    GatherMuch,
    /// Measures how long a rank takes to hand numbers over to another one, and then answers.
    HandOver,
    /// Answers long prompts, some of which are cancelled, next to short ones.
    AnswerLong,
}

/// What happens to a rank, after how many milliseconds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) rank: usize,
    pub(crate) kind: FaultKind,
    pub(crate) after_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    Kill,
    Stop,
    Panic,
}

pub(crate) const TASK: &str = "FORERUN_TEST_TASK";

impl Task {
    pub(crate) fn new(models: &Models, method: &str, kind: &str, placement: &str) -> Self {
        Self {
            target: models.path("target").display().to_string(),
            drafter: models.path("drafter").display().to_string(),
            method: method.into(),
            kind: kind.into(),
            placement: placement.into(),
            also_prompt_lookup: false,
            work: Work::Answer,
            fault: None,
            ranks: None,
        }
    }

    /// Returns the plan, on ranks or in one process.
    pub(crate) fn plan(&self, on_ranks: bool) -> Plan {
        let kind: DrafterKind = self.kind.parse().unwrap();
        let also = self
            .also_prompt_lookup
            .then(|| AdditionalDrafter::Tokens("prompt-lookup".parse().unwrap()));
        let options = Options {
            model: self.target.clone().into(),
            draft_model: kind.has_model().then(|| self.drafter.clone().into()),
            method: Some(self.method.parse::<Method>().unwrap().into()),
            drafter: Some(kind.into()),
            additional_drafters: also.into_iter().collect(),
            // The lengths that adapt follow measured times.
            draft_tokens: DraftTokens::Fixed(3),
            placement: on_ranks.then(|| self.placement.parse().unwrap()),
            ..Options::default()
        };
        Plan::new(options).unwrap()
    }

    fn ranks(&self) -> usize {
        self.ranks.unwrap_or_else(|| self.plan(true).placement().ranks().last().unwrap() + 1)
    }

    fn start(&self, transport: &str) -> Child {
        Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"])
            .args(["--mca", "pml", "ob1", "--mca", "btl", transport])
            .args(["-n", &self.ranks().to_string()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "rank::a_rank_of_a_job", "--nocapture"])
            .env(TASK, serde_json::to_string(self).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs a job to its end. Returns whether it succeeded, and what it printed.
    pub(crate) fn run(&self, transport: &str) -> Ended {
        let mut child = self.start(transport);
        let read = |mut from: Box<dyn Read + Send>| {
            thread::spawn(move || {
                let mut text = Vec::new();
                from.read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let output = read(Box::new(child.stdout.take().unwrap()));
        let errors = read(Box::new(child.stderr.take().unwrap()));
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > DEADLINE {
                child.kill().unwrap();
                panic!("the job hangs: {}", errors.join().unwrap());
            }
            thread::sleep(Duration::from_millis(20));
        };
        let (output, errors) = (output.join().unwrap(), errors.join().unwrap());
        let took = started.elapsed();
        Ended { succeeded: status.success(), output, errors, took }
    }
}

pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) took: Duration,
}

impl Ended {
    /// Returns the tokens of all answers, as text.
    pub(crate) fn answers(&self) -> Vec<&str> {
        self.lines("answer ").map(|line| line.split_once(' ').unwrap().1).collect()
    }

    /// Returns the lines with a prefix, without it.
    pub(crate) fn lines<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.output.lines().filter_map(move |line| line.split_once(prefix).map(|(_, rest)| rest))
    }
}

/// Returns greedy, coupled and rejection sampling.
pub(crate) fn requests() -> Vec<(&'static str, Request)> {
    let greedy = Request { max_tokens: 24, seed: Some(5), ignore_eos: true, ..Request::default() };
    let sampled = |verification| Request {
        sampling: SamplingOptions { temperature: 0.9, top_k: 20, ..SamplingOptions::default() },
        verification: VerificationChoice::Always(verification),
        ..greedy.clone()
    };
    vec![
        ("ba na", greedy.clone()),
        ("go la", sampled(Verification::Coupled)),
        ("mi", sampled(Verification::Rejection)),
    ]
}

pub(crate) fn tokens(answer: &Answer) -> String {
    format!("{:?}", answer.tokens)
}

/// Returns the answers without ranks.
pub(crate) fn expected(task: &Task) -> Vec<String> {
    let engine = Engine::open_plan(&task.plan(false)).unwrap();
    requests()
        .iter()
        .map(|(prompt, request)| tokens(&engine.complete(prompt, request).unwrap()))
        .collect()
}

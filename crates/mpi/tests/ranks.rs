//! Engines on the ranks of real MPI jobs: the same answers as with local workers, and jobs that end
//! with an error that names the rank when one is killed, stopped or panics.
//!
//! A test starts `mpirun` with this program. `a_rank_of_a_job` is what runs on each rank then.
//!
//! `FORERUN_CASES` is the number of faults (`just mpi`). Without it, some tests run on a sample.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::checkpoint::Config;
use forerun::cpu::Exchange;
use forerun::placement::Topology;
use forerun::runtime::{Rank, RankFacts, RankSite};
use forerun::{
    AdditionalDrafter, Answer, AnswerEvent, Canceller, DraftTokens, DrafterKind, Engine, Loader,
    Options, Plan, Request, SamplingOptions, Verification, VerificationChoice,
};
use forerun_core::testing::{cases, is_complete};
use forerun_core::{Job, Key, KeyedRandomness, Purpose, Role, ScoreJob, SequenceId};
use forerun_cpu::{LEADER, Recipients};
use forerun_formats::checkpoint::random::{example_config, example_families, write_random_pair};
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_formats::{Checkpoint, MarkovKind, QkNorms};
use forerun_mpi::{Group, GroupOptions, Observer};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How the ranks of a test reach each other.
const TRANSPORTS: [&str; 2] = ["vader,self", "tcp,self"];

/// After how many seconds without a sign of life a rank counts as lost in these tests.
const TIMEOUT: u64 = 4;

/// The most time that a job may take.
const DEADLINE: Duration = Duration::from_secs(90);

/// A random target and a drafter that is often right, with room for long texts.
struct Models(TempDir);

impl Models {
    fn make() -> Self {
        Self::of(&example_config())
    }

    fn of(config: &Config) -> Self {
        let models = Self(tempfile::tempdir().unwrap());
        let config = Config { max_position_embeddings: 16_384, ..config.clone() };
        write_random_pair(&models.path("target"), &models.path("drafter"), &config, 2, 0.3, 5)
            .unwrap();
        models
    }

    /// Writes the drafter as a PARD model, which differs by a mask token. Returns its path.
    fn pard(&self) -> String {
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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// What all ranks of a job do.
#[derive(Clone, Serialize, Deserialize)]
struct Task {
    target: String,
    drafter: String,
    method: String,
    kind: String,
    placement: String,
    also_prompt_lookup: bool,
    work: Work,
    fault: Option<Fault>,
    /// The number of processes, if it is not that of the placement.
    ranks: Option<usize>,
}

#[derive(Clone, Serialize, Deserialize)]
enum Work {
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
struct Fault {
    rank: usize,
    kind: FaultKind,
    after_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum FaultKind {
    Kill,
    Stop,
    Panic,
}

const TASK: &str = "FORERUN_TEST_TASK";

impl Task {
    fn new(models: &Models, method: &str, kind: &str, placement: &str) -> Self {
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
    fn plan(&self, on_ranks: bool) -> Plan {
        let kind: DrafterKind = self.kind.parse().unwrap();
        let also = self
            .also_prompt_lookup
            .then(|| AdditionalDrafter::Tokens("prompt-lookup".parse().unwrap()));
        let options = Options {
            model: self.target.clone().into(),
            draft_model: kind.has_model().then(|| self.drafter.clone().into()),
            method: Some(self.method.parse().unwrap()),
            drafter: Some(kind),
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
            .args(["--exact", "a_rank_of_a_job", "--nocapture"])
            .env(TASK, serde_json::to_string(self).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs a job to its end. Returns whether it succeeded, and what it printed.
    fn run(&self, transport: &str) -> Ended {
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

struct Ended {
    succeeded: bool,
    output: String,
    errors: String,
    took: Duration,
}

impl Ended {
    /// Returns the lines with a prefix, without it.
    fn lines<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.output.lines().filter_map(move |line| line.split_once(prefix).map(|(_, rest)| rest))
    }
}

/// Returns greedy, coupled and rejection sampling.
fn requests() -> Vec<(&'static str, Request)> {
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

fn tokens(answer: &Answer) -> String {
    format!("{:?}", answer.tokens)
}

/// Returns the answers without ranks.
fn expected(task: &Task) -> Vec<String> {
    let engine = Engine::open_plan(&task.plan(false)).unwrap();
    requests()
        .iter()
        .map(|(prompt, request)| tokens(&engine.complete(prompt, request).unwrap()))
        .collect()
}

/// What runs on each rank. It is no test by itself.
#[test]
fn a_rank_of_a_job() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let plan = task.plan(true);
    let workers = plan.workers().into_iter();
    let names = workers
        .flat_map(|worker| worker.ranks().into_iter().map(move |it| (it, worker.name.clone())));
    let options = GroupOptions {
        timeout: Duration::from_secs(TIMEOUT),
        cores: Topology::of_this_machine().default_cores(),
        names: names.collect::<BTreeMap<_, _>>(),
        // In one piece: `mpirun` mixes it with messages of its own.
        on_failure: Box::new(|error| {
            let line = format!("error: {error}\n");
            drop(std::io::stderr().write_all(line.as_bytes()));
        }),
    };
    let group = Group::join(options).unwrap();
    println!("process {}", std::process::id());
    if let Some(Fault { rank, kind, after_ms }) = task.fault
        && rank == group.rank()
    {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(after_ms));
            let signal = match kind {
                FaultKind::Kill => Signal::KILL,
                FaultKind::Stop => Signal::STOP,
                FaultKind::Panic => panic!("a test"),
            };
            kill_process(getpid(), signal).unwrap();
        });
    }
    match task.work {
        Work::Gather => measure_gathers(&group),
        Work::GatherMuch => gather_much(&group),
        Work::HandOver => measure_hand_overs(&group),
        _ => {}
    }
    let start = |group: &Group| {
        let connect = |ranks: &[usize]| -> Box<dyn Exchange> { Box::new(group.exchange(ranks)) };
        let site = RankSite { rank: group.rank(), cores: group.cores(), connect: &connect };
        Rank::start(&plan, &mut Loader::new(), site)
    };
    if group.rank() > 0 {
        let load = |group: &Group| {
            let rank = start(group).map_err(|error| error.to_string())?;
            let facts = serde_json::to_vec(rank.facts()).unwrap();
            Ok((rank.into_runtime(), facts))
        };
        return group.serve(load).unwrap();
    }
    let own = start(&group).unwrap();
    let facts = group.gather().unwrap();
    let facts: Vec<RankFacts> =
        facts.iter().map(|facts| serde_json::from_slice(facts).unwrap()).collect();
    let workers = plan.workers().into_iter();
    let workers: Vec<_> =
        workers.map(|worker| (worker.rank(), worker.name.clone(), worker.roles())).collect();
    let mut observer = None;
    let engine = own
        .open(&facts, |runtime| {
            let workers = group.into_workers(runtime, &workers);
            observer = Some(workers.observer());
            Box::new(workers)
        })
        .unwrap();
    match task.work {
        Work::Answer | Work::Gather | Work::GatherMuch | Work::HandOver => answer(&engine),
        Work::AnswerLong => answer_long(&engine),
        Work::AnswerForEver => loop {
            answer(&engine);
        },
        Work::Measure => measure(&engine, Some(&observer.unwrap())),
    }
}

fn answer(engine: &Engine) {
    for (number, (prompt, request)) in requests().iter().enumerate() {
        let answer = engine.complete(prompt, request).unwrap();
        let failures = &answer.statistics.failures;
        assert!(failures.is_empty(), "{failures:?}");
        println!("answer {number} {}", tokens(&answer));
        let spans = &answer.trace.spans;
        assert!(spans.iter().all(|span| span.start_ns <= span.end_ns && span.start_ns > 0));
        std::io::stdout().flush().unwrap();
    }
}

/// Prints how long a job of one token takes, and how many bytes a token takes.
fn measure(engine: &Engine, observer: Option<&Observer>) {
    let job = |at: usize| {
        let tokens: Vec<u32> = (0..1 + at as u32 % 100).map(|token| token % 50).collect();
        Job::Score(ScoreJob { prompt_len: 1, ..ScoreJob::greedy(SequenceId(u64::MAX), tokens) })
    };
    let mut cluster = engine.cluster();
    let mut overheads: Vec<u64> = Vec::new();
    for at in 0..200 {
        let started = Instant::now();
        cluster.submit(Role::Target(0), job(at)).unwrap();
        let completion = cluster.next_completion().unwrap();
        assert!(completion.output.is_ok());
        // What the job itself took is not part of the overhead.
        overheads
            .push((started.elapsed().as_nanos() as u64).saturating_sub(completion.duration_ns()));
    }
    cluster.release(SequenceId(u64::MAX));
    overheads.sort_unstable();
    println!("measured round trip {} ns", overheads[overheads.len() / 2]);
    let Some(observer) = observer else { return };
    for prompt_tokens in [500, 8_000] {
        let prompt: Vec<u32> = (0..prompt_tokens).map(|at| at % 50 + 3).collect();
        let request = Request { max_tokens: 65, ignore_eos: true, ..Request::default() };
        let mut bytes = None;
        let mut count = 0;
        let method = engine.plan().method();
        let stream = engine.stream_tokens(prompt, &request, method, &Canceller::new());
        for event in stream.unwrap() {
            if matches!(event.unwrap(), AnswerEvent::Token(_)) {
                bytes.get_or_insert_with(|| observer.traffic());
                count += 1;
            }
        }
        let (sent, received) = observer.traffic();
        let before = bytes.unwrap();
        let each = |after: u64, before: u64| (after - before) / (count - 1);
        println!(
            "measured bytes {prompt_tokens} {} {}",
            each(sent, before.0),
            each(received, before.1)
        );
    }
    for clock in observer.clocks() {
        println!("measured clock {clock:?}");
    }
}

/// Prints on rank 0 how long a gathering takes.
fn measure_gathers(group: &Group) {
    let ranks: Vec<usize> = (0..group.size()).collect();
    let mut exchange = group.exchange(&ranks);
    for numbers in [16, 1_024, 16_384, 262_144] {
        let own = vec![1.0; numbers];
        let mut times: Vec<u128> = Vec::new();
        for _ in 0..60 {
            let started = Instant::now();
            exchange.gather(&own, Recipients::All, &mut |_, _| Ok(())).unwrap();
            times.push(started.elapsed().as_micros());
        }
        times.sort_unstable();
        if group.rank() == 0 {
            println!("measured gathering of {} bytes: {} µs", 4 * numbers, times[times.len() / 2]);
        }
    }
}

/// Prints on rank 0 how long the two messages of a pass over two stages take: one that starts it,
/// and one with the rows.
fn measure_hand_overs(group: &Group) {
    let mut exchange = group.exchange(&[0, 1]);
    let other = 1 - exchange.member();
    // Computing may take longer if the core has other work.
    let compute = |time: Duration| {
        let started = Instant::now();
        while started.elapsed() < time {
            std::hint::spin_loop();
        }
        started.elapsed().as_secs_f32()
    };
    let repeats = if is_complete() { 40 } else { 11 };
    for (numbers, computing) in [1_024, 8_192, 262_144]
        .into_iter()
        .flat_map(|numbers| [0, 2, 20].map(|ms| (numbers, Duration::from_millis(ms))))
    {
        let mut own = vec![1.0; numbers];
        let mut times: Vec<u128> = Vec::new();
        for _ in 0..repeats {
            if exchange.member() == LEADER {
                compute(computing);
                let started = Instant::now();
                exchange.send(&[0; 100]).unwrap();
                let received = exchange.receive_from(other, None).unwrap().unwrap();
                let computed = Duration::from_secs_f32(received[0]);
                times.push(started.elapsed().saturating_sub(computed).as_micros());
            } else {
                exchange.receive().unwrap();
                own[0] = compute(computing);
                exchange.send_to(other, &own).unwrap();
            }
        }
        times.sort_unstable();
        if group.rank() == 0 {
            let (bytes, median) = (4 * numbers, times[times.len() / 2]);
            println!("measured two messages, {bytes} bytes, after {computing:?} each: {median} µs");
        }
    }
    if exchange.member() == LEADER {
        let before = core_time();
        for _ in 0..20 {
            let nothing = exchange.receive_from(other, Some(Duration::from_millis(50)));
            assert_eq!(nothing, Ok(None));
        }
        if let (Some(before), Some(after)) = (before, core_time()) {
            println!("waited {}", (after - before).as_millis());
        }
        exchange.send_to(other, &[]).unwrap();
    } else {
        exchange.receive_from(other, None).unwrap();
    }
}

/// Returns for how long this thread has used a core. Only Linux reports it there.
fn core_time() -> Option<Duration> {
    cfg!(target_os = "linux").then(|| {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    })
}

/// Gathers up to several MiB, with messages of the leader in between.
fn gather_much(group: &Group) {
    let ranks: Vec<usize> = (0..group.size()).collect();
    let mut exchange = group.exchange(&ranks);
    let own = exchange.member();
    for (round, numbers) in [3, 1 << 18, 1_300_000, 0, 2_000_001, 70_000].into_iter().enumerate() {
        // Each member's numbers are others, and as many as no other's.
        let share = |member: usize| -> Vec<f32> {
            let first = round * 100 + member * 10;
            (0..numbers + 17 * member).map(|at| (first + at % 7) as f32).collect()
        };
        let message = vec![round as u8; 4 * numbers];
        match own {
            LEADER => exchange.send(&message).unwrap(),
            _ => assert!(exchange.receive().unwrap().unwrap() == message, "round {round}"),
        }
        for to in [Recipients::All, Recipients::Leader] {
            let mut senders = Vec::new();
            let mut take = |member, numbers: &[f32]| {
                assert!(numbers == share(member), "round {round}, member {member}, {to:?}");
                senders.push(member);
                Ok(())
            };
            exchange.gather(&share(own), to, &mut take).unwrap();
            let receives = to == Recipients::All || own == LEADER;
            let expected = ranks.iter().copied().filter(|member| receives && *member != own);
            assert_eq!(senders, expected.collect::<Vec<_>>(), "round {round}, {to:?}");
        }
    }
    println!("gathered much");
}

/// Messages of several MiB arrive whole and in order.
#[test]
fn ranks_gather_several_mib() {
    let models = Models::make();
    for (transport, ranks) in TRANSPORTS.into_iter().flat_map(|it| [(it, 2), (it, 4)]) {
        let task = Task::new(&models, "autoregressive", "none", "target=rank:1");
        let task = Task { work: Work::GatherMuch, ranks: Some(ranks), ..task };
        let ended = task.run(transport);
        assert!(ended.succeeded, "{transport} {ranks}: {}", ended.errors);
        assert_eq!(ended.lines("gathered much").count(), ranks, "{}", ended.output);
        let found: Vec<&str> =
            ended.lines("answer ").map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(found, expected(&task), "{transport} {ranks}");
    }
}

fn long_prompt(tokens: u32, number: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * (number + 3)) % 50 + 3).collect()
}

fn long_answer(engine: &Engine) -> String {
    let request = Request { max_tokens: 12, ignore_eos: true, ..Request::default() };
    let (method, canceller) = (engine.plan().method(), Canceller::new());
    let stream = engine.stream_tokens(long_prompt(9_000, 9), &request, method, &canceller).unwrap();
    let tokens = stream.filter_map(|event| match event.unwrap() {
        AnswerEvent::Token(token) => Some(token.token),
        _ => None,
    });
    format!("{:?}", tokens.collect::<Vec<_>>())
}

/// Answers short prompts while long ones start and are cancelled, and then a long one.
fn answer_long(engine: &Engine) {
    thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                let canceller = Canceller::new();
                let request = Request { max_tokens: 64, ignore_eos: true, ..Request::default() };
                let method = engine.plan().method();
                let prompt = long_prompt(9_000, number);
                let stream = engine.stream_tokens(prompt, &request, method, &canceller).unwrap();
                thread::scope(|inner| {
                    inner.spawn(|| {
                        thread::sleep(Duration::from_millis(30 * u64::from(number)));
                        canceller.cancel();
                    });
                    // An error says that it was cancelled.
                    stream.for_each(drop);
                });
            });
        }
        scope.spawn(|| answer(engine));
    });
    println!("long {}", long_answer(engine));
}

/// Ranks that compute a target together gather megabytes for a long prompt, while other answers go
/// on and jobs are cancelled.
#[test]
fn long_prompts_next_to_cancelled_ones_are_answered() {
    let models = Models::make();
    for (transport, placement) in TRANSPORTS
        .into_iter()
        .zip(["drafter=rank:1+rank:0,target=rank:2+rank:3", "drafter=rank:0,target=rank:2+rank:1"])
    {
        let task = Task::new(&models, "pearl", "model", placement);
        let task = Task { work: Work::AnswerLong, ..task };
        let ended = task.run(transport);
        assert!(ended.succeeded, "{transport}: {} {}", ended.output, ended.errors);
        let found: Vec<&str> =
            ended.lines("answer ").map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(found[..2], expected(&task)[..2], "{transport}");
        let engine = Engine::open_plan(&task.plan(false)).unwrap();
        assert_eq!(ended.lines("long ").collect::<Vec<_>>(), [long_answer(&engine)]);
    }
}

/// Prints what it costs that ranks compute a model together.
#[test]
fn gathering_over_ranks_is_measured() {
    let models = Models::make();
    for (transport, ranks) in TRANSPORTS.into_iter().flat_map(|it| [(it, 2), (it, 4)]) {
        let task = Task::new(&models, "autoregressive", "none", "target=rank:1");
        let ended = Task { work: Work::Gather, ranks: Some(ranks), ..task }.run(transport);
        assert!(ended.succeeded, "{}", ended.errors);
        for line in ended.lines("measured ") {
            eprintln!("{transport} {ranks} ranks: {line}");
        }
    }
}

/// Prints what it costs that ranks have some layers of a model each. A rank that waits for long,
/// and looks now and then whether its pass is cancelled, sleeps.
#[test]
fn handing_over_between_ranks_is_measured() {
    let models = Models::make();
    for transport in TRANSPORTS {
        let task = Task::new(&models, "autoregressive", "none", "target=rank:1");
        let ended = Task { work: Work::HandOver, ..task }.run(transport);
        assert!(ended.succeeded, "{}", ended.errors);
        let lines: Vec<&str> = ended.lines("measured ").collect();
        assert_eq!(lines.len(), 9, "{}", ended.output);
        lines.iter().for_each(|line| eprintln!("{transport}: {line}"));
        let waited: Option<u64> = ended.lines("waited ").next().map(|ms| ms.parse().unwrap());
        assert_eq!(waited.is_some(), cfg!(target_os = "linux"), "{}", ended.output);
        if let Some(waited) = waited {
            eprintln!(
                "{transport}: waiting for a second in twenty looks took {waited} ms of a core"
            );
            assert!(waited < 50, "{waited} ms of a core");
        }
    }
}

/// Methods and drafters on two to four ranks.
fn tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let trained = |kind: &'static str, placement: &'static str| {
        let demonstration = |name| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let (target, drafter) = (demonstration("target"), demonstration(kind));
        Task { target, drafter, ..task("speculative", kind, placement) }
    };
    vec![
        task("autoregressive", "none", "target=rank:1"),
        task("speculative", "model", "drafter=rank:0,target=rank:1"),
        task("speculative", "ouroboros", "drafter=rank:2,target=rank:1"),
        task("speculative", "lookahead", "target=rank:1"),
        task("pearl", "model", "drafter=rank:0,target=rank:1"),
        task("dsi", "model", "drafter=rank:0,target=rank:1,target=rank:2"),
        Task {
            also_prompt_lookup: true,
            ..task("dsi", "model", "drafter=rank:3,target=rank:0,target=rank:1,target=rank:2")
        },
        // Ranks that compute the target together; any of them may decode.
        task("autoregressive", "none", "target=rank:1+rank:2"),
        task("autoregressive", "none", "target=rank:1+rank:0"),
        task("pearl", "model", "drafter=rank:0,target=rank:1+rank:2"),
        task("speculative", "model", "drafter=rank:4,target=rank:0+rank:1+rank:2+rank:3"),
        task("speculative", "lookahead", "target=rank:3+rank:1+rank:2+rank:0"),
        task("dsi", "model", "drafter=rank:0,target=rank:1+rank:2,target=rank:3"),
        trained("eagle", "drafter=rank:0,target=rank:1+rank:2"),
        // Ranks that compute the drafter together.
        task("speculative", "model", "drafter=rank:0+rank:1,target=rank:2+rank:3"),
        task("speculative", "ouroboros", "drafter=rank:2+rank:0+rank:1,target=rank:3"),
        task("speculative", "easyspec", "drafter=rank:1+rank:0,target=rank:2"),
        task("pearl", "model", "drafter=rank:0+rank:1,target=rank:2+rank:3"),
        task("pearl", "model", "drafter=rank:2+rank:1,target=rank:0"),
        task("dsi", "model", "drafter=rank:0+rank:4,target=rank:1+rank:2,target=rank:3"),
        Task {
            drafter: models.pard(),
            ..task("speculative", "parallel", "drafter=rank:1+rank:0,target=rank:2")
        },
        // Rank 0 follows, and has a drafter that needs no model.
        Task {
            also_prompt_lookup: true,
            ..task("dsi", "model", "drafter=rank:1+rank:0,target=rank:2,target=rank:3")
        },
        task("pearl", "prompt-lookup", "target=rank:1+rank:0"),
        // Drafters that read the target's features and share its weights.
        trained("eagle", "drafter=rank:0,target=rank:1"),
        trained("medusa", "drafter=rank:1,target=rank:0"),
        // Two replicas and the drafter on two ranks.
        task("dsi", "model", "drafter=rank:1,target=rank:1,target=rank:0,shared"),
    ]
}

/// Models whose layers are on two or three ranks. The last one of a model leads its ranks; any rank
/// may decode.
fn stage_tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let trained = |method, kind: &'static str, placement| {
        let demonstration = |name| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let (target, drafter) = (demonstration("target"), demonstration(kind));
        Task { target, drafter, ..task(method, kind, placement) }
    };
    let speculators = speculators(models);
    let of_features = |kind, layout: SpeculatorLayout| {
        let is_wanted = |(_, path): &&(_, String)| path.ends_with(&format!("/{layout:?}"));
        let (_, drafter) = speculators.iter().find(is_wanted).unwrap();
        let placements = [
            ("speculative", "drafter=rank:0,target=rank:1/rank:2"),
            ("pearl", "drafter=rank:3,target=rank:1/rank:2/rank:0"),
        ];
        placements.map(|(method, placement)| Task {
            drafter: drafter.clone(),
            ..task(method, kind, placement)
        })
    };
    let mut tasks = vec![
        task("autoregressive", "none", "target=rank:0/rank:1"),
        task("autoregressive", "none", "target=rank:1/rank:2/rank:0"),
        task("speculative", "model", "drafter=rank:0,target=rank:1/rank:2"),
        task("speculative", "lookahead", "target=rank:2/rank:0/rank:1"),
        task("pearl", "model", "drafter=rank:0,target=rank:1/rank:2"),
        task("pearl", "model", "drafter=rank:0,target=rank:3/rank:1/rank:2"),
        task("dsi", "model", "drafter=rank:0,target=rank:1/rank:2,target=rank:3"),
        task("dsi", "model", "drafter=rank:4,target=rank:0/rank:1,target=rank:2/rank:3"),
        task("ssd", "model", "drafter=rank:0,target=rank:1/rank:2"),
        // Drafters that read the last hidden states, and share weights of both stages.
        trained("speculative", "eagle", "drafter=rank:0,target=rank:1/rank:2"),
        trained("speculative", "medusa", "drafter=rank:2,target=rank:1/rank:0"),
        // Drafters whose layers are on ranks, too (PEARL, appendix G).
        task("speculative", "model", "drafter=rank:3/rank:0,target=rank:1/rank:2"),
        task("pearl", "model", "drafter=rank:0/rank:1,target=rank:3/rank:2"),
        task("pearl", "model", "drafter=rank:0/rank:1,target=rank:2+rank:3"),
        task("speculative", "ouroboros", "drafter=rank:1/rank:0,target=rank:2"),
        Task {
            drafter: models.pard(),
            ..task("speculative", "parallel", "drafter=rank:1/rank:0,target=rank:2")
        },
        task("pearl", "prompt-lookup", "target=rank:0/rank:1"),
    ];
    // Drafters that read hidden states of several layers, on several stages.
    tasks.extend(of_features("eagle", SpeculatorLayout::Eagle3));
    tasks.extend(of_features("dflash", SpeculatorLayout::DFlash));
    tasks
}

/// Drafters for the target of these models, in every layout: their kinds and paths.
fn speculators(models: &Models) -> Vec<(&'static str, String)> {
    use SpeculatorLayout as L;
    let kinds = [
        (L::Medusa, "medusa"),
        (L::VllmMedusa, "medusa"),
        (L::SharedHeadMedusa, "medusa"),
        (L::ReducedMedusa, "medusa"),
        (L::Hydra, "hydra"),
        (L::HydraPlusPlus, "hydra"),
        (L::ReducedHydra, "hydra"),
        (L::Eagle, "eagle"),
        (L::SharedEmbeddingEagle, "eagle"),
        (L::ReducedEagle, "eagle"),
        (L::Eagle3, "eagle"),
        (L::PEagle, "parallel"),
        (L::DFlash, "dflash"),
        (L::JetSpec, "dflash"),
        (L::DFlash2, "dflash2"),
        (L::DSpark(MarkovKind::Vanilla), "dspark"),
        (L::DSpark(MarkovKind::Gated), "dspark"),
        (L::DSpark(MarkovKind::Recurrent), "dspark"),
        (L::Pard2, "parallel"),
        (L::ParallelMedusa, "parallel"),
        (L::ReducedParallelMedusa, "parallel"),
        (L::ParallelEagle, "parallel"),
        (L::ReducedParallelEagle, "parallel"),
    ];
    let target = Checkpoint::open(&models.path("target")).unwrap();
    let hash = target.embedding_sha256().unwrap();
    let speculators = kinds.map(|(layout, kind)| {
        let (path, target) = (models.path(&format!("{layout:?}")), target.config());
        let target_embedding_sha256 = Some(hash.clone());
        RandomSpeculator { layout, target, seed: 5, positions: 3, target_embedding_sha256 }
            .write(&path)
            .unwrap();
        (kind, path.display().to_string())
    });
    speculators.to_vec()
}

/// Every drafter with every method that it supports.
fn drafter_tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let mut tasks = Vec::new();
    for (number, (kind, drafter)) in speculators(models).into_iter().enumerate() {
        let placement =
            ["drafter=rank:1,target=rank:0", "drafter=rank:0,target=rank:2+rank:1"][number % 2];
        let reads_one_state = ["medusa", "hydra"].contains(&kind);
        for method in if reads_one_state { &["speculative"][..] } else { &["speculative", "pearl"] }
        {
            tasks.push(Task { drafter: drafter.clone(), ..task(method, kind, placement) });
        }
    }
    for kind in ["prompt-lookup", "suffix"] {
        for method in ["speculative", "pearl", "ssd"] {
            tasks.push(task(method, kind, "target=rank:1"));
        }
        tasks.push(task("dsi", kind, "target=rank:1,target=rank:0"));
    }
    for (method, kind) in [
        ("ssd", "model"),
        ("auto", "model"),
        ("speculative", "easyspec"),
        ("pearl", "easyspec"),
        ("dsi", "easyspec"),
    ] {
        tasks.push(task(method, kind, "drafter=rank:0,target=rank:1"));
    }
    tasks
}

#[test]
fn answers_over_ranks_are_those_of_one_process() {
    let models = Models::make();
    check_answers(tasks(&models));
}

#[test]
fn answers_over_pipeline_stages_are_those_of_one_process() {
    let config = Config { num_hidden_layers: 4, ..example_config() };
    check_answers(stage_tasks(&Models::of(&config)));
}

#[test]
fn every_drafter_answers_over_ranks_as_in_one_process() {
    let models = Models::make();
    let tasks = drafter_tasks(&models).into_iter().enumerate();
    let step = if is_complete() { 1 } else { 3 };
    check_answers(tasks.filter(|(number, _)| number % step == 0).map(|(_, task)| task).collect());
}

/// Compares answers over ranks with those of one process.
fn check_answers(tasks: Vec<Task>) {
    let everything = is_complete();
    for (number, task) in tasks.into_iter().enumerate() {
        let expected = expected(&task);
        for (at, transport) in TRANSPORTS.into_iter().enumerate() {
            if !everything && number % 2 != at {
                continue;
            }
            let ended = task.run(transport);
            let name = format!("{} {} {} {transport}", task.method, task.kind, task.placement);
            assert!(ended.succeeded, "{name}: {} {}", ended.output, ended.errors);
            let found: Vec<&str> =
                ended.lines("answer ").map(|line| line.split_once(' ').unwrap().1).collect();
            // What rejection sampling draws may depend on how many tokens are drafted at a time,
            // which in parallel methods follows from timing.
            let comparable =
                if task.method == "autoregressive" || task.method == "speculative" { 3 } else { 2 };
            assert_eq!(found.len(), 3, "{name}");
            assert_eq!(found[..comparable], expected[..comparable], "{name}");
        }
    }
}

/// Families with experts, latent attention, recurrent layers and norms over all heads, on two and
/// four ranks that compute each layer together, and on two ranks with some layers each.
#[test]
fn families_on_ranks_that_compute_together_answer_as_in_one_process() {
    let kinds: [fn(&Config) -> bool; 4] = [
        |config| config.experts.is_some() && config.recurrent.is_none() && config.latent.is_none(),
        |config| config.latent.is_some(),
        |config| config.recurrent.is_some(),
        |config| config.qk_norms == QkNorms::Whole,
    ];
    let placements = [
        "target=rank:0+rank:1",
        "target=rank:1+rank:0+rank:3+rank:2",
        "target=rank:0/rank:1",
        "target=rank:1/rank:0",
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        let config = example_families().into_iter().find(kind).unwrap();
        let models = Models::of(&config);
        for (transport, placement) in
            [at, at + 1, at, at + 1].map(|at| TRANSPORTS[at % 2]).iter().zip(placements)
        {
            let task = Task::new(&models, "autoregressive", "none", placement);
            let ended = task.run(transport);
            assert!(ended.succeeded, "{placement} {}: {}", ended.output, ended.errors);
            let found: Vec<&str> =
                ended.lines("answer ").map(|line| line.split_once(' ').unwrap().1).collect();
            assert_eq!(found, expected(&task), "{placement}, {config:?}");
        }
    }
}

#[test]
fn a_lost_rank_ends_the_job_with_an_error_that_names_it() {
    let models = Models::make();
    let cases = cases(7) as usize;
    let tasks = [
        Task::new(&models, "dsi", "model", "drafter=rank:0,target=rank:1,target=rank:2"),
        Task::new(&models, "pearl", "model", "drafter=rank:2,target=rank:1"),
        Task::new(&models, "pearl", "model", "drafter=rank:0,target=rank:2+rank:1"),
        Task::new(&models, "pearl", "model", "drafter=rank:1+rank:2,target=rank:0"),
        Task::new(&models, "pearl", "model", "drafter=rank:2,target=rank:0/rank:1"),
        Task::new(&models, "autoregressive", "none", "target=rank:1/rank:2/rank:0"),
        Task::new(&models, "speculative", "model", "drafter=rank:1/rank:0,target=rank:2"),
    ];
    let expected = tasks.each_ref().map(expected);
    let (mut longest, mut answers) = (Duration::ZERO, 0);
    for case in 0..cases {
        let uniform = |candidate| {
            let key = Key { position: case, purpose: Purpose::Sample, candidate };
            KeyedRandomness { seed: 11, sample: 0 }.uniform(key)
        };
        let kind = [FaultKind::Kill, FaultKind::Stop, FaultKind::Panic][case % 3];
        // Kinds and tasks are coprime, so all combinations occur after 21 cases.
        let of_tasks = case % tasks.len();
        let rank = (uniform(0) * 3.0) as usize;
        let after_ms = (uniform(1) * 700.0) as u64;
        let task = Task {
            work: Work::AnswerForEver,
            fault: Some(Fault { rank, kind, after_ms }),
            ..tasks[of_tasks].clone()
        };
        let ended = task.run(TRANSPORTS[case % 2]);
        let name = format!("case {case}: {kind:?} rank {rank} after {after_ms} ms");
        assert!(!ended.succeeded, "{name}: {}", ended.output);
        // Deaths are reported by `mpirun`, the others by forerun.
        let says = match kind {
            FaultKind::Kill => format!("rank {rank} with PID"),
            FaultKind::Stop => format!("error: rank {rank} "),
            FaultKind::Panic => format!("error: rank {rank} panicked: a test"),
        };
        assert!(ended.errors.contains(&says), "{name}: {}", ended.errors);
        for line in ended.lines("answer ") {
            // The last line may be cut off.
            let Some((number, tokens)) = line.split_once(' ') else { continue };
            let number: usize = number.parse().unwrap();
            if tokens.ends_with(']') && number < 2 {
                assert_eq!(tokens, expected[of_tasks][number], "{name}");
                answers += 1;
            }
        }
        for process in ended.lines("process ") {
            let files = Path::new("/proc").join(process.trim());
            let gone = Instant::now();
            while files.exists() && gone.elapsed() < DEADLINE {
                thread::sleep(Duration::from_millis(50));
            }
            assert!(!files.exists(), "{name}: process {process} is still there");
        }
        longest = longest.max(ended.took);
    }
    eprintln!(
        "{cases} lost ranks: the longest job took {longest:.1?}; {answers} answers before were right"
    );
}

/// Prints the overheads in comparison with threads.
#[test]
fn a_job_over_ranks_has_little_overhead() {
    let models = Models::make();
    let task = Task {
        work: Work::Measure,
        ..Task::new(&models, "autoregressive", "none", "target=rank:1")
    };
    measure(&Engine::open_plan(&task.plan(false)).unwrap(), None);
    let bytes_at = |ended: &Ended| -> Vec<Vec<u64>> {
        let parse = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect();
        ended.lines("measured bytes ").map(parse).collect()
    };
    for (transport, (method, kind, placement)) in TRANSPORTS.into_iter().cycle().zip([
        ("autoregressive", "none", "target=rank:1"),
        ("speculative", "model", "drafter=rank:0,target=rank:1"),
        ("pearl", "model", "drafter=rank:2,target=rank:1"),
        ("dsi", "model", "drafter=rank:3,target=rank:1,target=rank:2"),
    ]) {
        let task = Task { work: Work::Measure, ..Task::new(&models, method, kind, placement) };
        let ended = task.run(transport);
        assert!(ended.succeeded, "{}", ended.errors);
        for line in ended.lines("measured ") {
            eprintln!("{transport} {method}: {line}");
        }
        let bytes = bytes_at(&ended);
        let [short, long] = &bytes[..] else { panic!("{}", ended.output) };
        // Sent and received bytes for each token, which must not grow with the context. How many
        // drafts parallel methods make of other texts differs.
        let allowed = if ["pearl", "dsi"].contains(&method) { 200 } else { 16 };
        for (long, short) in long.iter().zip(short).skip(1) {
            assert!(*long <= short + allowed, "{method}: {short} bytes became {long}");
        }
    }
}

/// Drafters that use the target's weights are on one device.
#[test]
fn drafters_that_share_the_target_are_on_one_rank() {
    let models = Models::make();
    let path = |name| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
    let placement = "drafter=rank:0+rank:1,target=rank:2";
    for kind in ["eagle", "medusa"] {
        let task = Task::new(&models, "speculative", kind, placement);
        let task = Task { target: path("target"), drafter: path(kind), ..task };
        let ended = task.run(TRANSPORTS[0]);
        assert!(!ended.succeeded, "{}", ended.output);
        assert!(ended.errors.contains("rank:0+rank:1"), "{}", ended.errors);
        assert!(ended.errors.contains("DrafterOnRanks"), "{}", ended.errors);
    }
}

#[test]
fn too_many_pipeline_stages_are_refused() {
    let (models, placement) = (Models::make(), "target=rank:0/rank:1/rank:2/rank:3/rank:4");
    let task = Task::new(&models, "autoregressive", "none", placement);
    let ended = task.run(TRANSPORTS[0]);
    assert!(!ended.succeeded, "{}", ended.output);
    assert!(ended.errors.contains("Stages { stages: 5, most: 4"), "{}", ended.errors);
    assert!(ended.errors.contains("rank:0/rank:1/rank:2/rank:3/rank:4"), "{}", ended.errors);
}

#[test]
fn a_placement_with_too_many_ranks_is_refused() {
    let task = Task::new(&Models::make(), "autoregressive", "none", "target=rank:1");
    let ended = Task { ranks: Some(1), ..task }.run(TRANSPORTS[0]);
    assert!(!ended.succeeded, "{}", ended.output);
    assert!(ended.errors.contains("NoSuchRank { rank: 1, size: 1 }"), "{}", ended.errors);
}

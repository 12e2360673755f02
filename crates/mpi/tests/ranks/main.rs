//! Engines on the ranks of real MPI jobs: the same answers as with local workers, and jobs that end
//! with an error that names the rank when one is killed, stopped or panics.
//!
//! A test starts `mpirun` with this program. `rank::a_rank_of_a_job` is what runs on each rank then.
//!
//! `FORERUN_CASES` is the number of faults (`just mpi`). Without it, some tests run on a sample.

#![expect(clippy::unwrap_used, reason = "tests")]

mod answers;
mod job;
mod rank;

use forerun::Engine;
use forerun_core::testing::cases;
use forerun_core::{Key, KeyedRandomness, Purpose};
use job::{DEADLINE, Ended, Fault, FaultKind, Models, TRANSPORTS, Task, Work, expected};
use rank::{long_answer, measure};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

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
        let found = ended.answers();
        assert_eq!(found, expected(&task), "{transport} {ranks}");
    }
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
        let found = ended.answers();
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

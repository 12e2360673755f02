//! What completions say about the cost of passes that several sequences share.

use forerun_core::{
    Cluster, DraftShape, Job, JobCost, Role, Sampling, ScoreJob, SequenceId, TargetFeedback,
    Ticket, TokenId, TokenTree,
};
use forerun_draft::ModelDrafter;
use forerun_lm::fake::{TableModel, output_by_prefix};
use forerun_lm::{BatchEntry, ForwardOutput, LanguageModel, ModelError, unfinished};
use forerun_runtime::{Engine, PassTimes, Runtime, TeamSpec, ThreadCluster, WorkerSpec};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const TABLE: TableModel = TableModel::new(7, 8, 4.0);
/// The token that makes the model wait for cancellation.
const HANG: TokenId = 7;
/// The number of tokens that a pass computes for one request.
const CHUNK: usize = 4;
/// The least time of a pass.
const PASS: Duration = Duration::from_millis(2);

/// A model whose passes take a while, and compute up to [`CHUNK`] tokens for each request of a
/// batch.
struct ChunkedModel {
    /// The number of cached tokens.
    cached: BTreeMap<SequenceId, usize>,
    /// Gets a message whenever a pass begins to wait for cancellation.
    waits: Sender<()>,
}

impl LanguageModel for ChunkedModel {
    fn vocab_size(&self) -> usize {
        TABLE.vocab_size
    }

    fn context_length(&self) -> usize {
        TABLE.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        std::thread::sleep(PASS);
        for (_, entry) in unfinished(batch) {
            let request = entry.request;
            if request.tokens.last() == Some(&HANG) {
                self.waits.send(()).unwrap();
                while !request.cancel.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                entry.complete(Err(ModelError::Cancelled));
                continue;
            }
            let cached = self.cached.entry(request.sequence).or_default();
            // The tokens before the first row. A later row than the first one has them all.
            let before = if request.first_row == 0 { request.tokens.len() - 1 } else { 0 };
            let missing = before.saturating_sub(*cached);
            if missing >= CHUNK {
                *cached += CHUNK;
                entry.progress.computed_tokens += CHUNK;
                continue;
            }
            *cached = request.tokens.len();
            let computed_tokens = entry.progress.computed_tokens + missing + request.rows();
            let output = output_by_prefix(&request, TABLE.vocab_size, |prefix| TABLE.row(prefix));
            entry.complete(Ok(ForwardOutput { computed_tokens, ..output }));
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cached.remove(&sequence);
    }
}

/// A drafter and a target.
struct Workers {
    cluster: ThreadCluster,
    /// A message for every pass that waits for cancellation.
    waits: Receiver<()>,
    runtime: Runtime,
}

impl Workers {
    fn start() -> Self {
        Self::start_paced(None)
    }

    fn start_paced(times: Option<&PassTimes>) -> Self {
        let (sender, waits) = channel();
        let worker = |name: &str, role| {
            let (waits, times) = (sender.clone(), times.cloned());
            WorkerSpec {
                name: name.into(),
                team: TeamSpec::Unpinned(1),
                roles: vec![role],
                build: Box::new(move |_| {
                    let engine = Engine::new();
                    let model = engine.timed(ChunkedModel { cached: BTreeMap::new(), waits });
                    let model = model.paced(times.as_ref());
                    Ok(match role {
                        Role::Drafter(index) => {
                            engine.with_drafter(index, ModelDrafter::new(model))
                        }
                        Role::Target(index) => engine.with_target(index, model),
                    })
                }),
            }
        };
        let specs = vec![worker("drafter", Role::Drafter(0)), worker("target", Role::Target(0))];
        let runtime = Runtime::start(specs).unwrap();
        Self { cluster: runtime.cluster(), waits, runtime }
    }

    /// Runs jobs that wait for the worker together. Returns the cost of each.
    fn run_together(&mut self, role: Role, jobs: Vec<Job>) -> Vec<JobCost> {
        // The worker is busy until all jobs are in its queue.
        let busy = match role {
            Role::Drafter(_) => draft(99, &[HANG], 1),
            Role::Target(_) => Job::Score(ScoreJob::greedy(SequenceId(99), [HANG])),
        };
        let cluster = &mut self.cluster;
        let busy = cluster.submit(role, busy).unwrap();
        // It must have begun that job, or it could take the other jobs into the same batch.
        self.waits.recv().unwrap();
        let tickets: Vec<Ticket> =
            jobs.into_iter().map(|job| cluster.submit(role, job).unwrap()).collect();
        cluster.cancel(busy);
        let mut costs = BTreeMap::new();
        for _ in 0..=tickets.len() {
            let completion = cluster.next_completion().unwrap();
            let cost = completion.cost;
            assert!(cost.busy_ns <= completion.duration_ns());
            assert!(cost.busy_ns >= cost.passes * PASS.as_nanos() as u64);
            costs.insert(completion.ticket, completion.cost);
        }
        tickets.iter().map(|ticket| costs[ticket]).collect()
    }
}

fn score(sequence: u64, tokens: usize, tree: &[TokenId]) -> Job {
    let job = ScoreJob::greedy(SequenceId(sequence), vec![1; tokens]);
    Job::Score(ScoreJob { prompt_len: 1, tree: TokenTree::chain(tree), ..job })
}

fn draft(sequence: u64, tokens: &[TokenId], length: usize) -> Job {
    Job::Draft {
        sequence: SequenceId(sequence),
        tokens: tokens.into(),
        prompt_len: 1,
        sampling: Sampling::greedy(),
        shape: DraftShape::Chain { length },
        feedback: TargetFeedback::default(),
    }
}

/// Returns a cost without its time.
fn counts(cost: &JobCost) -> [u64; 4] {
    [cost.passes, cost.own_rows, cost.batch_rows, cost.batch_sequences]
}

#[test]
fn score_jobs_of_one_pass_know_its_rows_and_sequences() {
    let mut workers = Workers::start();
    let jobs = vec![score(1, 1, &[]), score(2, 2, &[3, 4, 5]), score(3, 1, &[6])];
    let costs = workers.run_together(Role::Target(0), jobs);
    assert_eq!(
        costs.iter().map(counts).collect::<Vec<_>>(),
        [[1, 1, 8, 3], [1, 5, 8, 3], [1, 2, 8, 3]]
    );
    assert!(costs.iter().all(|cost| cost.busy_ns == costs[0].busy_ns));
    for row_ns in [0.0, 1e4, 1e9] {
        let shares: f64 = costs.iter().map(|cost| cost.share(row_ns)).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    }
}

#[test]
fn a_job_alone_has_its_passes_to_itself() {
    let mut workers = Workers::start();
    for (role, job, expected) in [
        (Role::Target(0), score(1, 10, &[2, 3]), [3, 12, 12, 3]),
        (Role::Drafter(0), draft(1, &[1, 2], 4), [4, 5, 5, 4]),
    ] {
        let cost = workers.run_together(role, vec![job])[0];
        assert_eq!(counts(&cost), expected);
        assert_eq!((cost.share(1e3), cost.without_neighbours(1e3)), (1.0, 1.0));
    }
}

/// The parts of a prompt are passes of their own, which have other neighbours.
#[test]
fn a_prompt_counts_the_neighbours_of_each_of_its_passes() {
    let mut workers = Workers::start();
    let jobs = vec![score(1, 10, &[]), score(2, 1, &[5])];
    let costs = workers.run_together(Role::Target(0), jobs);
    assert_eq!(costs.iter().map(counts).collect::<Vec<_>>(), [[3, 10, 12, 4], [1, 2, 6, 2]]);
}

/// A short draft leaves the batch; the longer one goes on alone.
#[test]
fn drafts_count_the_neighbours_of_each_level() {
    let mut workers = Workers::start();
    let jobs = vec![draft(1, &[1, 2], 2), draft(2, &[1], 4)];
    let costs = workers.run_together(Role::Drafter(0), jobs);
    assert_eq!(costs.iter().map(counts).collect::<Vec<_>>(), [[2, 3, 5, 4], [4, 4, 7, 6]]);
    assert!(costs[0].busy_ns < costs[1].busy_ns);
}

#[test]
fn a_pass_on_a_paced_device_takes_its_time_even_if_it_is_cancelled() {
    let pass = Duration::from_millis(20);
    let rows_ns = vec![(1, pass.as_nanos() as u64)];
    let mut workers = Workers::start_paced(Some(&PassTimes { rows_ns, first_ns: None }));
    let cost = workers.run_together(Role::Target(0), vec![score(1, 10, &[])])[0];
    assert!(cost.passes == 3 && cost.busy_ns >= 3 * pass.as_nanos() as u64, "{cost:?}");
    let spans = workers.runtime.take_trace().spans;
    let cancelled = spans.iter().find(|span| span.sequence == SequenceId(99)).unwrap();
    let [[start_ns, end_ns]] = cancelled.forwards_ns[..] else { panic!("one pass") };
    assert!(end_ns - start_ns >= pass.as_nanos() as u64);
}

#[test]
fn passes_that_overrun_the_time_of_their_device_are_counted() {
    let times = |ns| PassTimes { rows_ns: vec![(1, ns)], first_ns: None };
    for (times, all_overrun) in [(Some(times(1)), true), (None, false)] {
        let mut workers = Workers::start_paced(times.as_ref());
        workers.run_together(Role::Drafter(0), vec![draft(1, &[1, 2], 4)]);
        for span in workers.runtime.take_trace().spans {
            let expected = if all_overrun { span.forwards_ns.len() } else { 0 };
            assert_eq!(span.overruns, expected, "{span:?}");
        }
    }
}

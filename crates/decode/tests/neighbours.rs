//! Draft-length policies in passes that several sequences share.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    Cluster, ClusterError, Completion, Distribution, Draft, DraftShape, Job, JobCost, JobOutput,
    Outcome, Role, Sampling, ScoreJob, Scores, SequenceId, Ticket, TokenId, TokenTree,
};
use forerun_decode::{
    Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl, PearlDraftLength, PearlOptions,
    Sequence, Speculative, SpeculativeDraftLength, next_tokens,
};
use std::collections::BTreeMap;

/// The time of a pass: a fixed part, and a part for each row, in nanoseconds.
type PassTime = [u64; 2];

/// A drafter and a target in virtual time, which other sequences use, too.
///
/// The text counts upwards. A tenth of the drafted tokens are wrong.
struct BusyCluster {
    draft_pass: PassTime,
    score_pass: PassTime,
    /// The rows of the neighbours in a pass of the target with this number. In a pass of the
    /// drafter, each of them has one row.
    neighbours: fn(usize) -> Vec<usize>,
    /// Whether completions say what passes cost.
    has_costs: bool,
    now_ns: u64,
    free_ns: BTreeMap<Role, u64>,
    submitted: u64,
    completed: BTreeMap<(u64, Ticket), Completion>,
    draft_lengths: Vec<usize>,
    scored_rows: Vec<usize>,
}

impl BusyCluster {
    fn new(
        draft_pass: PassTime,
        score_pass: PassTime,
        neighbours: fn(usize) -> Vec<usize>,
    ) -> Self {
        Self {
            draft_pass,
            score_pass,
            neighbours,
            has_costs: true,
            now_ns: 0,
            free_ns: BTreeMap::new(),
            submitted: 0,
            completed: BTreeMap::new(),
            draft_lengths: Vec::new(),
            scored_rows: Vec::new(),
        }
    }

    fn run(&mut self, job: Job) -> (JobOutput, JobCost) {
        let (last, mut cost) = (self.submitted as usize, JobCost::default());
        let neighbours = (self.neighbours)(last);
        let mut add_pass = |rows: usize, all: usize, pass: PassTime| {
            let ns = pass[0] + pass[1] * all as u64;
            cost.add_pass(rows, all, neighbours.len() + 1, ns);
        };
        let output = match job {
            Job::Draft { tokens, shape, .. } => {
                let last = *tokens.last().unwrap();
                let is_wrong = |token: TokenId| token.wrapping_mul(0x9e37_79b9) >> 16 & 0xff < 26;
                let right_or_wrong = |token: TokenId| if is_wrong(token) { 0 } else { token };
                let chain: Vec<_> =
                    (0..shape.depth() as TokenId).map(|at| right_or_wrong(last + 1 + at)).collect();
                for _ in &chain {
                    add_pass(1, 1 + neighbours.len(), self.draft_pass);
                }
                self.draft_lengths.push(chain.len());
                let tree = TokenTree::chain(&chain);
                JobOutput::Draft(Draft::deterministic(tree))
            }
            Job::Score(ScoreJob { tokens, tree, .. }) => {
                let rows = 1 + tree.len();
                add_pass(rows, rows + neighbours.iter().sum::<usize>(), self.score_pass);
                self.scored_rows.push(rows);
                let last = [*tokens.last().unwrap()];
                let row = |token: &TokenId| Distribution::point(token + 1);
                let rows = last.iter().chain(tree.tokens()).map(row).collect();
                JobOutput::Score(Scores { rows, ..Scores::default() })
            }
        };
        (output, cost)
    }
}

impl Cluster for BusyCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let ticket = Ticket(self.submitted);
        let (output, cost) = self.run(job);
        self.submitted += 1;
        let free_ns = self.free_ns.entry(on).or_default();
        let started_ns = self.now_ns.max(*free_ns);
        let finished_ns = started_ns + cost.busy_ns;
        *free_ns = finished_ns;
        let cost = if self.has_costs { cost } else { JobCost::default() };
        let output = Ok(output);
        let completion = Completion { ticket, output, started_ns, finished_ns, cost };
        self.completed.insert((finished_ns, ticket), completion);
        Ok(ticket)
    }

    fn cancel(&mut self, _ticket: Ticket) {}

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let (_, completion) = self.completed.pop_first().ok_or(ClusterError::Idle)?;
        self.now_ns = completion.finished_ns;
        Ok(completion)
    }

    fn observe(&mut self, _outcome: Outcome) {}

    fn release(&mut self, _sequence: SequenceId) {}
}

/// Returns the mean of `lengths` after the policy has settled.
fn settled(lengths: &[usize]) -> f64 {
    let lengths = &lengths[lengths.len() / 2..];
    lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
}

/// Decodes 6,000 tokens. Checks the text.
fn decode(decoder: &mut dyn Decoder, cluster: &mut BusyCluster) {
    let limits = Limits { max_tokens: 6_000, context_length: usize::MAX, eos: Vec::new() };
    let mut sequence = Sequence::new(SequenceId(0), vec![0], Sampling::greedy(), limits);
    while next_tokens(decoder, &mut sequence, cluster).unwrap().is_none() {}
    assert_eq!(sequence.generated(), (1..=6_000).collect::<Vec<_>>());
}

/// Returns the mean length of a speculative draft.
fn speculative(cluster: &mut BusyCluster) -> f64 {
    let shape = DraftShape::Chain { length: 16 };
    let policy = SpeculativeDraftLength::new(shape, DraftLength::Auto);
    decode(&mut Speculative::new(policy), cluster);
    settled(&cluster.draft_lengths)
}

/// Returns the mean number of rows of PEARL's passes.
fn pearl(cluster: &mut BusyCluster) -> f64 {
    let policy = PearlDraftLength::new(16, DraftLength::Auto, true);
    decode(&mut Pearl::new(PearlOptions::default(), policy), cluster);
    settled(&cluster.scored_rows)
}

/// Returns DSI's lookahead at the end.
fn dsi(cluster: &mut BusyCluster) -> f64 {
    let mut decoder = Dsi::new(2, DsiLookahead::new(32, DraftLength::Auto, 2));
    decode(&mut decoder, cluster);
    decoder.lookahead().length() as f64
}

fn with_few_rows(_pass: usize) -> Vec<usize> {
    vec![1; 7]
}

fn with_many_rows(_pass: usize) -> Vec<usize> {
    vec![9; 7]
}

fn with_changing_rows(pass: usize) -> Vec<usize> {
    (1..=7).map(|neighbour| 1 + pass * (pass + 3 * neighbour) % 11).collect()
}

/// A sequence joins now and then, and reads a prompt of 256 tokens.
fn with_prompts(pass: usize) -> Vec<usize> {
    let mut rows = vec![1; 7];
    rows[0] = if pass % 40 == 39 { 256 } else { 1 };
    rows
}

const DRAFT_PASS: PassTime = [100_000, 0];
/// Decodes on a cluster, and returns the length that the policy settles on.
type Method = fn(&mut BusyCluster) -> f64;

const METHODS: [(&str, Method, PassTime); 3] = [
    ("speculative", speculative, [1_000_000, 40_000]),
    ("pearl", pearl, [1_000_000, 40_000]),
    ("dsi", dsi, [1_000_000, 10_000]),
];

#[test]
fn the_length_does_not_depend_on_the_rows_of_neighbours() {
    for (name, method, score_pass) in METHODS {
        let run = |neighbours, has_costs| {
            let cluster = BusyCluster::new(DRAFT_PASS, score_pass, neighbours);
            method(&mut BusyCluster { has_costs, ..cluster })
        };
        let few = run(with_few_rows, true);
        for neighbours in [with_many_rows, with_changing_rows, with_prompts] {
            let length = run(neighbours, true);
            assert!((length - few).abs() < 0.15, "{name}: {length} instead of {few}");
        }
        // From durations alone, the policy takes the neighbours' rows for its own.
        assert!(run(with_many_rows, false) > 1.2 * few, "{name}");
    }
}

#[test]
fn without_neighbours_costs_change_nothing() {
    for (name, method, score_pass) in METHODS {
        let run = |has_costs| {
            let cluster = BusyCluster::new(DRAFT_PASS, score_pass, |_| Vec::new());
            let mut cluster = BusyCluster { has_costs, ..cluster };
            method(&mut cluster);
            (cluster.draft_lengths, cluster.scored_rows, cluster.now_ns)
        };
        assert_eq!(run(true), run(false), "{name}");
    }
}

/// The sequences of a pass share the time of reading the weights, but each pays for its own rows.
/// So the more sequences there are, the less an unlikely row is worth.
#[test]
fn drafts_are_shorter_among_many_sequences_if_rows_are_not_free() {
    let lengths = |row_ns| {
        let none: fn(usize) -> Vec<usize> = |_| Vec::new();
        [none, |_| vec![1; 3], |_| vec![1; 7], |_| vec![1; 31]].map(|neighbours| {
            speculative(&mut BusyCluster::new(DRAFT_PASS, [1_000_000, row_ns], neighbours))
        })
    };
    let (free, expensive) = (lengths(0), lengths(40_000));
    assert!(free.iter().all(|length| (length - free[0]).abs() < 0.15), "{free:?}");
    assert!(expensive.windows(2).all(|pair| pair[1] < pair[0] - 0.5), "{expensive:?}");
}

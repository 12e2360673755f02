//! Automatic draft lengths under load: clients that share an engine, each with one answer after
//! another, against plain decoding and against every fixed length of all answers. The text of some
//! answers is easy for the drafter, that of others hard.

use crate::common::device;
use crate::worlds::{Random, TARGET_NS, seeds};
use forerun_core::{Cluster, DraftShape, Role, Sampling, SequenceId};
use forerun_decode::{AnswerDecoder, DecoderOptions, DraftLength, Limits, METHODS, Sequence};
use forerun_decode::{new_decoder, next_tokens};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, ForwardCost, Oracle, SequenceCluster, SimCluster,
};
use std::sync::Mutex;

const LONGEST: usize = 12;
const LENGTHS: [usize; 5] = [1, 2, 4, 6, 12];
/// The number of tokens of each stretch of text.
const STRETCH: usize = 160;

/// A drafter, a target, and what they share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) drafter: Cost,
    pub(crate) target: Cost,
    /// Whether they are on the same cores.
    pub(crate) in_one_worker: bool,
    /// The acceptance at each position, over and over.
    pub(crate) text: Vec<f64>,
    pub(crate) seed: u64,
}

impl World {
    fn random(seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_add(9 << 32));
        let mut cost = |ns: f64, row: f64, knee: f64| {
            let at = |rows: f64, after: f64| (ns * (1.0 + row * rows + knee * after)) as u64;
            let points = vec![(1, ns as u64), (9, at(8.0, 0.0)), (73, at(72.0, 64.0))];
            let forward = ForwardCost::Rows { points };
            let sequence_ns = (ns * random.between(0.0, 0.02)) as u64;
            Cost { forward, sequence_ns, ..Cost::constant(0) }
        };
        let random = &mut Random(seed.wrapping_add(10 << 32));
        let draft_ns = TARGET_NS * random.log_between(0.02, 0.3);
        let drafter = cost(draft_ns, random.between(0.01, 0.05), random.between(0.0, 0.03));
        let target = cost(TARGET_NS, random.log_between(0.005, 0.1), random.between(0.0, 0.05));
        let stretches = (0..64).map(|_| random.between(0.2, 0.98));
        let text = stretches.flat_map(|rate| std::iter::repeat_n(rate, STRETCH)).collect();
        Self { drafter, target, in_one_worker: !seed.is_multiple_of(3), text, seed }
    }

    /// Returns the tokens of all clients in a pass of one row.
    pub(crate) fn speed(
        &self,
        clients: u64,
        method: &str,
        length: DraftLength,
        most: usize,
    ) -> f64 {
        let acceptance =
            AcceptanceModel::Varying { text: self.text.clone(), depth: vec![1.0], rank_power: 1.0 };
        let oracle = Oracle { seed: self.seed, drafters: vec![acceptance] };
        let devices = vec![
            device("target", Role::Target(0), self.target.clone()),
            device("drafter", Role::Drafter(0), self.drafter.clone()),
        ];
        let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Layer, Vec::new());
        let mut cluster = cluster.unwrap().without_trace();
        if self.in_one_worker {
            cluster = cluster.in_one_worker();
        }
        let method = METHODS.iter().find(|entry| entry.name == method).unwrap();
        let options = DecoderOptions::new(DraftShape::Chain { length: most }, length);
        let last = Mutex::new(new_decoder(method, &options));
        // About as many tokens with few clients as with many.
        let end_ns = (TARGET_NS * (500.0 + 3_000.0 / clients as f64)) as u64;
        let client = |number: u64| {
            let (options, last, oracle) = (&options, &last, &oracle);
            move |cluster: &mut SequenceCluster<'_, '_>| {
                let (mut random, mut tokens) = (Random(number), 0);
                for answer in 0.. {
                    let id = SequenceId(number + clients * answer);
                    let max_tokens = random.log_between(32.0, 256.0) as usize;
                    let limits = Limits { max_tokens, context_length: 9_999, eos: Vec::new() };
                    let oracle = oracle.of_sequence(id);
                    let mut sequence =
                        Sequence::new(id, oracle.text(3), Sampling::greedy(), limits);
                    let mut decoder: Box<dyn AnswerDecoder> =
                        last.lock().unwrap().for_next_answer(options, 3);
                    while cluster.now_ns() < end_ns
                        && next_tokens(&mut *decoder, &mut sequence, cluster).unwrap().is_none()
                    {
                    }
                    assert_eq!(sequence.tokens(), oracle.text(sequence.tokens().len()));
                    tokens += sequence.generated().len();
                    cluster.release(id);
                    *last.lock().unwrap() = decoder;
                    if cluster.now_ns() >= end_ns {
                        break;
                    }
                }
                tokens
            }
        };
        let tokens = cluster.run_together((0..clients).map(client).collect()).unwrap();
        tokens.iter().sum::<usize>() as f64 * TARGET_NS / cluster.now_ns() as f64
    }
}

/// Returns the speeds of plain decoding, of the best fixed length, and of automatic lengths.
fn speeds(world: &World, clients: u64) -> [f64; 3] {
    let fixed = LENGTHS.map(|most| world.speed(clients, "speculative", DraftLength::Fixed, most));
    [
        world.speed(clients, "autoregressive", DraftLength::Fixed, 1),
        fixed.into_iter().fold(0.0, f64::max),
        world.speed(clients, "speculative", DraftLength::Auto, LONGEST),
    ]
}

/// Returns the speed of automatic lengths in all worlds: the mean compared with the best of the
/// others, and the least compared with plain decoding.
fn compare(clients: u64) -> (f64, f64) {
    let worlds = seeds(3).map(|seed| {
        let [plain, fixed, auto] = speeds(&World::random(seed), clients);
        eprintln!("| {clients} | {seed} | {plain:.3} | {fixed:.3} | {auto:.3} |");
        (auto / plain.max(fixed), auto / plain)
    });
    let worlds: Vec<(f64, f64)> = worlds.collect();
    let mean = worlds.iter().map(|(to_best, _)| to_best).sum::<f64>() / worlds.len() as f64;
    (mean, worlds.iter().map(|(_, to_plain)| *to_plain).fold(f64::MAX, f64::min))
}

#[test]
fn automatic_lengths_under_load() {
    for clients in [2, 8, 32] {
        let (to_best, to_plain) = compare(clients);
        assert!(to_best > 0.94 && to_plain > 0.95, "{clients}: {to_best}, {to_plain}");
    }
}

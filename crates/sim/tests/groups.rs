//! Several clients whose drafter and target have devices of their own: they take turns, or are two
//! groups, whichever is faster by its closed form.

use crate::common::{MS, pair};
use forerun_core::{Cluster, DraftShape, Sampling, SequenceId};
use forerun_decode::{DecoderOptions, DraftLength, Limits, METHODS, Sequence};
use forerun_decode::{new_decoder, next_tokens};
use forerun_sim::{
    AcceptanceModel, Cancellation, Cost, ForwardCost, Oracle, SequenceCluster, SimCluster,
};

const GAMMA: usize = 4;
const ACCEPTANCE: f64 = 0.8;

/// A drafter and a target. Their passes take microseconds, and so many more for each row.
#[derive(Clone, Copy, Debug)]
struct World {
    drafter: (u64, u64),
    target: (u64, u64),
}

fn linear((us, row_us): (u64, u64)) -> Cost {
    let points = [1, 2].map(|rows| (rows, 1_000 * (us + rows as u64 * row_us)));
    Cost { forward: ForwardCost::Rows { points: points.to_vec() }, ..Cost::constant(0) }
}

impl World {
    /// Returns the tokens of all clients in a second. Their answers have different lengths.
    fn speed(self, clients: u64, method: &str, length: DraftLength) -> f64 {
        let oracle = Oracle { seed: 1, drafters: vec![AcceptanceModel::Iid(ACCEPTANCE)] };
        let devices = pair(linear(self.drafter), linear(self.target));
        let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Layer, Vec::new());
        let mut cluster = cluster.unwrap().without_trace();
        let method = METHODS.iter().find(|entry| entry.name == method).unwrap();
        let most = if length == DraftLength::Fixed { GAMMA } else { 3 * GAMMA };
        let options = DecoderOptions::new(DraftShape::Chain { length: most }, length);
        let end_ns = (600 + 3_000 / clients) * MS;
        let client = |number: u64| {
            let (options, oracle) = (&options, oracle.clone());
            move |cluster: &mut SequenceCluster<'_, '_>| {
                let mut tokens = 0;
                for answer in 0.. {
                    let id = SequenceId(number + clients * answer);
                    let max_tokens = 80 + 37 * number as usize;
                    let limits = Limits { max_tokens, context_length: 99_999, eos: Vec::new() };
                    let oracle = oracle.of_sequence(id);
                    let mut sequence =
                        Sequence::new(id, oracle.text(3), Sampling::greedy(), limits);
                    let mut decoder = new_decoder(method, options);
                    while cluster.now_ns() < end_ns
                        && next_tokens(&mut *decoder, &mut sequence, cluster).unwrap().is_none()
                    {
                    }
                    tokens += sequence.generated().len();
                    cluster.release(id);
                    if cluster.now_ns() >= end_ns {
                        break;
                    }
                }
                tokens
            }
        };
        let tokens = cluster.run_together((0..clients).map(client).collect()).unwrap();
        tokens.iter().sum::<usize>() as f64 * 1e9 / cluster.now_ns() as f64
    }

    /// Returns the speeds of taking turns and of two groups. MineDraft's rounds take the time of
    /// drafting for a half, or of verifying it, whichever is longer.
    fn closed_forms(self, clients: u64) -> [f64; 2] {
        let us = |(us, row_us): (u64, u64), rows: f64| us as f64 + row_us as f64 * rows;
        let certain = ACCEPTANCE.powi(GAMMA as i32);
        // After a draft that was accepted whole, the drafter reads two tokens.
        let draft =
            |n: f64| GAMMA as f64 * us(self.drafter, n) + n * certain * self.drafter.1 as f64;
        let verify = |n: f64| us(self.target, n * (GAMMA + 1) as f64);
        let (all, half) = (clients as f64, clients as f64 / 2.0);
        let tokens = all * (1.0 - certain * ACCEPTANCE) / (1.0 - ACCEPTANCE);
        let rounds_us = [draft(all) + verify(all), 2.0 * draft(half).max(verify(half))];
        rounds_us.map(|us| tokens * 1e6 / us)
    }
}

/// A pass's fixed time takes longer than drafting, a little and much; and it is short, so that two
/// groups are faster.
const WORLDS: [World; 3] = [
    World { drafter: (1_000, 4), target: (4_800, 25) },
    World { drafter: (300, 0), target: (4_800, 1) },
    World { drafter: (1_000, 4), target: (2_000, 200) },
];

#[test]
fn clients_take_turns_or_are_two_groups_whichever_is_faster() {
    for world in WORLDS {
        for clients in [2, 4, 8] {
            let [turns, groups] = world.closed_forms(clients);
            let speed = |method, length| world.speed(clients, method, length);
            let fixed = speed("speculative", DraftLength::Fixed);
            if std::env::var_os("FORERUN_CASES").is_some() {
                let plain = speed("autoregressive", DraftLength::Fixed);
                let auto = speed("speculative", DraftLength::Auto);
                let pearl = speed("pearl", DraftLength::Fixed);
                eprintln!(
                    "{world:?} | {clients} | {plain:.0} | {turns:.0} | {groups:.0} | {fixed:.0} | {auto:.0} | {pearl:.0}"
                );
            }
            // The first answers do not know the costs.
            let ratio = fixed / turns.max(groups);
            assert!(ratio > 0.92, "{world:?}, {clients}: {fixed}, {turns}, {groups}");
        }
    }
    let [turns, groups] = WORLDS[2].closed_forms(4);
    assert!(groups > 1.2 * turns, "{groups}, {turns}");
}

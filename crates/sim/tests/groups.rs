//! Several clients whose drafter and target have devices of their own: they take turns, or are two
//! groups, whichever is faster by its closed form.

use crate::load::World;
use crate::worlds::TARGET_NS;
use forerun_decode::DraftLength;
use forerun_sim::{Cost, ForwardCost};

const GAMMA: usize = 4;
const ACCEPTANCE: f64 = 0.8;

/// The time of a pass and of each of its rows, of a drafter and of a target.
type Times = [(f64, f64); 2];

/// The fixed time of a pass takes longer than drafting, a little (a 1B and an 8B model on an H200
/// each, estimated) and much; and it is short, so that two groups are faster.
const WORLDS: [Times; 3] =
    [[(0.21, 0.0008), (1.0, 0.005)], [(0.06, 0.0), (1.0, 0.0002)], [(0.5, 0.002), (1.0, 0.1)]];

fn world(times: Times) -> World {
    let [drafter, target] = times.map(|(fixed, row)| {
        let at = |rows: f64| (TARGET_NS * (fixed + rows * row)) as u64;
        let points = vec![(1, at(1.0)), (1_001, at(1_001.0))];
        Cost { forward: ForwardCost::Rows { points }, ..Cost::constant(0) }
    });
    World { drafter, target, in_one_worker: false, text: vec![ACCEPTANCE], seed: 1 }
}

/// Returns the speeds of taking turns and of two groups. MineDraft's rounds take the time of drafting
/// for a half, or of verifying it, whichever is longer.
fn closed_forms([drafter, target]: Times, clients: u64) -> [f64; 2] {
    let pass = |(fixed, row): (f64, f64), rows: f64| fixed + row * rows;
    let certain = ACCEPTANCE.powi(GAMMA as i32);
    // After a draft that was accepted whole, the drafter reads two tokens.
    let draft = |n: f64| GAMMA as f64 * pass(drafter, n) + n * certain * drafter.1;
    let verify = |n: f64| pass(target, n * (GAMMA + 1) as f64);
    let (all, half) = (clients as f64, clients as f64 / 2.0);
    let tokens = all * (1.0 - certain * ACCEPTANCE) / (1.0 - ACCEPTANCE);
    [draft(all) + verify(all), 2.0 * draft(half).max(verify(half))].map(|round| tokens / round)
}

#[test]
fn clients_take_turns_or_are_two_groups_whichever_is_faster() {
    for times in WORLDS {
        for clients in [2, 4, 8] {
            let [turns, groups] = closed_forms(times, clients);
            let speed = |method, length, most| world(times).speed(clients, method, length, most);
            let fixed = speed("speculative", DraftLength::Fixed, GAMMA);
            if std::env::var_os("FORERUN_CASES").is_some() {
                let plain = speed("autoregressive", DraftLength::Fixed, 1);
                let auto = speed("speculative", DraftLength::Auto, 3 * GAMMA);
                let pearl = speed("pearl", DraftLength::Fixed, GAMMA);
                eprintln!(
                    "| {times:?} | {clients} | {plain:.2} | {turns:.2}, {groups:.2} | {fixed:.2} | {auto:.2} | {pearl:.2} |"
                );
            }
            // The first answers do not know the costs.
            let ratio = fixed / turns.max(groups);
            assert!(ratio > 0.92, "{times:?}, {clients}: {fixed}, {turns}, {groups}");
        }
    }
    let [turns, groups] = closed_forms(WORLDS[2], 4);
    assert!(groups > 1.2 * turns, "{groups}, {turns}");
}

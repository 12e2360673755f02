//! SSD with the production decoder in virtual time, compared with speculative decoding and PEARL.

use crate::common::MS;
use forerun_sim::{AcceptanceModel, Cancellation, Cost, SimulatedMethod, Simulation};

/// Returns a simulation in which further rows are free.
fn simulation(method: SimulatedMethod, acceptance: f64, ratio: u64, length: usize) -> Simulation {
    Simulation {
        method,
        drafters: vec![Cost::constant(MS)],
        targets: vec![Cost::constant(ratio * MS)],
        acceptance: vec![AcceptanceModel::Iid(acceptance)],
        draft_tokens: length,
        max_tokens: 240,
        seed: 1,
        cancellation: Cancellation::Immediate,
        faults: Vec::new(),
    }
}

/// With a drafter that is always right, only the first draft takes time: each round takes a pass of
/// the target.
#[test]
fn prepared_drafts_hide_drafting() {
    let (ratio, length) = (20, 5);
    let answer = simulation(SimulatedMethod::Ssd, 1.0, ratio, length).run().unwrap();
    let rounds = 240 / (length as u64 + 1);
    assert_eq!(answer.statistics.target_forwards, rounds);
    assert_eq!(answer.statistics.prepared, rounds - 1);
    assert_eq!(answer.total_ns, (length as u64 + rounds * ratio) * MS);
}

/// A drafter that needs as long for its tokens and a draft as the target for a pass is still in
/// time. A slower one has begun the draft at least.
#[test]
fn a_late_draft_is_continued() {
    let total =
        |ratio| simulation(SimulatedMethod::Ssd, 1.0, ratio, 5).run().unwrap().total_ns / MS;
    assert_eq!(total(6), 5 + 40 * 6);
    // One pass of six is left when the target is ready.
    assert_eq!(total(5), 5 + 40 * 5 + 39);
}

/// If rows are free and cancelled jobs stop at once, SSD is never slower than speculative decoding:
/// it verifies the same drafts, and each is there at the latest when it would have been made.
#[test]
fn ssd_is_never_slower_than_speculative_decoding() {
    for acceptance in [0.0, 0.3, 0.6, 0.8, 0.95] {
        for (ratio, length) in [(2, 1), (2, 4), (5, 3), (10, 6), (30, 8)] {
            let run = |method| simulation(method, acceptance, ratio, length).measure().unwrap();
            let ssd = run(SimulatedMethod::Ssd);
            let speculative = run(SimulatedMethod::Speculative);
            let setting = format!("acceptance {acceptance}, ratio {ratio}, {length} tokens");
            assert!(ssd.total_ns <= speculative.total_ns, "{setting}");
            assert_eq!(ssd.statistics.tested, speculative.statistics.tested, "{setting}");
            assert_eq!(ssd.statistics.accepted, speculative.statistics.accepted, "{setting}");
        }
    }
}

/// The table of the guide: the speed of each method at its best draft length, as a multiple of
/// plain decoding.
#[test]
fn the_guides_table() {
    const LENGTHS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 10, 14];
    let methods = [SimulatedMethod::Speculative, SimulatedMethod::PearlPaper, SimulatedMethod::Ssd];
    println!("| target / draft | acceptance | speculative | PEARL | SSD | prepared |");
    for ratio in [3, 5, 10, 20] {
        for acceptance in [0.5, 0.7, 0.8, 0.9] {
            let run = |method, length| {
                let answer = simulation(method, acceptance, ratio, length).measure().unwrap();
                let prepared = answer.statistics.prepared as f64 / answer.statistics.drafts as f64;
                ((240 * ratio * MS) as f64 / answer.total_ns as f64, prepared)
            };
            let best = |method| {
                let all = LENGTHS.into_iter().map(|length| run(method, length));
                all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
            };
            let [(speculative, _), (pearl, _), (ssd, prepared)] = methods.map(best);
            println!(
                "| {ratio} | {acceptance} | {speculative:.2} | {pearl:.2} | {ssd:.2} | {:.0} % |",
                100.0 * prepared
            );
            assert!(ssd >= speculative, "{ratio}, {acceptance}");
            if ratio >= 10 {
                assert!(ssd > pearl && ssd < 2.0 * speculative, "{ratio}, {acceptance}");
            }
        }
    }
}

//! Published pass times, as the pace of devices that compute real tokens.

use super::{DSI_PAIRS, pearl, pearl_tasks};
use crate::{Cost, ForwardCost, SimulatedMethod};
use forerun_runtime::Pace;

/// The time of a pass over so many rows of Llama 3 8B in bf16 on an H100 in nanoseconds
/// (docs/experiments/gpu.md, "The second run on an H100").
const TARGET_ON_GPU_NS: [(usize, u64); 6] = [
    (1, 8_310_000),
    (2, 8_790_000),
    (4, 10_540_000),
    (8, 15_920_000),
    (16, 27_430_000),
    (64, 85_100_000),
];
/// The time of the drafter's pass over one row, estimated: 2.4 GB at 2.5 TB/s, and half of the 8B
/// model's 323 dispatches of 4.4 µs. More rows take longer as the target's do.
const DRAFTER_ON_GPU_NS: u64 = 1_700_000;

/// Returns the pass times of pairs of models: those of PEARL's table 10 and of DSI's tables 2 and
/// 3, and those that were measured on an H100. DSI's alone have times of prompts; elsewhere a prompt
/// takes the time of its rows.
#[must_use]
pub fn published_paces() -> Vec<Pace> {
    let pearl = pearl::pass_times().chain(pearl_tasks::pass_times());
    let pearl = pearl.map(|(name, costs)| pace(&format!("{name}, A100"), costs));
    let dsi = DSI_PAIRS.iter().map(|pair| {
        let simulation = pair.simulation_with_prompt(SimulatedMethod::Speculative, 1);
        let [drafter, target] = [&simulation.drafters[0], &simulation.targets[0]];
        pace(pair.name, [drafter.clone(), target.clone()])
    });
    let gpus = [pace("Llama 3 1.2B & 8B, H100", gpu_costs())];
    pearl.chain(dsi).chain(gpus).collect()
}

/// The costs of drafter and target on a GPU each.
fn gpu_costs() -> [Cost; 2] {
    let one_row_ns = TARGET_ON_GPU_NS[0].1;
    [DRAFTER_ON_GPU_NS, one_row_ns].map(|ns| {
        let points = TARGET_ON_GPU_NS.map(|(rows, of_target)| (rows, of_target * ns / one_row_ns));
        Cost { forward: ForwardCost::Rows { points: points.to_vec() }, ..Cost::constant(ns) }
    })
}

/// Returns the pace of a drafter and a target. Its name has no spaces and commas, which placements
/// cannot have: `llama-2-7b-70b-a100` for `Llama 2 7B & 70B, A100`.
fn pace(title: &str, [drafter, target]: [Cost; 2]) -> Pace {
    let is_separator = |c: char| !c.is_ascii_alphanumeric() && !".-".contains(c);
    let title = title.to_ascii_lowercase();
    let words = title.split(is_separator).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-");
    Pace { name, target: target.pass_times(), drafter: Some(drafter.pass_times()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_runtime::PassTimes;
    use std::collections::BTreeSet;

    #[test]
    fn published_times_have_names_for_placements() {
        let paces = published_paces();
        let ms = |name: &str| {
            let pace = paces.iter().find(|pace| pace.name == name)?;
            let ms = |ns: u64| ns / 1_000_000;
            let times = |it: &PassTimes| (ms(it.rows_ns[0].1), it.first_ns.map(ms));
            Some([times(&pace.target), times(pace.drafter.as_ref()?)])
        };
        assert_eq!(ms("llama-2-7b-70b-a100"), Some([(108, None), (20, None)]));
        assert_eq!(ms("vicuna-13b-68m-cnn-dm"), Some([(37, Some(202)), (2, Some(2))]));
        assert_eq!(ms("llama-3-1.2b-8b-h100"), Some([(8, None), (1, None)]));
        let names: BTreeSet<_> = paces.iter().map(|pace| &pace.name).collect();
        assert_eq!(names.len(), paces.len());
    }
}

//! PEARL and DSI on machines with more cores and GPUs than were measured, from measured costs of
//! passes.

use super::divisions::{Division, Divisions, fastest_cells};
use super::{PublishedTable, headings};
use crate::{AcceptanceModel, Cost, ForwardCost, SimError, SimulatedMethod, Simulation};

/// What plain decoding read in gigabytes per second on so many cores of a Xeon with 16: 480 MB a
/// token (docs/experiments/cores-and-threads.md, "Sixteen cores").
const READ: [(usize, f64); 5] = [(1, 15.4), (2, 29.8), (4, 53.8), (8, 79.2), (16, 111.4)];
const MEASURED_CORES: usize = 16;
/// The time of a pass over so many rows, relative to one, on these cores.
const ROWS_ON_CORES: [(usize, f64); 3] = [(1, 1.0), (8, 1.4), (32, 2.8)];
/// What a pass of SmolLM2 and 100 further layers reads in gigabytes, and one of SmolLM2 alone.
const TARGET_GB: f64 = 0.977;
const DRAFTER_GB: f64 = 0.269;

/// The time of a pass over so many rows of Llama 3 8B in bf16 on an H100 in milliseconds
/// (docs/experiments/gpu.md, "The second run on an H100").
const TARGET_ON_GPU_MS: [(usize, f64); 6] =
    [(1, 8.31), (2, 8.79), (4, 10.54), (8, 15.92), (16, 27.43), (64, 85.1)];
/// Estimated: 2.4 GB at 2.5 TB/s, and half of the 8B model's 323 dispatches of 4.4 µs.
const DRAFTER_ON_GPU_MS: f64 = 1.7;
/// What a job takes to another device's thread, and what comes back, as assumed.
const GPU_MESSAGE_NS: u64 = 70_000;
const CORE_MESSAGE_NS: u64 = 5_000;

/// What `cores` cores read in gigabytes per second if the others rest. Further cores than were
/// measured bring their own memory.
fn read_by(cores: usize) -> f64 {
    if cores > MEASURED_CORES {
        let machines = cores as f64 / MEASURED_CORES as f64;
        return machines * READ[READ.len() - 1].1;
    }
    let after = READ.iter().position(|(known, _)| *known >= cores).unwrap_or(READ.len() - 1);
    let (high, speed) = READ[after];
    let (low, less) = READ[after.saturating_sub(1)];
    if high == low {
        return speed;
    }
    less + (speed - less) * (cores - low) as f64 / (high - low) as f64
}

fn pass(one_row_ms: f64, rows: &[(usize, f64)], message_ns: u64) -> Cost {
    let points = rows.iter().map(|(rows, factor)| (*rows, (one_row_ms * factor * 1e6) as u64));
    Cost {
        link_ns: message_ns,
        forward: ForwardCost::Rows { points: points.collect() },
        ..Cost::constant(0)
    }
}

/// The cost of passes that read so many gigabytes at this speed.
fn pass_on_cores(gigabytes: f64, read: f64) -> Cost {
    pass(gigabytes / read * 1e3, &ROWS_ON_CORES, CORE_MESSAGE_NS)
}

/// Of groups that work at the same time, all read slower if together they would read more than the
/// machine can.
fn simulation_on_cores(
    method: SimulatedMethod,
    cores: usize,
    division: Division,
    acceptance: f64,
) -> Simulation {
    let Division { drafter, target, replicas } = division;
    let [by_drafter, by_target] = [drafter, target].map(read_by);
    let together = match method {
        SimulatedMethod::Speculative => 0.0,
        _ => by_drafter + by_target * replicas as f64,
    };
    let slowdown = (together / read_by(cores)).max(1.0);
    super::simulation(
        method,
        pass_on_cores(DRAFTER_GB, by_drafter / slowdown),
        vec![pass_on_cores(TARGET_GB, by_target / slowdown); replicas],
        AcceptanceModel::Iid(acceptance),
    )
}

/// The fastest method on 2 to 64 cores.
pub(super) fn cores(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for (cores, acceptance) in [2, 4, 8, 16, 32, 64].into_iter().flat_map(|n| [(n, 0.6), (n, 0.83)])
    {
        let divisions = Divisions::of(cores, &[1, 2, 4, 8, 16, 32, 64]);
        let plain = read_by(cores) / TARGET_GB;
        let mut row = vec![cores.to_string(), format!("{acceptance:.2}")];
        row.extend(fastest_cells(plain, &divisions, texts, &|method, division| {
            simulation_on_cores(method, cores, division, acceptance)
        })?);
        rows.push(row);
    }
    Ok(PublishedTable {
        title:
            "SmolLM2 as the drafter of itself with 100 further layers, by cores: tokens per second"
                .into(),
        headings: headings(&[
            "cores",
            "acceptance",
            "plain decoding",
            "speculative decoding (γ, drafting cores)",
            "PEARL (γ, drafting cores)",
            "DSI (drafting cores, replicas × cores of each)",
            "fastest",
        ]),
        rows,
        note: "Simulated, and in no paper, from costs that were measured on up to 16 cores (a Xeon with AMX): what 1 to 16 cores \
               read, and the time of a pass over several rows. Drafter and target take what they read (269 and 977 MB) at that \
               speed. If both work at the same time and would read more than all cores can, both are slower. 32 and 64 cores are \
               assumed to read two and four times as much as 16. A job takes 5 µs to another thread and back. The acceptance \
               of 0.83 was measured; it is the same at every position here, which favours long drafts. Each method has its best \
               draft length of 1 to 10 and its best number of drafting cores (1, 2, 4, … 64), and DSI its best number of \
               replicas. Means of texts of 256 tokens.",
    })
}

/// The fastest method on one to eight GPUs.
pub(super) fn gpus(texts: u64) -> Result<PublishedTable, SimError> {
    let target = pass(1.0, &TARGET_ON_GPU_MS, GPU_MESSAGE_NS);
    let one_row = TARGET_ON_GPU_MS[0].1;
    let relative = TARGET_ON_GPU_MS.map(|(rows, ms)| (rows, ms / one_row));
    let drafter = pass(DRAFTER_ON_GPU_MS, &relative, GPU_MESSAGE_NS);
    let mut rows = Vec::new();
    for (gpus, acceptance) in [1, 2, 4, 8].into_iter().flat_map(|n| [(n, 0.6), (n, 0.8), (n, 0.9)])
    {
        // Two GPUs do not compute one pass together.
        let alone = |replicas| Division { drafter: 1, target: 1, replicas };
        let divisions = Divisions {
            speculative: vec![alone(1)],
            pearl: if gpus > 1 { vec![alone(1)] } else { Vec::new() },
            dsi: (2..gpus).map(alone).collect(),
        };
        let mut row = vec![gpus.to_string(), format!("{acceptance:.1}")];
        row.extend(fastest_cells(1e3 / one_row, &divisions, texts, &|method, division| {
            super::simulation(
                method,
                drafter.clone(),
                vec![target.clone(); division.replicas],
                AcceptanceModel::Iid(acceptance),
            )
        })?);
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "Llama 3 8B with a 1.2B drafter, both in bf16, by GPUs: tokens per second".into(),
        headings: headings(&[
            "GPUs",
            "acceptance",
            "plain decoding",
            "speculative decoding (γ, drafting GPUs)",
            "PEARL (γ, drafting GPUs)",
            "DSI (drafting GPUs, replicas × GPUs of each)",
            "fastest",
        ]),
        rows,
        note: "Simulated, and in no paper. The target's passes over 1 to 64 rows were measured on an H100, with random weights of \
               that shape. The drafter's pass is estimated (1.7 ms: 2.4 GB at 2.5 TB/s, and 4.4 µs for each of its \
               dispatches), and grows with the rows as the target's. A job takes 70 µs to another device and back, as assumed. \
               Plain and speculative decoding use one GPU, since several do not compute one pass together. The acceptance is the same \
               at every position. Each method has its best draft length of 1 to 10, and DSI its best number of replicas. Means of \
               texts of 256 tokens.",
    })
}

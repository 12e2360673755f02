//! How to divide equal parts of hardware (hosts, cores, GPUs) between drafter and target, and which
//! method is then the fastest.

use super::fastest;
use crate::{SimError, SimulatedMethod, Simulation};

/// The draft lengths that are tried.
const LENGTHS: [usize; 7] = [1, 2, 3, 4, 6, 8, 10];

/// How many parts have what.
#[derive(Clone, Copy)]
pub(super) struct Division {
    pub(super) drafter: usize,
    /// Those of each replica.
    pub(super) target: usize,
    pub(super) replicas: usize,
}

/// The divisions that each method tries.
pub(super) struct Divisions {
    /// Drafter and target take turns.
    pub(super) speculative: Vec<Division>,
    pub(super) pearl: Vec<Division>,
    pub(super) dsi: Vec<Division>,
}

impl Divisions {
    /// Returns the divisions of `parts` parts that compute passes together. The drafter has one of
    /// these numbers of parts. They may be the target's, too, if both take turns.
    pub(super) fn of(parts: usize, drafting: &[usize]) -> Self {
        let drafting = |most: usize| drafting.iter().copied().filter(move |n| *n <= most);
        let one_target = |drafter, target| Division { drafter, target, replicas: 1 };
        let replicated = drafting(parts - 1).flat_map(|drafter| {
            let left = parts - drafter;
            (2..=left.min(8)).map(move |replicas| Division {
                drafter,
                target: left / replicas,
                replicas,
            })
        });
        Self {
            speculative: drafting(parts).map(|drafter| one_target(drafter, parts)).collect(),
            pearl: drafting(parts - 1)
                .map(|drafter| one_target(drafter, parts - drafter))
                .collect(),
            dsi: replicated.collect(),
        }
    }
}

/// Returns cells with the speeds of plain decoding, of speculative decoding, PEARL and DSI, each at
/// its best draft length and division, and with the name of the fastest. `simulation` returns the
/// one of a method and division.
pub(super) fn fastest_cells(
    plain: f64,
    divisions: &Divisions,
    texts: u64,
    simulation: &dyn Fn(SimulatedMethod, Division) -> Simulation,
) -> Result<Vec<String>, SimError> {
    let methods = [
        ("speculative", SimulatedMethod::Speculative, &divisions.speculative),
        ("PEARL", SimulatedMethod::Pearl, &divisions.pearl),
        ("DSI", SimulatedMethod::Dsi, &divisions.dsi),
    ];
    let mut cells = vec![format!("{plain:.1}")];
    let mut winner = ("plain", plain);
    for (name, method, divisions) in methods {
        let mut chosen: Option<(f64, usize, Division)> = None;
        for &division in divisions {
            let simulation = simulation(method, division);
            let (ns, length) = fastest(&simulation, &LENGTHS, texts)?;
            let speed = simulation.max_tokens as f64 * 1e9 / ns;
            if chosen.is_none_or(|(known, ..)| speed > known) {
                chosen = Some((speed, length, division));
            }
        }
        cells.push(chosen.map_or_else(|| "-".into(), cell));
        if let Some((speed, ..)) = chosen.filter(|(speed, ..)| *speed > winner.1) {
            winner = (name, speed);
        }
    }
    cells.push(winner.0.into());
    Ok(cells)
}

fn cell((speed, length, division): (f64, usize, Division)) -> String {
    match division {
        Division { drafter, replicas: 1, .. } => format!("{speed:.1} (γ = {length}, {drafter})"),
        Division { drafter, target, replicas } => {
            format!("{speed:.1} ({drafter}, {replicas} × {target})")
        }
    }
}

//! Presets: comparisons from the papers, on the cores of this machine.

use crate::Sweep;
use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Method, Placement, Tree,
};
use std::fmt;
use std::str::FromStr;

/// A named comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// EasySpec's table 2: plain decoding on one core, then on all cores, then with speculation,
    /// with trees, and with parallel layers.
    EasySpecLadder,
    /// EasySpec's figure 4: layer-parallel size × width × calibration, on all cores.
    EasySpecSweep,
    /// EasySpec's table 4: the variation of speed and acceptance over prompts. It compares the
    /// ordinary drafter, the layer-parallel one, and prompt lookup, whose acceptance varies much
    /// more.
    EasySpecVariance,
}

/// Width of trees, except in [`Preset::EasySpecSweep`].
const WIDTH: usize = 4;
/// Depth of all drafts.
const DEPTH: usize = 5;

impl Preset {
    /// Returns the sweeps of this comparison on the given cores.
    #[must_use]
    pub fn sweeps(self, cores: &[usize]) -> Vec<Sweep> {
        let (one, all) = (&cores[..cores.len().min(1)], cores);
        let plain = |cores: &[usize]| Sweep {
            methods: vec![Method::Autoregressive],
            placements: vec![Placement::target_on(cores)],
            ..Sweep::default()
        };
        // Drafter and target alternate, as in the paper. The paper's ordinary drafter uses one
        // device while the others wait. Here it is split over all cores, like the target, because
        // thread teams cannot overlap.
        let drafted = |drafter: DrafterKind| Sweep {
            drafters: vec![drafter],
            draft_tokens: vec![DraftTokens::Fixed(DEPTH)],
            placements: vec![Placement::automatic(all, None, 1)],
            ..Sweep::default()
        };
        let tree = |width| Tree::Top { width, depth: Some(DEPTH), budget: None };
        let trees = vec![tree(WIDTH)];
        match self {
            Self::EasySpecLadder => vec![
                plain(one),
                plain(all),
                drafted(DrafterKind::Model),
                Sweep { trees: trees.clone(), ..drafted(DrafterKind::Model) },
                Sweep { trees, ..drafted(DrafterKind::EasySpec) },
            ],
            Self::EasySpecSweep => vec![Sweep {
                trees: [1, 4, 8, 12].map(tree).to_vec(),
                layers: (1..=5).map(LayerStrategy::Parallel).collect(),
                calibrations: vec![CalibrationPolicy::EveryRound, CalibrationPolicy::Never],
                ..drafted(DrafterKind::EasySpec)
            }],
            Self::EasySpecVariance => vec![
                Sweep { trees: trees.clone(), ..drafted(DrafterKind::Model) },
                Sweep { trees, ..drafted(DrafterKind::EasySpec) },
                drafted(DrafterKind::PromptLookup),
            ],
        }
    }

    /// Returns the temperatures of the paper's comparison.
    #[must_use]
    pub fn temperatures(self) -> &'static [f32] {
        match self {
            Self::EasySpecLadder => &[0.0, 0.8],
            Self::EasySpecSweep | Self::EasySpecVariance => &[0.0],
        }
    }

    /// Returns whether the configurations use different numbers of cores on purpose.
    #[must_use]
    pub fn has_unequal_cores(self) -> bool {
        self == Self::EasySpecLadder
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "easyspec-ladder" => Ok(Self::EasySpecLadder),
            "easyspec-sweep" => Ok(Self::EasySpecSweep),
            "easyspec-variance" => Ok(Self::EasySpecVariance),
            _ => Err(format!(
                "{text:?} is not one of easyspec-ladder, easyspec-sweep, easyspec-variance"
            )),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EasySpecLadder => "easyspec-ladder",
            Self::EasySpecSweep => "easyspec-sweep",
            Self::EasySpecVariance => "easyspec-variance",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Models, configurations};
    use forerun::placement::available_cores;

    fn names(preset: Preset, cores: &[usize]) -> Vec<String> {
        let models =
            Models { target: "target".into(), drafter: Some("drafter".into()), embedded: false };
        let all = configurations(&models, &preset.sweeps(cores), preset.has_unequal_cores());
        all.unwrap().into_iter().map(|configuration| configuration.name).collect()
    }

    #[test]
    fn presets_have_the_papers_configurations() {
        for name in ["easyspec-ladder", "easyspec-sweep", "easyspec-variance"] {
            let preset: Preset = name.parse().unwrap();
            assert_eq!(preset.to_string(), name);
            let both = preset == Preset::EasySpecLadder;
            assert_eq!(preset.temperatures(), if both { &[0.0, 0.8][..] } else { &[0.0] });
        }
        assert!("fig4".parse::<Preset>().unwrap_err().contains("easyspec-sweep"));
        let cores = available_cores();
        let sweep = names(Preset::EasySpecSweep, &cores);
        assert_eq!(sweep.len(), 1 + 5 * 4 * 2);
        assert!(sweep.contains(&"speculative, easyspec lp 3 never, 5, top:8x5".to_owned()));
        let expected = [
            "autoregressive",
            "speculative, model, 5, top:4x5",
            "speculative, easyspec lp 4, 5, top:4x5",
            "speculative, prompt-lookup, 5",
        ];
        assert_eq!(names(Preset::EasySpecVariance, &cores), expected);
        let [first, .., last] = cores[..] else { return };
        let ladder = names(Preset::EasySpecLadder, &[first, last]);
        let joint = if last == first + 1 { '-' } else { '+' };
        let two = format!("{first}{joint}{last}");
        let expected = [
            format!("autoregressive, on {first}"),
            format!("autoregressive, on {two}"),
            format!("speculative, model, 5, on {two}"),
            format!("speculative, model, 5, top:4x5, on {two}"),
            format!("speculative, easyspec lp 4, 5, top:4x5, on {two}"),
        ];
        assert_eq!(ladder, expected);
        // On a single core, the first two are the same.
        assert_eq!(names(Preset::EasySpecLadder, &[first]).len(), 4);
    }
}

//! The position of layer-parallel configurations in EasySpec's figure 4.

use forerun::{DrafterOptions, LayerStrategy, Tree};
use serde::{Deserialize, Serialize};

/// A point in EasySpec's figure 4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPoint {
    /// The number of layers computed at a time, in the paper's groups.
    pub layers: usize,
    /// The number of draft nodes at each depth; 1 is a chain.
    pub width: usize,
    /// The calibration policy of the drafter's cache.
    pub calibration: String,
}

impl LayerPoint {
    /// Returns the point of these options, or `None` if the figure does not contain them.
    #[must_use]
    pub fn of(drafter: &DrafterOptions, tree: &Tree) -> Option<Self> {
        let DrafterOptions::EasySpec(easyspec) = drafter else { return None };
        let LayerStrategy::Parallel(layers) = easyspec.layers else { return None };
        let width = match *tree {
            Tree::None => 1,
            Tree::Top { width, budget: None, .. } => width,
            Tree::Auto | Tree::Ranked { .. } | Tree::Top { .. } | Tree::Sampled { .. } => {
                return None;
            }
        };
        Some(Self { layers, width, calibration: easyspec.calibration.to_string() })
    }
}

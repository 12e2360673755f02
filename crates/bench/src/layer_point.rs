//! Where configurations stand that compute a drafter's layers in parallel.

use forerun::{CalibrationPolicy, LayerStrategy, Tree};
use serde::{Deserialize, Serialize};

/// A place in EasySpec's figure 4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPoint {
    /// Layers at a time, in the paper's groups.
    pub layers: usize,
    /// Nodes of the draft at each depth; 1 is a chain.
    pub width: usize,
    /// When the drafter's cache is made exact.
    pub calibration: String,
}

impl LayerPoint {
    /// The place of these options; others than the paper's have none.
    #[must_use]
    pub fn of(layers: &LayerStrategy, tree: &Tree, calibration: CalibrationPolicy) -> Option<Self> {
        let LayerStrategy::Parallel(layers) = *layers else { return None };
        let width = match *tree {
            Tree::None => 1,
            Tree::Top { width, budget: None, .. } => width,
            Tree::Top { .. } | Tree::Sampled { .. } => return None,
        };
        Some(Self { layers, width, calibration: calibration.to_string() })
    }
}

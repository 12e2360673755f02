//! Measurements on models that answer no request: what weight types and layers in parallel cost in
//! quality, and pairs of models made to measure speed.
//!
//! This crate may use the facade, checkpoints, and the CPU as a device. No engine needs it: only
//! the command does.

mod layer_analysis;
mod quality;
mod synthetic_pair;

pub use forerun_cpu::ceiling::CeilingOptions;
pub use forerun_cpu::layer_probe::{Similarities, Strategy, StrategyScore};
pub use forerun_cpu::quality::Quality;
pub use layer_analysis::{
    LayerAnalysis, LayerAnalysisError, LayerAnalysisOptions, LayerReport, PassCost, PassCosts,
    SearchStep, barrier_us,
};
pub use quality::{QualityBench, QualityError, QualityOptions, QualityReport, TypeQuality};
pub use synthetic_pair::{
    AcceptanceCalibration, CalibrationStep, GrownPair, GrownPairOptions, ResidualCalibration,
    SyntheticPair, SyntheticPairError, SyntheticPairOptions, grow_pair, make_pair,
    synthetic_pair_label,
};

//! `forerun simulate`: decoding in virtual time.

mod calibrate;
mod paper;
mod passes;
#[cfg(feature = "plots")]
mod plot;
mod run;
mod sweep;

use crate::arguments::Simulate;
use std::process::ExitCode;

pub(crate) fn run(simulate: &Simulate) -> anyhow::Result<ExitCode> {
    match simulate {
        Simulate::Run(arguments) => run::run(arguments),
        Simulate::Sweep(arguments) => sweep::run(arguments),
        Simulate::Heatmaps(arguments) => sweep::heatmaps(arguments),
        Simulate::Paper(arguments) => paper::run(arguments),
        Simulate::Calibrate(arguments) => calibrate::run(arguments),
        #[cfg(feature = "plots")]
        Simulate::Plot(arguments) => plot::run(arguments),
        #[cfg(not(feature = "plots"))]
        Simulate::Plot(_) => crate::missing::command("simulate plot", "plots"),
    }
}

//! The `forerun` command: arguments, a validated plan, a run.
//!
//! This crate may touch the terminal. What it knows of models it knows through the facade.

mod analyze;
mod arguments;
mod bench;
mod bench_run;
mod chat;
mod devices;
#[cfg(feature = "train")]
mod distill;
mod export;
mod generate;
mod interrupts;
mod make_pair;
mod progress;
mod quality;
mod shown_drafts;
mod simulate;
#[cfg(feature = "train")]
mod train;

use arguments::{Arguments, Bench, Command};
use clap::Parser;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Generate(arguments) => generate::run(*arguments),
        Command::Chat(arguments) => chat::run(*arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Bench(Bench::Kernels(arguments)) => bench::kernels(&arguments),
        Command::Bench(Bench::Quality(arguments)) => quality::run(arguments),
        Command::Bench(Bench::Run(arguments)) => bench_run::run(&arguments),
        Command::MakePair(arguments) => make_pair::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Analyze(analyze) => analyze::run(&analyze),
        Command::Simulate(simulate) => simulate::run(&simulate),
        #[cfg(feature = "train")]
        Command::Train(train) => train::run(train),
        #[cfg(feature = "train")]
        Command::Distill(arguments) => distill::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error. Whoever closed it does not want to know, so unlike `eprintln!`
/// this does not panic.
fn note(line: impl Display) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Whoever read our output has had enough: that is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(is_closed)
}

fn is_closed(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

//! The `forerun` command, as a library: the program `forerun` and the Python package run it.
//!
//! This is the only crate that uses the terminal. It loads and runs models through the facade,
//! `forerun`.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

#[cfg(feature = "laboratory")]
mod analyze;
mod arguments;
mod bench;
mod bench_run;
mod bench_serve;
mod certify;
mod chat;
mod config_file;
mod demo;
mod devices;
#[cfg(feature = "train")]
mod distill;
mod doctor;
mod embed;
mod engine_options;
mod export;
mod flags;
mod foreign_options;
mod generate;
mod interrupts;
#[cfg(feature = "laboratory")]
mod make_pair;
mod missing;
mod models;
mod note;
mod plan;
mod progress;
mod quality;
mod ranks;
// It lists the commands of all features.
#[cfg(all(test, feature = "train", feature = "plots", feature = "server"))]
mod reference;
#[cfg(feature = "server")]
mod serve;
mod shell;
mod shown_drafts;
#[cfg(feature = "laboratory")]
mod simulate;
mod size;
#[cfg(feature = "hub")]
mod table;
mod terminal;
mod text_file;
#[cfg(feature = "train")]
mod train;
mod word_wrap;

use arguments::{Arguments, Bench, Command};
use clap::{CommandFactory, Parser};
use note::{Verbosity, detail, note};
use std::ffi::OsString;
use std::process::ExitCode;

pub use arguments::EngineArguments;
pub use flags::with_flags_of;
pub use generate::{DEMONSTRATION_DRAFTER, DEMONSTRATION_TARGET};

/// Runs the command with these arguments, of which the first is the program's name.
///
/// It handles the signals of the process, and may end the process: after a second signal, and if
/// the line is wrong or asks for help.
#[must_use]
pub fn run(line: Vec<OsString>) -> ExitCode {
    let command = match arguments(line) {
        Ok((arguments, sources)) => {
            let filter = std::env::var("RUST_LOG").ok();
            Verbosity::of(arguments.verbose, arguments.quiet, filter.as_deref()).set();
            if !sources.is_empty() {
                detail(format_args!("options come from {}", sources.join(", ")));
            }
            arguments.command
        }
        Err(error) => {
            note::error(flags::with_flags(&format!("{error:#}")));
            return ExitCode::from(2);
        }
    };
    let outcome = interrupts::clean_up_on_signals().and_then(|()| match command {
        Command::Generate(arguments) => generate::run(*arguments),
        Command::Chat(arguments) => chat::run(*arguments),
        Command::Run(arguments) => chat::run_model(*arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Models(models) => models::run(models),
        #[cfg(feature = "server")]
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Certify(arguments) => certify::run(*arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => shell::completions(&arguments),
        Command::Man(arguments) => shell::man(&arguments),
        Command::Bench(Bench::Kernels(arguments)) => bench::kernels(&arguments),
        Command::Bench(Bench::Quality(arguments)) => quality::run(arguments),
        Command::Bench(Bench::Run(arguments)) => bench_run::run(&arguments),
        Command::Bench(Bench::Serve(arguments)) => bench_serve::run(&arguments),
        #[cfg(feature = "laboratory")]
        Command::MakePair(arguments) => make_pair::run(&arguments),
        Command::Plan(arguments) => plan::run(*arguments),
        Command::Export(arguments) => export::run(&arguments),
        #[cfg(feature = "laboratory")]
        Command::Analyze(analyze) => analyze::run(&analyze),
        #[cfg(feature = "laboratory")]
        Command::Simulate(simulate) => simulate::run(&simulate),
        #[cfg(feature = "train")]
        Command::Train(train) => train::run(train),
        #[cfg(feature = "train")]
        Command::Distill(arguments) => distill::run(&arguments),
        #[cfg(not(feature = "laboratory"))]
        Command::MakePair(_) => missing::command("make-pair", "laboratory"),
        #[cfg(not(feature = "laboratory"))]
        Command::Analyze(_) => missing::command("analyze", "laboratory"),
        #[cfg(not(feature = "laboratory"))]
        Command::Simulate(_) => missing::command("simulate", "laboratory"),
        #[cfg(not(feature = "server"))]
        Command::Serve(_) => missing::command("serve", "server"),
        #[cfg(not(feature = "train"))]
        Command::Train(_) => missing::command("train", "train"),
        #[cfg(not(feature = "train"))]
        Command::Distill(_) => missing::command("distill", "train"),
    });
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note::error(flags::with_flags(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Returns the options of the command line, the environment and the configuration file. Ends the
/// process if the line is wrong, or asks for help. The names say where options come from, other
/// than the line.
fn arguments(line: Vec<OsString>) -> anyhow::Result<(Arguments, Vec<String>)> {
    let root = Arguments::command();
    let given = config_file::with_other_options(&root, line, |name| std::env::var_os(name))?;
    let mut error = match Arguments::try_parse_from(&given.line) {
        Ok(arguments) => return Ok((arguments, given.sources)),
        Err(error) => error,
    };
    let hint = foreign_options::hint(&root, &given.line);
    if let Some(hint) = hint.or_else(|| foreign_options::explained(&root, &given.line, &mut error))
    {
        anyhow::bail!(hint);
    }
    if !given.sources.is_empty() && error.use_stderr() {
        note(format_args!("further options come from {}", given.sources.join(", ")));
    }
    let line: Vec<String> =
        given.line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let message = error.render().to_string();
    let typed = flags::as_typed(&message, &root, &line);
    if error.use_stderr() && typed != message {
        anyhow::bail!("{}", typed.trim_start_matches("error: ").trim_end());
    }
    error.exit()
}

/// Returns whether the reader of standard output closed it, which is not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(is_closed)
}

fn is_closed(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

#[cfg(test)]
mod tests {
    use forerun::cpu::TeamError;

    /// A cause that is part of the message must not be in the chain of causes as well.
    #[test]
    fn the_systems_error_is_printed_once() {
        let cause = std::io::Error::from_raw_os_error(11);
        let error = anyhow::Error::from(TeamError::Pin { core: 3, cause });
        assert_eq!(format!("{error:#}").matches("os error 11").count(), 1, "{error:#}");
    }
}

//! `forerun completions` and `forerun man`: what shells and the manual know about the command.

use crate::arguments::{Arguments, CompletionsArguments, ManArguments};
use crate::generate::OUTPUT_FAILED;
use crate::note;
use anyhow::Context;
use clap::CommandFactory;
use std::fs;
use std::io::Write;
use std::process::ExitCode;

/// Prints a completion script.
pub(crate) fn completions(arguments: &CompletionsArguments) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "forerun", &mut script);
    std::io::stdout().write_all(&script).context(OUTPUT_FAILED)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page of the whole command, or writes those of all commands.
pub(crate) fn man(arguments: &ManArguments) -> anyhow::Result<ExitCode> {
    let Some(folder) = &arguments.output else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
        std::io::stdout().write_all(&page).context(OUTPUT_FAILED)?;
        return Ok(ExitCode::SUCCESS);
    };
    let cannot_write = || format!("cannot write manual pages to {}", folder.display());
    fs::create_dir_all(folder).with_context(cannot_write)?;
    clap_mangen::generate_to(Arguments::command(), folder).with_context(cannot_write)?;
    note(format_args!("wrote the manual pages to {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

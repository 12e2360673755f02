//! `forerun simulate paper`: a published table beside the simulator's.

use crate::arguments::PaperArguments;
use std::io::{Write, stdout};
use std::process::ExitCode;

pub(crate) fn run(arguments: &PaperArguments) -> anyhow::Result<ExitCode> {
    let table = arguments.table.simulate(arguments.texts)?;
    let mut out = stdout().lock();
    writeln!(out, "{}\n", table.title)?;
    let mut line = |cells: &[String]| writeln!(out, "| {} |", cells.join(" | "));
    line(&table.headings)?;
    line(&vec!["---".to_owned(); table.headings.len()])?;
    for row in &table.rows {
        line(row)?;
    }
    writeln!(out, "\n{} Means of {} texts.", table.note, arguments.texts)?;
    Ok(ExitCode::SUCCESS)
}

//! `forerun simulate paper`: simulated next to published values.

use crate::arguments::PaperArguments;
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::{DSI_LOOKAHEADS, DSI_PAIRS, DsiPair, RealTimeMeasurement};
use std::io::{Write, stdout};
use std::process::ExitCode;

pub(crate) fn run(arguments: &PaperArguments) -> anyhow::Result<ExitCode> {
    if arguments.real_time {
        return in_real_time(arguments);
    }
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

/// Measures DSI's table 2 on threads that wait instead of computing. Prints each row as soon as it
/// is measured.
fn in_real_time(arguments: &PaperArguments) -> anyhow::Result<ExitCode> {
    let texts = arguments.texts;
    if arguments.table.name != "dsi-2" || texts == 0 {
        anyhow::bail!("--real-time supports only the table dsi-2, with --texts of at least 1");
    }
    let mut out = stdout().lock();
    writeln!(
        out,
        "Speedup of DSI over speculative decoding, measured on waiting threads (in virtual time), \
         means of {texts} texts\n"
    )?;
    writeln!(
        out,
        "| pair | lookahead 1 | 5 | 10 | best of each | of ideal | measured/virtual | published |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for pair in &DSI_PAIRS {
        writeln!(out, "{}", row(pair, texts)?)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures a pair and formats its row.
fn row(pair: &DsiPair, texts: u64) -> anyhow::Result<String> {
    let mut row = format!("| {} |", pair.name);
    let (mut speculative, mut dsi) = (Vec::new(), Vec::new());
    for lookahead in DSI_LOOKAHEADS {
        let measured = [SimulatedMethod::Speculative, SimulatedMethod::Dsi]
            .map(|method| pair.measure_in_real_time(method, lookahead, texts));
        let [measured_speculative, measured_dsi] = measured;
        speculative.push(measured_speculative?);
        dsi.push(measured_dsi?);
        let last = speculative.len() - 1;
        row += &format!(" {} |", speedup(&speculative[last], &dsi[last]));
    }
    let best = |all: &[RealTimeMeasurement]| {
        all.iter().copied().min_by(|a, b| a.virtual_ns.total_cmp(&b.virtual_ns))
    };
    let (Some(best_speculative), Some(best_dsi)) = (best(&speculative), best(&dsi)) else {
        return Ok(row);
    };
    let share = (best_speculative.measured_ns / best_dsi.measured_ns)
        / (best_speculative.virtual_ns / best_dsi.virtual_ns);
    let slowdowns = speculative.iter().chain(&dsi).map(|time| time.measured_ns / time.virtual_ns);
    let largest = slowdowns.fold(0.0, f64::max);
    row += &format!(
        " {} | {:.1} % | ≤ {largest:.3} | {:.2} |",
        speedup(&best_speculative, &best_dsi),
        100.0 * share,
        pair.published
    );
    Ok(row)
}

/// Formats the ratio of two times with its 95 % interval, and in virtual time.
fn speedup(speculative: &RealTimeMeasurement, dsi: &RealTimeMeasurement) -> String {
    let ratio = speculative.measured_ns / dsi.measured_ns;
    let relative = (speculative.standard_error_ns / speculative.measured_ns)
        .hypot(dsi.standard_error_ns / dsi.measured_ns);
    format!(
        "{ratio:.2} ± {:.2} ({:.2})",
        1.96 * relative * ratio,
        speculative.virtual_ns / dsi.virtual_ns
    )
}

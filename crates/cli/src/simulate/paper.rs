//! `forerun simulate paper`: a published table beside the simulator's.

use super::run::read_calibration;
use crate::arguments::PaperArguments;
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::{DSI_LOOKAHEADS, DSI_PAIRS, DsiPair, PaperTable, Waited};
use std::io::{Write, stdout};
use std::process::ExitCode;

pub(crate) fn run(arguments: &PaperArguments) -> anyhow::Result<ExitCode> {
    if arguments.real_time {
        return in_real_time(arguments);
    }
    let recorded = arguments.calibration.as_deref().map(read_calibration).transpose()?;
    let table = arguments.table.simulate(arguments.texts, recorded.as_ref())?;
    let mut out = stdout().lock();
    writeln!(out, "{}\n", table.title)?;
    let mut line = |cells: &[String]| writeln!(out, "| {} |", cells.join(" | "));
    line(&table.headings)?;
    line(&vec!["---".to_owned(); table.headings.len()])?;
    for row in &table.rows {
        line(row)?;
    }
    write!(out, "\n{}", table.note)?;
    if arguments.table.has_means() {
        write!(out, " Means of {} texts.", arguments.texts)?;
    }
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

/// DSI's table 2 in waits; a row is told as soon as it is measured.
fn in_real_time(arguments: &PaperArguments) -> anyhow::Result<ExitCode> {
    let texts = arguments.texts;
    if arguments.table != PaperTable::DsiPairs || texts == 0 {
        anyhow::bail!("--real-time measures the table dsi-2, over at least one text");
    }
    let mut out = stdout().lock();
    writeln!(
        out,
        "DSI over speculative decoding, measured in waits (ideal), means of {texts} texts\n"
    )?;
    writeln!(
        out,
        "| pair | 1 | 5 | 10 | each at its best | of the ideal | waits/virtual | published |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for pair in &DSI_PAIRS {
        writeln!(out, "{}", row(pair, texts)?)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(pair: &DsiPair, texts: u64) -> anyhow::Result<String> {
    let mut row = format!("| {} |", pair.name);
    let (mut turns, mut dsi) = (Vec::new(), Vec::new());
    for lookahead in DSI_LOOKAHEADS {
        let own = [SimulatedMethod::Speculative, SimulatedMethod::Dsi]
            .map(|m| pair.wait(m, lookahead, texts));
        let [own_turns, own_dsi] = own;
        turns.push(own_turns?);
        dsi.push(own_dsi?);
        let at = turns.len() - 1;
        row += &format!(" {} |", compared(&turns[at], &dsi[at]));
    }
    let best =
        |of: &[Waited]| of.iter().copied().min_by(|a, b| a.virtual_ns.total_cmp(&b.virtual_ns));
    let (Some(best_turns), Some(best_dsi)) = (best(&turns), best(&dsi)) else { return Ok(row) };
    let share = (best_turns.measured_ns / best_dsi.measured_ns)
        / (best_turns.virtual_ns / best_dsi.virtual_ns);
    let over = turns.iter().chain(&dsi).map(|own| own.measured_ns / own.virtual_ns);
    let most = over.fold(0.0, f64::max);
    row += &format!(
        " {} | {:.1} % | ≤ {most:.3} | {:.2} |",
        compared(&best_turns, &best_dsi),
        100.0 * share,
        pair.published
    );
    Ok(row)
}

/// The ratio of two times with its 95 % interval, and in virtual time.
fn compared(turns: &Waited, dsi: &Waited) -> String {
    let ratio = turns.measured_ns / dsi.measured_ns;
    let relative = (turns.error_ns / turns.measured_ns).hypot(dsi.error_ns / dsi.measured_ns);
    format!(
        "{ratio:.2} ± {:.2} ({:.2})",
        1.96 * relative * ratio,
        turns.virtual_ns / dsi.virtual_ns
    )
}

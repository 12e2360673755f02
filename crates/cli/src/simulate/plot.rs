//! `forerun simulate plot`: draws a sweep's table.

use crate::arguments::{Merge, PlotArguments};
use crate::note;
use anyhow::Context;
use forerun_draw::plot::{Heatmap, HeatmapColours, Lines, Picture, Table};
use std::process::ExitCode;

/// Added to the label of the values: nothing in these tables was measured.
const REMARK: &str = ", simulated";

pub(super) fn run(arguments: &PlotArguments) -> anyhow::Result<ExitCode> {
    let mut table = Table::read(&arguments.table)?;
    for only in &arguments.only {
        let (column, value) = only.split_once('=').with_context(|| {
            format!("--only is {only:?}, but must be COLUMN=VALUE, such as draft-tokens=5")
        })?;
        table = table.only(column, value)?;
    }
    let merge = match arguments.merge {
        Merge::Refuse => forerun_draw::plot::Merge::Refuse,
        Merge::Max => forerun_draw::plot::Merge::Max,
        Merge::Min => forerun_draw::plot::Merge::Min,
        Merge::Mean => forerun_draw::plot::Merge::Mean,
    };
    let (value, title) = ((arguments.value.as_str(), REMARK), &arguments.title);
    match &arguments.y {
        Some(y) => {
            let axes = [arguments.x.as_str(), y.as_str()];
            let colours =
                HeatmapColours { largest: arguments.largest, pink_below: arguments.pink_below };
            let map = Heatmap::new(&table, axes, value, merge, title)?;
            map.with_colours(colours).write(&arguments.out)?;
        }
        None => {
            let axes = (arguments.x.as_str(), arguments.lines.as_deref());
            Lines::new(&table, axes, value, merge, title)?.write(&arguments.out)?;
        }
    }
    note(format_args!("wrote {}", arguments.out.display()));
    Ok(ExitCode::SUCCESS)
}

//! `forerun analyze layers`.

use crate::arguments::{Analyze, LayersArguments};
use crate::{bench, note, progress};
use anyhow::{Context, bail};
use forerun::{
    LayerAnalysis, LayerAnalysisOptions, LayerGroups, LayerReport, LayerStrategy, PassCost,
    SearchStep, Similarities, Strategy, Team, barrier_us,
};
use forerun_bench::suite;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs an analysis and prints it.
pub(crate) fn run(analyze: &Analyze) -> anyhow::Result<ExitCode> {
    let Analyze::Layers(arguments) = analyze;
    layers(arguments)
}

fn layers(arguments: &LayersArguments) -> anyhow::Result<ExitCode> {
    check(arguments)?;
    let cores = bench::cores(arguments.threads)?;
    let mut prompts =
        suite::read(std::slice::from_ref(&arguments.prompts), arguments.data.as_deref())?;
    if let Some(count) = arguments.limit {
        prompts = suite::limit(prompts, count);
    }
    let texts: Vec<String> = prompts.iter().map(|prompt| prompt.turns.join("\n")).collect();
    let locate = |model: &PathBuf| progress::loader(false, true).locate(model);
    let options = LayerAnalysisOptions {
        model: locate(&arguments.model)?,
        target: arguments.target.as_ref().map(locate).transpose()?,
        weight_type: arguments.dtype,
        depth: arguments.depth,
        max_tokens: arguments.tokens,
    };
    let analysis = LayerAnalysis::open(&options, &texts)?;
    let rows = strategies(arguments, analysis.config().num_hidden_layers)?;
    // Pinned only now: loading uses all cores.
    let team = Arc::new(Team::pinned(&cores)?);
    let strategies = rows.iter().map(|(_, strategy)| strategy.clone()).collect();
    let report = analysis.compare(&team, strategies, |_, _| ())?;
    let costs = costs(arguments, &analysis, &team, &rows);
    print(arguments, &team, &rows, &report, &costs)?;
    if arguments.search.is_some() {
        search(arguments, &analysis, &team)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(arguments: &LayersArguments) -> anyhow::Result<()> {
    if arguments.depth == 0 || arguments.rows == 0 || arguments.lp.contains(&0) {
        bail!("--depth, --rows and the sizes of --lp must be at least 1");
    }
    if !(0.0..=1.0).contains(&arguments.least_overlap) {
        bail!("--least-overlap is {}, but it must be from 0 to 1", arguments.least_overlap);
    }
    Ok(())
}

/// What is compared, by the flags that mean it; the same groups once.
fn strategies(
    arguments: &LayersArguments,
    n_layers: usize,
) -> anyhow::Result<Vec<(String, Strategy)>> {
    let sizes = arguments.lp.iter().copied().map(LayerStrategy::Parallel);
    let mut all: Vec<(String, Strategy)> = Vec::new();
    for own in sizes.chain(arguments.layer_groups.iter().cloned()) {
        let groups = own.groups(n_layers)?;
        let variants = if arguments.whole_layers { &[false, true][..] } else { &[false] };
        for &whole_layers in variants {
            let name = match &own {
                LayerStrategy::Parallel(size) => format!("lp {size}"),
                LayerStrategy::Groups(groups) => groups.to_string(),
            };
            let name = if whole_layers { name + ", MLPs too" } else { name };
            let strategy = Strategy { groups: groups.clone(), whole_layers };
            if all.iter().all(|(_, known)| *known != strategy) {
                all.push((name, strategy));
            }
        }
    }
    Ok(all)
}

/// What a pass takes by each row's groups, where that was asked for. No pass has parallel MLPs.
fn costs(
    arguments: &LayersArguments,
    analysis: &LayerAnalysis,
    team: &Arc<Team>,
    rows: &[(String, Strategy)],
) -> Vec<Option<PassCost>> {
    if arguments.rounds == 0 {
        return vec![None; rows.len()];
    }
    let groups: Vec<LayerGroups> = rows.iter().map(|row| row.1.groups.clone()).collect();
    let costs = analysis.pass_costs(team, &groups, arguments.rows, arguments.rounds);
    let told = |(cost, row): (PassCost, &(String, Strategy))| (!row.1.whole_layers).then_some(cost);
    costs.into_iter().zip(rows).map(told).collect()
}

fn print(
    arguments: &LayersArguments,
    team: &Team,
    rows: &[(String, Strategy)],
    report: &LayerReport,
    costs: &[Option<PassCost>],
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}, {} fuzzy rows, {} behind each exact one; {} on {} threads",
        arguments.model.display(),
        report.rows,
        arguments.depth,
        team.isa(),
        team.members(),
    )?;
    writeln!(
        out,
        "cosine similarity with the exact states, means over rows and layers (h: attention's input, \
         attn: its output)"
    )?;
    writeln!(
        out,
        "overlap: 1 − TV with the exact rows; top-1: the same most probable token; ms: a pass of {} \
         rows; barriers: how often all threads wait in it, each time {:.2} µs or longer",
        arguments.rows,
        barrier_us(team),
    )?;
    let accepted = report.exact_acceptance.map(|_| format!(" {:>8}", "accepted"));
    let widest = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0).max(8);
    writeln!(
        out,
        "{:<widest$} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6}{} {:>8} {:>8}",
        "strategy",
        "h",
        "attn",
        "q",
        "k",
        "v",
        "overlap",
        "top-1",
        accepted.unwrap_or_default(),
        "ms",
        "barriers"
    )?;
    for (((name, _), score), cost) in rows.iter().zip(&report.scores).zip(costs) {
        let accepted = score.acceptance.map(|share| format!(" {share:>8.4}"));
        let cost = cost.map_or(format!("{:>8} {:>8}", "-", "-"), |PassCost { ms, barriers }| {
            format!("{ms:>8.3} {barriers:>8}")
        });
        writeln!(
            out,
            "{name:<widest$} {} {:>7.4} {:>6.4}{} {cost}",
            states(&score.mean()),
            score.overlap,
            score.top1_agreement,
            accepted.unwrap_or_default(),
        )?;
    }
    if arguments.per_layer {
        for ((name, _), score) in rows.iter().zip(&report.scores) {
            writeln!(out, "\n{name}, by layer")?;
            for (layer, similarities) in score.layers.iter().enumerate() {
                writeln!(out, "{layer:<widest$} {}", states(similarities))?;
            }
        }
    }
    Ok(())
}

fn states(similarities: &Similarities) -> String {
    let Similarities { hidden, attention, queries, keys, values } = similarities;
    format!("{hidden:>6.4} {attention:>6.4} {queries:>6.4} {keys:>6.4} {values:>6.4}")
}

/// Searches, tells every step, and writes what was found.
fn search(
    arguments: &LayersArguments,
    analysis: &LayerAnalysis,
    team: &Arc<Team>,
) -> anyhow::Result<()> {
    let Some(file) = &arguments.search else { return Ok(()) };
    let told = |step: &SearchStep| note(format_args!("{:.4} {}", step.overlap, step.groups));
    let steps = analysis.search(team, arguments.largest, arguments.least_overlap, told)?;
    let Some(SearchStep { groups, overlap }) = steps.last() else { return Ok(()) };
    let text = format!(
        "# {} layers of {}: overlap {overlap:.4} with exact rows, {} fuzzy rows behind each exact one\n\
         {groups}\n",
        analysis.config().num_hidden_layers,
        arguments.model.display(),
        arguments.depth,
    );
    std::fs::write(file, text)
        .with_context(|| format!("cannot write the layer groups to {}", file.display()))?;
    writeln!(std::io::stdout(), "\nproposed, overlap {overlap:.4}: --layer-groups {groups}")?;
    note(format_args!("written: {}", file.display()));
    Ok(())
}

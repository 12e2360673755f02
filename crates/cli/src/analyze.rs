//! `forerun analyze`. `forerun analyze layers` compares the strategies of EasySpec's drafter.

mod acceptance;

use crate::arguments::{Analyze, LayersArguments};
use crate::export::ensure_not_part_of;
use crate::generate::cannot_write;
use crate::{bench, note, progress};
use anyhow::{Context, bail};
use forerun::cpu::Team;
use forerun::draft::LayerGroups;
use forerun::{LayerStrategy, ModelSource};
use forerun_bench::suite;
use forerun_laboratory::{
    LayerAnalysis, LayerAnalysisOptions, LayerReport, PassCosts, SearchStep, Similarities,
    Strategy, barrier_us,
};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// Number of approximate rows after each exact row: the depth of drafts without their first token.
const DEPTH: usize = 4;

/// The largest number of layers in a group that a search proposes.
const LARGEST_GROUP: usize = 4;

/// Runs an analysis and prints its results.
pub(crate) fn run(analyze: &Analyze) -> anyhow::Result<ExitCode> {
    match analyze {
        Analyze::Layers(arguments) => layers(arguments),
        Analyze::Acceptance(arguments) => acceptance::run(arguments),
    }
}

fn layers(arguments: &LayersArguments) -> anyhow::Result<ExitCode> {
    check(arguments)?;
    let model = arguments.model.require()?;
    if let Some(file) = &arguments.search {
        forerun_output::check(file).with_context(|| cannot_write(file))?;
        ensure_not_part_of(file, [model])?;
    }
    let threads = bench::threads(arguments.threads)?;
    let mut prompts =
        suite::read(std::slice::from_ref(&arguments.prompts), arguments.data.as_deref())?;
    if let Some(count) = arguments.limit {
        prompts = suite::limit(prompts, count);
    }
    let texts: Vec<String> = prompts.iter().map(|prompt| prompt.turns.join("\n")).collect();
    let locate =
        |model: &ModelSource| progress::loader(false, true).locate(model).map(ModelSource::Path);
    let options = LayerAnalysisOptions {
        model: locate(model)?,
        target: arguments.target.as_ref().map(locate).transpose()?,
        weight_type: arguments.weights.dtype,
        depth: DEPTH,
        max_tokens: arguments.tokens,
    };
    let analysis = LayerAnalysis::open(&options, &texts)?;
    let rows = strategies(arguments, analysis.config().num_hidden_layers)?;
    let team = Arc::new(Team::unpinned(threads)?);
    let strategies = rows.iter().map(|(_, strategy)| strategy.clone()).collect();
    let report = analysis.compare(&team, strategies, progress::counted("comparing", "prompts"))?;
    print(arguments, &team, &rows, &report)?;
    if arguments.rounds > 0 {
        let one_core = Arc::new(Team::single_thread());
        print_costs(arguments, &analysis, [&team, &one_core], &rows)?;
    }
    if arguments.search.is_some() {
        search(arguments, &analysis, &team)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(arguments: &LayersArguments) -> anyhow::Result<()> {
    if arguments.lp.contains(&0) {
        bail!("the sizes of --lp must be at least 1");
    }
    if !(0.0..=1.0).contains(&arguments.least_overlap) {
        bail!("--least-overlap is {}, but it must be from 0 to 1", arguments.least_overlap);
    }
    Ok(())
}

/// Returns the strategies to compare with their names, without duplicates.
fn strategies(
    arguments: &LayersArguments,
    n_layers: usize,
) -> anyhow::Result<Vec<(String, Strategy)>> {
    let sizes = arguments.lp.iter().copied().map(LayerStrategy::Parallel);
    let mut all: Vec<(String, Strategy)> = Vec::new();
    for layers in sizes.chain(arguments.layer_groups.iter().cloned()) {
        let groups = layers.groups(n_layers)?;
        let variants = if arguments.whole_layers { &[false, true][..] } else { &[false] };
        for &whole_layers in variants {
            let name = match &layers {
                LayerStrategy::Parallel(size) => format!("lp {size}"),
                LayerStrategy::Groups(groups) => groups.to_string(),
            };
            let name = if whole_layers { name + ", MLPs too" } else { name };
            let strategy = Strategy { groups: groups.clone(), whole_layers };
            if all.iter().all(|(_, other)| *other != strategy) {
                all.push((name, strategy));
            }
        }
    }
    Ok(all)
}

fn print(
    arguments: &LayersArguments,
    team: &Team,
    rows: &[(String, Strategy)],
    report: &LayerReport,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}, {} approximate rows, {DEPTH} after each exact row; {} on {} threads",
        arguments.model.require()?,
        report.rows,
        team.isa(),
        team.members(),
    )?;
    writeln!(
        out,
        "cosine similarity with the exact states, means over rows and layers (h: input of the \
         attention, attn: its output)"
    )?;
    writeln!(
        out,
        "overlap: 1 − TV with the exact rows; top-1: share of rows with the same most probable token"
    )?;
    let accepted = report.exact_acceptance.map(|_| format!(" {:>8}", "accepted"));
    let width = name_width(rows);
    writeln!(
        out,
        "{:<width$} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6}{}",
        "strategy",
        "h",
        "attn",
        "q",
        "k",
        "v",
        "overlap",
        "top-1",
        accepted.unwrap_or_default(),
    )?;
    for ((name, _), score) in rows.iter().zip(&report.scores) {
        let accepted = score.acceptance.map(|share| format!(" {share:>8.4}"));
        writeln!(
            out,
            "{name:<width$} {} {:>7.4} {:>6.4}{}",
            states(&score.mean()),
            score.overlap,
            score.top1_agreement,
            accepted.unwrap_or_default(),
        )?;
    }
    Ok(())
}

/// Returns the width of the column of names.
fn name_width(rows: &[(String, Strategy)]) -> usize {
    rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0).max(8)
}

/// Prints the time of a forward pass with each strategy, on all threads and on one. Strategies with
/// parallel MLPs are left out, because no forward pass implements them.
fn print_costs(
    arguments: &LayersArguments,
    analysis: &LayerAnalysis,
    [team, one_core]: [&Arc<Team>; 2],
    rows: &[(String, Strategy)],
) -> anyhow::Result<()> {
    let passes: Vec<_> = rows.iter().filter(|row| !row.1.whole_layers).collect();
    let groups: Vec<LayerGroups> = passes.iter().map(|row| row.1.groups.clone()).collect();
    let costs = |team| analysis.pass_costs(team, &groups, arguments.rows, arguments.rounds);
    // With a single thread, both would be the same.
    let on_all = if team.members() > 1 { costs(team) } else { Vec::new() };
    let on_one = costs(one_core);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "\na pass of {} rows, in ms: the attention of a group's layers is computed at the same time, each \
         layer on its own part of the threads, or fused, with their projections as one product; \
         barriers: number of times that all threads synchronise, at least {:.2} µs each",
        arguments.rows,
        barrier_us(team),
    )?;
    let width = name_width(rows);
    write!(out, "{:<width$}", "strategy")?;
    if !on_all.is_empty() {
        let threads = team.members();
        let layers = format!("{threads} threads");
        write!(out, " {layers:>10} {:>8} {:>10} {:>8}", "barriers", "fused", "barriers")?;
    }
    writeln!(out, " {:>10} {:>10}", "1 thread", "fused")?;
    for (index, (name, _)) in passes.iter().enumerate() {
        write!(out, "{name:<width$}")?;
        if let Some(PassCosts { layers, products }) = on_all.get(index) {
            for cost in [layers, products] {
                write!(out, " {:>10.3} {:>8}", cost.ms, cost.barriers)?;
            }
        }
        let PassCosts { layers, products } = &on_one[index];
        writeln!(out, " {:>10.3} {:>10.3}", layers.ms, products.ms)?;
    }
    Ok(())
}

fn states(similarities: &Similarities) -> String {
    let Similarities { hidden, attention, queries, keys, values } = similarities;
    format!("{hidden:>6.4} {attention:>6.4} {queries:>6.4} {keys:>6.4} {values:>6.4}")
}

/// Searches for layer groups, notes every step, and writes the result to a file.
fn search(
    arguments: &LayersArguments,
    analysis: &LayerAnalysis,
    team: &Arc<Team>,
) -> anyhow::Result<()> {
    let Some(file) = &arguments.search else { return Ok(()) };
    let on_step = |step: &SearchStep| note(format_args!("{:.4} {}", step.overlap, step.groups));
    let steps = analysis.search(team, LARGEST_GROUP, arguments.least_overlap, on_step)?;
    let Some(SearchStep { groups, overlap }) = steps.last() else { return Ok(()) };
    let text = format!(
        "# {} layers of {}: overlap {overlap:.4} with exact rows, {DEPTH} approximate rows after each \
         exact row\n{groups}\n",
        analysis.config().num_hidden_layers,
        arguments.model.require()?,
    );
    forerun_output::write(file, text)
        .with_context(|| format!("cannot write the layer groups to {}", file.display()))?;
    writeln!(std::io::stdout(), "\nproposed, overlap {overlap:.4}: --layer-groups {groups}")?;
    note(format_args!("wrote {}", file.display()));
    Ok(())
}

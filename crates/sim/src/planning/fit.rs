//! Costs of passes in a method's own rhythm, from traces of real answers.
//!
//! A pass that is timed alone finds warm caches and a free memory bus. Here, all times come from
//! whole answers: those of passes with their sampling, and those between jobs, which are
//! verification, commits, text and messages.

use super::predict::Answers;
use super::{DrafterRecord, MethodTiming, PlannedDraft};
use crate::{AcceptanceModel, Cost, SimError};
use forerun_core::trace::{Span, SpanKind, SpanOutcome, Trace};
use forerun_decode::{Drafting, METHODS};
use std::collections::BTreeMap;

/// A real answer.
#[derive(Clone, Debug)]
pub struct MeasuredAnswer {
    /// The index of the prompt.
    pub prompt: usize,
    /// Its drafts.
    pub draft: PlannedDraft,
    /// Its tokens.
    pub tokens: usize,
    /// The time of a token after the first step, in nanoseconds.
    pub ns_per_token: f64,
    /// What the devices did.
    pub trace: Trace,
}

impl MeasuredAnswer {
    /// Returns its draft jobs that have proposed something.
    pub fn drafts(&self) -> impl Iterator<Item = &Span> {
        self.trace.spans.iter().filter(|span| span.kind == SpanKind::Draft && span.rows > 0)
    }
}

/// Computes the timing of a method from its answers. `timing` has everything but the times; its
/// passes say which models these are.
///
/// Of several answers to a prompt with the same drafts, only the fastest quarter counts, because
/// other programs only make times longer. If these have no passes of a kind, all answers count. Of
/// these answers, all times count, as means: so they add up to the answers' times.
///
/// # Errors
/// If the answers have no passes, or if they cannot be simulated.
pub fn fit(
    mut timing: MethodTiming,
    answers: &[MeasuredAnswer],
    drafter: Option<&DrafterRecord>,
) -> Result<MethodTiming, SimError> {
    let all: Vec<&MeasuredAnswer> = answers.iter().collect();
    let mut answers = fastest(answers);
    let entry = METHODS.iter().find(|entry| entry.name == timing.method);
    let is_parallel = entry.is_some_and(|entry| entry.drafting == Drafting::DuringVerification);
    let samples_of = |answers: &[&MeasuredAnswer]| {
        let mut samples = Samples {
            is_parallel,
            reads_features: drafter.is_some_and(|drafter| drafter.reads_features),
            one_forward: drafter.is_some_and(|drafter| drafter.one_forward),
            positions: drafter.and_then(|drafter| drafter.positions),
            ..Samples::default()
        };
        // While drafting pauses, cores of the drafter may help the target. So passes take longer
        // while the drafter drafts.
        let has_fixed = answers.iter().any(|answer| !answer.draft.is_auto());
        let counts =
            |answer: &&&MeasuredAnswer| !(is_parallel && has_fixed && answer.draft.is_auto());
        answers.iter().filter(counts).for_each(|answer| samples.add(&answer.trace, answer.draft));
        samples.split_whole_drafts();
        samples.use_part_trees();
        samples
    };
    let mut samples = samples_of(&answers);
    let drafts = timing.drafter_passes.is_some();
    if samples.score_ns.is_empty() || (drafts && samples.draft_ns.is_empty()) {
        samples = samples_of(&all);
        answers = all;
    }
    let nothing = || SimError::Decode("the traces of the measured answers have no passes".into());
    let gap_ns = match is_parallel {
        // A target that waits for drafts does not wait for messages.
        true => median(&mut samples.gaps_ns),
        false => mean(&samples.gaps_ns),
    };
    timing.link_ms = gap_ns.unwrap_or(0.0) / 2e6;
    timing.target.rows_ms = rising_means(&samples.score_ns).ok_or_else(nothing)?;
    timing.target.first_ms = mean(&samples.first_score_ns).unwrap_or(0.0) / 1e6;
    if let Some(passes) = &mut timing.drafter_passes {
        passes.rows_ms = rising_means(&samples.draft_ns).ok_or_else(nothing)?;
        passes.first_ms = mean(&samples.first_draft_ns).unwrap_or(0.0) / 1e6;
        samples.split_levels(&passes.cost(0)?);
        passes.next_ms = Some(mean(&samples.next_draft_ns).unwrap_or(0.0) / 1e6);
    }
    (timing.scale, timing.auto_scale) = (Vec::new(), None);
    let mut sizes = Vec::new();
    for (draft, scale) in scales(&timing, &answers, drafter)? {
        match draft.size() {
            Some(size) => sizes.push((size, scale)),
            None => timing.auto_scale = Some(scale),
        }
    }
    timing.scale = sizes;
    Ok(timing)
}

/// Returns the fastest quarter of the answers to each prompt with the same drafts, at least one.
fn fastest(answers: &[MeasuredAnswer]) -> Vec<&MeasuredAnswer> {
    let mut times: BTreeMap<(PlannedDraft, usize), Vec<f64>> = BTreeMap::new();
    for answer in answers {
        let key = (answer.draft, answer.prompt);
        times.entry(key).or_default().push(answer.ns_per_token);
    }
    let limits: BTreeMap<_, _> = times
        .into_iter()
        .filter_map(|(key, mut times)| Some((key, lower_quartile(&mut times)?)))
        .collect();
    let is_fast = |answer: &&MeasuredAnswer| {
        let limit = limits.get(&(answer.draft, answer.prompt));
        limit.is_some_and(|&limit| answer.ns_per_token <= limit)
    };
    answers.iter().filter(is_fast).collect()
}

/// Returns how much longer answers take than their simulations, by their drafts.
fn scales(
    timing: &MethodTiming,
    answers: &[&MeasuredAnswer],
    drafter: Option<&DrafterRecord>,
) -> Result<Vec<(PlannedDraft, f64)>, SimError> {
    let mut by_draft: BTreeMap<PlannedDraft, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for answer in answers {
        let prompts = by_draft.entry(answer.draft).or_default();
        prompts.entry(answer.prompt).or_default().push(answer.ns_per_token);
    }
    let tokens = answers.iter().map(|answer| answer.tokens).max().unwrap_or(2);
    let nothing = || vec![AcceptanceModel::Iid(0.0)];
    let texts = drafter.map_or_else(nothing, |drafter| drafter.texts(timing.tree));
    let answers = Answers { timing, drafter, tokens };
    let mut scales = Vec::new();
    for (draft, prompts) in by_draft {
        let mut sums = (0.0, 0.0);
        for (prompt, ns_per_token) in prompts {
            let text = &texts[prompt % texts.len().max(1)..][..1];
            sums.0 += mean(&ns_per_token).unwrap_or(0.0);
            sums.1 += answers.simulated_ns(draft, text)?;
        }
        let ratio = sums.0 / sums.1;
        if ratio.is_finite() && ratio > 0.0 {
            scales.push((draft, ratio));
        }
    }
    Ok(scales)
}

/// The times of one method's jobs, in nanoseconds.
#[derive(Default)]
struct Samples {
    /// Whether drafter and target work at the same time.
    is_parallel: bool,
    /// Whether the drafter reads the target's features: its first draft that is not empty reads the
    /// prompt.
    reads_features: bool,
    /// Whether the drafter drafts all positions in one forward pass.
    one_forward: bool,
    /// The largest number of positions that it drafts, if limited.
    positions: Option<usize>,
    /// The times between the end of a job and the start of the next one: of all, or of the same
    /// device if they work at the same time.
    gaps_ns: Vec<f64>,
    first_score_ns: Vec<f64>,
    first_draft_ns: Vec<f64>,
    /// Passes of the target by rows.
    score_ns: BTreeMap<usize, Vec<f64>>,
    /// The first passes of drafts by rows, with the rest of the job.
    draft_ns: BTreeMap<usize, Vec<f64>>,
    /// Further passes of drafts.
    next_draft_ns: Vec<f64>,
    /// Drafts without several recorded passes: the rows of the first pass, the tokens after the
    /// first, and the time.
    whole_drafts: Vec<(usize, f64, f64)>,
    /// The later passes of trees: the rows of each, and their time together.
    levels: Vec<(Vec<usize>, f64)>,
    /// The mean times of the passes of trees whose rows are not known.
    part_trees_ns: Vec<f64>,
}

impl Samples {
    fn add(&mut self, trace: &Trace, draft: PlannedDraft) {
        let mut spans: Vec<&Span> = trace.spans.iter().collect();
        spans.sort_by_key(|span| span.start_ns);
        let mut ends: Vec<u64> = spans.iter().map(|span| span.end_ns).collect();
        ends.sort_unstable();
        let (mut seen, mut last_ns) = ([false; 2], [0; 2]);
        for span in spans {
            let ns = span.end_ns.saturating_sub(span.start_ns) as f64;
            let before = ends.partition_point(|&end_ns| end_ns <= span.start_ns);
            let is_draft = span.kind == SpanKind::Draft;
            if is_draft && self.reads_features && !seen[1] && span.rows == 0 {
                continue;
            }
            let same_lane = std::mem::replace(&mut last_ns[usize::from(is_draft)], span.end_ns);
            let is_first = !std::mem::replace(&mut seen[usize::from(is_draft)], true);
            if is_first {
                match is_draft {
                    true => self.first_draft_ns.push(ns - later_passes_ns(span)),
                    false => self.first_score_ns.push(ns),
                }
                continue;
            }
            let end_ns = match self.is_parallel {
                true => Some(same_lane),
                false => before.checked_sub(1).map(|last| ends[last]),
            };
            if let Some(end_ns) = end_ns {
                self.gaps_ns.push(span.start_ns.saturating_sub(end_ns) as f64);
            }
            // A cancelled job has no rows; nor has a drafter that proposes nothing.
            let is_complete = span.rows > 0 || (is_draft && span.outcome != SpanOutcome::Wasted);
            match is_complete {
                true if is_draft && draft.is_tree() => self.add_tree(span, ns, draft),
                true if is_draft => self.add_draft(span, ns),
                true => {
                    let rows =
                        if span.computed_tokens == 0 { span.rows } else { span.computed_tokens };
                    self.score_ns.entry(rows).or_default().push(ns);
                }
                false => {}
            }
        }
    }

    fn add_draft(&mut self, span: &Span, ns: f64) {
        let later = span.rows.saturating_sub(1);
        let rows = span.computed_tokens.saturating_sub(later).max(1);
        if span.forwards_ns.len() < 2 {
            // A single pass, or passes that were not recorded.
            self.whole_drafts.push((rows, later as f64, ns));
            return;
        }
        let next_ns = later_passes_ns(span) / (span.forwards_ns.len() - 1) as f64;
        self.next_draft_ns.push(next_ns);
        self.draft_ns.entry(rows).or_default().push(ns - next_ns * later as f64);
    }

    fn add_tree(&mut self, span: &Span, ns: f64, draft: PlannedDraft) {
        if self.one_forward {
            self.draft_ns.entry(1).or_default().push(ns);
            return;
        }
        // What the drafter computed in each pass is known of whole trees of a given shape.
        let shape = draft.shape().truncated(self.positions.unwrap_or(usize::MAX));
        let parents = shape.parents_by_depth();
        let passes = span.forwards_ns.len();
        if draft.is_auto() || span.rows != shape.max_nodes() || passes != parents.len() {
            self.part_trees_ns.push(ns / passes.max(1) as f64);
            return;
        }
        let later = parents[1..].to_vec();
        let rows = span.computed_tokens.saturating_sub(later.iter().sum()).max(1);
        let later_ns = later_passes_ns(span);
        self.draft_ns.entry(rows).or_default().push(ns - later_ns);
        if !later.is_empty() {
            self.levels.push((later, later_ns));
        }
    }

    /// Uses trees whose rows are not known if there are no others.
    fn use_part_trees(&mut self) {
        let passes_ns = std::mem::take(&mut self.part_trees_ns);
        if self.draft_ns.is_empty() && !passes_ns.is_empty() {
            self.next_draft_ns.clone_from(&passes_ns);
            self.draft_ns.insert(1, passes_ns);
        }
    }

    /// Divides the times of later passes of trees by their number, without what their further rows
    /// cost.
    fn split_levels(&mut self, cost: &Cost) {
        for (rows, ns) in std::mem::take(&mut self.levels) {
            let one_ns = cost.forward.ns(1);
            let further = rows.iter().map(|&rows| cost.forward.ns(rows).saturating_sub(one_ns));
            let next_ns = (ns - further.sum::<u64>() as f64) / rows.len() as f64;
            self.next_draft_ns.push(next_ns.max(0.0));
        }
    }

    /// Splits the times of drafts without recorded passes into those of first and of further
    /// passes.
    fn split_whole_drafts(&mut self) {
        let drafts = std::mem::take(&mut self.whole_drafts);
        let known = mean(&self.next_draft_ns);
        let points: Vec<(f64, f64)> = drafts.iter().map(|&(_, later, ns)| (later, ns)).collect();
        let next_ns = known.unwrap_or_else(|| slope(&points).max(0.0));
        if known.is_none() && !drafts.is_empty() {
            self.next_draft_ns.push(next_ns);
        }
        for (rows, later, ns) in drafts {
            self.draft_ns.entry(rows).or_default().push((ns - next_ns * later).max(0.0));
        }
    }
}

/// Returns the time from the end of a job's first pass to that of its last one, in nanoseconds.
fn later_passes_ns(span: &Span) -> f64 {
    match &span.forwards_ns[..] {
        [first, .., last] => last[1].saturating_sub(first[1]) as f64,
        _ => 0.0,
    }
}

/// Returns the slope of the line with the least squared errors; 0 if all first numbers are equal.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    let (x, y) = (x / count, y / count);
    let product: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if square > 0.0 { product / square } else { 0.0 }
}

/// Returns the mean of the fastest quarter of times, at least of one; `None` if there are none.
/// Other programs only make times longer, so this depends on them less than the mean of all.
/// Measured answers and checks count in the same way.
#[must_use]
pub fn fastest_mean(times: &mut [f64]) -> Option<f64> {
    let limit = lower_quartile(times)?;
    let fastest: Vec<f64> = times.iter().copied().filter(|&time| time <= limit).collect();
    mean(&fastest)
}

/// Returns the lower quartile, or the least of up to four values; `None` if there are none.
fn lower_quartile(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 4).copied()
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some((values[(values.len() - 1) / 2] + upper) / 2.0)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the means in milliseconds by rows. More rows never take less time: where they seem to,
/// neighbours share their mean (isotonic regression by pooling adjacent violators).
fn rising_means(samples: &BTreeMap<usize, Vec<f64>>) -> Option<Vec<(usize, f64)>> {
    // The rows, the sum of their times, and the number of times.
    let mut pools: Vec<(Vec<usize>, f64, f64)> = Vec::new();
    for (&rows, times) in samples.iter().filter(|(_, times)| !times.is_empty()) {
        let mut pool = (vec![rows], times.iter().sum::<f64>(), times.len() as f64);
        while let Some(last) = pools.pop_if(|last| last.1 / last.2 > pool.1 / pool.2) {
            let rows = [last.0, pool.0].concat();
            pool = (rows, last.1 + pool.1, last.2 + pool.2);
        }
        pools.push(pool);
    }
    let points = pools
        .iter()
        .flat_map(|(rows, sum, count)| rows.iter().map(move |&rows| (rows, sum / count / 1e6)));
    let points: Vec<_> = points.collect();
    (!points.is_empty()).then_some(points)
}

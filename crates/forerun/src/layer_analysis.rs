//! Which layers of a drafter can be computed together: what each strategy loses and what it takes, and
//! a search for one.

use crate::error::ForerunError;
use crate::loader::Loader;
use crate::open_model::open_model;
use forerun_core::TokenId;
use forerun_model::layer_probe::{LayerProbe, Strategy, StrategyScore};
use forerun_model::model_cost::ModelProbe;
use forerun_model::{Config, Weights};
use forerun_model::{
    GroupWork, Isa, LayerGroups, LayerGroupsError, LayerOrder, ModelError, Team, WeightType,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Tokens before the passes whose time is measured.
const PAST: usize = 128;

/// Barriers that are measured.
const BARRIERS: usize = 1001;

/// What is analysed.
#[derive(Clone, Debug)]
pub struct LayerAnalysisOptions {
    /// The drafter's checkpoint.
    pub model: PathBuf,
    /// A target of the same tokens, to tell acceptance.
    pub target: Option<PathBuf>,
    /// The type in which matrices are kept; `None` is each checkpoint's own.
    pub weight_type: Option<WeightType>,
    /// Fuzzy rows behind every exact one: the draft's depth without its first.
    pub depth: usize,
    /// Tokens of each text at the most.
    pub max_tokens: usize,
}

/// Why layers cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum LayerAnalysisError {
    /// The model or its tokenizer cannot be used.
    #[error(transparent)]
    Open(Box<ForerunError>),
    /// A target of other tokens.
    #[error(
        "the target {target} has another vocabulary than the model {model}: distributions over \
         different tokens cannot be compared"
    )]
    Vocabulary {
        /// The target's checkpoint.
        target: PathBuf,
        /// The model's.
        model: PathBuf,
    },
    /// Nothing to compare on.
    #[error("no prompt has two tokens: give longer ones, so that there are rows to compare")]
    NoRows,
    /// Layer groups of another model.
    #[error(transparent)]
    LayerGroups(#[from] LayerGroupsError),
    /// A forward pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl<E: Into<ForerunError>> From<E> for LayerAnalysisError {
    fn from(error: E) -> Self {
        Self::Open(Box::new(error.into()))
    }
}

/// A drafter and the texts on which strategies are compared.
pub struct LayerAnalysis {
    weights: Arc<Weights>,
    target: Option<Arc<Weights>>,
    texts: Vec<Vec<TokenId>>,
    depth: usize,
}

/// How strategies did on the same rows.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// Fuzzy rows that were compared.
    pub rows: usize,
    /// The acceptance of exact rows, where there is a target.
    pub exact_acceptance: Option<f64>,
    /// The strategies' scores, in their order.
    pub scores: Vec<StrategyScore>,
}

/// What a forward pass takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCost {
    /// Milliseconds, the median of several passes.
    pub ms: f64,
    /// How often all members of the team wait for each other.
    pub barriers: usize,
}

/// What it takes by either way of sharing the attention of a group's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCosts {
    /// By [`GroupWork::Layers`].
    pub layers: PassCost,
    /// By [`GroupWork::Products`].
    pub products: PassCost,
}

/// Microseconds that a team takes to come together and part again without any work: what a barrier of
/// [`PassCost`] costs at the least, the median of some.
#[must_use]
pub fn barrier_us(team: &Team) -> f64 {
    let barrier = |_| {
        let started = Instant::now();
        team.run(&|_| ());
        started.elapsed().as_secs_f64() * 1e6
    };
    median((0..BARRIERS).map(barrier).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A step of the search: the groups that lost least, and what they keep.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchStep {
    /// The groups.
    pub groups: LayerGroups,
    /// Their rows' overlap with the exact ones.
    pub overlap: f64,
}

impl LayerAnalysis {
    /// Loads the models and encodes the texts.
    ///
    /// # Errors
    /// If a model or tokenizer cannot be loaded, they do not go together, or the texts are too short.
    pub fn open(
        options: &LayerAnalysisOptions,
        texts: &[String],
    ) -> Result<Self, LayerAnalysisError> {
        Isa::from_environment()?;
        let loader = &mut Loader::new();
        let model = open_model(&options.model, loader)?;
        let target = options.target.as_ref().map(|path| open_model(path, loader)).transpose()?;
        let config = model.checkpoint.config();
        let mut room = config.max_position_embeddings;
        if let (Some(target), Some(path)) = (&target, &options.target) {
            let other = target.checkpoint.config();
            if !target.tokenizer.agrees_with(&model.tokenizer)
                || other.vocab_size != config.vocab_size
            {
                let (target, model) = (path.clone(), options.model.clone());
                return Err(LayerAnalysisError::Vocabulary { target, model });
            }
            room = room.min(other.max_position_embeddings);
        }
        let mut encoded = Vec::new();
        for text in texts {
            let mut tokens = model.tokenizer.encode(text)?;
            tokens.truncate(options.max_tokens.min(room));
            encoded.extend((tokens.len() > 1).then_some(tokens));
        }
        if encoded.is_empty() {
            return Err(LayerAnalysisError::NoRows);
        }
        let mut load =
            |path: &PathBuf, checkpoint| loader.load(path, checkpoint, options.weight_type);
        let weights = load(&options.model, &model.checkpoint)?;
        let target = options.target.as_ref().zip(target.as_ref());
        let target = target.map(|(path, model)| load(path, &model.checkpoint)).transpose()?;
        Ok(Self { weights, target, texts: encoded, depth: options.depth })
    }

    /// The drafter's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.weights.config()
    }

    /// Compares strategies. `progress` is told how many texts are done, and how many there are.
    ///
    /// # Errors
    /// If groups are not those of the drafter, or a forward pass fails.
    pub fn compare(
        &self,
        team: &Arc<Team>,
        strategies: Vec<Strategy>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<LayerReport, LayerAnalysisError> {
        let n_layers = self.config().num_hidden_layers;
        for strategy in &strategies {
            strategy.groups.check(n_layers)?;
        }
        let (weights, target) = (Arc::clone(&self.weights), self.target.clone());
        let mut probe = LayerProbe::new(weights, target, team, self.depth, strategies);
        for (done, text) in self.texts.iter().enumerate() {
            progress(done, self.texts.len());
            probe.score(text)?;
        }
        progress(self.texts.len(), self.texts.len());
        let (rows, exact_acceptance) = (probe.rows(), probe.exact_acceptance());
        Ok(LayerReport { rows, exact_acceptance, scores: probe.scores() })
    }

    /// What a pass of so many rows takes by each of the groups; times are medians of `rounds` turns.
    #[must_use]
    pub fn pass_costs(
        &self,
        team: &Arc<Team>,
        groups: &[LayerGroups],
        rows: usize,
        rounds: usize,
    ) -> Vec<PassCosts> {
        let probe = |work| {
            let probe = ModelProbe::new(Arc::clone(&self.weights), Arc::clone(team), PAST, rows);
            probe.with_group_work(work)
        };
        let mut probes = [GroupWork::Layers, GroupWork::Products].map(probe);
        let mut times = vec![[const { Vec::new() }; 2]; groups.len()];
        let mut barriers = vec![[0; 2]; groups.len()];
        // By turns, so that what disturbs the machine disturbs all of them; the first is a warm-up.
        for round in 0..=rounds {
            for (index, groups) in groups.iter().enumerate() {
                for (way, probe) in probes.iter_mut().enumerate() {
                    let before = team.runs();
                    let seconds = probe.run_by(rows, LayerOrder::Groups(groups));
                    barriers[index][way] = team.runs() - before;
                    times[index][way].extend((round > 0).then_some(1e3 * seconds));
                }
            }
        }
        let cost = |(times, barriers)| PassCost { ms: median(times), barriers };
        let both = |(times, [by_layer, by_product]): ([Vec<f64>; 2], [usize; 2])| {
            let [of_layers, of_products] = times;
            let [layers, products] = [(of_layers, by_layer), (of_products, by_product)].map(cost);
            PassCosts { layers, products }
        };
        times.into_iter().zip(barriers).map(both).collect()
    }

    /// Searches for groups of at most `largest` layers that keep an overlap of at least `least` with
    /// exact rows. Returns the way there, the last step being the proposal.
    ///
    /// # Errors
    /// If a forward pass fails.
    pub fn search(
        &self,
        team: &Arc<Team>,
        largest: usize,
        least: f64,
        mut on_step: impl FnMut(&SearchStep),
    ) -> Result<Vec<SearchStep>, LayerAnalysisError> {
        let overlaps = |candidates: Vec<LayerGroups>| {
            let strategy = |groups| Strategy { groups, whole_layers: false };
            let strategies = candidates.into_iter().map(strategy).collect();
            let report = self.compare(team, strategies, |_, _| ())?;
            Ok(report.scores.iter().map(|score| score.overlap).collect())
        };
        search(self.config().num_hidden_layers, largest, least, overlaps, &mut on_step)
    }
}

/// Joins, one at a time, the two neighbouring groups that lose least, from all layers alone, as long as
/// the overlap stays large enough.
fn search<E>(
    n_layers: usize,
    largest: usize,
    least: f64,
    mut overlaps: impl FnMut(Vec<LayerGroups>) -> Result<Vec<f64>, E>,
    on_step: &mut dyn FnMut(&SearchStep),
) -> Result<Vec<SearchStep>, E> {
    let mut sizes = vec![1; n_layers];
    let mut steps = vec![SearchStep { groups: LayerGroups::of_sizes(&sizes), overlap: 1.0 }];
    loop {
        let joined = |at: usize| {
            let mut sizes = sizes.clone();
            sizes[at] += sizes.remove(at + 1);
            sizes
        };
        let candidates: Vec<Vec<usize>> = (0..sizes.len().saturating_sub(1))
            .filter(|&at| sizes[at] + sizes[at + 1] <= largest)
            .map(joined)
            .collect();
        let groups = candidates.iter().map(|sizes| LayerGroups::of_sizes(sizes)).collect();
        let overlaps = if candidates.is_empty() { Vec::new() } else { overlaps(groups)? };
        let best = overlaps.iter().zip(candidates).max_by(|a, b| a.0.total_cmp(b.0));
        match best {
            Some((&overlap, best)) if overlap >= least => {
                let step = SearchStep { groups: LayerGroups::of_sizes(&best), overlap };
                on_step(&step);
                steps.push(step);
                sizes = best;
            }
            _ => return Ok(steps),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Every layer that is not the first of its group loses its own share.
    #[test]
    fn the_search_joins_what_loses_least_and_stops_in_time() {
        let losses = [0.0, 0.5, 0.02, 0.01, 0.03, 0.2];
        let overlaps = |candidates: Vec<LayerGroups>| {
            let of = |groups: &LayerGroups| {
                1.0 - groups
                    .iter()
                    .map(|g| losses[g.start + 1..g.end].iter().sum::<f64>())
                    .sum::<f64>()
            };
            Ok::<_, Infallible>(candidates.iter().map(of).collect())
        };
        let found = |largest, least| {
            let steps = search(6, largest, least, overlaps, &mut |_| ()).unwrap();
            steps.last().unwrap().groups.to_string()
        };
        assert_eq!(found(4, 0.9), "0,1-4,5");
        assert_eq!(found(4, 0.985), "0,1,2-3,4,5");
        assert_eq!(found(4, 0.999), "0,1,2,3,4,5");
        assert_eq!(found(2, 0.9), "0,1,2-3,4,5");
        assert_eq!(found(9, 0.0), "0-5");
        assert_eq!(found(1, 0.0), "0,1,2,3,4,5");
        let told = &mut Vec::new();
        search(6, 4, 0.9, overlaps, &mut |step| told.push(step.groups.to_string())).unwrap();
        assert_eq!(*told, ["0,1,2-3,4,5", "0,1-3,4,5", "0,1-4,5"]);
        assert_eq!(search(1, 4, 0.0, overlaps, &mut |_| ()).unwrap().len(), 1);
    }
}

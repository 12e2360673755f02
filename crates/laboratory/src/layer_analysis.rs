//! Analysis of layer-parallel drafters (EasySpec): what each grouping of layers loses in accuracy
//! and saves in time, and a search for a good grouping.

use forerun::{ForerunError, Loader, ModelSource};
use forerun_core::TokenId;
use forerun_cpu::Weights;
use forerun_cpu::layer_probe::{LayerProbe, Strategy, StrategyScore};
use forerun_cpu::{GroupParallelism, Isa, Team, Transformer};
use forerun_formats::Config;
use forerun_formats::{ModelTypes, WeightTypes};
use forerun_lm::{LayerGroups, LayerGroupsError, LayerOrder, ModelError};
use forerun_model::ModelProbe;
use std::sync::Arc;
use std::time::Instant;

/// The number of tokens in the cache while the time of passes is measured.
const PAST: usize = 128;

/// The number of barriers that are measured.
const BARRIERS: usize = 1001;

/// The options of [`LayerAnalysis::open`].
#[derive(Clone, Debug)]
pub struct LayerAnalysisOptions {
    /// The drafter's checkpoint.
    pub model: ModelSource,
    /// A target with the same vocabulary, to compute acceptance.
    pub target: Option<ModelSource>,
    /// The type in which weight matrices are kept. `None` is each checkpoint's own.
    pub weight_type: Option<WeightTypes>,
    /// The number of approximate rows after every exact one: a draft's depth without its first
    /// level.
    pub depth: usize,
    /// The maximum number of tokens of each text.
    pub max_tokens: usize,
}

/// Why layers cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum LayerAnalysisError {
    /// A model or its tokenizer cannot be opened.
    #[error(transparent)]
    Open(Box<ForerunError>),
    /// The target has another vocabulary.
    #[error(
        "the target {target} has another vocabulary than the model {model}: distributions over \
         different tokens cannot be compared, so choose a target with the model's tokenizer"
    )]
    Vocabulary {
        /// The target.
        target: ModelSource,
        /// The model.
        model: ModelSource,
    },
    /// A layer has no queries, keys and values.
    #[error(
        "{model} has recurrent layers, which have no queries, keys and values to compare; analyse a model with \
         attention in all layers"
    )]
    Recurrent {
        /// The model.
        model: ModelSource,
    },
    /// All texts are too short.
    #[error("no prompt has two tokens: give longer ones, so that there are rows to compare")]
    NoRows,
    /// The layer groups do not fit the model.
    #[error(transparent)]
    LayerGroups(#[from] LayerGroupsError),
    /// A forward pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<ForerunError> for LayerAnalysisError {
    fn from(error: ForerunError) -> Self {
        Self::Open(Box::new(error))
    }
}

/// A loaded drafter, and the texts on which layer groupings are compared.
///
/// ```no_run
/// use forerun::cpu::Team;
/// use forerun::draft::LayerGroups;
/// use forerun_laboratory::{LayerAnalysis, LayerAnalysisOptions, Strategy};
/// use std::sync::Arc;
///
/// let options = LayerAnalysisOptions {
///     model: "models/drafter".into(),
///     target: None,
///     weight_type: None,
///     depth: 4,
///     max_tokens: 256,
/// };
/// let analysis = LayerAnalysis::open(&options, &["A text of the domain.".into()])?;
/// let groups = LayerGroups::parallel(analysis.config().num_hidden_layers, 4);
/// let strategies = vec![Strategy { groups, whole_layers: false }];
/// let team = Arc::new(Team::single_thread());
/// let report = analysis.compare(&team, strategies, |done, texts| println!("{done} of {texts}"))?;
/// println!("overlap with exact rows: {:.3}", report.scores[0].overlap);
/// # Ok::<(), forerun_laboratory::LayerAnalysisError>(())
/// ```
pub struct LayerAnalysis {
    weights: Arc<Weights>,
    /// The drafter's configuration.
    config: Config,
    target: Option<Arc<Weights>>,
    texts: Vec<Vec<TokenId>>,
    depth: usize,
}

/// The scores of several strategies on the same rows.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// The number of approximate rows that were compared.
    pub rows: usize,
    /// The acceptance of exact rows, if there is a target.
    pub exact_acceptance: Option<f64>,
    /// The scores of the strategies, in their order.
    pub scores: Vec<StrategyScore>,
}

/// The cost of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCost {
    /// The time in milliseconds, the median of several passes.
    pub ms: f64,
    /// The number of barriers, at which all members of the team wait for each other.
    pub barriers: usize,
}

/// The costs of a forward pass with either way of sharing the attention of a group's layers among
/// the team.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCosts {
    /// The cost with [`GroupParallelism::Layers`].
    pub layers: PassCost,
    /// The cost with [`GroupParallelism::Products`].
    pub products: PassCost,
}

/// Measures the time of a barrier without work, in microseconds (median). This is the least that
/// one of the barriers of [`PassCost`] costs.
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

/// A step of [`LayerAnalysis::search`]: the groups that lost least.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchStep {
    /// The groups.
    pub groups: LayerGroups,
    /// The overlap (`1 − TV`) of rows computed with these groups and exact rows.
    pub overlap: f64,
}

impl LayerAnalysis {
    /// Loads the models and encodes the texts.
    ///
    /// # Errors
    /// If a model or tokenizer cannot be loaded, their vocabularies differ, or the texts are too
    /// short.
    pub fn open(
        options: &LayerAnalysisOptions,
        texts: &[String],
    ) -> Result<Self, LayerAnalysisError> {
        Isa::from_environment().map_err(ForerunError::from)?;
        let loader = &mut Loader::new();
        let model = loader.open(&options.model)?;
        let target = options.target.as_ref().map(|model| loader.open(model)).transpose()?;
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
        if config.recurrent.is_some() {
            return Err(LayerAnalysisError::Recurrent { model: options.model.clone() });
        }
        let mut encoded = Vec::new();
        for text in texts {
            let mut tokens = model.tokenizer.encode(text).map_err(ForerunError::from)?;
            tokens.truncate(options.max_tokens.min(room));
            encoded.extend((tokens.len() > 1).then_some(tokens));
        }
        if encoded.is_empty() {
            return Err(LayerAnalysisError::NoRows);
        }
        let types = ModelTypes { weights: options.weight_type, cache: None };
        let mut load = |model: &ModelSource, checkpoint| loader.load(model, checkpoint, types);
        let weights = load(&options.model, &model.checkpoint)?;
        let target = options.target.as_ref().zip(target.as_ref());
        let target = target.map(|(path, model)| load(path, &model.checkpoint)).transpose()?;
        let config = model.checkpoint.config().clone();
        Ok(Self { weights, config, target, texts: encoded, depth: options.depth })
    }

    /// Returns the drafter's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Compares the rows of each strategy with exact ones. `progress` receives the number of texts
    /// done and the number of all texts.
    ///
    /// # Errors
    /// If the groups do not fit the drafter, or a forward pass fails.
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

    /// Measures the costs of a pass over `rows` rows with each of the `groups`. Times are medians
    /// of `rounds` passes.
    #[must_use]
    pub fn pass_costs(
        &self,
        team: &Arc<Team>,
        groups: &[LayerGroups],
        rows: usize,
        rounds: usize,
    ) -> Vec<PassCosts> {
        let probe = |work| {
            let model = Transformer::new(Arc::clone(&self.weights), Arc::clone(team));
            ModelProbe::new(model.with_group_parallelism(work), PAST, rows)
        };
        let mut probes = [GroupParallelism::Layers, GroupParallelism::Products].map(probe);
        let mut times = vec![[const { Vec::new() }; 2]; groups.len()];
        let mut barriers = vec![[0; 2]; groups.len()];
        // Interleaved, so that disturbances affect all of them. The first round is a warm-up.
        for round in 0..=rounds {
            for (index, groups) in groups.iter().enumerate() {
                for (way, probe) in probes.iter_mut().enumerate() {
                    let before = team.runs();
                    let seconds = probe.run_in_order(rows, LayerOrder::Groups(groups));
                    barriers[index][way] = team.runs() - before;
                    times[index][way].extend((round > 0).then_some(1e3 * seconds));
                }
            }
        }
        let cost = |(times, barriers)| PassCost { ms: median(times), barriers };
        let costs = |(times, barriers): ([Vec<f64>; 2], [usize; 2])| {
            let [layer_times, product_times] = times;
            let [layer_barriers, product_barriers] = barriers;
            let layers = cost((layer_times, layer_barriers));
            PassCosts { layers, products: cost((product_times, product_barriers)) }
        };
        times.into_iter().zip(barriers).map(costs).collect()
    }

    /// Searches for groups of at most `largest` layers that keep an overlap of at least `least`
    /// with exact rows. Returns all steps; the last one has the proposed groups.
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

/// Starts with every layer alone, and repeatedly joins the two neighbouring groups that lose least,
/// while the overlap is at least `least` and no group is larger than `largest`.
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

    /// Every layer that is not the first of its group loses a fixed share.
    #[test]
    fn the_search_joins_the_groups_that_lose_least() {
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
        let reported = &mut Vec::new();
        search(6, 4, 0.9, overlaps, &mut |step| reported.push(step.groups.to_string())).unwrap();
        assert_eq!(*reported, ["0,1,2-3,4,5", "0,1-3,4,5", "0,1-4,5"]);
        assert_eq!(search(1, 4, 0.0, overlaps, &mut |_| ()).unwrap().len(), 1);
    }
}

//! Quality measurements on a text: what a weight type costs, and how close a drafter is to its
//! target.

use forerun::checkpoint::OpenModel;
use forerun::text::{DEFAULT_WINDOW, text_windows};
use forerun::{ForerunError, Loader, ModelSource};
use forerun_core::TokenId;
use forerun_cpu::ceiling::{CeilingOptions, CeilingProbe};
use forerun_cpu::quality::{Quality, QualityProbe};
use forerun_cpu::{Isa, Team, Weights};
use forerun_formats::{
    CacheType, Checkpoint, LoadError, MatrixTypes, ModelTypes, WeightType, WeightTypes,
};
use forerun_lm::ModelError;
use std::path::PathBuf;
use std::sync::Arc;

/// The options of [`QualityBench::open`].
#[derive(Clone, Debug)]
pub struct QualityOptions {
    /// The model.
    pub model: ModelSource,
    /// Weight types and mixes to compare with f32. F32 itself is always measured, and first.
    pub weight_types: Vec<WeightTypes>,
    /// The type of cached keys and values of these, also of a second f32. `None` is each one's
    /// default.
    pub cache_type: Option<CacheType>,
    /// Drafters with the model's vocabulary to compare with the model in f32. They keep their own
    /// types.
    pub draft_models: Vec<ModelSource>,
    /// The maximum number of tokens to predict. A longer text is cut.
    pub max_tokens: usize,
    /// The number of tokens that a model sees at a time. `None` is 512, or the context if that is
    /// shorter.
    pub window: Option<usize>,
}

/// Why the quality cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    /// A model, its tokenizer or its weights cannot be loaded.
    #[error(transparent)]
    Open(Box<ForerunError>),
    /// The text is empty.
    #[error("the text is empty: give some text to predict")]
    EmptyText,
    /// The text has only one token, so there is nothing to predict.
    #[error("the text is a single token for {tokenizer}: give a text of at least two tokens")]
    ShortText {
        /// The tokenizer's file.
        tokenizer: PathBuf,
    },
    /// The maximum number of tokens is 0.
    #[error("the number of tokens is 0, but it must be at least one")]
    NoTokens,
    /// The window is longer than a model's context, or has no token to predict.
    #[error(
        "the window is {window} tokens, but it must be 2 to {context}, the context of the model {model}"
    )]
    Window {
        /// The window in tokens.
        window: usize,
        /// The model's context length in tokens.
        context: usize,
        /// The model.
        model: ModelSource,
    },
    /// A drafter has another vocabulary.
    #[error(
        "the drafter {drafter} has another vocabulary than the model {model}: distributions over \
         different tokens cannot be compared, so choose a drafter with the model's tokenizer"
    )]
    Vocabulary {
        /// The drafter.
        drafter: ModelSource,
        /// The model.
        model: ModelSource,
    },
    /// A forward pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<LoadError> for QualityError {
    fn from(error: LoadError) -> Self {
        ForerunError::from(error).into()
    }
}

impl From<ForerunError> for QualityError {
    fn from(error: ForerunError) -> Self {
        Self::Open(Box::new(error))
    }
}

/// A model, its weight types and drafters, and the windows of a text, ready to be measured.
///
/// ```
/// use forerun::{RandomPair, WeightType};
/// use forerun::cpu::Team;
/// use forerun_laboratory::{QualityBench, QualityOptions, TypeQuality};
/// use std::sync::Arc;
///
/// let pair = RandomPair::make()?;
/// let options = QualityOptions {
///     model: pair.target().into(),
///     weight_types: vec![WeightType::INT8.into()],
///     cache_type: None,
///     draft_models: vec![pair.drafter().into()],
///     max_tokens: 64,
///     window: None,
/// };
/// let bench = QualityBench::open(&options, "Once upon a time, there was a small model.")?;
/// let report = bench.run(&Arc::new(Team::single_thread()), |_, _| ())?;
/// for TypeQuality { types, quality, .. } in &report.types {
///     println!("{types}: loss {:.4}, KL {:.2e}", quality.loss, quality.kl_divergence);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct QualityBench {
    checkpoint: Checkpoint,
    types: Vec<WeightTypes>,
    cache_type: Option<CacheType>,
    drafters: Vec<(ModelSource, Checkpoint)>,
    windows: Vec<Vec<TokenId>>,
    window: usize,
}

/// The quality of each choice of weight types and of each drafter on the same tokens.
#[derive(Clone, Debug)]
pub struct QualityReport {
    /// The number of tokens that each of them predicted.
    pub tokens: usize,
    /// The largest number of tokens that a model saw at a time.
    pub window: usize,
    /// The weight types: f32, then those of the options in their order, without duplicates.
    pub types: Vec<TypeQuality>,
    /// The drafters in the order of the options.
    pub drafters: Vec<(ModelSource, Quality)>,
}

/// The quality of a model whose matrices have these types.
#[derive(Clone, Copy, Debug)]
pub struct TypeQuality {
    /// The types.
    pub types: WeightTypes,
    /// The mean size of a weight of a matrix in a file, in bits.
    pub bits_per_weight: f64,
    /// The quality.
    pub quality: Quality,
}

impl QualityBench {
    /// Opens the models, encodes the text and cuts it into windows.
    ///
    /// # Errors
    /// If a model or its tokenizer cannot be opened, the text has nothing to predict, a drafter has
    /// another vocabulary, or the window does not fit a model's context.
    pub fn open(options: &QualityOptions, text: &str) -> Result<Self, QualityError> {
        Isa::from_environment().map_err(ForerunError::from)?;
        if text.is_empty() {
            return Err(QualityError::EmptyText);
        }
        if options.max_tokens == 0 {
            return Err(QualityError::NoTokens);
        }
        let target = Loader::new().open(&options.model)?;
        let mut drafters = Vec::new();
        for path in &options.draft_models {
            let drafter = Loader::new().open(path)?;
            let sizes = [&target, &drafter].map(|model| model.checkpoint.config().vocab_size);
            if !target.tokenizer.agrees_with(&drafter.tokenizer) || sizes[0] != sizes[1] {
                let (drafter, model) = (path.clone(), options.model.clone());
                return Err(QualityError::Vocabulary { drafter, model });
            }
            drafters.push((path.clone(), drafter.checkpoint));
        }
        let OpenModel { checkpoint, tokenizer } = target;
        let context = checkpoint.config().max_position_embeddings;
        let window = options.window.unwrap_or(DEFAULT_WINDOW.min(context));
        let of_drafters = drafters.iter().map(|(model, checkpoint)| (model, checkpoint));
        let checkpoints = [(&options.model, &checkpoint)].into_iter().chain(of_drafters);
        for (model, checkpoint) in checkpoints {
            let context = checkpoint.config().max_position_embeddings;
            if !(2..=context).contains(&window) {
                return Err(QualityError::Window { window, context, model: model.clone() });
            }
        }
        let windows = text_windows(&tokenizer, text, options.max_tokens, window)
            .map_err(ForerunError::from)?;
        if windows.is_empty() {
            return Err(QualityError::ShortText { tokenizer: tokenizer.file().to_owned() });
        }
        let mut types = vec![WeightTypes::from(WeightType::F32)];
        let cache_type = options.cache_type;
        // With a cache in another type, f32 is compared with itself.
        let first = usize::from(cache_type.is_some());
        for &chosen in &options.weight_types {
            if !types[first..].contains(&chosen) {
                types.push(chosen);
            }
        }
        Ok(Self { checkpoint, types, cache_type, drafters, windows, window })
    }

    /// Measures the ceiling of drafters that draft several tokens in one pass ([`CeilingProbe`]),
    /// with the model in its own types, after every 32nd token. Returns the mean overlap at each
    /// place, and its standard error. `progress` receives the number of measured texts, and their
    /// total number.
    ///
    /// # Errors
    /// If weights cannot be loaded, or a forward pass fails.
    ///
    /// # Panics
    /// As [`CeilingProbe::new`].
    pub fn ceiling(
        &self,
        team: &Arc<Team>,
        options: CeilingOptions,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<(f64, f64)>, QualityError> {
        const STEP: usize = 32;
        let context = self.checkpoint.config().max_position_embeddings;
        let mut probe =
            CeilingProbe::new(Arc::new(Weights::load(&self.checkpoint)?), team, options);
        let ends = |window: &[TokenId]| {
            (STEP..=window.len().min(context.saturating_sub(options.places))).step_by(STEP)
        };
        let all = self.windows.iter().map(|window| ends(window).count()).sum();
        let mut done = 0;
        for window in &self.windows {
            for end in ends(window) {
                probe.measure(&window[..end])?;
                done += 1;
                progress(done, all);
            }
            probe.release();
        }
        Ok(probe.overlaps())
    }

    /// Measures every weight type and drafter on every window. The model in f32 and one other model
    /// are in memory at a time. `progress` receives the number of tokens predicted so far by all of
    /// them, and the number that they will predict.
    ///
    /// # Errors
    /// If weights cannot be loaded, or a forward pass fails.
    pub fn run(
        self,
        team: &Arc<Team>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<QualityReport, QualityError> {
        let tokens: usize = self.windows.iter().map(|window| window.len() - 1).sum();
        let all = tokens * (self.types.len() + self.drafters.len());
        let mut done = 0;
        let exact = Arc::new(Weights::load_as(&self.checkpoint, WeightType::F32)?);
        let mut measure = |weights: Arc<Weights>| {
            let mut probe = QualityProbe::new([Arc::clone(&exact), weights], team);
            for window in &self.windows {
                progress(done + probe.tokens(), all);
                probe.score(window)?;
            }
            done += probe.tokens();
            progress(done, all);
            Ok::<_, QualityError>(probe.qualities()[1])
        };
        let architecture = self.checkpoint.architecture();
        let types = self.types.iter().enumerate().map(|(index, &types)| {
            let matrices = MatrixTypes::of_model(Some(types), architecture, &self.checkpoint)?;
            let bits_per_weight = matrices.bits_per_weight(architecture);
            let model_types = ModelTypes { weights: Some(types), cache: self.cache_type };
            let weights = match index {
                0 => Arc::clone(&exact),
                _ => Arc::new(Weights::load_as(&self.checkpoint, model_types)?),
            };
            Ok(TypeQuality { types, bits_per_weight, quality: measure(weights)? })
        });
        let types = types.collect::<Result<_, QualityError>>()?;
        let drafters = self.drafters.iter().map(|(model, checkpoint)| {
            Ok((model.clone(), measure(Arc::new(Weights::load(checkpoint)?))?))
        });
        let drafters = drafters.collect::<Result<_, QualityError>>()?;
        Ok(QualityReport { tokens, window: self.window, types, drafters })
    }
}

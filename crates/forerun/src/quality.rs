//! Quality measurements on a text: what a weight type costs, and how close a drafter is to its target.

use crate::error::ForerunError;
use crate::loader::Loader;
use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_model};
use crate::tokenizer::{Tokenizer, TokenizerError};
use forerun_core::TokenId;
use forerun_cpu::quality::{Quality, QualityProbe};
use forerun_cpu::{Isa, Team, Weights};
use forerun_formats::WeightType;
use forerun_lm::ModelError;
use std::path::PathBuf;
use std::sync::Arc;

/// The default window in tokens, if the context allows it.
const DEFAULT_WINDOW: usize = 512;

/// The number of bytes that are encoded first for each wanted token.
const BYTES_PER_TOKEN: usize = 16;

/// The number of tokens before a cut that are not used, since the whole text may have other tokens there.
const MARGIN: usize = 16;

/// The options of [`QualityBench::open`].
#[derive(Clone, Debug)]
pub struct QualityOptions {
    /// The model.
    pub model: ModelSource,
    /// Weight types to compare with f32. F32 itself is always measured, and first.
    pub weight_types: Vec<WeightType>,
    /// Drafters with the model's vocabulary to compare with the model in f32. They keep their own types.
    pub draft_models: Vec<ModelSource>,
    /// The maximum number of tokens to predict. A longer text is cut.
    pub max_tokens: usize,
    /// The number of tokens that a model sees at a time. `None` is 512, or the context if that is
    /// shorter.
    pub window: Option<usize>,
}

impl<E: Into<ForerunError>> From<E> for QualityError {
    fn from(error: E) -> Self {
        Self::Open(Box::new(error.into()))
    }
}

/// Why the quality cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    /// A model or its tokenizer cannot be opened.
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

/// A model loaded in several weight types, and the windows of a text, ready to be measured.
///
/// ```
/// use forerun::{QualityBench, QualityOptions, RandomPair, Team, WeightType};
/// use std::sync::Arc;
///
/// let pair = RandomPair::make()?;
/// let options = QualityOptions {
///     model: pair.target().into(),
///     weight_types: vec![WeightType::INT8],
///     draft_models: vec![pair.drafter().into()],
///     max_tokens: 64,
///     window: None,
/// };
/// let bench = QualityBench::open(&options, "Once upon a time, there was a small model.")?;
/// let report = bench.run(&Arc::new(Team::single_thread()), |_, _| ())?;
/// for (weight_type, quality) in &report.types {
///     println!("{weight_type}: loss {:.4}, KL {:.2e}", quality.loss, quality.kl_divergence);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct QualityBench {
    types: Vec<WeightType>,
    weights: Vec<Weights>,
    draft_models: Vec<ModelSource>,
    windows: Vec<Vec<TokenId>>,
    window: usize,
}

/// The quality of each weight type and drafter on the same tokens.
#[derive(Clone, Debug)]
pub struct QualityReport {
    /// The number of tokens that each of them predicted.
    pub tokens: usize,
    /// The largest number of tokens that a model saw at a time.
    pub window: usize,
    /// The weight types: f32, then those of the options in their order, without duplicates.
    pub types: Vec<(WeightType, Quality)>,
    /// The drafters in the order of the options.
    pub drafters: Vec<(ModelSource, Quality)>,
}

impl QualityBench {
    /// Encodes the text, cuts it into windows, and loads the model in every weight type.
    ///
    /// # Errors
    /// If a model or its tokenizer cannot be loaded, the text has nothing to predict, a drafter has
    /// another vocabulary, or the window does not fit a model's context. Options are checked before
    /// weights are loaded.
    pub fn open(options: &QualityOptions, text: &str) -> Result<Self, QualityError> {
        Isa::from_environment()?;
        if text.is_empty() {
            return Err(QualityError::EmptyText);
        }
        if options.max_tokens == 0 {
            return Err(QualityError::NoTokens);
        }
        let target = open_model(&options.model, &mut Loader::new())?;
        let mut drafters = Vec::new();
        for path in &options.draft_models {
            let drafter = open_model(path, &mut Loader::new())?;
            let sizes = [&target, &drafter].map(|model| model.checkpoint.config().vocab_size);
            if !target.tokenizer.agrees_with(&drafter.tokenizer) || sizes[0] != sizes[1] {
                let (drafter, model) = (path.clone(), options.model.clone());
                return Err(QualityError::Vocabulary { drafter, model });
            }
            drafters.push(drafter.checkpoint);
        }
        let OpenModel { checkpoint, tokenizer } = target;
        let context = checkpoint.config().max_position_embeddings;
        let window = options.window.unwrap_or(DEFAULT_WINDOW.min(context));
        let drafter_checkpoints = options.draft_models.iter().zip(&drafters);
        let checkpoints = [(&options.model, &checkpoint)].into_iter().chain(drafter_checkpoints);
        for (model, checkpoint) in checkpoints {
            let context = checkpoint.config().max_position_embeddings;
            if !(2..=context).contains(&window) {
                return Err(QualityError::Window { window, context, model: model.clone() });
            }
        }
        let tokens = first_tokens(&tokenizer, text, options.max_tokens.saturating_add(1))?;
        if tokens.len() < 2 {
            return Err(QualityError::ShortText { tokenizer: tokenizer.file().to_owned() });
        }
        let windows = windows(&tokens, bos(&tokenizer, &tokens)?, window);
        let mut types = vec![WeightType::F32];
        for &weight_type in &options.weight_types {
            if !types.contains(&weight_type) {
                types.push(weight_type);
            }
        }
        let load = |weight_type| Weights::load_as(&checkpoint, weight_type);
        let weights = types.iter().copied().map(load).chain(drafters.iter().map(Weights::load));
        let weights = weights.collect::<Result<_, _>>()?;
        Ok(Self { types, weights, draft_models: options.draft_models.clone(), windows, window })
    }

    /// Measures every weight type and drafter on every window. `progress` receives the number of tokens
    /// predicted so far and the number of all tokens.
    ///
    /// # Errors
    /// If a forward pass fails.
    pub fn run(
        self,
        team: &Arc<Team>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<QualityReport, QualityError> {
        let n_types = self.types.len();
        let mut probe = QualityProbe::new(self.weights.into_iter().map(Arc::new), team);
        let all = self.windows.iter().map(|window| window.len() - 1).sum();
        for window in &self.windows {
            progress(probe.tokens(), all);
            probe.score(window)?;
        }
        progress(probe.tokens(), all);
        let qualities = probe.qualities();
        let drafters = self.draft_models.into_iter().zip(qualities[n_types..].iter().copied());
        Ok(QualityReport {
            tokens: probe.tokens(),
            window: self.window,
            drafters: drafters.collect(),
            types: self.types.into_iter().zip(qualities).collect(),
        })
    }
}

/// Returns the first `most` tokens of a text, without encoding much more than they need.
fn first_tokens(
    tokenizer: &Tokenizer,
    text: &str,
    most: usize,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut bytes = most.saturating_mul(BYTES_PER_TOKEN);
    loop {
        let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
        let part = &text[..end.unwrap_or(0)];
        let mut tokens = tokenizer.encode(part)?;
        if part.len() == text.len() || tokens.len() >= most.saturating_add(MARGIN) {
            tokens.truncate(most);
            return Ok(tokens);
        }
        bytes = bytes.saturating_mul(2);
    }
}

/// Returns the token that the tokenizer puts in front of every text, if any.
fn bos(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Result<Option<TokenId>, TokenizerError> {
    let empty = tokenizer.encode("")?;
    Ok(empty.first().copied().filter(|bos| tokens.first() == Some(bos)))
}

/// Cuts tokens into windows in which every token but the first is predicted exactly once. Each window
/// begins with BOS, or, without BOS, with the last token of the previous window.
fn windows(tokens: &[TokenId], bos: Option<TokenId>, window: usize) -> Vec<Vec<TokenId>> {
    let starts = (1..tokens.len()).step_by(window - 1);
    let cut = |start: usize| {
        let predicted = &tokens[start..tokens.len().min(start + window - 1)];
        [&[bos.unwrap_or(tokens[start - 1])], predicted].concat()
    };
    starts.map(cut).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::RandomPair;

    #[test]
    fn windows_predict_every_token_but_the_first_once() {
        let tokens = [9, 1, 2, 3, 4, 5];
        let expected = [vec![9, 1, 2], vec![2, 3, 4], vec![4, 5]];
        assert_eq!(windows(&tokens, None, 3), expected);
        let expected = [vec![9, 1, 2], vec![9, 3, 4], vec![9, 5]];
        assert_eq!(windows(&tokens, Some(9), 3), expected);
        assert_eq!(windows(&tokens, None, 6), [tokens]);
        assert_eq!(windows(&tokens[..2], None, 6), [[9, 1]]);
        assert_eq!(windows(&tokens[..3], None, 2), [[9, 1], [1, 2]]);
    }

    /// The text is cut between and within characters.
    #[test]
    fn the_first_tokens_are_those_of_the_whole_text() {
        let pair = RandomPair::make().unwrap();
        let tokenizer = Tokenizer::from_checkpoint(pair.target()).unwrap();
        let text = "Ein Fuß, zwei Füße – 😀. ".repeat(40);
        let whole = tokenizer.encode(&text).unwrap();
        assert_eq!(bos(&tokenizer, &whole).unwrap(), Some(whole[0]));
        for most in [1, 2, 3, 50, 51, whole.len() - 1, whole.len()] {
            assert_eq!(first_tokens(&tokenizer, &text, most).unwrap(), whole[..most]);
        }
        assert_eq!(first_tokens(&tokenizer, &text, usize::MAX).unwrap(), whole);
    }
}

//! How a checkpoint's makers suggest to sample from it.

use crate::json_options::JsonOptions;
use crate::load_error::LoadError;

/// The sampling that a `generation_config.json` suggests. It is offered, never applied unasked:
/// without a caller's word decoding stays greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuggestedSampling {
    /// 1 where the file names none.
    pub temperature: f32,
    /// Only the `top_k` most probable tokens; 0, which keeps all, where the file names none.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this mass; 1, which keeps all, where the
    /// file names none.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the most probable one; 0, which keeps all,
    /// where the file names none.
    pub min_p: f32,
    /// Discourages tokens of prompt and answer where above 1; 1, which does nothing, where the file
    /// names none.
    pub repetition_penalty: f32,
}

impl SuggestedSampling {
    /// `None` unless the file says `"do_sample": true`. As in vLLM, and other than in transformers
    /// (whose own `top_k` is 50), an option that the file does not name limits nothing.
    pub(super) fn read(options: &JsonOptions<'_>) -> Result<Option<Self>, LoadError> {
        let suggestion = Self {
            temperature: options.number("temperature")?.unwrap_or(1.0),
            top_k: options.size("top_k")?.unwrap_or(0),
            top_p: options.number("top_p")?.unwrap_or(1.0),
            min_p: options.number("min_p")?.unwrap_or(0.0),
            repetition_penalty: options.number("repetition_penalty")?.unwrap_or(1.0),
        };
        let samples = options.flag("do_sample")?.unwrap_or(false);
        Ok(samples.then_some(suggestion))
    }
}

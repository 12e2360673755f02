//! The sampling options that a checkpoint's authors suggest.

use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use std::fmt;

/// The sampling that a `generation_config.json` suggests. It is applied only if a caller requests
/// it; otherwise decoding is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuggestedSampling {
    /// The temperature. Default: 1.
    pub temperature: f32,
    /// Keeps only the `top_k` most probable tokens. Default: 0, which keeps all.
    pub top_k: usize,
    /// Keeps only the most probable tokens that together reach this probability. Default: 1, which
    /// keeps all.
    pub top_p: f32,
    /// Keeps only tokens at least `min_p` times as probable as the most probable one. Default: 0,
    /// which keeps all.
    pub min_p: f32,
    /// Makes tokens of the prompt and the answer less probable if above 1. Default: 1, which has no
    /// effect.
    pub repetition_penalty: f32,
}

impl SuggestedSampling {
    /// The sampling of chats where the checkpoint suggests none: the defaults of llama.cpp.
    /// Without filters, a small model soon writes gibberish; a greedy one repeats itself.
    pub const MODERATE: Self =
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repetition_penalty: 1.0 };

    /// Reads the suggestion. Returns `None` unless the file contains `"do_sample": true`. Absent
    /// options have no effect, as in vLLM. In transformers the default of `top_k` is 50 instead.
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

/// The options that have an effect, as in `temperature 0.8, top-k 40`.
impl fmt::Display for SuggestedSampling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty } = *self;
        if temperature == 0.0 {
            formatter.write_str("greedy")?;
        } else {
            write!(formatter, "temperature {temperature}")?;
            if top_k > 0 {
                write!(formatter, ", top-k {top_k}")?;
            }
            if top_p < 1.0 {
                write!(formatter, ", top-p {top_p}")?;
            }
            if min_p > 0.0 {
                write!(formatter, ", min-p {min_p}")?;
            }
        }
        if repetition_penalty != 1.0 {
            write!(formatter, ", repetition penalty {repetition_penalty}")?;
        }
        Ok(())
    }
}

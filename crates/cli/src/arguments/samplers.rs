//! Options of the samplers that llama.cpp has besides temperature, top-k, top-p and min-p.

use super::headings::SAMPLING;
use clap::Args;
use forerun::SamplingOptions;

/// Options of further samplers, with the names and defaults of llama.cpp.
#[derive(Args, Debug)]
pub(crate) struct SamplerArguments {
    /// Sample among the tokens whose surprise is nearest to the expected one, as many as together
    /// have probability P; 1 keeps all.
    #[arg(long, alias = "typical", value_name = "P", default_value_t = 1.0, help_heading = SAMPLING)]
    typical_p: f32,

    /// Sample among the tokens whose logits are within N standard deviations of the largest one; 0
    /// keeps all.
    #[arg(
        long,
        alias = "top-nsigma",
        value_name = "N",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        help_heading = SAMPLING
    )]
    top_n_sigma: f32,

    /// Probability P with which XTC excludes all but the least probable of the top choices.
    #[arg(long, value_name = "P", default_value_t = 0.0, help_heading = SAMPLING)]
    xtc_probability: f32,

    /// The least probability of XTC's top choices.
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.1,
        requires = "xtc_probability",
        help_heading = SAMPLING
    )]
    xtc_threshold: f32,

    /// Let the temperature follow the entropy of the next token, up to R below and above
    /// `--temperature`; 0 keeps it constant.
    #[arg(long, value_name = "R", default_value_t = 0.0, help_heading = SAMPLING)]
    dynatemp_range: f32,

    /// Exponent of the entropy for `--dynatemp-range`.
    #[arg(
        long,
        alias = "dynatemp-exp",
        value_name = "X",
        default_value_t = 1.0,
        requires = "dynatemp_range",
        help_heading = SAMPLING
    )]
    dynatemp_exponent: f32,

    /// DRY penalty M for a token that continues a repetition; 0 disables it.
    ///
    /// A repetition of N tokens costs `M * base^(N - allowed length)`.
    #[arg(long, value_name = "M", default_value_t = 0.0, help_heading = SAMPLING)]
    dry_multiplier: f32,

    /// Base of the DRY penalty.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.75,
        requires = "dry_multiplier",
        help_heading = SAMPLING
    )]
    dry_base: f32,

    /// Number of tokens that may repeat without a DRY penalty.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        requires = "dry_multiplier",
        help_heading = SAMPLING
    )]
    dry_allowed_length: usize,

    /// Number of last tokens in which the DRY penalty looks for repetitions; -1 looks at all.
    #[arg(
        long,
        value_name = "N",
        default_value_t = -1,
        value_parser = clap::value_parser!(i64).range(-1..),
        requires = "dry_multiplier",
        allow_negative_numbers = true,
        help_heading = SAMPLING
    )]
    dry_penalty_last_n: i64,

    /// Text across which the DRY penalty counts no repetition, instead of a line break, `:`, `"` and
    /// `*`; `none` is no text. May be given several times.
    #[arg(
        long,
        alias = "dry-sequence-breaker",
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "dry_multiplier",
        help_heading = SAMPLING
    )]
    dry_sequence_breakers: Vec<String>,
}

impl SamplerArguments {
    /// Writes the options to those of an answer.
    pub(crate) fn apply(&self, sampling: &mut SamplingOptions) {
        sampling.typical_p = self.typical_p;
        sampling.top_n_sigma = self.top_n_sigma;
        sampling.xtc_probability = self.xtc_probability;
        sampling.xtc_threshold = self.xtc_threshold;
        sampling.dynatemp_range = self.dynatemp_range;
        sampling.dynatemp_exponent = self.dynatemp_exponent;
        let dry = &mut sampling.dry;
        dry.multiplier = self.dry_multiplier;
        dry.base = self.dry_base;
        dry.allowed_length = self.dry_allowed_length;
        dry.penalty_last_n = usize::try_from(self.dry_penalty_last_n).ok();
        if !self.dry_sequence_breakers.is_empty() {
            let breakers = self.dry_sequence_breakers.iter().filter(|text| *text != "none");
            dry.sequence_breakers = breakers.cloned().collect();
        }
    }
}

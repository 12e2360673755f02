//! The architectures of llama.cpp that are read, and what each of them computes without an option.

use super::mixture;
use super::options::ModelOptions;
use crate::architecture::{Norm, QkNorms};
use crate::config::{Config, Family};
use crate::load_error::LoadError;

/// The order of the rows of queries and keys: that of the pairs that RoPE rotates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairs {
    /// (2i, 2i + 1).
    Neighbours,
    /// (i, i + dims/2).
    Halves,
}

/// An architecture of llama.cpp.
pub(super) struct GgufArchitecture {
    /// The value of `general.architecture`, with which the model's options begin.
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) pairs: Pairs,
    pub(super) norm: Norm,
    /// The sliding window of files that do not give its size.
    pub(super) window: Option<usize>,
    /// The last of so many layers has no window.
    pub(super) window_period: Option<usize>,
    /// Whether RoPE may rotate a part of each head.
    pub(super) partial_rope: bool,
    /// Options that the architecture reads, among those that most do not compute.
    pub(super) reads: &'static [&'static str],
}

const fn architecture(name: &'static str, family: Family, pairs: Pairs) -> GgufArchitecture {
    GgufArchitecture {
        name,
        family,
        pairs,
        norm: Norm::Rms,
        window: None,
        window_period: None,
        partial_rope: false,
        reads: &[],
    }
}

const EXPERTS: &[&str] = &["expert_count", "expert_used_count"];

/// All architectures.
const ARCHITECTURES: &[GgufArchitecture] = &[
    architecture("llama", Family::Llama, Pairs::Neighbours),
    GgufArchitecture {
        reads: EXPERTS,
        ..architecture("llama", Family::Mixtral, Pairs::Neighbours)
    },
    architecture("qwen2", Family::Qwen2, Pairs::Halves),
    GgufArchitecture {
        reads: &[
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_shared_feed_forward_length",
        ],
        ..architecture("qwen2moe", Family::Qwen2Moe, Pairs::Halves)
    },
    architecture("qwen3", Family::Qwen3, Pairs::Halves),
    GgufArchitecture {
        reads: EXPERTS,
        ..architecture("qwen3moe", Family::Qwen3Moe, Pairs::Halves)
    },
    GgufArchitecture {
        window_period: Some(2),
        reads: EXPERTS,
        ..architecture("gpt-oss", Family::GptOss, Pairs::Halves)
    },
];

impl GgufArchitecture {
    /// Returns the architecture with this name, if it is read. Some have a variant with experts.
    pub(super) fn named(name: &str, has_experts: bool) -> Option<&'static Self> {
        let mut found = ARCHITECTURES.iter().filter(|architecture| architecture.name == name);
        let first = found.next()?;
        Some(found.next().filter(|_| has_experts).unwrap_or(first))
    }

    /// Returns the names of all architectures, for messages.
    pub(super) fn all_names() -> String {
        let mut names: Vec<String> =
            ARCHITECTURES.iter().map(|architecture| format!("\"{}\"", architecture.name)).collect();
        names.dedup();
        names.join(", ")
    }

    /// Sets what the architecture computes beyond a plain Llama.
    pub(super) fn adapt(
        &self,
        options: &ModelOptions<'_>,
        config: &mut Config,
    ) -> Result<(), LoadError> {
        match self.family {
            Family::Qwen3 | Family::Qwen3Moe => config.qk_norms = QkNorms::Heads,
            Family::GptOss => config.sinks = true,
            _ => {}
        }
        config.experts = mixture::read(options, self.family, config)?;
        Ok(())
    }
}

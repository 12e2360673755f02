//! The types of a model's numbers.

use super::headings::MODEL;
use super::values::{self, ChosenCacheType, ChosenTypes};
use clap::Args;

/// The type of a model's weights.
#[derive(Args, Clone, Debug)]
pub(crate) struct WeightTypeArguments {
    /// Type of the weights in memory; mixes are llama.cpp's.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_parser = values::weight_types_or_auto(),
        help_heading = MODEL
    )]
    pub(crate) dtype: ChosenTypes,
}

/// The type of a model's cache.
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheTypeArguments {
    /// Type of the cached keys and values.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_parser = values::cache_type_or_auto(),
        help_heading = MODEL
    )]
    pub(crate) kv_type: ChosenCacheType,
}

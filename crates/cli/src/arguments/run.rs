//! Options of `forerun run`.

use super::{ChatArguments, values};
use clap::Args;
use forerun::ModelSource;

/// Options of `forerun run`.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Model: a hub id such as `owner/name` or `owner/name:Q4_K_M`, a GGUF file, a Hugging Face
    /// directory, or `demo`, the built-in demonstration pair
    #[arg(value_name = "MODEL", value_parser = values::named_model)]
    pub(crate) name: Option<ModelSource>,

    /// Message to answer. Without one, and without piped text, a chat begins.
    ///
    /// Text that is piped in comes before the message.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,

    #[command(flatten)]
    pub(crate) chat: ChatArguments,
}

//! Options of `forerun run`.

use super::ChatArguments;
use super::headings::OUTPUT;
use clap::Args;

/// Options of `forerun run`.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    // The model is the first word, so it stands before the prompt.
    #[command(flatten)]
    pub(crate) chat: ChatArguments,

    /// Message to answer. Without one, and without piped text, a chat begins.
    ///
    /// Text that is piped in comes before the message.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,

    /// Print one JSON object instead of text, as `forerun generate --json` does. Needs a prompt.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

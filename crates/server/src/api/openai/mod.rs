//! OpenAI's API.

pub(crate) mod body;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod envelope;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod responses;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod system_messages;
mod token_details;
pub(crate) mod tools;

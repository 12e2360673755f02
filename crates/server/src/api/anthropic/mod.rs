//! Anthropic's Messages API.

mod messages;
mod request;

pub(crate) use messages::{count_tokens, messages};

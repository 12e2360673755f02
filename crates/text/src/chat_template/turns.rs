//! Conversations that are longer than a model's context.

use super::EncodeError;
use super::message::Message;
use forerun_core::TokenId;

/// Encodes the latest turns of a conversation, as many as fit into `most` tokens. A turn begins
/// with a message of the user. The last turn and all system messages stay, also if they do not fit.
///
/// `encode` encodes messages. Returns the tokens, and the number of messages that are left out.
///
/// # Errors
/// If `encode` fails, apart from a text that is too long while there are turns to leave out.
pub fn encode_latest_turns(
    messages: &[Message],
    most: usize,
    encode: impl Fn(Vec<Message>) -> Result<Vec<TokenId>, EncodeError>,
) -> Result<(Vec<TokenId>, usize), EncodeError> {
    let is_system = |message: &&Message| message.role == "system";
    let first = messages.iter().take_while(is_system).count();
    let later = (first + 1..messages.len()).filter(|index| messages[*index].role == "user");
    let starts: Vec<usize> = [first].into_iter().chain(later).collect();
    let from = |turn: usize| {
        let (before, rest) = messages.split_at(starts[turn]);
        encode(before.iter().filter(is_system).chain(rest).cloned().collect())
    };
    let whole = from(0);
    let mut enough = starts.len() - 1;
    match &whole {
        Ok(tokens) if tokens.len() > most && enough > 0 => {}
        Err(EncodeError::TooLong { .. }) if enough > 0 => {}
        _ => return Ok((whole?, 0)),
    }
    let mut too_few = 0;
    let mut latest = from(enough)?;
    while latest.len() <= most && too_few + 1 < enough {
        let turn = too_few.midpoint(enough);
        match from(turn) {
            Ok(tokens) if tokens.len() <= most => (latest, enough) = (tokens, turn),
            _ => too_few = turn,
        }
    }
    let left_out = messages[..starts[enough]].iter().filter(|message| !is_system(message)).count();
    Ok((latest, left_out))
}

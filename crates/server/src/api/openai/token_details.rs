//! The extension `token_details`: where each token of an answer comes from, and what the devices
//! did meanwhile.

use super::logprobs::finite;
use crate::api::answers::Collected;
use forerun::text::Tokenizer;
use forerun::trace::Trace;
use forerun::{Answer, AnswerToken, TokenOrigin, VerificationRecord};
use serde_json::{Map, Value, json};

/// Returns where the tokens of a streamed part come from. `text` is the text of the part.
pub(super) fn token_details(tokens: &[AnswerToken], text: &str, tokenizer: &Tokenizer) -> Value {
    json!({"tokens": details(tokens, text, tokenizer)})
}

/// Adds to each choice of a whole response where its tokens come from.
pub(super) fn add_tokens(choices: &mut Value, collected: &[Collected], tokenizer: &Tokenizer) {
    let choices = choices.as_array_mut().into_iter().flatten();
    for (choice, collected) in choices.zip(collected) {
        let parts = collected.tokens.iter();
        let tokens = parts.flat_map(|(text, tokens)| details(tokens, text, tokenizer));
        choice["forerun"] = json!({"tokens": tokens.collect::<Vec<_>>()});
    }
}

fn details(tokens: &[AnswerToken], text: &str, tokenizer: &Tokenizer) -> Vec<Value> {
    let piece = |token: &AnswerToken| match token.ends_answer {
        true => String::new(),
        false => tokenizer.piece(token.token),
    };
    let mut pieces: Vec<String> = tokens.iter().map(piece).collect();
    if pieces.concat() != text {
        // A character of several tokens belongs to the last of them, but not to the end of the
        // answer.
        pieces.fill(String::new());
        let last = tokens.iter().rposition(|token| !token.ends_answer);
        if let Some(last) = last.and_then(|last| pieces.get_mut(last)) {
            text.clone_into(last);
        }
    }
    let tokens = tokens.iter().zip(pieces).map(|(token, text)| {
        let mut value = json!({
            "id": token.token,
            "text": text,
            "origin": origin_name(token.origin),
            "round": token.round,
        });
        if let Some(logprob) = &token.logprob {
            value["logprob"] = finite(logprob.logprob);
        }
        value
    });
    tokens.collect()
}

fn origin_name(origin: TokenOrigin) -> &'static str {
    match origin {
        TokenOrigin::Draft => "draft",
        TokenOrigin::Correction => "correction",
        TokenOrigin::Bonus => "bonus",
        TokenOrigin::Plain => "plain",
    }
}

/// Adds the rounds and the timeline of each answer to the statistics of the choices.
pub(super) fn add_measurements<'a>(
    statistics: &mut Value,
    answers: impl IntoIterator<Item = &'a Answer>,
    tokenizer: &Tokenizer,
) {
    let choices = statistics["choices"].as_array_mut().into_iter().flatten();
    for (choice, answer) in choices.zip(answers) {
        choice["tested_by_position"] = json!(answer.statistics.tested);
        choice["accepted_by_position"] = json!(answer.statistics.accepted);
        choice["rounds"] = rounds(answer, tokenizer);
        choice["timeline"] = timeline(&answer.trace);
    }
}

/// Returns the outcome of each verification, with the time at which its tokens were committed.
fn rounds(answer: &Answer, tokenizer: &Tokenizer) -> Value {
    let mut committed = 0;
    let rounds = answer.verifications.iter().map(|record| {
        let at_ns = commit_time(answer, committed);
        committed += record.committed;
        round(record, at_ns, tokenizer)
    });
    rounds.collect()
}

fn round(record: &VerificationRecord, at_ns: u64, tokenizer: &Tokenizer) -> Value {
    let rejected = record.rejected.iter().map(|&token| tokenizer.piece(token));
    json!({
        "at_ns": at_ns,
        "tested": record.accepted + usize::from(!record.rejected.is_empty()),
        "accepted": record.accepted,
        "committed": record.committed,
        "rejected": rejected.collect::<Vec<_>>(),
    })
}

/// Returns when the token with this number was committed, or else the end of the answer.
fn commit_time(answer: &Answer, number: usize) -> u64 {
    let mut end = 0;
    let commit = answer.commits.iter().find(|commit| {
        end += commit.tokens;
        number < end
    });
    commit.map_or(answer.total_ns, |commit| commit.at_ns)
}

/// Returns what each device did for the answer, or null if the workers do not record it.
fn timeline(trace: &Trace) -> Value {
    let Trace { lanes, spans, .. } = trace.with_devices_as_lanes();
    if spans.is_empty() {
        return Value::Null;
    }
    let spans = spans.iter().map(|span| {
        let mut value = Map::new();
        value.insert("lane".into(), json!(span.lane));
        value.insert("kind".into(), json!(span.kind));
        value.insert("start_ns".into(), json!(span.start_ns));
        value.insert("end_ns".into(), json!(span.end_ns));
        value.insert("rows".into(), json!(span.rows));
        value.insert("accepted".into(), json!(span.accepted));
        value.insert("outcome".into(), json!(span.outcome));
        Value::Object(value)
    });
    json!({"lanes": lanes, "spans": spans.collect::<Vec<_>>()})
}

//! Traces, answers and prompts for tests.

use crate::Prompt;
use crate::record::{AnswerRecord, Counts, TurnRecord};
use crate::times::TimeBreakdown;
use forerun::Commit;
use forerun::trace::{Span, SpanKind, SpanOutcome, Trace};

/// Returns a span of one row.
pub(crate) fn span(
    lane: usize,
    kind: SpanKind,
    [start, end]: [u64; 2],
    forwards: &[[u64; 2]],
) -> Span {
    // Built from JSON, because the types of sequences and tickets are not part of the facade.
    let json = serde_json::json!({
        "lane": lane, "kind": kind, "sequence": 0, "ticket": start, "rows": 1, "start_ns": start,
        "end_ns": end, "forwards_ns": forwards, "accepted": 0, "outcome": SpanOutcome::Accepted,
    });
    serde_json::from_value(json).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns an answer with one turn.
pub(crate) fn answer(
    configuration: &str,
    prompt: &str,
    repeat: usize,
    turn: TurnRecord,
) -> AnswerRecord {
    AnswerRecord {
        configuration: configuration.into(),
        prompt: prompt.into(),
        category: "c".into(),
        repeat,
        turns: vec![turn],
        peak_memory_bytes: Some(1_000_000),
    }
}

/// Returns a turn with the given commits, as pairs of time in nanoseconds and number of tokens.
pub(crate) fn turn(commits: &[(u64, usize)]) -> TurnRecord {
    let tokens: usize = commits.iter().map(|commit| commit.1).sum();
    let total_ns = commits.last().map_or(0, |commit| commit.0);
    TurnRecord {
        text: "x".repeat(tokens),
        tokens: (0..tokens as u32).collect(),
        prompt_tokens: 3,
        finish: "max_tokens".into(),
        seed: 7,
        total_ns,
        commits: commits.iter().map(|&(at_ns, tokens)| Commit { at_ns, tokens }).collect(),
        counts: Counts::default(),
        times: TimeBreakdown::of(&Trace::default(), total_ns),
        rounds: Vec::new(),
        trace: None,
    }
}

/// Returns a prompt with one turn.
pub(crate) fn prompt(id: &str, category: &str) -> Prompt {
    Prompt { id: id.into(), category: category.into(), turns: vec![format!("text of {id}")] }
}

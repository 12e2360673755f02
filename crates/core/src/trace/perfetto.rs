//! Traces in the JSON format of Chrome's trace viewer, which Perfetto opens.

use super::Trace;
use serde_json::{Value, json};

impl Trace {
    /// Returns the trace as a JSON object that <https://ui.perfetto.dev> opens. Times are in
    /// microseconds; lanes are threads, and one more has the decisions with their reasons.
    #[must_use]
    pub fn to_perfetto(&self) -> Value {
        let planner = (!self.decisions.is_empty()).then_some("decisions");
        let lanes = self.lanes.iter().map(String::as_str).chain(planner);
        let names = lanes.enumerate().map(|(lane, name)| {
            json!({ "ph": "M", "pid": 0, "tid": lane, "name": "thread_name", "args": { "name": name } })
        });
        let spans = self.spans.iter().map(|span| {
            json!({
                "ph": "X",
                "pid": 0,
                "tid": span.lane,
                "name": span.kind,
                "cat": span.outcome,
                "ts": span.start_ns as f64 / 1e3,
                "dur": (span.end_ns - span.start_ns) as f64 / 1e3,
                "args": {
                    "ticket": span.ticket,
                    "sequence": span.sequence,
                    "rows": span.rows,
                    "computed_tokens": span.computed_tokens,
                    "accepted": span.accepted,
                    "outcome": span.outcome,
                },
            })
        });
        // Perfetto nests them in their jobs.
        let forwards = self.spans.iter().flat_map(|span| {
            span.forwards_ns.iter().map(|&[start_ns, end_ns]| {
                json!({
                    "ph": "X",
                    "pid": 0,
                    "tid": span.lane,
                    "name": "forward",
                    "ts": start_ns as f64 / 1e3,
                    "dur": (end_ns - start_ns) as f64 / 1e3,
                })
            })
        });
        let decisions = self.decisions.iter().map(|decision| {
            json!({
                "ph": "X",
                "pid": 0,
                "tid": self.lanes.len(),
                "name": decision.reason,
                "ts": decision.start_ns as f64 / 1e3,
                "dur": (decision.end_ns - decision.start_ns) as f64 / 1e3,
                "args": { "steps": decision.steps, "drafts": decision.drafts },
            })
        });
        let events: Vec<Value> = names.chain(spans).chain(forwards).chain(decisions).collect();
        json!({ "displayTimeUnit": "ms", "traceEvents": events })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{decision, sample};
    use crate::trace::Trace;

    #[test]
    fn decisions_are_a_lane_of_their_own() {
        let decisions = vec![decision("trial", 2, [400, 1600])];
        let json = Trace { decisions, ..sample() }.to_perfetto();
        let events = json["traceEvents"].as_array().cloned().unwrap_or_default();
        assert_eq!(events.len(), 3 + 5 + 5 + 1);
        assert_eq!(events[2]["args"]["name"], "decisions");
        let last = &events[13];
        assert_eq!((&last["tid"], &last["name"]), (&2.into(), &"trial".into()));
        assert_eq!((&last["ts"], &last["dur"]), (&0.4.into(), &1.2.into()));
        assert_eq!(last["args"]["steps"], 2);
    }

    #[test]
    fn every_lane_is_named_and_every_span_is_an_event() {
        let json = sample().to_perfetto();
        let events = json["traceEvents"].as_array().cloned().unwrap_or_default();
        assert_eq!(events.len(), 2 + 5 + 5);
        assert_eq!(events[1]["args"]["name"], "target cpu:1");
        assert_eq!(events[3]["name"], "score");
        assert_eq!(events[3]["ts"], 0.4);
        assert_eq!(events[3]["args"]["accepted"], 4);
        assert_eq!(events[5]["cat"], "wasted");
    }
}

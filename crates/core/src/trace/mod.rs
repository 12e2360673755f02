//! Traces: what each device group did, and when. Clusters record them; decoders do not.

mod ascii;
mod perfetto;

pub use crate::job::SpanOutcome;
use crate::{Completion, Job, JobOutput, Outcome, SequenceId, Ticket};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// The kind of a span's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// A drafter proposed candidates.
    Draft,
    /// A target scored rows.
    Score,
}

/// The time that a job spent on one of several devices that its lane shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// The index of the device in [`Trace::devices`].
    pub device: usize,
    /// The start, in nanoseconds on the cluster's clock.
    pub start_ns: u64,
    /// The end, in nanoseconds on the cluster's clock.
    pub end_ns: u64,
}

/// One job on one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The index of the lane in [`Trace::lanes`].
    pub lane: usize,
    /// The kind of work.
    pub kind: SpanKind,
    /// The sequence that the job belongs to.
    pub sequence: SequenceId,
    /// The job's id.
    pub ticket: Ticket,
    /// The number of drafted candidates or scored rows.
    pub rows: usize,
    /// The start, in nanoseconds on the cluster's clock.
    pub start_ns: u64,
    /// The end, in nanoseconds on the cluster's clock.
    pub end_ns: u64,
    /// The starts and ends of the job's forward passes, if they were recorded.
    #[serde(default)]
    pub forwards_ns: Vec<[u64; 2]>,
    /// The number of tokens that these passes computed: candidates, and tokens of the prefix that
    /// were not in the cache.
    #[serde(default)]
    pub computed_tokens: usize,
    /// The number of passes on a paced device that took longer than their time.
    #[serde(default)]
    pub overruns: usize,
    /// The times that the job spent on each device, if its lane uses one device after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_uses: Vec<DeviceUse>,
    /// The number of accepted candidates.
    pub accepted: usize,
    /// The verdict.
    pub outcome: SpanOutcome,
}

impl Span {
    /// Creates the span of a completed job, without its forward passes and device uses.
    #[must_use]
    pub fn of(lane: usize, job: &Job, completion: &Completion) -> Self {
        let rows = match &completion.output {
            Ok(JobOutput::Draft(draft)) => draft.tree.len(),
            Ok(JobOutput::Score(scores)) => scores.rows.len(),
            Err(_) => 0,
        };
        Self {
            lane,
            kind: if matches!(job, Job::Draft { .. }) { SpanKind::Draft } else { SpanKind::Score },
            sequence: job.sequence(),
            ticket: completion.ticket,
            rows,
            start_ns: completion.started_ns,
            end_ns: completion.finished_ns,
            forwards_ns: Vec::new(),
            computed_tokens: 0,
            overruns: 0,
            device_uses: Vec::new(),
            accepted: 0,
            outcome: if completion.output.is_ok() {
                SpanOutcome::Open
            } else {
                SpanOutcome::Wasted
            },
        }
    }
}

/// Steps in a row of which the planner of an answer decided the same for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The reason in words.
    pub reason: String,
    /// Whether drafts were made; otherwise the target worked alone.
    pub drafts: bool,
    /// The number of steps.
    pub steps: u64,
    /// The start, in nanoseconds on the cluster's clock.
    pub start_ns: u64,
    /// The end, in nanoseconds on the cluster's clock.
    pub end_ns: u64,
}

/// All steps of an answer with the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionReason<'a> {
    /// The reason in words.
    pub words: &'a str,
    /// Whether drafts were made; otherwise the target worked alone.
    pub drafts: bool,
    /// The number of steps.
    pub steps: u64,
}

/// All spans of a run. A lane is a device group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The names of the device groups.
    pub lanes: Vec<String>,
    /// The names of the devices that lanes with several devices use one after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// The spans, in the order in which they ended.
    pub spans: Vec<Span>,
    /// What the planner decided after the first step, and why, if this is the trace of one answer
    /// whose drafts follow a planner (`DraftTokens::Auto`). Otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

/// The time during which lanes were busy, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// Time from the first start to the last end.
    pub wall_ns: u64,
    /// Time during which at least one lane was busy.
    pub busy_ns: u64,
    /// Time during which at least two lanes were busy.
    pub overlap_ns: u64,
    /// Time during which at least one model was in a forward pass.
    pub forward_ns: u64,
}

impl Occupancy {
    /// Returns the share of the time during which at least two lanes were busy; 0 for an empty
    /// trace.
    #[must_use]
    pub fn overlap_share(&self) -> f64 {
        self.share(self.overlap_ns)
    }

    /// Returns the share of the time during which no model was in a forward pass: sampling,
    /// verification, messages and waits; 0 for an empty trace.
    #[must_use]
    pub fn outside_forwards_share(&self) -> f64 {
        self.share(self.wall_ns - self.forward_ns)
    }

    fn share(&self, part_ns: u64) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { part_ns as f64 / self.wall_ns as f64 }
    }
}

impl Trace {
    /// Creates an empty trace with these lanes.
    #[must_use]
    pub fn new(lanes: Vec<String>) -> Self {
        Self { lanes, ..Self::default() }
    }

    /// Returns the device uses as a trace: one lane for each device, one span for each use. The
    /// result is empty if every lane has one device.
    #[must_use]
    pub fn by_device(&self) -> Self {
        let mut spans = Vec::new();
        for span in &self.spans {
            for &DeviceUse { device: lane, start_ns, end_ns } in &span.device_uses {
                spans.push(Span {
                    lane,
                    start_ns,
                    end_ns,
                    forwards_ns: Vec::new(),
                    device_uses: Vec::new(),
                    ..span.clone()
                });
            }
        }
        Self { spans, ..Self::new(self.devices.clone()) }
    }

    /// Returns the trace for drawing: each lane that uses several devices one after another is
    /// replaced by one lane for each device.
    #[must_use]
    pub fn with_devices_as_lanes(&self) -> Self {
        let has_uses =
            |lane| self.spans.iter().any(|span| span.lane == lane && !span.device_uses.is_empty());
        let kept: Vec<usize> = (0..self.lanes.len()).filter(|&lane| !has_uses(lane)).collect();
        let uses = self.by_device();
        let names = kept.iter().map(|&lane| self.lanes[lane].clone());
        let kept_spans = self.spans.iter().filter_map(|span| {
            let lane = kept.iter().position(|&lane| lane == span.lane)?;
            Some(Span { lane, ..span.clone() })
        });
        let below_kept = |span: Span| Span { lane: kept.len() + span.lane, ..span };
        Self {
            lanes: names.chain(uses.lanes).collect(),
            devices: Vec::new(),
            spans: kept_spans.chain(uses.spans.into_iter().map(below_kept)).collect(),
            decisions: self.decisions.clone(),
        }
    }

    /// Returns the reasons of all [decisions](Self::decisions), the most frequent first.
    #[must_use]
    pub fn reasons(&self) -> Vec<DecisionReason<'_>> {
        let mut reasons: Vec<DecisionReason<'_>> = Vec::new();
        for Decision { reason: words, drafts, steps, .. } in &self.decisions {
            match reasons.iter_mut().find(|reason| reason.words == words) {
                Some(reason) => reason.steps += steps,
                None => reasons.push(DecisionReason { words, drafts: *drafts, steps: *steps }),
            }
        }
        reasons.sort_by_key(|reason| Reverse(reason.steps));
        reasons
    }

    /// Records the verdict on a job in its span.
    pub fn record_outcome(&mut self, outcome: &Outcome) {
        // The job ended recently, so the search starts at the end.
        let mut latest_first = self.spans.iter_mut().rev();
        if let Some(span) = latest_first.find(|span| span.ticket == outcome.ticket) {
            span.accepted = outcome.accepted;
            span.outcome = outcome.outcome;
        }
    }

    /// Computes how long lanes were busy, and how long several of them were.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        // One lane runs one job at a time.
        let jobs = || self.spans.iter().map(|span| [span.start_ns, span.end_ns]);
        let forwards = self.spans.iter().flat_map(|span| span.forwards_ns.iter().copied());
        let first = jobs().map(|[start, _]| start).min().unwrap_or(0);
        let last = jobs().map(|[_, end]| end).max().unwrap_or(0);
        let [busy_ns, overlap_ns] = covered(jobs());
        let [forward_ns, _] = covered(forwards);
        Occupancy { wall_ns: last - first, busy_ns, overlap_ns, forward_ns }
    }

    /// Computes how long a drafter and a target had jobs at the same time, in nanoseconds. Unlike
    /// [`Occupancy::overlap_ns`], it does not count the time in which several replicas worked
    /// without a drafter.
    #[must_use]
    pub fn together_ns(&self) -> u64 {
        let busy_ns = |kinds: &[SpanKind]| {
            let spans = self.spans.iter().filter(|span| kinds.contains(&span.kind));
            let [busy_ns, _] = covered(spans.map(|span| [span.start_ns, span.end_ns]));
            busy_ns
        };
        let (drafts, scores) = (busy_ns(&[SpanKind::Draft]), busy_ns(&[SpanKind::Score]));
        drafts + scores - busy_ns(&[SpanKind::Draft, SpanKind::Score])
    }
}

/// Returns how long at least one and at least two of the intervals overlap.
fn covered(intervals: impl Iterator<Item = [u64; 2]>) -> [u64; 2] {
    // A sweep over starts (+1) and ends (−1).
    let mut edges: Vec<(u64, i32)> =
        intervals.flat_map(|[start, end]| [(start, 1), (end, -1)]).collect();
    edges.sort_unstable();
    let (mut running, mut since, mut times) = (0, 0, [0; 2]);
    for (at, change) in edges {
        for (least, time) in (1..).zip(&mut times) {
            *time += if running >= least { at - since } else { 0 };
        }
        running += change;
        since = at;
    }
    times
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two rounds of drafting and verification, with a cancelled draft during the second
    /// verification.
    pub(crate) fn sample() -> Trace {
        let span = |lane, kind, ticket, rows, start_ns, end_ns, accepted, outcome| Span {
            lane,
            kind,
            sequence: SequenceId(0),
            ticket: Ticket(ticket),
            rows,
            start_ns,
            end_ns,
            forwards_ns: vec![[start_ns, end_ns - 50]],
            computed_tokens: 0,
            overruns: 0,
            device_uses: Vec::new(),
            accepted,
            outcome,
        };
        Trace {
            spans: vec![
                span(0, SpanKind::Draft, 0, 4, 0, 400, 4, SpanOutcome::Accepted),
                span(1, SpanKind::Score, 1, 5, 400, 800, 4, SpanOutcome::Accepted),
                span(0, SpanKind::Draft, 2, 4, 800, 1200, 1, SpanOutcome::Rejected),
                span(0, SpanKind::Draft, 4, 0, 1300, 1500, 0, SpanOutcome::Wasted),
                span(1, SpanKind::Score, 3, 5, 1200, 1600, 1, SpanOutcome::Rejected),
            ],
            ..Trace::new(vec!["drafter cpu:0".into(), "target cpu:1".into()])
        }
    }

    pub(crate) fn decision(reason: &str, steps: u64, [start_ns, end_ns]: [u64; 2]) -> Decision {
        Decision { reason: reason.into(), drafts: reason == "fastest", steps, start_ns, end_ns }
    }

    #[test]
    fn reasons_are_counted_over_all_decisions() {
        let decisions = vec![
            decision("trial", 2, [0, 200]),
            decision("fastest", 3, [200, 900]),
            decision("trial", 2, [900, 1600]),
        ];
        let trace = Trace { decisions, ..sample() };
        let reasons = trace.reasons();
        let counts: Vec<_> = reasons.iter().map(|it| (it.words, it.drafts, it.steps)).collect();
        assert_eq!(counts, [("trial", false, 4), ("fastest", true, 3)]);
        assert_eq!(trace.with_devices_as_lanes(), trace);
        assert_eq!(Trace::default().reasons(), []);
    }

    #[test]
    fn occupancy_distinguishes_busy_from_overlapping_time() {
        let occupancy = sample().occupancy();
        assert_eq!(
            occupancy,
            Occupancy { wall_ns: 1600, busy_ns: 1600, overlap_ns: 200, forward_ns: 1400 }
        );
        assert_eq!(occupancy.overlap_share(), 0.125);
        assert_eq!(occupancy.outside_forwards_share(), 0.125);
        assert_eq!(Trace::default().occupancy().overlap_share(), 0.0);
    }

    #[test]
    fn replicas_without_a_drafter_do_not_count_as_together() {
        let mut trace = sample();
        assert_eq!(trace.together_ns(), 200);
        // A second replica works next to the first one, and for 50 ns next to the last draft.
        trace.lanes.push("target cpu:2".into());
        let replica = Span { lane: 2, start_ns: 1450, end_ns: 1550, ..trace.spans[4].clone() };
        trace.spans.push(Span { start_ns: 500, end_ns: 700, ..replica.clone() });
        trace.spans.push(replica);
        assert_eq!(trace.together_ns(), 200);
        assert_eq!(trace.occupancy().overlap_ns, 450);
        assert_eq!(Trace::default().together_ns(), 0);
    }

    /// PEARL's appendix G with two devices: while the target is on one, the drafter is on the
    /// other.
    #[test]
    fn shared_devices_have_lanes_of_their_own() {
        let mut trace = sample();
        assert_eq!(trace.by_device(), Trace::default());
        trace.devices = vec!["cpu:0".into(), "cpu:1".into()];
        let device_use = |device, start_ns, end_ns| DeviceUse { device, start_ns, end_ns };
        trace.spans.truncate(2);
        (trace.spans[1].start_ns, trace.spans[1].end_ns) = (0, 420);
        trace.spans[0].device_uses = vec![device_use(1, 0, 200), device_use(0, 200, 400)];
        trace.spans[1].device_uses = vec![device_use(0, 0, 200), device_use(1, 200, 420)];
        let picture = "\
cpu:0 |SSDD.|
cpu:1 |DDSSS|
";
        assert_eq!(trace.by_device().to_ascii(90), picture);
        assert!(trace.by_device().spans.iter().all(|span| span.device_uses.is_empty()));
        assert_eq!(trace.with_devices_as_lanes(), trace.by_device());
    }

    /// A target in two stages, and a drafter on a device of its own.
    #[test]
    fn drawings_have_a_lane_for_every_device() {
        let mut trace = sample();
        assert_eq!(trace.with_devices_as_lanes(), trace);
        trace.devices = vec!["cpu:1".into(), "cpu:2".into()];
        for span in trace.spans.iter_mut().filter(|span| span.lane == 1) {
            let half = span.start_ns + 200;
            let first = DeviceUse { device: 0, start_ns: span.start_ns, end_ns: half };
            let second = DeviceUse { device: 1, start_ns: half, end_ns: span.end_ns };
            span.device_uses = vec![first, second];
        }
        let picture = "\
drafter cpu:0 |DDDD....dddd.xx.|
cpu:1         |....SS......ss..|
cpu:2         |......SS......ss|
";
        assert_eq!(trace.with_devices_as_lanes().to_ascii(100), picture);
    }

    #[test]
    fn an_outcome_is_recorded_in_the_span_of_its_job() {
        use SpanOutcome::{Open, Rejected};
        let mut trace = sample();
        for span in &mut trace.spans {
            span.outcome = Open;
        }
        trace.record_outcome(&Outcome { ticket: Ticket(2), accepted: 3, outcome: Rejected });
        trace.record_outcome(&Outcome { ticket: Ticket(9), accepted: 1, outcome: Rejected });
        let marked: Vec<_> = trace.spans.iter().map(|span| (span.accepted, span.outcome)).collect();
        assert_eq!(marked, [(4, Open), (4, Open), (3, Rejected), (0, Open), (1, Open)]);
    }
}

//! The trace: what every device group did, and when. Clusters record it, decoders never do.

mod ascii;
mod perfetto;
mod svg;

use crate::{Completion, Job, JobOutput, Outcome, SequenceId, Ticket};
use serde::{Deserialize, Serialize};

/// What a span of work was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// A drafter proposed candidates.
    Draft,
    /// A target scored rows.
    Score,
}

/// What became of a span of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanOutcome {
    /// No verdict was reported.
    Open,
    /// Every candidate that was tested was accepted.
    Accepted,
    /// A candidate was rejected.
    Rejected,
    /// Cancelled, or failed: nothing came of it.
    Wasted,
}

/// A job's stay on one of its lane's devices, which it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Index into [`Trace::devices`].
    pub device: usize,
    /// Start on the cluster's clock.
    pub start_ns: u64,
    /// End on the cluster's clock.
    pub end_ns: u64,
}

/// One job on one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Index into [`Trace::lanes`].
    pub lane: usize,
    /// What it was.
    pub work: SpanKind,
    /// Whose it was.
    pub sequence: SequenceId,
    /// The job.
    pub ticket: Ticket,
    /// Candidates drafted, or rows scored.
    pub rows: usize,
    /// Start on the cluster's clock.
    pub start_ns: u64,
    /// End on the cluster's clock.
    pub end_ns: u64,
    /// Starts and ends of the forward passes within, where they were recorded.
    #[serde(default)]
    pub forwards_ns: Vec<[u64; 2]>,
    /// Tokens that these passes computed: those of the prefix that no cache held, and candidates.
    #[serde(default)]
    pub computed_tokens: usize,
    /// Where the job was when, if its lane has several devices in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visits: Vec<DeviceUse>,
    /// Candidates accepted.
    pub accepted: usize,
    /// What became of it.
    pub fate: SpanOutcome,
}

impl Span {
    /// The span of a job that has ended, without what is known of its forward passes.
    #[must_use]
    pub fn of(lane: usize, job: &Job, completion: &Completion) -> Self {
        let rows = match &completion.output {
            Ok(JobOutput::Draft(draft)) => draft.tree.len(),
            Ok(JobOutput::Score(scores)) => scores.rows.len(),
            Err(_) => 0,
        };
        Self {
            lane,
            work: if matches!(job, Job::Draft { .. }) { SpanKind::Draft } else { SpanKind::Score },
            sequence: job.sequence(),
            ticket: completion.ticket,
            rows,
            start_ns: completion.started_ns,
            end_ns: completion.finished_ns,
            forwards_ns: Vec::new(),
            computed_tokens: 0,
            visits: Vec::new(),
            accepted: 0,
            fate: if completion.output.is_ok() { SpanOutcome::Open } else { SpanOutcome::Wasted },
        }
    }
}

/// All spans of a run, lanes being device groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Names of the device groups.
    pub lanes: Vec<String>,
    /// Names of the devices that lanes have in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Spans in the order in which they ended.
    pub spans: Vec<Span>,
}

/// How much of the time lanes were busy, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// From the first start to the last end.
    pub wall_ns: u64,
    /// At least one lane was busy.
    pub busy_ns: u64,
    /// At least two lanes were busy: devices ran side by side.
    pub overlap_ns: u64,
    /// At least one model was in a forward pass.
    pub forward_ns: u64,
}

impl Occupancy {
    /// Share of the time in which devices ran side by side; 0 for an empty trace.
    #[must_use]
    pub fn overlap_share(&self) -> f64 {
        self.share(self.overlap_ns)
    }

    /// Share of the time in which no model was in a forward pass: sampling, verification, messages
    /// and waits; 0 for an empty trace.
    #[must_use]
    pub fn outside_forwards_share(&self) -> f64 {
        self.share(self.wall_ns - self.forward_ns)
    }

    fn share(&self, part_ns: u64) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { part_ns as f64 / self.wall_ns as f64 }
    }
}

impl Trace {
    /// An empty trace of the given lanes.
    #[must_use]
    pub fn new(lanes: Vec<String>) -> Self {
        Self { lanes, devices: Vec::new(), spans: Vec::new() }
    }

    /// What was done on the devices that lanes have in turn: a lane for each device, a span for each
    /// visit. Empty where every lane is a device of its own.
    #[must_use]
    pub fn by_device(&self) -> Self {
        let mut spans = Vec::new();
        for span in &self.spans {
            for &DeviceUse { device: lane, start_ns, end_ns } in &span.visits {
                let (forwards_ns, visits) = (Vec::new(), Vec::new());
                spans.push(Span { lane, start_ns, end_ns, forwards_ns, visits, ..span.clone() });
            }
        }
        Self { lanes: self.devices.clone(), devices: Vec::new(), spans }
    }

    /// The trace as pictures show it: in place of lanes that have several devices in turn stand these
    /// devices, with what was done on them.
    #[must_use]
    pub fn with_devices_as_lanes(&self) -> Self {
        let moves =
            |lane| self.spans.iter().any(|span| span.lane == lane && !span.visits.is_empty());
        let staying: Vec<usize> = (0..self.lanes.len()).filter(|&lane| !moves(lane)).collect();
        let visits = self.by_device();
        let names = staying.iter().map(|&lane| self.lanes[lane].clone());
        let own = self.spans.iter().filter_map(|span| {
            let lane = staying.iter().position(|&lane| lane == span.lane)?;
            Some(Span { lane, ..span.clone() })
        });
        let below = |span: Span| Span { lane: staying.len() + span.lane, ..span };
        Self {
            lanes: names.chain(visits.lanes).collect(),
            devices: Vec::new(),
            spans: own.chain(visits.spans.into_iter().map(below)).collect(),
        }
    }

    /// Marks the span that an outcome speaks of.
    pub fn record_outcome(&mut self, outcome: &Outcome) {
        // It ended lately, so the search starts at the end.
        let mut latest_first = self.spans.iter_mut().rev();
        if let Some(span) = latest_first.find(|span| span.ticket == outcome.ticket) {
            span.accepted = outcome.accepted;
            span.fate = outcome.fate;
        }
    }

    /// How busy the lanes were, and how much of that side by side.
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
}

/// How long at least one, and at least two, of the intervals last.
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

    /// Two rounds of draft-then-verify with a cancelled draft beside the second verification.
    pub(crate) fn sample() -> Trace {
        let span = |lane, work, ticket, rows, start_ns, end_ns, accepted, fate| Span {
            lane,
            work,
            sequence: SequenceId(0),
            ticket: Ticket(ticket),
            rows,
            start_ns,
            end_ns,
            forwards_ns: vec![[start_ns, end_ns - 50]],
            computed_tokens: 0,
            visits: Vec::new(),
            accepted,
            fate,
        };
        Trace {
            lanes: vec!["drafter cpu:0".into(), "target cpu:1".into()],
            devices: Vec::new(),
            spans: vec![
                span(0, SpanKind::Draft, 0, 4, 0, 400, 4, SpanOutcome::Accepted),
                span(1, SpanKind::Score, 1, 5, 400, 800, 4, SpanOutcome::Accepted),
                span(0, SpanKind::Draft, 2, 4, 800, 1200, 1, SpanOutcome::Rejected),
                span(0, SpanKind::Draft, 4, 0, 1300, 1500, 0, SpanOutcome::Wasted),
                span(1, SpanKind::Score, 3, 5, 1200, 1600, 1, SpanOutcome::Rejected),
            ],
        }
    }

    #[test]
    fn occupancy_tells_busy_from_overlapping_time() {
        let occupancy = sample().occupancy();
        assert_eq!(
            occupancy,
            Occupancy { wall_ns: 1600, busy_ns: 1600, overlap_ns: 200, forward_ns: 1400 }
        );
        assert_eq!(occupancy.overlap_share(), 0.125);
        assert_eq!(occupancy.outside_forwards_share(), 0.125);
        assert_eq!(Trace::default().occupancy().overlap_share(), 0.0);
    }

    /// PEARL's appendix G with two devices: while the target is on one, the drafter is on the other.
    #[test]
    fn devices_that_lanes_have_in_turn_are_lanes_of_their_own() {
        let mut trace = sample();
        assert_eq!(trace.by_device(), Trace::default());
        trace.devices = vec!["cpu:0".into(), "cpu:1".into()];
        let visit = |device, start_ns, end_ns| DeviceUse { device, start_ns, end_ns };
        trace.spans.truncate(2);
        (trace.spans[1].start_ns, trace.spans[1].end_ns) = (0, 420);
        trace.spans[0].visits = vec![visit(1, 0, 200), visit(0, 200, 400)];
        trace.spans[1].visits = vec![visit(0, 0, 200), visit(1, 200, 420)];
        let picture = "\
cpu:0 |SSDD.|
cpu:1 |DDSSS|
";
        assert_eq!(trace.by_device().to_ascii(90), picture);
        assert!(trace.by_device().spans.iter().all(|span| span.visits.is_empty()));
        assert_eq!(trace.with_devices_as_lanes(), trace.by_device());
    }

    /// A target in two stages, and a drafter on a device of its own.
    #[test]
    fn pictures_have_a_lane_for_every_device() {
        let mut trace = sample();
        assert_eq!(trace.with_devices_as_lanes(), trace);
        trace.devices = vec!["cpu:1".into(), "cpu:2".into()];
        for span in trace.spans.iter_mut().filter(|span| span.lane == 1) {
            let half = span.start_ns + 200;
            let first = DeviceUse { device: 0, start_ns: span.start_ns, end_ns: half };
            span.visits = vec![first, DeviceUse { device: 1, start_ns: half, end_ns: span.end_ns }];
        }
        let picture = "\
drafter cpu:0 |DDDD....dddd.xx.|
cpu:1         |....SS......ss..|
cpu:2         |......SS......ss|
";
        assert_eq!(trace.with_devices_as_lanes().to_ascii(100), picture);
    }

    #[test]
    fn an_outcome_marks_its_job() {
        use SpanOutcome::{Open, Rejected};
        let mut trace = sample();
        for span in &mut trace.spans {
            span.fate = Open;
        }
        trace.record_outcome(&Outcome { ticket: Ticket(2), accepted: 3, fate: Rejected });
        trace.record_outcome(&Outcome { ticket: Ticket(9), accepted: 1, fate: Rejected });
        let marked: Vec<_> = trace.spans.iter().map(|span| (span.accepted, span.fate)).collect();
        assert_eq!(marked, [(4, Open), (4, Open), (3, Rejected), (0, Open), (1, Open)]);
    }
}

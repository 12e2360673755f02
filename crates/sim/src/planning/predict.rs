//! Predicted speeds: the production decoders in virtual time, on the costs of a profile.

use super::{HardwareProfile, MethodTiming, Reason, Source};
use crate::{AcceptanceModel, Cancellation, Cost, Device, Oracle, SimCluster, SimError};
use forerun_core::{DraftShape, Role, Sampling, SequenceId};
use forerun_decode::{
    AnswerDecoder, DecoderOptions, DraftLength, DraftPattern, Limits, METHODS, PearlOptions,
    Sequence, SharedGoodput, next_tokens,
};
use serde::{Serialize, Serializer};
use std::fmt;

/// The draft length of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedLength {
    /// Always this many tokens; 0 for plain decoding.
    Fixed(usize),
    /// Chosen while decoding.
    Auto,
}

impl PlannedLength {
    /// Returns the number of tokens; that of a typical draft if it is chosen while decoding.
    pub(super) fn tokens(self) -> usize {
        match self {
            Self::Fixed(tokens) => tokens,
            Self::Auto => 2,
        }
    }
}

impl fmt::Display for PlannedLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(tokens) => f.pad(&tokens.to_string()),
            Self::Auto => f.pad("auto"),
        }
    }
}

impl Serialize for PlannedLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The predicted speed of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Whether the costs were measured. The speed is simulated in either case.
    #[serde(skip)]
    pub source: Source,
    /// The index of the timing in [`HardwareProfile::timings`].
    #[serde(skip)]
    pub timing: usize,
    /// The method.
    pub method: String,
    /// The drafter, unless this is plain decoding.
    pub drafter: Option<String>,
    /// The draft length.
    pub draft_tokens: PlannedLength,
    /// The placement, if it is not the automatic one.
    pub placement: Option<String>,
    /// The simulated speed after the first token, in tokens per second.
    pub tokens_per_second: f64,
    /// The speed divided by that of plain decoding with all cores.
    pub speedup: f64,
    /// Why it is as fast as it is.
    pub reason: Reason,
}

/// The longest draft of an automatic length, as in the facade.
const AUTO_LENGTH: usize = 16;

/// Predicts every method, drafter and placement of a profile with every draft length. The fastest comes first.
///
/// # Errors
/// If a simulation fails.
pub fn rank(
    profile: &HardwareProfile,
    lengths: &[PlannedLength],
) -> Result<Vec<Prediction>, SimError> {
    let nothing = [AcceptanceModel::Iid(0.0)];
    let mut plain_ns = f64::INFINITY;
    for timing in profile.timings.iter().filter(|timing| timing.drafter.is_none()) {
        let ns = simulated_ns(timing, PlannedLength::Fixed(0), &nothing, profile.answer_tokens)?;
        plain_ns = plain_ns.min(ns);
    }
    let mut ranking = Vec::new();
    for (index, timing) in profile.timings.iter().enumerate() {
        let record = timing
            .drafter
            .as_ref()
            .and_then(|name| profile.drafters.iter().find(|drafter| drafter.name == *name));
        let texts = record.map_or_else(|| nothing.to_vec(), super::DrafterRecord::texts);
        let lengths = if timing.drafter.is_some() { lengths } else { &[PlannedLength::Fixed(0)] };
        for &length in lengths {
            let answer = simulate(timing, length, &texts, profile.answer_tokens)?;
            let ns = answer.ns_per_token * timing.scale_at(length.tokens());
            ranking.push(Prediction {
                source: profile.source,
                timing: index,
                method: timing.method.clone(),
                drafter: timing.drafter.clone(),
                draft_tokens: length,
                placement: timing.placement.clone(),
                tokens_per_second: 1e9 / ns,
                speedup: plain_ns / ns,
                reason: Reason::of(timing, length, plain_ns, ns, answer.tokens_per_pass)?,
            });
        }
    }
    ranking.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    Ok(ranking)
}

/// Returns the simulated time of a token after the first step, scaled, in nanoseconds.
pub(super) fn simulated_ns(
    timing: &MethodTiming,
    length: PlannedLength,
    texts: &[AcceptanceModel],
    tokens: usize,
) -> Result<f64, SimError> {
    Ok(simulate(timing, length, texts, tokens)?.ns_per_token * timing.scale_at(length.tokens()))
}

struct Simulated {
    ns_per_token: f64,
    tokens_per_pass: f64,
}

fn simulate(
    timing: &MethodTiming,
    length: PlannedLength,
    texts: &[AcceptanceModel],
    tokens: usize,
) -> Result<Simulated, SimError> {
    let unknown = || SimError::Decode(format!("there is no method {:?}", timing.method));
    let entry = METHODS.iter().find(|entry| entry.name == timing.method).ok_or_else(unknown)?;
    let options = options(timing, length);
    let mut decoder = (entry.decoder)(&options);
    if length == PlannedLength::Auto {
        // An engine has learned from earlier answers.
        decoder = decoder.for_next_answer(&options, 1);
        for (seed, text) in texts.iter().enumerate() {
            run(timing, &mut *decoder, text, seed as u64, tokens)?;
            decoder = decoder.for_next_answer(&options, 1);
        }
    }
    let mut total = (0.0, 0.0, 0.0);
    for (seed, text) in texts.iter().enumerate() {
        let answer = run(timing, &mut *decoder, text, seed as u64, tokens)?;
        total = (total.0 + answer.ns, total.1 + answer.tokens, total.2 + answer.passes);
        decoder = match length {
            PlannedLength::Auto => decoder.for_next_answer(&options, 1),
            PlannedLength::Fixed(_) => (entry.decoder)(&options),
        };
    }
    Ok(Simulated {
        ns_per_token: total.0 / f64::max(total.1, 1.0),
        tokens_per_pass: total.1 / f64::max(total.2, 1.0),
    })
}

fn options(timing: &MethodTiming, length: PlannedLength) -> DecoderOptions {
    let (draft_tokens, length) = match length {
        PlannedLength::Fixed(tokens) => (tokens.max(1), DraftLength::Fixed),
        PlannedLength::Auto => (AUTO_LENGTH, DraftLength::Auto),
    };
    DecoderOptions {
        trees: None,
        shape: DraftShape::Chain { length: draft_tokens },
        draft_tokens,
        length,
        goodput: SharedGoodput::default(),
        pattern: DraftPattern::default(),
        pearl: PearlOptions::default(),
        guesser: None,
        lookup: None,
        targets: timing.replicas,
        drafters: 1,
        calibrates_during_verification: false,
        reproducible: false,
    }
}

/// A simulated answer, without its first step.
struct Run {
    ns: f64,
    tokens: f64,
    passes: f64,
}

fn run(
    timing: &MethodTiming,
    decoder: &mut dyn AnswerDecoder,
    text: &AcceptanceModel,
    seed: u64,
    tokens: usize,
) -> Result<Run, SimError> {
    let oracle = Oracle { seed, drafters: vec![text.clone()] };
    let (target, drafter) = timing.costs()?;
    let device = |name: String, role, cost: Cost| Device { name, roles: vec![role], cost };
    let targets = (0..timing.replicas)
        .map(|index| device(format!("target {index}"), Role::Target(index), target.clone()));
    let drafter = drafter.map(|cost| device("drafter".into(), Role::Drafter(0), cost));
    let devices = drafter.into_iter().chain(targets).collect();
    let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Layer, Vec::new())?;
    let mut cluster = cluster.without_trace();
    let limits = Limits { max_tokens: tokens, context_length: usize::MAX, eos: Vec::new() };
    let mut sequence = Sequence::new(SequenceId(0), oracle.text(1), Sampling::greedy(), limits);
    let failed = |error: forerun_decode::DecodeError| SimError::Decode(error.to_string());
    let mut first = None;
    while next_tokens(decoder, &mut sequence, &mut cluster).map_err(failed)?.is_none() {
        first.get_or_insert((cluster.now_ns(), sequence.generated().len()));
    }
    let (first_ns, first_tokens) = first.unwrap_or_default();
    let statistics = sequence.statistics();
    Ok(Run {
        ns: (cluster.now_ns() - first_ns) as f64,
        tokens: (sequence.generated().len() - first_tokens) as f64,
        passes: statistics.target_forwards.saturating_sub(1) as f64,
    })
}

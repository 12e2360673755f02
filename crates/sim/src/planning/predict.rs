//! Predicted speeds: the production decoders in virtual time, on the costs of a profile.

use super::draft::{GROWING_TREE, PlannedDraft};
use super::{DrafterRecord, HardwareProfile, MethodTiming, Reason, Source};
use crate::answer::prompt_tokens;
use crate::{AcceptanceModel, Cancellation, Cost, Device, Oracle, SimCluster, SimError};
use forerun_core::{Role, Sampling, SequenceId};
use forerun_decode::{
    AnswerDecoder, DecoderOptions, DraftLength, DraftPattern, Limits, METHODS, Sequence,
    new_decoder, next_tokens,
};
use serde::Serialize;

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
    /// The drafts: the option `draft_tokens` or `tree`.
    #[serde(flatten)]
    pub draft: PlannedDraft,
    /// The placement, if it is not the automatic one.
    pub placement: Option<String>,
    /// The simulated speed after the first step, in tokens per second. The tokens of the first step
    /// come with the prompt's pass: in a short answer, they would make long drafts look fast.
    pub tokens_per_second: f64,
    /// The speed divided by that of plain decoding with all cores.
    pub speedup: f64,
    /// Why it is as fast as it is.
    pub reason: Reason,
}

/// Predicts every method, drafter and placement of a profile with every one of these drafts that it
/// can have. The fastest comes first. Sizes that are chosen while decoding are predicted of
/// speculative decoding, and of other methods whose answers with such sizes were measured.
///
/// # Errors
/// If a simulation fails.
pub fn rank(
    profile: &HardwareProfile,
    drafts: &[PlannedDraft],
) -> Result<Vec<Prediction>, SimError> {
    let nothing = [AcceptanceModel::Iid(0.0)];
    let mut plain_ns = f64::INFINITY;
    for timing in profile.timings.iter().filter(|timing| timing.drafter.is_none()) {
        let answers = Answers { timing, drafter: None, tokens: profile.answer_tokens };
        plain_ns = plain_ns.min(answers.simulated_ns(PlannedDraft::Chain(0), &nothing)?);
    }
    let mut ranking = Vec::new();
    for (index, timing) in profile.timings.iter().enumerate() {
        let drafter = timing
            .drafter
            .as_ref()
            .and_then(|name| profile.drafters.iter().find(|drafter| drafter.name == *name));
        let answers = Answers { timing, drafter, tokens: profile.answer_tokens };
        let texts = drafter.map_or_else(|| nothing.to_vec(), |drafter| drafter.texts(timing.tree));
        let plain = [PlannedDraft::Chain(0)];
        let drafts = match drafter {
            Some(drafter) => drafter.distinct(drafts),
            None => plain.to_vec(),
        };
        for draft in drafts.into_iter().filter(|&draft| timing.has(draft)) {
            let answer = answers.simulate(draft, &texts)?;
            let ns = answer.ns_per_token * timing.scale_of(draft);
            ranking.push(Prediction {
                source: profile.source,
                timing: index,
                method: timing.method.clone(),
                drafter: timing.drafter.clone(),
                draft,
                placement: timing.placement.clone(),
                tokens_per_second: 1e9 / ns,
                speedup: plain_ns / ns,
                reason: Reason::of(&answers, draft, plain_ns, ns, answer.tokens_per_pass)?,
            });
        }
    }
    ranking.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    Ok(ranking)
}

/// Answers of a method with a drafter on a placement.
pub(super) struct Answers<'a> {
    pub(super) timing: &'a MethodTiming,
    pub(super) drafter: Option<&'a DrafterRecord>,
    pub(super) tokens: usize,
}

struct Simulated {
    ns_per_token: f64,
    tokens_per_pass: f64,
}

/// A simulated answer.
struct Run {
    /// The tokens after the first step, and the time and the passes of the target that they took.
    ns: f64,
    tokens: f64,
    passes: f64,
}

impl Answers<'_> {
    /// Returns the simulated time of a token after the first step, scaled, in nanoseconds.
    pub(super) fn simulated_ns(
        &self,
        draft: PlannedDraft,
        texts: &[AcceptanceModel],
    ) -> Result<f64, SimError> {
        Ok(self.simulate(draft, texts)?.ns_per_token * self.timing.scale_of(draft))
    }

    fn simulate(
        &self,
        draft: PlannedDraft,
        texts: &[AcceptanceModel],
    ) -> Result<Simulated, SimError> {
        let method = &self.timing.method;
        let unknown = || SimError::Decode(format!("there is no method {method:?}"));
        let entry = METHODS.iter().find(|entry| entry.name == *method).ok_or_else(unknown)?;
        let options = self.options(draft);
        let mut decoder = new_decoder(entry, &options);
        if draft.is_auto() {
            // An engine has learned from earlier answers.
            decoder = decoder.for_next_answer(&options, 1);
            for (seed, text) in texts.iter().enumerate() {
                self.run(&mut *decoder, text, seed as u64)?;
                decoder = decoder.for_next_answer(&options, 1);
            }
        }
        let mut total = (0.0, 0.0, 0.0);
        for (seed, text) in texts.iter().enumerate() {
            let answer = self.run(&mut *decoder, text, seed as u64)?;
            total.0 += answer.ns;
            total.1 += answer.tokens;
            total.2 += answer.passes;
            decoder = match draft.is_auto() {
                true => decoder.for_next_answer(&options, 1),
                false => new_decoder(entry, &options),
            };
        }
        Ok(Simulated {
            ns_per_token: total.0 / f64::max(total.1, 1.0),
            tokens_per_pass: total.1 / f64::max(total.2, 1.0),
        })
    }

    fn options(&self, draft: PlannedDraft) -> DecoderOptions {
        let length = if draft.is_auto() { DraftLength::Auto } else { DraftLength::Fixed };
        DecoderOptions {
            trees: (draft == PlannedDraft::AutoTree).then_some(GROWING_TREE),
            draft_tokens: draft.longest(),
            pattern: self.drafter.map_or_else(DraftPattern::default, DrafterRecord::pattern),
            targets: self.timing.replicas,
            ..DecoderOptions::new(draft.shape(), length)
        }
    }

    fn run(
        &self,
        decoder: &mut dyn AnswerDecoder,
        text: &AcceptanceModel,
        seed: u64,
    ) -> Result<Run, SimError> {
        let oracle = Oracle { seed, drafters: vec![text.clone()] };
        let (target, drafter) = self.timing.costs()?;
        let reads_features = self.drafter.is_some_and(|drafter| drafter.reads_features);
        let drafter = drafter.map(|cost| Cost { reads_features, ..cost });
        let prompt = oracle.text(prompt_tokens(drafter.iter().chain([&target])));
        let device = |name: String, role, cost: Cost| Device { name, roles: vec![role], cost };
        let targets = (0..self.timing.replicas)
            .map(|index| device(format!("target {index}"), Role::Target(index), target.clone()));
        let drafter = drafter.map(|cost| device("drafter".into(), Role::Drafter(0), cost));
        let devices = drafter.into_iter().chain(targets).collect();
        let cluster = SimCluster::new(devices, oracle.clone(), Cancellation::Layer, Vec::new())?;
        let mut cluster = cluster.without_trace();
        let limits =
            Limits { max_tokens: self.tokens, context_length: usize::MAX, eos: Vec::new() };
        let mut sequence = Sequence::new(SequenceId(0), prompt, Sampling::greedy(), limits);
        let failed = |error: forerun_decode::DecodeError| SimError::Decode(error.to_string());
        let mut first = None;
        while next_tokens(decoder, &mut sequence, &mut cluster).map_err(failed)?.is_none() {
            first.get_or_insert((cluster.now_ns(), sequence.generated().len()));
        }
        let (first_ns, first_tokens) = first.unwrap_or_default();
        let statistics = sequence.statistics();
        let tokens = sequence.generated().len();
        Ok(Run {
            ns: (cluster.now_ns() - first_ns) as f64,
            tokens: (tokens - first_tokens) as f64,
            passes: statistics.target_forwards.saturating_sub(1) as f64,
        })
    }
}

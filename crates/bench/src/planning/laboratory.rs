//! Short answers of real engines, one engine at a time.

use super::recording::LONGEST;
use super::{PlanningError, Setting};
use forerun::checkpoint::Checkpoint;
use forerun::{
    Answer, AnswerEvent, Canceller, Engine, Finish, ForerunError, Loader, Method, ModelSource,
    Request, TokenId, Tree,
};
use forerun_sim::MeasuredPasses;
use forerun_sim::planning::{HardwareProfile, MethodTiming, PlannedDraft, Source};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Clone, Debug)]
pub struct MeasurementOptions {
    /// Texts to continue.
    pub prompts: Vec<String>,
    /// The number of tokens of each answer.
    pub answer_tokens: usize,
    /// The drafts of the measured answers; the simulator predicts the others.
    pub drafts: Vec<PlannedDraft>,
    /// The time for everything from [`Laboratory::new`] on. What does not fit is left out, but
    /// plain decoding and one method have an answer in any case. None: every setting is measured
    /// once. With a check, which is always complete, it only says how long answers are.
    pub time: Option<Duration>,
    /// The hardware, in words.
    pub hardware: String,
    /// What to run in addition, to compare it with predictions.
    pub check: Option<CheckOptions>,
}

/// The answers of a check. They take turns with the measurements, which do not use them.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// The drafts.
    pub drafts: Vec<PlannedDraft>,
    /// The number of times that each configuration answers each prompt.
    pub rounds: usize,
}

/// The share of the time in which all settings are measured; in the rest, the best one is measured
/// next to plain decoding.
const FOR_ALL: f64 = 0.7;

/// Engines that are opened one after another.
pub struct Laboratory<'a> {
    pub(super) loader: Loader<'a>,
    pub(super) settings: Vec<Setting>,
    pub(super) options: MeasurementOptions,
    pub(super) canceller: Canceller,
    pub(super) started: Instant,
    /// Whether plain decoding and one method are measured, so that the rest may be left out.
    pub(super) has_result: bool,
    /// The prompts, also those for which there is no time in every setting.
    pub(super) all_prompts: Vec<String>,
    /// Whether the time that was kept for [`side_by_side`](Self::side_by_side) has begun.
    pub(super) may_use_all_time: bool,
    /// The settings that were not measured.
    pub(super) left_out: Vec<Setting>,
    /// The times of a token in nanoseconds, by prompt and round, of the answers of a check: by
    /// timing and draft.
    pub(super) checks: BTreeMap<(usize, PlannedDraft), Vec<Vec<f64>>>,
}

/// An engine with encoded prompts.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) prompts: Vec<Vec<TokenId>>,
}

impl<'a> Laboratory<'a> {
    /// Creates a laboratory for these settings. The first one must be plain decoding. Its time
    /// begins to run.
    #[must_use]
    pub fn new(
        settings: Vec<Setting>,
        options: MeasurementOptions,
        loader: Loader<'a>,
        canceller: Canceller,
    ) -> Self {
        Self {
            loader: loader.sharing_weights(),
            settings,
            canceller,
            started: Instant::now(),
            has_result: false,
            all_prompts: options.prompts.clone(),
            options,
            may_use_all_time: false,
            left_out: Vec::new(),
            checks: BTreeMap::new(),
        }
    }

    /// Returns the time until measurements must end, if they must.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let time = self.options.time.filter(|_| self.options.check.is_none())?;
        let time = if self.may_use_all_time { time } else { time.mul_f64(FOR_ALL) };
        Some(time.saturating_sub(self.started.elapsed()))
    }

    /// Returns whether the time for measurements is over.
    pub(super) fn is_over(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// Returns whether measurements end now: they were cancelled, or their time is over and there
    /// is a result.
    pub(super) fn must_stop(&self) -> bool {
        self.has_result && self.is_over() || self.canceller.is_cancelled()
    }

    /// Returns a profile with the options of all settings, without costs.
    pub(super) fn empty_profile(&self) -> HardwareProfile {
        let options = self.settings.first().map(|plain| &plain.options);
        HardwareProfile {
            source: Source::Measured,
            hardware: self.options.hardware.clone(),
            model: named(options.map(|options| &options.model)),
            dtype: options.and_then(|options| options.weight_type).map(|found| found.to_string()),
            kv_type: options.and_then(|options| options.cache_type).map(|found| found.to_string()),
            threads: options.and_then(|options| options.threads),
            pin: options.is_some_and(|options| options.pin),
            answer_tokens: self.options.answer_tokens,
            drafters: Vec::new(),
            timings: Vec::new(),
        }
    }

    /// Returns the settings by engine: plain decoding, speculative decoding on its automatic
    /// placement, which is the fastest most often, and then the others in their order.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, setting) in self.settings.iter().enumerate() {
            let same =
                |group: &&mut Vec<usize>| self.settings[group[0]].shares_engine_with(setting);
            match groups.iter_mut().find(same) {
                Some(group) => group.push(index),
                None => groups.push(vec![index]),
            }
        }
        groups.sort_by_key(|group| {
            let first = &self.settings[group[0]];
            let is_automatic = first.placement().is_none() && !first.is_tree();
            let is_speculative = first.plan.method() == Method::Speculative && is_automatic;
            (first.drafter().is_some(), !is_speculative)
        });
        groups
    }

    /// Opens the engine of a group. Prompts that are too long are left out from now on.
    pub(super) fn open(&mut self, group: &[usize]) -> Result<Bench, PlanningError> {
        let setting = &self.settings[group[0]];
        let engine = Engine::open_with(&setting.plan, &mut self.loader);
        let engine = engine.map_err(|cause| engine_error(setting, cause))?;
        let context = engine.config().max_position_embeddings;
        let tokens = self.options.answer_tokens;
        let (mut texts, mut prompts) = (Vec::new(), Vec::new());
        for prompt in std::mem::take(&mut self.options.prompts) {
            let encoded =
                engine.encode_prompt(&prompt).map_err(|cause| engine_error(setting, cause))?;
            if encoded.len() + tokens + LONGEST < context {
                texts.push(prompt);
                prompts.push(encoded);
            }
        }
        self.options.prompts = texts;
        match prompts.is_empty() {
            true => Err(PlanningError::NoPrompts { context, tokens }),
            false => Ok(Bench { engine, prompts }),
        }
    }

    /// Generates a greedy answer with the method of a setting and these drafts. The engine chooses
    /// automatic sizes. An answer that does not end in time is an error.
    pub(super) fn answer(
        &self,
        engine: &Engine,
        setting: &Setting,
        prompt: &[TokenId],
        draft: PlannedDraft,
    ) -> Result<Answer, PlanningError> {
        let request = Request {
            max_tokens: self.options.answer_tokens,
            ignore_eos: true,
            draft_tokens: match draft {
                PlannedDraft::Chain(length) if length > 0 => Some(length),
                _ => None,
            },
            tree: match draft {
                PlannedDraft::Tree(nodes) => Tree::Ranked { nodes },
                _ => Tree::None,
            },
            ..Request::default()
        };
        let method: Method = setting.plan.method();
        let answer = || -> Result<Option<Answer>, ForerunError> {
            for event in engine.stream_tokens(prompt.to_vec(), &request, method, &self.canceller)? {
                match event? {
                    // An interrupted answer says nothing.
                    AnswerEvent::Finished(answer) if answer.finish != Finish::Stopped => {
                        return Ok(Some(*answer));
                    }
                    _ if self.must_stop() => break,
                    _ => {}
                }
            }
            Ok(None)
        };
        let answer = answer().map_err(|cause| engine_error(setting, cause))?;
        answer.ok_or(PlanningError::Stopped)
    }

    /// Returns the timing of a setting without times.
    pub(super) fn timing_of(&mut self, bench: &Bench, setting: &Setting) -> MethodTiming {
        let plan = &setting.plan;
        let passes = |model, layers| MeasuredPasses { model, layers, ..MeasuredPasses::default() };
        let drafter = setting.drafter().map(|name| match plan.draft_model() {
            Some(model) => {
                let path = self.loader.locate(model).ok();
                let checkpoint = path.and_then(|path| Checkpoint::open(&path).ok());
                let layers = checkpoint.map_or(1, |found| found.config().num_hidden_layers);
                passes(model.to_string(), layers)
            }
            None => passes(name, 1),
        });
        MethodTiming {
            method: plan.method().to_string(),
            drafter: setting.drafter(),
            placement: setting.placement(),
            cores: Some(plan.placement().to_string()),
            tree: setting.is_tree(),
            replicas: plan.placement().replicas(),
            link_ms: 0.0,
            scale: Vec::new(),
            auto_scale: None,
            target: passes(plan.model().to_string(), bench.engine.config().num_hidden_layers),
            drafter_passes: drafter,
        }
    }
}

/// Returns the name of a model in options; empty for a padded part of the program, which has none.
fn named(model: Option<&ModelSource>) -> String {
    match model {
        Some(ModelSource::Embedded(model)) if model.padding == 0 => "demo".to_owned(),
        None | Some(ModelSource::Embedded(_)) => String::new(),
        Some(model) => model.to_string(),
    }
}

/// Returns the time of a token after the first step in nanoseconds; infinite if there was one step.
pub(super) fn ns_per_token(answer: &Answer) -> f64 {
    1e9 / answer.decode_tokens_per_second()
}

pub(super) fn engine_error(setting: &Setting, cause: ForerunError) -> PlanningError {
    // What plain decoding cannot do, no method can.
    if setting.drafter().is_none() {
        return PlanningError::Target(Box::new(cause));
    }
    PlanningError::Engine { setting: setting.to_string(), cause: Box::new(cause) }
}

//! Short answers of real engines, one engine at a time.

use super::{PlanningError, Setting};
use forerun::{
    Answer, AnswerEvent, Canceller, Checkpoint, Finish, Forerun, ForerunError, Loader, Method,
    ModelSource, Request, TokenId,
};
use forerun_core::{DraftShape, Job, JobOutput, Role, Sampling, SequenceId, TargetFeedback};
use forerun_sim::MeasuredPasses;
use forerun_sim::planning::{
    DrafterRecord, HardwareProfile, MeasuredAnswer, MethodTiming, Source, fit,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Clone, Debug)]
pub struct MeasurementOptions {
    /// Texts to continue.
    pub prompts: Vec<String>,
    /// The number of tokens of each answer.
    pub answer_tokens: usize,
    /// The draft lengths of the measured answers; the simulator predicts the others.
    pub lengths: Vec<usize>,
    /// The time for all measurements. Each answer is measured at least once.
    pub time: Duration,
    /// The hardware, in words.
    pub hardware: String,
}

/// The longest draft of a drafter without a model that is recorded. Automatic lengths are at most as long.
const LONGEST: usize = 16;

/// Engines that are opened one after another.
pub struct Laboratory<'a> {
    pub(super) loader: Loader<'a>,
    pub(super) settings: Vec<Setting>,
    pub(super) options: MeasurementOptions,
    pub(super) canceller: Canceller,
}

/// An engine with encoded prompts.
pub(super) struct Bench {
    pub(super) engine: Forerun,
    pub(super) prompts: Vec<Vec<TokenId>>,
}

impl<'a> Laboratory<'a> {
    /// Creates a laboratory for these settings. The first one must be plain decoding.
    #[must_use]
    pub fn new(
        settings: Vec<Setting>,
        options: MeasurementOptions,
        loader: Loader<'a>,
        canceller: Canceller,
    ) -> Self {
        Self { loader: loader.sharing_weights(), settings, options, canceller }
    }

    /// Returns the number of settings.
    #[must_use]
    pub fn settings(&self) -> usize {
        self.settings.len()
    }

    /// Measures all settings. `progress` gets each setting before its turn.
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, or two methods give different texts.
    pub fn measure(
        &mut self,
        mut progress: impl FnMut(&Setting),
    ) -> Result<HardwareProfile, PlanningError> {
        let mut texts = Vec::new();
        let mut profile = HardwareProfile {
            source: Source::Measured,
            hardware: self.options.hardware.clone(),
            model: named(self.settings.first().map(|setting| setting.plan.model())),
            answer_tokens: self.options.answer_tokens,
            drafters: Vec::new(),
            timings: Vec::new(),
        };
        let mut timings = BTreeMap::new();
        for group in self.groups() {
            let bench = self.open(&group)?;
            for &index in &group {
                let setting = self.settings[index].clone();
                progress(&setting);
                if texts.is_empty() {
                    texts = self.texts(&bench, &setting)?;
                    self.fit_to_time(&mut texts);
                    profile.answer_tokens = self.options.answer_tokens;
                }
                if let Some(name) = setting.drafter()
                    && !profile.drafters.iter().any(|known| known.name == name)
                {
                    profile.drafters.push(self.record(&bench, &setting, &texts)?);
                }
                let answers = self.answers(&bench, &setting, &texts)?;
                let name = setting.drafter();
                let record =
                    profile.drafters.iter().find(|known| Some(&known.name) == name.as_ref());
                let timing = self.timing_of(&bench, &setting);
                timings.insert(index, fit(timing, &answers, record)?);
            }
        }
        profile.timings = timings.into_values().collect();
        Ok(profile)
    }

    /// Returns the settings by engine, in their order.
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
        groups
    }

    /// Opens the engine of a group.
    pub(super) fn open(&mut self, group: &[usize]) -> Result<Bench, PlanningError> {
        let setting = &self.settings[group[0]];
        let engine = Forerun::open_with(&setting.plan, &mut self.loader);
        let engine = engine.map_err(|cause| engine_error(setting, cause))?;
        let context = engine.config().max_position_embeddings;
        let tokens = self.options.answer_tokens;
        let mut prompts = Vec::new();
        for prompt in &self.options.prompts {
            let encoded =
                engine.encode_prompt(prompt).map_err(|cause| engine_error(setting, cause))?;
            if encoded.len() + tokens + LONGEST < context {
                prompts.push(encoded);
            }
        }
        match prompts.is_empty() {
            true => Err(PlanningError::NoPrompts { context, tokens }),
            false => Ok(Bench { engine, prompts }),
        }
    }

    /// Returns the target's own answers, with the time of each token in nanoseconds.
    fn texts(
        &self,
        bench: &Bench,
        setting: &Setting,
    ) -> Result<Vec<(Vec<TokenId>, f64)>, PlanningError> {
        let text = |prompt: &Vec<TokenId>| {
            let answer = self.answer(&bench.engine, setting, prompt, 0)?;
            let ns = answer.total_ns as f64 / answer.tokens.len().max(1) as f64;
            Ok((answer.tokens, ns))
        };
        bench.prompts.iter().map(text).collect()
    }

    /// Reduces prompts and tokens if the measurements would take much longer than they should.
    fn fit_to_time(&mut self, texts: &mut Vec<(Vec<TokenId>, f64)>) {
        let token_ns = texts.iter().map(|text| text.1).fold(f64::INFINITY, f64::min);
        let runs = (self.settings.len() * self.options.lengths.len().max(1)) as f64;
        let fitting = self.options.time.as_nanos() as f64 / (runs * token_ns.max(1.0));
        let tokens =
            self.options.answer_tokens.min(LEAST_TOKENS.max(fitting as usize / LEAST_PROMPTS));
        let prompts = LEAST_PROMPTS.max(fitting as usize / tokens.max(1)).min(texts.len());
        self.options.answer_tokens = tokens;
        self.options.prompts.truncate(prompts);
        texts.truncate(prompts);
        texts.iter_mut().for_each(|text| text.0.truncate(tokens));
    }

    /// Returns where a drafter agrees with the target's answers.
    fn record(
        &self,
        bench: &Bench,
        setting: &Setting,
        texts: &[(Vec<TokenId>, f64)],
    ) -> Result<DrafterRecord, PlanningError> {
        let name = setting.plan.drafter().to_string();
        let model = Some(named(setting.plan.draft_model())).filter(|name| !name.is_empty());
        let mut record = DrafterRecord { name, model, ..DrafterRecord::default() };
        let has_model = setting.plan.drafter().has_model();
        let mut cluster = bench.engine.cluster();
        for (index, (prompt, (answer, _))) in bench.prompts.iter().zip(texts).enumerate() {
            let text = [&prompt[..], answer].concat();
            // The engine's own sequences count up from 0.
            let sequence = SequenceId(u64::MAX - index as u64);
            let (mut line, mut drafts) = (String::new(), Vec::new());
            for end in prompt.len()..text.len() {
                let job = Job::Draft {
                    sequence,
                    tokens: text[..end].into(),
                    prompt_len: prompt.len(),
                    sampling: Sampling::greedy(),
                    shape: DraftShape::Chain { length: if has_model { 1 } else { LONGEST } },
                    feedback: TargetFeedback::default(),
                };
                let failed =
                    |cause: String| PlanningError::Job { setting: setting.to_string(), cause };
                cluster.submit(Role::Drafter(0), job).map_err(|error| failed(error.to_string()))?;
                let completion =
                    cluster.next_completion().map_err(|error| failed(error.to_string()))?;
                let tokens = match completion.output {
                    Ok(JobOutput::Draft(draft)) => draft.tree.tokens().to_vec(),
                    Ok(JobOutput::Score(_)) => Vec::new(),
                    Err(error) => return Err(failed(error.to_string())),
                };
                let agreed = tokens.iter().zip(&text[end..]).take_while(|(a, b)| a == b).count();
                line.push(if agreed > 0 { '1' } else { '0' });
                drafts.push((tokens.len(), agreed));
            }
            cluster.release(sequence);
            match has_model {
                true => record.agreement.push(line),
                false => record.drafts.push(drafts),
            }
        }
        Ok(record)
    }

    /// Measures the answers of a setting to all prompts with all measured lengths, again and again for its part of
    /// the time.
    fn answers(
        &self,
        bench: &Bench,
        setting: &Setting,
        texts: &[(Vec<TokenId>, f64)],
    ) -> Result<Vec<MeasuredAnswer>, PlanningError> {
        let lengths: &[usize] =
            if setting.plan.method().drafts() { &self.options.lengths } else { &[0] };
        let time = self.options.time.as_secs_f64() / self.settings.len() as f64;
        let started = Instant::now();
        let mut answers = Vec::new();
        // The first answer warms up.
        self.answer(&bench.engine, setting, &bench.prompts[0], lengths[0])?;
        loop {
            for (index, (prompt, (text, _))) in bench.prompts.iter().zip(texts).enumerate() {
                for &draft_tokens in lengths {
                    let answer = self.answer(&bench.engine, setting, prompt, draft_tokens)?;
                    if answer.tokens != *text {
                        return Err(PlanningError::ChangedText(setting.to_string()));
                    }
                    let (tokens, decode_ns) = after_first_step(&answer);
                    let trace = answer.trace;
                    answers.push(MeasuredAnswer {
                        prompt: index,
                        draft_tokens,
                        tokens,
                        decode_ns,
                        trace,
                    });
                }
            }
            if started.elapsed().as_secs_f64() >= time {
                return Ok(answers);
            }
        }
    }

    /// Generates a greedy answer with the method of a setting and drafts of this length; 0 leaves it to the engine.
    pub(super) fn answer(
        &self,
        engine: &Forerun,
        setting: &Setting,
        prompt: &[TokenId],
        draft_tokens: usize,
    ) -> Result<Answer, PlanningError> {
        let request = Request {
            max_tokens: self.options.answer_tokens,
            ignore_eos: true,
            draft_tokens: (draft_tokens > 0).then_some(draft_tokens),
            ..Request::default()
        };
        let method: Method = setting.plan.method();
        let answer = || -> Result<Answer, ForerunError> {
            for event in engine.stream_tokens(prompt.to_vec(), &request, method, &self.canceller)? {
                // An interrupted answer says nothing.
                if let AnswerEvent::Finished(answer) = event?
                    && answer.finish != Finish::Stopped
                {
                    return Ok(*answer);
                }
            }
            Err(ForerunError::Cancelled)
        };
        answer().map_err(|cause| engine_error(setting, cause))
    }

    /// Returns the timing of a setting without times.
    fn timing_of(&mut self, bench: &Bench, setting: &Setting) -> MethodTiming {
        let plan = &setting.plan;
        let passes = |model: String, layers: usize| MeasuredPasses {
            model,
            layers,
            first_ms: 0.0,
            rows_ms: Vec::new(),
            next_ms: None,
        };
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
            replicas: plan.placement().replicas(),
            link_ms: 0.0,
            scale: Vec::new(),
            target: passes(plan.model().to_string(), bench.engine.config().num_hidden_layers),
            drafter_passes: drafter,
        }
    }
}

/// Returns the name of a model in options; empty for a part of the program, which has none.
fn named(model: Option<&ModelSource>) -> String {
    match model {
        None | Some(ModelSource::Embedded(_)) => String::new(),
        Some(model) => model.to_string(),
    }
}

/// The least number of prompts and of answer tokens of slow models.
const LEAST_PROMPTS: usize = 2;
const LEAST_TOKENS: usize = 24;

/// Returns the tokens after the first step, and their time in nanoseconds.
pub(super) fn after_first_step(answer: &Answer) -> (usize, u64) {
    let first = answer.commits.first();
    let (at_ns, tokens) = first.map_or((0, 0), |commit| (commit.at_ns, commit.tokens));
    let last_ns = answer.commits.last().map_or(0, |commit| commit.at_ns);
    (answer.tokens.len().saturating_sub(tokens), last_ns.saturating_sub(at_ns))
}

pub(super) fn engine_error(setting: &Setting, cause: ForerunError) -> PlanningError {
    PlanningError::Engine { setting: setting.to_string(), cause: Box::new(cause) }
}

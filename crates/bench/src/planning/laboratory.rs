//! Short answers of real engines, one engine at a time.

use super::recording::{LONGEST, Recorder};
use super::{PlanningError, Setting};
use forerun::{
    Answer, AnswerEvent, Canceller, Checkpoint, Commit, Finish, Forerun, ForerunError, Loader,
    Method, ModelSource, Request, TokenId, Tree,
};
use forerun_sim::MeasuredPasses;
use forerun_sim::planning::{
    DrafterRecord, HardwareProfile, MeasuredAnswer, MethodTiming, PlannedDraft, Source, fit,
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
    /// The drafts of the measured answers; the simulator predicts the others.
    pub drafts: Vec<PlannedDraft>,
    /// The time for all measurements, with the records of drafters. Each answer is measured at least once.
    pub time: Duration,
    /// The hardware, in words.
    pub hardware: String,
}

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

/// What is known of the settings so far.
#[derive(Default)]
struct Measured {
    /// The target's own answers, with the time of each token in nanoseconds.
    texts: Vec<(Vec<TokenId>, f64)>,
    drafters: Vec<DrafterRecord>,
    /// The drafters whose drafts are translated between vocabularies.
    chains_only: Vec<Option<String>>,
    /// The timings without times and the answers, by the index of the setting.
    answers: BTreeMap<usize, (MethodTiming, Vec<MeasuredAnswer>)>,
}

/// The number of times that all settings are measured in turn.
const ROUNDS: usize = 3;

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

    /// Returns the number of turns of all settings, if there is time for all of them.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.settings.len() * ROUNDS
    }

    /// Measures all settings, several times in turn as long as there is time. So a machine that changes its speed changes
    /// it for all of them. `progress` gets each setting before each of its [turns](Self::turns).
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, or two methods give different texts.
    pub fn measure(
        &mut self,
        mut progress: impl FnMut(&Setting),
    ) -> Result<HardwareProfile, PlanningError> {
        let started = Instant::now();
        let mut measured = Measured::default();
        for round in 0..ROUNDS {
            if round > 0 && started.elapsed() >= self.options.time {
                break;
            }
            for group in self.groups() {
                self.measure_group(&group, &mut measured, &mut progress)?;
            }
        }
        let mut profile = self.empty_profile();
        let mut settings = Vec::new();
        for (index, (timing, answers)) in measured.answers {
            let name = timing.drafter.as_ref();
            let record = measured.drafters.iter().find(|known| Some(&known.name) == name);
            profile.timings.push(fit(timing, &answers, record)?);
            settings.push(self.settings[index].clone());
        }
        profile.drafters = measured.drafters;
        self.settings = settings;
        Ok(profile)
    }

    /// Measures the settings of an engine once.
    fn measure_group(
        &mut self,
        group: &[usize],
        measured: &mut Measured,
        progress: &mut impl FnMut(&Setting),
    ) -> Result<(), PlanningError> {
        // Drafts that are translated between vocabularies are chains.
        let first = &self.settings[group[0]];
        if first.is_tree() && measured.chains_only.contains(&first.drafter()) {
            return Ok(());
        }
        let bench = self.open(group)?;
        if bench.engine.translates_drafts() {
            measured.chains_only.push(self.settings[group[0]].drafter());
        }
        for &index in group {
            let setting = self.settings[index].clone();
            progress(&setting);
            if measured.texts.is_empty() {
                measured.texts = self.texts(&bench, &setting)?;
                self.fit_to_time(&mut measured.texts);
            }
            let until = Instant::now() + self.options.time / self.turns().max(1) as u32;
            if let Some(name) = setting.drafter()
                && !measured.drafters.iter().any(|known| known.name == name)
            {
                let with_ranks = self.drafts_trees(&setting) && !bench.engine.translates_drafts();
                let recorder = Recorder { bench: &bench, setting: &setting, with_ranks };
                measured.drafters.push(recorder.record(&measured.texts)?);
            }
            let name = setting.drafter();
            let record = measured.drafters.iter().find(|known| Some(&known.name) == name.as_ref());
            let answers = self.answers(&bench, &setting, record, &measured.texts, until)?;
            match measured.answers.get_mut(&index) {
                Some((_, earlier)) => earlier.extend(answers),
                None => {
                    let timing = self.timing_of(&bench, &setting);
                    measured.answers.insert(index, (timing, answers));
                }
            }
        }
        Ok(())
    }

    /// Returns a profile with the options of all settings, without costs.
    fn empty_profile(&self) -> HardwareProfile {
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
            let answer = self.answer(&bench.engine, setting, prompt, PlannedDraft::Chain(0))?;
            let ns = answer.total_ns as f64 / answer.tokens.len().max(1) as f64;
            Ok((answer.tokens, ns))
        };
        bench.prompts.iter().map(text).collect()
    }

    /// Reduces prompts and tokens if the measurements would take much longer than they should.
    fn fit_to_time(&mut self, texts: &mut Vec<(Vec<TokenId>, f64)>) {
        let token_ns = texts.iter().map(|text| text.1).fold(f64::INFINITY, f64::min);
        let answers =
            self.settings.iter().map(|setting| setting.drafts_of(&self.options.drafts).len());
        // What a drafter drafts from a token is recorded in about the time of a token, and the ranks in twice that.
        let with_trees: BTreeMap<_, _> = self
            .settings
            .iter()
            .filter_map(|setting| Some((setting.drafter()?, self.drafts_trees(setting))))
            .collect();
        let records = with_trees.values().map(|&with_trees| if with_trees { 3 } else { 1 });
        let runs = answers.chain(records).sum::<usize>() as f64;
        let fitting = self.options.time.as_nanos() as f64 / (runs * token_ns.max(1.0));
        let tokens =
            self.options.answer_tokens.min(LEAST_TOKENS.max(fitting as usize / LEAST_PROMPTS));
        let prompts = LEAST_PROMPTS.max(fitting as usize / tokens.max(1)).min(texts.len());
        self.options.answer_tokens = tokens;
        self.options.prompts.truncate(prompts);
        texts.truncate(prompts);
        texts.iter_mut().for_each(|text| text.0.truncate(tokens));
    }

    /// Returns whether trees of the drafter of a setting are planned.
    fn drafts_trees(&self, setting: &Setting) -> bool {
        let of_same = |other: &&Setting| other.drafter() == setting.drafter();
        self.settings.iter().filter(of_same).any(Setting::is_tree)
    }

    /// Measures the answers of a setting to all prompts with all measured drafts, once and again as long as there is
    /// time.
    fn answers(
        &self,
        bench: &Bench,
        setting: &Setting,
        drafter: Option<&DrafterRecord>,
        texts: &[(Vec<TokenId>, f64)],
        until: Instant,
    ) -> Result<Vec<MeasuredAnswer>, PlanningError> {
        let drafts = setting.drafts_of(&self.options.drafts);
        let drafts = drafter.map_or(drafts.clone(), |drafter| drafter.distinct(&drafts));
        let mut answers = Vec::new();
        // The first answer warms up.
        for &draft in &drafts[..1] {
            self.answer(&bench.engine, setting, &bench.prompts[0], draft)?;
        }
        loop {
            for (index, (prompt, (text, _))) in bench.prompts.iter().zip(texts).enumerate() {
                for &draft in &drafts {
                    let answer = self.answer(&bench.engine, setting, prompt, draft)?;
                    if answer.tokens != *text {
                        return Err(PlanningError::ChangedText(setting.to_string()));
                    }
                    let decode_ns = decode_ns(&answer);
                    let (tokens, trace) = (answer.tokens.len(), answer.trace);
                    answers.push(MeasuredAnswer { prompt: index, draft, tokens, decode_ns, trace });
                }
            }
            if Instant::now() >= until {
                return Ok(answers);
            }
        }
    }

    /// Generates a greedy answer with the method of a setting and these drafts. The engine chooses automatic sizes.
    pub(super) fn answer(
        &self,
        engine: &Forerun,
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

/// Returns the time from the first token to the last one in nanoseconds.
pub(super) fn decode_ns(answer: &Answer) -> u64 {
    let at_ns = |commit: Option<&Commit>| commit.map_or(0, |commit| commit.at_ns);
    at_ns(answer.commits.last()).saturating_sub(at_ns(answer.commits.first()))
}

pub(super) fn engine_error(setting: &Setting, cause: ForerunError) -> PlanningError {
    PlanningError::Engine { setting: setting.to_string(), cause: Box::new(cause) }
}

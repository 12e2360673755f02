//! The order of measurements: settings take turns.

use super::laboratory::{Bench, decode_ns};
use super::recording::Recorder;
use super::{Laboratory, PlanningError, Setting};
use forerun::TokenId;
use forerun_sim::planning::{
    DrafterRecord, HardwareProfile, MeasuredAnswer, MethodTiming, PlannedDraft, fit,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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
    /// The times of a token in nanoseconds, by prompt and round, of the answers of a check.
    checks: BTreeMap<(usize, PlannedDraft), Vec<Vec<f64>>>,
    /// The time of the measurements so far, without checks.
    time: Duration,
    /// What the current turn does.
    turn: Turn,
}

/// What a turn of the settings does.
#[derive(Clone, Copy, Default)]
struct Turn {
    measures: bool,
    checks: bool,
}

/// The number of times that all settings are measured in turn.
const ROUNDS: usize = 3;

impl Laboratory<'_> {
    /// Returns the number of turns of all settings, if there is time for all of them.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.settings.len() * self.rounds()
    }

    fn rounds(&self) -> usize {
        ROUNDS.max(self.options.check.as_ref().map_or(0, |check| check.rounds))
    }

    /// Measures all settings, several times in turn as long as there is time, and runs what is to be checked. So a machine
    /// that changes its speed changes it for all of them. `progress` gets each setting before each of its [turns](Self::turns).
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, or two methods give different texts.
    pub fn measure(
        &mut self,
        mut progress: impl FnMut(&Setting),
    ) -> Result<HardwareProfile, PlanningError> {
        let mut measured = Measured::default();
        for round in 0..self.rounds() {
            let is_measured = round < ROUNDS && measured.time < self.options.time;
            measured.turn = Turn {
                measures: round == 0 || is_measured,
                checks: self.options.check.as_ref().is_some_and(|check| round < check.rounds),
            };
            if !measured.turn.measures && !measured.turn.checks {
                break;
            }
            for group in self.groups() {
                self.measure_group(&group, &mut measured, &mut progress)?;
            }
        }
        for ((index, draft), times) in std::mem::take(&mut measured.checks) {
            let timing = measured.answers.range(..index).count();
            self.checks.insert((timing, draft), times);
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

    /// Measures the settings of an engine in their turn, and runs those that are to be checked.
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
            let started = Instant::now();
            let part = (self.settings.len() * ROUNDS).max(1) as u32;
            let until = started + self.options.time / part;
            if let Some(name) = setting.drafter()
                && !measured.drafters.iter().any(|known| known.name == name)
            {
                let with_ranks = self.drafts_trees(&setting) && !bench.engine.translates_drafts();
                let recorder = Recorder { bench: &bench, setting: &setting, with_ranks };
                measured.drafters.push(recorder.record(&measured.texts)?);
            }
            let name = setting.drafter();
            let record = measured.drafters.iter().find(|known| Some(&known.name) == name.as_ref());
            if measured.turn.measures {
                let answers = self.answers(&bench, &setting, record, &measured.texts, until)?;
                match measured.answers.get_mut(&index) {
                    Some((_, earlier)) => earlier.extend(answers),
                    None => {
                        let timing = self.timing_of(&bench, &setting);
                        measured.answers.insert(index, (timing, answers));
                    }
                }
                measured.time += started.elapsed();
            }
            if let Some(check) = self.options.check.as_ref().filter(|_| measured.turn.checks) {
                let drafts = setting.drafts_of(&check.drafts);
                for draft in record.map_or(drafts.clone(), |record| record.distinct(&drafts)) {
                    let times = measured.checks.entry((index, draft)).or_default();
                    self.check_once(&bench, &setting, draft, times)?;
                }
            }
        }
        Ok(())
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
}

/// The least number of prompts and of answer tokens of slow models.
const LEAST_PROMPTS: usize = 2;
const LEAST_TOKENS: usize = 24;

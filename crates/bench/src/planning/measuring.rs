//! The order of measurements: settings take turns.

use super::laboratory::{Bench, decode_ns};
use super::recording::Recorder;
use super::{Laboratory, PlanningError, Setting};
use forerun::{Method, TokenId};
use forerun_sim::planning::{
    DrafterRecord, HardwareProfile, MeasuredAnswer, MethodTiming, PlannedDraft, fit, ns_per_token,
};
use std::collections::{BTreeMap, BTreeSet};
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
    /// The times of the answers of a check, by the index of the setting.
    checked: BTreeMap<usize, Times>,
    /// The time of the measurements so far, without checks.
    time: Duration,
}

/// The turn of a setting.
struct Turn<'t> {
    bench: &'t Bench,
    setting: &'t Setting,
    /// The target's own answers.
    texts: &'t [(Vec<TokenId>, f64)],
    /// The drafts that are measured, and those that are checked.
    measured: Vec<PlannedDraft>,
    checked: Vec<PlannedDraft>,
    /// The time that measurements may take.
    time: Duration,
}

/// The times of a token in nanoseconds, by draft, prompt and round.
type Times = BTreeMap<PlannedDraft, Vec<Vec<f64>>>;

/// The number of times that all settings are measured in turn.
const ROUNDS: usize = 3;

impl Laboratory<'_> {
    /// Returns the number of turns of all settings, if there is time for all of them.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.settings.len() * self.rounds()
    }

    fn rounds(&self) -> usize {
        self.options.check.as_ref().map_or(ROUNDS, |check| check.rounds)
    }

    /// Measures all settings, several times in turn as long as there is time, and runs what is to
    /// be checked. So a machine that changes its speed changes it for all of them. `progress` gets
    /// each setting before each of its [turns](Self::turns).
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, or two methods give different texts.
    pub fn measure(
        &mut self,
        mut progress: impl FnMut(&Setting),
    ) -> Result<HardwareProfile, PlanningError> {
        let mut measured = Measured::default();
        for round in 0..self.rounds() {
            let is_over = measured.time >= self.options.time;
            if round > 0 && is_over && self.options.check.is_none() {
                break;
            }
            for group in self.groups() {
                self.measure_group(&group, &mut measured, &mut progress)?;
            }
        }
        // A choice of methods that has hardly drafted does not show what drafts cost: the first one
        // reads the prompt.
        let has_drafted = |answer: &MeasuredAnswer| answer.drafts().nth(1).is_some();
        measured.answers.retain(|&index, (_, answers)| {
            let is_choice = self.settings[index].plan.method() == Method::Auto;
            !is_choice || answers.iter().any(has_drafted)
        });
        measured.checked.retain(|index, _| measured.answers.contains_key(index));
        for (index, times) in std::mem::take(&mut measured.checked) {
            let timing = measured.answers.range(..index).count();
            self.checks.extend(times.into_iter().map(|(draft, times)| ((timing, draft), times)));
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
            if let Some(name) = setting.drafter()
                && !measured.drafters.iter().any(|known| known.name == name)
            {
                let with_ranks = self.drafts_trees(&setting) && !bench.engine.translates_drafts();
                let recorder = Recorder { bench: &bench, setting: &setting, with_ranks };
                measured.drafters.push(recorder.record(&measured.texts)?);
            }
            let recording = started.elapsed();
            let name = setting.drafter();
            let record = measured.drafters.iter().find(|known| Some(&known.name) == name.as_ref());
            let drafts = |drafts: &[PlannedDraft]| {
                let drafts = setting.drafts_of(drafts);
                record.map_or(drafts.clone(), |record| record.distinct(&drafts))
            };
            let check = self.options.check.as_ref();
            let part = self.options.time / self.turns().max(1) as u32;
            let turn = Turn {
                bench: &bench,
                setting: &setting,
                texts: &measured.texts,
                measured: drafts(&self.options.drafts),
                checked: check.map_or_else(Vec::new, |check| drafts(&check.drafts)),
                time: part.saturating_sub(recording),
            };
            let times = measured.checked.entry(index).or_default();
            let (answers, time) = self.answers(&turn, times)?;
            measured.time += recording + time;
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
        // What a drafter drafts from a token is recorded in about the time of a token, and the
        // ranks in twice that.
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

    /// Measures the answers of a setting to all prompts with all measured drafts, once and again as
    /// long as there is time, and returns them with the time that they took. With a check, there is
    /// one answer for each, next to that of the check.
    fn answers(
        &self,
        turn: &Turn<'_>,
        times: &mut Times,
    ) -> Result<(Vec<MeasuredAnswer>, Duration), PlanningError> {
        let drafts: BTreeSet<_> = turn.measured.iter().chain(&turn.checked).copied().collect();
        let (mut answers, mut time) = (Vec::new(), Duration::ZERO);
        self.warm_up(turn, &drafts)?;
        loop {
            for (index, (prompt, (text, _))) in
                turn.bench.prompts.iter().zip(turn.texts).enumerate()
            {
                for &draft in &drafts {
                    let answer = || self.answer(&turn.bench.engine, turn.setting, prompt, draft);
                    if turn.measured.contains(&draft) {
                        let started = Instant::now();
                        let answer = answer()?;
                        time += started.elapsed();
                        if answer.tokens != *text {
                            return Err(PlanningError::ChangedText(turn.setting.to_string()));
                        }
                        let decode_ns = decode_ns(&answer);
                        let (tokens, trace) = (answer.tokens.len(), answer.trace);
                        let prompt = index;
                        answers.push(MeasuredAnswer { prompt, draft, tokens, decode_ns, trace });
                    }
                    if turn.checked.contains(&draft) {
                        let answer = answer()?;
                        let times = times.entry(draft).or_default();
                        times.resize(turn.texts.len(), Vec::new());
                        times[index].push(ns_per_token(answer.tokens.len(), decode_ns(&answer)));
                    }
                }
            }
            // As many answers are measured as are checked: the fastest of more answers are faster.
            if time >= turn.time || !turn.checked.is_empty() {
                return Ok((answers, time));
            }
        }
    }

    /// Warms up a new engine, and lets it learn sizes that are chosen while decoding.
    fn warm_up(
        &self,
        turn: &Turn<'_>,
        drafts: &BTreeSet<PlannedDraft>,
    ) -> Result<(), PlanningError> {
        let (engine, prompts) = (&turn.bench.engine, &turn.bench.prompts);
        for &draft in drafts.iter().take(1) {
            self.answer(engine, turn.setting, &prompts[0], draft)?;
        }
        for &draft in drafts.iter().filter(|draft| draft.is_auto()) {
            for prompt in prompts {
                self.answer(engine, turn.setting, prompt, draft)?;
            }
        }
        Ok(())
    }
}

/// The least number of prompts and of answer tokens of slow models.
const LEAST_PROMPTS: usize = 2;
const LEAST_TOKENS: usize = 24;

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::planning::{MeasurementOptions, settings};
    use forerun::{Canceller, DrafterKind, Loader, Options};

    #[test]
    fn records_take_part_of_the_time() {
        let options = Options {
            model: "target".into(),
            draft_model: Some("drafter".into()),
            drafter: Some(DrafterKind::Model),
            method: Some(Method::Speculative),
            threads: Some(1),
            ..Options::default()
        };
        let settings = settings(&options).unwrap();
        let measurement = MeasurementOptions {
            prompts: vec![String::new(); 2],
            answer_tokens: 100,
            drafts: vec![PlannedDraft::Chain(2), PlannedDraft::Tree(8)],
            time: Duration::from_millis(600),
            hardware: String::new(),
            check: None,
        };
        let loader = Loader::new();
        let mut laboratory = Laboratory::new(settings, measurement, loader, Canceller::new());
        // A token takes a millisecond. Plain decoding, chains and trees have an answer each, and
        // the ranks are recorded in the time of three: 600 tokens are 50 for each of two prompts.
        let mut texts = vec![(vec![TokenId::MIN; 100], 1e6); 2];
        laboratory.fit_to_time(&mut texts);
        assert_eq!(texts.iter().map(|text| text.0.len()).collect::<Vec<_>>(), [50, 50]);
    }
}

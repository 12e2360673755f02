//! The order of measurements: settings take turns.

use super::laboratory::{Bench, ns_per_token};
use super::recording::Recorder;
use super::{Laboratory, PlanningError, Setting};
use forerun::{Method, TokenId};
use forerun_sim::planning::{
    DrafterRecord, HardwareProfile, MeasuredAnswer, MethodTiming, PlannedDraft, fit,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What is known of the settings so far.
#[derive(Default)]
struct Measured {
    /// The target's own answers.
    texts: Vec<Vec<TokenId>>,
    drafters: Vec<DrafterRecord>,
    /// The drafters whose drafts are translated between vocabularies.
    chains_only: Vec<Option<String>>,
    /// The timings without times and the answers, by the index of the setting.
    answers: BTreeMap<usize, (MethodTiming, Vec<MeasuredAnswer>)>,
    /// The times of the answers of a check, by the index of the setting.
    checked: BTreeMap<usize, Times>,
    /// The number of turns that are over, and that of their answers.
    turns: usize,
    turn_answers: usize,
}

/// The turn of a setting.
struct Turn<'t> {
    bench: &'t Bench,
    setting: &'t Setting,
    /// The target's own answers.
    texts: &'t [Vec<TokenId>],
    /// Whether the engine has just written these texts.
    is_warm: bool,
    /// The drafts that are measured, and those that are checked.
    measured: Vec<PlannedDraft>,
    checked: Vec<PlannedDraft>,
}

/// The times of a token in nanoseconds, by draft, prompt and round.
type Times = BTreeMap<PlannedDraft, Vec<Vec<f64>>>;

/// How far measurements are.
#[derive(Clone, Copy, Debug)]
pub struct MeasuringProgress<'a> {
    /// What is measured next.
    pub setting: &'a Setting,
    /// The number of turns of settings that are over.
    pub done: usize,
    /// The number of all turns, if there is time for them.
    pub all: usize,
    /// An estimate of the time that is left, if one is known.
    pub left: Option<Duration>,
}

/// The number of times that all settings are measured in turn, if there is time for it.
const ROUNDS: usize = 3;

impl Laboratory<'_> {
    /// Returns the number of settings.
    #[must_use]
    pub fn settings(&self) -> usize {
        self.settings.len()
    }

    /// Returns the settings that [`measure`](Self::measure) left out, because there was no time.
    #[must_use]
    pub fn left_out(&self) -> &[Setting] {
        &self.left_out
    }

    fn rounds(&self) -> usize {
        match &self.options.check {
            Some(check) => check.rounds,
            None if self.options.time.is_none() => 1,
            None => ROUNDS,
        }
    }

    /// Measures all settings, several times in turn as long as there is time, and runs what is to
    /// be checked. So a machine that changes its speed changes it for all of them. If the
    /// measurements are cancelled, or their time is over, the profile has the settings that were
    /// measured until then. `progress` is called before each turn of a setting.
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, two methods give different texts, or the
    /// measurements were cancelled before plain decoding and one method were measured.
    pub fn measure(
        &mut self,
        mut progress: impl FnMut(MeasuringProgress<'_>),
    ) -> Result<HardwareProfile, PlanningError> {
        let mut measured = Measured::default();
        match self.measure_rounds(&mut measured, &mut progress) {
            Err(PlanningError::Stopped) if self.has_result => {}
            result => result?,
        }
        let settings = self.settings.iter().enumerate();
        let is_left_out = |(index, setting): &(usize, &Setting)| {
            !measured.answers.contains_key(index) && !measured.has_no_trees(setting)
        };
        self.left_out = settings.filter(is_left_out).map(|(_, setting)| setting.clone()).collect();
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

    /// Measures all settings in turn, and again as long as there is time for all of them.
    fn measure_rounds(
        &mut self,
        measured: &mut Measured,
        progress: &mut impl FnMut(MeasuringProgress<'_>),
    ) -> Result<(), PlanningError> {
        for _ in 0..self.rounds() {
            let started = Instant::now();
            for group in self.groups() {
                self.measure_group(&group, measured, progress)?;
            }
            // The fastest of more answers are faster: all settings have as many.
            if self.time_left().is_some_and(|left| left < started.elapsed()) {
                break;
            }
        }
        Ok(())
    }

    /// Measures the settings of an engine in their turn, and runs those that are to be checked.
    fn measure_group(
        &mut self,
        group: &[usize],
        measured: &mut Measured,
        progress: &mut impl FnMut(MeasuringProgress<'_>),
    ) -> Result<(), PlanningError> {
        if measured.has_no_trees(&self.settings[group[0]]) {
            return Ok(());
        }
        if self.must_stop() {
            return Err(PlanningError::Stopped);
        }
        let bench = self.open(group)?;
        if bench.engine.translates_drafts() {
            measured.chains_only.push(self.settings[group[0]].drafter());
        }
        for &index in group {
            let setting = self.settings[index].clone();
            progress(MeasuringProgress {
                setting: &setting,
                done: measured.turns,
                all: self.settings.len() * self.rounds(),
                left: self.expected_left(measured),
            });
            let is_warm = measured.texts.is_empty();
            if is_warm {
                let token_ns = self.token_ns(&bench, &setting)?;
                let time = self.time_left().or(self.options.time).unwrap_or_default();
                self.fit_to_time(token_ns, time);
                measured.texts = self.texts(&bench, &setting)?;
            }
            if let Some(name) = setting.drafter()
                && !measured.drafters.iter().any(|known| known.name == name)
            {
                let with_ranks = self.drafts_trees(&setting) && !bench.engine.translates_drafts();
                let must_stop = || self.must_stop();
                let recorder = Recorder {
                    bench: &bench,
                    setting: &setting,
                    with_ranks,
                    must_stop: &must_stop,
                };
                measured.drafters.push(recorder.record(&measured.texts)?);
            }
            let name = setting.drafter();
            let record = measured.drafters.iter().find(|known| Some(&known.name) == name.as_ref());
            let drafts = |drafts: &[PlannedDraft]| {
                let drafts = setting.drafts_of(drafts);
                record.map_or(drafts.clone(), |record| record.distinct(&drafts))
            };
            let check = self.options.check.as_ref();
            let turn = Turn {
                bench: &bench,
                setting: &setting,
                texts: &measured.texts,
                is_warm,
                measured: drafts(&self.options.drafts),
                checked: check.map_or_else(Vec::new, |check| drafts(&check.drafts)),
            };
            let times = measured.checked.entry(index).or_default();
            let answers = self.answers(&turn, times)?;
            match measured.answers.get_mut(&index) {
                Some((_, earlier)) => earlier.extend(answers),
                None => {
                    let timing = self.timing_of(&bench, &setting);
                    measured.answers.insert(index, (timing, answers));
                }
            }
            self.has_result |= setting.drafter().is_some();
            measured.turns += 1;
            measured.turn_answers += self.answers_in_turn(&setting);
        }
        Ok(())
    }

    /// Returns the number of answers of a setting to each prompt in a turn, with those that warm up
    /// sizes that are chosen while decoding.
    fn answers_in_turn(&self, setting: &Setting) -> usize {
        let answers = |drafts: &[PlannedDraft]| {
            let drafts = setting.drafts_of(drafts);
            drafts.len() + drafts.iter().filter(|draft| draft.is_auto()).count()
        };
        let check = self.options.check.as_ref();
        answers(&self.options.drafts) + check.map_or(0, |check| answers(&check.drafts))
    }

    /// Returns the time that is left, if all turns take as long as those that are over; at most
    /// that until measurements must end.
    fn expected_left(&self, measured: &Measured) -> Option<Duration> {
        let of_round: usize =
            self.settings.iter().map(|setting| self.answers_in_turn(setting)).sum();
        let (done, all) = (measured.turn_answers, of_round * self.rounds());
        let expected = (done > 0).then(|| {
            let ratio = all.saturating_sub(done) as f64 / done as f64;
            self.started.elapsed().mul_f64(ratio)
        });
        [expected, self.time_left()].into_iter().flatten().min()
    }

    /// Returns the time of a token of plain decoding in nanoseconds, from a short answer.
    fn token_ns(&mut self, bench: &Bench, setting: &Setting) -> Result<f64, PlanningError> {
        let tokens = self.options.answer_tokens;
        self.options.answer_tokens = tokens.min(LEAST_TOKENS);
        let answer = self.answer(&bench.engine, setting, &bench.prompts[0], PlannedDraft::Chain(0));
        self.options.answer_tokens = tokens;
        Ok(ns_per_token(&answer?))
    }

    /// Returns the target's own answers to the prompts.
    fn texts(&self, bench: &Bench, setting: &Setting) -> Result<Vec<Vec<TokenId>>, PlanningError> {
        let mut texts = Vec::new();
        for prompt in bench.prompts.iter().take(self.options.prompts.len()) {
            if texts.is_empty() || !self.is_over() {
                let answer = self.answer(&bench.engine, setting, prompt, PlannedDraft::Chain(0));
                texts.push(answer?.tokens);
            }
        }
        Ok(texts)
    }

    /// Reduces prompts and tokens if one round of measurements would take longer than `time`.
    fn fit_to_time(&mut self, token_ns: f64, time: Duration) {
        let answers = self.settings.iter().map(|setting| self.answers_in_turn(setting));
        // What a drafter drafts from a token is recorded in about the time of a token, and the
        // ranks in twice that.
        let with_trees: BTreeMap<_, _> = self
            .settings
            .iter()
            .filter_map(|setting| Some((setting.drafter()?, self.drafts_trees(setting))))
            .collect();
        let records = with_trees.values().map(|&with_trees| if with_trees { 3 } else { 1 });
        let runs = answers.chain(records).sum::<usize>() as f64;
        let fitting = time.as_nanos() as f64 / (runs * token_ns.max(1.0) * SLOWER);
        let tokens =
            self.options.answer_tokens.min(LEAST_TOKENS.max(fitting as usize / LEAST_PROMPTS));
        let prompts = LEAST_PROMPTS.max(fitting as usize / tokens.max(1));
        self.options.answer_tokens = tokens;
        self.options.prompts.truncate(prompts);
    }

    /// Returns whether trees of the drafter of a setting are planned.
    fn drafts_trees(&self, setting: &Setting) -> bool {
        let of_same = |other: &&Setting| other.drafter() == setting.drafter();
        self.settings.iter().filter(of_same).any(Setting::is_tree)
    }

    /// Measures the answers of a setting to all prompts with all measured drafts. Those of a check
    /// are next to them.
    fn answers(
        &self,
        turn: &Turn<'_>,
        times: &mut Times,
    ) -> Result<Vec<MeasuredAnswer>, PlanningError> {
        let drafts: BTreeSet<_> = turn.measured.iter().chain(&turn.checked).copied().collect();
        let mut answers = Vec::new();
        if !turn.is_warm {
            self.warm_up(turn, &drafts)?;
        }
        for (index, (prompt, text)) in turn.bench.prompts.iter().zip(turn.texts).enumerate() {
            for &draft in &drafts {
                // What is measured in any case takes no longer than it must.
                if !answers.is_empty() && !self.has_result && self.is_over() {
                    return Ok(answers);
                }
                let answer = || self.answer(&turn.bench.engine, turn.setting, prompt, draft);
                if turn.measured.contains(&draft) {
                    let answer = answer()?;
                    if answer.tokens != *text {
                        return Err(PlanningError::ChangedText(turn.setting.to_string()));
                    }
                    let (tokens, ns_per_token) = (answer.tokens.len(), ns_per_token(&answer));
                    let (prompt, trace) = (index, answer.trace);
                    answers.push(MeasuredAnswer { prompt, draft, tokens, ns_per_token, trace });
                }
                if turn.checked.contains(&draft) {
                    let answer = answer()?;
                    let times = times.entry(draft).or_default();
                    times.resize(turn.texts.len(), Vec::new());
                    times[index].push(ns_per_token(&answer));
                }
            }
        }
        Ok(answers)
    }

    /// Warms up a new engine, and lets it learn sizes that are chosen while decoding.
    fn warm_up(
        &self,
        turn: &Turn<'_>,
        drafts: &BTreeSet<PlannedDraft>,
    ) -> Result<(), PlanningError> {
        let (engine, prompts) = (&turn.bench.engine, &turn.bench.prompts);
        for &draft in drafts.iter().take(1).take_while(|_| !self.is_over()) {
            self.answer(engine, turn.setting, &prompts[0], draft)?;
        }
        for &draft in drafts.iter().filter(|draft| draft.is_auto()) {
            for prompt in prompts.iter().take_while(|_| !self.is_over()) {
                self.answer(engine, turn.setting, prompt, draft)?;
            }
        }
        Ok(())
    }
}

impl Measured {
    /// Returns whether a setting drafts trees that its drafter does not have: drafts that are
    /// translated between vocabularies are chains.
    fn has_no_trees(&self, setting: &Setting) -> bool {
        setting.is_tree() && self.chains_only.contains(&setting.drafter())
    }
}

/// The least number of prompts and of answer tokens of slow models.
const LEAST_PROMPTS: usize = 2;
const LEAST_TOKENS: usize = 24;

/// How much longer an answer is expected to take than its tokens in plain decoding: engines are
/// opened, prompts are read, and some methods are slower.
const SLOWER: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::{MeasurementOptions, settings};
    use forerun::{Canceller, DraftTokens, DrafterKind, Loader, Options, RandomPair};
    use std::iter;

    #[test]
    fn records_take_part_of_the_time() {
        let options = Options {
            model: "target".into(),
            draft_model: Some("drafter".into()),
            drafter: Some(DrafterKind::Model.into()),
            method: Some(Method::Speculative.into()),
            threads: Some(1),
            ..Options::default()
        };
        let settings = settings(&options).unwrap();
        let measurement = MeasurementOptions {
            prompts: vec![String::new(); 2],
            answer_tokens: 100,
            drafts: vec![PlannedDraft::Chain(2), PlannedDraft::Tree(8)],
            time: None,
            hardware: String::new(),
            check: None,
        };
        let loader = Loader::new();
        let mut laboratory = Laboratory::new(settings, measurement, loader, Canceller::new());
        // A token takes a millisecond. Plain decoding, chains and trees have an answer each, and
        // the ranks are recorded in the time of three: 600 tokens are 50 for each of two prompts.
        laboratory.fit_to_time(1e6, Duration::from_millis(600).mul_f64(SLOWER));
        assert_eq!((laboratory.options.answer_tokens, laboratory.options.prompts.len()), (50, 2));
        // However slow it is, something is measured.
        laboratory.fit_to_time(1e12, Duration::ZERO);
        assert_eq!(laboratory.options.answer_tokens, LEAST_TOKENS);
    }

    /// Returns a laboratory for a random pair, with plain decoding first and the draft model next.
    fn with_random_pair(pair: &RandomPair, time: Option<Duration>) -> (Laboratory<'_>, Canceller) {
        let options = Options {
            model: pair.target().into(),
            draft_model: Some(pair.drafter().into()),
            method: Some(Method::Speculative.into()),
            draft_tokens: DraftTokens::Fixed(2),
            threads: Some(1),
            ..Options::default()
        };
        let measurement = MeasurementOptions {
            prompts: vec!["Hello".into(), "Once upon a time".into()],
            answer_tokens: 12,
            drafts: vec![PlannedDraft::Chain(2)],
            time,
            hardware: String::new(),
            check: None,
        };
        let canceller = Canceller::new();
        let settings = settings(&options).unwrap();
        assert!(settings.len() > 2, "prompt lookup is always measured");
        (Laboratory::new(settings, measurement, Loader::new(), canceller.clone()), canceller)
    }

    #[test]
    fn plain_decoding_and_one_method_are_measured_in_any_case() {
        let pair = RandomPair::make().unwrap();
        let (mut laboratory, _) = with_random_pair(&pair, Some(Duration::ZERO));
        let all = laboratory.settings();
        let profile = laboratory.measure(|_| ()).unwrap();
        let measured = profile.timings.iter().map(|timing| timing.drafter.as_deref());
        assert!(measured.eq([None, Some("model")]), "{:?}", profile.timings);
        assert_eq!(laboratory.left_out().len(), all - 2);
    }

    #[test]
    fn cancelled_measurements_keep_what_they_have() {
        let pair = RandomPair::make().unwrap();
        for turns in [0, 1, 2] {
            let (mut laboratory, canceller) = with_random_pair(&pair, None);
            let all = laboratory.settings();
            let profile = laboratory.measure(|progress| {
                if progress.done == turns {
                    canceller.cancel();
                }
            });
            match profile {
                Ok(profile) => {
                    assert_eq!((turns, profile.timings.len()), (2, 2));
                    assert_eq!(laboratory.left_out().len(), all - 2);
                }
                Err(PlanningError::Stopped) => assert!(turns < 2),
                Err(error) => panic!("{error}"),
            }
        }
        let (mut laboratory, _) = with_random_pair(&pair, None);
        let mut left = Vec::new();
        laboratory.measure(|progress| left.push((progress.done, progress.left.is_some()))).unwrap();
        // The time is known from the first turn on.
        let known = iter::once(false).chain(iter::repeat(true));
        assert!(left.iter().copied().eq((0..laboratory.settings()).zip(known)), "{left:?}");
        assert_eq!(laboratory.left_out().len(), 0);
    }
}

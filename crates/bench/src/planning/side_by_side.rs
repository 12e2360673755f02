//! A planned configuration and plain decoding, measured in turn.

use super::check::median_size;
use super::laboratory::{Bench, ns_per_token};
use super::{Laboratory, PlanningError, Setting};
use forerun::TokenId;
use forerun_sim::planning::{PlannedDraft, Prediction};
use serde::Serialize;

/// How often each prompt is answered, if there is time for it.
const TURNS: usize = 4;

/// How much faster a configuration is than plain decoding, from pairs of answers that follow each
/// other: what slows the machine down slows both.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SideBySide {
    /// The median of the pairs' speedups.
    pub speedup: f64,
    /// The smallest speedup.
    pub least: f64,
    /// The largest speedup.
    pub most: f64,
    /// The number of pairs.
    pub pairs: usize,
    /// The median speed of plain decoding, in tokens per second after the first step.
    pub plain_tokens_per_second: f64,
}

/// An engine, its method and its drafts.
struct Side {
    bench: Bench,
    setting: Setting,
    draft: PlannedDraft,
}

impl Laboratory<'_> {
    /// Measures a prediction and plain decoding side by side, on all prompts in turn, until the
    /// time is over; without a limit, once. The best of many predictions is often the luckiest, so
    /// this decides. `begin` is called before the first answer. None: there was no time.
    ///
    /// # Errors
    /// If an engine cannot be opened, an answer fails, or the texts differ.
    pub fn side_by_side(
        &mut self,
        prediction: &Prediction,
        begin: impl FnOnce(),
    ) -> Result<Option<SideBySide>, PlanningError> {
        self.may_use_all_time = true;
        if self.must_stop() {
            return Ok(None);
        }
        let is_meant = |setting: &&Setting| {
            setting.plan.method().to_string() == prediction.method
                && setting.drafter() == prediction.drafter
                && setting.placement() == prediction.placement
                && setting.is_tree() == prediction.draft.is_tree()
        };
        let Some(found) = self.settings.iter().position(|setting| is_meant(&setting)) else {
            return Ok(None);
        };
        begin();
        self.options.prompts.clone_from(&self.all_prompts);
        let plain = self.side(0, PlannedDraft::Chain(0))?;
        let drafting = self.side(found, prediction.draft)?;
        match self.pairs(&plain, &drafting) {
            Err(PlanningError::Stopped) => Ok(None),
            pairs => Ok(SideBySide::of(&pairs?)),
        }
    }

    fn side(&mut self, index: usize, draft: PlannedDraft) -> Result<Side, PlanningError> {
        let bench = self.open(&[index])?;
        Ok(Side { bench, setting: self.settings[index].clone(), draft })
    }

    /// Returns the times of a token in nanoseconds: plain decoding's, and the other's.
    fn pairs(&self, plain: &Side, drafting: &Side) -> Result<Vec<[f64; 2]>, PlanningError> {
        let turns = if self.time_left().is_some() { TURNS } else { 1 };
        let prompts = plain.bench.prompts.iter().zip(&drafting.bench.prompts);
        let prompts: Vec<_> = prompts.collect();
        // The first answers warm the engines up.
        self.one(plain, prompts[0].0)?;
        self.one(drafting, prompts[0].1)?;
        let mut pairs = Vec::new();
        for turn in 0..turns {
            for (index, (of_plain, of_drafting)) in prompts.iter().enumerate() {
                let plain_first = (turn + index) % 2 == 0;
                let pair = self.pair(plain, drafting, (of_plain, of_drafting), plain_first);
                match pair {
                    Err(PlanningError::Stopped) => return Ok(pairs),
                    pair => pairs.push(pair?),
                }
            }
        }
        Ok(pairs)
    }

    fn pair(
        &self,
        plain: &Side,
        drafting: &Side,
        (of_plain, of_drafting): (&[TokenId], &[TokenId]),
        plain_first: bool,
    ) -> Result<[f64; 2], PlanningError> {
        let early = plain_first.then(|| self.one(plain, of_plain)).transpose()?;
        let (drafting_ns, text) = self.one(drafting, of_drafting)?;
        let (plain_ns, expected) = match early {
            Some(early) => early,
            None => self.one(plain, of_plain)?,
        };
        match text == expected {
            true => Ok([plain_ns, drafting_ns]),
            false => Err(PlanningError::ChangedText(drafting.setting.to_string())),
        }
    }

    fn one(&self, side: &Side, prompt: &[TokenId]) -> Result<(f64, Vec<TokenId>), PlanningError> {
        let answer = self.answer(&side.bench.engine, &side.setting, prompt, side.draft)?;
        Ok((ns_per_token(&answer), answer.tokens))
    }
}

impl SideBySide {
    fn of(pairs: &[[f64; 2]]) -> Option<Self> {
        // An answer of one step has no speed.
        let has_speeds = |pair: &&[f64; 2]| pair.iter().all(|ns| ns.is_finite());
        let pairs: Vec<_> = pairs.iter().filter(has_speeds).collect();
        let mut speedups: Vec<f64> = pairs.iter().map(|[plain, other]| plain / other).collect();
        speedups.sort_by(f64::total_cmp);
        Some(Self {
            speedup: median_size(speedups.iter().copied())?,
            least: *speedups.first()?,
            most: *speedups.last()?,
            pairs: speedups.len(),
            plain_tokens_per_second: 1e9 / median_size(pairs.iter().map(|[plain, _]| *plain))?,
        })
    }
}

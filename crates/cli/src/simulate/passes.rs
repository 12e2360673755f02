//! Times forward passes and answers of loaded models as decoders see them, by the jobs they submit.

use anyhow::{Context, ensure};
use forerun::runtime::ClusterHandle;
use forerun::{ModelSource, Placement, TokenId};
use forerun_core::{
    Completion, DraftShape, Job, JobOutput, Role, Sampling, ScoreJob, SequenceId, TargetFeedback,
    TokenTree,
};
use forerun_sim::{Calibration, MeasuredPasses, Parameters, SimulatedMethod};
use std::time::Instant;

/// Numbers of rows of the target's measured passes; the longest draft decides how many are used.
pub(super) const ROWS: [usize; 9] = [1, 2, 3, 5, 7, 9, 13, 17, 33];
/// Length of the drafts that measure a drafter's passes after the first.
pub(super) const CHAIN: usize = 5;
/// Number of measurements of each kind in a round.
const SAMPLES: usize = 3;

/// Measured times of one kind, in nanoseconds.
#[derive(Clone, Default)]
struct Times(Vec<u64>);

impl Times {
    fn median_ms(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        match sorted.len() {
            0 => 0.0,
            count => (sorted[(count - 1) / 2] + sorted[count / 2]) as f64 / 2e6,
        }
    }
}

/// A loaded pair and its measurements.
pub(super) struct PairBench {
    cluster: Box<dyn ClusterHandle>,
    sequences: u64,
    max_tokens: usize,
    prompts: Vec<Vec<TokenId>>,
    /// Prompts, each followed by the target's own answer.
    texts: Vec<Vec<TokenId>>,
    /// For each text, `1` where the drafter agrees with the target and `0` where it does not.
    agreement: Vec<String>,
    target_first: Times,
    /// The target's passes by [`ROWS`].
    target_rows: [Times; ROWS.len()],
    draft_first: Times,
    /// The drafter's first passes of a draft, of one row and of two.
    draft_rows: [Times; 2],
    /// The drafter's further passes of a draft.
    draft_next: Times,
    /// The time between jobs.
    between: Times,
    /// Whole answers by draft length and prompt.
    answers: Vec<Vec<Times>>,
}

impl PairBench {
    pub(super) fn new(
        cluster: Box<dyn ClusterHandle>,
        prompts: Vec<Vec<TokenId>>,
        max_tokens: usize,
    ) -> Self {
        Self {
            cluster,
            sequences: 0,
            max_tokens,
            prompts,
            texts: Vec::new(),
            agreement: Vec::new(),
            target_first: Times::default(),
            target_rows: Default::default(),
            draft_first: Times::default(),
            draft_rows: Default::default(),
            draft_next: Times::default(),
            between: Times::default(),
            answers: Vec::new(),
        }
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Lets the target write its answers, and the drafter predict each of their tokens. This also
    /// warms up both models.
    pub(super) fn write_texts(&mut self) -> anyhow::Result<()> {
        for prompt in self.prompts.clone() {
            let (answer, _) = self.answer(0, prompt.clone())?;
            let text = [prompt.clone(), answer].concat();
            let id = self.new_sequence();
            let mut line = String::new();
            for end in prompt.len()..text.len() {
                let draft = self.draft(id, &text[..end], 1)?;
                let tokens = match &draft.output {
                    Ok(JobOutput::Draft(draft)) => draft.tree.tokens(),
                    _ => &[],
                };
                line.push(if tokens.first() == Some(&text[end]) { '1' } else { '0' });
            }
            self.cluster.release(id);
            self.texts.push(text);
            self.agreement.push(line);
        }
        Ok(())
    }

    /// Times passes in the order of decoding: the two models alternate, so that each finds the
    /// processor's caches as the other left them.
    pub(super) fn measure_passes(&mut self, round: usize, most_rows: usize) -> anyhow::Result<()> {
        let index = round % self.texts.len();
        let (text, prompt) = (self.texts[index].clone(), self.prompts[index].clone());
        // On average, half of the answer precedes a pass.
        let middle = prompt.len() + self.max_tokens / 2;
        let past = &text[..middle];
        for _ in 0..SAMPLES {
            let id = self.new_sequence();
            let first = self.draft(id, &prompt, 1)?.duration_ns();
            self.draft_first.0.push(first);
            let first = self.score(id, &prompt, 0)?.duration_ns();
            self.target_first.0.push(first);
            self.draft(id, past, 1)?;
            self.score(id, past, 0)?;
            let last = ROWS.iter().position(|&rows| rows >= most_rows).unwrap_or(ROWS.len() - 1);
            for (at, &rows) in ROWS.iter().enumerate().take(last + 1) {
                let one = self.draft(id, past, 1)?.duration_ns();
                self.draft_rows[0].0.push(one);
                let score = self.score(id, past, rows - 1)?.duration_ns();
                self.target_rows[at].0.push(score);
                let chain = self.draft(id, past, CHAIN)?.duration_ns();
                self.draft_next.0.push(chain.saturating_sub(one) / (CHAIN as u64 - 1));
                self.score(id, past, 0)?;
                // This leaves the drafter's cache with `middle - 1` tokens, so that the next draft
                // starts with a pass of two rows.
                self.draft(id, &text[..middle - 1], 1)?;
                self.score(id, past, 0)?;
                let two = self.draft(id, &text[..middle + 1], 1)?.duration_ns();
                self.draft_rows[1].0.push(two);
                self.score(id, past, 0)?;
            }
            self.cluster.release(id);
        }
        Ok(())
    }

    /// Times whole answers: by plain decoding, which gives the time between jobs, and with drafts
    /// of these lengths.
    pub(super) fn measure_answers(&mut self, lengths: &[usize]) -> anyhow::Result<()> {
        self.answers.resize(lengths.len(), vec![Times::default(); self.prompts.len()]);
        for index in 0..self.prompts.len() {
            let prompt = self.prompts[index].clone();
            self.answer(0, prompt.clone())?;
            for (place, &length) in lengths.iter().enumerate() {
                let (answer, ns) = self.answer(length, prompt.clone())?;
                ensure!(
                    answer == self.texts[index][prompt.len()..],
                    "drafts of {length} tokens gave another text than plain decoding: please report \
                     this bug"
                );
                self.answers[place][index].0.push(ns);
            }
        }
        Ok(())
    }

    /// Returns the total milliseconds of the answers to all prompts, by draft length.
    pub(super) fn answers_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.answers.iter().map(|prompts| prompts.iter().map(Times::median_ms).sum())
    }

    /// Returns the medians of all measurements.
    pub(super) fn calibration(
        &self,
        models: [&ModelSource; 2],
        layers: [usize; 2],
        placement: &Placement,
    ) -> Calibration {
        let [target, drafter] = models.map(|model| format!("{model} ({placement})"));
        let medians = |rows: &[usize], times: &[Times]| {
            let measured = rows.iter().zip(times).filter(|(_, times)| !times.0.is_empty());
            measured.map(|(rows, times)| (*rows, times.median_ms())).collect()
        };
        Calibration {
            link_ms: self.between.median_ms() / 2.0,
            prompt_tokens: self.prompts.first().map_or(0, Vec::len),
            agreement: self.agreement.clone(),
            target: MeasuredPasses {
                model: target,
                layers: layers[0],
                first_ms: self.target_first.median_ms(),
                rows_ms: medians(&ROWS, &self.target_rows),
                ..MeasuredPasses::default()
            },
            drafter: MeasuredPasses {
                model: drafter,
                layers: layers[1],
                first_ms: self.draft_first.median_ms(),
                rows_ms: medians(&[1, 2], &self.draft_rows),
                next_ms: Some(self.draft_next.median_ms()),
                ..MeasuredPasses::default()
            },
        }
    }

    /// Generates an answer with drafts of this length, or by plain decoding for 0. Returns its
    /// tokens and its time in nanoseconds.
    fn answer(
        &mut self,
        draft_tokens: usize,
        prompt: Vec<TokenId>,
    ) -> anyhow::Result<(Vec<TokenId>, u64)> {
        let method = if draft_tokens == 0 {
            SimulatedMethod::Autoregressive
        } else {
            SimulatedMethod::Speculative
        };
        let max_tokens = self.max_tokens;
        let parameters = Parameters { method, draft_tokens, max_tokens, ..Parameters::default() };
        let simulation = parameters.simulation(None)?;
        let id = self.new_sequence();
        let started = Instant::now();
        let (answer, statistics) = simulation.generate_on(&mut *self.cluster, id, prompt)?;
        let ns = started.elapsed().as_nanos() as u64;
        self.cluster.release(id);
        if draft_tokens == 0 {
            let between_ns = ns.saturating_sub(statistics.score_ns);
            self.between.0.push(between_ns / statistics.target_forwards.max(1));
        }
        Ok((answer, ns))
    }

    fn new_sequence(&mut self) -> SequenceId {
        // The engine's own sequences count up from 0.
        self.sequences += 1;
        SequenceId(u64::MAX - self.sequences)
    }

    /// Runs a pass of the target after `tokens`, with further rows for this number of candidates.
    fn score(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        candidates: usize,
    ) -> anyhow::Result<Completion> {
        let candidates: Vec<TokenId> = tokens.iter().cycle().take(candidates).copied().collect();
        let job = Job::Score(ScoreJob {
            sequence,
            tokens: tokens.into(),
            prompt_len: tokens.len(),
            tree: TokenTree::chain(&candidates),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: None,
        });
        self.run_job(Role::Target(0), job)
    }

    /// Drafts a chain of `length` tokens after `tokens`.
    fn draft(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        length: usize,
    ) -> anyhow::Result<Completion> {
        let job = Job::Draft {
            sequence,
            tokens: tokens.into(),
            prompt_len: tokens.len(),
            sampling: Sampling::greedy(),
            shape: DraftShape::Chain { length },
            feedback: TargetFeedback::default(),
        };
        self.run_job(Role::Drafter(0), job)
    }

    fn run_job(&mut self, role: Role, job: Job) -> anyhow::Result<Completion> {
        self.cluster.submit(role, job)?;
        let completion = self.cluster.next_completion()?;
        if let Err(error) = &completion.output {
            return Err(error.clone()).context("a measured pass failed");
        }
        Ok(completion)
    }
}

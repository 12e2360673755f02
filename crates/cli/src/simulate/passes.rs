//! Passes and answers of loaded models, timed as decoders see them: by the jobs that they send.

use anyhow::{Context, ensure};
use forerun::{Placement, ThreadCluster, TokenId};
use forerun_core::{
    Cluster, Completion, DraftShape, Job, JobOutput, Role, Sampling, SequenceId, TargetFeedback,
    TokenTree,
};
use forerun_sim::{Calibration, MeasuredPasses, Parameters, SimulatedMethod};
use std::path::Path;
use std::time::Instant;

/// Rows of the target that are measured, up to what the longest draft needs.
pub(super) const ROWS: [usize; 9] = [1, 2, 3, 5, 7, 9, 13, 17, 33];
/// Tokens of the drafts whose further passes are measured.
pub(super) const CHAIN: usize = 5;
/// Measurements of each kind in a round.
const SAMPLES: usize = 3;

/// Times of one kind, in nanoseconds.
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

/// A pair at work, and what was measured of it.
pub(super) struct Bench {
    cluster: ThreadCluster,
    sequences: u64,
    max_tokens: usize,
    prompts: Vec<Vec<TokenId>>,
    /// Prompts with the target's own answers behind them.
    texts: Vec<Vec<TokenId>>,
    agreement: Vec<String>,
    target_first: Times,
    /// By [`ROWS`].
    target_rows: [Times; ROWS.len()],
    draft_first: Times,
    /// First passes of one row and of two.
    draft_rows: [Times; 2],
    draft_next: Times,
    /// What an answer takes beyond its jobs, for each job.
    between: Times,
    /// By draft length and prompt.
    answers: Vec<Vec<Times>>,
}

impl Bench {
    pub(super) fn new(
        cluster: ThreadCluster,
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

    /// Has the target write its answers, and asks the drafter behind every token of theirs. This warms
    /// both up.
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

    /// Times passes as they come in decoding: the two models in turn, so that each finds the caches as
    /// the other left them.
    pub(super) fn measure_passes(&mut self, round: usize, most_rows: usize) -> anyhow::Result<()> {
        let index = round % self.texts.len();
        let (text, prompt) = (self.texts[index].clone(), self.prompts[index].clone());
        // Half of the answer is the past of a pass in the mean.
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
                // The cache holds one token less than what was drafted from, and this is not what was
                // drafted, so two rows are missing.
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

    /// Times whole answers: plain ones, which tell what there is beyond jobs, and with drafts of these
    /// lengths.
    pub(super) fn measure_answers(&mut self, lengths: &[usize]) -> anyhow::Result<()> {
        self.answers.resize(lengths.len(), vec![Times::default(); self.prompts.len()]);
        for index in 0..self.prompts.len() {
            let prompt = self.prompts[index].clone();
            self.answer(0, prompt.clone())?;
            for (place, &length) in lengths.iter().enumerate() {
                let (answer, ns) = self.answer(length, prompt.clone())?;
                ensure!(
                    answer == self.texts[index][prompt.len()..],
                    "drafts of {length} tokens gave another text than plain decoding: that is a bug"
                );
                self.answers[place][index].0.push(ns);
            }
        }
        Ok(())
    }

    /// Milliseconds of all prompts' answers, by draft length.
    pub(super) fn answers_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.answers.iter().map(|prompts| prompts.iter().map(Times::median_ms).sum())
    }

    pub(super) fn calibration(
        &self,
        models: [&Path; 2],
        layers: [usize; 2],
        placement: &Placement,
    ) -> Calibration {
        let [target, drafter] = models.map(|model| format!("{} ({placement})", model.display()));
        let measured = |rows: &[usize], times: &[Times]| {
            let known = rows.iter().zip(times).filter(|(_, times)| !times.0.is_empty());
            known.map(|(rows, times)| (*rows, times.median_ms())).collect()
        };
        Calibration {
            link_ms: self.between.median_ms() / 2.0,
            prompt_tokens: self.prompts.first().map_or(0, Vec::len),
            agreement: self.agreement.clone(),
            target: MeasuredPasses {
                model: target,
                layers: layers[0],
                first_ms: self.target_first.median_ms(),
                rows_ms: measured(&ROWS, &self.target_rows),
                next_ms: None,
            },
            drafter: MeasuredPasses {
                model: drafter,
                layers: layers[1],
                first_ms: self.draft_first.median_ms(),
                rows_ms: measured(&[1, 2], &self.draft_rows),
                next_ms: Some(self.draft_next.median_ms()),
            },
        }
    }

    /// An answer with drafts of a length, and how many nanoseconds it took.
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
        let (answer, statistics) = simulation.generate_on(&mut self.cluster, id, prompt)?;
        let ns = started.elapsed().as_nanos() as u64;
        self.cluster.release(id);
        if draft_tokens == 0 {
            let beyond_ns = ns.saturating_sub(statistics.score_ns);
            self.between.0.push(beyond_ns / statistics.target_forwards.max(1));
        }
        Ok((answer, ns))
    }

    fn new_sequence(&mut self) -> SequenceId {
        // The engine's own sequences count from 0 on.
        self.sequences += 1;
        SequenceId(u64::MAX - self.sequences)
    }

    /// A pass of the target behind `tokens`, with a row for each of as many candidates more.
    fn score(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        candidates: usize,
    ) -> anyhow::Result<Completion> {
        let candidates: Vec<TokenId> = tokens.iter().cycle().take(candidates).copied().collect();
        let job = Job::Score {
            sequence,
            tokens: tokens.into(),
            prompt_len: tokens.len(),
            tree: TokenTree::chain(&candidates),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: None,
        };
        self.done(Role::Target(0), job)
    }

    /// A chain of `length` tokens behind `tokens`.
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
        self.done(Role::Drafter(0), job)
    }

    fn done(&mut self, role: Role, job: Job) -> anyhow::Result<Completion> {
        self.cluster.submit(role, job)?;
        let completion = self.cluster.next_completion()?;
        if let Err(error) = &completion.output {
            return Err(error.clone()).context("a measured pass failed");
        }
        Ok(completion)
    }
}

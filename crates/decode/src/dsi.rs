//! DSI: verifies on several target replicas while drafting continues.
//!
//! *Distributed Speculative Inference (DSI): Speculation Parallelism for Provably Faster Lossless
//! Language Model Inference*, Timor et al. 2024, arXiv 2405.14105, algorithm 1 with the paper's
//! `lookahead` and SP degree. A thread of the paper is a job here, on a drafter or on a replica.
//!
//! 1. Lines 2 and 6, drafters: each continues its own chain, and never waits.
//! 2. Lines 2 and 6, target: after every `lookahead` draft tokens, a free replica gets the rows
//!    after them. A *row* is the target's distribution of one token. The row for the next position
//!    to commit (the frontier, the paper's `v`) is the *current verifier* of lines 3 and 11. It is
//!    always in flight, with the drafts that exist. So decoding is never slower than the target
//!    alone, if drafters have devices of their own.
//! 3. Lines 4 and 7: a step waits for the rows at the frontier. Rows are used in the order of their
//!    positions. Replicas may finish in another order.
//! 4. Lines 8, 9, 11 and 12: the drafters' tokens are tested with these rows, in the drafters'
//!    order. With sampling that is rejection sampling, which the paper's section 3.1 allows.
//!    Accepted tokens are committed, or the target's own, and the frontier moves past them.
//! 5. Line 8: drafters that have other tokens restart after the committed ones. The rows after
//!    their tokens are dropped, and the jobs that compute them cancelled.
//! 6. Lines 13–14: if rows at the new frontier have arrived before, the next step takes them at
//!    once.
//! 7. Lines 5, 17 and 18: nothing is drafted or scored past the sequence's end.
//!
//! Deviations:
//!
//! * Jobs share no rows. The last row of one job tests the first token of the next, and drafters
//!   that agree share rows.
//! * All replicas read a long prompt at once, in jobs that no rejection cancels, and get rows when
//!   they have read it: a job on a replica that has not takes longer than a pass, and its
//!   cancellation would lose what was read. In the same way, a replica that has missed many
//!   committed tokens, as in a pause, first reads them.
//! * If drafts have accumulated because all replicas are busy, one job takes all of them, up to
//!   what the lookahead allows for a job.
//! * If the token of a row has not been drafted yet, the row gives the target's own token at once.
//! * A replica that fails is no longer used, and another one takes its rows. A drafter that fails
//!   is no longer used, either. The tokens that it has drafted are verified.
//! * The paper terminates threads. Here a worker checks between layers whether its job was
//!   cancelled.
//! * If drafting makes decoding slower than the target alone, because the target can use the
//!   drafter's cores or wrong rows take time, the drafters pause.
//! * With several drafters, the paper has all of them draft after every token of each, which gives
//!   `drafters^depth` chains. Here each drafter continues its own chain, and restarts after a
//!   committed token that is not in it, so there are as many chains as drafters. After a committed
//!   prefix a drafter's chain is the one that it would draft there anyway, so no chain that agrees
//!   has to be dropped (line 10).

use crate::draft_ahead::{DraftAhead, common_prefix_len};
use crate::metered_cluster::{Meter, MeteredCluster};
use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::replicas::{Completed, Replicas};
use crate::score_task::ScoreTask;
use crate::{DecodeError, Decoder, DsiLookahead, Sequence, jobs::wasted};
use forerun_core::{
    Cluster, Completion, Draft, Need, Outcome, Scores, Ticket, trace::SpanOutcome, verify_chains,
};
use forerun_plan::{Planned, Policy};
use std::collections::BTreeMap;
use std::ops::Range;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "dsi",
    help: "Verify on one or more target replicas while drafting continues (DSI)",
    drafting: Drafting::DuringVerification,
    several_targets: true,
    offers: &[Need::SeveralDrafters],
    combines_drafters: true,
    decoder: |options| {
        let options = &options.with_fixed_length_if_reproducible();
        // Each drafter's tokens are verified on its share of the replicas.
        let replicas = options.targets.div_ceil(options.drafters());
        let lookahead = DsiLookahead::new(options.draft_tokens, options.length, replicas)
            .with_tokens_per_forward(options.pattern.tokens_per_forward())
            .with_expected_passes(options.expected_passes);
        let decoder = Dsi::new(options.targets, lookahead).with_drafters_of(options);
        Box::new(if options.reproducible { decoder.reproducible() } else { decoder })
    },
};

/// Verifies on several target replicas at once.
pub struct Dsi {
    threads: Threads,
    meter: Meter<DsiLookahead>,
}

impl Dsi {
    /// Creates a decoder with `replicas` target replicas (the paper's SP degree) and one drafter.
    #[must_use]
    pub fn new(replicas: usize, lookahead: DsiLookahead) -> Self {
        Self { threads: Threads::new(0..1, replicas), meter: Meter::new(lookahead) }
    }

    /// Returns the decoder with the first `count` drafters, at least one. If several drafters agree
    /// with the target, the first one's tokens are kept. The rows of the first drafter have
    /// priority. Call it before [`reproducible`](Self::reproducible), whose settings it resets for
    /// the drafters.
    #[must_use]
    pub fn with_drafters(self, count: usize) -> Self {
        self.with_chains_of(0..count.max(1))
    }

    /// Returns the decoder with the drafters of the options.
    fn with_drafters_of(self, options: &DecoderOptions) -> Self {
        self.with_chains_of(options.drafter..options.drafter + options.drafters())
    }

    fn with_chains_of(mut self, drafters: Range<usize>) -> Self {
        self.threads.chains = drafters.map(Chain::new).collect();
        self
    }

    /// Returns the decoder in a mode where the text of a seed does not depend on the speed of the
    /// devices, also with rejection sampling. It waits for late drafters instead of taking the
    /// target's own token, and drafts token by token.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        for chain in &mut self.threads.chains {
            chain.drafts.draft_one_token_per_job();
        }
        self.threads.waits_for_drafters = true;
        self
    }

    /// Returns the lookahead policy with the times it has learned.
    #[must_use]
    pub fn lookahead(&self) -> &DsiLookahead {
        &self.meter.policy
    }
}

/// The chain of one of several drafters.
struct Chain {
    drafts: DraftAhead,
    /// All rows before this position along the chain have been submitted or have arrived.
    next_row: usize,
}

impl Chain {
    fn new(drafter: usize) -> Self {
        Self { drafts: DraftAhead::new(drafter).reading_on(), next_row: 0 }
    }
}

/// What runs at the same time: the paper's threads.
struct Threads {
    /// One chain for each drafter, in order of preference.
    chains: Vec<Chain>,
    replicas: Replicas,
    /// The scores not used yet, by the position that the first row predicts.
    arrived: BTreeMap<(usize, Ticket), (ScoreTask, Scores)>,
    /// Whether to wait for late drafters, so that the text of a seed does not depend on timing.
    waits_for_drafters: bool,
}

type MeteredByLookahead<'a> = MeteredCluster<'a, DsiLookahead>;

impl Threads {
    fn new(drafters: Range<usize>, replicas: usize) -> Self {
        Self {
            chains: drafters.map(Chain::new).collect(),
            replicas: Replicas::new(replicas),
            arrived: BTreeMap::new(),
            waits_for_drafters: false,
        }
    }

    /// Submits all jobs that drafters and free replicas can start.
    fn submit_jobs(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut MeteredByLookahead<'_>,
    ) -> Result<(), DecodeError> {
        let frontier = sequence.tokens().len();
        let drafts = self.drafts(cluster.policy());
        cluster.set_drafts(drafts);
        if !drafts {
            self.replicas.stop_catching_up(cluster);
        }
        // 1. Each drafter continues its chain.
        for index in 0..self.chains.len() {
            let length = self.wanted_length(index, frontier, cluster.policy());
            let per_job = cluster.policy().tokens_per_job();
            self.chains[index].drafts.continue_to(sequence, length, per_job, cluster)?;
        }
        self.drop_failed_drafters();
        // 2. The row at the frontier comes first, along the longest chain.
        let by_length = |&index: &usize| self.chains[index].drafts.len();
        let longest = (0..self.chains.len()).rev().max_by_key(by_length).unwrap_or(0);
        if longest > 0 && self.first_missing_row(longest, frontier) == frontier {
            self.submit_rows(longest, sequence, cluster)?;
        }
        (0..self.chains.len()).try_for_each(|index| self.submit_rows(index, sequence, cluster))?;
        // The other replicas read a long prompt meanwhile.
        if drafts { self.replicas.catch_up(usize::MAX, sequence, cluster) } else { Ok(()) }
    }

    /// Returns whether to draft now. It does not depend on measured times if the text of a seed
    /// must not.
    fn drafts(&self, lookahead: &DsiLookahead) -> bool {
        self.waits_for_drafters || lookahead.drafts()
    }

    /// Returns how many tokens a chain should have.
    fn wanted_length(&self, index: usize, frontier: usize, lookahead: &DsiLookahead) -> usize {
        if !self.drafts(lookahead) {
            return 0;
        }
        if self.waits_for_drafters {
            // The scores that wait for draft tokens may have more rows than the policy allows by
            // now.
            let rows = self.arrived_at(frontier).map_or(0, |(_, rows)| rows);
            return lookahead.max_ahead().max(rows);
        }
        let submitted = self.chains[index].next_row.saturating_sub(frontier);
        lookahead.max_ahead().min(submitted.saturating_add(lookahead.max_waiting()))
    }

    /// Submits rows along a chain that are missing, as far as replicas are free.
    fn submit_rows(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        cluster: &mut MeteredByLookahead<'_>,
    ) -> Result<(), DecodeError> {
        let (frontier, lookahead) = (sequence.tokens().len(), cluster.policy());
        let max_rows = lookahead.max_rows().min(MAX_ROWS_PER_JOB);
        let due_rows = lookahead.length().min(max_rows);
        let is_complete = !self.drafts(lookahead)
            || self.chains[index].drafts.is_done(sequence, lookahead.max_ahead());
        let max_lag = lookahead.max_lag();
        let mut first_row = self.first_missing_row(index, frontier);
        loop {
            let chain = self.chains[index].drafts.tokens();
            // 7. The row after the last draft token belongs to them, but none past the end.
            let end = (frontier + chain.len() + 1).min(frontier + sequence.remaining());
            let count = end.saturating_sub(first_row).min(max_rows);
            let is_due = first_row == frontier || is_complete || count >= due_rows;
            if count == 0 || !is_due {
                break;
            }
            // The row at the frontier does not wait until a replica has read the prompt.
            let is_first = first_row == frontier && self.replicas.have_read_nothing();
            if !is_first && !self.replicas.has_free(max_lag, sequence) {
                self.replicas.catch_up(max_lag, sequence, cluster)?;
                break;
            }
            let tokens = chain[..first_row + count - 1 - frontier].to_vec();
            let task = ScoreTask { first_row, committed: frontier, tokens, accepted: 0 };
            self.replicas.submit(task, max_lag, sequence, cluster)?;
            first_row += count;
        }
        self.chains[index].next_row = first_row;
        Ok(())
    }

    /// Returns the first row along a chain that was neither submitted nor received. Chains share
    /// the rows after tokens on which they agree.
    fn first_missing_row(&self, index: usize, frontier: usize) -> usize {
        let own = &self.chains[index];
        let others = self.chains.iter().enumerate().filter(|&(at, _)| at != index);
        let shared = others.map(|(_, other)| {
            let common = common_prefix_len(own.drafts.tokens(), other.drafts.tokens());
            other.next_row.min(frontier + common + 1)
        });
        shared.fold(own.next_row.max(frontier), usize::max)
    }

    /// Takes the output of a completed job.
    fn complete(
        &mut self,
        completion: Completion,
        sequence: &mut Sequence,
        cluster: &mut MeteredByLookahead<'_>,
    ) -> Result<(), DecodeError> {
        let ticket = completion.ticket;
        let completion = match self.replicas.complete(sequence, completion)? {
            Completed::Scores(task, scores) => {
                self.arrived.insert((task.first_row, ticket), (task, scores));
                // Each drafter's tokens are verified on its share of the replicas.
                let healthy = self.replicas.healthy().count();
                cluster.policy().set_replicas(healthy.div_ceil(self.chains.len()));
                return Ok(());
            }
            Completed::Lost(task) => {
                let max_lag = cluster.policy().max_lag();
                return self.replicas.submit(task, max_lag, sequence, cluster);
            }
            Completed::Other(completion) => completion,
        };
        let running = self.chains.iter_mut().find(|chain| chain.drafts.is_running(ticket));
        if running.as_ref().is_none_or(|chain| chain.drafts.is_reading(ticket)) {
            // It was cancelled, or its tokens are not used.
            cluster.observe(wasted(ticket));
        }
        running.map_or(Ok(()), |chain| chain.drafts.handle_completion(sequence, completion))
    }

    /// Returns the key of the arrived scores that start at the frontier, and the number of their
    /// rows.
    fn arrived_at(&self, frontier: usize) -> Option<((usize, Ticket), usize)> {
        let (&key, (task, _)) = self.arrived.range((frontier, Ticket(0))..).next()?;
        (key.0 == frontier).then_some((key, task.rows()))
    }

    /// Removes and returns the scores to verify next, if they have arrived. In reproducible mode
    /// the draft tokens that they test must have arrived, too.
    fn take_ready(&mut self, sequence: &Sequence) -> Option<(Ticket, ScoreTask, Scores)> {
        let (key, rows) = self.arrived_at(sequence.tokens().len())?;
        let are_drafted = || self.chains.iter().all(|chain| chain.drafts.is_done(sequence, rows));
        let is_ready = !self.waits_for_drafters || are_drafted();
        let (task, scores) = is_ready.then(|| self.arrived.remove(&key))??;
        Some((key.1, task, scores))
    }

    /// Returns how many of the rows to verify at once.
    ///
    /// In reproducible mode this is up to the first token on which the chains disagree: a chain
    /// without an accepted token restarts, and its next token must be drafted before later rows
    /// are verified.
    fn rows_to_verify(&self, rows: usize) -> usize {
        let (Some((first, others)), true) = (self.chains.split_first(), self.waits_for_drafters)
        else {
            return rows;
        };
        let (first, others) = (first.drafts.tokens(), others.iter().map(|it| it.drafts.tokens()));
        let common = others.map(|other| common_prefix_len(first, other));
        common.min().map_or(rows, |common| rows.min(common + 1))
    }

    /// Verifies the rows of a task, and commits the tokens that they accept.
    fn verify(
        &mut self,
        (ticket, mut task, scores): (Ticket, ScoreTask, Scores),
        sequence: &mut Sequence,
        cluster: &mut MeteredByLookahead<'_>,
    ) {
        // 4. The last row tests the next job's first token, if that has been drafted.
        let frontier = sequence.tokens().len();
        let rows = &scores.rows[..self.rows_to_verify(task.rows())];
        let drafts = self.chains.iter().map(|chain| &chain.drafts);
        let chains: Vec<_> = drafts.map(|drafts| (drafts.drafter(), drafts.chain())).collect();
        let path = task.path(frontier);
        let (tree, verdict) = verify_chains(&chains, path, rows, frontier, sequence.randomness());
        let accepted = sequence.commit(&Draft::deterministic(tree), &verdict, &scores);
        let committed = &sequence.tokens()[frontier..];
        // Another drafter's token may have been accepted, for which the path has no rows.
        let is_on_path = path.starts_with(committed);
        let left_path = common_prefix_len(path, committed) < accepted.min(path.len());
        task.accepted += accepted;
        let outcome = match verdict.rejected || left_path {
            true => SpanOutcome::Rejected,
            false => SpanOutcome::Accepted,
        };
        cluster.observe(Outcome { ticket, accepted: task.accepted, outcome });

        // 5. Drafters continue after the committed tokens, or restart there.
        let mut all_continue = true;
        for (index, chain) in self.chains.iter_mut().enumerate() {
            let verdict = chain.drafts.advance(committed, cluster);
            if !verdict.continues() {
                (all_continue, chain.next_row) = (false, 0);
            }
            if index == 0 {
                cluster.observe_verdict(&verdict);
            }
        }
        // Rows that were not tested yet are kept for the next step.
        let end = frontier + committed.len();
        if verdict.token.is_none() && is_on_path && committed.len() < task.rows() {
            let scores = scores.skip_rows(committed.len());
            self.arrived.insert((end, ticket), (ScoreTask { first_row: end, ..task }, scores));
        }
        if !all_continue {
            let continues = |task: &ScoreTask| {
                task.first_row >= end && task.path(frontier).starts_with(committed)
            };
            self.retain_rows(continues, cluster);
        }
    }

    /// Keeps only such rows, submitted or arrived.
    fn retain_rows(&mut self, keep: impl Fn(&ScoreTask) -> bool, cluster: &mut dyn Cluster) {
        self.replicas.retain(&keep, cluster);
        self.arrived.retain(|&(_, ticket), (task, _)| {
            let keep = keep(task);
            if !keep {
                cluster.observe(wasted(ticket));
            }
            keep
        });
    }

    /// Removes the chains of failed drafters, which are empty. If all drafters have failed, one
    /// chain is left, and the target decodes alone.
    fn drop_failed_drafters(&mut self) {
        while self.chains.len() > 1
            && let Some(index) = self.chains.iter().position(|chain| chain.drafts.has_failed())
        {
            let failed = self.chains.remove(index);
            // Its only row, the one after the committed tokens, is a row of all chains.
            for chain in &mut self.chains {
                chain.next_row = chain.next_row.max(failed.next_row);
            }
        }
    }
}

/// The maximum number of rows in one job.
const MAX_ROWS_PER_JOB: usize = 64;

impl Decoder for Dsi {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (frontier, threads) = (sequence.tokens().len(), &mut self.threads);
        let has_drafts = threads.chains.iter().any(|chain| !chain.drafts.is_empty());
        let (first, drafts) = (&threads.chains[0].drafts, threads.drafts(&self.meter.policy));
        let cluster = &mut self.meter.begin_step(cluster, first.drafter(), drafts || has_drafts);
        // 1. and 2. Drafters and replicas work until (3.) the rows at the frontier have arrived.
        threads.submit_jobs(sequence, cluster)?;
        let rows = loop {
            // 6. Rows that have arrived before are taken at once.
            if let Some(rows) = threads.take_ready(sequence) {
                break rows;
            }
            let completion = cluster.next_completion()?;
            threads.complete(completion, sequence, cluster)?;
            threads.submit_jobs(sequence, cluster)?;
        };
        // 4. and 5. They are verified, and drafters that disagree restart.
        threads.verify(rows, sequence, cluster);
        self.meter.end_step(sequence.tokens().len() - frontier);
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        for chain in &mut self.threads.chains {
            chain.drafts.restart(false, cluster);
            chain.next_row = 0;
        }
        self.threads.retain_rows(|_| false, cluster);
        self.threads.replicas.stop(cluster);
        self.meter.stop();
    }
}

impl AnswerDecoder for Dsi {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let lookahead = self.meter.policy.for_new_answer(prompt_tokens);
        Box::new(Self::new(options.targets, lookahead).with_drafters_of(options))
    }

    fn planned(&mut self) -> Option<&mut Planned> {
        Some(self.meter.policy.planned())
    }

    fn has_failed_drafter(&self) -> bool {
        self.threads.chains.iter().all(|chain| chain.drafts.has_failed())
    }
}

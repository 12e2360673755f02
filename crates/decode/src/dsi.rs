//! DSI: verifies on several target replicas while drafting continues.
//!
//! *Distributed Speculative Inference (DSI): Speculation Parallelism for Provably Faster Lossless
//! Language Model Inference*, Timor et al. 2024, arXiv 2405.14105, algorithm 1.
//!
//! 1. The drafters never wait. Each continues its own chain.
//! 2. After every `lookahead` draft tokens, a free target replica gets the rows after them. A row
//!    for the next position to commit (the frontier) is always in flight, with the drafts that
//!    exist. So decoding is never slower than the target alone.
//! 3. Rows are used in the order of their positions, in whatever order the replicas finish. The
//!    tokens that they accept are committed. Drafters that have the committed tokens continue. The
//!    others restart after them, and the jobs that verify their tokens are cancelled.
//!
//! Deviations:
//!
//! * No row is computed twice. The last row of one job tests the first token of the next, and
//!   drafters that agree share rows.
//! * If drafts have accumulated because all replicas are busy, one job takes all of them, up to what
//!   the lookahead allows for a job.
//! * If the token of a row has not been drafted yet, the row gives the target's own token at once.
//! * A replica that fails is no longer used, and another one takes its rows. A drafter that fails is
//!   no longer used, either. The tokens that it has drafted are verified.
//! * The paper terminates threads. Here a worker checks between layers whether its job was
//!   cancelled.
//! * If drafting makes decoding slower than the target alone, because the target can use the
//!   drafter's cores or wrong rows take time, the drafters pause.
//! * With several drafters, the paper has all of them draft after every token of each, which gives
//!   `drafters^depth` chains. Here each drafter continues its own chain, and restarts after a
//!   committed token that is not in it, so there are as many chains as drafters. After a committed
//!   prefix a drafter's chain is the one that it would draft there anyway, so no chain that agrees
//!   has to be dropped.

use crate::chain::{Chain, common_prefix_len};
use crate::replicas::Replicas;
use crate::score_task::ScoreTask;
use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, DsiLookahead, MethodEntry,
    Sequence, jobs,
};
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, JobError, Need, Outcome, Scores, Ticket,
    trace::SpanOutcome, verify_chains,
};
use forerun_plan::{Forecast, Knowledge};
use std::collections::BTreeMap;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "dsi",
    help: "Verify on one or more target replicas while drafting continues (DSI)",
    drafting: Drafting::DuringVerification,
    several_targets: true,
    offers: &[Need::SeveralDrafters],
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
    lookahead: DsiLookahead,
    /// Whether to wait for late drafters, so that the text of a seed does not depend on timing.
    waits_for_drafters: bool,
    /// One chain for each drafter, in order of preference.
    chains: Vec<Chain>,
    replicas: Replicas,
    /// The jobs in flight, except cancelled ones.
    tasks: BTreeMap<Ticket, ScoreTask>,
    /// The scores not used yet, by the position that the first row predicts.
    arrived: BTreeMap<(usize, Ticket), (ScoreTask, Scores)>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
}

impl Dsi {
    /// Creates a decoder with `replicas` target replicas (the paper's SP degree) and one drafter.
    #[must_use]
    pub fn new(replicas: usize, lookahead: DsiLookahead) -> Self {
        Self {
            lookahead,
            waits_for_drafters: false,
            chains: vec![Chain::new(0)],
            replicas: Replicas::new(replicas),
            tasks: BTreeMap::new(),
            arrived: BTreeMap::new(),
            now_ns: 0,
        }
    }

    /// Returns the decoder with the first `count` drafters, at least one. If several drafters agree
    /// with the target, the first one's tokens are kept. The rows of the first drafter have
    /// priority. Call it before [`reproducible`](Self::reproducible), whose settings it resets for
    /// the drafters.
    #[must_use]
    pub fn with_drafters(self, count: usize) -> Self {
        Self { chains: (0..count.max(1)).map(Chain::new).collect(), ..self }
    }

    /// Returns the decoder with the drafters of the options.
    fn with_drafters_of(self, options: &DecoderOptions) -> Self {
        let drafters = options.drafter..options.drafter + options.drafters();
        Self { chains: drafters.map(Chain::new).collect(), ..self }
    }

    /// Returns the decoder in a mode where the text of a seed does not depend on the speed of the
    /// devices, also with rejection sampling. It waits for late drafters instead of taking the
    /// target's own token, and drafts token by token.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        for chain in &mut self.chains {
            chain.drafting.draft_one_token_per_job();
        }
        Self { waits_for_drafters: true, ..self }
    }

    /// Returns the lookahead policy with the times it has learned.
    #[must_use]
    pub fn lookahead(&self) -> &DsiLookahead {
        &self.lookahead
    }

    /// Returns whether to draft now. It does not depend on measured times if the text of a seed must not.
    fn drafts(&self) -> bool {
        self.waits_for_drafters || self.lookahead.drafts()
    }

    /// Returns whether the target has no drafts, and no drafter works at the same time.
    fn is_alone(&self) -> bool {
        let is_idle = |chain: &Chain| chain.tokens().is_empty() && !chain.drafting.is_busy();
        !self.drafts() && self.chains.iter().all(is_idle)
    }

    /// Submits all jobs that drafters and free replicas can start.
    fn dispatch(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (max_ahead, per_job) = (self.lookahead.max_ahead(), self.lookahead.tokens_per_job());
        let frontier = sequence.tokens().len();
        // The scores that wait for draft tokens may have more rows than the policy allows by now.
        let arrived = self.arrived_at(frontier).filter(|_| self.waits_for_drafters);
        let length = arrived.map_or(max_ahead, |(_, rows)| max_ahead.max(rows));
        let length = if self.drafts() { length } else { 0 };
        let waiting = match self.waits_for_drafters {
            true => usize::MAX,
            false => self.lookahead.max_waiting(),
        };
        for chain in &mut self.chains {
            let submitted = chain.next_row.saturating_sub(frontier);
            let length = length.min(submitted.saturating_add(waiting));
            chain.drafting.continue_to(sequence, length, per_job, cluster)?;
        }
        self.drop_failed_chains();
        // If the row at the frontier is missing, submit it along the longest chain.
        let lengths = self.chains.iter().map(|chain| chain.tokens().len()).enumerate();
        let longest = lengths.rev().max_by_key(|&(_, length)| length).map_or(0, |(index, _)| index);
        if longest > 0 && self.first_missing_row(longest, frontier) == frontier {
            self.dispatch_rows(longest, sequence, cluster)?;
        }
        (0..self.chains.len()).try_for_each(|index| self.dispatch_rows(index, sequence, cluster))
    }

    /// Submits rows along a chain that are missing, as far as replicas are free.
    fn dispatch_rows(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (frontier, max_ahead) = (sequence.tokens().len(), self.lookahead.max_ahead());
        let max_rows = self.lookahead.max_rows().min(MAX_ROWS_PER_JOB);
        let due_rows = self.lookahead.length().min(max_rows);
        let is_complete = !self.drafts() || self.chains[index].is_done(sequence, max_ahead);
        self.chains[index].next_row = self.first_missing_row(index, frontier);
        while let Some(replica) = self.replicas.free() {
            let Chain { next_row: first_row, .. } = self.chains[index];
            let chain = self.chains[index].tokens();
            // Include the row after the last draft token, but no row past the sequence's end.
            let end = (frontier + chain.len() + 1).min(frontier + sequence.remaining());
            let count = end.saturating_sub(first_row).min(max_rows);
            let is_due = first_row == frontier || is_complete || count >= due_rows;
            if count == 0 || !is_due {
                break;
            }
            let task = ScoreTask {
                replica,
                first_row,
                committed: frontier,
                tokens: chain[..first_row + count - 1 - frontier].to_vec(),
                while_drafting: !self.is_alone(),
                accepted: 0,
            };
            self.submit(task, sequence, cluster)?;
            self.chains[index].next_row += count;
        }
        Ok(())
    }

    /// Returns the first row along a chain that was neither submitted nor received. Chains share
    /// the rows after tokens on which they agree.
    fn first_missing_row(&self, index: usize, frontier: usize) -> usize {
        let own = &self.chains[index];
        let others = self.chains.iter().enumerate().filter(|&(at, _)| at != index);
        let shared = others.map(|(_, other)| {
            let common = common_prefix_len(own.tokens(), other.tokens());
            other.next_row.min(frontier + common + 1)
        });
        shared.fold(own.next_row.max(frontier), usize::max)
    }

    /// Submits a task to its replica, or to another one if its worker has stopped.
    fn submit(
        &mut self,
        mut task: ScoreTask,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let ticket = loop {
            let (ahead, tree) = task.request(sequence.tokens().len());
            match jobs::submit_score(task.replica, sequence, ahead, tree, cluster) {
                Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                    self.drop_replica(task.replica, &gone.to_string(), sequence);
                    task.replica = self.replicas.least_busy().ok_or(DecodeError::Cluster(gone))?;
                }
                result => break result?,
            }
        };
        self.replicas.start_job(task.replica);
        self.tasks.insert(ticket, task);
        Ok(())
    }

    /// Handles a completed job.
    fn handle_completion(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let ticket = completion.ticket;
        self.now_ns = self.now_ns.max(completion.finished_ns);
        if let Some(task) = self.tasks.remove(&ticket) {
            return self.handle_scores(task, sequence, completion, cluster);
        }
        let is_running = |chain: &Chain| chain.drafting.is_running(ticket);
        let Some(index) = self.chains.iter().position(is_running) else {
            // A cancelled job, which may have finished before it was cancelled.
            self.replicas.end_cancelled_job(ticket, completion.output.is_ok());
            cluster.observe(wasted(ticket));
            return Ok(());
        };
        if self.chains[index].drafting.is_reading(ticket) {
            cluster.observe(wasted(ticket));
        }
        let drafted = self.chains[index].drafting.handle_completion(sequence, completion)?;
        // The sizing rule refers to the first drafter, whose rows have priority.
        if let Some((tokens, time)) = drafted.filter(|_| index == 0) {
            self.lookahead.observe_draft(tokens, &time);
        }
        Ok(())
    }

    /// Stores a replica's scores, or submits its task to another replica if it failed.
    fn handle_scores(
        &mut self,
        task: ScoreTask,
        sequence: &mut Sequence,
        completion: Completion,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (ticket, replica) = (completion.ticket, task.replica);
        self.replicas.end_job(replica, completion.output.is_ok().then_some(task.committed));
        if let Err(error @ (JobError::Failed { .. } | JobError::Panicked { .. })) =
            &completion.output
        {
            self.drop_replica(replica, &error.to_string(), sequence);
            if let Some(replica) = self.replicas.least_busy() {
                return self.submit(ScoreTask { replica, ..task }, sequence, cluster);
            }
        }
        // Each drafter's tokens are verified on its share of the replicas.
        let healthy = self.replicas.healthy().count();
        self.lookahead.set_replicas(healthy.div_ceil(self.chains.len()));
        let reply = jobs::score_reply(sequence, task.rows() - 1, completion)?;
        self.lookahead.observe_score(task.rows(), &reply.time, task.while_drafting);
        self.arrived.insert((task.first_row, ticket), (task, reply.output));
        Ok(())
    }

    /// Returns the key of the arrived scores that start at the frontier, and the number of their
    /// rows.
    fn arrived_at(&self, frontier: usize) -> Option<((usize, Ticket), usize)> {
        let (&key, (task, _)) = self.arrived.range((frontier, Ticket(0))..).next()?;
        (key.0 == frontier).then_some((key, task.rows()))
    }

    /// Returns the key of the scores to verify next, if they have arrived. In reproducible mode the
    /// draft tokens that they test must have arrived, too.
    fn ready(&self, sequence: &Sequence) -> Option<(usize, Ticket)> {
        let (key, rows) = self.arrived_at(sequence.tokens().len())?;
        let are_drafted = || self.chains.iter().all(|chain| chain.is_done(sequence, rows));
        (!self.waits_for_drafters || are_drafted()).then_some(key)
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
        let common =
            others.iter().map(|other| common_prefix_len(first.tokens(), other.tokens())).min();
        common.map_or(rows, |common| rows.min(common + 1))
    }

    /// Verifies the rows of an arrived job, and commits the tokens that they accept.
    fn verify_rows(
        &mut self,
        key: (usize, Ticket),
        is_alone: bool,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) {
        // The last row tests the next job's first token, if that has been drafted.
        let (frontier, ticket) = key;
        let Some((mut task, scores)) = self.arrived.remove(&key) else { return };
        let rows = &scores.rows[..self.rows_to_verify(task.rows())];
        let drafting = self.chains.iter().map(|chain| &chain.drafting);
        let chains: Vec<_> =
            drafting.map(|drafting| (drafting.drafter(), drafting.chain())).collect();
        let path = task.path(frontier);
        let (tree, verdict) = verify_chains(&chains, path, rows, frontier, sequence.randomness());
        let accepted = sequence.commit(&Draft::deterministic(tree), &verdict, &scores);
        let committed = &sequence.tokens()[frontier..];
        let is_on_path = path.starts_with(committed);
        let left_path = common_prefix_len(path, committed) < accepted.min(path.len());
        let outcome = if verdict.rejected || left_path {
            SpanOutcome::Rejected
        } else {
            SpanOutcome::Accepted
        };
        task.accepted += accepted;
        cluster.observe(Outcome { ticket, accepted: task.accepted, outcome });

        // The first drafter's tokens may have been rejected where another one's were accepted.
        let first = &self.chains[0].drafting;
        let agreed = common_prefix_len(first.tokens(), committed);
        let rejected = agreed < committed.len() && agreed < first.len();
        let tested = first.positions(agreed + usize::from(rejected));
        // Continue after the committed tokens, or restart there.
        let end = frontier + committed.len();
        let mut all_agree = true;
        for chain in &mut self.chains {
            all_agree &= chain.advance(committed, cluster);
        }
        if verdict.token.is_none() && is_on_path && committed.len() < task.rows() {
            let scores = scores.skip_rows(committed.len());
            self.arrived.insert((end, ticket), (ScoreTask { first_row: end, ..task }, scores));
        }
        if !all_agree {
            let extends_committed = |task: &ScoreTask| task.path(frontier).starts_with(committed);
            self.drop_rows(|task| task.first_row >= end && extends_committed(task), cluster);
        }
        self.lookahead.observe_verdict(&tested, rejected, committed.len() - agreed);
        self.lookahead.observe_step(committed.len(), self.now_ns, is_alone);
    }

    /// Removes the chains of failed drafters, which are empty. If all drafters have failed, one chain
    /// is left, and the target decodes alone.
    fn drop_failed_chains(&mut self) {
        while self.chains.len() > 1
            && let Some(index) = self.chains.iter().position(|chain| chain.drafting.has_failed())
        {
            let failed = self.chains.remove(index);
            // Its only row, the one after the committed tokens, is a row of all chains.
            for chain in &mut self.chains {
                chain.next_row = chain.next_row.max(failed.next_row);
            }
        }
    }

    /// Continues without a failed target replica.
    fn drop_replica(&mut self, index: usize, reason: &str, sequence: &mut Sequence) {
        if self.replicas.mark_failed(index) {
            let message = format!("target replica {index} failed: {reason}");
            sequence.statistics_mut().failures.push(message);
        }
    }

    /// Cancels the tasks in flight for which `keep` does not hold, and discards such scores that
    /// have arrived.
    fn drop_rows(&mut self, keep: impl Fn(&ScoreTask) -> bool, cluster: &mut dyn Cluster) {
        self.tasks.retain(|&ticket, task| {
            let keep = keep(task);
            if !keep {
                cluster.cancel(ticket);
                self.replicas.cancel_job(task.replica, ticket, task.committed);
            }
            keep
        });
        self.arrived.retain(|&(_, ticket), (task, _)| {
            let keep = keep(task);
            if !keep {
                cluster.observe(wasted(ticket));
            }
            keep
        });
    }
}

/// Returns the outcome of a job with unused output.
fn wasted(ticket: Ticket) -> Outcome {
    Outcome { ticket, accepted: 0, outcome: SpanOutcome::Wasted }
}

/// The maximum number of rows in one job.
const MAX_ROWS_PER_JOB: usize = 64;

impl Decoder for Dsi {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // Run drafters and replicas until the row at the frontier has arrived.
        let is_alone = self.is_alone() && self.tasks.is_empty();
        self.dispatch(sequence, cluster)?;
        let ready = loop {
            if let Some(key) = self.ready(sequence) {
                break key;
            }
            let completion = cluster.next_completion()?;
            self.handle_completion(sequence, completion, cluster)?;
            self.dispatch(sequence, cluster)?;
        };
        self.verify_rows(ready, is_alone, sequence, cluster);
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        for chain in &mut self.chains {
            chain.drafting.restart(false, cluster);
            chain.next_row = 0;
        }
        self.drop_rows(|_| false, cluster);
    }
}

impl AnswerDecoder for Dsi {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let lookahead = self.lookahead.for_new_answer(prompt_tokens);
        Box::new(Self::new(options.targets, lookahead).with_drafters_of(options))
    }

    fn knowledge(&self) -> Option<Knowledge> {
        Some(self.lookahead.knowledge())
    }

    fn adopt(&mut self, known: &Knowledge) {
        self.lookahead.adopt(known);
    }

    fn start(&mut self, known: &Knowledge, others_ns: f64) {
        self.lookahead.start(known, others_ns);
        self.replicas.start_after_others();
    }

    fn forecast(&self, missed: usize) -> Option<Forecast> {
        self.lookahead.forecast(missed)
    }

    fn has_failed_drafter(&self) -> bool {
        self.chains.iter().all(|chain| chain.drafting.has_failed())
    }
}

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
//! * No row is computed twice. The last row of one job tests the first token of the next, and drafters that agree share
//!   rows. Only with siblings may a job score one row of the chain again, to have the siblings of the next token in its tree.
//! * If drafts have accumulated because all replicas are busy, one job takes all of them, up to what the lookahead
//!   allows for a job.
//! * If the token of a row has not been drafted yet, the row gives the target's own token at once.
//! * With [`with_siblings`](Dsi::with_siblings), jobs also score the drafter's next best tokens next to those of its chain. If
//!   one of them is the correction, the row after it may be known already, or be in a job in flight, which goes on if it ends
//!   earlier than a new one would.
//! * A replica that fails is no longer used, and another one takes its rows. A drafter that fails is
//!   no longer used, either. The tokens that it has drafted are verified.
//! * The paper terminates threads. Here a worker checks between layers whether its job was
//!   cancelled.
//! * The paper's replicas are equally fast. Here a job waits for a busy replica if a free one is so slow that it would
//!   finish it later, and the sizing rule counts the fast ones. Now and then, a job is also tried on a slow replica,
//!   without using its scores, so that one that was slow for a while gets jobs again.
//! * If drafting makes decoding slower than the target alone, because the target can use the drafter's cores
//!   or wrong rows take time, the drafters pause. Before they go on, the fast replicas that were idle read what they have missed,
//!   in jobs for whose scores nothing waits. The drafters do not wait for one that reads much longer than expected.
//! * With several drafters, the paper has all of them draft after every token of each, which gives
//!   `drafters^depth` chains. Here each drafter continues its own chain, and restarts after a
//!   committed token that is not in it, so there are as many chains as drafters. After a committed
//!   prefix a drafter's chain is the one that it would draft there anyway, so no chain that agrees
//!   has to be dropped.

use crate::chain::{Chain, common_prefix_len};
use crate::replicas::{Replicas, WaitingJob};
use crate::score_task::{self, ScoreTask, Sibling};
use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, DsiLookahead, MethodEntry,
    Sequence, jobs,
};
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, JobError, Need, Outcome, Scores, Ticket,
    trace::SpanOutcome, verify_chains,
};
use forerun_plan::{Forecast, JobTime, Knowledge};
use std::collections::BTreeMap;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "dsi",
    help: "Verify on one or more target replicas while drafting continues (DSI)",
    drafting: Drafting::DuringVerification,
    several_targets: true,
    offers: &[Need::SeveralDrafters, Need::Siblings],
    decoder: |options| {
        let options = &options.with_fixed_length_if_reproducible();
        // Each drafter's tokens are verified on its share of the replicas.
        let replicas = options.targets.div_ceil(options.drafters());
        let lookahead = DsiLookahead::new(options.draft_tokens, options.length, replicas)
            .with_tokens_per_forward(options.pattern.tokens_per_forward())
            .with_expected_passes(options.expected_passes);
        let decoder = Dsi::new(options.targets, lookahead).with_drafters_of(options);
        let decoder = if options.shares_devices { decoder.without_trials() } else { decoder };
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
    /// Whether slow replicas get jobs that only show how fast they are.
    tries_slow_replicas: bool,
    pause: Pause,
    /// The jobs in flight, except cancelled ones.
    tasks: BTreeMap<Ticket, ScoreTask>,
    /// The jobs in flight that only show how fast their replica is.
    trials: BTreeMap<Ticket, ScoreTask>,
    /// The jobs in flight that only let their replica read what it missed, the time at which the last of them was submitted, if it is
    /// known, and how long it may take.
    reading: BTreeMap<Ticket, ScoreTask>,
    reading_since_ns: Option<u64>,
    longest_reading_ns: f64,
    /// The scores not used yet, by the position that the first row predicts.
    arrived: BTreeMap<(usize, Ticket), (ScoreTask, Scores)>,
    /// The position after the last committed sibling. Its token is the target's own, drafted or not: whether its row was scored
    /// before may depend on tokens that the drafter drew after the rejected one.
    after_sibling: Option<usize>,
    /// The end of the last completed job since the decoder was started, on the cluster's clock.
    now_ns: Option<u64>,
}

/// Whether drafting pauses, and what replicas have missed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pause {
    /// Nothing was submitted in this answer.
    New,
    /// Another method has decoded.
    AfterOthers,
    /// The target decodes alone, with the replicas that have missed the least.
    Alone,
    /// The others read what they have missed. Meanwhile the target still decodes alone.
    Reading,
    /// The drafters work.
    Over,
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
            tries_slow_replicas: true,
            pause: Pause::New,
            tasks: BTreeMap::new(),
            trials: BTreeMap::new(),
            reading: BTreeMap::new(),
            reading_since_ns: None,
            longest_reading_ns: 0.0,
            arrived: BTreeMap::new(),
            after_sibling: None,
            now_ns: None,
        }
    }

    /// Returns the decoder in a mode where slow replicas get no jobs only to measure them. Where models share cores, such jobs
    /// take time from others.
    #[must_use]
    pub fn without_trials(self) -> Self {
        Self { tries_slow_replicas: false, ..self }
    }

    /// Returns the decoder with the first `count` drafters, at least one. If several drafters agree
    /// with the target, the first one's tokens are kept. The rows of the first drafter have
    /// priority. Call it before [`with_siblings`](Self::with_siblings) and [`reproducible`](Self::reproducible), whose
    /// settings it resets for the drafters.
    #[must_use]
    pub fn with_drafters(self, count: usize) -> Self {
        Self { chains: (0..count.max(1)).map(Chain::new).collect(), ..self }
    }

    /// Returns the decoder with the drafters of the options, and their siblings.
    fn with_drafters_of(self, options: &DecoderOptions) -> Self {
        let drafters = options.drafter..options.drafter + options.drafters();
        let decoder = Self { chains: drafters.map(Chain::new).collect(), ..self };
        decoder.with_siblings(options.siblings)
    }

    /// Returns the decoder in a mode where the jobs also score `count` next best tokens of the drafter next to each token of
    /// its chain. With several drafters it has no effect. Call it after [`with_drafters`](Self::with_drafters).
    #[must_use]
    pub fn with_siblings(mut self, count: usize) -> Self {
        if let [chain] = &mut self.chains[..] {
            chain.drafting.draft_siblings(count);
        }
        self
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
        self.waits_for_drafters || (self.lookahead.drafts() && self.pause == Pause::Over)
    }

    /// Returns whether the target has no drafts, and no drafter or other replica works at the same time.
    fn is_alone(&self) -> bool {
        let is_idle = |chain: &Chain| chain.tokens().is_empty() && !chain.drafting.is_busy();
        let decodes_only = self.trials.is_empty() && self.reading.is_empty();
        !self.drafts() && decodes_only && self.chains.iter().all(is_idle)
    }

    /// Begins or ends a pause of the drafters.
    fn update_pause(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let frontier = sequence.tokens().len();
        let is_to_draft = self.waits_for_drafters || self.lookahead.drafts();
        match self.pause {
            Pause::New if is_to_draft => self.replicas.assume_read(frontier),
            Pause::AfterOthers => self.replicas.assume_read_by_first(frontier),
            _ => {}
        }
        let is_late = self.is_reading_late();
        if !is_to_draft && (is_late || self.pause == Pause::Reading) {
            // It has taken too long, or costs too much.
            let reading = std::mem::take(&mut self.reading);
            self.cancel_jobs(reading, cluster);
        }
        self.pause = match self.pause {
            _ if !is_to_draft => Pause::Alone,
            Pause::AfterOthers | Pause::Alone => match self.read_missed(sequence, cluster)? {
                true => Pause::Reading,
                false => Pause::Over,
            },
            Pause::Reading if !self.reading.is_empty() && !is_late => Pause::Reading,
            Pause::New | Pause::Reading | Pause::Over => Pause::Over,
        };
        Ok(())
    }

    /// Returns whether replicas have read for much longer than expected, as if one stands still. Drafting does not wait for it.
    fn is_reading_late(&mut self) -> bool {
        let Some(now_ns) = self.now_ns.filter(|_| !self.reading.is_empty()) else { return false };
        let since_ns = *self.reading_since_ns.get_or_insert(now_ns);
        now_ns.saturating_sub(since_ns) as f64 > self.longest_reading_ns
    }

    fn cancel_jobs(&mut self, jobs: BTreeMap<Ticket, ScoreTask>, cluster: &mut dyn Cluster) {
        for (ticket, task) in jobs {
            cluster.cancel(ticket);
            self.replicas.cancel_job(task.replica, ticket, self.now_ns);
        }
    }

    /// Lets the fast replicas that have missed too many tokens read them, in jobs for whose scores nothing waits. Returns whether
    /// there is one.
    fn read_missed(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<bool, DecodeError> {
        let frontier = sequence.tokens().len();
        let task = ScoreTask::new(frontier, frontier, Vec::new(), Vec::new(), false);
        let job = self.waiting_job(frontier, task.scored_rows());
        let far = self.replicas.far(&job);
        let Some(most) = far.iter().map(|&(_, missed)| missed).max() else { return Ok(false) };
        self.reading_since_ns = self.now_ns;
        self.longest_reading_ns = self.lookahead.longest_reading_ns(most);
        for (replica, _) in far {
            let task = task.clone().on(replica);
            if let Some(ticket) = self.try_to_submit(&task, sequence, cluster)? {
                self.replicas.start_reading(replica, &job);
                self.reading.insert(ticket, task);
            }
        }
        Ok(!self.reading.is_empty())
    }

    /// Submits all jobs that drafters and free replicas can start.
    fn dispatch(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        self.update_pause(sequence, cluster)?;
        let (max_ahead, per_job) = (self.lookahead.max_ahead(), self.lookahead.tokens_per_job());
        // The scores that wait for draft tokens may have more rows than the policy allows by now.
        let waiting = self.arrived_at(sequence.tokens().len()).filter(|_| self.waits_for_drafters);
        let length = waiting.map_or(max_ahead, |(_, rows)| max_ahead.max(rows));
        let drafts = self.drafts();
        let frontier = sequence.tokens().len();
        // A row that is there would end a chain that began after a sibling, so timing would decide where the next one begins.
        let begins_later = self.waits_for_drafters && self.after_sibling == Some(frontier);
        let length = if drafts && !begins_later { length } else { 0 };
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
        let frontier = sequence.tokens().len();
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
        let n_siblings = self.chains[index].drafting.n_siblings();
        let max_rows = self
            .lookahead
            .max_rows()
            .min(score_task::rows_along_chain(MAX_ROWS_PER_JOB, n_siblings));
        let due_rows = self.lookahead.length().min(max_rows);
        self.chains[index].next_row = self.first_missing_row(index, frontier);
        let drafts = self.drafts();
        let is_complete = !drafts || self.chains[index].is_done(sequence, max_ahead);
        loop {
            let Chain { next_row, .. } = self.chains[index];
            let chain = self.chains[index].tokens();
            // Include the row after the last draft token, but no row past the sequence's end.
            let end = (frontier + chain.len() + 1).min(frontier + sequence.remaining());
            let count = end.saturating_sub(next_row).min(max_rows);
            let is_due = next_row == frontier || is_complete || count >= due_rows;
            if count == 0 || !is_due {
                return Ok(());
            }
            let tokens = chain[..next_row + count - 1 - frontier].to_vec();
            let mut siblings = self.chains[index].siblings(frontier, next_row, tokens.len());
            // The token after a sibling is the target's own, so nothing is tested there.
            siblings.retain(|&(position, _)| self.after_sibling != Some(position));
            let while_drafting = !self.is_alone();
            let task = ScoreTask::new(next_row, frontier, tokens, siblings, while_drafting);
            let waiting = self.waiting_job(frontier, task.scored_rows());
            let free = self.replicas.free(&waiting);
            let tried = self.replicas.to_try(&waiting).filter(|_| self.tries_slow_replicas);
            if let Some(replica) = free {
                self.submit(task.clone().on(replica), sequence, cluster)?;
                self.chains[index].next_row += count;
            }
            if let Some(replica) = tried.filter(|tried| Some(*tried) != free) {
                self.submit_trial(task.on(replica), sequence, cluster)?;
            }
            if free.is_none() {
                // Those that have missed too much read it before the next job.
                if drafts {
                    self.read_missed(sequence, cluster)?;
                }
                return Ok(());
            }
        }
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

    /// Returns a job of `rows` rows that needs a replica now.
    fn waiting_job(&self, frontier: usize, rows: usize) -> WaitingJob {
        let (max_missed, size) = (self.lookahead.max_missed(), self.lookahead.job_size(rows));
        WaitingJob { frontier, max_missed, now_ns: self.now_ns, size }
    }

    /// Submits a task to its replica only to see how long it takes.
    fn submit_trial(
        &mut self,
        task: ScoreTask,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let job = self.waiting_job(sequence.tokens().len(), task.scored_rows());
        if let Some(ticket) = self.try_to_submit(&task, sequence, cluster)? {
            self.replicas.start_job(task.replica, &job);
            self.trials.insert(ticket, task);
        }
        Ok(())
    }

    /// Submits a task to its replica; `None` if its worker has stopped.
    fn try_to_submit(
        &mut self,
        task: &ScoreTask,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<Ticket>, DecodeError> {
        match submit_to(task.replica, task, sequence, cluster) {
            Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                self.drop_replica(task.replica, &gone.to_string(), sequence);
                Ok(None)
            }
            ticket => ticket.map(Some),
        }
    }

    /// Submits a task to its replica, or to another one if its worker has stopped.
    fn submit(
        &mut self,
        task: ScoreTask,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mut replica = task.replica;
        let ticket = loop {
            match submit_to(replica, &task, sequence, cluster) {
                Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                    self.drop_replica(replica, &gone.to_string(), sequence);
                    replica = self.replicas.least_busy().ok_or(DecodeError::Cluster(gone))?;
                }
                result => break result?,
            }
        };
        let job = self.waiting_job(sequence.tokens().len(), task.scored_rows());
        self.replicas.start_job(replica, &job);
        self.tasks.insert(ticket, task.on(replica));
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
        self.now_ns = self.now_ns.max(Some(completion.finished_ns));
        if let Some(task) = self.tasks.remove(&ticket) {
            return self.handle_scores(task, sequence, completion, cluster);
        }
        if let Some(task) = self.trials.remove(&ticket) {
            cluster.observe(wasted(ticket));
            self.replicas.end_trial_in_vain(task.replica, completion.finished_ns);
            self.lookahead.observe_reading(task.scored_rows(), &JobTime::from(&completion));
            self.end_score_job(&task, &completion, true, sequence);
            return Ok(());
        }
        if let Some(task) = self.reading.remove(&ticket) {
            cluster.observe(wasted(ticket));
            self.lookahead.observe_reading(task.scored_rows(), &JobTime::from(&completion));
            self.end_score_job(&task, &completion, false, sequence);
            return Ok(());
        }
        if self.replicas.end_cancelled_job(ticket, completion.output.is_ok()) {
            // The job may have finished before it was cancelled.
            cluster.observe(wasted(ticket));
            return Ok(());
        }
        let is_running = |chain: &Chain| chain.drafting.is_running(ticket);
        let Some(index) = self.chains.iter().position(is_running) else {
            // A cancelled draft job, which may have finished before.
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
        let ticket = completion.ticket;
        if self.end_score_job(&task, &completion, true, sequence)
            && let Some(replica) = self.replicas.least_busy()
        {
            let task = task.again(sequence.tokens().len());
            return self.submit(task.on(replica), sequence, cluster);
        }
        let reply = jobs::score_reply(sequence, task.nodes(), completion)?;
        // The sizing rule is about fast replicas.
        if self.replicas.is_fast(task.replica) {
            self.lookahead.observe_score(task.scored_rows(), &reply.time, task.while_drafting);
        }
        self.arrived.insert((task.first_row, ticket), task.with_output(reply.output));
        Ok(())
    }

    /// Counts the end of a replica's job, and learns how fast the replica is, if the job `shows_speed`. Returns whether the replica
    /// has failed.
    fn end_score_job(
        &mut self,
        task: &ScoreTask,
        completion: &Completion,
        shows_speed: bool,
        sequence: &mut Sequence,
    ) -> bool {
        self.replicas.end_job(task.replica, completion.output.is_ok());
        match &completion.output {
            Ok(_) => {
                // Reading a prompt, or much text, shows nothing, nor do passes with another answer's prompt.
                let reads_little =
                    completion.cost.own_rows as usize <= task.scored_rows() + MAX_ROWS_PER_JOB;
                let time = JobTime::from(completion);
                let ns =
                    self.lookahead.one_row_ns_of(task.scored_rows(), &time, task.while_drafting);
                if let Some(ns) = ns.filter(|_| shows_speed && reads_little) {
                    self.replicas.observe(task.replica, ns, completion.finished_ns);
                }
            }
            Err(error @ (JobError::Failed { .. } | JobError::Panicked { .. })) => {
                self.drop_replica(task.replica, &error.to_string(), sequence);
                return true;
            }
            Err(JobError::Cancelled) => {}
        }
        // Each drafter's tokens are verified on its share of the replicas. Those that missed a pause read it before drafts.
        let job = self.waiting_job(sequence.tokens().len(), task.scored_rows());
        let max_missed = if self.pause == Pause::Over { job.max_missed } else { usize::MAX };
        let job = WaitingJob { max_missed, ..job };
        self.lookahead.set_replicas(self.replicas.fast_ones(&job).div_ceil(self.chains.len()));
        false
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
        let frontier = sequence.tokens().len();
        let (key, rows) = self.arrived_at(frontier)?;
        let are_drafted = || self.chains.iter().all(|chain| chain.is_done(sequence, rows));
        let waits = self.waits_for_drafters && self.after_sibling != Some(frontier);
        (!waits || are_drafted()).then_some(key)
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

    /// Verifies the rows of an arrived job, and commits the tokens that they accept. Returns the key of the row after an
    /// accepted sibling, if it has arrived.
    fn verify_rows(
        &mut self,
        key: (usize, Ticket),
        is_alone: bool,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Option<(usize, Ticket)> {
        // The last row tests the next job's first token, if that has been drafted.
        let (frontier, ticket) = key;
        let (task, scores) = self.arrived.remove(&key)?;
        let is_own = self.after_sibling == Some(frontier);
        let count = if is_own { 1 } else { self.rows_to_verify(task.rows()) };
        let rows = &scores.rows[..count];
        let drafting = self.chains.iter().filter(|_| !is_own).map(|chain| &chain.drafting);
        let chains: Vec<_> =
            drafting.map(|drafting| (drafting.drafter(), drafting.chain())).collect();
        let (siblings, path) = (self.chains[0].drafting.siblings(), task.path(frontier));
        let (tree, verdict) =
            verify_chains(&chains, siblings, path, rows, frontier, sequence.randomness());
        let walked = Draft::deterministic(tree);
        let accepted = sequence.commit(&walked, &verdict, &scores);
        let committed = &sequence.tokens()[frontier..];
        let left_path = common_prefix_len(path, committed) < accepted.min(path.len());
        let outcome = if verdict.rejected || left_path {
            SpanOutcome::Rejected
        } else {
            SpanOutcome::Accepted
        };
        cluster.observe(Outcome { ticket, accepted: task.accepted + accepted, outcome });

        // Continue after the committed tokens, or restart there.
        let end = frontier + committed.len();
        // The first drafter's tokens may have been rejected where another one's were accepted.
        let first = &self.chains[0].drafting;
        let agreed = common_prefix_len(first.tokens(), committed);
        let rejected = !is_own && agreed < committed.len() && agreed < first.len();
        // The target's own token tests none.
        let (tested, further) = match is_own {
            true => (Vec::new(), committed.len()),
            false => (first.positions(agreed + usize::from(rejected)), committed.len() - agreed),
        };
        let mut all_agree = true;
        for chain in &mut self.chains {
            all_agree &= chain.advance(committed, cluster);
        }
        let is_drafted = verdict.token.is_none();
        let is_on_path = (is_drafted || is_own) && path.starts_with(committed);
        let (task, mut is_kept) = (task.after_accepting(accepted), false);
        if is_on_path && committed.len() < task.rows() {
            let scores = scores.skip_rows(committed.len());
            self.arrived.insert((end, ticket), (task.starting_with(end), scores));
        } else if let ([_], true, false, Some(&token)) =
            (&self.chains[..], is_drafted, all_agree, committed.last())
        {
            // A sibling was accepted.
            self.after_sibling = Some(end);
            is_kept = self.keep_row_after((end - 1, token), ticket, &task, scores);
        }
        if !all_agree {
            let extends_committed = |task: &ScoreTask| task.path(frontier).starts_with(committed);
            self.drop_rows(|task| task.first_row >= end && extends_committed(task), cluster);
        }
        self.lookahead.observe_verdict(&tested, rejected, further);
        let (tokens, now_ns) = (end - frontier, self.now_ns.unwrap_or(0));
        match self.pause {
            Pause::Reading => self.lookahead.observe_step_while_reading(tokens, now_ns),
            _ => self.lookahead.observe_step(tokens, now_ns, is_alone),
        }
        if !is_kept {
            return None;
        }
        self.chains[0].next_row = end + 1;
        self.arrived_at(end).filter(|_| sequence.finish().is_none()).map(|(key, _)| key)
    }

    /// Keeps the row after a committed sibling of the only chain: from the job that was verified, or from another one, which
    /// may be in flight if a new job would not end earlier. Returns whether there is one.
    fn keep_row_after(
        &mut self,
        sibling: Sibling,
        ticket: Ticket,
        verified: &ScoreTask,
        scores: Scores,
    ) -> bool {
        let (position, _) = sibling;
        if let Some(left) = verified.after_sibling(sibling) {
            self.arrived.insert((position + 1, ticket), left.with_output(scores));
            return true;
        }
        let mut is_kept = false;
        let new = self.waiting_job(position + 1, 1);
        for task in self.tasks.values_mut() {
            if let Some(left) = task.after_sibling(sibling)
                && self.replicas.ends_before(task.replica, &new)
            {
                (*task, is_kept) = (left, true);
            }
        }
        for (task, scores) in self.arrived.values_mut() {
            if let Some(left) = task.after_sibling(sibling) {
                (*task, *scores) = left.with_output(std::mem::take(scores));
                is_kept = true;
            }
        }
        is_kept
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
                self.replicas.cancel_job(task.replica, ticket, self.now_ns);
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

/// Submits a task to a replica.
fn submit_to(
    replica: usize,
    task: &ScoreTask,
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
) -> Result<Ticket, DecodeError> {
    let (ahead, tree) = task.request(sequence.tokens().len());
    jobs::submit_score(replica, sequence, ahead, tree, cluster)
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
        self.update_pause(sequence, cluster)?;
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

        // Verify the rows of its job, and the row after a sibling at once.
        let mut next = Some(ready);
        while let Some(key) = next {
            next = self.verify_rows(key, is_alone, sequence, cluster);
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        for chain in &mut self.chains {
            chain.drafting.restart(false, cluster);
            chain.next_row = 0;
        }
        // Jobs that are stopped show no slowness.
        (self.now_ns, self.after_sibling) = (None, None);
        self.drop_rows(|_| false, cluster);
        let [trials, reading] = [&mut self.trials, &mut self.reading].map(std::mem::take);
        self.cancel_jobs(trials, cluster);
        self.cancel_jobs(reading, cluster);
    }
}

impl AnswerDecoder for Dsi {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let decoder = Self::new(options.targets, self.lookahead.for_new_answer(prompt_tokens));
        let replicas = self.replicas.for_new_answer(options.targets);
        let tries_slow_replicas = !options.shares_devices;
        let decoder = Self { replicas, tries_slow_replicas, ..decoder };
        Box::new(decoder.with_drafters_of(options))
    }

    fn knowledge(&self) -> Option<Knowledge> {
        Some(self.lookahead.knowledge())
    }

    fn adopt(&mut self, known: &Knowledge) {
        self.lookahead.adopt(known);
    }

    fn start(&mut self, known: &Knowledge, others_ns: f64) {
        self.lookahead.start(known, others_ns);
        self.pause = Pause::AfterOthers;
        self.now_ns = None;
        // Other methods may have received their completions.
        self.replicas.forget_cancelled();
    }

    fn forecast(&self, missed: usize) -> Option<Forecast> {
        self.lookahead.forecast(missed)
    }

    fn has_failed_drafter(&self) -> bool {
        self.chains.iter().all(|chain| chain.drafting.has_failed())
    }
}

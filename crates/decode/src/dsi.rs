//! DSI: many verifications in flight.
//!
//! *Distributed Speculative Inference: Speculation Parallelism for Provably Faster Lossless Language
//! Model Inference*, Timor et al. 2024, arXiv 2405.14105, algorithm 1.
//!
//! 1. The drafters never wait: each goes on behind its own tokens.
//! 2. Every `lookahead` draft tokens a free target replica gets the rows behind them. A row at the
//!    committed frontier is always in work, with whatever drafts there are, so that decoding is never
//!    slower than the target alone.
//! 3. Rows are used in the order of their positions, whatever the order in which replicas finish. What
//!    they accept is committed. Drafters that have the committed tokens go on. The others start anew
//!    behind them, and what verifies their tokens is cancelled.
//!
//! Deviations: a replica's job has the rows that no other has: the last row of one job tests the first
//! token of the next, and drafters that agree share rows. Where drafts have piled up, since all replicas are
//! busy, a job takes all of them. A row whose token is not drafted yet gives the target's own token at once.
//! A replica that fails is left out, and its rows go to another one. The paper terminates threads; here a
//! worker sees between layers that its job was cancelled.
//!
//! With several drafters the paper has all of them draft behind every token of each, which are
//! `drafters^depth` chains. Here each continues its own chain, and all start behind every committed token
//! that was not theirs: as many chains as drafters. At a committed prefix a drafter's chain is what it would
//! draft there anyway, so of those that agree none has to be dropped.

use crate::chain::{Chain, agreement};
use crate::draft_ahead::DraftAhead;
use crate::replicas::Replicas;
use crate::{DecodeError, Decoder, DsiLookahead, Sequence, jobs};
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, JobError, Outcome, Proposal, Scores, Ticket, TokenId,
    TokenTree, trace::SpanOutcome, verify_chains,
};
use std::collections::BTreeMap;

/// Verifies on several target replicas at once.
pub struct Dsi {
    lookahead: DsiLookahead,
    /// Whether a drafter that is late is waited for, so that the text of a seed does not depend on time.
    waits: bool,
    /// One for each drafter, the preferred one first.
    chains: Vec<Chain>,
    replicas: Replicas,
    /// Jobs whose rows are wanted.
    tasks: BTreeMap<Ticket, Task>,
    /// What has come, by the position whose token the first row predicts.
    arrived: BTreeMap<(usize, Ticket), (Task, Scores)>,
}

/// A job that scores the rows of some positions.
#[derive(Clone, Debug)]
struct Task {
    replica: usize,
    first_row: usize,
    /// Number of committed tokens when it was made.
    from: usize,
    /// The tokens behind them, up to the last row.
    tokens: Vec<TokenId>,
}

impl Task {
    fn rows(&self) -> usize {
        self.from + self.tokens.len() + 1 - self.first_row
    }

    /// The tokens from a position on, up to the last row.
    fn path(&self, position: usize) -> &[TokenId] {
        self.tokens.get(position - self.from..).unwrap_or_default()
    }
}

impl Dsi {
    /// With so many target replicas (the SP degree), and the first drafter.
    #[must_use]
    pub fn new(replicas: usize, lookahead: DsiLookahead) -> Self {
        Self {
            lookahead,
            waits: false,
            chains: vec![Chain::new(0)],
            replicas: Replicas::new(replicas),
            tasks: BTreeMap::new(),
            arrived: BTreeMap::new(),
        }
    }

    /// The same with the first `count` drafters, at least one. A token of the first one that is right is
    /// taken, and the first one's rows go before those of the others.
    #[must_use]
    pub fn with_drafters(self, count: usize) -> Self {
        Self { chains: (0..count.max(1)).map(Chain::new).collect(), ..self }
    }

    /// The same, but waiting for late drafters instead of taking the target's own token, and drafting
    /// token by token: with rejection sampling, a seed's text is then the same at every speed of the
    /// devices.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        for chain in &mut self.chains {
            chain.drafting = chain.drafting.take().map(DraftAhead::one_token_per_job);
        }
        Self { waits: true, ..self }
    }

    /// The lookahead, with what it has learned.
    #[must_use]
    pub fn lookahead(&self) -> &DsiLookahead {
        &self.lookahead
    }

    /// Gives drafters and free replicas what there is to do.
    fn dispatch(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (most, at_once) = (self.lookahead.most(), self.lookahead.at_once());
        // Rows that wait for tokens may be more than would be drafted by now.
        let came = self.came(sequence.tokens().len()).filter(|_| self.waits);
        let most = came.map_or(most, |(_, rows)| most.max(rows));
        let mut index = 0;
        while let Some(chain) = self.chains.get_mut(index) {
            let drafting = chain.drafting.as_mut();
            match drafting.map_or(Ok(()), |own| own.continue_to(sequence, most, at_once, cluster)) {
                // Then another one may stand here.
                Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                    self.lose_drafter(index, &gone.to_string(), sequence, cluster);
                }
                result => {
                    result?;
                    index += 1;
                }
            }
        }
        // Where the row at the frontier is missing, it takes the most tokens with it that there are.
        let frontier = sequence.tokens().len();
        let lengths = self.chains.iter().map(|chain| chain.tokens().len()).enumerate();
        let longest = lengths.rev().max_by_key(|&(_, length)| length).map_or(0, |(index, _)| index);
        if longest > 0 && self.first_missing_row(longest, frontier) == frontier {
            self.dispatch_rows(longest, sequence, cluster)?;
        }
        (0..self.chains.len()).try_for_each(|index| self.dispatch_rows(index, sequence, cluster))
    }

    /// Gives free replicas the rows along a chain that nobody has yet.
    fn dispatch_rows(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (frontier, most) = (sequence.tokens().len(), self.lookahead.most());
        self.chains[index].next_row = self.first_missing_row(index, frontier);
        let ends = self.chains[index].is_done(sequence, most);
        loop {
            let Chain { next_row, .. } = self.chains[index];
            let chain = self.chains[index].tokens();
            // The row behind the last draft token can be scored, but none behind the last place.
            let end = (frontier + chain.len() + 1).min(frontier + sequence.remaining());
            let count = end.saturating_sub(next_row).min(MAX_ROWS).min(most);
            let is_due = next_row == frontier || ends || count >= self.lookahead.length();
            if count == 0 || !is_due {
                return Ok(());
            }
            let Some(replica) = self.replicas.free() else { return Ok(()) };
            let tokens = chain[..next_row + count - 1 - frontier].to_vec();
            let task = Task { replica, first_row: next_row, from: frontier, tokens };
            self.submit(task, sequence, cluster)?;
            self.chains[index].next_row += count;
        }
    }

    /// The first row along a chain that is neither in work nor there. Chains share the rows behind tokens
    /// in which they agree.
    fn first_missing_row(&self, index: usize, frontier: usize) -> usize {
        let own = &self.chains[index];
        let others = self.chains.iter().enumerate().filter(|&(at, _)| at != index);
        let shared = others.map(|(_, other)| {
            let common = agreement(own.tokens(), other.tokens());
            other.next_row.min(frontier + common + 1)
        });
        shared.fold(own.next_row.max(frontier), usize::max)
    }

    /// Sends a task to its replica, or to another one if that is gone.
    fn submit(
        &mut self,
        task: Task,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let frontier = sequence.tokens().len();
        let (ahead, tokens) = task.path(frontier).split_at(task.first_row - frontier);
        let (tree, mut replica) = (TokenTree::chain(tokens), task.replica);
        let ticket = loop {
            match jobs::submit_score(replica, sequence, ahead, tree.clone(), cluster) {
                Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                    self.lose_replica(replica, &gone.to_string(), sequence);
                    replica = self.replicas.least_busy().ok_or(DecodeError::Cluster(gone))?;
                }
                result => break result?,
            }
        };
        self.replicas.begin(replica);
        self.tasks.insert(ticket, Task { replica, ..task });
        Ok(())
    }

    /// Takes what a job yields.
    fn take(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let ticket = completion.ticket;
        if let Some(task) = self.tasks.remove(&ticket) {
            return self.take_rows(task, sequence, completion, cluster);
        }
        if self.replicas.has_ended(ticket) {
            // It may have been done all the same.
            cluster.observe(waste(ticket));
            return Ok(());
        }
        for index in 0..self.chains.len() {
            let drafting = self.chains[index].drafting.as_mut();
            let Some(drafting) = drafting.filter(|own| own.is_running(ticket)) else { continue };
            match drafting.take(sequence, completion) {
                Err(DecodeError::Job(
                    failed @ (JobError::Failed { .. } | JobError::Panicked { .. }),
                )) => self.lose_drafter(index, &failed.to_string(), sequence, cluster),
                result => {
                    // The sizing rule is about the drafter whose rows come first.
                    if let Some((tokens, ns)) = result?.filter(|_| index == 0) {
                        self.lookahead.observe_draft(tokens, ns);
                    }
                }
            }
            return Ok(());
        }
        // A draft that was cancelled, but was done all the same.
        cluster.observe(waste(ticket));
        Ok(())
    }

    /// Takes a replica's rows, or sends its task to another one if it has failed.
    fn take_rows(
        &mut self,
        task: Task,
        sequence: &mut Sequence,
        completion: Completion,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let ticket = completion.ticket;
        self.replicas.end(task.replica);
        let failed = match &completion.output {
            Err(error @ (JobError::Failed { .. } | JobError::Panicked { .. })) => {
                Some(error.to_string())
            }
            _ => None,
        };
        if let Some(reason) = failed {
            self.lose_replica(task.replica, &reason, sequence);
            if let Some(replica) = self.replicas.least_busy() {
                return self.submit(Task { replica, ..task }, sequence, cluster);
            }
        }
        let answer = jobs::take_scores(sequence, task.rows() - 1, completion)?;
        self.lookahead.observe_score(answer.duration_ns);
        self.arrived.insert((task.first_row, ticket), (task, answer.output));
        Ok(())
    }

    /// What has come of the rows from the frontier on in one job, and how many they are.
    fn came(&self, frontier: usize) -> Option<((usize, Ticket), usize)> {
        let (&key, (_, scores)) = self.arrived.range((frontier, Ticket(0))..).next()?;
        (key.0 == frontier).then_some((key, scores.rows.len()))
    }

    /// The rows from the frontier on, if they have come, and the tokens that they test if these are waited
    /// for.
    fn ready(&self, sequence: &Sequence) -> Option<(usize, Ticket)> {
        let (key, rows) = self.came(sequence.tokens().len())?;
        let is_late = self.waits && !self.chains.iter().all(|own| own.is_done(sequence, rows));
        (!is_late).then_some(key)
    }

    /// How many of the rows are verified at once. A chain that lacks an accepted token starts anew; where its
    /// next one is waited for, the rows behind that token wait, too.
    fn rows_to_verify(&self, rows: usize) -> usize {
        let (Some((first, others)), true) = (self.chains.split_first(), self.waits) else {
            return rows;
        };
        let common = others.iter().map(|own| agreement(first.tokens(), own.tokens())).min();
        common.map_or(rows, |common| rows.min(common + 1))
    }

    /// Decoding goes on without a drafter; without any it is that of the target alone.
    fn lose_drafter(
        &mut self,
        index: usize,
        reason: &str,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) {
        let Some(drafting) = self.chains[index].drafting.take() else { return };
        let message = format!("drafter {} failed: {reason}", drafting.drafter());
        sequence.statistics_mut().failures.push(message);
        if self.chains.len() > 1 {
            self.chains.remove(index);
        }
        self.drop_rows(|_| false, cluster);
        for chain in &mut self.chains {
            chain.next_row = 0;
        }
    }

    /// Decoding goes on without a target replica.
    fn lose_replica(&mut self, index: usize, reason: &str, sequence: &mut Sequence) {
        if self.replicas.fail(index) {
            let message = format!("target replica {index} failed: {reason}");
            sequence.statistics_mut().failures.push(message);
        }
    }

    /// Cancels jobs whose rows are not wanted any more, and forgets such rows that had come.
    fn drop_rows(&mut self, is_wanted: impl Fn(&Task) -> bool, cluster: &mut dyn Cluster) {
        self.tasks.retain(|&ticket, task| {
            let keep = is_wanted(task);
            if !keep {
                cluster.cancel(ticket);
                self.replicas.cancel(task.replica, ticket);
            }
            keep
        });
        self.arrived.retain(|&(_, ticket), (task, _)| {
            let keep = is_wanted(task);
            if !keep {
                cluster.observe(waste(ticket));
            }
            keep
        });
    }
}

/// What becomes of a job that came to nothing.
fn waste(ticket: Ticket) -> Outcome {
    Outcome { ticket, accepted: 0, fate: SpanOutcome::Wasted }
}

/// Rows of one job at the most.
const MAX_ROWS: usize = 64;

impl Decoder for Dsi {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // Drafters and replicas work, until the row at the frontier has come.
        self.dispatch(sequence, cluster)?;
        let ready = loop {
            if let Some(key) = self.ready(sequence) {
                break key;
            }
            let completion = cluster.next_completion()?;
            self.take(sequence, completion, cluster)?;
            self.dispatch(sequence, cluster)?;
        };

        // Verify its job's rows: the last one tests the next job's first token, if that is drafted.
        let (frontier, ticket) = ready;
        let Some((task, scores)) = self.arrived.remove(&ready) else { return Ok(()) };
        let count = self.rows_to_verify(scores.rows.len());
        let drafting = self.chains.iter().filter_map(|chain| chain.drafting.as_ref());
        let chains: Vec<_> = drafting.map(|own| (own.drafter(), own.chain())).collect();
        let path = task.path(frontier);
        let (tree, verdict) =
            verify_chains(&chains, path, &scores.rows[..count], frontier, sequence.randomness());
        let walked = Draft { tree, proposal: Proposal::Deterministic };
        let accepted = sequence.commit(&walked, &verdict, &scores);
        let committed = &sequence.tokens()[frontier..];
        let leaves = agreement(path, committed) < accepted.min(path.len());
        let fate =
            if verdict.rejected || leaves { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        cluster.observe(Outcome { ticket, accepted, fate });

        // Go on behind it, or start anew.
        let end = frontier + committed.len();
        if verdict.token.is_none() && committed.len() < scores.rows.len() && !leaves {
            let scores = scores.skip_rows(committed.len());
            self.arrived.insert((end, ticket), (Task { first_row: end, ..task.clone() }, scores));
        }
        let mut all_agree = true;
        for chain in &mut self.chains {
            all_agree &= chain.follow(committed, cluster);
        }
        if !all_agree {
            let leads_there = |task: &Task| task.path(frontier).starts_with(committed);
            self.drop_rows(|task| task.first_row >= end && leads_there(task), cluster);
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        for drafting in self.chains.iter_mut().filter_map(|chain| chain.drafting.as_mut()) {
            drafting.restart(false, cluster);
        }
        self.drop_rows(|_| false, cluster);
        for chain in &mut self.chains {
            chain.next_row = 0;
        }
    }
}

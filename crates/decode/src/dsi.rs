//! DSI: many verifications in flight.
//!
//! *Distributed Speculative Inference: Speculation Parallelism for Provably Faster Lossless Language
//! Model Inference*, Timor et al. 2024, arXiv 2405.14105, algorithm 1.
//!
//! 1. The drafter never waits: it goes on behind its own tokens.
//! 2. Every `lookahead` draft tokens a free target replica gets the rows behind them. A row at the
//!    committed frontier is always in work, with whatever drafts there are, so that decoding is never
//!    slower than the target alone.
//! 3. Rows are used in the order of their positions, whatever the order in which replicas finish. What
//!    they accept is committed. A rejection commits the correction, cancels all that is under way, and
//!    the drafter starts anew behind it.
//!
//! Deviations: a replica's job has the rows that no other has: the last row of one job tests the first
//! token of the next. Where drafts have piled up, since all replicas are busy, a job takes all of them.
//! A row whose token is not drafted yet gives the target's own token at once. A replica that fails is
//! left out, and its rows go to another one. The paper terminates threads; here a worker sees between
//! layers that its job was cancelled.

use crate::drafting::Drafting;
use crate::{DecodeError, Decoder, Lookahead, Sequence, exchange};
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, JobError, Outcome, Scores, Ticket, TokenTree,
    trace::Fate, verify,
};
use std::collections::{BTreeMap, BTreeSet};

/// Verifies on several target replicas at once.
pub struct Dsi {
    lookahead: Lookahead,
    /// Whether a drafter that is late is waited for, so that the text of a seed does not depend on time.
    waits: bool,
    drafting: Option<Drafting>,
    replicas: Vec<Replica>,
    /// Jobs whose rows are wanted.
    tasks: BTreeMap<Ticket, Task>,
    /// What has come, by the position whose token the first row predicts.
    arrived: BTreeMap<usize, (Ticket, Scores)>,
    /// Every row before this position is in work, or has come.
    next_row: usize,
}

/// One target replica.
#[derive(Clone, Debug, Default)]
struct Replica {
    failed: bool,
    /// Its jobs that were cancelled, but have not completed yet.
    ending: BTreeSet<Ticket>,
}

/// A job that scores the rows of some positions.
#[derive(Clone, Copy, Debug)]
struct Task {
    replica: usize,
    first_row: usize,
    rows: usize,
}

impl Dsi {
    /// With so many target replicas (the SP degree).
    #[must_use]
    pub fn new(replicas: usize, lookahead: Lookahead) -> Self {
        Self {
            lookahead,
            waits: false,
            drafting: Some(Drafting::new(0)),
            replicas: vec![Replica::default(); replicas],
            tasks: BTreeMap::new(),
            arrived: BTreeMap::new(),
            next_row: 0,
        }
    }

    /// The same, but waiting for a late drafter instead of taking the target's own token, and drafting
    /// token by token: with rejection sampling, a seed's text is then the same at every speed of the
    /// devices.
    #[must_use]
    pub fn reproducible(self) -> Self {
        Self { waits: true, drafting: self.drafting.map(Drafting::one_by_one), ..self }
    }

    /// The lookahead, with what it has learned.
    #[must_use]
    pub fn lookahead(&self) -> &Lookahead {
        &self.lookahead
    }

    fn drafted(&self) -> usize {
        self.drafting.as_ref().map_or(0, Drafting::len)
    }

    /// Gives the drafter and free replicas what there is to do.
    fn dispatch(
        &mut self,
        sequence: &Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let frontier = sequence.tokens().len();
        let (most, at_once) = (self.lookahead.most(), self.lookahead.at_once());
        if let Some(drafting) = &mut self.drafting {
            match drafting.go_on(sequence, most, at_once, cluster) {
                Err(DecodeError::Cluster(ClusterError::WorkerGone(_))) => {
                    self.lose_drafter(sequence, cluster);
                }
                result => result?,
            }
        }
        let ends = self.drafting.as_ref().is_none_or(|drafting| drafting.is_done(sequence, most));
        self.next_row = self.next_row.max(frontier);
        loop {
            // The row behind the last draft token can be scored, but none behind the last place.
            let end = (frontier + self.drafted() + 1).min(frontier + sequence.remaining());
            let count = end.saturating_sub(self.next_row).min(MAX_ROWS).min(most);
            let is_due = self.next_row == frontier || ends || count >= self.lookahead.length();
            if count == 0 || !is_due {
                return Ok(());
            }
            let Some(replica) = self.free_replica() else { return Ok(()) };
            let task = Task { replica, first_row: self.next_row, rows: count };
            self.submit(task, sequence, cluster)?;
            self.next_row += count;
        }
    }

    /// A replica without a wanted job, best one that is not still ending another.
    fn free_replica(&self) -> Option<usize> {
        let is_busy = |index| self.tasks.values().any(|task| task.replica == index);
        let free = self.replicas.iter().enumerate().filter(|(_, replica)| !replica.failed);
        free.filter(|&(index, _)| !is_busy(index))
            .min_by_key(|(_, replica)| replica.ending.len())
            .map(|(index, _)| index)
    }

    /// Sends a task to its replica, or to another one if that is gone.
    fn submit(
        &mut self,
        mut task: Task,
        sequence: &Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let chain = self.drafting.as_ref().map_or(&[][..], Drafting::tokens);
        let first = task.first_row - sequence.tokens().len();
        let tree = TokenTree::chain(&chain[first..first + task.rows - 1]);
        let ahead = &chain[..first];
        loop {
            match exchange::submit_score(task.replica, sequence, ahead, tree.clone(), cluster) {
                Ok(ticket) => {
                    self.tasks.insert(ticket, task);
                    return Ok(());
                }
                Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                    self.replicas[task.replica].failed = true;
                    task.replica = self.any_replica().ok_or(DecodeError::Cluster(gone))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The replica with the least to do, busy or not.
    fn any_replica(&self) -> Option<usize> {
        let jobs = |index: &usize| {
            let tasks = self.tasks.values().filter(|task| task.replica == *index).count();
            tasks + self.replicas[*index].ending.len()
        };
        let alive = (0..self.replicas.len()).filter(|&index| !self.replicas[index].failed);
        alive.min_by_key(jobs)
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
            if let Err(JobError::Failed { .. } | JobError::Panicked { .. }) = &completion.output {
                self.replicas[task.replica].failed = true;
                if let Some(replica) = self.any_replica() {
                    return self.submit(Task { replica, ..task }, sequence, cluster);
                }
            }
            let answer = exchange::scored(sequence, task.rows - 1, completion)?;
            self.lookahead.observe_score(answer.duration_ns);
            self.arrived.insert(task.first_row, (ticket, answer.output));
            return Ok(());
        }
        for replica in &mut self.replicas {
            if replica.ending.remove(&ticket) {
                // It may have been done all the same.
                cluster.observe(waste(ticket));
            }
        }
        if let Some(drafting) = &mut self.drafting {
            match drafting.take(sequence, completion) {
                Err(DecodeError::Job(JobError::Failed { .. } | JobError::Panicked { .. })) => {
                    self.lose_drafter(sequence, cluster);
                }
                result => {
                    if let Some((tokens, ns)) = result? {
                        self.lookahead.observe_draft(tokens, ns);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether there is a verdict to be had: rows from the frontier on have come, and the tokens that they
    /// test if these are waited for.
    fn is_ready(&self, sequence: &Sequence) -> bool {
        let Some((_, scores)) = self.arrived.get(&sequence.tokens().len()) else { return false };
        let rows = scores.rows.len();
        let is_late = |drafting: &Drafting| !drafting.is_done(sequence, rows);
        !(self.waits && self.drafting.as_ref().is_some_and(is_late))
    }

    /// Decoding goes on as the target alone.
    fn lose_drafter(&mut self, sequence: &Sequence, cluster: &mut dyn Cluster) {
        self.drafting = None;
        self.forget(sequence.tokens().len(), cluster);
    }

    /// Cancels all that is under way behind the frontier, and forgets what had come.
    fn forget(&mut self, frontier: usize, cluster: &mut dyn Cluster) {
        for (ticket, task) in std::mem::take(&mut self.tasks) {
            cluster.cancel(ticket);
            self.replicas[task.replica].ending.insert(ticket);
        }
        for (ticket, _) in std::mem::take(&mut self.arrived).into_values() {
            cluster.observe(waste(ticket));
        }
        self.next_row = frontier;
    }
}

/// What becomes of a job that came to nothing.
fn waste(ticket: Ticket) -> Outcome {
    Outcome { ticket, accepted: 0, fate: Fate::Wasted }
}

/// Rows of one job at the most.
const MAX_ROWS: usize = 64;

impl Decoder for Dsi {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // The drafter and the replicas work, until the row at the frontier has come.
        self.dispatch(sequence, cluster)?;
        while !self.is_ready(sequence) {
            let completion = cluster.next_completion()?;
            self.take(sequence, completion, cluster)?;
            self.dispatch(sequence, cluster)?;
        }

        // Verify its job's rows: the last one tests the next job's first token, if that is drafted.
        let frontier = sequence.tokens().len();
        let Some((ticket, scores)) = self.arrived.remove(&frontier) else { return Ok(()) };
        let nothing = Draft::empty();
        let chain = self.drafting.as_ref().map_or(&nothing, Drafting::chain);
        let verdict = verify(chain, &scores.rows, frontier, sequence.randomness());
        let accepted = sequence.commit(chain, &verdict, &scores);
        let fate = if verdict.rejected { Fate::Rejected } else { Fate::Accepted };
        cluster.observe(Outcome { ticket, accepted, fate });

        // Go on, or start anew behind the target's own token.
        if let Some(drafting) = &mut self.drafting {
            drafting.accept(accepted, cluster);
        }
        if verdict.token.is_some() {
            if let Some(drafting) = &mut self.drafting {
                drafting.restart(verdict.rejected, cluster);
            }
            self.forget(sequence.tokens().len(), cluster);
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        if let Some(drafting) = &mut self.drafting {
            drafting.restart(false, cluster);
        }
        self.forget(0, cluster);
    }
}

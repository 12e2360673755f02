//! Drafting ahead of verification.

use crate::jobs::{self, DraftRequest};
use crate::{DecodeError, Sequence};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Features, Outcome, Scores, TargetFeedback, Ticket,
    TokenId, TokenTree, trace::SpanOutcome,
};
use std::collections::VecDeque;

/// A chain of draft tokens after the committed ones. Draft jobs extend it one after another.
///
/// Jobs and caches are never rolled back. If the chain turns out to be wrong, it restarts after the
/// committed tokens.
pub(crate) struct DraftAhead {
    drafter: usize,
    chain: Draft,
    /// The position of each token of the chain in the job that drafted it, from 0.
    positions: VecDeque<usize>,
    /// The jobs that drafted the tokens of the chain, in their order.
    jobs: VecDeque<DraftJob>,
    /// The job in flight.
    running: Option<Ticket>,
    /// The job in flight that only lets the drafter read what it missed: the chain has ended
    /// meanwhile.
    reading: Option<Ticket>,
    /// The number of committed tokens that the drafter has read, and that the job in flight reads.
    read: usize,
    reads_to: usize,
    /// Whether the drafter has failed on this chain.
    exhausted: bool,
    /// The number of tokens with features when the drafter had nothing to add to this chain. With
    /// more it may.
    empty_with: Option<usize>,
    /// The target's feedback when this chain began, if all of its jobs have the same.
    feedback: Option<TargetFeedback>,
    /// Whether a failure of the drafter was reported.
    reported: bool,
    /// Whether the drafter has failed on committed tokens, and gets no more jobs.
    failed: bool,
    /// Whether every job drafts a single token.
    one_token_per_job: bool,
    /// Whether a job in which the drafter reads what it has missed goes on when the chain ends.
    /// Otherwise a drafter that reads for longer than the target takes for a token would never
    /// begin.
    reads_on: bool,
}

/// A job that reads more committed tokens than this first is not cancelled when the chain ends.
const UNREAD_TOKENS: usize = 2;

/// How many tokens a chain should have.
pub(crate) struct DraftedLengths {
    /// The number of tokens to wait for.
    pub(crate) min: usize,
    /// The number of tokens to draft while there is time.
    pub(crate) max: usize,
    /// The number of tokens of one job.
    pub(crate) per_job: usize,
}

/// What committed tokens say of a chain.
pub(crate) struct ChainVerdict {
    /// The positions of the tested tokens in the jobs that drafted them, from 0.
    pub(crate) tested: Vec<usize>,
    /// Whether the last tested token was rejected. All others were accepted.
    pub(crate) rejected: bool,
    /// The number of tokens that were committed after the accepted ones.
    pub(crate) further: usize,
}

impl ChainVerdict {
    /// Returns whether the chain continues after the committed tokens.
    pub(crate) fn continues(&self) -> bool {
        self.further == 0
    }
}

/// A completed draft job.
struct DraftJob {
    ticket: Ticket,
    /// The number of its tokens that are still in the chain.
    remaining: usize,
    accepted: usize,
}

impl DraftAhead {
    /// Creates an empty chain for the drafter with this index.
    pub(crate) fn new(drafter: usize) -> Self {
        Self {
            drafter,
            chain: Draft::empty(),
            positions: VecDeque::new(),
            jobs: VecDeque::new(),
            running: None,
            reading: None,
            read: 0,
            reads_to: 0,
            exhausted: false,
            empty_with: None,
            feedback: None,
            reported: false,
            failed: false,
            one_token_per_job: false,
            reads_on: false,
        }
    }

    /// From now on, a job in which the drafter reads what it has missed goes on when the chain
    /// ends.
    pub(crate) fn reading_on(self) -> Self {
        Self { reads_on: true, ..self }
    }

    /// From now on, drafts a single token in every job.
    ///
    /// The proposals of some drafters, such as prompt lookup, depend on where a job starts and how
    /// many tokens it requests. Both would otherwise depend on measured times. So would the number
    /// of tokens whose features a job has, which therefore stays the same until the chain restarts.
    pub(crate) fn draft_one_token_per_job(&mut self) {
        self.one_token_per_job = true;
    }

    /// Returns the drafter's index.
    pub(crate) fn drafter(&self) -> usize {
        self.drafter
    }

    /// Returns whether the drafter has failed for good. The chain is empty then, and stays empty.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether a job is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some() || self.reading.is_some()
    }

    /// Returns whether this job is in flight.
    pub(crate) fn is_running(&self, ticket: Ticket) -> bool {
        self.running == Some(ticket) || self.reading == Some(ticket)
    }

    /// Returns whether this job is in flight only to let the drafter read.
    pub(crate) fn is_reading(&self, ticket: Ticket) -> bool {
        self.reading == Some(ticket)
    }

    /// Returns the draft after the committed tokens.
    pub(crate) fn chain(&self) -> &Draft {
        &self.chain
    }

    /// Returns the draft tokens after the committed ones.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.chain.tree.tokens()
    }

    /// Returns the number of draft tokens after the committed ones.
    pub(crate) fn len(&self) -> usize {
        self.chain.tree.len()
    }

    /// Returns whether there is no draft token after the committed ones.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the draft tokens as a tree to score.
    pub(crate) fn tree(&self) -> TokenTree {
        self.chain.tree.clone()
    }

    /// Drafts until the chain has `length` tokens, or cannot have more.
    pub(crate) fn draft(
        &mut self,
        length: usize,
        per_job: usize,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        loop {
            self.continue_to(sequence, length, per_job, cluster)?;
            if self.is_done(sequence, length) {
                return Ok(());
            }
            let completion = cluster.next_completion()?;
            self.handle_completion(sequence, completion)?;
        }
    }

    /// Drafts while the target scores a tree of `nodes` nodes, until it has ended and enough is
    /// drafted. Returns the scores.
    pub(crate) fn draft_until_scored(
        &mut self,
        scoring: Ticket,
        nodes: usize,
        &DraftedLengths { min, max, per_job }: &DraftedLengths,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Scores, DecodeError> {
        let mut scores = None;
        loop {
            if scores.is_none() || self.len() < min {
                self.continue_to(sequence, max, per_job, cluster)?;
            }
            if self.is_done(sequence, min)
                && let Some(scores) = scores.take()
            {
                return Ok(scores);
            }
            let completion = cluster.next_completion()?;
            if completion.ticket == scoring {
                scores = Some(jobs::score_reply(sequence, nodes, completion)?.output);
            } else {
                self.handle_completion(sequence, completion)?;
            }
        }
    }

    /// Submits a job that extends the chain towards `length` tokens, by up to `per_job` tokens.
    /// Does nothing if a job is in flight or the chain is done. Reports a drafter that is gone.
    pub(crate) fn continue_to(
        &mut self,
        sequence: &mut Sequence,
        length: usize,
        per_job: usize,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        if !self.is_busy() && !self.is_done(sequence, length) {
            let missing = useful_length(sequence, length) - self.len();
            let per_job = if self.one_token_per_job { 1 } else { per_job.max(1) };
            let length = missing.min(per_job);
            let shape = DraftShape::Chain { length };
            let mut request =
                DraftRequest::new(self.drafter, sequence, self.chain.tree.tokens(), shape);
            if self.one_token_per_job {
                let first = self.feedback.get_or_insert_with(|| request.feedback.clone());
                request.feedback = first.clone();
            }
            match jobs::submit_draft(request, sequence, cluster) {
                Ok(ticket) => {
                    (self.running, self.reads_to) = (Some(ticket), sequence.tokens().len());
                }
                Err(error) => self.fail(sequence, error)?,
            }
        }
        Ok(())
    }

    /// Returns whether a chain with a requested length of `length` tokens will not grow further.
    pub(crate) fn is_done(&self, sequence: &Sequence, length: usize) -> bool {
        let is_empty = self.empty_with == Some(known_features(sequence));
        self.failed || self.exhausted || is_empty || self.len() >= useful_length(sequence, length)
    }

    /// Handles a completion if it is of the job in flight. Reports a job that failed.
    pub(crate) fn handle_completion(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
    ) -> Result<(), DecodeError> {
        if self.reading.take_if(|reading| *reading == completion.ticket).is_some() {
            // The tokens are not used. If the job has failed, the next one will report that.
            if jobs::draft_reply(self.drafter, sequence, completion).is_ok() {
                self.read = self.read.max(self.reads_to);
            }
        } else if self.running.take_if(|running| *running == completion.ticket).is_some()
            && let Err(error) = self.extend(sequence, completion)
        {
            self.fail(sequence, error)?;
        }
        Ok(())
    }

    /// Adds the tokens of a completed job to the chain.
    fn extend(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
    ) -> Result<(), DecodeError> {
        let reply = jobs::draft_reply(self.drafter, sequence, completion)?;
        if !reply.output.tree.is_chain() {
            return Err(DecodeError::Answer("the draft is not a chain"));
        }
        let drafted = reply.output.tree.len();
        self.read = self.read.max(self.reads_to);
        self.chain.extend(reply.output);
        self.positions.extend(0..drafted);
        self.empty_with = (drafted == 0).then(|| known_features(sequence));
        self.jobs.push_back(DraftJob { ticket: reply.ticket, remaining: drafted, accepted: 0 });
        Ok(())
    }

    /// Continues after a failed job.
    ///
    /// After draft tokens, only the chain ends. The failure may depend on these tokens, so to drop
    /// them untested, or to give up the drafter because of them, would change the distribution of
    /// the text.
    fn fail(&mut self, sequence: &mut Sequence, error: DecodeError) -> Result<(), DecodeError> {
        let reason = jobs::drafter_failure(error)?;
        if !std::mem::replace(&mut self.reported, true) {
            sequence.report_failed_drafter(self.drafter, &reason);
        }
        (self.failed, self.exhausted) = (self.is_empty(), true);
        Ok(())
    }

    /// Moves the chain past the committed tokens. If it does not contain all of them, it restarts
    /// after them.
    pub(crate) fn advance(
        &mut self,
        committed: &[TokenId],
        cluster: &mut dyn Cluster,
    ) -> ChainVerdict {
        let agreed = common_prefix_len(self.tokens(), committed);
        let further = committed.len() - agreed;
        let rejected = further > 0 && agreed < self.len();
        let tested = self.positions.iter().take(agreed + usize::from(rejected)).copied().collect();
        self.accept(agreed, cluster);
        if further > 0 {
            let reads = self.reads_on && self.reads_to > self.read + UNREAD_TOKENS;
            let reading = self.reading.take().or_else(|| self.running.take_if(|_| reads));
            self.restart(rejected, cluster);
            self.reading = reading;
        }
        ChainVerdict { tested, rejected, further }
    }

    /// Removes the first `count` tokens of the chain, which were committed. The others stay valid.
    fn accept(&mut self, count: usize, cluster: &mut dyn Cluster) {
        self.chain.drop_first(count);
        self.read += count;
        self.positions.drain(..count.min(self.positions.len()));
        let mut count = count;
        while let Some(job) = self.jobs.front_mut() {
            let now = count.min(job.remaining);
            job.remaining -= now;
            job.accepted += now;
            count -= now;
            let (ticket, accepted, remaining) = (job.ticket, job.accepted, job.remaining);
            if accepted > 0 {
                cluster.observe(Outcome { ticket, accepted, outcome: SpanOutcome::Accepted });
            }
            if remaining > 0 {
                break;
            }
            self.jobs.pop_front();
        }
    }

    /// Discards the chain and cancels the job in flight, because a token was committed that is not
    /// the chain's next one. `rejected`: whether the chain's next token was tested.
    pub(crate) fn restart(&mut self, rejected: bool, cluster: &mut dyn Cluster) {
        for ticket in [self.running.take(), self.reading.take()].into_iter().flatten() {
            cluster.cancel(ticket);
        }
        let mut outcome = if rejected { SpanOutcome::Rejected } else { SpanOutcome::Wasted };
        for DraftJob { ticket, accepted, .. } in self.jobs.drain(..) {
            if accepted == 0 || outcome == SpanOutcome::Rejected {
                cluster.observe(Outcome { ticket, accepted, outcome });
            }
            outcome = SpanOutcome::Wasted;
        }
        self.chain = Draft::empty();
        self.positions.clear();
        self.exhausted = false;
        (self.empty_with, self.feedback) = (None, None);
    }
}

/// Returns the number of tokens with features.
fn known_features(sequence: &Sequence) -> usize {
    sequence.features().map_or(0, Features::len)
}

/// Returns how many of `length` draft tokens can be committed. The sequence's last token is always
/// the target's own.
fn useful_length(sequence: &Sequence, length: usize) -> usize {
    length.min(sequence.remaining().saturating_sub(1))
}

/// Returns the length of the common prefix.
pub(crate) fn common_prefix_len(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

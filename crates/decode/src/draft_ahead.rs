//! A drafter that runs ahead of verification.

use crate::{DecodeError, Sequence, jobs};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Outcome, Ticket, TokenId, TokenTree, trace::SpanOutcome,
};
use std::collections::VecDeque;

/// A chain behind the committed tokens, which one draft job after another lengthens. No job and no
/// cache is ever rolled back: where the chain turns out wrong, it starts anew behind other tokens.
pub(crate) struct DraftAhead {
    drafter: usize,
    chain: Draft,
    /// Whose tokens stand in the chain, first to last.
    jobs: VecDeque<DraftJob>,
    running: Option<Ticket>,
    /// The drafter has nothing to add to this chain.
    exhausted: bool,
    /// Whether every job makes a single token.
    one_token_per_job: bool,
}

struct DraftJob {
    ticket: Ticket,
    /// Tokens that are still in the chain.
    left: usize,
    accepted: usize,
}

impl DraftAhead {
    /// With the drafter of that index.
    pub(crate) fn new(drafter: usize) -> Self {
        Self {
            drafter,
            chain: Draft::empty(),
            jobs: VecDeque::new(),
            running: None,
            exhausted: false,
            one_token_per_job: false,
        }
    }

    /// The same, but every job makes a single token. What some drafters propose depends on how much
    /// they are asked for and where a job begins, as a lookup's does, and both follow measured times.
    pub(crate) fn one_token_per_job(self) -> Self {
        Self { one_token_per_job: true, ..self }
    }

    /// The drafter's index.
    pub(crate) fn drafter(&self) -> usize {
        self.drafter
    }

    /// Whether a job is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Whether this is the job under way.
    pub(crate) fn is_running(&self, ticket: Ticket) -> bool {
        self.running == Some(ticket)
    }

    /// The tokens ahead of the committed ones.
    pub(crate) fn chain(&self) -> &Draft {
        &self.chain
    }

    /// The tokens ahead of the committed ones.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.chain.tree.tokens()
    }

    /// Number of tokens ahead.
    pub(crate) fn len(&self) -> usize {
        self.chain.tree.len()
    }

    /// Has the drafter go on until the chain has `length` tokens, with up to `at_once` of them in one
    /// job, unless a job is under way.
    pub(crate) fn continue_to(
        &mut self,
        sequence: &Sequence,
        length: usize,
        at_once: usize,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        if self.running.is_none() && !self.is_done(sequence, length) {
            let missing = useful(sequence, length) - self.len();
            let at_once = if self.one_token_per_job { 1 } else { at_once.max(1) };
            let shape = DraftShape::Chain { length: missing.min(at_once) };
            let job = jobs::submit_draft(self.drafter, sequence, self.tokens(), shape, cluster);
            self.running = Some(job?);
        }
        Ok(())
    }

    /// Whether nothing more will come of a chain that is to have `length` tokens.
    pub(crate) fn is_done(&self, sequence: &Sequence, length: usize) -> bool {
        self.exhausted || self.len() >= useful(sequence, length)
    }

    /// Takes a completion if it is of the job under way; then tells the tokens that were drafted and
    /// the time that they took.
    pub(crate) fn take(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
    ) -> Result<Option<(usize, u64)>, DecodeError> {
        if self.running != Some(completion.ticket) {
            return Ok(None);
        }
        self.running = None;
        let answer = jobs::take_draft(sequence, completion)?;
        let left = answer.output.tree.len();
        self.exhausted = left == 0;
        self.jobs.push_back(DraftJob { ticket: answer.ticket, left, accepted: 0 });
        if !self.chain.extend(answer.output) {
            return Err(DecodeError::Answer("a chain of one kind was asked for"));
        }
        Ok(Some((left, answer.duration_ns)))
    }

    /// The first tokens of the chain were committed, and the others are still good.
    pub(crate) fn accept(&mut self, count: usize, cluster: &mut dyn Cluster) {
        self.chain.drop_first(count);
        let mut count = count;
        while let Some(job) = self.jobs.front_mut() {
            let now = count.min(job.left);
            (job.left, job.accepted, count) = (job.left - now, job.accepted + now, count - now);
            let (ticket, accepted, left) = (job.ticket, job.accepted, job.left);
            if accepted > 0 {
                cluster.observe(Outcome { ticket, accepted, fate: SpanOutcome::Accepted });
            }
            if left > 0 {
                break;
            }
            self.jobs.pop_front();
        }
    }

    /// Another token was committed than the chain has next: it starts anew, and the job under way is
    /// no longer wanted. `rejected` tells whether the chain's next token was tested.
    pub(crate) fn restart(&mut self, rejected: bool, cluster: &mut dyn Cluster) {
        if let Some(ticket) = self.running.take() {
            cluster.cancel(ticket);
        }
        let mut fate = if rejected { SpanOutcome::Rejected } else { SpanOutcome::Wasted };
        for DraftJob { ticket, accepted, .. } in self.jobs.drain(..) {
            if accepted == 0 || fate == SpanOutcome::Rejected {
                cluster.observe(Outcome { ticket, accepted, fate });
            }
            fate = SpanOutcome::Wasted;
        }
        self.chain = Draft::empty();
        self.exhausted = false;
    }

    /// The first `count` tokens as a tree to score.
    pub(crate) fn first(&self, count: usize) -> TokenTree {
        self.chain.tree.first(count)
    }
}

/// The length that can come to use: the last token is the target's own in any case.
fn useful(sequence: &Sequence, length: usize) -> usize {
    length.min(sequence.remaining().saturating_sub(1))
}

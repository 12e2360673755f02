//! The decoding loop.

use crate::{DecodeError, Finish, Sequence};
use forerun_core::{Cluster, TokenId};
use std::ops::ControlFlow;

/// A decoding method: decides when tokens are drafted and verified.
///
/// A decoder submits jobs to the cluster, and commits tokens with [`Sequence::commit`]. The example
/// at [`generate`] runs one. The decoder of plain decoding is
/// [`Autoregressive`](crate::Autoregressive).
pub trait Decoder {
    /// Commits at least one token.
    ///
    /// # Errors
    /// If a job fails, or the cluster cannot serve.
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError>;

    /// Cancels the jobs in flight, after the last step.
    fn stop(&mut self, _cluster: &mut dyn Cluster) {}
}

/// Decodes until the sequence ends.
///
/// `on_tokens` gets the tokens of every step when they are committed, and can stop the sequence.
/// Afterwards, call [`Decoder::stop`] to cancel the remaining jobs. The sequence's caches stay on
/// the workers: call [`Cluster::release`] unless you continue the sequence.
///
/// # Errors
/// If a step fails. The tokens committed before stay in the sequence.
///
/// ```rust
/// # use forerun_core::{
/// #     ClusterError, Completion, Distribution, Draft, Job, JobCost, JobOutput, Outcome, Role,
/// #     ScoreJob, Scores, Ticket,
/// # };
/// # use std::collections::VecDeque;
/// # #[derive(Default)]
/// # struct CountingCluster {
/// #     submitted: u64,
/// #     completed: VecDeque<Completion>,
/// # }
/// # impl Cluster for CountingCluster {
/// #     fn submit(&mut self, _on: Role, job: Job) -> Result<Ticket, ClusterError> {
/// #         let ticket = Ticket(self.submitted);
/// #         self.submitted += 1;
/// #         let output = match job {
/// #             Job::Score(ScoreJob { tokens, tree, .. }) => {
/// #                 let last = &tokens[tokens.len() - 1..];
/// #                 let row = |token: &u32| Distribution::point(token + 1);
/// #                 let rows = last.iter().chain(tree.tokens()).map(row).collect();
/// #                 JobOutput::Score(Scores { rows, ..Scores::default() })
/// #             }
/// #             Job::Draft { .. } => JobOutput::Draft(Draft::empty()),
/// #         };
/// #         let (started_ns, finished_ns) = (self.submitted, self.submitted + 1);
/// #         let (output, cost) = (Ok(output), JobCost::default());
/// #         self.completed.push_back(Completion { ticket, output, started_ns, finished_ns, cost });
/// #         Ok(ticket)
/// #     }
/// #     fn cancel(&mut self, _ticket: Ticket) {}
/// #     fn next_completion(&mut self) -> Result<Completion, ClusterError> {
/// #         self.completed.pop_front().ok_or(ClusterError::Idle)
/// #     }
/// #     fn observe(&mut self, _outcome: Outcome) {}
/// #     fn release(&mut self, _sequence: SequenceId) {}
/// # }
/// use forerun_core::{Cluster, Sampling, SequenceId};
/// use forerun_decode::{Autoregressive, Decoder, Finish, Limits, Sequence, generate};
/// use std::ops::ControlFlow;
///
/// // A cluster with a target that continues each number with the next one. The documentation of
/// // `Cluster` shows its code.
/// let mut cluster = CountingCluster::default();
///
/// let id = SequenceId(0);
/// let limits = Limits { max_tokens: 100, context_length: 512, eos: vec![9] };
/// let mut sequence = Sequence::new(id, vec![1, 2, 3], Sampling::greedy(), limits);
///
/// let mut decoder = Autoregressive;
/// let finish = generate(&mut decoder, &mut sequence, &mut cluster, |tokens| {
///     println!("{tokens:?}");
///     ControlFlow::Continue(())
/// })?;
/// decoder.stop(&mut cluster);
/// cluster.release(id);
///
/// assert_eq!(finish, Finish::Eos);
/// assert_eq!(sequence.generated(), [4, 5, 6, 7, 8, 9]);
/// # Ok::<(), forerun_decode::DecodeError>(())
/// ```
pub fn generate(
    decoder: &mut dyn Decoder,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    mut on_tokens: impl FnMut(&[TokenId]) -> ControlFlow<()>,
) -> Result<Finish, DecodeError> {
    loop {
        let before = sequence.tokens().len();
        match next_tokens(decoder, sequence, cluster)? {
            Some(finish) => return Ok(finish),
            None if on_tokens(&sequence.tokens()[before..]).is_break() => sequence.stop(),
            None => {}
        }
    }
}

/// Runs one step of [`generate`]: commits tokens, or returns why the sequence has ended.
///
/// # Errors
/// If the step fails.
pub fn next_tokens(
    decoder: &mut dyn Decoder,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
) -> Result<Option<Finish>, DecodeError> {
    if let Some(finish) = sequence.finish() {
        return Ok(Some(finish));
    }
    let before = sequence.tokens().len();
    decoder.step(sequence, cluster)?;
    match sequence.tokens().len() > before {
        true => Ok(None),
        false => Err(DecodeError::Answer("the decoder committed no token in a step")),
    }
}

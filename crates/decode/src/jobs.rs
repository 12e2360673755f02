//! Submits jobs to the cluster, waits for them, and checks their outputs.

use crate::{DecodeError, Sequence};
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, DraftShape, Features, Job, JobError, JobOutput,
    Outcome, Role, ScoreJob, Scores, SequenceId, TargetFeedback, Ticket, TokenId, TokenTree,
    Verdict, trace::SpanOutcome,
};
use forerun_plan::JobTime;
use std::sync::Arc;

/// A job's output with its ticket and time.
pub(crate) struct JobReply<T> {
    pub(crate) ticket: Ticket,
    pub(crate) output: T,
    pub(crate) time: JobTime,
}

/// What a draft job asks for.
pub(crate) struct DraftRequest<'a> {
    /// The id of the sequence, or of a branch of it.
    pub(crate) id: SequenceId,
    pub(crate) drafter: usize,
    /// The tokens between the sequence and the draft.
    pub(crate) ahead: &'a [TokenId],
    pub(crate) shape: DraftShape,
    pub(crate) feedback: TargetFeedback,
}

impl<'a> DraftRequest<'a> {
    /// Creates a request with all of the target's feedback.
    pub(crate) fn new(
        drafter: usize,
        sequence: &Sequence,
        ahead: &'a [TokenId],
        shape: DraftShape,
    ) -> Self {
        Self { id: sequence.id(), drafter, ahead, shape, feedback: sequence.feedback() }
    }
}

/// Submits a draft job.
pub(crate) fn submit_draft(
    request: DraftRequest<'_>,
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
) -> Result<Ticket, DecodeError> {
    let DraftRequest { id, drafter, ahead, shape, feedback } = request;
    let job = Job::Draft {
        sequence: id,
        tokens: tokens_with(sequence, ahead),
        prompt_len: sequence.prompt_len(),
        sampling: sequence.sampling().clone(),
        shape,
        feedback,
    };
    Ok(cluster.submit(Role::Drafter(drafter), job)?)
}

/// Submits a score job for a tree after the sequence and the tokens `ahead` of it.
pub(crate) fn submit_score(
    replica: usize,
    sequence: &Sequence,
    ahead: &[TokenId],
    tree: TokenTree,
    cluster: &mut dyn Cluster,
) -> Result<Ticket, DecodeError> {
    let job = Job::Score(ScoreJob {
        sequence: sequence.id(),
        tokens: tokens_with(sequence, ahead),
        prompt_len: sequence.prompt_len(),
        tree,
        sampling: sequence.sampling().clone(),
        logprobs: sequence.requested_logprobs(),
        features_from: sequence.features().map(Features::len),
    });
    Ok(cluster.submit(Role::Target(replica), job)?)
}

fn tokens_with(sequence: &Sequence, ahead: &[TokenId]) -> Arc<[TokenId]> {
    sequence.tokens().iter().chain(ahead).copied().collect()
}

/// Returns the draft of a completed job of a drafter, and counts it in the statistics.
///
/// # Errors
/// If the job failed, or its output is not a valid draft.
pub(crate) fn draft_reply(
    drafter: usize,
    sequence: &mut Sequence,
    completion: Completion,
) -> Result<JobReply<Draft>, DecodeError> {
    let (ticket, time) = (completion.ticket, JobTime::from(&completion));
    match completion.output? {
        JobOutput::Draft(output) if output.is_consistent() => {
            sequence.statistics_mut().count_draft(drafter, output.tree.len(), time.duration_ns);
            Ok(JobReply { ticket, output, time })
        }
        JobOutput::Draft(_) => Err(DecodeError::Answer(
            "a draft token has probability 0 in the distribution that it was drawn from",
        )),
        JobOutput::Score(_) => {
            Err(DecodeError::Answer("it is a draft job, but the reply has scores"))
        }
    }
}

/// Returns why a drafter has failed, by the error of its job.
///
/// # Errors
/// The error itself, if the drafter is not its cause, as after a cancellation.
pub(crate) fn drafter_failure(error: DecodeError) -> Result<String, DecodeError> {
    match error {
        DecodeError::Job(JobError::Failed { .. } | JobError::Panicked { .. })
        | DecodeError::Cluster(ClusterError::WorkerGone(Role::Drafter(_)))
        | DecodeError::Answer(_) => Ok(error.to_string()),
        _ => Err(error),
    }
}

/// Returns the scores of a completed job for a tree of `nodes` nodes, and counts its time.
///
/// # Errors
/// If the job failed, or its output does not have all the requested parts.
pub(crate) fn score_reply(
    sequence: &mut Sequence,
    nodes: usize,
    completion: Completion,
) -> Result<JobReply<Scores>, DecodeError> {
    let (ticket, time) = (completion.ticket, JobTime::from(&completion));
    let features_of = sequence.features().map(|known| sequence.tokens().len() - known.len());
    match completion.output? {
        JobOutput::Score(output)
            if output.matches_request(nodes, sequence.requested_logprobs(), features_of) =>
        {
            sequence.statistics_mut().score_ns += time.duration_ns;
            Ok(JobReply { ticket, output, time })
        }
        JobOutput::Score(_) => Err(DecodeError::Answer(
            "the scores do not have the requested rows, log-probabilities and features",
        )),
        JobOutput::Draft(_) => {
            Err(DecodeError::Answer("it is a score job, but the reply has a draft"))
        }
    }
}

/// Commits the tokens that a verdict on `scores` accepted ([`Sequence::commit`]), and reports the
/// outcome of the jobs that drafted and scored them. Returns how many draft tokens were committed.
pub(crate) fn commit(
    draft: &Draft,
    verdict: &Verdict,
    scores: &Scores,
    jobs: impl IntoIterator<Item = Ticket>,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
) -> usize {
    let accepted = sequence.commit(draft, verdict, scores);
    let outcome = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
    for ticket in jobs {
        cluster.observe(Outcome { ticket, accepted, outcome });
    }
    accepted
}

/// Returns the outcome of a job with unused output.
pub(crate) fn wasted(ticket: Ticket) -> Outcome {
    Outcome { ticket, accepted: 0, outcome: SpanOutcome::Wasted }
}

/// Has a drafter propose candidates after the sequence, and waits for them.
pub(crate) fn draft(
    drafter: usize,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    shape: DraftShape,
) -> Result<JobReply<Draft>, DecodeError> {
    let request = DraftRequest::new(drafter, sequence, &[], shape);
    let ticket = submit_draft(request, sequence, cluster)?;
    draft_in_flight(drafter, ticket, sequence, cluster)
}

/// Waits for the candidates of a draft job of a drafter.
pub(crate) fn draft_in_flight(
    drafter: usize,
    ticket: Ticket,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
) -> Result<JobReply<Draft>, DecodeError> {
    let completion = wait_for(ticket, cluster)?;
    draft_reply(drafter, sequence, completion)
}

/// Has the first target replica score a tree after the sequence, and waits for the rows.
pub(crate) fn score(
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    tree: &TokenTree,
) -> Result<JobReply<Scores>, DecodeError> {
    let ticket = submit_score(0, sequence, &[], tree.clone(), cluster)?;
    let completion = wait_for(ticket, cluster)?;
    score_reply(sequence, tree.len(), completion)
}

/// Waits for a job. Other completions are of jobs whose output is not needed, and are discarded.
fn wait_for(ticket: Ticket, cluster: &mut dyn Cluster) -> Result<Completion, DecodeError> {
    loop {
        let completion = cluster.next_completion()?;
        if completion.ticket == ticket {
            return Ok(completion);
        }
    }
}

//! Asking the cluster, and waiting for the answer.

use crate::{DecodeError, Sequence};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Features, Job, JobOutput, Role, Scores, Ticket,
    TokenId, TokenTree,
};
use std::sync::Arc;

/// An answer with its job's name and duration.
pub(crate) struct JobReply<T> {
    pub(crate) ticket: Ticket,
    pub(crate) output: T,
    pub(crate) duration_ns: u64,
}

/// Has a drafter propose candidates behind the sequence and the tokens `ahead` of it.
pub(crate) fn submit_draft(
    drafter: usize,
    sequence: &Sequence,
    ahead: &[TokenId],
    shape: DraftShape,
    cluster: &mut dyn Cluster,
) -> Result<Ticket, DecodeError> {
    let job = Job::Draft {
        sequence: sequence.id(),
        tokens: tokens_with(sequence, ahead),
        prompt_len: sequence.prompt_len(),
        sampling: sequence.sampling().clone(),
        shape,
        feedback: sequence.feedback(),
    };
    Ok(cluster.submit(Role::Drafter(drafter), job)?)
}

/// Has a target replica score a tree behind the sequence and the tokens `ahead` of it.
pub(crate) fn submit_score(
    replica: usize,
    sequence: &Sequence,
    ahead: &[TokenId],
    tree: TokenTree,
    cluster: &mut dyn Cluster,
) -> Result<Ticket, DecodeError> {
    let job = Job::Score {
        sequence: sequence.id(),
        tokens: tokens_with(sequence, ahead),
        prompt_len: sequence.prompt_len(),
        tree,
        sampling: sequence.sampling().clone(),
        logprobs: sequence.logprobs_wanted(),
        features_from: sequence.features().map(Features::len),
    };
    Ok(cluster.submit(Role::Target(replica), job)?)
}

fn tokens_with(sequence: &Sequence, ahead: &[TokenId]) -> Arc<[TokenId]> {
    sequence.tokens().iter().chain(ahead).copied().collect()
}

/// What a drafter answered; it is counted.
pub(crate) fn take_draft(
    sequence: &mut Sequence,
    completion: Completion,
) -> Result<JobReply<Draft>, DecodeError> {
    let (ticket, duration_ns) = (completion.ticket, completion.duration_ns());
    match completion.output? {
        JobOutput::Draft(output) if output.is_consistent() => {
            sequence.statistics_mut().count_draft(output.tree.len(), duration_ns);
            Ok(JobReply { ticket, output, duration_ns })
        }
        JobOutput::Draft(_) => Err(DecodeError::Answer("a candidate has no chance in its own row")),
        JobOutput::Score(_) => Err(DecodeError::Answer("a draft was asked for, rows came")),
    }
}

/// What a target answered for a tree of that many nodes; its time is counted.
pub(crate) fn take_scores(
    sequence: &mut Sequence,
    nodes: usize,
    completion: Completion,
) -> Result<JobReply<Scores>, DecodeError> {
    let (ticket, duration_ns) = (completion.ticket, completion.duration_ns());
    let features_of = sequence.features().map(|known| sequence.tokens().len() - known.len());
    match completion.output? {
        JobOutput::Score(output)
            if output.matches_request(nodes, sequence.logprobs_wanted(), features_of) =>
        {
            sequence.statistics_mut().score_ns += duration_ns;
            Ok(JobReply { ticket, output, duration_ns })
        }
        JobOutput::Score(_) => Err(DecodeError::Answer(
            "a row for every node, and the features asked for, were wanted",
        )),
        JobOutput::Draft(_) => Err(DecodeError::Answer("rows were asked for, a draft came")),
    }
}

/// Has the drafter propose candidates behind the sequence, and waits for them.
pub(crate) fn draft(
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    shape: DraftShape,
) -> Result<JobReply<Draft>, DecodeError> {
    let ticket = submit_draft(0, sequence, &[], shape, cluster)?;
    let completion = wait_for(ticket, cluster)?;
    take_draft(sequence, completion)
}

/// Has the target score a tree behind the sequence, and waits for the rows.
pub(crate) fn score(
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    tree: &TokenTree,
) -> Result<JobReply<Scores>, DecodeError> {
    let ticket = submit_score(0, sequence, &[], tree.clone(), cluster)?;
    let completion = wait_for(ticket, cluster)?;
    take_scores(sequence, tree.len(), completion)
}

/// Waits for a job. What else completes meanwhile is no longer wanted.
fn wait_for(ticket: Ticket, cluster: &mut dyn Cluster) -> Result<Completion, DecodeError> {
    loop {
        let completion = cluster.next_completion()?;
        if completion.ticket == ticket {
            return Ok(completion);
        }
    }
}

//! Asking the cluster and waiting for the answer.

use crate::{DecodeError, Sequence};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Job, JobOutput, Role, Scores, Ticket, TokenTree,
};

/// An answer with its job's name and duration.
pub(crate) struct Answer<T> {
    pub(crate) ticket: Ticket,
    pub(crate) output: T,
    pub(crate) duration_ns: u64,
}

impl<T> Answer<T> {
    fn try_map<U>(
        self,
        convert: impl FnOnce(T) -> Result<U, DecodeError>,
    ) -> Result<Answer<U>, DecodeError> {
        let Self { ticket, output, duration_ns } = self;
        Ok(Answer { ticket, output: convert(output)?, duration_ns })
    }
}

/// Has the drafter propose candidates behind the sequence, and waits for them.
pub(crate) fn draft(
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    shape: DraftShape,
) -> Result<Answer<Draft>, DecodeError> {
    let job = Job::Draft {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        sampling: sequence.sampling().clone(),
        shape,
    };
    let answer = ask(cluster, Role::Drafter(0), job)?;
    sequence.statistics_mut().draft_ns += answer.duration_ns;
    answer.try_map(|output| match output {
        JobOutput::Draft(draft) if draft.is_consistent() => Ok(draft),
        JobOutput::Draft(_) => Err(DecodeError::Answer("a candidate has no chance in its own row")),
        JobOutput::Score(_) => Err(DecodeError::Answer("a draft was asked for, rows came")),
    })
}

/// Has the target score a tree behind the sequence, and waits for the rows.
pub(crate) fn score(
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    tree: &TokenTree,
) -> Result<Answer<Scores>, DecodeError> {
    let job = Job::Score {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        tree: tree.clone(),
        sampling: sequence.sampling().clone(),
        logprobs: sequence.logprobs_wanted(),
    };
    let answer = ask(cluster, Role::Target(0), job)?;
    sequence.statistics_mut().score_ns += answer.duration_ns;
    let wanted = sequence.logprobs_wanted();
    answer.try_map(|output| match output {
        JobOutput::Score(scores) if scores.fit(tree, wanted) => Ok(scores),
        JobOutput::Score(_) => Err(DecodeError::Answer("a row for every node was asked for")),
        JobOutput::Draft(_) => Err(DecodeError::Answer("rows were asked for, a draft came")),
    })
}

/// Submits a job and waits for it. What else completes meanwhile is no longer wanted.
fn ask(cluster: &mut dyn Cluster, role: Role, job: Job) -> Result<Answer<JobOutput>, DecodeError> {
    let ticket = cluster.submit(role, job)?;
    let completion = loop {
        let completion: Completion = cluster.next_completion()?;
        if completion.ticket == ticket {
            break completion;
        }
    };
    let duration_ns = completion.duration_ns();
    Ok(Answer { ticket, output: completion.output?, duration_ns })
}

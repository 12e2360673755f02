//! Jobs of decoders that verify without the library's rules.

use forerun_core::{
    Cluster, Draft, DraftShape, Job, JobOutput, Role, ScoreJob, Scores, TargetFeedback,
};
use forerun_decode::{DecodeError, Sequence};

/// Returns a draft of the drafter.
pub(super) fn draft(
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
    shape: DraftShape,
) -> Result<Draft, DecodeError> {
    let job = Job::Draft {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        sampling: sequence.sampling().clone(),
        shape,
        feedback: TargetFeedback::default(),
    };
    cluster.submit(Role::Drafter(0), job)?;
    let Ok(JobOutput::Draft(draft)) = cluster.next_completion()?.output else { panic!() };
    Ok(draft)
}

/// Returns the target's scores of a draft.
pub(super) fn scores(
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
    draft: &Draft,
) -> Result<Scores, DecodeError> {
    let job = Job::Score(ScoreJob {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        tree: draft.tree.clone(),
        sampling: sequence.sampling().clone(),
        logprobs: sequence.requested_logprobs(),
        features_from: None,
    });
    cluster.submit(Role::Target(0), job)?;
    let Ok(JobOutput::Score(scores)) = cluster.next_completion()?.output else { panic!() };
    Ok(scores)
}

/// Verifies a draft as the library does, and commits it: one that was not drawn, or one for another
/// rule.
pub(super) fn commit_verified(sequence: &mut Sequence, draft: &Draft, scores: &Scores) {
    let verdict = sequence.verify_whole(draft, &scores.rows);
    sequence.commit(draft, &verdict, scores);
}

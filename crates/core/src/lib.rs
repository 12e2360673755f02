//! The core of forerun: tokens and trees, distributions, sampling, verification, keyed randomness,
//! jobs and traces.
//!
//! This crate has no side effects: it uses no files, threads, clocks or tensors. Its decisions can
//! therefore be enumerated exactly, replayed, and run in virtual time.
//!
//! Start with [`TokenTree`] (candidates), [`Distribution`] (a row of probabilities), [`verify()`]
//! (which candidates the target accepts), and [`Cluster`] (where [`Job`]s run).

mod active_sequences;
mod batch;
mod batcher;
mod constraint;
mod coupling;
mod distribution;
mod draft;
mod dry;
mod features;
mod filters;
mod guesser;
mod job;
mod job_cost;
mod logit_row;
mod logprobs;
mod need;
mod penalties;
mod randomness;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
mod row_logits;
mod sampler;
mod sampling;
mod stop_rule;
mod support;
mod target_feedback;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
mod tree;
mod unknown_value;
mod verify;
mod verify_block;

pub use active_sequences::ActiveSequences;
pub use batch::{MAX_BATCH, QueuedJob};
pub use batcher::Batcher;
pub use constraint::{CompileConstraint, Constraint, TokenConstraint, TokenMask};
pub use distribution::{Distribution, InvalidDistribution};
pub use draft::{Draft, DraftShape, Proposal, draft_key};
pub use dry::Dry;
pub use features::{FeatureRows, Features};
pub use guesser::{Guess, Guesser};
pub use job::{
    Cluster, ClusterError, Completion, Job, JobError, JobOutput, Outcome, Role, ScoreJob, Scores,
    SequenceId, Ticket,
};
pub use job_cost::JobCost;
pub use logprobs::{RowLogprobs, TokenLogprob};
pub use need::Need;
pub use randomness::{Key, KeyedRandomness, Purpose, Randomness};
pub use row_logits::{BestTokens, RowLogits, RowUse};
pub use sampler::Sampler;
pub use sampling::{AdapterId, Sampling, SamplingError, SamplingOptions, Verification};
pub use stop_rule::{CONFIDENCE_CLASSES, StopRule, class_of};
pub use target_feedback::{TargetFeedback, VerifiedDraft};
pub use tree::{Node, TokenTree, TreeError, node_of_row, row_of};
pub use unknown_value::UnknownValue;
pub use verify::{Verdict, verify, verify_chains};
pub use verify_block::verify_block;

/// A token's index in the vocabulary.
pub type TokenId = u32;

//! The pure heart of forerun: tokens and trees, distributions, sampling, verification, keyed
//! randomness, jobs and traces.
//!
//! This crate may touch nothing outside itself: no files, no threads, no clocks, no tensors. What
//! it decides can therefore be enumerated exactly, replayed, and run in virtual time.

mod coupling;
mod distribution;
mod draft;
mod features;
mod filters;
mod job;
mod logit_row;
mod logprobs;
mod penalties;
mod randomness;
pub mod reference;
mod sampler;
mod sampling;
mod support;
mod target_feedback;
pub mod trace;
mod tree;
mod verify;

pub use distribution::Distribution;
pub use draft::{Draft, DraftShape, Proposal};
pub use features::{FeatureRows, Features};
pub use job::{
    Cluster, ClusterError, Completion, Job, JobError, JobOutput, Outcome, Role, Scores, SequenceId,
    Ticket,
};
pub use logprobs::{RowLogprobs, TokenLogprob};
pub use randomness::{Key, KeyedRandomness, Purpose, Randomness};
pub use sampler::Sampler;
pub use sampling::{Sampling, SamplingError, Verification};
pub use target_feedback::{TargetFeedback, VerifiedDraft};
pub use tree::{Node, TokenTree, TreeError};
pub use verify::{Verdict, verify, verify_chains};

/// A token's index in the vocabulary.
pub type TokenId = u32;

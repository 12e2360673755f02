//! A worker for NVIDIA Dynamo: one front end routes requests to many replicas of [`forerun`].
//!
//! [`ForerunWorker`] is forerun's side of Dynamo's worker API. It answers requests of tokens with
//! the engine's streams, several at a time, and reports what its prefix cache holds. The programs
//! are `forerun-worker` and, with the feature `front`, `forerun-front`, Dynamo's front end without
//! Python.
//!
//! A request that moves to another worker continues with the same text under greedy and seeded
//! sampling, because each token depends on the tokens before it, the seed and its position, and on
//! nothing else: not on the draft, the method or the other requests.

mod cache_events;
mod card;
mod error;
mod output;
mod request;
mod worker;

pub use card::{CardError, ModelCard};
pub use worker::{ForerunWorker, WorkerOptions};

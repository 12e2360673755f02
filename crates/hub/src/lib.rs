//! Models of the Hugging Face hub: resolves an id to a folder of the shared cache, and downloads
//! what is missing.
//!
//! `hf-hub` defines the layout of the cache. Requests and downloads are implemented here, because
//! `hf-hub`'s client does not verify downloads, does not work offline, and appends a whole file to
//! a partial one if the server does not resume. This crate may use the network and the cache. It
//! knows nothing of engines, and reads no file's content except the names of shards, and whether a
//! drafter has a projection in a file of its own.

mod access;
mod cache;
mod client;
mod environment;
mod error;
mod fetch;
mod gguf_files;
mod inventory;
mod model_id;
mod transfer;

pub use access::{HubAccess, HubAnswer, TokenPlace};
pub use error::HubError;
pub use fetch::{FetchError, FetchEvent, Hub};
pub use inventory::{HubCache, HubFile, HubModel, HubRevision};
pub use model_id::ModelId;

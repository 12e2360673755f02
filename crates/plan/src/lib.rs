//! How much and whether to draft: draft lengths, pauses, and the goodput of sequences that share passes.
//!
//! There are no clocks, threads or models here. Decoders report what jobs took and which tokens were accepted, and ask
//! what to do next.

mod dsi_lookahead;
mod estimates;
mod goodput;
mod pauses;
mod pearl_draft_length;
mod speculative_draft_length;

pub use dsi_lookahead::DsiLookahead;
pub use estimates::{AcceptanceEstimate, JobTime, Speed};
pub use goodput::SharedGoodput;
pub use pearl_draft_length::PearlDraftLength;
pub use speculative_draft_length::{DraftLength, Round, SpeculativeDraftLength};

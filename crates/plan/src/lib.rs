//! The planner: decides how long, how wide and whether to draft, from measured costs and acceptance.
//!
//! It is pure: no clocks, no threads, no models. Decoders report what jobs took and which tokens were accepted, and ask
//! what to do next.

mod dsi_lookahead;
mod estimates;
mod goodput;
mod pauses;
mod pearl_draft_length;
mod speculative_draft_length;

pub use dsi_lookahead::DsiLookahead;
pub use estimates::{JobTime, Speed};
pub use goodput::SharedGoodput;
pub use pearl_draft_length::PearlDraftLength;
pub use speculative_draft_length::{DraftLength, Round, SpeculativeDraftLength};

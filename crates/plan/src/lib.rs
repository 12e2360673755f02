//! How much and whether to draft: draft lengths, trees, pauses, and the goodput of sequences that
//! share passes.
//!
//! There are no clocks, threads or models here. Decoders report what jobs took and which tokens
//! were accepted, and ask what to do next.

mod acceptance;
mod confidence;
mod core_split;
mod cost_curve;
mod decaying;
mod dsi_lookahead;
mod estimates;
mod goodput;
mod interruptions;
mod knowledge;
mod ledger;
mod lookup_choice;
mod method_choice;
mod outlook;
mod pauses;
mod pearl_draft_length;
mod policy;
mod ranked_tree;
mod ranks;
mod round;
mod round_estimates;
pub mod rounds;
mod speculative_draft_length;

pub use acceptance::{Acceptance, Tested};
pub use core_split::drafter_cores;
pub use decaying::Speed;
pub use dsi_lookahead::DsiLookahead;
pub use estimates::{AcceptanceEstimate, JobTime};
pub use goodput::SharedGoodput;
pub use knowledge::{Forecast, Knowledge};
pub use lookup_choice::LookupChoice;
pub use method_choice::{MethodChoice, StepKind};
pub use pearl_draft_length::PearlDraftLength;
pub use policy::{JobObserver, Policy};
pub use ranked_tree::{TreeLimits, typical_tree};
pub use round::{RankedRound, Round};
pub use speculative_draft_length::{DraftLength, SpeculativeDraftLength};

//! How much and whether to draft: draft lengths, trees, pauses, and the goodput of sequences that
//! share passes.
//!
//! There are no clocks, threads or models here. Decoders report what jobs took and which tokens
//! were accepted, and ask what to do next.

mod acceptance;
mod batch_costs;
mod confidence;
mod core_split;
mod cost_curve;
mod costs;
mod decaying;
mod dsi;
mod goodput;
mod interruptions;
mod ledger;
mod lookup_choice;
mod outlook;
mod pearl;
mod planner;
mod ranked_tree;
mod ranks;
mod round;
mod rounds;
mod schedule;
mod speculative;

pub use batch_costs::JobTime;
pub use core_split::drafter_cores;
pub use decaying::Share;
pub use dsi::DsiLookahead;
pub use goodput::SharedGoodput;
pub use lookup_choice::LookupChoice;
pub use pearl::PearlDraftLength;
pub use planner::{Planned, Policy};
pub use ranked_tree::{TreeLimits, typical_tree};
pub use round::{RankedRound, Round};
pub use speculative::{DraftLength, SpeculativeDraftLength};

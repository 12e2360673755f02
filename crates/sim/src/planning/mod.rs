//! Plans: which method, drafter, draft length and placement is the fastest on given hardware.
//!
//! 1. A [`HardwareProfile`] says what passes cost in each method's own rhythm, and where the
//!    drafters agree with the target. [`fit`] computes the costs from traces of real answers; a
//!    profile can also be written by hand.
//! 2. [`rank`] runs the production decoders in virtual time on these costs, for every method,
//!    drafter, placement and draft, and sorts the [`Prediction`]s.
//! 3. Each prediction has a [`Reason`].

mod draft;
mod fit;
mod predict;
mod profile;
mod profile_text;
mod reason;

pub use draft::PlannedDraft;
pub use fit::{MeasuredAnswer, fastest_mean, fit};
pub use predict::{Prediction, rank};
pub use profile::{DrafterRecord, HardwareProfile, MethodTiming, Source};
pub use reason::Reason;

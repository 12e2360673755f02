//! What one method learns of devices and text, for the use of another.

use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::estimates::BatchCosts;

/// What a method has learned of the devices and of the text. Another method can predict its own speed from it, and
/// start with it.
#[derive(Clone, Debug)]
pub struct Knowledge {
    pub(crate) acceptance: Acceptance,
    pub(crate) score_costs: BatchCosts,
    /// The time of a pass over one row while nothing is drafted, in nanoseconds.
    pub(crate) plain_ns: Option<f64>,
    /// The time that further rows add to a pass, by their number.
    pub(crate) rows: CostCurve,
    pub(crate) draft_costs: BatchCosts,
    /// The time of one forward of the drafter, in nanoseconds.
    pub(crate) forward_ns: Option<f64>,
    /// The time in which the drafter reads a token that it missed, in nanoseconds.
    pub(crate) catch_up_ns: Option<f64>,
    /// The number of committed tokens that the drafter has not read.
    pub(crate) unread_tokens: usize,
}

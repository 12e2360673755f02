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

/// What a method expects of its next tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The time of a token, in nanoseconds.
    pub token_ns: f64,
    /// Whether drafts are expected to be faster than the target alone.
    pub drafts: bool,
    /// The time to read what other methods have committed, in nanoseconds, before it works at its usual speed.
    pub start_ns: f64,
}

impl Forecast {
    /// Creates a forecast with drafts if they are faster than the target alone.
    pub(crate) fn new(speed: f64, alone_ns: f64, start_ns: f64) -> Self {
        let drafts = speed * alone_ns > LEAST_GAIN;
        Self { token_ns: if drafts { 1.0 / speed } else { alone_ns }, drafts, start_ns }
    }
}

/// The factor by which drafts must be faster.
const LEAST_GAIN: f64 = 1.005;
/// The time in which a drafter or a target reads a token, as a share of a pass over one row, if it was not measured.
pub(crate) const READING_SHARE: f64 = 0.03;

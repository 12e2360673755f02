//! A schedule of a planner, and how well its closed form describes it.

use crate::decaying::CHAIN_DECAY;
use crate::schedule::Schedule;

/// The number of cycles that a closed form is worth: a quarter of those that count (`CHAIN_DECAY`).
const FORM_CYCLES: f64 = 8.0;

/// A schedule, with what is known of it alone.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) schedule: Schedule,
    /// The index of its drafter.
    pub(super) drafter: usize,
    /// Whether its drafter has failed in the present answer.
    pub(super) has_failed: bool,
    pub(super) pace: Pace,
    /// The number of steps in which it has drafted ahead.
    pub(super) steps: u32,
    /// The time that its last trial has lost.
    pub(super) trial_ns: f64,
}

impl Entry {
    pub(super) fn new(schedule: Schedule) -> Self {
        let pace = Pace::default();
        Self { schedule, drafter: 0, has_failed: false, pace, steps: 0, trial_ns: 0.0 }
    }
}

/// How long cycles take, compared with the closed form.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    measured_ns: f64,
    expected_ns: f64,
    cycles: f64,
}

impl Pace {
    pub(super) fn add(&mut self, measured_ns: f64, expected_ns: f64) {
        self.measured_ns = self.measured_ns * CHAIN_DECAY + measured_ns;
        self.expected_ns = self.expected_ns * CHAIN_DECAY + expected_ns;
        self.cycles = self.cycles * CHAIN_DECAY + 1.0;
    }

    /// Returns the factor by which cycles take longer than the closed form says.
    pub(super) fn factor(&self) -> f64 {
        if self.expected_ns <= 0.0 {
            return 1.0;
        }
        let measured = self.measured_ns / self.expected_ns;
        (measured * self.cycles + FORM_CYCLES) / (self.cycles + FORM_CYCLES)
    }
}

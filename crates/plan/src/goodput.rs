//! Whether sequences that share passes draft at all: what gives them more tokens per second
//! together.
//!
//! Among many sequences, a draft costs the others time, and sequences that draft are spread over
//! several passes. So a sequence by itself cannot know whether drafting pays for all. This measures
//! it: tokens per second of all sequences together, their *goodput* (*Optimizing Speculative
//! Decoding for Serving Large Language Models Using Goodput*, Liu et al. 2024, arXiv 2406.14066),
//! with drafts and without, for each level of the load.

use crate::planner::PLAIN_EVERY;
use std::sync::{Arc, Mutex, PoisonError};

/// The goodput of the sequences of one engine, which they measure and decide by together.
#[derive(Clone, Debug, Default)]
pub struct SharedGoodput(Arc<Mutex<Goodput>>);

impl SharedGoodput {
    /// Returns whether the sequences should draft now.
    pub(crate) fn drafts(&self) -> bool {
        self.lock().window.drafts
    }

    /// Learns that a sequence, one of `sequences`, has committed tokens at `now_ns`.
    pub(crate) fn observe(&self, sequences: u64, tokens: usize, now_ns: u64) {
        self.lock().observe(sequences, tokens, now_ns);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Goodput> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Speeds with drafts and without, by level of the load. Level `n` has up to 2ⁿ sequences.
#[derive(Debug, Default)]
struct Goodput {
    levels: Vec<Level>,
    /// The mean number of sequences of recent rounds.
    sequences: f64,
    window: Window,
}

#[derive(Clone, Debug, Default)]
struct Level {
    with_drafts: Speed,
    without_drafts: Speed,
    /// The number of windows since the slower choice was last measured.
    windows: u32,
}

/// The mean of measured speeds, in tokens per nanosecond. Newer ones count more.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    mean: f64,
    measured: u32,
}

/// A time in which all sequences draft, or none does.
#[derive(Debug)]
struct Window {
    level: usize,
    drafts: bool,
    /// Tokens committed since the window began or, once it is measured, since then.
    tokens: usize,
    measured_from_ns: Option<u64>,
    last_ns: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { level: 0, drafts: true, tokens: 0, measured_from_ns: None, last_ns: 0 }
    }
}

/// The tokens of each sequence that are measured, after half as many, in which rounds of the window
/// before end.
const MEASURED_TOKENS: f64 = 16.0;
/// Both choices are measured so many times in turn at first, since one window may have prompts.
const FIRST_WINDOWS: u32 = 3;
/// The weight of the newest window: three count.
const NEWEST: f64 = 0.3;
/// The weight of the newest number of sequences: 20 rounds count.
const NEWEST_COUNT: f64 = 0.05;
/// The number of sequences must be beyond a level by this factor to leave it: one more or less of
/// eight does not.
const HYSTERESIS: f64 = 1.1;
/// A time without tokens that ends a window, in nanoseconds: no pass is expected to take so long.
/// In a long window, half of its length does.
const PAUSE_NS: u64 = 200_000_000;

impl Goodput {
    fn observe(&mut self, sequences: u64, tokens: usize, now_ns: u64) {
        let sequences = sequences as f64;
        self.sequences = match self.sequences > 0.0 {
            true => self.sequences + NEWEST_COUNT * (sequences - self.sequences),
            false => sequences,
        };
        let level = self.level();
        if level != self.window.level {
            return self.start_window(level);
        }
        if level == 0 {
            return;
        }
        let window = &mut self.window;
        let since_last_ns = now_ns.saturating_sub(window.last_ns);
        window.last_ns = window.last_ns.max(now_ns);
        window.tokens += tokens;
        match window.measured_from_ns {
            None if window.tokens as f64 >= MEASURED_TOKENS / 2.0 * self.sequences => {
                (window.measured_from_ns, window.tokens) = (Some(now_ns), 0);
            }
            // Nothing was decoded for a while.
            Some(from_ns) if since_last_ns > PAUSE_NS.max(now_ns.saturating_sub(from_ns) / 2) => {
                (window.measured_from_ns, window.tokens) = (None, 0);
            }
            Some(from_ns) if window.tokens as f64 >= MEASURED_TOKENS * self.sequences => {
                let speed = window.tokens as f64 / now_ns.saturating_sub(from_ns).max(1) as f64;
                let drafts = window.drafts;
                self.levels[level].add(drafts, speed);
                self.start_window(level);
            }
            _ => {}
        }
    }

    /// Returns the level of the present load. It changes only if the load has clearly changed.
    fn level(&self) -> usize {
        let of = |sequences: f64| sequences.max(1.0).log2().ceil() as usize;
        let (low, high) = (of(self.sequences / HYSTERESIS), of(self.sequences * HYSTERESIS));
        self.window.level.clamp(low, high)
    }

    fn start_window(&mut self, level: usize) {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Level::default());
        }
        let drafts = level == 0 || self.levels[level].next_drafts();
        self.window = Window { level, drafts, last_ns: self.window.last_ns, ..Window::default() };
    }
}

impl Level {
    fn add(&mut self, drafts: bool, speed: f64) {
        let choice = if drafts { &mut self.with_drafts } else { &mut self.without_drafts };
        choice.measured += 1;
        choice.mean += NEWEST.max(1.0 / f64::from(choice.measured)) * (speed - choice.mean);
        self.windows += 1;
    }

    /// Returns whether the next window has drafts.
    fn next_drafts(&mut self) -> bool {
        let (with, without) = (self.with_drafts, self.without_drafts);
        // A single window may be slow because it has many prompts.
        if with.measured.min(without.measured) < FIRST_WINDOWS {
            return with.measured <= without.measured;
        }
        let is_trial = self.windows >= PLAIN_EVERY;
        if is_trial {
            self.windows = 0;
        }
        (with.mean >= without.mean) != is_trial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates rounds of `sequences` sequences, which take so many nanoseconds for a token of
    /// each. Returns the part of the rounds with drafts.
    fn run(goodput: &SharedGoodput, clock: &mut u64, sequences: u64, ns: [u64; 2]) -> f64 {
        let (rounds, mut drafted) = (10_000, 0);
        for _ in 0..rounds {
            let drafts = goodput.drafts();
            drafted += u64::from(drafts);
            *clock += ns[usize::from(drafts)];
            for _ in 0..sequences {
                goodput.observe(sequences, 1, *clock);
            }
        }
        drafted as f64 / f64::from(rounds)
    }

    #[test]
    fn the_faster_choice_has_nearly_all_rounds() {
        let (goodput, mut clock) = (SharedGoodput::default(), 0);
        assert_eq!(
            run(&goodput, &mut clock, 1, [100, 900]),
            1.0,
            "a sequence alone decides itself"
        );
        for sequences in [2, 5, 16] {
            let slow = run(&goodput, &mut clock, sequences, [100, 130]);
            assert!(slow < 0.06, "{slow}");
        }
        let fast = run(&goodput, &mut clock, 3, [100, 50]);
        assert!(fast > 0.94, "{fast}");
        // The load changes what is faster, and each level is remembered.
        let slow = run(&goodput, &mut clock, 16, [100, 130]);
        assert!(slow < 0.05, "{slow}");
        // A level changes its mind.
        let fast = run(&goodput, &mut clock, 16, [100, 50]);
        assert!(fast > 0.8, "{fast}");
    }

    #[test]
    fn levels_do_not_change_between_neighbouring_numbers() {
        let goodput = SharedGoodput::default();
        let mut levels = Vec::new();
        for round in 0..1_000_u64 {
            goodput.observe(8 + round % 2, 1, round * 100);
            levels.push(goodput.lock().window.level);
        }
        levels.dedup();
        assert_eq!(levels.len(), 1, "{levels:?}");
    }

    #[test]
    fn idle_times_are_not_measured() {
        let goodput = SharedGoodput::default();
        let mut clock = 0;
        for round in 0..400_u64 {
            // Every 30 rounds, the engine is idle for an hour.
            clock += if round % 30 == 29 { 3_600_000_000_000 } else { 1_000_000 };
            goodput.observe(2, 2, clock);
        }
        let goodput = goodput.lock();
        for speed in [goodput.levels[1].with_drafts, goodput.levels[1].without_drafts] {
            assert!(speed.measured > 0 && (speed.mean * 1e6 - 2.0).abs() < 0.1, "{speed:?}");
        }
    }
}

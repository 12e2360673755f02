//! How long a certification still takes, from what was measured so far.

use std::time::{Duration, Instant};

/// The parts of the check of a configuration. Each is measured by itself, because configurations
/// differ in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Open,
    Known,
    Greedy,
    Seeded,
    Sampled,
}

impl Part {
    const ALL: [Self; 5] = [Self::Open, Self::Known, Self::Greedy, Self::Seeded, Self::Sampled];

    /// Returns how many times as long as plain decoding a configuration is expected to take before
    /// the first one is measured. Known models are tiny, so that decoders and drafts take most of
    /// the time: with a seed and without one, and perhaps by two rules.
    const fn expected_ratio(self) -> f64 {
        match self {
            Self::Open => 1.0,
            Self::Known => 10.0,
            Self::Greedy | Self::Seeded | Self::Sampled => 1.25,
        }
    }
}

/// What is known of a running part is worth this share of it: so much must be done until its own
/// speed counts as much.
const KNOWN_SHARE: f64 = 0.2;

/// Seconds that parts have taken.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    seconds: f64,
    count: usize,
}

impl Measured {
    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.seconds / self.count as f64)
    }
}

/// An estimate of the time that is left.
#[derive(Clone, Debug)]
pub(crate) struct TimeLeft {
    /// The tokens of each part of a configuration.
    tokens: [f64; Part::ALL.len()],
    plain: [Measured; Part::ALL.len()],
    configurations: [Measured; Part::ALL.len()],
    is_plain: bool,
    /// The number of configurations that have not begun.
    waiting: usize,
    /// The part that runs, the share of it that is done, and its seconds.
    running: (Part, f64, f64),
}

impl TimeLeft {
    /// Starts with plain decoding, before `waiting` configurations.
    pub(crate) fn new(tokens: usize, sampled_tokens: usize, waiting: usize) -> Self {
        let [tokens, sampled_tokens] = [tokens, sampled_tokens].map(|count| count as f64);
        Self {
            tokens: Part::ALL.map(|part| match part {
                Part::Open | Part::Known => 0.0,
                Part::Greedy | Part::Seeded => tokens,
                Part::Sampled => sampled_tokens,
            }),
            plain: Default::default(),
            configurations: Default::default(),
            is_plain: true,
            waiting,
            running: (Part::Open, 0.0, 0.0),
        }
    }

    /// Starts the next configuration.
    pub(crate) fn next_configuration(&mut self) {
        self.is_plain = false;
        self.waiting = self.waiting.saturating_sub(1);
        self.running = (Part::Open, 0.0, 0.0);
    }

    /// Sets the part that runs, the share of it that is done, and the seconds that this took.
    pub(crate) fn run(&mut self, part: Part, share: f64, seconds: f64) {
        self.running = (part, share.clamp(0.0, 1.0), seconds);
    }

    /// Counts a part that is over.
    pub(crate) fn finish(&mut self, part: Part, seconds: f64) {
        self.running = (part, 1.0, seconds);
        let of = if self.is_plain { &mut self.plain } else { &mut self.configurations };
        let measured = &mut of[part as usize];
        (measured.seconds, measured.count) = (measured.seconds + seconds, measured.count + 1);
    }

    /// Returns the seconds that are left; `None` before plain decoding has answered for the first
    /// time.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let (running, share, seconds) = self.running;
        let expected = match self.is_plain {
            true => self.plain_seconds(running),
            false => self.configuration_seconds(running),
        };
        let whole = match expected {
            Some(expected) => (seconds + KNOWN_SHARE * expected) / (share + KNOWN_SHARE),
            None if share > 0.0 => seconds / share,
            None => return None,
        };
        let mut left = whole * (1.0 - share);
        for part in Part::ALL {
            let of_configuration = self.configuration_seconds(part);
            if part as usize > running as usize {
                left += match self.is_plain {
                    true => self.plain_seconds(part)?,
                    false => of_configuration?,
                };
            }
            left += self.waiting as f64 * of_configuration?;
        }
        Some(left)
    }

    /// Returns the expected seconds of a part of a configuration: the mean of those before, or what
    /// plain decoding suggests.
    fn configuration_seconds(&self, part: Part) -> Option<f64> {
        let measured = self.configurations[part as usize].mean();
        measured.or_else(|| Some(part.expected_ratio() * self.plain_seconds(part)?))
    }

    /// Returns the expected seconds of a part of plain decoding.
    fn plain_seconds(&self, part: Part) -> Option<f64> {
        let (running, share, seconds) = self.running;
        let measured = self.plain[part as usize].mean();
        let is_running = self.is_plain && running == part && share > 0.0;
        let tokens = self.tokens[part as usize];
        let estimate = || match part {
            // It is open before anything is measured.
            Part::Open => Some(0.0),
            Part::Known => None,
            _ => Some(tokens * self.token_seconds()?),
        };
        measured.or_else(|| is_running.then(|| seconds / share)).or_else(estimate)
    }

    /// Returns the seconds of a token of plain decoding.
    fn token_seconds(&self) -> Option<f64> {
        let (running, share, seconds) = self.running;
        let finished = Part::ALL.map(|part| match self.plain[part as usize].mean() {
            Some(seconds) => (seconds, self.tokens[part as usize]),
            None if self.is_plain && running == part => {
                (seconds, share * self.tokens[part as usize])
            }
            None => (0.0, 0.0),
        });
        let finished = finished.into_iter().filter(|&(_, tokens)| tokens > 0.0);
        let (seconds, tokens) = finished.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        (tokens > 0.0).then(|| seconds / tokens)
    }
}

/// How far a certification is.
#[derive(Clone, Copy, Debug)]
pub struct CertifyProgress<'a> {
    /// What is checked at present.
    pub configuration: &'a str,
    /// The number of checked configurations. Plain decoding is the first one.
    pub done: usize,
    /// The number of all configurations that can run.
    pub all: usize,
    /// An estimate of the time that is left, from all that was measured so far.
    pub left: Option<Duration>,
}

/// Measures the parts of a certification, and reports how far it is.
pub(crate) struct Meter<'a> {
    time: TimeLeft,
    since: Instant,
    part: Part,
    configuration: String,
    done: usize,
    all: usize,
    report: Box<dyn FnMut(CertifyProgress<'_>) + 'a>,
}

impl<'a> Meter<'a> {
    /// Starts with plain decoding.
    pub(crate) fn new(time: TimeLeft, report: impl FnMut(CertifyProgress<'_>) + 'a) -> Self {
        Self {
            since: Instant::now(),
            part: Part::Open,
            configuration: "plain decoding".to_owned(),
            done: 0,
            all: 1 + time.waiting,
            time,
            report: Box::new(report),
        }
    }

    /// Returns a meter that reports nothing.
    pub(crate) fn silent() -> Self {
        Self::new(TimeLeft::new(0, 0, 0), |_| ())
    }

    /// Starts the next configuration.
    pub(crate) fn next_configuration(&mut self, name: &str) {
        (self.configuration, self.done) = (name.to_owned(), self.done + 1);
        self.time.next_configuration();
        self.report();
    }

    /// Measures a part.
    pub(crate) fn measure<T, E>(
        &mut self,
        part: Part,
        run: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        (self.part, self.since) = (part, Instant::now());
        let result = run(self)?;
        self.time.finish(part, self.since.elapsed().as_secs_f64());
        self.report();
        Ok(result)
    }

    /// Sets how much of the present part is done.
    pub(crate) fn update(&mut self, done: usize, all: usize) {
        let share = done as f64 / all.max(1) as f64;
        self.time.run(self.part, share, self.since.elapsed().as_secs_f64());
        self.report();
    }

    fn report(&mut self) {
        let seconds = self.time.seconds();
        (self.report)(CertifyProgress {
            configuration: &self.configuration,
            done: self.done,
            all: self.all,
            left: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATIONS: usize = 10;

    /// Certifies in virtual time. A token takes `plain` seconds in plain decoding, and
    /// `other(index)` in a configuration; known answers take as long as 100 tokens. Returns the
    /// estimates, with the seconds that really are left.
    fn estimates(plain: f64, other: impl Fn(usize) -> f64) -> Vec<(Option<f64>, f64)> {
        let mut time = TimeLeft::new(100, 50, CONFIGURATIONS);
        let speeds: Vec<f64> = [plain].into_iter().chain((0..CONFIGURATIONS).map(other)).collect();
        let of_speed = |speed: &f64| 350.0 * speed;
        let all: f64 = speeds.iter().map(of_speed).sum();
        let (mut found, mut now) = (Vec::new(), 0.0);
        for (index, speed) in speeds.iter().enumerate() {
            if index > 0 {
                time.next_configuration();
                time.finish(Part::Open, 0.0);
            }
            let parts = [Part::Known, Part::Greedy, Part::Seeded, Part::Sampled];
            for (part, tokens) in parts.into_iter().zip([100.0, 100.0, 100.0, 50.0]) {
                for share in [0.25, 0.5, 0.75] {
                    let seconds = share * tokens * speed;
                    time.run(part, share, seconds);
                    found.push((time.seconds(), all - now - seconds));
                }
                now += tokens * speed;
                time.finish(part, tokens * speed);
                found.push((time.seconds(), all - now));
            }
        }
        found
    }

    #[test]
    fn the_time_is_known_from_the_first_answer_on() {
        let found = estimates(0.1, |_| 0.1);
        assert!(found[..4].iter().all(|(seconds, _)| seconds.is_none()), "{found:?}");
        // Of each configuration, more is expected than it takes, until the first one is measured.
        let (first, left) = found[4];
        let known = 10.0 * (Part::Known.expected_ratio() - 1.0);
        let answers = 25.0 * (Part::Greedy.expected_ratio() - 1.0);
        let expected = left + CONFIGURATIONS as f64 * (known + answers);
        assert!((first.unwrap() - expected).abs() < 1e-6, "{first:?} instead of {expected}");
        for (estimate, left) in &found[16 + 16..] {
            assert!((estimate.unwrap() - left).abs() < 1e-6, "{estimate:?} instead of {left}");
        }
    }

    #[test]
    fn the_time_follows_slow_and_uneven_configurations() {
        for slow in [0.02, 0.5] {
            let found = estimates(0.1, |index| slow * (1.0 + 0.4 * (index % 2) as f64));
            for (estimate, left) in &found[3 * 16..] {
                let error = (estimate.unwrap() - left).abs();
                assert!(
                    error <= 0.25 * left + 0.2 * 350.0 * slow,
                    "{estimate:?} instead of {left}"
                );
            }
            let (last, left) = found.last().unwrap();
            assert!(last.unwrap().abs() < 1e-6 && left.abs() < 1e-6, "{last:?}, {left}");
        }
    }
}

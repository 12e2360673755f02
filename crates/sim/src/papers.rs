//! Published tables, and what the production decoders give for their numbers in virtual time.
//!
//! The papers' times and acceptance rates go in, and nothing else: passes cost the same whatever their
//! rows, and sampling, messages and prompts cost nothing. So a simulated value is what an ideal
//! implementation would reach, and a published one above it needs another explanation than the method.

use crate::parameters::busy_targets;
use crate::{Acceptance, Cancellation, Cost, Method, SimError, Simulation};

/// A table with simulated and published values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTable {
    /// What it is, and where it was published.
    pub title: String,
    /// Headings of the columns.
    pub headings: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
    /// What has to be known to read it.
    pub note: &'static str,
}

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaperTable {
    /// PEARL, arXiv 2408.11850, table 1: speed over autoregressive decoding on HumanEval.
    PearlSpeed,
    /// PEARL, table 4: without pre-verify and without post-verify.
    PearlAblations,
    /// PEARL, table 5: tokens a second by γ.
    PearlLength,
    /// PEARL, table 14: tokens a second of speculative decoding by γ.
    SpeculativeLength,
    /// DSI, arXiv 2405.14105, table 2: DSI over speculative decoding for ten pairs.
    DsiPairs,
}

impl PaperTable {
    /// All tables with their names.
    pub const NAMES: [(Self, &str); 5] = [
        (Self::PearlSpeed, "pearl-1"),
        (Self::PearlAblations, "pearl-4"),
        (Self::PearlLength, "pearl-5"),
        (Self::SpeculativeLength, "pearl-14"),
        (Self::DsiPairs, "dsi-2"),
    ];

    /// Simulates the table, each value a mean over so many texts.
    ///
    /// # Errors
    /// If there are no texts.
    pub fn simulate(self, texts: u64) -> Result<PublishedTable, SimError> {
        if texts == 0 {
            let option = "the number of texts";
            return Err(SimError::Range { option, found: "0".into(), expected: "at least 1" });
        }
        match self {
            Self::PearlSpeed => pearl_speed(texts),
            Self::PearlAblations => pearl_ablations(texts),
            Self::PearlLength => pearl_length(texts),
            Self::SpeculativeLength => speculative_length(texts),
            Self::DsiPairs => dsi_pairs(texts),
        }
    }
}

/// A pair of PEARL's experiments on HumanEval.
struct PearlPair {
    name: &'static str,
    /// Tokens a second of drafter and target alone (table 10).
    draft_speed: f64,
    target_speed: f64,
    /// Tokens a target forward of speculative decoding (table 7) at its best γ (table 14), from which the
    /// acceptance rate follows.
    mean_accepted: f64,
    best_length: usize,
    /// Tokens between two rejections of PEARL (table 7).
    run_length: f64,
    /// Speed over autoregressive decoding of speculative decoding and PEARL (table 1).
    published: [f64; 2],
    /// Of PEARL without pre-verify, without post-verify, and whole (table 4), where it was published.
    ablations: Option<[f64; 3]>,
    /// γ and tokens a second of PEARL (table 5), where it was published.
    by_length: &'static [(usize, f64)],
    /// γ and tokens a second of speculative decoding (table 14).
    speculative: &'static [(usize, f64)],
}

const PEARL_PAIRS: [PearlPair; 4] = [
    PearlPair {
        name: "CodeLlama 7B & 34B",
        draft_speed: 49.34,
        target_speed: 18.58,
        mean_accepted: 5.27,
        best_length: 6,
        run_length: 27.95,
        published: [1.76, 2.48],
        ablations: Some([2.21, 1.64, 2.35]),
        by_length: &[(2, 33.25), (3, 46.06), (4, 44.12), (5, 44.93), (6, 41.83)],
        speculative: &[(4, 30.95), (5, 31.85), (6, 33.57), (7, 33.52), (8, 32.79)],
    },
    PearlPair {
        name: "CodeLlama 7B & 70B",
        draft_speed: 49.34,
        target_speed: 9.20,
        mean_accepted: 8.32,
        best_length: 10,
        run_length: 26.53,
        published: [3.03, 4.43],
        ablations: Some([3.53, 2.57, 3.79]),
        by_length: &[(2, 16.28), (3, 23.14), (4, 29.65), (5, 40.72), (6, 35.39)],
        speculative: &[(8, 25.92), (9, 26.02), (10, 27.60), (11, 27.23), (12, 26.65)],
    },
    PearlPair {
        name: "DeepSeek 1.3B & 33B",
        draft_speed: 63.20,
        target_speed: 17.37,
        mean_accepted: 7.23,
        best_length: 8,
        run_length: 29.65,
        published: [2.32, 3.48],
        ablations: Some([3.19, 2.37, 3.48]),
        by_length: &[],
        speculative: &[(6, 37.22), (7, 38.53), (8, 39.52), (9, 39.38), (10, 38.69)],
    },
    PearlPair {
        name: "DeepSeek 6.7B & 33B",
        draft_speed: 50.05,
        target_speed: 17.37,
        mean_accepted: 5.69,
        best_length: 6,
        run_length: 39.90,
        published: [1.94, 2.79],
        ablations: None,
        by_length: &[(2, 30.82), (3, 48.46), (4, 47.22), (5, 46.91), (6, 44.36)],
        speculative: &[(4, 30.92), (5, 31.74), (6, 33.77), (7, 33.55), (8, 32.97)],
    },
];

impl PearlPair {
    /// The target's time over the drafter's (c).
    fn ratio(&self) -> f64 {
        self.draft_speed / self.target_speed
    }

    /// The acceptance rate at which drafts of the best γ give the published tokens a forward: where
    /// Leviathan 2023's equation 1 has that value.
    fn acceptance(&self) -> f64 {
        let tokens = |acceptance: f64| {
            (0..=self.best_length).map(|power| acceptance.powi(power as i32)).sum::<f64>()
        };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if tokens(middle) < self.mean_accepted { low = middle } else { high = middle }
        }
        low
    }

    fn tokens_per_second(
        &self,
        method: Method,
        draft_tokens: usize,
        texts: u64,
    ) -> Result<f64, SimError> {
        self.tokens_per_second_at(self.acceptance(), method, draft_tokens, texts)
    }

    fn tokens_per_second_at(
        &self,
        acceptance: f64,
        method: Method,
        draft_tokens: usize,
        texts: u64,
    ) -> Result<f64, SimError> {
        let simulation = Simulation {
            method,
            drafters: vec![Cost::constant((1e9 / self.draft_speed) as u64)],
            targets: vec![Cost::constant((1e9 / self.target_speed) as u64)],
            acceptance: vec![Acceptance::Iid(acceptance)],
            draft_tokens,
            max_tokens: 512,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        };
        Ok(512e9 / mean_ns(&simulation, texts)?)
    }
}

/// The mean time of as many texts.
fn mean_ns(simulation: &Simulation, texts: u64) -> Result<f64, SimError> {
    let mut sum_ns = 0;
    for seed in 0..texts {
        sum_ns += Simulation { seed, ..simulation.clone() }.measure()?.total_ns;
    }
    Ok(sum_ns as f64 / texts as f64)
}

const PEARL_NOTE: &str = "Simulated: times from the paper's table 10, the acceptance rate from its tables 7 \
    and 14, alike at every position, passes of any number of rows alike, no overhead. Published: measured on \
    A100s, with prompts, sampling and messages. The paper's own run length of PEARL (table 7) speaks of a \
    higher acceptance rate than its speculative decoding does: real acceptance comes in runs.";

fn pearl_speed(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &PEARL_PAIRS {
        let gamma = pair.ratio().round() as usize;
        let [published_turns, published_pearl] = pair.published;
        let over_plain = |method, length| {
            Ok::<f64, SimError>(pair.tokens_per_second(method, length, texts)? / pair.target_speed)
        };
        let turns = over_plain(Method::Speculative, pair.best_length)?;
        let (paper, eager) =
            (over_plain(Method::PearlPaper, gamma)?, over_plain(Method::Pearl, gamma)?);
        let often = pair.run_length / (pair.run_length + 1.0);
        let at_run_length =
            pair.tokens_per_second_at(often, Method::PearlPaper, gamma, texts)? / pair.target_speed;
        rows.push(vec![
            pair.name.into(),
            format!("{:.1}", pair.ratio()),
            format!("{:.3}", pair.acceptance()),
            format!("{turns:.2}"),
            format!("{published_turns:.2}"),
            format!("{paper:.2}"),
            format!("{eager:.2}"),
            format!("{at_run_length:.2}"),
            format!("{published_pearl:.2}"),
        ]);
    }
    Ok(PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 1, HumanEval: speed over autoregressive decoding"
            .into(),
        headings: headings(&[
            "pair",
            "c",
            "acceptance",
            "speculative, simulated",
            "published",
            "PEARL, simulated",
            "eager, simulated",
            "PEARL at its run length, simulated",
            "PEARL, published",
        ]),
        rows,
        note: PEARL_NOTE,
    })
}

fn pearl_ablations(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &PEARL_PAIRS {
        let Some(published) = pair.ablations else { continue };
        let gamma = pair.ratio().round() as usize;
        let mut row = vec![pair.name.to_owned()];
        let methods = [Method::PearlNoPreVerify, Method::PearlNoPostVerify, Method::PearlPaper];
        for (method, published) in methods.into_iter().zip(published) {
            let speed = pair.tokens_per_second(method, gamma, texts)? / pair.target_speed;
            row.extend([format!("{speed:.2}"), format!("{published:.2}")]);
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title:
            "PEARL (arXiv 2408.11850), table 4, HumanEval: ablations, speed over autoregressive \
                decoding"
                .into(),
        headings: headings(&[
            "pair",
            "without pre-verify, simulated",
            "published",
            "without post-verify, simulated",
            "published",
            "whole, simulated",
            "published",
        ]),
        rows,
        note: PEARL_NOTE,
    })
}

fn pearl_length(texts: u64) -> Result<PublishedTable, SimError> {
    by_length(
        "PEARL (arXiv 2408.11850), table 5, HumanEval: tokens/s by γ",
        |pair| pair.by_length,
        Method::PearlPaper,
        texts,
    )
}

fn speculative_length(texts: u64) -> Result<PublishedTable, SimError> {
    by_length(
        "PEARL (arXiv 2408.11850), table 14, HumanEval: tokens/s of speculative decoding by γ",
        |pair| pair.speculative,
        Method::Speculative,
        texts,
    )
}

fn by_length(
    title: &str,
    published: impl Fn(&PearlPair) -> &'static [(usize, f64)],
    method: Method,
    texts: u64,
) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &PEARL_PAIRS {
        for &(length, tokens_per_second) in published(pair) {
            let simulated = pair.tokens_per_second(method, length, texts)?;
            rows.push(vec![
                pair.name.into(),
                format!("{:.1}", pair.ratio()),
                length.to_string(),
                format!("{simulated:.2}"),
                format!("{tokens_per_second:.2}"),
            ]);
        }
    }
    let headings = headings(&["pair", "c", "γ", "simulated", "published"]);
    Ok(PublishedTable { title: title.into(), headings, rows, note: PEARL_NOTE })
}

/// A pair of DSI's table 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DsiPair {
    /// Target, drafter and data.
    pub name: &'static str,
    /// Milliseconds of a target forward.
    pub target_ms: f64,
    /// Milliseconds of a drafter forward.
    pub draft_ms: f64,
    /// The acceptance rate.
    pub acceptance: f64,
    /// Published speed of DSI over speculative decoding.
    pub published: f64,
}

const fn dsi_pair(
    name: &'static str,
    target_ms: f64,
    draft_ms: f64,
    acceptance: f64,
    published: f64,
) -> DsiPair {
    DsiPair { name, target_ms, draft_ms, acceptance, published }
}

/// The pairs of DSI's table 2.
pub const DSI_PAIRS: [DsiPair; 10] = [
    dsi_pair("Vicuna 13B, 68M, CNN-DM", 37.7, 2.5, 0.63, 1.47),
    dsi_pair("Vicuna 13B, 68M, Alpaca", 33.3, 2.5, 0.58, 1.41),
    dsi_pair("Vicuna 7B, 68M, CNN-DM", 29.4, 2.5, 0.67, 1.29),
    dsi_pair("Vicuna 7B, 68M, Alpaca", 26.0, 2.5, 0.59, 1.70),
    dsi_pair("Starcoder 15B, 168M, HumanEval", 20.6, 6.8, 0.93, 1.92),
    dsi_pair("Starcoder 15B, 168M, MBPP", 21.0, 6.8, 0.90, 1.66),
    dsi_pair("Phi3 14B, 4B, HumanEval", 52.1, 34.0, 0.95, 1.41),
    dsi_pair("Phi3 14B, 4B, MBPP", 52.2, 34.3, 0.94, 1.37),
    dsi_pair("Phi3 14B, 4B, CNN-DM", 52.4, 34.6, 0.93, 1.39),
    dsi_pair("Phi3 14B, 4B, Alpaca", 49.6, 33.4, 0.87, 1.60),
];

/// The lookaheads that the paper tries, and its most replicas.
pub const DSI_LOOKAHEADS: [usize; 3] = [1, 5, 10];
const DSI_REPLICAS: usize = 7;

impl DsiPair {
    /// Fifty tokens with this pair. DSI has as many replicas as equation 1 asks for and one for the row at
    /// the frontier, seven at the most.
    #[must_use]
    pub fn simulation(&self, method: Method, lookahead: usize) -> Simulation {
        let [target_ns, draft_ns] = [self.target_ms, self.draft_ms].map(|ms| (ms * 1e6) as u64);
        let cost = |ns| Cost { layers: 32, ..Cost::constant(ns) };
        let busy = busy_targets(target_ns, draft_ns, lookahead);
        let replicas = if method == Method::Dsi { (busy + 1).min(DSI_REPLICAS) } else { 1 };
        Simulation {
            method,
            drafters: vec![cost(draft_ns)],
            targets: vec![cost(target_ns); replicas],
            acceptance: vec![Acceptance::Iid(self.acceptance)],
            draft_tokens: lookahead,
            max_tokens: 50,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }
}

/// Waits on threads beside virtual time, over several texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waited {
    /// Mean nanoseconds in virtual time.
    pub virtual_ns: f64,
    /// Mean nanoseconds measured.
    pub measured_ns: f64,
    /// The standard error of that mean.
    pub error_ns: f64,
}

impl DsiPair {
    /// Fifty tokens of so many texts on threads, passes being waits, as the paper measures.
    ///
    /// # Errors
    /// If there are no texts, or a thread cannot start.
    pub fn wait(&self, method: Method, lookahead: usize, texts: u64) -> Result<Waited, SimError> {
        let simulation = self.simulation(method, lookahead);
        let mut measured = Vec::new();
        for seed in 0..texts {
            let answer = Simulation { seed, ..simulation.clone() }.run_in_real_time()?;
            measured.push(answer.total_ns as f64);
        }
        let virtual_ns = mean_ns(&simulation, texts)?;
        let count = measured.len() as f64;
        let measured_ns = measured.iter().sum::<f64>() / count;
        let squares = measured.iter().map(|ns| (ns - measured_ns).powi(2)).sum::<f64>();
        let error_ns = (squares / (count - 1.0).max(1.0) / count).sqrt();
        Ok(Waited { virtual_ns, measured_ns, error_ns })
    }
}

fn dsi_pairs(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &DSI_PAIRS {
        let mut row = vec![pair.name.to_owned()];
        let mut best = [f64::INFINITY; 2];
        for lookahead in DSI_LOOKAHEADS {
            let turns = mean_ns(&pair.simulation(Method::Speculative, lookahead), texts)?;
            let dsi = mean_ns(&pair.simulation(Method::Dsi, lookahead), texts)?;
            row.push(format!("{:.2}", turns / dsi));
            best = [best[0].min(turns), best[1].min(dsi)];
        }
        row.extend([format!("{:.2}", best[0] / best[1]), format!("{:.2}", pair.published)]);
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "DSI (arXiv 2405.14105), table 2: speed over speculative decoding, 50 tokens".into(),
        headings: headings(&[
            "pair",
            "lookahead 1, simulated",
            "5",
            "10",
            "each at its best",
            "published",
        ]),
        rows,
        note: "Simulated: the paper's times and acceptance rates, no overhead. The paper does not say at \
               which lookahead it ran speculative decoding; where a published value is above \"each at its \
               best\", no fair baseline gives it.",
    })
}

fn headings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

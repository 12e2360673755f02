//! Tables of the PEARL paper (arXiv 2408.11850) on HumanEval.

use super::{
    PublishedTable, acceptance_at, fastest, headings, mean_ns, simulation, tokens_per_round,
};
use crate::{AcceptanceModel, Cancellation, Cost, SimError, SimulatedMethod, Simulation};

/// A pair of models in PEARL's experiments on HumanEval.
struct PearlPair {
    name: &'static str,
    /// Tokens per second of the drafter alone (table 10).
    draft_speed: f64,
    /// Tokens per second of the target alone (table 10).
    target_speed: f64,
    /// Accepted draft tokens per target pass of speculative decoding, without the bonus token
    /// (table 7). The acceptance rate follows from it.
    mean_accepted: f64,
    /// The best γ of speculative decoding (table 14).
    best_length: usize,
    /// Tokens between two rejections with PEARL (table 7).
    run_length: f64,
    /// Speedups of speculative decoding and of PEARL over autoregressive decoding (table 1).
    published: [f64; 2],
    /// Speedups of PEARL without pre-verify, without post-verify and with both (table 4), if
    /// published.
    ablations: Option<[f64; 3]>,
    /// γ and tokens per second of PEARL (table 5); empty if not published.
    by_length: &'static [(usize, f64)],
    /// γ and tokens per second of speculative decoding (table 14).
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

/// Number of tokens in a simulated answer.
const TOKENS: usize = 512;
/// The draft lengths of which speculative decoding has its best.
const LENGTHS: [usize; 9] = [4, 6, 7, 8, 9, 10, 12, 14, 16];

impl PearlPair {
    /// Returns the ratio c of the target's pass time to the drafter's.
    fn ratio(&self) -> f64 {
        self.draft_speed / self.target_speed
    }

    /// Returns the acceptance rate at which drafts of the best γ have the published number of
    /// accepted tokens per pass, by Leviathan 2023, equation 1, which counts the bonus token too.
    fn acceptance(&self) -> f64 {
        acceptance_at(self.mean_accepted + 1.0, |rate| tokens_per_round(rate, self.best_length))
    }

    /// Returns the acceptance rate that follows from the number of tokens between two rejections.
    fn acceptance_at_run_length(&self) -> f64 {
        self.run_length / (self.run_length + 1.0)
    }

    /// Returns the costs of drafter and target.
    fn costs(&self) -> [Cost; 2] {
        [self.draft_speed, self.target_speed].map(|speed| Cost::constant((1e9 / speed) as u64))
    }

    fn simulation(&self, method: SimulatedMethod, draft_tokens: usize) -> Simulation {
        let [drafter, target] = self.costs();
        let acceptance = AcceptanceModel::Iid(self.acceptance());
        Simulation {
            draft_tokens,
            max_tokens: TOKENS,
            cancellation: Cancellation::Immediate,
            ..simulation(method, drafter, vec![target], acceptance)
        }
    }

    fn tokens_per_second(
        &self,
        method: SimulatedMethod,
        draft_tokens: usize,
        texts: u64,
    ) -> Result<f64, SimError> {
        Ok(TOKENS as f64 * 1e9 / mean_ns(&self.simulation(method, draft_tokens), texts)?)
    }
}

/// Returns the pairs' times of passes.
pub(super) fn pass_times() -> impl Iterator<Item = (&'static str, [Cost; 2])> {
    PEARL_PAIRS.iter().map(|pair| (pair.name, pair.costs()))
}

const PEARL_NOTE: &str = "Simulated: pass times from the paper's table 10, the acceptance rate from its tables \
    7 and 14: table 7's accepted tokens leave out the bonus token, or the published speeds would need more \
    tokens than there are. The acceptance rate is the same at every position, a pass takes the same time for any \
    number of rows, and there is no overhead. Published: measured on A100s, including prompts, sampling and \
    messages.";

pub(super) fn speed(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &PEARL_PAIRS {
        let gamma = pair.ratio().round() as usize;
        let [published_speculative, published_pearl] = pair.published;
        let over_plain = |method, length| {
            Ok::<f64, SimError>(pair.tokens_per_second(method, length, texts)? / pair.target_speed)
        };
        let speculative = over_plain(SimulatedMethod::Speculative, pair.best_length)?;
        let (best_ns, best_length) =
            fastest(&pair.simulation(SimulatedMethod::Speculative, 0), &LENGTHS, texts)?;
        let best_speculative = TOKENS as f64 * 1e9 / best_ns / pair.target_speed;
        let (paper, eager) = (
            over_plain(SimulatedMethod::PearlPaper, gamma)?,
            over_plain(SimulatedMethod::Pearl, gamma)?,
        );
        rows.push(vec![
            pair.name.into(),
            format!("{:.1}", pair.ratio()),
            format!("{:.3}", pair.acceptance()),
            format!("{:.3}", pair.acceptance_at_run_length()),
            format!("{speculative:.2}"),
            format!("{published_speculative:.2}"),
            format!("{best_speculative:.2} ({best_length})"),
            format!("{paper:.2}"),
            format!("{eager:.2}"),
            format!("{published_pearl:.2}"),
            format!("{:.2}", paper / best_speculative),
            format!("{:.2}", published_pearl / published_speculative),
        ]);
    }
    Ok(PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 1, HumanEval: speedup over autoregressive decoding"
            .into(),
        headings: headings(&[
            "pair",
            "c",
            "acceptance",
            "acceptance by PEARL's run length",
            "speculative decoding, simulated",
            "speculative decoding, published",
            "speculative decoding at its best γ, simulated",
            "PEARL, simulated",
            "PEARL with the eager schedule, simulated",
            "PEARL, published",
            "PEARL over speculative decoding at its best γ, simulated",
            "PEARL over speculative decoding, published",
        ]),
        rows,
        note: PEARL_NOTE,
    })
}

pub(super) fn ablations(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for pair in &PEARL_PAIRS {
        let Some(published) = pair.ablations else { continue };
        let gamma = pair.ratio().round() as usize;
        let mut row = vec![pair.name.to_owned()];
        let methods = [
            SimulatedMethod::PearlNoPreVerify,
            SimulatedMethod::PearlNoPostVerify,
            SimulatedMethod::PearlPaper,
        ];
        for (method, published) in methods.into_iter().zip(published) {
            let speed = pair.tokens_per_second(method, gamma, texts)? / pair.target_speed;
            row.extend([format!("{speed:.2}"), format!("{published:.2}")]);
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title:
            "PEARL (arXiv 2408.11850), table 4, HumanEval: ablations, speedup over autoregressive \
                decoding"
                .into(),
        headings: headings(&[
            "pair",
            "without pre-verify, simulated",
            "published",
            "without post-verify, simulated",
            "published",
            "PEARL, simulated",
            "published",
        ]),
        rows,
        note: PEARL_NOTE,
    })
}

pub(super) fn length(texts: u64) -> Result<PublishedTable, SimError> {
    by_length(
        "PEARL (arXiv 2408.11850), table 5, HumanEval: tokens/s by γ",
        |pair| pair.by_length,
        SimulatedMethod::PearlPaper,
        texts,
    )
}

pub(super) fn speculative_length(texts: u64) -> Result<PublishedTable, SimError> {
    by_length(
        "PEARL (arXiv 2408.11850), table 14, HumanEval: tokens/s of speculative decoding by γ",
        |pair| pair.speculative,
        SimulatedMethod::Speculative,
        texts,
    )
}

fn by_length(
    title: &str,
    published: impl Fn(&PearlPair) -> &'static [(usize, f64)],
    method: SimulatedMethod,
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

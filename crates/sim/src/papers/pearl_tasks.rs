//! Tables of the PEARL paper (arXiv 2408.11850) on other tasks, and with drafter and target on the
//! same devices.

use super::{PublishedTable, acceptance_at, headings, mean_ns, tokens_per_round};
use crate::{
    AcceptanceModel, Calibration, Cancellation, Cost, SharedDevices, SimError, SimulatedMethod,
    Simulation,
};

/// A pair of Llama models, with tokens per second of drafter and target alone (table 10).
#[derive(Clone, Copy)]
struct LlamaPair {
    name: &'static str,
    draft_speed: f64,
    target_speed: f64,
}

const LLAMA_2: LlamaPair =
    LlamaPair { name: "Llama 2 7B & 70B", draft_speed: 49.94, target_speed: 9.22 };
const LLAMA_3: LlamaPair =
    LlamaPair { name: "Llama 3.1 8B & 70B", draft_speed: 44.37, target_speed: 9.00 };

/// Returns the pairs' times of passes. Their acceptance depends on the task.
pub(super) fn pass_times() -> impl Iterator<Item = (&'static str, [Cost; 2])> {
    [LLAMA_2, LLAMA_3].into_iter().map(|pair| (pair.name, [pair.drafter(), pair.target()]))
}

/// Number of tokens in a simulated answer.
const TOKENS: usize = 256;

impl LlamaPair {
    /// Returns γ = round(c).
    fn gamma(self) -> usize {
        (self.draft_speed / self.target_speed).round() as usize
    }

    fn drafter(self) -> Cost {
        Cost::constant((1e9 / self.draft_speed) as u64)
    }

    fn target(self) -> Cost {
        Cost::constant((1e9 / self.target_speed) as u64)
    }

    fn simulation(self, acceptance: f64, gamma: usize) -> Simulation {
        Simulation {
            method: SimulatedMethod::PearlPaper,
            drafters: vec![self.drafter()],
            targets: vec![self.target()],
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            draft_tokens: gamma,
            max_tokens: TOKENS,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }

    /// Returns the tokens per second of speculative decoding at its best γ.
    fn best_speculative_speed(self, acceptance: f64) -> f64 {
        let speed = |gamma: usize| {
            let round = gamma as f64 / self.draft_speed + 1.0 / self.target_speed;
            tokens_per_round(acceptance, gamma) / round
        };
        (1..=20).map(speed).fold(0.0, f64::max)
    }

    /// Returns the tokens per second of PEARL for an endless answer.
    ///
    /// There are two kinds of rounds. A pre-verify round commits one token; a post-verify round
    /// follows if that token was drafted. A post-verify round commits `1 + α + … + α^(γ−1)` tokens
    /// on average; another one follows if all were right.
    fn pearl_speed(self, acceptance: f64, gamma: usize) -> f64 {
        let all = acceptance.powi(gamma as i32);
        let post = acceptance / (acceptance + 1.0 - all);
        let tokens = (1.0 - post) + post * tokens_per_round(acceptance, gamma - 1);
        tokens / (gamma as f64 / self.draft_speed).max(1.0 / self.target_speed)
    }
}

/// Tasks of table 6, with the published speedup of speculative decoding over plain decoding (tables
/// 1, 2 and 3) and the published tokens per second of PEARL by γ.
const TASKS: [(&str, f64, [f64; 5]); 3] = [
    ("HumanEval", 2.35, [20.39, 24.58, 30.34, 28.02, 28.09]),
    ("GSM8K", 2.48, [18.23, 21.81, 26.47, 24.59, 24.23]),
    ("MT-Bench", 1.89, [17.67, 20.69, 24.25, 22.71, 22.54]),
];

pub(super) fn by_length(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for (task, speculative, published) in TASKS {
        let speed = speculative * LLAMA_2.target_speed;
        let acceptance = acceptance_at(speed, |rate| LLAMA_2.best_speculative_speed(rate));
        for (gamma, published) in (3..).zip(published) {
            let total_ns = mean_ns(&LLAMA_2.simulation(acceptance, gamma), texts)?;
            rows.push(vec![
                task.into(),
                format!("{acceptance:.3}"),
                gamma.to_string(),
                format!("{:.2}", TOKENS as f64 * 1e9 / total_ns),
                format!("{published:.2}"),
            ]);
        }
    }
    Ok(PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 6, Llama 2 7B & 70B (c = 5.4): tokens/s by γ"
            .into(),
        headings: headings(&["task", "acceptance", "γ", "simulated", "published"]),
        rows,
        note: "Simulated: pass times from the paper's table 10, without overhead. The acceptance rate, the same \
               at every position, is the one at which speculative decoding at its best γ has the speed of the \
               paper's tables 1, 2 and 3. It is too low where that has overheads, as `pearl-14` shows. On GSM8K the \
               paper contradicts itself: PEARL has 2.87 times plain decoding here and in table 4, 3.29 in table 17, \
               and 3.82 in table 2, from which the speed of speculative decoding is.",
    })
}

/// The devices of a 70B target (appendix C.3), and the time of sending the drafter's cache at 1024
/// tokens (table 16).
const SHARED_DEVICES: SharedDevices = SharedDevices { devices: 3, transport_ns: 1_600_000 };

/// Returns the acceptance rate that PEARL's published speed on separate devices implies, and the
/// simulated tokens per second on separate and on shared devices.
fn separate_and_shared(
    llamas: LlamaPair,
    published: f64,
    texts: u64,
) -> Result<[f64; 3], SimError> {
    let gamma = llamas.gamma();
    let acceptance = acceptance_at(published, |rate| llamas.pearl_speed(rate, gamma));
    let simulation = llamas.simulation(acceptance, gamma);
    let (mut separate_ns, mut shared_ns) = (0, 0);
    for seed in 0..texts {
        let simulation = Simulation { seed, ..simulation.clone() };
        separate_ns += simulation.measure()?.total_ns;
        shared_ns += simulation.measure_on_shared_devices(SHARED_DEVICES)?.total_ns;
    }
    let speed = |ns: u64| (texts * TOKENS as u64) as f64 * 1e9 / ns as f64;
    Ok([acceptance, speed(separate_ns), speed(shared_ns)])
}

const SHARED_NOTE: &str = "Simulated: pass times from the paper's table 10, without other overhead than sending \
    the cache. The acceptance rate, the same at every position, is the one at which PEARL on separate devices \
    has the published speed. Shared devices: the target's layers are split over three devices (appendix C.3). \
    The drafter computes the first ⌈γ/2⌉ tokens of a round on the last device and the others on the first. \
    Whenever it changes the device, its cache is sent, which takes 1.6 ms (table 16). Drafter and target never \
    need the same device at the same time, so sending the cache is the only simulated loss. Published: \
    measured on A100s.";

/// Returns the rows for published speeds on separate and on shared devices.
fn shared_rows(
    llamas: LlamaPair,
    published: &[(&str, f64, f64)],
    texts: u64,
) -> Result<Vec<Vec<String>>, SimError> {
    let row = |&(name, published_separate, published_shared): &(&str, f64, f64)| {
        let [acceptance, separate, shared] =
            separate_and_shared(llamas, published_separate, texts)?;
        Ok(vec![
            llamas.name.to_owned(),
            name.to_owned(),
            format!("{acceptance:.3}"),
            format!("{separate:.2}"),
            format!("{published_separate:.2}"),
            format!("{shared:.2}"),
            format!("{published_shared:.2}"),
            format!("{:.3}", shared / separate),
            format!("{:.3}", published_shared / published_separate),
        ])
    };
    published.iter().map(row).collect()
}

fn shared_table(title: &str, data_heading: &str, rows: Vec<Vec<String>>) -> PublishedTable {
    let headings = headings(&[
        "pair",
        data_heading,
        "acceptance",
        "tokens/s on separate devices, simulated",
        "published",
        "tokens/s on shared devices, simulated",
        "published",
        "share of the speed retained, simulated",
        "published",
    ]);
    PublishedTable { title: title.into(), headings, rows, note: SHARED_NOTE }
}

pub(super) fn shared_categories(texts: u64) -> Result<PublishedTable, SimError> {
    let llama_2 = [
        ("Writing", 22.10, 19.88),
        ("Roleplay", 22.47, 20.24),
        ("Reasoning", 26.16, 25.06),
        ("Math", 25.74, 24.47),
        ("Coding", 24.63, 23.47),
        ("Extraction", 26.11, 25.79),
        ("Stem", 23.84, 21.55),
        ("Humanities", 23.09, 22.03),
    ];
    let llama_3 = [
        ("Writing", 31.23, 29.65),
        ("Roleplay", 30.08, 27.54),
        ("Reasoning", 35.09, 35.01),
        ("Math", 36.59, 36.31),
        ("Coding", 31.95, 29.85),
        ("Extraction", 34.60, 33.99),
        ("Stem", 30.06, 26.77),
        ("Humanities", 27.51, 26.10),
    ];
    let mut rows = shared_rows(LLAMA_2, &llama_2, texts)?;
    rows.extend(shared_rows(LLAMA_3, &llama_3, texts)?);
    let title =
        "PEARL (arXiv 2408.11850), table 8, MT-bench: drafter and target on the same devices";
    Ok(shared_table(title, "category", rows))
}

pub(super) fn shared(texts: u64) -> Result<PublishedTable, SimError> {
    let llama_2 = [
        ("HumanEval", 32.53, 31.52),
        ("GSM8K", 30.33, 29.05),
        ("MT-bench", 24.28, 22.83),
        ("MGSM", 30.13, 28.56),
    ];
    let llama_3 = [
        ("HumanEval", 33.56, 31.83),
        ("GSM8K", 32.97, 31.51),
        ("MT-bench", 32.14, 30.78),
        ("MGSM", 35.02, 33.65),
    ];
    let mut rows = shared_rows(LLAMA_2, &llama_2, texts)?;
    rows.extend(shared_rows(LLAMA_3, &llama_3, texts)?);
    let title = "PEARL (arXiv 2408.11850), table 17: drafter and target on the same devices";
    Ok(shared_table(title, "benchmark", rows))
}

/// Languages, with PEARL's speedup over plain decoding (table 2) and the published share of the
/// speed that each pair retains on shared devices (table 18).
const LANGUAGES: [(&str, f64, f64, f64); 11] = [
    ("English", 3.82, 0.96, 0.98),
    ("Bengali", 3.94, 0.95, 0.94),
    ("German", 4.00, 0.95, 0.95),
    ("Spanish", 3.81, 0.94, 0.94),
    ("French", 3.76, 0.95, 0.94),
    ("Japanese", 3.94, 0.96, 0.96),
    ("Russian", 3.85, 0.94, 0.95),
    ("Swahili", 4.18, 0.95, 0.96),
    ("Telugu", 4.10, 0.96, 0.98),
    ("Thai", 3.93, 0.93, 0.98),
    ("Chinese", 4.06, 0.92, 1.00),
];

pub(super) fn shared_languages(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for (language, speedup, llama_2_retains, llama_3_retains) in LANGUAGES {
        let mut row = vec![language.to_owned(), format!("{speedup:.2}")];
        for (llamas, published) in [(LLAMA_2, llama_2_retains), (LLAMA_3, llama_3_retains)] {
            let speed = speedup * llamas.target_speed;
            let [_, separate, shared] = separate_and_shared(llamas, speed, texts)?;
            row.extend([format!("{:.3}", shared / separate), format!("{published:.2}")]);
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 18, MGSM: share of the speed retained with drafter and \
                target on the same devices"
            .into(),
        headings: headings(&[
            "language",
            "speedup of PEARL over plain decoding, published",
            "Llama 2, simulated",
            "published",
            "Llama 3.1, simulated",
            "published",
        ]),
        rows,
        note: SHARED_NOTE,
    })
}

/// Number of tokens, and milliseconds of sending the cache of Llama 3.1 8B (table 16).
const TRANSPORT: [(u64, f64); 4] = [(128, 1.3), (256, 1.4), (512, 1.5), (1024, 1.6)];
/// Bytes of a token's keys and values: 32 layers, 8 heads of 128 values in bfloat16.
const TOKEN_BYTES: u64 = 2 * 2 * 32 * 8 * 128;
/// Bandwidth of NVLink in bytes per second, as given in the paper.
const LINK_BYTES_PER_SECOND: f64 = 300e9;

pub(super) fn transport() -> PublishedTable {
    let row = |(tokens, published): (u64, f64)| {
        let bytes = tokens * TOKEN_BYTES;
        vec![
            tokens.to_string(),
            format!("{:.1}", bytes as f64 / 1e6),
            format!("{:.3}", bytes as f64 / LINK_BYTES_PER_SECOND * 1e3),
            format!("{published:.1}"),
        ]
    };
    PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 16: sending the drafter's cache, Llama 3.1 8B"
            .into(),
        headings: headings(&["tokens", "megabytes", "ms at 300 GB/s", "ms, published"]),
        rows: TRANSPORT.map(row).into(),
        note: "The time that follows from the bandwidth of the link alone, and the published time. Nearly all of \
               the published time is something else. Tables 8, 17 and 18 are simulated with the published \
               1.6 ms.",
    }
}

/// Draft lengths from this one on share a row.
const LONGEST_LENGTH: usize = 16;
/// Number of rounds of the first prompt that are listed one by one.
const SHOWN_ROUNDS: usize = 24;

/// Returns the best draft length of each round of speculative decoding, from the record of a
/// prompt. It is the number of right tokens before the next wrong one, after which the next round
/// begins.
fn best_draft_lengths(record: &str) -> impl Iterator<Item = usize> + '_ {
    let whole_rounds = record.rfind('0').map(|end| record[..end].split('0'));
    whole_rounds.into_iter().flatten().map(str::len)
}

pub(super) fn best_lengths(recorded: &Calibration) -> PublishedTable {
    let all: Vec<usize> =
        recorded.agreement.iter().flat_map(|record| best_draft_lengths(record)).collect();
    let count = all.len().max(1) as f64;
    let mean = all.iter().sum::<usize>() as f64 / count;
    let acceptance = mean / (mean + 1.0);
    let mut rows: Vec<Vec<String>> = (0..=LONGEST_LENGTH)
        .map(|length| {
            let is_in_row = |&&best: &&usize| best.min(LONGEST_LENGTH) == length;
            let share = all.iter().filter(is_in_row).count() as f64 / count;
            // The last row covers all longer lengths, too.
            let at_least = acceptance.powi(length as i32);
            let expected =
                if length == LONGEST_LENGTH { at_least } else { at_least * (1.0 - acceptance) };
            let name =
                format!("{length}{}", if length == LONGEST_LENGTH { " or more" } else { "" });
            vec![name, format!("{:.1} %", 100.0 * share), format!("{:.1} %", 100.0 * expected)]
        })
        .collect();
    let first = recorded.agreement.first().map_or("", String::as_str);
    let shown = best_draft_lengths(first).take(SHOWN_ROUNDS).map(|length| length.to_string());
    let shown: Vec<String> = shown.collect();
    rows.push(vec!["mean".into(), format!("{mean:.2}"), format!("{mean:.2}")]);
    rows.push(vec!["first rounds, in order".into(), shown.join(" "), String::new()]);
    PublishedTable {
        title: format!(
            "PEARL (arXiv 2408.11850), figure 2b: the best draft length of each round, {} rounds of {}",
            all.len(),
            recorded.drafter.model
        ),
        headings: headings(&[
            "best draft length",
            "rounds, recorded",
            "expected with the same acceptance rate at every position",
        ]),
        rows,
        note: "Recorded: whether the drafter, given the target's own text so far, proposes the target's next \
               token. Each round begins after a correction. Its best draft length is the number of right \
               tokens before the next wrong one. The paper shows its run only as a picture.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_begin_after_corrections() {
        assert_eq!(best_draft_lengths("1101000111").collect::<Vec<_>>(), [2, 1, 0, 0]);
        assert_eq!(best_draft_lengths("1111").count() + best_draft_lengths("").count(), 0);
        assert_eq!(best_draft_lengths("0").collect::<Vec<_>>(), [0]);
    }

    /// Acceptance rates are derived from the closed form, so it must match the decoder.
    #[test]
    fn the_closed_form_of_pearl_matches_the_decoder() -> Result<(), SimError> {
        for acceptance in [0.3, 0.7, 0.9] {
            let gamma = LLAMA_2.gamma();
            let simulation = LLAMA_2.simulation(acceptance, gamma);
            let simulated = TOKENS as f64 * 1e9 / mean_ns(&simulation, 200)?;
            let expected = LLAMA_2.pearl_speed(acceptance, gamma);
            assert!(
                (simulated / expected - 1.0).abs() < 0.02,
                "{acceptance}: {simulated} {expected}"
            );
        }
        Ok(())
    }
}

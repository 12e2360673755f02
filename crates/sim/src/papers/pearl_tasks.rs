//! PEARL's tables (arXiv 2408.11850) of other tasks, and of drafter and target on the same devices.

use super::{PublishedTable, acceptance_at, headings, mean_ns, tokens_per_round};
use crate::{
    AcceptanceModel, Calibration, Cancellation, Cost, SharedDevices, SimError, SimulatedMethod,
    Simulation,
};

/// A pair of Llamas: tokens a second of drafter and target alone (table 10).
#[derive(Clone, Copy)]
struct Llamas {
    name: &'static str,
    draft_speed: f64,
    target_speed: f64,
}

const LLAMA_2: Llamas = Llamas { name: "Llama 2 7B & 70B", draft_speed: 49.94, target_speed: 9.22 };
const LLAMA_3: Llamas =
    Llamas { name: "Llama 3.1 8B & 70B", draft_speed: 44.37, target_speed: 9.00 };

const TOKENS: usize = 256;

impl Llamas {
    /// γ = round(c).
    fn gamma(self) -> usize {
        (self.draft_speed / self.target_speed).round() as usize
    }

    fn simulation(self, acceptance: f64, gamma: usize) -> Simulation {
        Simulation {
            method: SimulatedMethod::PearlPaper,
            drafters: vec![Cost::constant((1e9 / self.draft_speed) as u64)],
            targets: vec![Cost::constant((1e9 / self.target_speed) as u64)],
            acceptance: vec![AcceptanceModel::Iid(acceptance)],
            draft_tokens: gamma,
            max_tokens: TOKENS,
            seed: 0,
            cancellation: Cancellation::Immediate,
            faults: Vec::new(),
        }
    }

    /// Tokens a second of speculative decoding at its best γ.
    fn best_turns(self, acceptance: f64) -> f64 {
        let speed = |gamma: usize| {
            let round = gamma as f64 / self.draft_speed + 1.0 / self.target_speed;
            tokens_per_round(acceptance, gamma) / round
        };
        (1..=20).map(speed).fold(0.0, f64::max)
    }

    /// Tokens a second of PEARL, were answers without end. Rounds are of two kinds: without unverified
    /// tokens one commits a single token, and is followed by the other kind if it was drafted; that commits
    /// `1 + α + … + α^(γ−1)`, and is followed by its like if all were right.
    fn pearl(self, acceptance: f64, gamma: usize) -> f64 {
        let all = acceptance.powi(gamma as i32);
        let post = acceptance / (acceptance + 1.0 - all);
        let tokens = (1.0 - post) + post * tokens_per_round(acceptance, gamma - 1);
        tokens / (gamma as f64 / self.draft_speed).max(1.0 / self.target_speed)
    }
}

/// Tasks of table 6 with the published speed of speculative decoding over plain decoding (tables 1, 2 and 3),
/// and tokens a second of PEARL by γ.
const TASKS: [(&str, f64, [f64; 5]); 3] = [
    ("HumanEval", 2.35, [20.39, 24.58, 30.34, 28.02, 28.09]),
    ("GSM8K", 2.48, [18.23, 21.81, 26.47, 24.59, 24.23]),
    ("MT-Bench", 1.89, [17.67, 20.69, 24.25, 22.71, 22.54]),
];

pub(super) fn by_length(texts: u64) -> Result<PublishedTable, SimError> {
    let mut rows = Vec::new();
    for (task, turns, published) in TASKS {
        let speed = turns * LLAMA_2.target_speed;
        let acceptance = acceptance_at(speed, |rate| LLAMA_2.best_turns(rate));
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
        note: "Simulated: times from the paper's table 10; the acceptance rate is that at which speculative \
               decoding at its best γ has the speed of its tables 1, 2 and 3, alike at every position; no \
               overhead.",
    })
}

/// Devices of a 70B target (appendix C.3), and what sending the drafter's cache takes at 1024 tokens (table 16).
const PIPELINE: SharedDevices = SharedDevices { devices: 3, transport_ns: 1_600_000 };

/// Tokens a second of PEARL with the acceptance rate that its published speed implies, on devices of its own
/// and on the target's.
fn retained(llamas: Llamas, published: f64, texts: u64) -> Result<[f64; 3], SimError> {
    let gamma = llamas.gamma();
    let acceptance = acceptance_at(published, |rate| llamas.pearl(rate, gamma));
    let simulation = llamas.simulation(acceptance, gamma);
    let (mut apart_ns, mut shared_ns) = (0, 0);
    for seed in 0..texts {
        let simulation = Simulation { seed, ..simulation.clone() };
        apart_ns += simulation.measure()?.total_ns;
        shared_ns += simulation.measure_on(PIPELINE)?.total_ns;
    }
    let speed = |ns: u64| (texts * TOKENS as u64) as f64 * 1e9 / ns as f64;
    Ok([acceptance, speed(apart_ns), speed(shared_ns)])
}

const SHARED_NOTE: &str = "Simulated: times from the paper's table 10, the acceptance rate at which PEARL on \
    devices of its own has the published speed, alike at every position. Shared: the target's layers on three \
    devices in turn (appendix C.3), the first ⌈γ/2⌉ draft tokens of a round on the last device and the others on \
    the first, the drafter's cache sent at each change of its device, 1.6 ms (table 16); no other overhead. So \
    the simulated loss is that of sending alone: nowhere do both want one device. Published: measured on A100s.";

/// Rows of published speeds apart and shared.
fn shared_rows(
    llamas: Llamas,
    published: &[(&str, f64, f64)],
    texts: u64,
) -> Result<Vec<Vec<String>>, SimError> {
    let row = |&(name, apart, shared): &(&str, f64, f64)| {
        let [acceptance, own, both] = retained(llamas, apart, texts)?;
        Ok(vec![
            llamas.name.to_owned(),
            name.to_owned(),
            format!("{acceptance:.3}"),
            format!("{own:.2}"),
            format!("{apart:.2}"),
            format!("{both:.2}"),
            format!("{shared:.2}"),
            format!("{:.3}", both / own),
            format!("{:.3}", shared / apart),
        ])
    };
    published.iter().map(row).collect()
}

fn shared_table(title: &str, what: &str, rows: Vec<Vec<String>>) -> PublishedTable {
    let headings = headings(&[
        "pair",
        what,
        "acceptance",
        "tokens/s apart, simulated",
        "published",
        "shared, simulated",
        "published",
        "retained, simulated",
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

/// Languages with PEARL's speed over plain decoding (table 2), and the published share that is retained with
/// each pair (table 18).
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
    for (language, speed, of_llama_2, of_llama_3) in LANGUAGES {
        let mut row = vec![language.to_owned(), format!("{speed:.2}")];
        for (llamas, published) in [(LLAMA_2, of_llama_2), (LLAMA_3, of_llama_3)] {
            let [_, apart, shared] = retained(llamas, speed * llamas.target_speed, texts)?;
            row.extend([format!("{:.3}", shared / apart), format!("{published:.2}")]);
        }
        rows.push(row);
    }
    Ok(PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 18, MGSM: share that is retained where drafter and target \
                are on the same devices"
            .into(),
        headings: headings(&[
            "language",
            "PEARL over plain decoding, published",
            "Llama 2, simulated",
            "published",
            "Llama 3.1, simulated",
            "published",
        ]),
        rows,
        note: SHARED_NOTE,
    })
}

/// Milliseconds of sending the cache of Llama 3.1 8B by its tokens (table 16).
const TRANSPORT: [(u64, f64); 4] = [(128, 1.3), (256, 1.4), (512, 1.5), (1024, 1.6)];
/// Bytes of a token's keys and values: 32 layers, 8 heads of 128 in bfloat-16.
const TOKEN_BYTES: u64 = 2 * 2 * 32 * 8 * 128;
/// Bytes a second of NVLink, as the paper has it.
const LINK_BYTES: f64 = 300e9;

pub(super) fn transport() -> PublishedTable {
    let row = |(tokens, published): (u64, f64)| {
        let bytes = tokens * TOKEN_BYTES;
        vec![
            tokens.to_string(),
            format!("{:.1}", bytes as f64 / 1e6),
            format!("{:.3}", bytes as f64 / LINK_BYTES * 1e3),
            format!("{published:.1}"),
        ]
    };
    PublishedTable {
        title: "PEARL (arXiv 2408.11850), table 16: sending the drafter's cache, Llama 3.1 8B"
            .into(),
        headings: headings(&["tokens", "megabytes", "ms at 300 GB/s", "ms, published"]),
        rows: TRANSPORT.map(row).into(),
        note: "By the link's speed alone, and as published: nearly all of it is not the link. Tables 8, 17 and 18 \
               are simulated with the published 1.6 ms.",
    }
}

/// Draft lengths that are told apart.
const LONGEST: usize = 16;
/// Rounds of the first prompt that are shown one by one.
const SHOWN: usize = 24;

/// The best draft lengths of the rounds of speculative decoding over a record of a prompt: as many tokens
/// as are right before the next wrong one, behind which the next round begins.
fn lengths_of(record: &str) -> impl Iterator<Item = usize> + '_ {
    let whole_rounds = record.rfind('0').map(|end| record[..end].split('0'));
    whole_rounds.into_iter().flatten().map(str::len)
}

pub(super) fn best_lengths(recorded: &Calibration) -> PublishedTable {
    let all: Vec<usize> = recorded.agreement.iter().flat_map(|own| lengths_of(own)).collect();
    let count = all.len().max(1) as f64;
    let mean = all.iter().sum::<usize>() as f64 / count;
    let acceptance = mean / (mean + 1.0);
    let mut rows: Vec<Vec<String>> = (0..=LONGEST)
        .map(|length| {
            let is_here = |&&own: &&usize| own.min(LONGEST) == length;
            let share = all.iter().filter(is_here).count() as f64 / count;
            // Beyond the longest, all are counted together.
            let here = acceptance.powi(length as i32);
            let expected = if length == LONGEST { here } else { here * (1.0 - acceptance) };
            let name = format!("{length}{}", if length == LONGEST { " or more" } else { "" });
            vec![name, format!("{:.1} %", 100.0 * share), format!("{:.1} %", 100.0 * expected)]
        })
        .collect();
    let first = recorded.agreement.first().map_or("", String::as_str);
    let in_turn: Vec<String> = lengths_of(first).take(SHOWN).map(|own| own.to_string()).collect();
    rows.push(vec!["mean".into(), format!("{mean:.2}"), format!("{mean:.2}")]);
    rows.push(vec!["first rounds, in turn".into(), in_turn.join(" "), String::new()]);
    PublishedTable {
        title: format!(
            "PEARL (arXiv 2408.11850), figure 2b: the best draft length of each round, {} rounds of {}",
            all.len(),
            recorded.drafter.model
        ),
        headings: headings(&[
            "best draft length",
            "rounds, recorded",
            "were every token right with one probability",
        ]),
        rows,
        note: "Recorded: where the drafter is right behind the target's own text. Each round begins behind a \
               correction; its best length is that of the tokens that are right before the next wrong one. The \
               paper shows its run in a picture alone.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_begin_behind_corrections() {
        assert_eq!(lengths_of("1101000111").collect::<Vec<_>>(), [2, 1, 0, 0]);
        assert_eq!(lengths_of("1111").count() + lengths_of("").count(), 0);
        assert_eq!(lengths_of("0").collect::<Vec<_>>(), [0]);
    }

    /// The closed form that acceptance rates are read from is what the decoder does.
    #[test]
    fn pearls_closed_form_is_that_of_the_decoder() -> Result<(), SimError> {
        for acceptance in [0.3, 0.7, 0.9] {
            let gamma = LLAMA_2.gamma();
            let simulation = LLAMA_2.simulation(acceptance, gamma);
            let simulated = TOKENS as f64 * 1e9 / mean_ns(&simulation, 200)?;
            let expected = LLAMA_2.pearl(acceptance, gamma);
            assert!(
                (simulated / expected - 1.0).abs() < 0.02,
                "{acceptance}: {simulated} {expected}"
            );
        }
        Ok(())
    }
}

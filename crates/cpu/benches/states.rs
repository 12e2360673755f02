//! What the states of a hybrid cost: a Qwen3.5 of 170 million random parameters in bf16, with 2048
//! tokens in the cache.
//!
//! * a verification round right after a rejection of all drafts, compared with one after a full
//!   acceptance;
//! * a pass that keeps the state after each row, compared with one that keeps two;
//! * a prompt of 2048 tokens.
//!
//! The compared passes have equally many rows and take turns.
//! `cargo bench -p forerun-cpu --bench states`, or `just states`, prints medians and quartiles.
//! `FORERUN_CASES` sets the number of rounds (300 by default), and `FORERUN_THREADS` the number of
//! threads (all processors by default).

#![expect(clippy::unwrap_used, reason = "benches")]

use forerun_cache::PAGE_ROWS;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::config::RecurrentLayers;
use forerun_formats::{Checkpoint, Config, Family, Recurrent};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The number of tokens in the cache when rounds begin.
const PAST: usize = 2048;
/// The number of drafted tokens in a round, which computes one more row.
const DRAFTED: usize = 4;
/// The number of rounds after which the text is shortened again.
const ROUNDS_IN_A_ROW: usize = 20;
/// The number of rows of a pass that keeps only the states around the rows whose logits it
/// computes.
const LONG_PASS: usize = 33;

/// Three layers with the gated delta rule to each with attention, and the proportions of the
/// published models.
fn config() -> Config {
    let is_qwen = |config: &Config| config.family == Family::Qwen35;
    let qwen = example_families().into_iter().find(is_qwen).unwrap();
    let RecurrentLayers { mixer, .. } = qwen.recurrent.unwrap();
    let mixer = Recurrent {
        n_key_heads: 6,
        key_dim: 128,
        n_value_heads: 12,
        value_dim: 128,
        kernel: 4,
        ..mixer
    };
    let layers = (1..=12).map(|layer| layer % 4 != 0).collect();
    Config {
        family: Family::Qwen35,
        hidden_size: 768,
        intermediate_size: 2304,
        num_hidden_layers: 12,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 256,
        // Logits take no time, so that passes with more or fewer of them can be compared.
        vocab_size: 512,
        max_position_embeddings: 2 * PAST,
        qk_norms: qwen.qk_norms,
        attention_gate: true,
        partial_rotary_factor: 0.25,
        recurrent: Some(RecurrentLayers { mixer, layers }),
        ..example_config()
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Prints the quartiles of some times. Returns the median in seconds.
fn report(name: &str, mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let quartile = |n: usize| times[(times.len() - 1) * n / 4];
    let [low, median, high] = [1, 2, 3].map(quartile);
    println!(
        "{name}: {:.2} ms (quartiles {:.2} and {:.2}; {} passes)",
        median * 1e3,
        low * 1e3,
        high * 1e3,
        times.len()
    );
    median
}

/// A model, and the time of its passes.
struct Probe(CachedTransformer<Transformer>);

impl Probe {
    fn new(weights: &Arc<Weights>, team: &Arc<Team>) -> Self {
        Self(CachedTransformer::new(Transformer::new(Arc::clone(weights), Arc::clone(team))))
    }

    /// Verifies some drafts. Returns the time, and checks the number of computed rows.
    fn pass(&mut self, text: &[TokenId], drafts: &[TokenId], first_row: usize, rows: usize) -> f64 {
        let tree = TokenTree::chain(drafts);
        let request =
            ForwardRequest { first_row, ..ForwardRequest::new(SequenceId(1), text, &tree) };
        let started = Instant::now();
        let output = self.0.logits(&request).unwrap();
        let time = started.elapsed().as_secs_f64();
        assert_eq!(output.computed_tokens, rows, "a rejection must cost no row");
        time
    }
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let config = config();
    write_random_checkpoint(folder.path(), &config, 1, RandomDtype::Bf16).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let weights = Arc::new(Weights::load(&checkpoint).unwrap());
    let threads = number("FORERUN_THREADS", thread::available_parallelism().map_or(1, Into::into));
    let team = Arc::new(Team::unpinned(threads).unwrap());
    let rounds = number("FORERUN_CASES", 300);
    println!(
        "{} MB of weights, {:.2} MB for each state, {threads} threads",
        checkpoint.weights_bytes() / 1_000_000,
        config.architecture().state_bytes() as f64 / 1e6
    );

    let past: Vec<TokenId> = (0..PAST as TokenId).map(|index| index * 31 % 500).collect();
    // A new model each time, whose cache has no pages.
    let prompts = (0..5).map(|_| Probe::new(&weights, &team).pass(&past, &[], 0, PAST));
    let prompt = report("a prompt of 2048 tokens", prompts.collect());
    println!("  {:.0} tokens/s", PAST as f64 / prompt);

    let mut model = Probe::new(&weights, &team);
    let drafts = |round: usize| [1, 2, 3, 4].map(|index| (round * 7 + index) as TokenId % 500);
    let mut text = past.clone();
    let mut times = [Vec::new(), Vec::new()];
    let mut accepted = false;
    model.pass(&text, &[], 0, PAST);
    for round in 0..rounds {
        if round % ROUNDS_IN_A_ROW == 0 {
            // Continues at the state that is kept with the last page of the past.
            text.truncate(PAST);
            text.push(5);
            model.pass(&text, &drafts(round), 0, 1 + DRAFTED);
        } else {
            let time = model.pass(&text, &drafts(round), 0, 1 + DRAFTED);
            times[usize::from(accepted)].push(time);
        }
        // A fixed sequence without a pattern.
        accepted = (round * round / 7) % 2 == 0;
        if accepted {
            text.extend(drafts(round));
        }
        text.push((round % 400) as TokenId);
    }
    let [rejected, accepted] = times;
    let rejected = report("a round of 5 rows after a rejection of 4 drafts", rejected);
    let accepted = report("a round of 5 rows after an acceptance of 4 drafts", accepted);
    println!("  a rejection costs {:+.1} % of a round", (rejected / accepted - 1.0) * 100.0);
    let pool = model.0.pool();
    println!(
        "  {} states have memory, and the pages of {} tokens",
        pool.allocated_states(),
        pool.allocated() * PAGE_ROWS
    );

    let long: Vec<TokenId> = (0..LONG_PASS as TokenId - 1).map(|index| index * 3 % 500).collect();
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        text.truncate(PAST);
        // Another token, so that no node is held.
        text.push(6 + (round % 400) as TokenId);
        let keeps_all = round % 2 == 0;
        let first_row = if keeps_all { 0 } else { LONG_PASS - 1 };
        let time = model.pass(&text, &long, first_row, LONG_PASS);
        times[usize::from(keeps_all)].push(time);
    }
    let [few, all] = times;
    let few = report("a pass of 33 rows that keeps 2 states", few);
    let all = report("a pass of 33 rows that keeps 33 states", all);
    let state = (all - few) / (LONG_PASS - 2) as f64;
    println!(
        "  keeping a state costs {:.1} % of a row, and those of 5 rows {:.1} % of a round of 5 rows",
        state / (few / LONG_PASS as f64) * 100.0,
        state * (1 + DRAFTED) as f64 / accepted * 100.0
    );
}

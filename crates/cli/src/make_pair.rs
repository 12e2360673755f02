//! `forerun make-pair`: creates a pair of random models with a given acceptance rate.

use crate::arguments::{headings, values};
use crate::generate::DEMONSTRATION_TARGET;
use crate::{export, note};
use clap::Args;
use forerun::{
    CalibrationStep, Config, Dtype, GgufType, ResidualCalibration, SyntheticPairOptions, make_pair,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `forerun make-pair`.
#[derive(Args, Debug)]
pub(crate) struct MakePairArguments {
    /// Directory for the pair: `DIR/target` and `DIR/drafter`, in Hugging Face's layout.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Overwrite an existing pair.
    #[arg(long)]
    force: bool,

    /// Acceptance rate of the pair: accepted out of tested draft tokens.
    ///
    /// It is reached by scaling the target's layers that the drafter does not have.
    #[arg(long, value_name = "RATE", default_value_t = 0.8)]
    acceptance: f64,

    /// Largest difference between the requested and the measured acceptance (and overlap).
    #[arg(long, value_name = "T", default_value_t = 0.02)]
    tolerance: f64,

    /// Temperature at which the acceptance is measured; 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Seed of the random weights.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Make a deep drafter for EasySpec, with this overlap of approximate and exact rows.
    ///
    /// The contribution of the drafter's layers after the first is scaled until rows computed four
    /// layers at a time have this overlap (1 − TV) with exact rows, as in trained models. Without
    /// this option, random layers have almost no overlap.
    #[arg(long, value_name = "OVERLAP")]
    fuzzy_overlap: Option<f64>,

    /// Number of prompts to continue for each measurement of the acceptance.
    #[arg(long, value_name = "N", default_value_t = 24)]
    prompts: usize,

    /// Number of tokens of each continuation.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 96)]
    max_tokens: usize,

    /// Number of layers of the target.
    #[arg(long, value_name = "N", default_value_t = 12, help_heading = headings::MODEL)]
    layers: usize,

    /// Number of layers of the drafter; they are the target's first layers.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = headings::MODEL)]
    draft_layers: usize,

    /// Width of the hidden states of both models.
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = headings::MODEL)]
    hidden: usize,

    /// Width of the MLPs.
    #[arg(long, value_name = "N", default_value_t = 2816, help_heading = headings::MODEL)]
    intermediate: usize,

    /// Number of query heads.
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = headings::MODEL)]
    heads: usize,

    /// Number of key and value heads.
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = headings::MODEL)]
    kv_heads: usize,

    /// Vocabulary size, at least 258.
    ///
    /// With 4096 tokens, the pair gets the demonstration pair's tokenizer, otherwise a synthetic
    /// one.
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = headings::MODEL)]
    vocab_size: usize,

    /// Context length.
    #[arg(long, value_name = "N", default_value_t = 2048, help_heading = headings::MODEL)]
    context: usize,

    /// Type in which the weights are stored.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "bf16",
        value_parser = values::laboratory::stored_type(),
        help_heading = headings::MODEL
    )]
    dtype: Dtype,

    /// Also write GGUF files of these types: `DIR/target-TYPE.gguf` and `DIR/drafter-TYPE.gguf`.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        value_parser = values::gguf_type(),
        help_heading = headings::MODEL
    )]
    gguf: Vec<GgufType>,
}

/// Creates a pair and reports its measurements.
pub(crate) fn run(arguments: &MakePairArguments) -> anyhow::Result<ExitCode> {
    let MakePairArguments { out, force, .. } = arguments;
    for part in ["target", "drafter"] {
        let part = out.join(part);
        anyhow::ensure!(
            *force || !part.exists(),
            "{} already exists: choose another --out, or overwrite it with --force",
            part.display()
        );
    }
    let options = options(arguments);
    let pair = make_pair(&options, out, |step| note(step_line(step)))?;
    let [target, drafter] = pair.bytes_read.map(|bytes| bytes as f64 / 1e6);
    let accepted = &pair.acceptance;
    let mut stdout = std::io::stdout().lock();
    writeln!(
        stdout,
        "{}: a forward pass reads {target:.0} MB in the target and {drafter:.1} MB in the drafter \
         (ratio {:.1})",
        out.display(),
        target / drafter,
    )?;
    writeln!(
        stdout,
        "acceptance {:.3} at temperature {} (scale {}), on {} positions not used by the search; \
         {:.3} on all {} positions; {:.0} % of the 4-grams are distinct",
        accepted.rate,
        arguments.temperature,
        pair.epsilon,
        accepted.positions,
        accepted.rate_of_all,
        accepted.all_positions,
        accepted.distinct_4_grams * 100.0,
    )?;
    if let Some(ResidualCalibration { scale, overlap }) = pair.residual {
        writeln!(
            stdout,
            "the drafter's rows computed four layers at a time: overlap {overlap:.3} with exact rows, \
             on texts not used by the search (scale of the drafter's layers {scale})"
        )?;
    }
    for gguf_type in &arguments.gguf {
        for (name, model) in [("target", &pair.target), ("drafter", &pair.drafter)] {
            let file = out.join(format!("{name}-{gguf_type}.gguf"));
            export::write(&model.as_path().into(), &file, *gguf_type, true)?;
        }
    }
    let (target, drafter) = (pair.target.display(), pair.drafter.display());
    note(format_args!(
        "try it: forerun generate --model {target} --draft-model {drafter} --prompt Once"
    ));
    Ok(ExitCode::SUCCESS)
}

fn options(arguments: &MakePairArguments) -> SyntheticPairOptions {
    // The tokenizer of the demonstration pair, if it fits the vocabulary size.
    let tokenizer = (arguments.vocab_size == 4096).then_some(DEMONSTRATION_TARGET);
    // The demonstration pair has one token for the beginning and the end; a synthetic tokenizer has
    // two.
    let (bos, eos) = if tokenizer.is_some() { (0, 0) } else { (256, 257) };
    let target = Config {
        hidden_size: arguments.hidden,
        intermediate_size: arguments.intermediate,
        num_hidden_layers: arguments.layers,
        num_attention_heads: arguments.heads,
        num_key_value_heads: arguments.kv_heads,
        head_dim: arguments.hidden / arguments.heads.max(1),
        vocab_size: arguments.vocab_size,
        max_position_embeddings: arguments.context,
        bos_token_id: Some(bos),
        eos_token_ids: vec![eos],
        ..Config::plain_llama()
    };
    SyntheticPairOptions {
        target,
        draft_layers: arguments.draft_layers,
        acceptance: arguments.acceptance,
        layer_parallel_overlap: arguments.fuzzy_overlap,
        tolerance: arguments.tolerance,
        temperature: arguments.temperature,
        dtype: arguments.dtype,
        seed: arguments.seed,
        prompts: arguments.prompts,
        max_tokens: arguments.max_tokens,
        tokenizer,
    }
}

/// Returns a line of progress: a scale that the search tried.
fn step_line(step: &CalibrationStep) -> String {
    let which = |others: bool| if others { "other " } else { "" };
    match step {
        CalibrationStep::Residual { scale, overlap, other_texts } => {
            let which = which(*other_texts);
            format!(
                "scale of the drafter's layers {scale:.4}: overlap {overlap:.3} on {which}texts"
            )
        }
        CalibrationStep::Epsilon { epsilon, acceptance, prompts, other_prompts } => format!(
            "scale {epsilon:.4}: acceptance {:.3} on {} positions of {prompts} {}prompts",
            acceptance.rate,
            acceptance.positions,
            which(*other_prompts),
        ),
    }
}

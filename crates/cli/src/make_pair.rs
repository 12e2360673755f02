//! `forerun make-pair`: a pair of random models that is right as often as asked.

use crate::arguments::values::only_gguf_type;
use crate::{export, note};
use anyhow::Context;
use clap::Args;
use forerun::{
    CalibrationStep, Config, Dtype, GgufType, ResidualCalibration, SyntheticPairOptions, make_pair,
};
use forerun_models::DemonstrationPair;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forerun make-pair`.
#[derive(Args, Debug)]
pub(crate) struct MakePairArguments {
    /// The folder for the pair: DIR/target and DIR/drafter, as Hugging Face directories
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Write over a pair that is there
    #[arg(long)]
    force: bool,

    /// Accepted over tested draft tokens, to be reached by scaling the target's further layers
    #[arg(long, value_name = "A", default_value_t = 0.8)]
    acceptance: f64,

    /// Make a deep drafter for EasySpec: scale what its layers behind the first add until rows that
    /// are computed four layers at a time have this overlap (1 − TV) with exact ones, as those of
    /// trained models do; random layers lose nearly all
    #[arg(long, value_name = "O")]
    fuzzy_overlap: Option<f64>,

    /// How far from it the measured acceptance (and overlap) may be
    #[arg(long, value_name = "T", default_value_t = 0.02)]
    tolerance: f64,

    /// The temperature at which acceptance is measured; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Layers of the target
    #[arg(long, value_name = "N", default_value_t = 12)]
    layers: usize,

    /// Layers of the drafter, the target's first ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    draft_layers: usize,

    /// Width of both
    #[arg(long, value_name = "N", default_value_t = 1024)]
    hidden: usize,

    /// Width of the MLPs
    #[arg(long, value_name = "N", default_value_t = 2816)]
    intermediate: usize,

    /// Query heads
    #[arg(long, value_name = "N", default_value_t = 16)]
    heads: usize,

    /// Key/value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    kv_heads: usize,

    /// Tokens, at least 258; 4096 takes the demonstration pair's tokenizer, else one is made
    #[arg(long, value_name = "N", default_value_t = 4096)]
    vocab_size: usize,

    /// Tokens that the models see
    #[arg(long, value_name = "N", default_value_t = 2048)]
    context: usize,

    /// The type in which weights are stored: f32, bf16, f16
    #[arg(long, value_name = "TYPE", default_value = "bf16", value_parser = dtype)]
    dtype: Dtype,

    /// What the weights follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Prompts that are continued for each value that is tried
    #[arg(long, value_name = "N", default_value_t = 24)]
    prompts: usize,

    /// Tokens of each answer
    #[arg(long, short = 'n', value_name = "N", default_value_t = 96)]
    max_tokens: usize,

    /// Write GGUF files, too: DIR/target-TYPE.gguf and DIR/drafter-TYPE.gguf, of f32, bf16, q8_0
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = only_gguf_type)]
    gguf: Vec<GgufType>,
}

fn dtype(text: &str) -> Result<Dtype, String> {
    match text {
        "f32" => Ok(Dtype::F32),
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        _ => Err(format!("{text:?} is not one of f32, bf16, f16")),
    }
}

/// Makes a pair and tells what came of it.
pub(crate) fn run(arguments: &MakePairArguments) -> anyhow::Result<ExitCode> {
    let MakePairArguments { out, force, .. } = arguments;
    for part in ["target", "drafter"] {
        let part = out.join(part);
        anyhow::ensure!(
            *force || !part.exists(),
            "{} is there already: choose another --out, or write over it with --force",
            part.display()
        );
    }
    let pair = demonstration(arguments)?;
    let options = options(arguments, pair.as_ref().map(DemonstrationPair::target));
    let made = make_pair(&options, out, |step| note(told(step)))?;
    let [target, drafter] = made.bytes_read.map(|bytes| bytes as f64 / 1e6);
    let accepted = &made.acceptance;
    let mut stdout = std::io::stdout().lock();
    writeln!(
        stdout,
        "{}: a pass of the target reads {target:.0} MB, one of the drafter {drafter:.1} MB (1 to {:.1})",
        out.display(),
        target / drafter,
    )?;
    writeln!(
        stdout,
        "acceptance {:.3} at temperature {} (scale {}), on {} positions that the search had not seen; \
         {:.3} on all {}; {:.0} % of the 4-grams are different",
        accepted.rate,
        arguments.temperature,
        made.epsilon,
        accepted.positions,
        accepted.rate_of_all,
        accepted.all_positions,
        accepted.distinct_4_grams * 100.0,
    )?;
    if let Some(ResidualCalibration { scale, overlap }) = made.residual {
        writeln!(
            stdout,
            "the drafter's rows four layers at a time: overlap {overlap:.3} with exact ones, on texts that \
             the search had not seen (scale of its layers {scale})"
        )?;
    }
    for gguf_type in &arguments.gguf {
        for (name, model) in [("target", &made.target), ("drafter", &made.drafter)] {
            let file = out.join(format!("{name}-{gguf_type}.gguf"));
            export::write(model, &file, *gguf_type, true)?;
        }
    }
    let (target, drafter) = (shell(&made.target), shell(&made.drafter));
    note(format_args!("try it: forerun generate --model {target} --draft-model {drafter} -p Once"));
    Ok(ExitCode::SUCCESS)
}

fn shell(path: &Path) -> String {
    path.display().to_string()
}

/// The demonstration pair, whose tokenizer fits that many tokens and no others.
fn demonstration(arguments: &MakePairArguments) -> anyhow::Result<Option<DemonstrationPair>> {
    if arguments.vocab_size != 4096 {
        return Ok(None);
    }
    Ok(Some(DemonstrationPair::unpack().context("the tokenizer is the demonstration pair's")?))
}

fn options(arguments: &MakePairArguments, tokenizer: Option<PathBuf>) -> SyntheticPairOptions {
    // The demonstration pair has one token that begins and ends; a made tokenizer has two.
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
        fuzzy_overlap: arguments.fuzzy_overlap,
        tolerance: arguments.tolerance,
        temperature: arguments.temperature,
        dtype: arguments.dtype,
        seed: arguments.seed,
        prompts: arguments.prompts,
        max_tokens: arguments.max_tokens,
        tokenizer,
    }
}

/// A value that was tried, in a line.
fn told(step: &CalibrationStep) -> String {
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

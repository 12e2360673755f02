//! How a Hugging Face checkpoint stores quantised matrices: its `quantization_config`.

use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::load_error::LoadError;
use serde_json::Value;

/// The format of a checkpoint's quantised matrices. In all formats a weight is
/// `(quant − zero) · scale`. Which matrices are quantised follows from the stored tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// 8-bit floats (E4M3) as DeepSeek-V3 stores them, with a scale for each block of
    /// `[outputs, inputs]`, or for the whole matrix.
    Fp8 {
        /// The size of a block.
        block: Option<[usize; 2]>,
    },
    /// Quants of 8 bits, one after another, as compressed-tensors stores them.
    Bytes {
        /// Whether the quants are 8-bit floats (E4M3) rather than integers.
        floats: bool,
        /// The weights that share a scale.
        scales: ScaleSharing,
    },
    /// Integers packed in 32-bit words along the inputs, as compressed-tensors stores them.
    Packed {
        /// The bits of a quant, 4 or 8.
        bits: usize,
        /// The inputs that share a scale; `None` if all do.
        group_size: Option<usize>,
        /// Whether the zero point is the middle of the range. Otherwise zero points are stored.
        symmetric: bool,
    },
    /// 4-bit integers in AutoAWQ's GEMM layout.
    Awq {
        /// The inputs that share a scale and a zero point; `None` if all do.
        group_size: Option<usize>,
    },
    /// Integers packed in 32-bit words along the inputs, as AutoGPTQ and GPTQModel store them.
    Gptq {
        /// The bits of a quant, 4 or 8.
        bits: usize,
        /// The inputs that share a scale and a zero point; `None` if all do.
        group_size: Option<usize>,
        /// Whether stored zero points are one less than the real ones (version 1).
        zeros_less_one: bool,
        /// Whether inputs are assigned to groups by a stored table.
        ordered_by_activation: bool,
    },
    /// 4-bit floats with a power of two for 32 inputs, as gpt-oss stores its experts.
    Mxfp4,
}

/// The weights of a matrix that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleSharing {
    /// All weights.
    Matrix,
    /// The weights of an output.
    Outputs,
    /// The weights of a block of `[outputs, inputs]`.
    Blocks([usize; 2]),
}

const METHODS: &str = "\"fp8\", \"compressed-tensors\", \"awq\", \"gptq\" and \"mxfp4\", or none (F32, F16 or BF16 weights)";

impl Quantization {
    /// Reads `quantization_config`, if there is one. Fails when it describes a format that is not
    /// supported, or an option is missing or invalid.
    pub(super) fn read(options: &JsonOptions<'_>) -> Result<Option<Self>, LoadError> {
        const OPTION: &str = "quantization_config";
        let Some(options) = options.object(OPTION)? else { return Ok(None) };
        let method = options.string("quant_method")?;
        let read = match method.as_deref() {
            Some("fp8") => read_fp8,
            Some("compressed-tensors") => read_compressed_tensors,
            Some("awq") => read_awq,
            Some("gptq") => read_gptq,
            Some("mxfp4") => |_: &JsonOptions<'_>| Ok(Self::Mxfp4),
            _ => return Err(options.unsupported("quant_method", METHODS)),
        };
        read(&options).map(Some)
    }
}

fn read_fp8(options: &JsonOptions<'_>) -> Result<Quantization, LoadError> {
    require(options, "fmt", "\"e4m3\"", &["e4m3"])?;
    require(options, "scale_fmt", "\"float\" or \"ue8m0\"", &["float", "ue8m0"])?;
    no_other(options, &["kv_cache_scheme"])?;
    const BLOCK: &str = "weight_block_size";
    let block = match options.sizes(BLOCK)? {
        Some(sizes) => Some(block(options, BLOCK, &sizes)?),
        // Transformers' default. A stored `null` means one scale for each matrix.
        None if !options.contains(BLOCK) => Some([128, 128]),
        None => None,
    };
    Ok(Quantization::Fp8 { block })
}

fn read_compressed_tensors(options: &JsonOptions<'_>) -> Result<Quantization, LoadError> {
    const FORMATS: &str =
        "\"float-quantized\", \"int-quantized\", \"naive-quantized\" and \"pack-quantized\"";
    const WEIGHTS: &str = "8-bit floats, or integers of 4 or 8 bits";
    require(
        options,
        "quantization_status",
        "\"compressed\" or \"frozen\"",
        &["compressed", "frozen"],
    )?;
    no_other(options, &["kv_cache_scheme", "transform_config"])?;
    if let Some(sparsity) = options.object("sparsity_config")? {
        require(&sparsity, "format", "\"dense\"", &["dense"])?;
    }
    let format = options.string("format")?;
    let packed = match format.as_deref() {
        Some("pack-quantized") => true,
        Some("float-quantized" | "int-quantized" | "naive-quantized") => false,
        _ => return Err(options.unsupported("format", FORMATS)),
    };
    let groups = options.object("config_groups")?;
    let groups = groups.ok_or_else(|| options.missing("config_groups", "groups of matrices"))?;
    let mut found = None;
    for group in groups.objects("config_groups")? {
        no_other(&group, &["output_activations"])?;
        group.check_supported("format", "that of all groups", |own| {
            own.as_str() == format.as_deref()
        })?;
        let weights = group.object("weights")?;
        let weights = weights.ok_or_else(|| group.missing("weights", WEIGHTS))?;
        let own = weights_of_group(&weights, packed, WEIGHTS)?;
        if found.is_some_and(|found| found != own) {
            return Err(options.unsupported("config_groups", "one format for all matrices"));
        }
        found = Some(own);
    }
    found.ok_or_else(|| options.missing("config_groups", "groups of matrices"))
}

/// Reads the `weights` of a group of compressed-tensors.
fn weights_of_group(
    weights: &JsonOptions<'_>,
    packed: bool,
    supported: &'static str,
) -> Result<Quantization, LoadError> {
    no_other(weights, &["dynamic"])?;
    weights.check_supported("actorder", "none, or \"weight\"", |order| {
        *order == false || order == "weight" || order == "static"
    })?;
    let symmetric = weights.flag("symmetric")?.unwrap_or(true);
    let floats = match weights.string("type")?.as_deref() {
        None | Some("int") => false,
        Some("float") => true,
        _ => return Err(weights.unsupported("type", supported)),
    };
    let group_size = match weights.get("group_size") {
        None => None,
        Some(_) => group_size(weights)?,
    };
    let strategy = weights.string("strategy")?;
    let strategy = match strategy.as_deref() {
        None if weights.get("group_size").is_none() => "tensor",
        None if group_size.is_none() => "channel",
        None => "group",
        Some(strategy) => strategy,
    };
    let bits = weights.size("num_bits")?.unwrap_or(8);
    if packed {
        if floats || ![4, 8].contains(&bits) {
            return Err(weights.unsupported("num_bits", "integers of 4 or 8 bits"));
        }
        let group_size = match (strategy, group_size) {
            ("channel", None) => None,
            ("group", Some(size)) => Some(size),
            _ => return Err(weights.unsupported("strategy", "\"channel\" and \"group\"")),
        };
        return Ok(Quantization::Packed { bits, group_size, symmetric });
    }
    if bits != 8 {
        return Err(weights.unsupported("num_bits", "8 bits in this format"));
    }
    if !symmetric {
        return Err(weights.unsupported("symmetric", "true in this format"));
    }
    const BLOCK: &str = "block_structure";
    let scales = match strategy {
        "tensor" => ScaleSharing::Matrix,
        "channel" => ScaleSharing::Outputs,
        "block" => match weights.sizes(BLOCK)? {
            Some(sizes) => ScaleSharing::Blocks(block(weights, BLOCK, &sizes)?),
            None => return Err(weights.missing(BLOCK, "the size of a block")),
        },
        _ => {
            return Err(weights.unsupported("strategy", "\"tensor\", \"channel\" and \"block\""));
        }
    };
    Ok(Quantization::Bytes { floats, scales })
}

fn read_awq(options: &JsonOptions<'_>) -> Result<Quantization, LoadError> {
    options.check_supported("bits", "4", |bits| *bits == 4)?;
    options.check_supported("zero_point", "true", |flag| *flag == true)?;
    // The name of the layout in AutoAWQ, transformers and GPTQModel.
    for option in ["version", "format", "checkpoint_format"] {
        require(options, option, "\"gemm\"", &["gemm"])?;
    }
    Ok(Quantization::Awq { group_size: group_size(options)? })
}

fn read_gptq(options: &JsonOptions<'_>) -> Result<Quantization, LoadError> {
    const BITS: &str = "4 or 8";
    let bits = options.required_size("bits")?;
    if ![4, 8].contains(&bits) {
        return Err(options.unsupported("bits", BITS));
    }
    let mut zeros_less_one = true;
    for option in ["checkpoint_format", "format"] {
        require(options, option, "\"gptq\" and \"gptq_v2\"", &["gptq", "gptq_v2"])?;
        zeros_less_one &= options.string(option)?.is_none_or(|format| format != "gptq_v2");
    }
    options.check_supported("pack_dtype", "\"int32\"", |value| value == "int32")?;
    no_other(options, &["is_marlin_format", "rotation", "adapter"])?;
    // Rules with a minus leave matrices as they are; others give them another format.
    options.check_supported("dynamic", "rules that begin with \"-:\"", |rules| {
        let names = |rules: &serde_json::Map<String, Value>| {
            rules.keys().all(|name| name.starts_with("-:"))
        };
        *rules == false || rules.as_object().is_some_and(names)
    })?;
    Ok(Quantization::Gptq {
        bits,
        group_size: group_size(options)?,
        zeros_less_one,
        ordered_by_activation: options.flag("desc_act")?.unwrap_or(false),
    })
}

/// Fails if a text is present and, in lower case, none of these.
fn require(
    options: &JsonOptions<'_>,
    option: &'static str,
    supported: &'static str,
    values: &[&str],
) -> Result<(), LoadError> {
    options.check_supported(option, supported, |value| {
        value.as_str().is_some_and(|text| values.contains(&text.to_ascii_lowercase().as_str()))
    })
}

/// Fails if one of these options is present and not empty or `false`.
fn no_other(options: &JsonOptions<'_>, names: &[&'static str]) -> Result<(), LoadError> {
    names.iter().try_for_each(|&option| {
        options.check_supported(option, "none", |value| match value {
            Value::Bool(flag) => !flag,
            Value::Object(values) => values.is_empty(),
            Value::Array(values) => values.is_empty(),
            _ => false,
        })
    })
}

/// Reads the number of inputs that share a scale; −1 means all.
fn group_size(options: &JsonOptions<'_>) -> Result<Option<usize>, LoadError> {
    const OPTION: &str = "group_size";
    match options.get(OPTION).and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        Some(size) if (1..=MAX_SIZE as i64).contains(&size) => Ok(Some(size as usize)),
        _ if options.get(OPTION).is_none() => Err(options.missing(OPTION, "a size, or -1")),
        _ => {
            let expected = format!("a size from 1 to {MAX_SIZE}, or -1");
            Err(options.invalid(OPTION, &options.displayed(OPTION), &expected))
        }
    }
}

/// Checks the size of a block, `[outputs, inputs]`.
fn block(
    options: &JsonOptions<'_>,
    option: &'static str,
    sizes: &[usize],
) -> Result<[usize; 2], LoadError> {
    match *sizes {
        [rows, columns] if [rows, columns].iter().all(|size| (1..=MAX_SIZE).contains(size)) => {
            Ok([rows, columns])
        }
        _ => {
            let expected = format!("two sizes from 1 to {MAX_SIZE}");
            Err(options.invalid(option, &options.displayed(option), &expected))
        }
    }
}

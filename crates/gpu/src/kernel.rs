//! The kernels: their sources, and the buffers that they read and write.

use crate::tensor_tiles::TensorTiles;
use forerun_formats::{BlockType, CacheType, WeightType};

/// The widest head of attention: the compressed keys of DeepSeek.
pub(crate) const MAX_HEAD_DIM: usize = 576;

/// The largest number of positions that a convolution reads.
pub(crate) const MAX_CONVOLUTION: usize = 8;

/// The widest key head of a recurrent mixer.
pub(crate) const MAX_KEY_DIM: usize = 256;

/// The threads that compute an output of a product together.
const TEAM_THREADS: u32 = 32;

/// Teams that share inputs have so many pieces of 256 inputs at once, or what they read at once if
/// that is more.
const SHARED_PIECES: u32 = 8;

/// Teams in the workgroup of experts, and of a product that does not share inputs.
pub(crate) const TEAMS: u32 = 2;

/// Teams in the workgroup of a product that shares inputs.
const SHARING_TEAMS: u32 = MAX_WORKGROUP / TEAM_THREADS;

/// Outputs of experts that a team of threads computes.
pub(crate) const EXPERT_OUTPUTS: u32 = 2;

/// The largest number of rows that a workgroup of a product computes.
const MAX_TILE_ROWS: u32 = 16;

/// The candidates from which a workgroup selects the best.
pub(crate) const BEST_SLICE: u32 = 4096;

/// The largest number of experts of a layer.
pub(crate) const MAX_EXPERTS: usize = 512;

/// Shapes of products that suit a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductShapes {
    /// Small kernels, which compile fast: for drivers that compute on the processor.
    Simple,
    /// With 16 KiB of shared memory, which all GPUs have.
    Usual,
    /// With 32 KiB of shared memory.
    Large,
    /// For tensor cores.
    Tensor,
}

/// A shader for one step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    /// Embeddings of tokens, from a matrix of this type.
    Embed(WeightType),
    /// Norms of rows.
    Norm,
    /// A product with a matrix.
    Linear {
        /// The type of the matrix.
        weights: WeightType,
        /// The number of rows that a workgroup computes.
        rows: u32,
        /// The number of outputs that a team of threads computes.
        outputs: u32,
        /// The number of weights of each output that a thread reads at once, in eighths.
        depth: u32,
        /// The number of teams in a workgroup.
        teams: u32,
        /// Whether the teams of a workgroup read inputs together, to shared memory.
        shares_inputs: bool,
    },
    /// The same on tensor cores.
    TensorLinear {
        /// The type of the matrix.
        weights: WeightType,
        /// What a warp computes.
        tiles: TensorTiles,
        /// Whether the inputs are bf16: see [`Kernel::Round`].
        has_rounded_inputs: bool,
    },
    /// Inputs of products on tensor cores as bf16. The product rounds equally, but its blocks read
    /// more.
    Round,
    /// Norms, limits and rotations of heads, and writes to the cache.
    Heads(CacheType),
    /// The parts of queries of compressed keys.
    LatentQuery,
    /// The cached row of compressed keys and values.
    LatentKey(CacheType),
    /// The convolution of a recurrent mixer, over this number of positions.
    Convolve {
        /// The number of positions, including the row's own.
        kernel: u32,
    },
    /// The convolution over the rows of a block.
    ConvolveBlock,
    /// Divisions of queries and keys of a recurrent mixer by their lengths.
    Lengths,
    /// The recurrence of a mixer, with key heads of this width.
    Recur {
        /// The width of key heads.
        key_dim: u32,
    },
    /// The norm and the gate of a recurrent mixer.
    Finish,
    /// Attention over splits of a row's path.
    Attention {
        /// The type of keys and values.
        cache: CacheType,
        /// Whether keys are read 16 bytes at a time. Heads whose size is not a multiple of that are
        /// read by words.
        has_wide_reads: bool,
    },
    /// Attention over splits on tensor cores, for caches of 16 bits whose heads are multiples of
    /// [`HEAD_MULTIPLE`](crate::tensor_tiles::HEAD_MULTIPLE).
    TensorAttention(CacheType),
    /// The sum over splits.
    Combine,
    /// The inputs of layers next to the hidden state.
    OwnInput,
    /// The product with a number.
    Scale,
    /// The activation function of an MLP.
    Activation,
    /// The choice of experts.
    Route,
    /// Rows by experts.
    Tiles,
    /// Products with chosen experts.
    Experts {
        /// The type of the matrices.
        weights: WeightType,
        /// The number of choices that a workgroup computes.
        rows: u32,
    },
    /// The weighted sum of experts.
    Mix,
    /// The product with a sigmoid.
    Gate,
    /// The sum of two buffers.
    Add,
    /// The divisor and the limit of logits.
    Logits,
    /// The best tokens of rows of logits.
    Best,
    /// Copies of rows of the cache.
    CopyRows,
    /// What the driver does with sums and products.
    Probe,
    /// Reads of memory.
    Read,
}

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Columns of a state that a workgroup computes.
pub(crate) const RECUR_COLUMNS: u32 = 32;

/// The largest workgroup of a kernel, in threads. All GPUs that support WebGPU have it.
pub(crate) const MAX_WORKGROUP: u32 = 256;

impl Kernel {
    /// Returns whether its source is in CUDA C, and not in WGSL.
    pub(crate) fn is_cuda_c(self) -> bool {
        matches!(self, Self::TensorLinear { .. } | Self::Round | Self::TensorAttention(_))
    }

    pub(crate) fn workgroup(self) -> u32 {
        match self {
            Self::Norm
            | Self::TensorLinear { .. }
            | Self::TensorAttention(_)
            | Self::Attention { .. }
            | Self::LatentKey(_)
            | Self::Lengths
            | Self::Finish
            | Self::OwnInput
            | Self::Best => MAX_WORKGROUP,
            Self::Recur { .. } => RECUR_COLUMNS,
            Self::Linear { teams, .. } => TEAM_THREADS * teams,
            _ => 64,
        }
    }

    /// Returns how the kernel uses its buffers, in the order of their bindings.
    pub(crate) fn accesses(self) -> &'static [Access] {
        use Access::{Read, Write};
        match self {
            Self::Embed(_) | Self::Linear { .. } | Self::TensorLinear { .. } | Self::Combine => {
                &[Read, Read, Read, Write]
            }
            Self::Norm | Self::ConvolveBlock => &[Read, Read, Read, Read, Write],
            Self::LatentQuery => &[Read, Read, Write, Write],
            Self::LatentKey(_) => &[Read, Read, Read, Read, Write, Write],
            Self::Convolve { .. } => &[Read, Read, Read, Read, Write, Write],
            Self::Lengths => &[Write],
            Self::Recur { .. } => &[Read, Read, Read, Read, Write, Write],
            Self::Finish => &[Read, Read, Read, Write],
            Self::Heads(_) => &[Read, Read, Read, Read, Write, Write, Write, Write],
            Self::Attention { .. } | Self::TensorAttention(_) => {
                &[Read, Read, Read, Read, Read, Write]
            }
            Self::Route | Self::Mix => &[Read, Read, Write],
            Self::Round => &[Read, Write],
            Self::Tiles => &[Read, Write, Write, Write],
            Self::Experts { .. } => &[Read, Read, Read, Read, Read, Write],
            Self::Activation | Self::OwnInput => &[Read, Read, Write],
            Self::Add | Self::Gate | Self::Best | Self::CopyRows | Self::Probe | Self::Read => {
                &[Read, Write]
            }
            Self::Logits | Self::Scale => &[Write],
        }
    }

    /// Returns the product with a matrix for a pass of so many rows. Its bits do not depend on the
    /// number of rows, which was measured on an H100 for other shapes than those of tensor cores.
    pub(crate) fn linear(
        weights: WeightType,
        [rows, outputs]: [u32; 2],
        shapes: ProductShapes,
    ) -> Self {
        if shapes == ProductShapes::Tensor && weights != WeightType::F32 {
            let tiles = TensorTiles::new(rows, outputs);
            return Self::TensorLinear { weights, tiles, has_rounded_inputs: false };
        }
        let is_large = matches!(shapes, ProductShapes::Large | ProductShapes::Tensor);
        let most = if is_large { MAX_TILE_ROWS } else { MAX_TILE_ROWS / 2 };
        let tile = rows.next_power_of_two().min(most);
        let is_quantized = matches!(weights, WeightType::Quantized(_));
        let ([outputs, depth, teams], shares_inputs) = match tile {
            _ if shapes == ProductShapes::Simple => ([1, 1, TEAMS], false),
            1 | 2 => ([if is_quantized { 2 } else { 1 }, 2, SHARING_TEAMS], true),
            // Several tiles of rows, or a large one.
            _ if rows > tile || tile == MAX_TILE_ROWS => ([4, 1, SHARING_TEAMS], true),
            _ if is_quantized => ([2, 1, SHARING_TEAMS], true),
            // Four or eight rows of weights that are cheap to unpack.
            _ => ([2, tile / 4, TEAMS], false),
        };
        Self::Linear { weights, rows: tile, outputs, depth, teams, shares_inputs }
    }

    /// Returns the same product on tensor cores with inputs that are bf16.
    pub(crate) fn with_rounded_inputs(self) -> Self {
        match self {
            Self::TensorLinear { weights, tiles, .. } => {
                Self::TensorLinear { weights, tiles, has_rounded_inputs: true }
            }
            other => other,
        }
    }

    /// Returns the complete WGSL source, or that in CUDA C for tensor cores.
    pub(crate) fn source(self) -> String {
        let lowest = || format!("const LOWEST: f32 = {:e}f;\n", f32::MIN);
        let experts = || format!("const MAX_EXPERTS: u32 = {MAX_EXPERTS}u;\n");
        let tile = |rows, outputs, teams| {
            format!(
                "const ROWS: u32 = {rows}u;\nconst OUTPUTS: u32 = {outputs}u;\nconst TEAMS: u32 = {teams}u;\n"
            )
        };
        let head_dim = || format!("const MAX_HEAD_DIM: u32 = {MAX_HEAD_DIM}u;\n");
        let constants = match self {
            Self::Linear { rows, outputs, depth, teams, shares_inputs, .. } => {
                let chunk = (SHARED_PIECES / rows).max(depth);
                debug_assert!(chunk.is_multiple_of(depth), "a read does not cross chunks");
                // As many as the workgroup with the fewest teams and the most rows: so shared
                // memory suffices.
                let summed_rows = rows.min(MAX_TILE_ROWS * TEAMS / teams);
                debug_assert!(rows.is_multiple_of(summed_rows), "all rows are added up");
                tile(rows, outputs, teams)
                    + &format!("const PARTIAL_ROWS: u32 = {summed_rows}u;\n")
                    + &format!("const THREADS: u32 = {}u;\n", self.workgroup())
                    + &format!("const DEPTH: u32 = {depth}u;\nconst CHUNK: u32 = {chunk}u;\n")
                    + &format!("const SHARES_INPUTS: bool = {shares_inputs};\n")
            }
            Self::Experts { rows, .. } => {
                tile(rows, EXPERT_OUTPUTS, TEAMS) + &format!("const PARTIAL_ROWS: u32 = {rows}u;\n")
            }
            Self::TensorLinear { tiles, has_rounded_inputs, .. } => {
                let TensorTiles { outputs, rows, spreads_parts } = tiles;
                let inputs = if has_rounded_inputs { "U2" } else { "F4" };
                format!("typedef {inputs} X;\n")
                    + &format!("constexpr u32 OUTPUT_TILES = {outputs}, ROW_TILES = {rows};\n")
                    + &format!("constexpr bool SPREADS_PARTS = {spreads_parts};\n")
            }
            Self::Heads(_) | Self::LatentKey(_) => head_dim(),
            Self::Convolve { kernel } => format!("const KERNEL: u32 = {kernel}u;\n"),
            Self::Recur { key_dim } => {
                format!("const KEY_DIM: u32 = {key_dim}u;\n")
            }
            Self::Attention { .. } => lowest() + &head_dim(),
            Self::Combine => lowest(),
            Self::Route => lowest() + &experts(),
            Self::Tiles => experts(),
            Self::Best => format!("const SLICE: u32 = {BEST_SLICE}u;\n"),
            _ => String::new(),
        };
        [constants].into_iter().chain(self.parts().into_iter().map(str::to_owned)).collect()
    }

    fn parts(self) -> Vec<&'static str> {
        const NUMBERS: &str = include_str!("shaders/numbers.wgsl");
        const HALVES: &str = include_str!("shaders/halves.wgsl");
        const HALVES_CU: &str = include_str!("shaders/halves.cu");
        const BYTES: &str = include_str!("shaders/bytes.wgsl");
        const ROW: &str = include_str!("shaders/row.wgsl");
        const PRODUCT: &str = include_str!("shaders/product.wgsl");
        const ROTATED: &str = include_str!("shaders/rotated.wgsl");
        const STATES: &str = include_str!("shaders/states.wgsl");
        const TREE_SUM: &str = include_str!("shaders/tree_sum.wgsl");
        const WORD: &str = include_str!("shaders/word.wgsl");
        match self {
            Self::Embed(weights) => {
                let embed = include_str!("shaders/embed.wgsl");
                vec![HALVES, BYTES, ROW, weight_part(weights), embed]
            }
            Self::Norm => vec![NUMBERS, ROW, TREE_SUM, include_str!("shaders/norm.wgsl")],
            Self::LatentQuery => vec![ROTATED, include_str!("shaders/latent_query.wgsl")],
            Self::LatentKey(cache) => {
                let latent_key = include_str!("shaders/latent_key.wgsl");
                let [unpack, pack] = cache_parts(cache);
                vec![NUMBERS, HALVES, ROW, TREE_SUM, ROTATED, WORD, unpack, latent_key, pack]
            }
            Self::Convolve { .. } => {
                vec![NUMBERS, STATES, include_str!("shaders/convolve.wgsl")]
            }
            Self::ConvolveBlock => vec![ROW, include_str!("shaders/convolve_block.wgsl")],
            Self::Lengths => vec![NUMBERS, TREE_SUM, include_str!("shaders/lengths.wgsl")],
            Self::Recur { .. } => vec![NUMBERS, STATES, include_str!("shaders/recur.wgsl")],
            Self::Finish => vec![NUMBERS, TREE_SUM, include_str!("shaders/finish.wgsl")],
            Self::Linear { weights, .. } => {
                let linear = include_str!("shaders/linear.wgsl");
                vec![HALVES, BYTES, PRODUCT, weight_part(weights), linear]
            }
            Self::TensorLinear { weights, .. } => {
                let linear = include_str!("shaders/linear.cu");
                vec![
                    HALVES_CU,
                    include_str!("shaders/levels.cu"),
                    tensor_weight_part(weights),
                    linear,
                ]
            }
            Self::TensorAttention(cache) => {
                let cache = match cache {
                    CacheType::F16 => include_str!("shaders/cache_f16.cu"),
                    CacheType::Bf16 => include_str!("shaders/cache_bf16.cu"),
                    CacheType::F32 | CacheType::Q8 | CacheType::Q4 => {
                        unreachable!("not for tensor cores")
                    }
                };
                vec![HALVES_CU, cache, include_str!("shaders/attention.cu")]
            }
            Self::Round => vec![include_str!("shaders/round.cu")],
            Self::Route => vec![NUMBERS, include_str!("shaders/route.wgsl")],
            Self::Tiles => vec![include_str!("shaders/tiles.wgsl")],
            Self::Experts { weights, .. } => {
                let experts = include_str!("shaders/experts.wgsl");
                vec![HALVES, BYTES, PRODUCT, weight_part(weights), experts]
            }
            Self::Mix => vec![include_str!("shaders/mix.wgsl")],
            Self::Gate => vec![NUMBERS, include_str!("shaders/gate.wgsl")],
            Self::Heads(cache) => {
                let heads = include_str!("shaders/heads.wgsl");
                let [unpack, pack] = cache_parts(cache);
                vec![NUMBERS, HALVES, ROW, WORD, unpack, heads, pack]
            }
            Self::Attention { cache, has_wide_reads } => {
                let [unpack, _] = cache_parts(cache);
                let words = match has_wide_reads {
                    true => include_str!("shaders/wide_reads.wgsl"),
                    false => include_str!("shaders/narrow_reads.wgsl"),
                };
                vec![NUMBERS, HALVES, ROW, unpack, words, include_str!("shaders/attention.wgsl")]
            }
            Self::Combine => vec![NUMBERS, ROW, include_str!("shaders/combine.wgsl")],
            Self::OwnInput => vec![NUMBERS, TREE_SUM, include_str!("shaders/own_input.wgsl")],
            Self::Scale => vec![include_str!("shaders/scale.wgsl")],
            Self::Activation => vec![NUMBERS, include_str!("shaders/activation.wgsl")],
            Self::Add => vec![include_str!("shaders/add.wgsl")],
            Self::Logits => vec![NUMBERS, include_str!("shaders/logits.wgsl")],
            Self::Best => vec![include_str!("shaders/best.wgsl")],
            Self::CopyRows => vec![include_str!("shaders/copy_rows.wgsl")],
            Self::Probe => vec![NUMBERS, HALVES, include_str!("shaders/probe.wgsl")],
            Self::Read => vec![include_str!("shaders/read.wgsl")],
        }
    }
}

/// The types of matrices that kernels read. Others are refused when a model is loaded.
pub(crate) const WEIGHT_TYPES: [WeightType; 6] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
];

/// Returns how the weights of a matrix of one of [`WEIGHT_TYPES`] are read.
fn weight_part(weights: WeightType) -> &'static str {
    match weights {
        WeightType::F32 => include_str!("shaders/weights_f32.wgsl"),
        WeightType::Bf16 => include_str!("shaders/weights_bf16.wgsl"),
        WeightType::F16 => include_str!("shaders/weights_f16.wgsl"),
        WeightType::Quantized(BlockType::Q8_0) => include_str!("shaders/weights_q8_0.wgsl"),
        WeightType::Quantized(BlockType::Q4_K) => include_str!("shaders/weights_q4_k.wgsl"),
        WeightType::Quantized(BlockType::Q6_K) => include_str!("shaders/weights_q6_k.wgsl"),
        WeightType::Quantized(_) => unreachable!("refused when the model was loaded"),
    }
}

/// Returns how the weights of a matrix are read for tensor cores.
fn tensor_weight_part(weights: WeightType) -> &'static str {
    match weights {
        WeightType::Bf16 => include_str!("shaders/weights_bf16.cu"),
        WeightType::F16 => include_str!("shaders/weights_f16.cu"),
        WeightType::Quantized(BlockType::Q8_0) => include_str!("shaders/weights_q8_0.cu"),
        WeightType::Quantized(BlockType::Q4_K) => include_str!("shaders/weights_q4_k.cu"),
        WeightType::Quantized(BlockType::Q6_K) => include_str!("shaders/weights_q6_k.cu"),
        _ => unreachable!("not multiplied by tensor cores"),
    }
}

/// Returns how numbers of the cache are read, and how they are written.
fn cache_parts(cache: CacheType) -> [&'static str; 2] {
    match cache {
        CacheType::F32 => {
            [include_str!("shaders/cache_f32.wgsl"), include_str!("shaders/pack_f32.wgsl")]
        }
        CacheType::F16 => {
            [include_str!("shaders/cache_f16.wgsl"), include_str!("shaders/pack_f16.wgsl")]
        }
        CacheType::Bf16 => {
            [include_str!("shaders/cache_bf16.wgsl"), include_str!("shaders/pack_bf16.wgsl")]
        }
        CacheType::Q8 | CacheType::Q4 => unreachable!("refused when the model was loaded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn all() -> Vec<Kernel> {
        use Kernel as K;
        let weights = WEIGHT_TYPES;
        let caches = [CacheType::F32, CacheType::F16, CacheType::Bf16];
        let linear = weights.into_iter().flat_map(|weights| {
            let all = [1, 2, 4, 8, 16].into_iter();
            all.flat_map(move |rows| {
                let linear = [1, 4].map(|outputs| K::Linear {
                    weights,
                    rows,
                    outputs,
                    depth: 4,
                    teams: outputs,
                    shares_inputs: outputs == 4,
                });
                linear.into_iter().chain([K::Experts { weights, rows }])
            })
        });
        let others = [K::Norm, K::Combine, K::Activation, K::Add, K::Logits, K::CopyRows, K::Probe];
        let others =
            others.into_iter().chain([K::Route, K::Tiles, K::Mix, K::Gate, K::Read, K::Best]);
        let mixers = [K::LatentQuery, K::Lengths, K::Finish, K::OwnInput, K::Scale].into_iter();
        let mixers = mixers.chain([K::ConvolveBlock]);
        let mixers = mixers.chain([2, 4].map(|kernel| K::Convolve { kernel }));
        let mixers = mixers.chain([5, 128].map(|key_dim| K::Recur { key_dim }));
        let others = others.chain(mixers);
        let of_caches = caches.into_iter();
        let of_caches = of_caches.flat_map(|cache| {
            let attention =
                [false, true].map(|has_wide_reads| K::Attention { cache, has_wide_reads });
            attention.into_iter().chain([K::Heads(cache), K::LatentKey(cache)])
        });
        let embed = weights.into_iter().map(K::Embed);
        linear.chain(others).chain(of_caches).chain(embed).collect()
    }

    #[test]
    fn every_kernel_compiles_and_uses_the_bindings_that_it_declares() {
        for kernel in all() {
            let source = kernel.source();
            #[cfg(not(target_vendor = "apple"))]
            assert!(crate::spirv::compile(&source).len() > 100, "{kernel:?}");
            for (binding, access) in kernel.accesses().iter().enumerate() {
                let mode = match access {
                    Access::Read => "read",
                    Access::Write => "read_write",
                };
                let declaration = format!("@binding({binding}) var<storage, {mode}>");
                assert!(source.contains(&declaration), "{kernel:?}: {declaration}");
            }
            let count = source.matches("@binding(").count();
            assert_eq!(count, kernel.accesses().len(), "{kernel:?}");
            let threads = kernel.workgroup();
            let is_declared = source.contains(&format!("@workgroup_size({threads})"))
                || source.contains(&format!("const THREADS: u32 = {threads}u;"));
            assert!(is_declared, "{kernel:?}: {threads} threads");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn every_kernel_is_translated_to_cuda() {
        for kernel in all() {
            let translation = match forerun_cuda::translate(&kernel.source()) {
                Ok(translation) => translation,
                Err(error) => panic!("{kernel:?}: {error}"),
            };
            let accesses = kernel.accesses().iter().enumerate();
            let expected = accesses.map(|(index, access)| (index as u32, *access == Access::Write));
            let mut bindings = translation.bindings.clone();
            bindings.sort_unstable();
            assert_eq!(bindings, expected.collect::<Vec<_>>(), "{kernel:?}");
            assert_eq!(translation.threads, kernel.workgroup(), "{kernel:?}");
        }
    }

    /// The compute capabilities for which all kernels are compiled, as far as NVRTC knows them:
    /// A100, H100, B200, RTX 50.
    #[cfg(feature = "cuda")]
    const CAPABILITIES: [u32; 4] = [80, 90, 100, 120];
    /// The number of kernels that are compiled for them, unless it is given.
    #[cfg(feature = "cuda")]
    const SAMPLED_KERNELS: u32 = 10;

    #[cfg(feature = "cuda")]
    fn cuda_source(kernel: Kernel) -> String {
        use forerun_cuda::{Translation, translate};
        let translation = match kernel.is_cuda_c() {
            true => {
                Ok(Translation::of_cuda_c(&kernel.source(), kernel.workgroup()).expect("a kernel"))
            }
            false => translate(&kernel.source()),
        };
        translation.unwrap_or_else(|error| panic!("{kernel:?}: {error}")).cuda_source()
    }

    /// PTX has no operation on floats that its compiler may contract, and no array of a thread's
    /// own in memory. Machine code is made of it. `FORERUN_CASES` kernels are compiled, evenly
    /// chosen, or a few.
    #[cfg(feature = "cuda")]
    #[test]
    fn every_kernel_compiles_with_nvrtc_without_contraction_and_local_memory() {
        use crate::tensor_tiles::LEAST_ROUNDED_ROWS;
        use forerun_core::testing::cases;
        use forerun_cuda::{Nvrtc, Output};
        use std::sync::{Mutex, PoisonError};
        let nvrtc = match Nvrtc::load(None) {
            Ok(nvrtc) => nvrtc,
            Err(error) => return println!("skipped: {error}"),
        };
        let known = nvrtc.capabilities().unwrap_or_default();
        let compile = |kernel: Kernel, source: &str, output| match nvrtc.compile(source, output) {
            Ok(code) => code,
            Err(error) => panic!("{kernel:?}, {output:?}: {error}"),
        };
        let may_change = |kernel: Kernel, operation: &str| {
            let is_arithmetic = ["add.", "sub.", "mul.", "div.", "sqrt.", "mad.", "fma."];
            let is_rounded = operation.contains(".rn.") && !operation.contains(".ftz");
            let may_fuse = kernel == Kernel::Probe || kernel.is_cuda_c();
            let is_fused = operation.starts_with("fma") && !may_fuse;
            is_arithmetic.iter().any(|name| operation.starts_with(name))
                && (!is_rounded || is_fused)
        };
        let in_memory = Mutex::new(Vec::new());
        let check = |kernel: Kernel| {
            let source = cuda_source(kernel);
            for capability in CAPABILITIES.into_iter().filter(|own| known.contains(own)) {
                let ptx = compile(kernel, &source, Output::Ptx(capability));
                let ptx = String::from_utf8_lossy(&ptx);
                let operations = ptx.split_whitespace().filter(|word| word.ends_with(".f32"));
                let changing: Vec<_> =
                    operations.filter(|operation| may_change(kernel, operation)).collect();
                assert!(changing.is_empty(), "{kernel:?}, {capability}: {changing:?}");
                let arrays = ptx.lines().filter(|line| line.trim_start().starts_with(".local "));
                let arrays = arrays.map(|array| format!("{kernel:?}, {capability}: {array}"));
                in_memory.lock().unwrap_or_else(PoisonError::into_inner).extend(arrays);
                let code = compile(kernel, &source, Output::Cubin(capability));
                assert!(code.starts_with(b"\x7fELF"), "{kernel:?}");
            }
        };
        // Products in the shapes that passes use. Those of `all` may have more shared memory than a
        // GPU.
        let mut kernels = all();
        kernels.retain(|kernel| !matches!(kernel, Kernel::Linear { .. }));
        let of_attention = [CacheType::F16, CacheType::Bf16].map(Kernel::TensorAttention);
        kernels.extend([Kernel::Round].into_iter().chain(of_attention));
        for weights in WEIGHT_TYPES {
            use ProductShapes::{Large, Simple, Tensor, Usual};
            for shapes in [Simple, Usual, Large, Tensor] {
                for rows in [1, 2, 4, 8, 16, 32, 64, 65] {
                    let linear = Kernel::linear(weights, [rows, 64], shapes);
                    let is_rounded = rows >= LEAST_ROUNDED_ROWS;
                    let linear = if is_rounded { linear.with_rounded_inputs() } else { linear };
                    if !kernels.contains(&linear) {
                        kernels.push(linear);
                    }
                }
            }
        }
        let compiled = cases(SAMPLED_KERNELS).max(1) as usize;
        let step = (kernels.len() / compiled).max(1);
        let kernels: Vec<Kernel> = kernels.into_iter().step_by(step).collect();
        let halves = kernels.split_at(kernels.len() / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| halves.0.iter().copied().for_each(check));
            halves.1.iter().copied().for_each(check);
        });
        let in_memory = in_memory.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!("{} arrays in local memory", in_memory.len());
        assert!(in_memory.is_empty(), "{}", in_memory.join("\n"));
        let [major, minor] = nvrtc.version();
        println!("{} kernels with NVRTC {major}.{minor} for {known:?}", kernels.len());
    }
}

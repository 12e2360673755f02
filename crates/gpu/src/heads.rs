//! Draft heads on a GPU: those of Medusa and of Hydra. See [`DraftHeads`] for what they compute.

use crate::best::{ChunkLogits, OutputRows, Selection};
use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::kernel::Kernel;
use crate::layer_plan::{self, PASS_BYTES};
use crate::matrix::{GpuMatrix, MatrixSource, row_bytes};
use crate::model::{GpuModel, outputs_at_once};
use crate::pacer::Pacer;
use crate::parameters::{self, groups_of_elements};
use crate::product::{ProductRows, Store};
use crate::recorder::{BoundBuffers, Recorder, Submitted};
use crate::rows::Row;
use crate::scratch::GrowingBuffer;
use crate::support;
use crate::weights::{GpuWeights, types_of};
use bytemuck::Zeroable;
use forerun_core::BestTokens;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    Activation, DraftHeads, FeatureSource, HeadTensor, LoadError, MatrixTypes, ModelTypes,
    TensorSource, WeightType,
};
use forerun_model::{ForwardHeads, HeadOutput, HeadRow, HeadsModel, PassError};
use std::ops::Range;
use std::sync::Arc;
use wgpu::Buffer;

/// The weights of draft heads on a GPU, with those of their prefix layer.
pub struct GpuHeadWeights {
    architecture: DraftHeads,
    heads: Vec<Head>,
    embedding: Arc<GpuMatrix>,
    /// The divisor and the limit of the logits of the target's head, for heads that use it.
    divisor: f32,
    cap: Option<f32>,
    prefix: Option<Arc<GpuWeights>>,
    /// Bound where a kernel does not use a buffer that it reads.
    unused: Buffer,
    /// Dropped after the buffers.
    device: Arc<GpuDevice>,
}

struct Head {
    /// The residual connection, and the layer on the state and tokens.
    first: Option<[GpuMatrix; 2]>, // [hidden, inputs]
    layers: Vec<GpuMatrix>, // [hidden, hidden]
    matrix: Arc<GpuMatrix>, // [outputs, hidden]
}

impl GpuHeadWeights {
    /// Uploads heads to the GPU of their target, whose embedding and head they may share.
    ///
    /// # Errors
    /// [`GpuLoadError::Unsupported`] if a matrix has a type or a size that GPUs do not compute yet,
    /// [`GpuLoadError::Failure`], or [`GpuLoadError::Load`] if a tensor is missing, or has the
    /// wrong type or shape, a value is not finite, or `target` lacks what they share.
    pub fn load(
        target: &GpuWeights,
        architecture: DraftHeads,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let (device, types) = (target.device(), types.into());
        let matrix_types = MatrixTypes::of_heads(types.weights, &architecture, source)?;
        let matrix = |head, part: HeadTensor| {
            let (tensor, shape) = (Tensor::DraftHead(head, part), architecture.shape(head, part));
            let weight_type = matrix_types.of(tensor);
            if let Some(piece) = support::unsupported_matrix(tensor, weight_type, shape[1]) {
                return Err(GpuLoadError::Unsupported { piece });
            }
            let bias = Tensor::DraftHead(head, part.bias());
            let bias = match source.has(bias) {
                true => source.rows(bias, &shape[..1])?.read_all()?,
                false => Vec::new(),
            };
            let rows = source.rows(tensor, &shape)?;
            let sources = [MatrixSource { rows, weight_type, bias }];
            GpuMatrix::upload(device, &tensor.to_string(), &sources)
        };
        let shared = match &architecture.head_tokens {
            _ if architecture.own_matrices => None,
            None => Some(target.shared_head()?),
            Some(tokens) => Some(Arc::new(target.shared_head()?.select(device, tokens)?)),
        };
        let load_head = |head| {
            let first = || {
                let [residual, first] = [HeadTensor::FirstResidual, HeadTensor::First];
                Ok::<_, GpuLoadError>([matrix(head, residual)?, matrix(head, first)?])
            };
            let layers =
                (0..architecture.n_layers).map(|layer| matrix(head, HeadTensor::Layer(layer)));
            Ok(Head {
                first: architecture.reads_tokens.then(first).transpose()?,
                layers: layers.collect::<Result<_, GpuLoadError>>()?,
                matrix: match &shared {
                    None => Arc::new(matrix(head, HeadTensor::Matrix)?),
                    Some(shared) => Arc::clone(shared),
                },
            })
        };
        let heads = (0..architecture.n_heads).map(load_head);
        let heads = heads.collect::<Result<_, GpuLoadError>>()?;
        let prefix = architecture
            .prefix
            .clone()
            .map(|layer| GpuWeights::load_drafter(target, layer, source, types).map(Arc::new));
        let (divisor, cap) = architecture.logit_divisor_and_cap(target.architecture());
        Ok(Self {
            heads,
            embedding: match architecture.reads_tokens {
                true => target.shared_embedding()?,
                false => Arc::clone(&target.embedding),
            },
            divisor,
            cap,
            prefix: prefix.transpose()?,
            unused: device.allocate("an unused buffer", 0)?,
            device: Arc::clone(device),
            architecture,
        })
    }

    /// Returns the memory in bytes that heads need on a GPU, without what they share with their
    /// target: their weights, and the buffers of passes.
    ///
    /// # Errors
    /// If a tensor is missing, or has the wrong type.
    pub fn needed_memory(
        architecture: &DraftHeads,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<u64, LoadError> {
        let types = types.into();
        let matrix_types = MatrixTypes::of_heads(types.weights, architecture, source)?;
        let of_heads = architecture.tensors().filter_map(|tensor| match tensor {
            Tensor::DraftHead(head, part) => {
                let shape = architecture.shape(head, part);
                // With a bias, which is optional.
                let row = row_bytes(matrix_types.of(tensor), shape[1]) + size_of::<f32>();
                Some((shape[0] * row) as u64)
            }
            _ => None,
        });
        // A part of the target's head is copied. Its type is the target's.
        let copied = match architecture.head_tokens.is_some() && !architecture.own_matrices {
            true => architecture.head_size() * row_bytes(WeightType::F32, architecture.hidden_size),
            false => 0,
        };
        let passes = match &architecture.prefix {
            None => PASS_BYTES,
            Some(layer) => {
                let (matrices, cache_type) = types_of(layer, source, types)?;
                layer_plan::needed_memory(layer, &matrices, cache_type)
            }
        };
        Ok(of_heads.sum::<u64>() + copied as u64 + passes)
    }

    /// Returns what the heads compute.
    #[must_use]
    pub fn architecture(&self) -> &DraftHeads {
        &self.architecture
    }

    /// Returns the largest number of bytes of a cache of the prefix layer, as
    /// [`GpuModel::max_cache_bytes`] does. There is no limit without such a layer.
    #[must_use]
    pub fn max_cache_bytes(&self) -> usize {
        let of_layer = |layer: &Arc<GpuWeights>| GpuModel::new(Arc::clone(layer)).max_cache_bytes();
        self.prefix.as_ref().map_or(usize::MAX, of_layer)
    }
}

/// Draft heads on a GPU.
pub struct GpuHeads {
    scratch: HeadScratch,
    bound: BoundBuffers,
    pacer: Pacer,
    staging: Option<Buffer>,
    logits: Vec<f32>,              // [whole rows, outputs]
    best: Vec<Option<BestTokens>>, // [rows]
    /// Dropped after the buffers.
    weights: Arc<GpuHeadWeights>,
}

#[derive(Default)]
struct HeadScratch {
    slots: GrowingBuffer,     // [rows, 1 + tokens]
    inputs: GrowingBuffer,    // [rows, 1 + tokens, hidden]
    states: GrowingBuffer,    // [rows, hidden]
    delta: GrowingBuffer,     // [rows, hidden]
    activated: GrowingBuffer, // [rows, hidden]
    logits: GrowingBuffer,    // [rows at once, outputs]
    best: GrowingBuffer,      // [selected tokens, 2], then candidates
}

/// Rows that the same head computes, which follow one another.
struct HeadRows {
    head: usize,
    rows: Range<u32>,
    /// The first number of their inputs.
    first_input: u32,
}

/// The rows of a pass, ordered by head.
#[derive(Default)]
struct SortedRows {
    by_head: Vec<HeadRows>,
    /// The number of each row in the request.
    order: Vec<usize>,
    /// What is read of the rows.
    output_rows: OutputRows,
    states: Vec<f32>, // [rows, hidden]
    /// The state and the tokens that a head reads first: a token of each part, and the parts
    /// themselves. The embeddings of tokens are zeros. Both are empty if heads read no tokens.
    slots: Vec<Row>,
    inputs: Vec<f32>, // [slots, hidden]
}

/// The token of a part of the input that is a state.
const NO_TOKEN: u32 = u32::MAX;

impl SortedRows {
    fn new(rows: &[HeadRow<'_>], heads: &DraftHeads) -> Self {
        let mut sorted = Self::default();
        let size = heads.hidden_size;
        for head in 0..heads.n_heads {
            let first = sorted.order.len() as u32;
            let first_input = sorted.inputs.len() as u32;
            for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.head == head) {
                sorted.order.push(index);
                let selection = Selection::of(row.rows_for, heads.head_size());
                sorted.output_rows.add(1, selection);
                sorted.states.extend_from_slice(row.state);
                if heads.reads_tokens {
                    let tokens = [NO_TOKEN].into_iter().chain(row.tokens.iter().copied());
                    let slots = tokens.map(|token| Row { token, ..Row::default() });
                    sorted.slots.extend(slots);
                    sorted.inputs.extend_from_slice(row.state);
                    sorted.inputs.resize(sorted.slots.len() * size, 0.0);
                }
            }
            let rows = first..sorted.order.len() as u32;
            if !rows.is_empty() {
                sorted.by_head.push(HeadRows { head, rows, first_input });
            }
        }
        sorted
    }
}

impl GpuHeads {
    /// Creates heads from their weights.
    #[must_use]
    pub fn new(weights: Arc<GpuHeadWeights>) -> Self {
        Self {
            scratch: HeadScratch::default(),
            bound: BoundBuffers::default(),
            pacer: Pacer::default(),
            staging: None,
            logits: Vec::new(),
            best: Vec::new(),
            weights,
        }
    }

    /// Creates the language model of heads, with their prefix layer if they have one.
    #[must_use]
    pub fn model(weights: Arc<GpuHeadWeights>) -> HeadsModel<Self, GpuModel> {
        let prefix = weights
            .prefix
            .as_ref()
            .map(|layer| GpuModel::new(Arc::clone(layer)).with_features(FeatureSource::LastHidden));
        HeadsModel::new(Self::new(weights), prefix)
    }

    /// Makes all buffers large enough for rows, and writes what heads read.
    fn write(&mut self, sorted: &SortedRows) -> Result<(), GpuFailure> {
        let Self { weights, scratch, bound, staging, .. } = self;
        let (device, head_size) = (&weights.device, weights.architecture.head_size());
        let states = size_of_val(&sorted.states[..]) as u64;
        let row_bytes = (head_size * size_of::<f32>()) as u64;
        let rows = sorted.order.len();
        let at_once = outputs_at_once(device, head_size).min(rows) as u64;
        let outputs = &sorted.output_rows;
        let selected = 8 * u64::from(outputs.selected());
        for (buffer, bytes) in [
            (&mut scratch.slots, size_of_val(&sorted.slots[..]) as u64),
            (&mut scratch.inputs, size_of_val(&sorted.inputs[..]) as u64),
            (&mut scratch.states, states),
            (&mut scratch.delta, states),
            (&mut scratch.activated, states),
            (&mut scratch.logits, at_once * row_bytes),
            (&mut scratch.best, selected + 8 * outputs.between()),
        ] {
            if buffer.reserve(device, bytes)? {
                bound.clear();
            }
        }
        let results = outputs.whole() as u64 * row_bytes + selected;
        if staging.as_ref().map_or(0, Buffer::size) < results {
            *staging = Some(device.allocate_staging("the results of draft heads", results)?);
        }
        device.write(scratch.slots.get(), 0, bytemuck::cast_slice(&sorted.slots));
        device.write(scratch.inputs.get(), 0, bytemuck::cast_slice(&sorted.inputs));
        device.write(scratch.states.get(), 0, bytemuck::cast_slice(&sorted.states));
        Ok(())
    }

    /// Records and submits all dispatches.
    fn run(&mut self, sorted: &SortedRows) -> Submitted {
        let Self { weights, scratch, bound, pacer, staging, .. } = self;
        let recorder = Recorder::new(&weights.device, bound, pacer);
        let mut run = HeadRun { weights, scratch, sorted, recorder };
        run.embed();
        run.layers();
        run.logits(staging.as_ref().expect("a staging buffer"));
        run.recorder.finish()
    }
}

impl ForwardHeads for GpuHeads {
    fn architecture(&self) -> &DraftHeads {
        &self.weights.architecture
    }

    fn forward(&mut self, rows: &[HeadRow<'_>]) -> Result<HeadOutput<'_>, PassError> {
        self.logits.clear();
        self.best.clear();
        if rows.is_empty() {
            return Ok(HeadOutput { logits: &[], best: &[] });
        }
        self.weights.device.check()?;
        let sorted = SortedRows::new(rows, &self.weights.architecture);
        self.write(&sorted)?;
        let Submitted { submission, work, since } = self.run(&sorted);
        let Self { weights, staging, logits, best, .. } = self;
        let staging = staging.as_ref().expect("a staging buffer");
        let row_bytes = weights.architecture.head_size() * size_of::<f32>();
        let outputs = &sorted.output_rows;
        let whole_bytes = outputs.whole() * row_bytes;
        let bytes = (whole_bytes + 8 * outputs.selected() as usize) as u64;
        best.resize(rows.len(), None);
        weights.device.read(staging, bytes, submission, |bytes| {
            let (whole, selected) = bytes.split_at(whole_bytes);
            let mut whole = whole.chunks_exact(row_bytes);
            let mut in_order = vec![None; rows.len()];
            let selected = outputs.best_tokens(bytemuck::cast_slice(selected));
            for (&index, mut selected) in sorted.order.iter().zip(selected) {
                best[index] = selected.pop();
                if best[index].is_none() {
                    in_order[index] = whole.next();
                }
            }
            for row in in_order.into_iter().flatten() {
                logits.extend_from_slice(bytemuck::cast_slice(row));
            }
        })?;
        self.pacer.observe(work, since);
        self.weights.device.end_pass();
        Ok(HeadOutput { logits: &self.logits, best: &self.best })
    }
}

/// A pass of heads while it is recorded.
struct HeadRun<'a> {
    weights: &'a GpuHeadWeights,
    scratch: &'a HeadScratch,
    sorted: &'a SortedRows,
    recorder: Recorder<'a>,
}

impl HeadRun<'_> {
    fn row_count(&self) -> u32 {
        self.sorted.order.len() as u32
    }

    /// Records the embeddings of the tokens that heads read, without the target's factor.
    fn embed(&mut self) {
        let (weights, slots) = (self.weights, self.sorted.slots.len() as u32);
        if slots == 0 {
            return;
        }
        let quarters = (weights.architecture.hidden_size / 4) as u32;
        for part in &weights.embedding.parts {
            let parameters = parameters::Embed {
                quarters,
                first_token: part.first_output as u32,
                tokens: part.outputs as u32,
                factor: 1.0,
                stride: quarters,
                ..parameters::Embed::zeroed()
            };
            let (rows, inputs) = (self.scratch.slots.get(), self.scratch.inputs.get());
            let buffers = [&part.weights, &weights.unused, rows, inputs];
            let kernel = Kernel::Embed(part.weight_type);
            self.recorder.dispatch(kernel, &buffers, &parameters, [slots, 1, 1]);
        }
    }

    /// Records the layers of all heads, level by level.
    fn layers(&mut self) {
        let (weights, scratch) = (self.weights, self.scratch);
        let (states, delta) = (scratch.states.get(), scratch.delta.get());
        let size = weights.architecture.hidden_size;
        if weights.architecture.reads_tokens {
            for HeadRows { head, rows, first_input } in &self.sorted.by_head {
                let Some([residual, first]) = &weights.heads[*head].first else { continue };
                let (first_x, first_y) = (*first_input, rows.start);
                let rows = ProductRows { rows: rows.len() as u32, first_x, first_y };
                for (matrix, to) in [(residual, states), (first, delta)] {
                    let both = (scratch.inputs.get(), to);
                    self.recorder.product(matrix, both, (rows, Store::Set), &weights.unused);
                }
            }
            self.add_activated();
        }
        for layer in 0..weights.architecture.n_layers {
            for HeadRows { head, rows, .. } in &self.sorted.by_head {
                let rows = ProductRows::range(rows.clone(), size);
                let matrix = &weights.heads[*head].layers[layer];
                let both = (states, delta);
                self.recorder.product(matrix, both, (rows, Store::Set), &weights.unused);
            }
            self.add_activated();
        }
    }

    /// Records `states += SiLU(delta)`.
    fn add_activated(&mut self) {
        let (scratch, rows) = (self.scratch, self.row_count());
        let (delta, activated) = (scratch.delta.get(), scratch.activated.get());
        let width = self.weights.architecture.hidden_size as u32;
        let parameters = parameters::Activation {
            gate_stride: width,
            up_stride: width,
            ..parameters::Activation::new(Activation::Silu, width)
        };
        let groups = [width.div_ceil(64), rows, 1];
        let buffers = [delta, delta, activated];
        self.recorder.dispatch(Kernel::Activation, &buffers, &parameters, groups);
        let len = rows * width;
        let parameters = parameters::Add { len, factor: 1.0 };
        let buffers = [activated, scratch.states.get()];
        self.recorder.dispatch(Kernel::Add, &buffers, &parameters, groups_of_elements(len));
    }

    /// Records the logits of all rows, their selections, and their copies to the staging buffer.
    /// Successive heads that share a matrix read it together.
    fn logits(&mut self, staging: &Buffer) {
        let (weights, scratch) = (self.weights, self.scratch);
        let outputs = &self.sorted.output_rows;
        let head_size = weights.architecture.head_size();
        let row_bytes = (head_size * size_of::<f32>()) as u64;
        let at_once = outputs_at_once(&weights.device, head_size) as u32;
        let matrix = |of: &HeadRows| &weights.heads[of.head].matrix;
        let shares = |one: &HeadRows, next: &HeadRows| Arc::ptr_eq(matrix(one), matrix(next));
        for heads in self.sorted.by_head.chunk_by(shares) {
            let all = heads[0].rows.start..heads[heads.len() - 1].rows.end;
            for first in all.clone().step_by(at_once as usize) {
                let rows = all.end.min(first + at_once) - first;
                let first_x = first * weights.architecture.hidden_size as u32;
                let both = (scratch.states.get(), scratch.logits.get());
                let of = (ProductRows { rows, first_x, first_y: 0 }, Store::Set);
                self.recorder.product(matrix(&heads[0]), both, of, &weights.unused);
                self.finish_logits(rows);
                let computed = ChunkLogits {
                    logits: scratch.logits.get(),
                    width: head_size as u32,
                    best: scratch.best.get(),
                };
                let chunk = first..first + rows;
                self.recorder.keep_outputs(outputs, (&chunk, computed), (staging, 0));
            }
        }
        let from = (scratch.best.get(), 0);
        let to = (staging, outputs.whole() as u64 * row_bytes);
        self.recorder.copy(from, to, 8 * u64::from(outputs.selected()));
    }

    /// Records the divisor and the limit of the logits of the target's head.
    fn finish_logits(&mut self, rows: u32) {
        let GpuHeadWeights { divisor, cap, ref architecture, .. } = *self.weights;
        if divisor != 1.0 || cap.is_some() {
            let len = rows * architecture.head_size() as u32;
            let parameters = parameters::Logits { len, divisor, cap: cap.unwrap_or(0.0) };
            let buffers = [self.scratch.logits.get()];
            self.recorder.dispatch(Kernel::Logits, &buffers, &parameters, groups_of_elements(len));
        }
    }
}

//! A model's weights in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::expert_matrix::ExpertMatrix;
use crate::layer_plan::{self, LayerOptions, LayerPlan};
use crate::matrix::{GpuMatrix, MatrixSource, upload_floats};
use crate::support;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, Attention, AttentionNorm, CacheType, Checkpoint, ExpertTensor, Experts, Head,
    Layer, LoadError, MatrixTypes, Mlp, MlpInput, ModelTypes, Norm, QkNorms, Rope, TensorSource,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use wgpu::Buffer;

/// A model's weights on a GPU, or those of its first layers. Models on the same GPU share them.
pub struct GpuWeights {
    device: Arc<GpuDevice>,
    architecture: Architecture,
    cache_type: CacheType,
    /// Without outputs if only the first layers are here.
    pub(crate) embedding: Arc<GpuMatrix>,
    pub(crate) positions: Option<Buffer>, // [rows, hidden]
    pub(crate) layers: Vec<LayerWeights>,
    /// The different position embeddings of the layers.
    pub(crate) ropes: Vec<Rope>,
    pub(crate) final_norm: Option<NormWeights>,
    /// Without outputs if only the first layers are here.
    pub(crate) head: Arc<GpuMatrix>,
    /// Bound where a kernel does not use a buffer that it reads.
    pub(crate) unused: Buffer,
    /// The keys and values of layers without any.
    pub(crate) empty_pages: [Buffer; 2],
}

/// The weights of a norm: `[width]` each.
pub(crate) struct NormWeights {
    pub(crate) weight: Option<Buffer>,
    pub(crate) bias: Option<Buffer>,
}

/// The weights of a layer.
pub(crate) struct LayerWeights {
    /// `None` if attention reads the hidden state.
    pub(crate) attention_norm: Option<NormWeights>,
    pub(crate) attention: Attention,
    /// Queries, keys and values: `[(n_heads + 2 · n_kv_heads) · head_dim, hidden]`; queries only if the layer has no
    /// keys of its own.
    pub(crate) projection: GpuMatrix,
    /// The norms of queries and of keys, one after another.
    pub(crate) head_norms: Option<Buffer>,
    pub(crate) sinks: Option<Buffer>, // [n_heads]
    /// The index of the layer's position embedding.
    pub(crate) rope: Option<usize>,
    pub(crate) output: GpuMatrix, // [hidden, n_heads · head_dim]
    pub(crate) attention_output_norm: Option<NormWeights>,
    pub(crate) mlp_input: MlpInput,
    /// The norm of what the MLP reads, unless that is the hidden state, or has the norm of attention.
    pub(crate) mlp_norm: Option<NormWeights>,
    /// The dense MLP, the experts, or both.
    pub(crate) dense: Option<DenseWeights>,
    pub(crate) experts: Option<ExpertWeights>,
    pub(crate) mlp_output_norm: Option<NormWeights>,
}

/// The weights of a dense MLP.
pub(crate) struct DenseWeights {
    pub(crate) mlp: Mlp,
    pub(crate) gate_up: GpuMatrix, // [2 · intermediate, hidden], or [intermediate, hidden]
    pub(crate) down: GpuMatrix,    // [hidden, intermediate]
}

/// The weights of a mixture of experts.
pub(crate) struct ExpertWeights {
    pub(crate) shape: Experts,
    pub(crate) router: GpuMatrix, // [experts, hidden], f32
    /// What is added to the experts' weights to choose some of them.
    pub(crate) correction: Option<Buffer>, // [experts]
    /// The gate of the dense MLP's output.
    pub(crate) shared_gate: Option<GpuMatrix>, // [1, hidden], f32
    pub(crate) gate_up: ExpertMatrix, // [experts, 2 · intermediate, hidden], or [experts, intermediate, hidden]
    pub(crate) down: ExpertMatrix,    // [experts, hidden, intermediate]
}

impl ExpertWeights {
    /// Returns the bytes of an expert.
    pub(crate) fn expert_bytes(&self) -> u64 {
        (self.gate_up.bytes() + self.down.bytes()) / self.shape.n_experts as u64
    }

    fn bytes(&self) -> u64 {
        let matrices = [Some(&self.router), self.shared_gate.as_ref()];
        let matrices = matrices.into_iter().flatten().map(GpuMatrix::bytes).sum::<u64>();
        matrices + self.gate_up.bytes() + self.down.bytes()
    }
}

impl LayerWeights {
    /// Returns the number of key heads of the layer's own: 0 if it attends to those of another layer.
    pub(crate) fn own_key_heads(&self) -> usize {
        if self.attention.keys_of.is_some() { 0 } else { self.attention.n_kv_heads }
    }

    /// Returns the size of all matrices in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let dense = self.dense.iter().flat_map(|dense| [&dense.gate_up, &dense.down]);
        let matrices = [&self.projection, &self.output].into_iter().chain(dense);
        let experts = self.experts.as_ref().map_or(0, ExpertWeights::bytes);
        matrices.map(GpuMatrix::bytes).sum::<u64>() + experts
    }
}

impl GpuWeights {
    /// Uploads the weights of a checkpoint.
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`].
    pub fn load(
        device: &Arc<GpuDevice>,
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        Self::load_with(device, checkpoint, types, &mut |_layers| ControlFlow::Continue(()))
    }

    /// Uploads the weights of a checkpoint, and reports the number of layers that have been uploaded: 0, then after each.
    /// `on_layer` may stop the upload.
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`], and [`GpuLoadError::Cancelled`].
    pub fn load_with(
        device: &Arc<GpuDevice>,
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
        on_layer: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, GpuLoadError> {
        let architecture = checkpoint.architecture().clone();
        Self::upload(device, architecture, checkpoint, types.into(), on_layer)
    }

    /// Uploads the weights of an architecture.
    ///
    /// # Errors
    /// [`GpuLoadError::Unsupported`] if the model has a piece or a type that GPUs do not compute yet,
    /// [`GpuLoadError::Failure`], or [`GpuLoadError::Load`] if a tensor is missing, or has the wrong type or
    /// shape, or a value is not finite.
    pub fn load_architecture(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let never = &mut |_layers| ControlFlow::Continue(());
        Self::upload(device, architecture, source, types.into(), never)
    }

    fn upload(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, GpuLoadError> {
        let (matrices, cache_type) = types_of(&architecture, source, types)?;
        support::check(&architecture, &matrices, cache_type)?;
        let uploader = Uploader { device, architecture: &architecture, source, types: &matrices };
        let embedding = Arc::new(uploader.matrix(&[Tensor::Embedding], &[])?);
        let positions = architecture.positions.map(|_| uploader.vector(Tensor::Positions));
        let (mut ropes, mut layers) = (Vec::new(), Vec::new());
        for (index, layer) in architecture.layers.iter().enumerate() {
            if on_layer(index).is_break() {
                return Err(GpuLoadError::Cancelled);
            }
            layers.push(uploader.layer(index, layer, &mut ropes)?);
        }
        let final_norm = architecture
            .final_norm
            .then(|| uploader.norm(Tensor::FinalNorm, Tensor::FinalNormBias));
        let head_bias = architecture.head_bias.then_some(Tensor::HeadBias);
        let head = match architecture.head {
            // The embedding has no bias, so a head with one is stored again.
            Head::Embedding if head_bias.is_none() => Arc::clone(&embedding),
            Head::Embedding => {
                Arc::new(uploader.matrix(&[Tensor::Embedding], head_bias.as_slice())?)
            }
            Head::Own | Head::Target => {
                Arc::new(uploader.matrix(&[Tensor::Head], head_bias.as_slice())?)
            }
        };
        if on_layer(layers.len()).is_break() {
            return Err(GpuLoadError::Cancelled);
        }
        Ok(Self {
            embedding,
            positions: positions.transpose()?,
            layers,
            ropes,
            final_norm: final_norm.transpose()?,
            head,
            unused: device.allocate("an unused buffer", 0)?,
            empty_pages: [device.allocate("no keys", 0)?, device.allocate("no values", 0)?],
            cache_type,
            architecture,
            device: Arc::clone(device),
        })
    }

    /// Returns the memory in bytes that a whole model needs on a GPU: its weights, the keys and values of 8,192 tokens, and
    /// the buffers of passes.
    ///
    /// # Errors
    /// If a tensor is missing, or has the wrong type.
    pub fn needed_memory(
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<u64, LoadError> {
        let (matrices, cache_type) = types_of(architecture, source, types.into())?;
        Ok(layer_plan::needed_memory(architecture, &matrices, cache_type))
    }

    /// Uploads the first layers of an architecture: as many as the options say. The others, the embedding and the head are
    /// on another device. `on_layer` is as in [`GpuWeights::load_with`].
    ///
    /// When the layers are there, it probes whether there is the room that [`LayerOptions`] describes.
    ///
    /// # Errors
    /// As [`GpuWeights::load_with`], [`GpuLoadError::UnsupportedLayers`], and [`GpuLoadError::TooManyLayers`].
    pub fn load_first_layers(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        source: &dyn TensorSource,
        options: LayerOptions,
        on_layer: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, GpuLoadError> {
        let (matrices, cache_type) = types_of(&architecture, source, options.types)?;
        let plan = LayerPlan::new(device, &architecture, (&matrices, cache_type), options)?;
        let uploader = Uploader { device, architecture: &architecture, source, types: &matrices };
        let (mut ropes, mut layers) = (Vec::new(), Vec::new());
        for (index, layer) in architecture.layers[..plan.layers].iter().enumerate() {
            if on_layer(index).is_break() {
                return Err(GpuLoadError::Cancelled);
            }
            match uploader.layer(index, layer, &mut ropes) {
                Ok(layer) => layers.push(layer),
                Err(GpuLoadError::Failure(GpuFailure::OutOfMemory { .. })) => break,
                Err(error) => return Err(error),
            }
        }
        plan.leave_room(&mut layers, |bytes| device.has_memory(bytes))?;
        if on_layer(layers.len()).is_break() {
            return Err(GpuLoadError::Cancelled);
        }
        let elsewhere = Arc::new(GpuMatrix::elsewhere(architecture.hidden_size));
        Ok(Self {
            embedding: Arc::clone(&elsewhere),
            positions: None,
            layers,
            ropes,
            final_norm: None,
            head: elsewhere,
            unused: device.allocate("an unused buffer", 0)?,
            empty_pages: [device.allocate("no keys", 0)?, device.allocate("no values", 0)?],
            cache_type,
            architecture,
            device: Arc::clone(device),
        })
    }

    /// Returns whether only the first layers are here, without the embedding and the head.
    pub(crate) fn is_part(&self) -> bool {
        self.embedding.outputs == 0
    }

    /// Returns the number of layers that are on the GPU.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the GPU.
    #[must_use]
    pub fn device(&self) -> &Arc<GpuDevice> {
        &self.device
    }

    /// Returns the type of cached keys and values.
    #[must_use]
    pub fn cache_type(&self) -> CacheType {
        self.cache_type
    }

    /// Returns the size of all matrices in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(LayerWeights::bytes).sum();
        let head = match Arc::ptr_eq(&self.head, &self.embedding) {
            true => 0,
            false => self.head.bytes(),
        };
        layers + self.embedding.bytes() + head
    }
}

/// Returns the types of a model's matrices and of its cache.
fn types_of(
    architecture: &Architecture,
    source: &dyn TensorSource,
    types: ModelTypes,
) -> Result<(MatrixTypes, CacheType), LoadError> {
    let matrices = MatrixTypes::of_model(types.weights, architecture, source)?;
    let cache = types.cache.unwrap_or_else(|| {
        CacheType::for_weights(architecture.matrices().map(|tensor| matrices.of(tensor)))
    });
    Ok((matrices, cache))
}

/// Uploads the tensors of a model.
struct Uploader<'a> {
    device: &'a GpuDevice,
    architecture: &'a Architecture,
    source: &'a dyn TensorSource,
    types: &'a MatrixTypes,
}

impl Uploader<'_> {
    fn floats(&self, tensor: Tensor) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor, &self.architecture.shape(tensor))?.read_all()
    }

    fn vector(&self, tensor: Tensor) -> Result<Buffer, GpuLoadError> {
        upload_floats(self.device, &tensor.to_string(), &self.floats(tensor)?)
    }

    /// Uploads tensors as one matrix. There is a bias for each of them, or none.
    fn matrix(&self, tensors: &[Tensor], biases: &[Tensor]) -> Result<GpuMatrix, GpuLoadError> {
        let source = |(index, &tensor): (usize, &Tensor)| {
            let rows = self.source.rows(tensor, &self.architecture.shape(tensor))?;
            let bias = biases.get(index).map(|&bias| self.floats(bias)).transpose()?;
            let weight_type = self.types.of(tensor);
            Ok(MatrixSource { rows, weight_type, bias: bias.unwrap_or_default() })
        };
        let sources = tensors.iter().enumerate().map(source);
        let sources = sources.collect::<Result<Vec<_>, LoadError>>()?;
        let name = tensors.first().map(Tensor::to_string).unwrap_or_default();
        GpuMatrix::upload(self.device, &name, &sources)
    }

    /// Uploads the weights of a norm, if the model's norms have any.
    fn norm(&self, weight: Tensor, bias: Tensor) -> Result<NormWeights, GpuLoadError> {
        let norm = self.architecture.norm;
        let has_bias = norm == Norm::Layer { bias: true };
        Ok(NormWeights {
            weight: norm.has_weights().then(|| self.vector(weight)).transpose()?,
            bias: has_bias.then(|| self.vector(bias)).transpose()?,
        })
    }

    fn layer(
        &self,
        index: usize,
        layer: &Layer,
        ropes: &mut Vec<Rope>,
    ) -> Result<LayerWeights, GpuLoadError> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(index, part);
        let has = |part: &LayerTensor| layer.has(*part, self.architecture.norm);
        let matrix = |weights: &[LayerTensor], biases: &[LayerTensor]| {
            let tensors = |parts: &[LayerTensor]| -> Vec<Tensor> {
                parts.iter().filter(|part| has(part)).map(|&part| of_layer(part)).collect()
            };
            self.matrix(&tensors(weights), &tensors(biases))
        };
        let norm = |is_there: bool, weight, bias| {
            is_there.then(|| self.norm(of_layer(weight), of_layer(bias))).transpose()
        };
        // Norms of what is added have no bias.
        let output_norm = |is_there: bool, weight| {
            let upload = || self.vector(of_layer(weight));
            let weight = is_there.then(upload).transpose()?;
            Ok::<_, GpuLoadError>(
                weight.map(|weight| NormWeights { weight: Some(weight), bias: None }),
            )
        };
        let Some(attention) = layer.attention.clone() else {
            return Err(GpuLoadError::unsupported(format!("layer {index} without attention")));
        };
        let sinks = attention.sinks.then(|| self.vector(of_layer(T::Sinks))).transpose()?;
        let rope = attention.rope.clone().map(|rope| {
            ropes.iter().position(|other| *other == rope).unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            })
        });
        Ok(LayerWeights {
            attention_norm: norm(
                layer.attention_norm == AttentionNorm::Hidden,
                T::AttentionNorm,
                T::AttentionNormBias,
            )?,
            projection: matrix(
                &[T::Query, T::Key, T::Value],
                &[T::QueryBias, T::KeyBias, T::ValueBias],
            )?,
            head_norms: self.head_norms(index, &attention)?,
            sinks,
            rope,
            output: matrix(&[T::Output], &[T::OutputBias])?,
            attention_output_norm: output_norm(
                layer.attention_output_norm,
                T::AttentionOutputNorm,
            )?,
            mlp_input: layer.mlp_input,
            mlp_norm: norm(layer.mlp_input.norm() == Some(T::MlpNorm), T::MlpNorm, T::MlpNormBias)?,
            dense: match layer.mlp {
                Some(mlp) => Some(DenseWeights {
                    mlp,
                    gate_up: matrix(&[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
                    down: matrix(&[T::Down], &[T::DownBias])?,
                }),
                None => None,
            },
            experts: layer.experts.map(|shape| self.experts(index, shape)).transpose()?,
            mlp_output_norm: output_norm(layer.mlp_output_norm, T::MlpOutputNorm)?,
            attention,
        })
    }

    fn experts(&self, layer: usize, shape: Experts) -> Result<ExpertWeights, GpuLoadError> {
        use ExpertTensor as E;
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let bias = shape.router.bias.then_some(of_layer(T::RouterBias));
        let correction = shape.router.correction;
        let correction = correction.then(|| self.vector(of_layer(T::RouterCorrection)));
        let shared_gate = shape.shared_gate;
        let shared_gate = shared_gate.then(|| self.matrix(&[of_layer(T::SharedGate)], &[]));
        let projection = |kinds: &[(E, E)]| {
            let source = |expert, (weight, bias): (E, E)| {
                let tensor = Tensor::Expert(layer, expert, weight);
                let bias = Tensor::Expert(layer, expert, bias);
                let bias = shape.mlp.bias.then(|| self.floats(bias)).transpose()?;
                let rows = self.source.rows(tensor, &self.architecture.shape(tensor))?;
                let weight_type = self.types.of(tensor);
                Ok::<_, LoadError>(MatrixSource {
                    rows,
                    weight_type,
                    bias: bias.unwrap_or_default(),
                })
            };
            let of_kind = |&kind: &(E, E)| {
                (0..shape.n_experts).map(|expert| source(expert, kind)).collect::<Result<_, _>>()
            };
            let sources = kinds.iter().map(of_kind).collect::<Result<Vec<Vec<_>>, LoadError>>()?;
            let name = Tensor::Expert(layer, 0, kinds[0].0).to_string();
            ExpertMatrix::upload(self.device, &name, &sources)
        };
        let gate_up = [(E::Gate, E::GateBias), (E::Up, E::UpBias)];
        Ok(ExpertWeights {
            shape,
            router: self.matrix(&[of_layer(T::Router)], bias.as_slice())?,
            correction: correction.transpose()?,
            shared_gate: shared_gate.transpose()?,
            gate_up: projection(if shape.mlp.gated { &gate_up[..] } else { &gate_up[1..] })?,
            down: projection(&[(E::Down, E::DownBias)])?,
        })
    }

    fn head_norms(
        &self,
        index: usize,
        attention: &Attention,
    ) -> Result<Option<Buffer>, GpuLoadError> {
        if attention.qk_norms == QkNorms::None {
            return Ok(None);
        }
        let mut weights = self.floats(Tensor::Layer(index, LayerTensor::QueryNorm))?;
        if attention.keys_of.is_none() {
            weights.extend(self.floats(Tensor::Layer(index, LayerTensor::KeyNorm))?);
        }
        upload_floats(self.device, "norms of heads", &weights).map(Some)
    }
}

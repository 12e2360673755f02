//! A model's weights in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::features::FeatureWeights;
use crate::layer_plan::{self, LayerOptions, LayerPlan};
use crate::layer_weights::{LayerWeights, NormWeights};
use crate::matrix::GpuMatrix;
use crate::own_input::OwnInputs;
use crate::support;
use crate::uploader::Uploader;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    Architecture, CacheType, Checkpoint, Head, LoadError, MatrixTypes, ModelTypes, Rope,
    TensorSource,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use wgpu::Buffer;

/// A model's weights on a GPU, or those of its first layers. Models on the same GPU share them.
pub struct GpuWeights {
    architecture: Architecture,
    cache_type: CacheType,
    /// Without outputs if only the first layers are here.
    pub(crate) embedding: Arc<GpuMatrix>,
    pub(crate) masks: Option<GpuMatrix>,  // [masks, hidden]
    pub(crate) positions: Option<Buffer>, // [rows, hidden]
    /// What is between features of a target and the first layer, in a drafter.
    pub(crate) features: Option<FeatureWeights>,
    /// The inputs of layers next to the hidden state.
    pub(crate) own_inputs: Option<OwnInputs>,
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
    /// Dropped after the buffers.
    device: Arc<GpuDevice>,
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

    /// Uploads the weights of a checkpoint, and reports the number of layers that have been
    /// uploaded: 0, then after each. `on_layer` may stop the upload.
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
        Self::upload((device, None), architecture, checkpoint, types.into(), on_layer)
    }

    /// Uploads the weights of an architecture.
    ///
    /// # Errors
    /// [`GpuLoadError::Unsupported`] if the model has a piece or a type that GPUs do not compute
    /// yet, [`GpuLoadError::Failure`], or [`GpuLoadError::Load`] if a tensor is missing, or has the
    /// wrong type or shape, or a value is not finite.
    pub fn load_architecture(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let never = &mut |_layers| ControlFlow::Continue(());
        Self::upload((device, None), architecture, source, types.into(), never)
    }

    /// Uploads the weights of a drafter to the GPU of its target, whose embedding, head and final
    /// norm it may share.
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`], and [`LoadError::NoTarget`] if `target` lacks what the
    /// drafter shares.
    pub fn load_drafter(
        target: &Self,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let never = &mut |_layers| ControlFlow::Continue(());
        Self::upload((&target.device, Some(target)), architecture, source, types.into(), never)
    }

    /// Uploads the embedding, the final norm and the head alone: what a drafter shares with a
    /// target that is on another device. A model with them has no layers.
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`].
    pub fn load_without_layers(
        device: &Arc<GpuDevice>,
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let architecture = without_layers(checkpoint.architecture());
        Self::load_architecture(device, architecture, checkpoint, types)
    }

    /// Uploads the final norm alone: what a drafter that is a whole model shares with a target
    /// (PARD-2).
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`].
    pub fn load_final_norm(
        device: &Arc<GpuDevice>,
        checkpoint: &Checkpoint,
    ) -> Result<Self, GpuLoadError> {
        let architecture = without_layers(checkpoint.architecture());
        let (types, cache_type) = types_of(&architecture, checkpoint, ModelTypes::default())?;
        let source = checkpoint;
        let uploader = Uploader {
            device,
            architecture: &architecture,
            source,
            types: &types,
            without_experts: 0,
        };
        let final_norm = || uploader.norm(Tensor::FinalNorm, Tensor::FinalNormBias);
        let final_norm = architecture.final_norm.then(final_norm).transpose()?;
        Ok(Self { final_norm, ..Self::empty(device, architecture, cache_type)? })
    }

    /// Returns the weights of an architecture before anything is uploaded.
    fn empty(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        cache_type: CacheType,
    ) -> Result<Self, GpuLoadError> {
        let elsewhere = Arc::new(GpuMatrix::elsewhere(architecture.hidden_size));
        Ok(Self {
            embedding: Arc::clone(&elsewhere),
            masks: None,
            positions: None,
            features: None,
            own_inputs: None,
            layers: Vec::new(),
            ropes: Vec::new(),
            final_norm: None,
            head: elsewhere,
            unused: device.allocate("an unused buffer", 0)?,
            empty_pages: [device.allocate("no keys", 0)?, device.allocate("no values", 0)?],
            cache_type,
            architecture,
            device: Arc::clone(device),
        })
    }

    /// Uploads the weights of an architecture, which may share matrices of a target on the same
    /// GPU.
    fn upload(
        (device, target): (&Arc<GpuDevice>, Option<&Self>),
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, GpuLoadError> {
        let (matrices, cache_type) = types_of(&architecture, source, types)?;
        support::check(&architecture, &matrices, cache_type)?;
        let uploader = Uploader {
            device,
            architecture: &architecture,
            source,
            types: &matrices,
            without_experts: 0,
        };
        let shared = || target.ok_or(LoadError::NoTarget);
        let embedding = match architecture.shares_embedding {
            true => shared()?.shared_embedding()?,
            false => Arc::new(uploader.matrix(&[Tensor::Embedding], &[])?),
        };
        let masks = || uploader.matrix(&[Tensor::MaskEmbeddings], &[]);
        let masks = (architecture.mask_tokens > 0).then(masks).transpose()?;
        let reads_features = architecture.feature_width() > 0;
        let features = reads_features.then(|| uploader.features(target)).transpose()?;
        let positions = architecture.positions.map(|_| uploader.vector(Tensor::Positions));
        let own_inputs = architecture.own_input().map(|shape| uploader.own_inputs(shape));
        let own_inputs = own_inputs.transpose()?;
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
            Head::Own => Arc::new(uploader.matrix(&[Tensor::Head], head_bias.as_slice())?),
            Head::Target => match &architecture.head_tokens {
                None => shared()?.shared_head()?,
                Some(tokens) => Arc::new(shared()?.shared_head()?.select(device, tokens)?),
            },
        };
        if on_layer(layers.len()).is_break() {
            return Err(GpuLoadError::Cancelled);
        }
        Ok(Self {
            embedding,
            masks,
            positions: positions.transpose()?,
            features,
            own_inputs,
            layers,
            ropes,
            final_norm: final_norm.transpose()?,
            head,
            ..Self::empty(device, architecture, cache_type)?
        })
    }

    /// Returns the memory in bytes that a whole model needs on a GPU: its weights, the keys and
    /// values of 8,192 tokens, and the buffers of passes.
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

    /// Returns the memory in bytes that a model's embedding and head need on a GPU.
    ///
    /// # Errors
    /// If a tensor is missing, or has the wrong type.
    pub fn memory_without_layers(
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<u64, LoadError> {
        let architecture = without_layers(checkpoint.architecture());
        let (matrices, _) = types_of(&architecture, checkpoint, types.into())?;
        Ok(layer_plan::bytes_outside_layers(&architecture, &matrices))
    }

    /// Uploads the first layers of an architecture: as many as the options say. The others, the
    /// embedding and the head are on another device. `on_layer` is as in [`GpuWeights::load_with`].
    ///
    /// When the layers are there, it probes whether there is the room that [`LayerOptions`]
    /// describes.
    ///
    /// # Errors
    /// As [`GpuWeights::load_with`], [`GpuLoadError::UnsupportedLayers`], and
    /// [`GpuLoadError::TooManyLayers`].
    pub fn load_first_layers(
        device: &Arc<GpuDevice>,
        architecture: Architecture,
        source: &dyn TensorSource,
        options: LayerOptions,
        on_layer: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, GpuLoadError> {
        let (matrices, cache_type) = types_of(&architecture, source, options.types)?;
        let plan = LayerPlan::new(device, &architecture, (&matrices, cache_type), options)?;
        let uploader = Uploader {
            device,
            architecture: &architecture,
            source,
            types: &matrices,
            without_experts: options.without_experts,
        };
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
        Ok(Self { layers, ropes, ..Self::empty(device, architecture, cache_type)? })
    }

    /// Returns the embedding for a drafter that shares it. Fails if it is not here.
    pub(crate) fn shared_embedding(&self) -> Result<Arc<GpuMatrix>, LoadError> {
        shared(&self.embedding)
    }

    /// Returns the head for a drafter that shares it. Fails if it is not here.
    pub(crate) fn shared_head(&self) -> Result<Arc<GpuMatrix>, LoadError> {
        shared(&self.head)
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

    /// Returns the size of all matrices in bytes, also of those that are shared with another model.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(LayerWeights::bytes).sum();
        let head = match Arc::ptr_eq(&self.head, &self.embedding) {
            true => 0,
            false => self.head.bytes(),
        };
        let own_inputs = self.own_inputs.as_ref().map_or(0, OwnInputs::bytes);
        let projection = self.features.as_ref().and_then(|features| features.projection.as_ref());
        let projection = projection.map_or(0, GpuMatrix::bytes);
        layers + self.embedding.bytes() + head + own_inputs + projection
    }
}

/// Returns a matrix for a drafter that shares it, unless it is on another device.
fn shared(matrix: &Arc<GpuMatrix>) -> Result<Arc<GpuMatrix>, LoadError> {
    match matrix.outputs {
        0 => Err(LoadError::NoTarget),
        _ => Ok(Arc::clone(matrix)),
    }
}

fn without_layers(architecture: &Architecture) -> Architecture {
    Architecture { layers: Vec::new(), ..architecture.clone() }
}

/// Returns the types of a model's matrices and of its cache.
pub(crate) fn types_of(
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

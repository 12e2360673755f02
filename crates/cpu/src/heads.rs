//! Draft heads on a team: those of Medusa and of Hydra. See [`DraftHeads`] for what they compute.

use crate::block_heads::BlockHeadWeights;
use crate::kernels::{Activations, PackedMatrix, divide, exp, linear, soft_cap};
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::{CorePart, WeightPacker, Weights};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    DraftHeads, FeatureSource, HeadTensor, LoadError, MatrixTypes, ModelTypes, Speculator,
    SpeculatorArchitecture, TensorSource,
};
use forerun_model::{ForwardHeads, HeadOutput, HeadRow, HeadsModel, PassError};
use std::sync::Arc;

/// The packed weights of draft heads, with those of their prefix layer.
pub struct HeadWeights {
    architecture: DraftHeads,
    heads: Vec<PackedHead>,
    embedding: Arc<PackedMatrix>,
    /// The divisor and the limit of the logits of the target's head, for heads that use it.
    divisor: f32,
    cap: Option<f32>,
    prefix: Option<Arc<Weights>>,
}

struct PackedHead {
    /// The layer on the state and tokens, and its residual connection.
    first: Option<[PackedMatrix; 2]>,
    layers: Vec<PackedMatrix>, // [hidden, hidden]
    matrix: Arc<PackedMatrix>, // [outputs, hidden]
}

impl HeadWeights {
    /// Reads and packs heads, which may share the embedding and the head of `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, or a value is not finite.
    pub fn load(
        architecture: DraftHeads,
        source: &dyn TensorSource,
        target: &Weights,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        let matrix_types = MatrixTypes::of_heads(types.weights, &architecture, source)?;
        let packer = WeightPacker { source, types: matrix_types, part: None };
        let matrix = |head, tensor: HeadTensor| {
            let shape = architecture.shape(head, tensor);
            let bias = Tensor::DraftHead(head, tensor.bias());
            let bias = match source.has(bias) {
                true => Some(packer.floats(bias, &shape[..1])?),
                false => None,
            };
            let weights = packer.matrix(Tensor::DraftHead(head, tensor), &shape)?;
            Ok::<_, LoadError>(weights.with_bias(bias))
        };
        let shared = match &architecture.head_tokens {
            _ if architecture.own_matrices => None,
            None => Some(Arc::clone(&target.head)),
            Some(tokens) => Some(Arc::new(target.head.select(tokens)?)),
        };
        let pack_head = |head| {
            let layers =
                (0..architecture.n_layers).map(|layer| matrix(head, HeadTensor::Layer(layer)));
            let first = || {
                let [first, residual] = [HeadTensor::First, HeadTensor::FirstResidual];
                Ok::<_, LoadError>([matrix(head, first)?, matrix(head, residual)?])
            };
            Ok(PackedHead {
                first: architecture.reads_tokens.then(first).transpose()?,
                layers: layers.collect::<Result<_, LoadError>>()?,
                matrix: match &shared {
                    None => Arc::new(matrix(head, HeadTensor::Matrix)?),
                    Some(shared) => Arc::clone(shared),
                },
            })
        };
        let heads = (0..architecture.n_heads).map(pack_head).collect::<Result<_, LoadError>>()?;
        let prefix = architecture.prefix.clone().map(|layer| {
            Weights::load_architecture(layer, source, Some(target), types).map(Arc::new)
        });
        let prefix = prefix.transpose()?;
        let (divisor, cap) = architecture.logit_divisor_and_cap(target.architecture());
        Ok(Self {
            embedding: Arc::clone(&target.embedding),
            divisor,
            cap,
            architecture,
            heads,
            prefix,
        })
    }

    /// Returns what the heads compute.
    #[must_use]
    pub fn architecture(&self) -> &DraftHeads {
        &self.architecture
    }
}

/// The packed weights of a drafter that belongs to one target.
#[derive(Clone)]
pub enum SpeculatorWeights {
    /// Layers on tokens, and on the target's features.
    Layers(Arc<Weights>),
    /// Heads on the target's features.
    Heads(Arc<HeadWeights>),
}

impl SpeculatorWeights {
    /// Returns the memory that a drafter needs at least, in bytes, as [`CorePart::least_memory`]
    /// does.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn least_memory(speculator: &Speculator, types: ModelTypes) -> Result<usize, LoadError> {
        match speculator.architecture()? {
            SpeculatorArchitecture::Layers(layers) => {
                let bytes = CorePart::Whole.least_memory(&layers, speculator, types)?;
                let of_heads = match speculator.block_heads()? {
                    Some(heads) => BlockHeadWeights::least_memory(&heads, speculator, types)?,
                    None => 0,
                };
                Ok(bytes.saturating_add(of_heads))
            }
            SpeculatorArchitecture::Heads(heads) => {
                let matrix_types = MatrixTypes::of_heads(types.weights, &heads, speculator)?;
                let packer = WeightPacker { source: speculator, types: matrix_types, part: None };
                let prefix = match &heads.prefix {
                    Some(layer) => CorePart::Whole.least_memory(layer, speculator, types)?,
                    None => 0,
                };
                heads.tensors().try_fold(prefix, |sum, tensor| match tensor {
                    Tensor::DraftHead(head, part) => {
                        let bytes = packer.matrix_bytes(tensor, &heads.shape(head, part))?;
                        Ok(sum.saturating_add(bytes))
                    }
                    _ => Ok(sum),
                })
            }
        }
    }

    /// Reads and packs a drafter. `target` must be the target that it was opened for.
    ///
    /// # Errors
    /// When a tensor is missing, unexpected, or has the wrong dtype or shape, or a value is not
    /// finite.
    pub fn load(
        speculator: &Speculator,
        target: &Weights,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        Ok(match speculator.architecture()? {
            SpeculatorArchitecture::Layers(layers) => {
                let weights = Weights::load_architecture(layers, speculator, Some(target), types)?;
                Self::Layers(Arc::new(weights))
            }
            SpeculatorArchitecture::Heads(heads) => {
                let weights = HeadWeights::load(heads, speculator, target, types)?;
                Self::Heads(Arc::new(weights))
            }
        })
    }
}

/// Draft heads on a team.
pub struct CpuHeads {
    weights: Arc<HeadWeights>,
    team: Arc<Team>,
    logits: Vec<f32>, // [rows, outputs]
    activations: Activations,
}

impl CpuHeads {
    /// Creates heads that run on `team`.
    #[must_use]
    pub fn new(weights: Arc<HeadWeights>, team: Arc<Team>) -> Self {
        Self { weights, team, logits: Vec::new(), activations: Activations::default() }
    }

    /// Creates the language model of heads on `team`, with their prefix layer if they have one.
    #[must_use]
    pub fn model(weights: Arc<HeadWeights>, team: &Arc<Team>) -> HeadsModel<Self, Transformer> {
        let prefix = weights.prefix.as_ref().map(|layer| {
            let transformer = Transformer::new(Arc::clone(layer), Arc::clone(team));
            transformer.with_features(FeatureSource::LastHidden)
        });
        HeadsModel::new(Self::new(weights, Arc::clone(team)), prefix)
    }

    /// Computes the states of a head's rows before its matrix to logits: `[rows, hidden]`.
    fn states(&mut self, head: usize, rows: &[&HeadRow<'_>]) -> Vec<f32> {
        let Self { weights, team, activations, .. } = self;
        let (size, head) = (weights.architecture.hidden_size, &weights.heads[head]);
        let mut states = Vec::with_capacity(rows.len() * size);
        let mut delta = vec![0.0; rows.len() * size];
        match &head.first {
            None => rows.iter().for_each(|row| states.extend_from_slice(row.state)),
            Some([first, residual]) => {
                let inputs = weights.first_inputs(rows);
                states.resize(rows.len() * size, 0.0);
                linear(team, &inputs, residual, activations, &mut states);
                linear(team, &inputs, first, activations, &mut delta);
                add_silu(&mut states, &delta);
            }
        }
        for layer in &head.layers {
            linear(team, &states, layer, activations, &mut delta);
            add_silu(&mut states, &delta);
        }
        states
    }
}

impl HeadWeights {
    /// Returns the inputs of a head's first layer: the state, then the embeddings of the tokens.
    fn first_inputs(&self, rows: &[&HeadRow<'_>]) -> Vec<f32> {
        let mut inputs = Vec::new();
        for row in rows {
            inputs.extend_from_slice(row.state);
            for &token in row.tokens {
                let start = inputs.len();
                inputs.resize(start + self.architecture.hidden_size, 0.0);
                self.embedding.unpack_row(token as usize, &mut inputs[start..]);
            }
        }
        inputs
    }
}

impl ForwardHeads for CpuHeads {
    fn architecture(&self) -> &DraftHeads {
        &self.weights.architecture
    }

    fn forward(&mut self, rows: &[HeadRow<'_>]) -> Result<HeadOutput<'_>, PassError> {
        let architecture = &self.weights.architecture;
        let (size, outputs) = (architecture.hidden_size, architecture.head_size());
        // The rows of each head, and their states.
        let mut by_head: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            match by_head.iter_mut().find(|(head, _)| *head == row.head) {
                Some((_, of_head)) => of_head.push(index),
                None => by_head.push((row.head, vec![index])),
            }
        }
        let states = by_head.iter().map(|(head, of_head)| {
            let rows: Vec<&HeadRow<'_>> = of_head.iter().map(|&index| &rows[index]).collect();
            self.states(*head, &rows)
        });
        let states: Vec<Vec<f32>> = states.collect();
        self.logits.resize(rows.len() * outputs, 0.0);
        let Self { weights, team, activations, logits } = self;
        // Heads that share a matrix read it together.
        let (mut done, mut out) = (0, Vec::new());
        while done < by_head.len() {
            let matrix = &weights.heads[by_head[done].0].matrix;
            let shares = |(head, _): &&(usize, Vec<usize>)| {
                Arc::ptr_eq(&weights.heads[*head].matrix, matrix)
            };
            let end = done + by_head[done..].iter().take_while(shares).count();
            let inputs = states[done..end].concat();
            out.resize(inputs.len() / size * outputs, 0.0);
            linear(team, &inputs, matrix, activations, &mut out);
            let places = by_head[done..end].iter().flat_map(|(_, of_head)| of_head);
            for (&place, row) in places.zip(out.chunks_exact(outputs)) {
                logits[place * outputs..][..outputs].copy_from_slice(row);
            }
            done = end;
        }
        if weights.divisor != 1.0 {
            divide(team.isa(), logits, weights.divisor);
        }
        if let Some(cap) = weights.cap {
            soft_cap(team.isa(), logits, cap);
        }
        Ok(HeadOutput { logits: &self.logits, best: &[] })
    }
}

/// Computes `states += SiLU(delta)`.
fn add_silu(states: &mut [f32], delta: &[f32]) {
    for (state, delta) in states.iter_mut().zip(delta) {
        *state += delta / (1.0 + exp(-delta));
    }
}

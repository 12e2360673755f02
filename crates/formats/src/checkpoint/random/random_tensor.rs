//! The values of random tensors, and how checkpoints store them.

use super::{RandomDtype, RandomWeights};
use crate::checkpoint::row_layout::RowLayout;
use crate::checkpoint::stored_names::StoredAs;
use crate::config::Config;
use crate::speculator::mtp;
use crate::tensor::Tensor;
use half::{bf16, f16};
use safetensors::tensor::View;
use std::borrow::Cow;
use std::f64::consts::TAU;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A random tensor. Its values are generated when it is written, so only one tensor is in memory.
pub(in crate::checkpoint) struct RandomTensor {
    shape: Vec<usize>,
    dtype: RandomDtype,
    mean: f32,
    deviation: f32,
    key: u64,
}

impl RandomTensor {
    pub(super) fn new(weights: &RandomWeights<'_>, tensor: Tensor) -> Self {
        let (mean, deviation) = weights.mean_and_deviation(tensor);
        // FNV-1a of the name, on top of the seed.
        let key =
            tensor.to_string().bytes().fold(weights.seed ^ 0xcbf2_9ce4_8422_2325, |key, byte| {
                (key ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        Self {
            shape: weights.config.architecture().shape(tensor),
            dtype: weights.dtype,
            mean,
            deviation,
            key,
        }
    }

    /// Creates the tensors of an MTP head for a model.
    pub(super) fn of_mtp_head(target: &RandomWeights<'_>) -> Vec<(Self, StoredAs)> {
        let layout = mtp::Layout::of(target.config);
        let weights = RandomWeights::new(layout.config(), target.seed, target.dtype);
        let architecture = layout.architecture();
        let random = |tensor| {
            let shape = architecture.shape(tensor);
            let of_target = Self::new(&weights, layout.in_target(tensor));
            let random = match (tensor, &shape[..]) {
                (Tensor::Layer(..) | Tensor::Expert(..), _) => of_target,
                (_, &[_, inputs]) => {
                    let deviation = 1.0 / (inputs as f32).sqrt();
                    Self { shape, mean: 0.0, deviation, ..of_target }
                }
                _ => Self { shape, mean: 1.0, deviation: 0.3, ..of_target },
            };
            (random, layout.stored_as(tensor))
        };
        architecture.tensors().map(random).collect()
    }

    pub(in crate::checkpoint) fn of_model(config: &Config, seed: u64, tensor: Tensor) -> Self {
        Self::new(&RandomWeights::new(config, seed, RandomDtype::F32), tensor)
    }

    /// Returns the tensor's values, row-major.
    pub(in crate::checkpoint) fn values(&self) -> impl Iterator<Item = f32> + use<> {
        let (mut normal, mean, deviation) = (Normal { state: self.key }, self.mean, self.deviation);
        let count: usize = self.shape.iter().product();
        (0..count).map(move |_| mean + deviation * normal.next())
    }

    /// Copies a value, less what a reader adds to it.
    fn store(&self, value: &[u8], offset: f32, out: &mut [u8]) {
        match (self.dtype, value) {
            (RandomDtype::Bf16, &[low, high]) if offset != 0.0 => {
                let value = bf16::from_le_bytes([low, high]).to_f32() - offset;
                out.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
            }
            (RandomDtype::F16, &[low, high]) if offset != 0.0 => {
                let value = f16::from_le_bytes([low, high]).to_f32() - offset;
                out.copy_from_slice(&f16::from_f32(value).to_le_bytes());
            }
            (_, &[a, b, c, d]) => {
                let value = f32::from_le_bytes([a, b, c, d]) - offset;
                out.copy_from_slice(&value.to_le_bytes());
            }
            _ => out.copy_from_slice(value),
        }
    }

    fn element_bytes(&self) -> usize {
        match self.dtype {
            RandomDtype::F32 | RandomDtype::Block(_) => size_of::<f32>(),
            RandomDtype::Bf16 | RandomDtype::F16 => size_of::<u16>(),
        }
    }

    pub(super) fn fill(&self, first: usize, bytes: &mut [u8]) {
        let mut normal = Normal::skipping(self.key, first);
        for bytes in bytes.chunks_exact_mut(self.element_bytes()) {
            let value = self.mean + self.deviation * normal.next();
            match self.dtype {
                RandomDtype::F32 | RandomDtype::Block(_) => {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
                RandomDtype::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                RandomDtype::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            }
        }
    }
}

/// A stored tensor that consists of one or several tensors of the model.
pub(super) struct RandomStored {
    pub(super) shape: Vec<usize>,
    pub(super) parts: Vec<(RandomTensor, StoredAs)>,
}

impl View for RandomStored {
    fn dtype(&self) -> safetensors::Dtype {
        self.parts.first().map_or(safetensors::Dtype::F32, |(part, _)| part.dtype())
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if let [(part, StoredAs { layout: RowLayout::PLAIN, expert: None, .. })] = &self.parts[..] {
            return part.data();
        }
        let mut bytes = vec![0; self.data_len()];
        for (part, stored_as) in &self.parts {
            let size = part.element_bytes();
            let (values, columns) = match part.shape[..] {
                [_, columns] => (part.data(), columns),
                // The values of a vector have the order of rows.
                _ => (part.data(), 1),
            };
            let [expert, n_experts] = stored_as.expert.unwrap_or([0, 1]);
            let part_bytes = bytes.len() / n_experts;
            let bytes = &mut bytes[expert * part_bytes..][..part_bytes];
            for (row, values) in values.chunks_exact(columns * size).enumerate() {
                let index = stored_as.layout.index(row);
                for (column, value) in values.chunks_exact(size).enumerate() {
                    let at = match stored_as.layout.transposed {
                        Some(outputs) => column * outputs + index,
                        None => index * columns + column,
                    };
                    part.store(value, stored_as.layout.offset, &mut bytes[at * size..][..size]);
                }
            }
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        let size = self.parts.first().map_or(0, |(part, _)| part.element_bytes());
        self.shape.iter().product::<usize>() * size
    }
}

/// The number of values that a thread generates at a time.
pub(super) const CHUNK_VALUES: usize = 1 << 16;

impl View for RandomTensor {
    fn dtype(&self) -> safetensors::Dtype {
        match self.dtype {
            RandomDtype::F32 | RandomDtype::Block(_) => safetensors::Dtype::F32,
            RandomDtype::Bf16 => safetensors::Dtype::BF16,
            RandomDtype::F16 => safetensors::Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        let chunk_bytes = CHUNK_VALUES * self.element_bytes();
        let n_chunks = bytes.len().div_ceil(chunk_bytes);
        let chunks = Mutex::new(bytes.chunks_mut(chunk_bytes).enumerate());
        let work = || {
            loop {
                let next = chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((chunk, bytes)) = next else { return };
                self.fill(chunk * CHUNK_VALUES, bytes);
            }
        };
        thread::scope(|scope| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            for _ in 1..cores.min(n_chunks) {
                // If a thread cannot be started, the others do its work.
                drop(thread::Builder::new().spawn_scoped(scope, work));
            }
            work();
        });
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element_bytes()
    }
}

/// A generator of normally distributed values: the Box–Muller transform of Steele's SplitMix64.
pub(in crate::checkpoint) struct Normal {
    pub(in crate::checkpoint) state: u64,
}

impl Normal {
    /// SplitMix64's increment of the state.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates a generator that has skipped `values` values. Each value takes two random numbers.
    fn skipping(key: u64, values: usize) -> Self {
        Self { state: key.wrapping_add(Self::STEP.wrapping_mul(2 * values as u64)) }
    }

    pub(in crate::checkpoint) fn next(&mut self) -> f32 {
        let (radius, angle) = (self.uniform(), self.uniform());
        ((-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()) as f32
    }

    /// Returns a number in (0, 1], so its logarithm is finite.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(Self::STEP);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

//! Recurrent mixers: a short causal convolution, and a linear recurrence over the rows of a pass.
//!
//! A row starts from the state of its parent, and rows are computed in order, so a row's bits
//! depend on its prefix alone, however the prefix was cut into passes. Work is split over channels,
//! heads and rows only.
//!
//! Every product here is rounded before it is added. A convolution adds its products from the
//! oldest position to the row's own. Sums over keys are in ascending order of their dimensions.

use super::pointwise::{norm_parts, silu};
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_cache::{StateBefore, StateId, StateStep};
use forerun_formats::{Norm, Recurrent, RecurrentRule};
use forerun_vector::{Lanes, Vectorized, dot, exp, sigmoid, softplus, vectorize};
use std::ops::Range;

/// What is added to the square of the length of queries and keys.
const LENGTH_EPSILON: f32 = 1e-6;

/// The weights of a recurrent mixer, without its projections.
pub(crate) struct RecurrentWeights {
    pub(crate) shape: Recurrent,
    /// For each position, from the oldest to the row's own: `[kernel, channels]`.
    pub(crate) convolution: Vec<f32>,
    pub(crate) convolution_bias: Option<Vec<f32>>, // [channels]
    /// The factor of softplus in the logarithm of a head's decay, which is negative:
    /// `[n_value_heads]`.
    pub(crate) decay_rate: Vec<f32>,
    pub(crate) decay_bias: Vec<f32>,   // [n_value_heads]
    pub(crate) skip: Option<Vec<f32>>, // [n_value_heads]
    pub(crate) norm: Vec<f32>,         // [value_dim], or [n_value_heads · value_dim]
    pub(crate) epsilon: f32,
}

/// The states of a layer, each in a slot of its own.
pub(crate) struct RecurrentStates {
    shape: Recurrent,
    /// The last inputs of the convolution: `[slots][kernel − 1, channels]`.
    inputs: Vec<Vec<f32>>,
    /// `[slots][n_value_heads, key_dim, value_dim]`.
    matrices: Vec<Vec<f32>>,
    /// The state between two rows of which the first has no slot.
    running: [Vec<f32>; 2],
}

impl RecurrentStates {
    /// Creates a storage without states.
    pub(crate) fn new(shape: Recurrent) -> Self {
        let running = [shape.conv_values(), shape.matrix_values()].map(|len| vec![0.0; len]);
        Self { shape, inputs: Vec::new(), matrices: Vec::new(), running }
    }

    /// Returns the size of a state in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.shape.state_bytes()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let all = self.inputs.iter().chain(&self.matrices).chain(&self.running);
        all.map(|values| size_of_val(&values[..])).sum()
    }

    /// Allocates the memory of a state, if it is not allocated yet.
    pub(crate) fn reserve(&mut self, state: StateId) {
        let lens = [self.shape.conv_values(), self.shape.matrix_values()];
        for (slots, len) in [&mut self.inputs, &mut self.matrices].into_iter().zip(lens) {
            if slots.len() <= state.index() {
                slots.resize_with(state.index() + 1, Vec::new);
            }
            slots[state.index()].resize(len, 0.0);
        }
    }

    /// Returns the memory of a state, in parts.
    pub(crate) fn parts(&mut self, state: StateId) -> [&mut [u8]; 2] {
        [&mut self.inputs, &mut self.matrices]
            .map(|slots| bytemuck::cast_slice_mut(&mut slots[state.index()]))
    }

    /// Frees the memory of a state.
    pub(crate) fn release(&mut self, state: StateId) {
        self.inputs[state.index()] = Vec::new();
        self.matrices[state.index()] = Vec::new();
    }
}

/// Buffers that are kept between passes.
#[derive(Default)]
pub(crate) struct RecurrentScratch {
    convolved: Vec<f32>, // [rows, channels]
    factors: Vec<f32>,   // [rows, n_value_heads, 2]
    places: Vec<Place>,  // [rows]
    /// A row's input to the convolution.
    own: Vec<f32>, // [channels]
    /// What a row adds to the matrix of each head.
    added: Vec<f32>, // [n_value_heads, value_dim]
}

/// Where a row's state comes from, and where it goes: indices of slots, of which the last one is
/// running. Without a source, the state is zero.
#[derive(Clone, Copy)]
struct Place {
    from: Option<usize>,
    to: usize,
}

impl Place {
    /// Makes a part of the new state equal to the old one.
    ///
    /// # Safety
    /// No other part of the slots that exists at the same time may overlap `range`.
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees disjoint ranges")]
    unsafe fn start<'a>(self, slots: &'a [SharedSlice<'_>], range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller guarantees it.
        let new = unsafe { slots[self.to].range_mut(range.clone()) };
        match self.from {
            None => new.fill(0.0),
            Some(from) if from == self.to => {}
            // SAFETY: another slot, in the same range.
            Some(from) => new.copy_from_slice(unsafe { slots[from].range_mut(range) }),
        }
        new
    }
}

/// Computes a mixer for all rows, and writes the states that have slots.
///
/// `projected`: `[rows, queries | keys | values | gates | β | decays]`, `steps`: `[rows]`, `out`:
/// `[rows, n_value_heads, value_dim]`.
pub(crate) fn recur(
    team: &Team,
    weights: &RecurrentWeights,
    projected: &[f32],
    steps: &[StateStep],
    states: &mut RecurrentStates,
    scratch: &mut RecurrentScratch,
    out: &mut [f32],
) {
    let shape = weights.shape;
    let running = states.inputs.len();
    let RecurrentScratch { convolved, factors, places, own, added } = scratch;
    places.clear();
    places.extend(steps.iter().map(|step| Place {
        from: match step.before {
            StateBefore::Zero => None,
            StateBefore::Kept(state) => Some(state.index()),
            StateBefore::Running => Some(running),
        },
        to: step.after.map_or(running, StateId::index),
    }));
    convolved.resize(steps.len() * shape.channels(), 0.0);
    let [running_inputs, running_matrices] = &mut states.running;
    let inputs = slots(&mut states.inputs, running_inputs);
    own.resize(shape.channels(), 0.0);
    convolve(team, weights, projected, places, &inputs, (own, convolved));
    if shape.has_matrices() {
        factors.resize(steps.len() * shape.n_value_heads * 2, 0.0);
        prepare_heads(team, weights, projected, convolved, factors);
        let matrices = slots(&mut states.matrices, running_matrices);
        added.resize(shape.value_width(), 0.0);
        run_heads(team, weights, (convolved, factors), places, &matrices, (added, out));
    }
    finish(team, weights, projected, convolved, out);
}

fn slots<'a>(slots: &'a mut [Vec<f32>], running: &'a mut Vec<f32>) -> Vec<SharedSlice<'a>> {
    slots.iter_mut().chain([running]).map(|slot| SharedSlice::new(slot)).collect()
}

/// Computes the convolution of all rows, with its activation: `[rows, channels]`. `own` is scratch
/// memory: `[channels]`.
fn convolve(
    team: &Team,
    weights: &RecurrentWeights,
    projected: &[f32],
    places: &[Place],
    inputs: &[SharedSlice<'_>],
    (own, out): (&mut [f32], &mut [f32]),
) {
    let (shape, isa) = (weights.shape, team.isa());
    let (channels, width) = (shape.channels(), shape.projected_width());
    let has_silu = shape.has_matrices();
    // What the values are multiplied by, if there is no recurrence after the convolution.
    let factors = (!has_silu).then(|| channels + shape.value_width());
    let (own, out) = (SharedSlice::new(own), SharedSlice::new(out));
    team.for_each_range(channels, 64, |range| {
        // SAFETY: members use disjoint channels.
        let own = unsafe { own.range_mut(range.clone()) };
        let of_position =
            |position: usize| position * channels + range.start..position * channels + range.end;
        for ((place, x), row) in places.iter().zip(projected.chunks_exact(width)).zip(0..) {
            own.copy_from_slice(&x[range.clone()]);
            if let Some(first) = factors {
                let factors = &x[first + range.start..first + range.end];
                own.iter_mut().zip(factors).for_each(|(own, factor)| *own *= factor);
            }
            // SAFETY: members write to disjoint channels of every row.
            let sums = unsafe { out.range_mut(of_position(row)) };
            sums.fill(0.0);
            for position in 0..shape.kernel {
                let weights = &weights.convolution[of_position(position)];
                if position + 1 == shape.kernel {
                    vectorize(isa, AddProducts { sums, weights, x: own });
                    break;
                }
                // SAFETY: members use disjoint channels of every slot, and this is the only part.
                let x = unsafe { place.start(inputs, of_position(position)) };
                vectorize(isa, AddProducts { sums, weights, x });
            }
            if let Some(bias) = &weights.convolution_bias {
                sums.iter_mut().zip(&bias[range.clone()]).for_each(|(sum, bias)| *sum += bias);
            }
            if has_silu {
                vectorize(isa, Silu(sums));
            }
            // The row's own input becomes the newest one.
            for position in 1..shape.kernel {
                // SAFETY: as above; the positions are different.
                let older = unsafe { inputs[place.to].range_mut(of_position(position - 1)) };
                if position + 1 == shape.kernel {
                    older.copy_from_slice(own);
                } else {
                    // SAFETY: as above.
                    older.copy_from_slice(unsafe {
                        inputs[place.to].range_mut(of_position(position))
                    });
                }
            }
        }
    });
}

/// Computes `sums += weights · x`.
struct AddProducts<'a> {
    sums: &'a mut [f32],
    weights: &'a [f32],
    x: &'a [f32],
}

impl Vectorized for AddProducts<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for ((sum, &weight), &x) in self.sums.iter_mut().zip(self.weights).zip(self.x) {
            *sum += weight * x;
        }
    }
}

/// Applies SiLU.
struct Silu<'a>(&'a mut [f32]);

impl Vectorized for Silu<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.0 {
            *x = silu(*x);
        }
    }
}

/// Divides queries and keys by their lengths if the rule does so, and computes the factors of each
/// head: its decay, and `β` or `Δ`.
fn prepare_heads(
    team: &Team,
    weights: &RecurrentWeights,
    projected: &[f32],
    convolved: &mut [f32],
    factors: &mut [f32],
) {
    let (shape, isa) = (weights.shape, team.isa());
    let (channels, width) = (shape.channels(), shape.projected_width());
    let first_beta = channels + shape.value_width();
    let first_decay = first_beta + shape.beta_width();
    let (rows, per_row) = (projected.len() / width, 2 * shape.n_value_heads);
    let (convolved, factors) = (SharedSlice::new(convolved), SharedSlice::new(factors));
    team.for_each_range(rows, 1, |range| {
        for row in range {
            let x = &projected[row * width..][..width];
            // SAFETY: members write to disjoint rows.
            let factors = unsafe { factors.range_mut(row * per_row..(row + 1) * per_row) };
            for (head, factors) in factors.chunks_exact_mut(2).enumerate() {
                let step = softplus(x[first_decay + head] + weights.decay_bias[head]);
                factors[0] = exp(weights.decay_rate[head] * step);
                factors[1] = match shape.rule {
                    RecurrentRule::GatedDelta => sigmoid(x[first_beta + head]),
                    RecurrentRule::StateSpace | RecurrentRule::Convolution => step,
                };
            }
            if shape.rule == RecurrentRule::GatedDelta {
                let first = row * channels;
                // SAFETY: as above.
                let heads = unsafe { convolved.range_mut(first..first + 2 * shape.key_width()) };
                let (queries, keys) = heads.split_at_mut(shape.key_width());
                let scale = 1.0 / (shape.key_dim as f32).sqrt();
                for (x, scale) in [(queries, Some(scale)), (keys, None)] {
                    vectorize(isa, DivideByLength { x, width: shape.key_dim, scale });
                }
            }
        }
    });
}

/// Divides parts of a vector by their lengths, and multiplies them by a factor.
struct DivideByLength<'a> {
    x: &'a mut [f32],
    width: usize,
    scale: Option<f32>,
}

impl Vectorized for DivideByLength<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for part in self.x.chunks_exact_mut(self.width) {
            let inverse = 1.0 / (dot::<L>(part, part) + LENGTH_EPSILON).sqrt();
            for x in part {
                *x *= inverse;
                if let Some(scale) = self.scale {
                    *x *= scale;
                }
            }
        }
    }
}

/// Runs the recurrence of each value head over all rows. `added` is scratch memory:
/// `[n_value_heads, value_dim]`.
fn run_heads(
    team: &Team,
    weights: &RecurrentWeights,
    (convolved, factors): (&[f32], &[f32]),
    places: &[Place],
    matrices: &[SharedSlice<'_>],
    (added, out): (&mut [f32], &mut [f32]),
) {
    let (shape, isa) = (weights.shape, team.isa());
    let Recurrent { rule, n_value_heads, key_dim, value_dim, .. } = shape;
    let size = key_dim * value_dim;
    let (added, out) = (SharedSlice::new(added), SharedSlice::new(out));
    team.for_each_piece(n_value_heads, |_, head| {
        // SAFETY: members use disjoint heads.
        let added = unsafe { added.range_mut(head * value_dim..(head + 1) * value_dim) };
        let first_key = shape.key_head(head) * key_dim;
        let first_value = 2 * shape.key_width() + head * value_dim;
        for (row, place) in places.iter().enumerate() {
            let x = &convolved[row * shape.channels()..][..shape.channels()];
            let factors = &factors[2 * (row * n_value_heads + head)..][..2];
            let first_out = (row * n_value_heads + head) * value_dim;
            // SAFETY: members use disjoint heads of every slot and of every row.
            let (matrix, out) = unsafe {
                let matrix = place.start(matrices, head * size..(head + 1) * size);
                (matrix, out.range_mut(first_out..first_out + value_dim))
            };
            let step = HeadStep {
                rule,
                query: &x[first_key..first_key + key_dim],
                key: &x[shape.key_width() + first_key..][..key_dim],
                value: &x[first_value..first_value + value_dim],
                decay: factors[0],
                factor: factors[1],
                skip: weights.skip.as_ref().map_or(0.0, |skip| skip[head]),
                matrix,
                added,
                out,
            };
            vectorize(isa, step);
        }
    });
}

/// One row of a head.
struct HeadStep<'a> {
    rule: RecurrentRule,
    query: &'a [f32], // [key_dim]
    key: &'a [f32],   // [key_dim]
    value: &'a [f32], // [value_dim]
    decay: f32,
    /// `β` or `Δ`.
    factor: f32,
    skip: f32,
    matrix: &'a mut [f32], // [key_dim, value_dim]
    added: &'a mut [f32],  // [value_dim], scratch
    out: &'a mut [f32],    // [value_dim]
}

impl Vectorized for HeadStep<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { rule, query, key, value, decay, factor, skip, matrix, added, out } = self;
        let size = value.len();
        added.fill(0.0);
        for (row, &key) in matrix.chunks_exact_mut(size).zip(key) {
            for (state, memory) in row.iter_mut().zip(added.iter_mut()) {
                *state *= decay;
                *memory += *state * key;
            }
        }
        let is_delta = rule == RecurrentRule::GatedDelta;
        for (added, &value) in added.iter_mut().zip(value) {
            *added = if is_delta { (value - *added) * factor } else { value * factor };
        }
        out.fill(0.0);
        for ((row, &key), &query) in matrix.chunks_exact_mut(size).zip(key).zip(query) {
            for ((state, &added), out) in row.iter_mut().zip(added.iter()).zip(out.iter_mut()) {
                *state += key * added;
                *out += *state * query;
            }
        }
        if !is_delta {
            for (out, &value) in out.iter_mut().zip(value) {
                *out += skip * value;
            }
        }
    }
}

/// Applies norm and gate.
fn finish(
    team: &Team,
    weights: &RecurrentWeights,
    projected: &[f32],
    convolved: &[f32],
    out: &mut [f32],
) {
    let (shape, isa) = (weights.shape, team.isa());
    let (channels, width) = (shape.channels(), shape.projected_width());
    let (rows, values) = (projected.len() / width, shape.value_width());
    let out = SharedSlice::new(out);
    let norm = |x: &mut [f32], width| {
        norm_parts(isa, Norm::Rms, x, (&weights.norm, width), weights.epsilon);
    };
    team.for_each_range(rows, 1, |range| {
        for row in range {
            // SAFETY: members write to disjoint rows.
            let x = unsafe { out.range_mut(row * values..(row + 1) * values) };
            let gates = &projected[row * width + channels..][..values];
            match shape.rule {
                RecurrentRule::GatedDelta => {
                    norm(x, shape.value_dim);
                    vectorize(isa, SiluGate { x, gates });
                }
                RecurrentRule::StateSpace => {
                    vectorize(isa, SiluGate { x: &mut *x, gates });
                    norm(x, values);
                }
                RecurrentRule::Convolution => {
                    let convolved = &convolved[row * channels..][..channels];
                    for ((x, gate), convolved) in x.iter_mut().zip(gates).zip(convolved) {
                        *x = gate * convolved;
                    }
                }
            }
        }
    });
}

/// Computes `x *= silu(gates)`.
struct SiluGate<'a> {
    x: &'a mut [f32],
    gates: &'a [f32],
}

impl Vectorized for SiluGate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, &gate) in self.x.iter_mut().zip(self.gates) {
            *x *= silu(gate);
        }
    }
}

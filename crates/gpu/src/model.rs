//! A model on a GPU.

use crate::attention::partial_bytes;
use crate::best::{ChunkLogits, OutputRows};
use crate::cost::{PassCost, PassTimes};
use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::features::FeaturePlace;
use crate::kernel_timer::{KernelTime, KernelTimer};
use crate::mixture::Distribution;
use crate::pacer::Pacer;
use crate::pages::GpuPages;
use crate::pass::PassRun;
use crate::recorder::{BoundBuffers, Recorder, Submitted};
use crate::rows::PassRows;
use crate::scratch::{GrowingBuffer, Scratch};
use crate::weights::GpuWeights;
use crate::widths::{Widths, widths_of_mlps};
use forerun_cache::PageStorage;
use forerun_core::BestTokens;
use forerun_formats::{Architecture, Checkpoint, FeatureSource, ModelTypes};
use forerun_lm::{CachePart, LayerOrder};
use forerun_model::{CacheOverflow, Cancelled, Forward, Pass, PassError, PassOutput};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use wgpu::{Buffer, SubmissionIndex};

/// Features of so many bytes are written with the rest of a pass.
const AT_ONCE_BYTES: usize = 1 << 20;

/// A model on a GPU: its weights, and the buffers of its forward passes.
pub struct GpuModel {
    scratch: Scratch,
    bound: BoundBuffers,
    /// The generation of the keys and values that `bound` refers to.
    bound_generation: usize,
    pacer: Pacer,
    staging: Option<Buffer>,
    /// The hidden states that are stored as features for drafters.
    pub(crate) features: Option<FeatureSource>,
    timer: Option<KernelTimer>,
    cost: PassCost,
    times: PassTimes,
    logits: Vec<f32>,           // [whole output rows, head outputs]
    best: Vec<Vec<BestTokens>>, // [sequences][output rows]
    hidden: Vec<f32>,           // [rows whose hidden states are read, hidden]
    /// The hidden states that the first layers of a model return: `[kept, rows, hidden]`.
    pub(crate) kept: Vec<f32>,
    pub(crate) overflows: Vec<CacheOverflow>,
    /// Dropped after the buffers.
    pub(crate) weights: Arc<GpuWeights>,
}

/// Where the results of a pass are in the staging buffer, in bytes.
struct ResultPlaces {
    features: u64, // [parts][rows, hidden], after the overflows: [rows]
    logits: u64,   // [whole output rows, head outputs]
    best: u64,     // [selected tokens, 2]
    hidden: u64,   // [rows whose hidden states are read, hidden]
    loads: u64,    // [layers] if the model has experts
    end: u64,
}

impl GpuModel {
    /// Creates a model from its weights.
    #[must_use]
    pub fn new(weights: Arc<GpuWeights>) -> Self {
        Self {
            weights,
            scratch: Scratch::default(),
            bound: BoundBuffers::default(),
            bound_generation: 0,
            pacer: Pacer::default(),
            staging: None,
            features: None,
            timer: None,
            cost: PassCost::default(),
            times: PassTimes::default(),
            logits: Vec::new(),
            best: Vec::new(),
            hidden: Vec::new(),
            kept: Vec::new(),
            overflows: Vec::new(),
        }
    }

    /// Loads a checkpoint.
    ///
    /// # Errors
    /// As [`GpuWeights::load_architecture`].
    pub fn load(
        device: &Arc<GpuDevice>,
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        Ok(Self::new(Arc::new(GpuWeights::load(device, checkpoint, types)?)))
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { features: Some(features), ..self }
    }

    /// Returns the weights.
    #[must_use]
    pub fn weights(&self) -> &Arc<GpuWeights> {
        &self.weights
    }

    /// Returns the largest number of bytes of pages and states that kernels can address: the budget
    /// of a cache must not exceed it.
    #[must_use]
    pub fn max_cache_bytes(&self) -> usize {
        let storage = self.new_storage();
        storage.max_cache_bytes(storage.page_bytes(), storage.state_bytes())
    }

    /// Returns what the last pass cost.
    #[must_use]
    pub fn last_cost(&self) -> PassCost {
        self.cost
    }

    /// Returns where the time of the last pass went.
    #[must_use]
    pub fn last_times(&self) -> PassTimes {
        self.times
    }

    /// Measures the kernels of the passes from now on, and forgets earlier times. Passes take a
    /// little longer. A GPU without a clock measures nothing.
    ///
    /// # Errors
    /// If the GPU has failed, or has no memory.
    pub fn measure_kernels(&mut self) -> Result<(), GpuFailure> {
        match &mut self.timer {
            Some(timer) => timer.clear(),
            None => self.timer = KernelTimer::new(self.weights.device())?,
        }
        Ok(())
    }

    /// Returns the times of kernels since [`GpuModel::measure_kernels`], the longest first.
    #[must_use]
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        self.timer.as_ref().map_or_else(Vec::new, KernelTimer::times)
    }

    /// Makes all buffers large enough for a pass.
    fn reserve(&mut self, rows: &PassRows, longest_group: usize) -> Result<(), GpuFailure> {
        let Self { weights, scratch, bound, .. } = self;
        let (device, architecture) = (weights.device(), weights.architecture());
        let (count, hidden) = (rows.rows.len(), architecture.hidden_size);
        let floats = |width: usize| (count * width * size_of::<f32>()) as u64;
        let widths = Widths::of(weights);
        let partials = weights.layers.iter().filter_map(|layer| layer.attention());
        let partials = partials.map(|attention| {
            let splits = rows.splits(&attention.shape);
            partial_bytes(attention, splits, count)
        });
        let logits = outputs_at_once(device, weights.head.outputs).min(rows.outputs.len());
        let outputs = &rows.output_rows;
        let deltas = scratch.deltas.len().max(longest_group).max(1);
        scratch.deltas.resize_with(deltas, GrowingBuffer::default);
        let [dense, experts] = widths_of_mlps(weights);
        let both = floats(widths.dense_next_to_experts);
        let distributions = weights.layers.iter().flat_map(|layer| &layer.experts);
        let distributions =
            distributions.map(|experts| Distribution::new(&experts.shape, count as u32));
        let (choices, tiles) = distributions
            .fold((0, 0), |(choices, tiles), of| (of.choices.max(choices), of.tiles.max(tiles)));
        let (choices, tiles) = (u64::from(choices), u64::from(tiles));
        let sizes = [
            (&mut scratch.rows, size_of_val(&rows.rows[..]) as u64),
            (&mut scratch.places, size_of_val(&rows.places[..]) as u64),
            (&mut scratch.tables, size_of_val(&rows.tables[..]) as u64),
            (&mut scratch.overflows, floats(1)),
            (&mut scratch.hidden, floats(hidden)),
            (&mut scratch.normed, floats(hidden)),
            (&mut scratch.features, floats(widths.features)),
            (&mut scratch.embeddings, floats(widths.embeddings)),
            (&mut scratch.joined, floats(widths.joined)),
            (&mut scratch.mlp_input, floats(hidden)),
            (
                &mut scratch.projected,
                floats(widths.projected).max(floats(dense[0])).max(4 * choices * experts[0] as u64),
            ),
            (&mut scratch.queries, floats(widths.queries)),
            (&mut scratch.partials, partials.max().unwrap_or(0)),
            (&mut scratch.attended, floats(widths.attended)),
            (&mut scratch.latent.normed, floats(widths.latent_normed)),
            (&mut scratch.latent.queries, floats(widths.latent_queries)),
            (&mut scratch.latent.plain, floats(widths.latent_plain)),
            (&mut scratch.latent.down, floats(widths.latent_down)),
            (&mut scratch.latent.values, floats(widths.latent_values)),
            (&mut scratch.block.own, floats(widths.block_own)),
            (&mut scratch.block.input, floats(widths.block)),
            (&mut scratch.block.output, floats(widths.block)),
            (&mut scratch.own_inputs, floats(widths.own_inputs)),
            (&mut scratch.steps, size_of_val(&rows.steps[..]) as u64),
            (&mut scratch.convolved, floats(widths.convolved)),
            (&mut scratch.recurred, floats(widths.recurred)),
            (&mut scratch.inner, floats(dense[1]).max(4 * choices * experts[1] as u64)),
            (&mut scratch.dense, both),
            (&mut scratch.gates, floats(widths.gates)),
            (&mut scratch.scores, floats(widths.scores)),
            (&mut scratch.choices, 8 * choices),
            (&mut scratch.members, 4 * choices),
            (&mut scratch.tiles, 16 * tiles),
            (&mut scratch.expert_outputs, 4 * choices * hidden as u64),
            (&mut scratch.loads, 4 * weights.layers.len() as u64),
            (&mut scratch.logits, (logits * weights.head.outputs * size_of::<f32>()) as u64),
            (&mut scratch.best, 8 * (u64::from(outputs.selected()) + outputs.between())),
        ];
        let deltas = scratch.deltas.iter_mut().map(|delta| (delta, floats(hidden)));
        for (buffer, bytes) in sizes.into_iter().chain(deltas) {
            if buffer.reserve(device, bytes)? {
                bound.clear();
            }
        }
        Ok(())
    }

    /// Makes the staging buffer large enough. Returns where the results are.
    fn place_results(&mut self, rows: &PassRows) -> Result<ResultPlaces, GpuFailure> {
        let size = size_of::<f32>();
        let parts = match &self.features {
            None => 0,
            Some(FeatureSource::LastHidden) => 1,
            Some(FeatureSource::Layers(chosen)) => chosen.len(),
        };
        let (count, hidden) = (rows.rows.len(), self.weights.architecture().hidden_size);
        let features = (count * size) as u64;
        let logits = features + (parts * count * hidden * size) as u64;
        let whole = rows.output_rows.whole();
        let best = logits + (whole * self.weights.head.outputs * size) as u64;
        let states = best + 8 * u64::from(rows.output_rows.selected());
        let loads = states + (rows.hidden_count() * hidden * size) as u64;
        let has_experts = self.weights.layers.iter().any(|layer| layer.experts.is_some());
        let end = loads + if has_experts { (self.weights.layers.len() * size) as u64 } else { 0 };
        let held = self.staging.as_ref().map_or(0, Buffer::size);
        if held < end {
            let device = self.weights.device();
            let roomy = end.next_power_of_two().min(device.adapter().max_buffer_bytes).max(end);
            let allocate = |bytes| device.allocate_staging("the results of a pass", bytes);
            self.staging = Some(allocate(roomy).or_else(|_| allocate(end))?);
        }
        Ok(ResultPlaces { features, logits, best, hidden: states, loads, end })
    }

    /// Writes what kernels know of the rows, and what drafters read in addition to tokens.
    fn write_rows(&self, rows: &PassRows) -> Result<(), GpuFailure> {
        let (device, scratch) = (self.weights.device(), &self.scratch);
        device.write(scratch.rows.get(), 0, bytemuck::cast_slice(&rows.rows));
        device.write(scratch.places.get(), 0, bytemuck::cast_slice(&rows.places));
        device.write(scratch.tables.get(), 0, bytemuck::cast_slice(&rows.tables));
        device.write(scratch.steps.get(), 0, bytemuck::cast_slice(&rows.steps));
        let none = vec![u32::MAX; rows.rows.len()];
        device.write(scratch.overflows.get(), 0, bytemuck::cast_slice(&none));
        for run in &rows.features {
            let buffer = match run.place {
                FeaturePlace::Joined => &scratch.joined,
                FeaturePlace::Features | FeaturePlace::Part => &scratch.features,
                FeaturePlace::Normed => &scratch.normed,
                FeaturePlace::Hidden => &scratch.hidden,
            };
            let width = run.place.width(self.weights.architecture());
            let offset = run.rows.start as usize * width * size_of::<f32>();
            let bytes: &[u8] = bytemuck::cast_slice(&run.values);
            match bytes.len() <= AT_ONCE_BYTES {
                true => device.write(buffer.get(), offset as u64, bytes),
                false => device.upload(buffer.get(), offset as u64, bytes)?,
            }
        }
        Ok(())
    }

    /// Records and submits all dispatches of a pass, with the embedding or without. Returns what
    /// may still be in progress.
    fn run(
        &mut self,
        (pass, embeds): (&Pass<'_>, bool),
        rows: &PassRows,
        places: &ResultPlaces,
        storage: &mut GpuPages,
    ) -> Result<Submitted, PassError> {
        let Self { weights, scratch, bound, pacer, staging, features, timer, .. } = self;
        let staging = staging.as_ref().expect("a staging buffer");
        let recorder = Recorder::new(weights.device(), bound, pacer);
        let mut recorder = recorder.with_timer(timer.as_mut());
        let has_copies = storage.record_copies(&mut recorder)?;
        let mut run = PassRun { weights, rows, scratch, pages: storage, recorder };
        if embeds {
            run.first_input();
        }
        let mut copy = FeatureCopy { source: features.as_ref(), staging, places };
        copy.after_layers(0, &mut run);
        let (n_layers, key_layers) = (weights.layers.len(), weights.architecture().key_layers());
        let groups = (0..pass.order.len(n_layers)).map(|index| pass.order.group(index));
        let is_computed =
            |group: &Range<usize>| key_layers == 0 || rows.is_context == (group.start < key_layers);
        for group in groups.filter(is_computed) {
            if pass.is_cancelled() {
                if has_copies {
                    run.recorder.finish();
                }
                return Err(Cancelled.into());
            }
            match rows.is_context {
                true => group.clone().for_each(|layer| run.store_context(layer)),
                false => run.layers(group.clone()),
            }
            copy.after_layers(group.end, &mut run);
        }
        copy.after_all(&mut run);
        let size = size_of::<f32>() as u64;
        run.recorder.copy(
            (scratch.overflows.get(), 0),
            (staging, 0),
            rows.rows.len() as u64 * size,
        );
        let row_bytes = weights.architecture().hidden_size as u64 * size;
        let mut to = places.hidden;
        for read in &rows.hidden {
            let (from, bytes) = (read.start as u64 * row_bytes, read.len() as u64 * row_bytes);
            run.recorder.copy((scratch.hidden.get(), from), (staging, to), bytes);
            to += bytes;
        }
        let outputs = rows.outputs.len() as u32;
        let at_once = outputs_at_once(weights.device(), weights.head.outputs) as u32;
        for first in (0..outputs).step_by(at_once as usize) {
            let chunk = first..outputs.min(first + at_once);
            run.logits(chunk.clone());
            let computed = ChunkLogits {
                logits: scratch.logits.get(),
                width: weights.head.outputs as u32,
                best: scratch.best.get(),
            };
            let to = (staging, places.logits);
            run.recorder.keep_outputs(&rows.output_rows, (&chunk, computed), to);
        }
        let best = (scratch.best.get(), 0);
        run.recorder.copy(best, (staging, places.best), places.hidden - places.best);
        let loads = (scratch.loads.get(), 0);
        run.recorder.copy(loads, (staging, places.loads), places.end - places.loads);
        let submitted = run.recorder.finish();
        self.cost =
            PassCost { rows: rows.rows.len(), read_back_bytes: places.end, ..run.recorder.cost };
        Ok(submitted)
    }

    fn read_results(
        &mut self,
        rows: &PassRows,
        places: &ResultPlaces,
        storage: &mut GpuPages,
        submission: SubmissionIndex,
    ) -> Result<(), GpuFailure> {
        let staging = self.staging.as_ref().expect("a staging buffer");
        let (logits, overflows, cost) = (&mut self.logits, &mut self.overflows, &mut self.cost);
        let best = &mut self.best;
        logits.clear();
        overflows.clear();
        let (kept, is_part) = (&mut self.kept, self.weights.is_part());
        let hidden_states = &mut self.hidden;
        let hidden = self.weights.architecture().hidden_size;
        let (started, times) = (Instant::now(), &mut self.times);
        self.weights.device().read(staging, places.end, submission, |bytes| {
            times.waiting = started.elapsed();
            let part = |range: Range<u64>| &bytes[range.start as usize..range.end as usize];
            let of_rows: &[u32] = bytemuck::cast_slice(part(0..places.features));
            overflows.extend(of_rows.iter().enumerate().filter_map(overflow));
            let features: &[f32] = bytemuck::cast_slice(part(places.features..places.logits));
            kept.clear();
            if is_part {
                kept.extend_from_slice(features);
            } else if storage.has_features() && !features.is_empty() {
                let interleaved = interleaved(features, rows.rows.len(), hidden);
                storage.store_features(&rows.own_places, &interleaved);
            }
            logits.extend_from_slice(bytemuck::cast_slice(part(places.logits..places.best)));
            let selected = bytemuck::cast_slice(part(places.best..places.hidden));
            *best = rows.output_rows.best_tokens(selected);
            hidden_states.clear();
            let states: &[f32] = bytemuck::cast_slice(part(places.hidden..places.loads));
            hidden_states.extend_from_slice(states);
            let loads: &[u32] = bytemuck::cast_slice(part(places.loads..places.end));
            for (layer, load) in self.weights.layers.iter().zip(loads) {
                if let Some(experts) = &layer.experts {
                    cost.experts += *load as usize;
                    cost.weight_bytes += u64::from(*load) * experts.expert_bytes();
                }
            }
        })?;
        self.times.reading = started.elapsed() - self.times.waiting;
        overflows.sort_by_key(|overflow| (overflow.layer, overflow.row));
        Ok(())
    }
}

impl Forward for GpuModel {
    type Storage = GpuPages;

    fn architecture(&self) -> &Architecture {
        self.weights.architecture()
    }

    fn new_storage(&self) -> GpuPages {
        let weights = &self.weights;
        let (device, empty) = (weights.device(), &weights.empty_pages);
        let storage = GpuPages::new(device, &weights.layers, weights.cache_type(), empty);
        match &self.features {
            Some(features) => {
                storage.with_features(features.width(weights.architecture().hidden_size))
            }
            None => storage,
        }
    }

    /// Cancellation is checked before each group of layers, while a pass is recorded. Long passes
    /// are several submissions.
    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut GpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        self.compute(pass, None, storage)?;
        let Self { logits, best, hidden, overflows, .. } = self;
        Ok(PassOutput { logits, best, hidden, overflows })
    }
}

impl GpuModel {
    /// Computes a pass. With `inputs`, only the first layers are here: these are the hidden states
    /// before them, and there are no logits.
    pub(crate) fn compute(
        &mut self,
        pass: &Pass<'_>,
        inputs: Option<&[f32]>,
        storage: &mut GpuPages,
    ) -> Result<(), PassError> {
        if pass.is_cancelled() {
            return Err(Cancelled.into());
        }
        self.weights.device().check()?;
        let started = Instant::now();
        let mut rows = PassRows::new(pass, &self.weights, storage.state_bytes() > 0);
        let vocabulary = self.weights.architecture().embedded_tokens();
        let is_known = |row: &crate::rows::Row| (row.token as usize) < vocabulary;
        assert!(rows.rows.iter().all(is_known), "every token has an embedding");
        if inputs.is_some() {
            rows.outputs.clear();
            rows.output_rows = OutputRows::default();
        }
        let n_layers = self.weights.layers.len();
        if let LayerOrder::Groups(groups) = pass.order {
            assert_eq!(groups.n_layers(), n_layers, "groups of all layers");
        }
        let groups = (0..pass.order.len(n_layers)).map(|index| pass.order.group(index).len());
        let longest_group = groups.max().unwrap_or(1);
        self.reserve(&rows, longest_group)?;
        if self.bound_generation != storage.generation() {
            self.bound.clear();
            self.bound_generation = storage.generation();
        }
        let places = self.place_results(&rows)?;
        self.write_rows(&rows)?;
        if let Some(inputs) = inputs {
            let hidden = self.scratch.hidden.get();
            self.weights.device().write(hidden, 0, bytemuck::cast_slice(inputs));
        }
        let Submitted { submission, work, since } =
            self.run((pass, inputs.is_none()), &rows, &places, storage)?;
        self.times.recording = started.elapsed();
        self.read_results(&rows, &places, storage, submission.clone())?;
        if let Some(timer) = &mut self.timer {
            timer.collect(self.weights.device(), submission)?;
        }
        self.pacer.observe(work, since);
        self.weights.device().end_pass();
        Ok(())
    }
}

/// Copies hidden states that are features to the staging buffer.
struct FeatureCopy<'a> {
    source: Option<&'a FeatureSource>,
    staging: &'a Buffer,
    places: &'a ResultPlaces,
}

impl FeatureCopy<'_> {
    /// Copies the hidden states after a number of layers, as often as they are part of the
    /// features.
    fn after_layers(&mut self, layers: usize, run: &mut PassRun<'_>) {
        let Some(FeatureSource::Layers(chosen)) = self.source else { return };
        for (part, _) in chosen.iter().enumerate().filter(|(_, after)| **after == layers) {
            let hidden = run.scratch.hidden.get().clone();
            self.copy(part as u64, &hidden, run);
        }
    }

    /// Copies the hidden states after the last layer and the final norm, if these are the features.
    fn after_all(&mut self, run: &mut PassRun<'_>) {
        if self.source == Some(&FeatureSource::LastHidden) {
            let normed = run.normed_hidden().clone();
            self.copy(0, &normed, run);
        }
    }

    fn copy(&mut self, part: u64, from: &Buffer, run: &mut PassRun<'_>) {
        let hidden = run.weights.architecture().hidden_size;
        let bytes = (run.rows.rows.len() * hidden * size_of::<f32>()) as u64;
        let to = (self.staging, self.places.features + part * bytes);
        run.recorder.copy((from, 0), to, bytes);
    }
}

/// Returns the number of outputs whose logits are computed at once.
pub(crate) fn outputs_at_once(device: &GpuDevice, head_outputs: usize) -> usize {
    let row_bytes = (head_outputs * size_of::<f32>()) as u64;
    ((device.max_binding_bytes() / row_bytes.max(1)) as usize).max(1)
}

fn overflow((row, code): (usize, &u32)) -> Option<CacheOverflow> {
    let part = if code.is_multiple_of(2) { CachePart::Key } else { CachePart::Value };
    (*code != u32::MAX).then_some(CacheOverflow { row, layer: (*code / 2) as usize, part })
}

/// Turns `[parts][rows, hidden]` into `[rows][parts, hidden]`.
fn interleaved(features: &[f32], rows: usize, hidden: usize) -> Vec<f32> {
    let parts = || features.chunks_exact(rows * hidden);
    let row = |row: usize| parts().flat_map(move |part| &part[row * hidden..][..hidden]);
    (0..rows).flat_map(row).copied().collect()
}

//! The reference as a device: passes over batches and pages, one row after another.

use crate::block_conv::Kernel;
use crate::recurrent::RecurrentState;
use crate::weights::ReferenceModel;
use forerun_cache::{
    PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StateBefore, StateId, StateStep,
    StorageError,
};
use forerun_core::{FeatureRows, TokenId};
use forerun_formats::{Architecture, FeatureSource, Input, Recurrent};
use forerun_model::{
    Cancelled, Forward, ForwardLayers, ForwardRest, LayersOutput, Pass, PassError, PassOutput,
    RowFeature, SequencePass,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A model on the reference device.
pub struct ReferenceDevice {
    model: Arc<ReferenceModel>,
    /// The hidden states that are stored as features for drafters.
    features: Option<FeatureSource>,
    /// The rows of a pass whose first layers are on another device.
    started: Vec<Row>,
    logits: Vec<f32>, // [output rows, head outputs]
    hidden: Vec<f32>, // [rows, hidden]
}

/// The first layers of a model on the reference device.
pub struct ReferenceLayers {
    device: ReferenceDevice,
    n_layers: usize,
    kept: Vec<f32>, // [kept, rows, hidden]
}

/// Keys, values and features, row by row.
#[derive(Default)]
pub struct ReferencePages {
    row_bytes: usize,
    keys_and_values: HashMap<(usize, RowPlace), [Vec<f32>; 2]>,
    features: Option<HashMap<RowPlace, Vec<f32>>>,
    state_bytes: usize,
    /// The states of recurrent layers, by layer.
    states: HashMap<(usize, StateId), RecurrentState>,
}

struct Row {
    /// The places of its keys and values and of those before it: `[position + 1]`.
    path: Vec<RowPlace>,
    later: Vec<RowPlace>,
    /// The number of rows before it in its block.
    in_block: usize,
    embedding: Vec<f32>,
    /// The inputs of the layers next to the hidden state, if they have any: `[layers, width]`.
    own_inputs: Vec<f32>,
    hidden: Vec<f32>,
    is_output: bool,
    /// Where the row's recurrence starts and ends, if the model has recurrent layers.
    step: Option<StateStep>,
}

impl Row {
    fn position(&self) -> usize {
        self.path.len() - 1
    }

    fn place(&self) -> RowPlace {
        self.path[self.position()]
    }
}

impl ReferenceDevice {
    /// Creates a model on the reference device.
    #[must_use]
    pub fn new(model: Arc<ReferenceModel>) -> Self {
        let (started, logits, hidden) = (Vec::new(), Vec::new(), Vec::new());
        Self { model, features: None, started, logits, hidden }
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { features: Some(features), ..self }
    }

    /// Returns the rows of a sequence with the first layer's inputs.
    fn rows(&self, sequence: &SequencePass<'_>) -> Vec<Row> {
        let (tree, table) = (sequence.tree, sequence.cache.table());
        let prefix = sequence.cache.prefix_len();
        let has_states = self.model.architecture().state_bytes() > 0;
        let architecture = self.model.architecture();
        let is_block = matches!(architecture.input, Input::Block { .. });
        let is_block = is_block || architecture.is_encoder();
        let mut steps = Vec::new();
        if has_states {
            sequence.cache.add_state_steps(tree, &mut steps);
        }
        let mut steps = steps.into_iter();
        let row = |node| {
            let nodes = tree.path(node).into_iter().map(|node| prefix + node);
            let path: Vec<RowPlace> =
                (0..prefix).chain(nodes).map(|slot| table.place(slot)).collect();
            let later = (prefix + node + 1..prefix + tree.len()).filter(|_| is_block);
            let later = later.map(|slot| table.place(slot)).collect();
            let feature = sequence.features.get(node - sequence.held());
            let token = tree.token(node);
            let hidden = self.input(token, prefix + tree.depth(node) - 1, feature.copied());
            let is_output = node >= sequence.first_output;
            let step = steps.next();
            let embedding = self.model.embed(token);
            let own_inputs = self.model.own_inputs(token, &embedding);
            let in_block = node - sequence.held();
            Row { path, later, in_block, embedding, own_inputs, hidden, is_output, step }
        };
        (sequence.held()..tree.len()).map(row).collect()
    }

    /// Computes the first layer's input.
    fn input(&self, token: TokenId, position: usize, feature: Option<RowFeature<'_>>) -> Vec<f32> {
        let values = match feature {
            Some(
                RowFeature::Target(values)
                | RowFeature::Context(values)
                | RowFeature::Predicted(values),
            ) => values,
            Some(RowFeature::Mask) => self.model.mask_feature(token),
            None => &[],
        };
        match (self.model.architecture().input, feature) {
            (Input::Block { .. }, None) => self.model.embed(token),
            (Input::Block { .. }, Some(_)) => self.model.context(values),
            (Input::Embedding, _) => self.model.embed_at(token, position),
            (
                Input::Feature { normed_predictions: true, .. },
                Some(RowFeature::Predicted(predicted)),
            ) => self.model.final_norm(predicted),
            (Input::TargetKeys { .. }, Some(RowFeature::Context(_))) => values.to_vec(),
            (Input::TargetKeys { width }, feature) => {
                let read = match feature {
                    Some(RowFeature::Predicted(state)) => self.model.prediction(state),
                    _ => self.model.normed_feature(&values[values.len() - width..]),
                };
                self.model.fuse(&[self.model.embed(token), read].concat())
            }
            (Input::UnprojectedFeature, _)
            | (Input::Feature { .. }, Some(RowFeature::Predicted(_))) => values.to_vec(),
            (Input::NormedEmbeddingAndFeature, feature) => {
                let embedding = self.model.normed_embedding(token);
                let feature = match feature {
                    Some(RowFeature::Predicted(predicted)) => {
                        self.model.normed_feature(&self.model.final_norm(predicted))
                    }
                    _ => self.model.normed_feature(values),
                };
                self.model.fuse(&[embedding, feature].concat())
            }
            (Input::EmbeddingAndFeature, _) => {
                self.model.fuse(&[&self.model.embed(token), values].concat())
            }
            (Input::Feature { .. }, _) => self.model.fuse(&self.model.normed_feature(values)),
            (Input::EmbeddingPlusFeature { scale, .. }, _) => {
                let projected = self.model.fuse(&self.model.normed_feature(values));
                let embedding = self.model.embed(token).into_iter();
                embedding.zip(projected).map(|(x, projected)| x + scale * projected).collect()
            }
        }
    }

    /// Computes the attention of a layer for all rows, from their present hidden states. Returns
    /// what it reads and what it adds to each row.
    fn attention(
        &self,
        layer: usize,
        rows: &[Row],
        storage: &mut ReferencePages,
    ) -> Vec<[Vec<f32>; 2]> {
        let input = |row: &Row| self.model.attention_input(layer, &row.hidden, &row.embedding);
        let inputs: Vec<Vec<f32>> = rows.iter().map(input).collect();
        let convs = self.model.attention_convs(layer, &inputs);
        let inputs = convolved(convs.as_ref().map(|convs| &convs.before), rows, inputs);
        if let Some(mixer) = &self.model.architecture().layers[layer].recurrent {
            let deltas = self.mix(layer, mixer, rows, &inputs, storage);
            return inputs.into_iter().zip(deltas).map(|(input, delta)| [input, delta]).collect();
        }
        let attention = self.model.attention(layer);
        let own_keys = rows.iter().zip(&inputs).filter(|_| attention.keys_of.is_none());
        for (row, input) in own_keys {
            let cached = self.model.keys_and_values(layer, input, row.position());
            storage.keys_and_values.insert((layer, row.place()), cached);
        }
        let (window, source) = (attention.window, attention.keys_of.unwrap_or(layer));
        // Rows on the target's keys have none of their own.
        let has_own = !matches!(self.model.architecture().input, Input::TargetKeys { .. });
        let attend = |(row, input): (&Row, &Vec<f32>)| {
            let first = (row.position() + 1).saturating_sub(window.unwrap_or(usize::MAX));
            let later = row.later.iter().filter(|_| attention.sees_block);
            let end = row.path.len() - usize::from(!has_own);
            let visible = row.path[first..end].iter().chain(later).map(|&place| {
                let [keys, values] = &storage.keys_and_values[&(source, place)];
                [&keys[..], &values[..]]
            });
            let queries = self.model.queries(layer, input, row.position());
            self.model.attend(layer, (input, &queries), &visible.collect::<Vec<_>>(), first)
        };
        let deltas: Vec<Vec<f32>> = rows.iter().zip(&inputs).map(attend).collect();
        let deltas = convolved(convs.as_ref().map(|convs| &convs.after), rows, deltas);
        inputs.into_iter().zip(deltas).map(|(input, delta)| [input, delta]).collect()
    }

    /// Computes the recurrent mixer of a layer for all rows, in order. Returns what it adds to each
    /// row.
    fn mix(
        &self,
        layer: usize,
        mixer: &Recurrent,
        rows: &[Row],
        inputs: &[Vec<f32>],
        storage: &mut ReferencePages,
    ) -> Vec<Vec<f32>> {
        let mut running = None;
        let mut deltas = Vec::new();
        for (row, input) in rows.iter().zip(inputs) {
            let step = row.step.expect("the states of a model with recurrent layers");
            let mut state = match step.before {
                StateBefore::Zero => None,
                StateBefore::Kept(state) => Some(storage.states[&(layer, state)].clone()),
                StateBefore::Running => running.take(),
            };
            deltas.push(self.model.mix(layer, mixer, input, &mut state));
            match step.after {
                Some(slot) => storage.states.extend(state.map(|state| ((layer, slot), state))),
                None => running = state,
            }
        }
        deltas
    }

    /// Adds the hidden states after a number of layers to the rows' features, if they are part of
    /// them.
    fn store_features(&self, layers: usize, rows: &[Row], storage: &mut ReferencePages) {
        let (Some(source), Some(stored)) = (&self.features, &mut storage.features) else { return };
        let is_last = layers == self.model.architecture().layers.len();
        for row in rows {
            match source {
                FeatureSource::LastHidden if is_last => {
                    stored.insert(row.place(), self.model.final_norm(&row.hidden));
                }
                FeatureSource::LastHidden => {}
                FeatureSource::Layers(chosen) => {
                    let size = row.hidden.len();
                    let features = stored.entry(row.place()).or_default();
                    features.resize(chosen.len() * size, 0.0);
                    for (part, _) in
                        chosen.iter().enumerate().filter(|(_, after)| **after == layers)
                    {
                        features[part * size..][..size].copy_from_slice(&row.hidden);
                    }
                }
            }
        }
    }
}

impl Forward for ReferenceDevice {
    type Storage = ReferencePages;

    fn architecture(&self) -> &Architecture {
        self.model.architecture()
    }

    fn new_storage(&self) -> ReferencePages {
        let layers = self.architecture().layers.iter();
        let attention = layers.filter_map(|layer| layer.attention.as_ref());
        let row_bytes = attention.map(|layer| layer.cached_size() * size_of::<f32>()).sum();
        let features = self.features.as_ref().map(|_| HashMap::new());
        let state_bytes = self.architecture().state_bytes();
        ReferencePages { row_bytes, features, state_bytes, ..ReferencePages::default() }
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut ReferencePages,
    ) -> Result<PassOutput<'_>, PassError> {
        let mut rows: Vec<Row> =
            pass.sequences.iter().flat_map(|sequence| self.rows(sequence)).collect();
        self.store_features(0, &rows, storage);
        let n_layers = self.architecture().layers.len();
        let key_layers = self.architecture().key_layers();
        if pass.is_context() {
            let layers = if key_layers > 0 { key_layers } else { n_layers };
            for (layer, row) in (0..layers).flat_map(|layer| rows.iter().map(move |r| (layer, r))) {
                let input = match self.architecture().input {
                    Input::TargetKeys { width } => {
                        let part = &row.hidden[layer * width..][..width];
                        self.model.attention_input(layer, part, &[])
                    }
                    _ => row.hidden.clone(),
                };
                let cached = self.model.keys_and_values(layer, &input, row.position());
                storage.keys_and_values.insert((layer, row.place()), cached);
            }
            (self.logits, self.hidden) = (Vec::new(), Vec::new());
            return Ok(PassOutput { logits: &[], best: &[], hidden: &[], overflows: &[] });
        }
        self.run(pass, key_layers..n_layers, &mut rows, storage)?;
        Ok(self.finish(pass, rows))
    }
}

impl ForwardRest for ReferenceDevice {
    fn inputs(&mut self, pass: &Pass<'_>, storage: &mut ReferencePages) -> &[f32] {
        self.started = pass.sequences.iter().flat_map(|sequence| self.rows(sequence)).collect();
        self.store_features(0, &self.started, storage);
        self.hidden = self.started.iter().flat_map(|row| row.hidden.clone()).collect();
        &self.hidden
    }

    fn store_hidden(&mut self, layers: usize, hidden: &[f32], storage: &mut ReferencePages) {
        set_hidden(&mut self.started, hidden);
        self.store_features(layers, &self.started, storage);
    }

    fn forward_rest(
        &mut self,
        pass: &Pass<'_>,
        first: usize,
        hidden: &[f32],
        storage: &mut ReferencePages,
    ) -> Result<PassOutput<'_>, PassError> {
        let mut rows = std::mem::take(&mut self.started);
        set_hidden(&mut rows, hidden);
        self.run(pass, first..self.architecture().layers.len(), &mut rows, storage)?;
        Ok(self.finish(pass, rows))
    }
}

impl ReferenceLayers {
    /// Creates the first `n_layers` layers of a model.
    #[must_use]
    pub fn new(model: Arc<ReferenceModel>, n_layers: usize) -> Self {
        Self { device: ReferenceDevice::new(model), n_layers, kept: Vec::new() }
    }
}

impl ForwardLayers for ReferenceLayers {
    type Storage = ReferencePages;

    fn n_layers(&self) -> usize {
        self.n_layers
    }

    fn new_storage(&self) -> ReferencePages {
        ReferencePages { state_bytes: 0, ..self.device.new_storage() }
    }

    fn forward_layers(
        &mut self,
        pass: &Pass<'_>,
        inputs: &[f32],
        kept: &[usize],
        storage: &mut ReferencePages,
    ) -> Result<LayersOutput<'_>, PassError> {
        let sequences = pass.sequences.iter();
        let mut rows: Vec<Row> =
            sequences.flat_map(|sequence| self.device.rows(sequence)).collect();
        set_hidden(&mut rows, inputs);
        self.kept.clear();
        let mut first = 0;
        for &end in kept {
            self.device.run(pass, first..end, &mut rows, storage)?;
            self.kept.extend(rows.iter().flat_map(|row| &row.hidden));
            first = end;
        }
        Ok(LayersOutput { hidden: &self.kept, overflows: &[] })
    }
}

/// Convolves rows with one kernel for each, if there is a convolution.
fn convolved(kernels: Option<&Vec<Kernel>>, rows: &[Row], x: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    let Some(kernels) = kernels else { return x };
    let convolve = |(index, (row, kernel)): (usize, (&Row, &Kernel))| {
        kernel.apply(&x[index - row.in_block..=index])
    };
    rows.iter().zip(kernels).enumerate().map(convolve).collect()
}

/// Replaces the hidden states of rows: `[rows, hidden]`.
fn set_hidden(rows: &mut [Row], hidden: &[f32]) {
    let size = hidden.len() / rows.len().max(1);
    for (row, hidden) in rows.iter_mut().zip(hidden.chunks_exact(size.max(1))) {
        row.hidden = hidden.to_vec();
    }
}

impl ReferenceDevice {
    /// Computes the groups of layers that begin within `layers`.
    fn run(
        &self,
        pass: &Pass<'_>,
        layers: Range<usize>,
        rows: &mut [Row],
        storage: &mut ReferencePages,
    ) -> Result<(), PassError> {
        let n_layers = self.architecture().layers.len();
        let groups = (0..pass.order.len(n_layers)).map(|index| pass.order.group(index));
        for group in groups.filter(|group| layers.contains(&group.start)) {
            if pass.is_cancelled() {
                return Err(Cancelled.into());
            }
            // The attention of all layers of a group reads the same hidden states.
            let deltas: Vec<Vec<[Vec<f32>; 2]>> =
                group.clone().map(|layer| self.attention(layer, rows, storage)).collect();
            for (layer, deltas) in group.clone().zip(deltas) {
                self.finish_layer(layer, rows, deltas);
            }
            self.store_features(group.end, rows, storage);
        }
        Ok(())
    }

    /// Adds what attention computed to the rows, and what the rest of a layer computes. `deltas`:
    /// what attention read, and what it adds.
    fn finish_layer(&self, layer: usize, rows: &mut [Row], deltas: Vec<[Vec<f32>; 2]>) {
        let add = |(row, [input, delta]): (&mut Row, [Vec<f32>; 2])| {
            self.model.start_residual(layer, &mut row.hidden, &input);
            self.model.add_attention(layer, &mut row.hidden, &delta)
        };
        let mut inputs: Vec<Vec<f32>> = rows.iter_mut().zip(deltas).map(add).collect();
        let convs = self.model.mlp_convs(layer, &inputs);
        inputs = convolved(convs.as_ref().map(|convs| &convs.before), rows, inputs);
        let deltas = rows.iter().zip(&inputs);
        let deltas = deltas.map(|(row, input)| self.model.mlp_delta(layer, &row.hidden, input));
        let deltas = convolved(convs.as_ref().map(|convs| &convs.after), rows, deltas.collect());
        for (row, delta) in rows.iter_mut().zip(deltas) {
            self.model.add_mlp(layer, &mut row.hidden, (&delta, &row.own_inputs));
        }
    }

    /// Computes the logits of the output rows, and keeps the hidden states that are read.
    fn finish(&mut self, pass: &Pass<'_>, rows: Vec<Row>) -> PassOutput<'_> {
        let outputs = rows.iter().filter(|row| row.is_output);
        self.logits =
            outputs.flat_map(|row| self.model.head(&self.model.final_norm(&row.hidden))).collect();
        self.hidden = rows.into_iter().flat_map(|row| row.hidden).collect();
        pass.retain_hidden_rows(&mut self.hidden);
        PassOutput { logits: &self.logits, best: &[], hidden: &self.hidden, overflows: &[] }
    }
}

impl PageStorage for ReferencePages {
    fn page_bytes(&self) -> usize {
        PAGE_ROWS * self.row_bytes
    }

    /// Rows are allocated when they are written.
    fn reserve(&mut self, _page: PageId) -> Result<(), StorageError> {
        Ok(())
    }

    fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
        let layers = self.keys_and_values.iter().filter(|((_, place), _)| *place == from);
        let copies: Vec<_> = layers.map(|((layer, _), row)| ((*layer, to), row.clone())).collect();
        self.keys_and_values.extend(copies);
        if let Some(features) = &mut self.features
            && let Some(row) = features.get(&from).cloned()
        {
            features.insert(to, row);
        }
    }

    fn features(&self, table: PageTable<'_>, slots: Range<usize>) -> Option<FeatureRows> {
        let features = self.features.as_ref()?;
        let rows: Vec<&Vec<f32>> = slots.map(|slot| &features[&table.place(slot)]).collect();
        let width = rows.first().map_or(0, |row| row.len());
        Some(FeatureRows::new(width, rows.into_iter().flatten().copied().collect()))
    }

    fn release(&mut self, page: PageId) {
        self.keys_and_values.retain(|(_, place), _| place.page != page);
        if let Some(features) = &mut self.features {
            features.retain(|place, _| place.page != page);
        }
    }

    fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    fn release_state(&mut self, state: StateId) {
        self.states.retain(|(_, other), _| *other != state);
    }
}

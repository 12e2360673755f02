//! The first layer's input in drafters that read features of a target.

use crate::layer_weights::{AttentionNormWeights, NormWeights};
use crate::matrix::GpuMatrix;
use crate::parameters;
use crate::pass::PassRun;
use crate::product::{ProductRows, Store};
use forerun_formats::{Architecture, Input};
use forerun_model::{Pass, RowFeature};
use std::ops::Range;
use wgpu::Buffer;

/// The weights between features and the first layer.
pub(crate) struct FeatureWeights {
    pub(crate) projection: Option<GpuMatrix>, // [hidden, inputs]
    /// The projection of a hidden state to what the next row reads, on the target's keys.
    pub(crate) prediction: Option<GpuMatrix>, // [target's hidden, hidden]
    pub(crate) embedding_norm: Option<NormWeights>,
    pub(crate) norm: Option<FeatureNorms>,
    /// The norm of what layers have keys and values of, in a model that drafts blocks.
    pub(crate) context_norm: Option<NormWeights>,
    /// What mask tokens read in place of features.
    pub(crate) mask_features: Vec<f32>, // [masks, feature width]
}

/// The norms of the first parts of a feature.
pub(crate) struct FeatureNorms {
    pub(crate) weights: NormWeights, // [parts, width]
    pub(crate) parts: usize,
    /// The width of a part.
    pub(crate) width: usize,
    pub(crate) epsilon: f32,
}

/// Where the host writes what rows read in addition to their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeaturePlace {
    /// The second half of the projection's input.
    Joined,
    /// Features before their norm and their projection.
    Features,
    /// The part of a feature that is projected, before its norm.
    Part,
    /// Hidden states that get the final norm.
    Normed,
    /// The first layer's input.
    Hidden,
}

/// What successive rows read in addition to their tokens.
pub(crate) struct FeatureRun {
    pub(crate) place: FeaturePlace,
    pub(crate) rows: Range<u32>,
    pub(crate) values: Vec<f32>, // [rows, width of the place]
}

impl FeaturePlace {
    fn of(architecture: &Architecture, feature: RowFeature<'_>) -> Self {
        let is_normed = match architecture.input {
            Input::Feature { normed_predictions, .. } => normed_predictions,
            _ => true,
        };
        let is_normed = is_normed && architecture.final_norm;
        match (architecture.input, feature) {
            (Input::EmbeddingAndFeature, _) => Self::Joined,
            (Input::UnprojectedFeature, _) => Self::Hidden,
            (Input::TargetKeys { .. }, RowFeature::Predicted(_)) => Self::Normed,
            (Input::TargetKeys { .. }, RowFeature::Target(_)) => Self::Part,
            (Input::Feature { .. }, RowFeature::Predicted(_)) if !is_normed => Self::Hidden,
            (
                Input::Feature { .. } | Input::NormedEmbeddingAndFeature,
                RowFeature::Predicted(_),
            ) if is_normed => Self::Normed,
            _ => Self::Features,
        }
    }

    /// Returns the numbers of a row.
    pub(crate) fn width(self, architecture: &Architecture) -> usize {
        match self {
            Self::Joined => 2 * architecture.hidden_size,
            Self::Features => architecture.feature_width(),
            Self::Part => architecture.embedding_width(),
            Self::Normed | Self::Hidden => architecture.hidden_size,
        }
    }
}

/// Collects what the rows of a pass read in addition to their tokens. Empty if they read nothing
/// else.
///
/// # Panics
/// If some rows have features and others have none, in a model that needs them.
pub(crate) fn feature_runs(
    pass: &Pass<'_>,
    architecture: &Architecture,
    mask_features: &[f32],
) -> Vec<FeatureRun> {
    let mut runs: Vec<FeatureRun> = Vec::new();
    let width = architecture.feature_width();
    if pass.is_context() && matches!(architecture.input, Input::TargetKeys { .. }) {
        return vec![parts_of_context(pass, architecture)];
    }
    let mut row = 0;
    for sequence in pass.sequences {
        let tokens = &sequence.tree.tokens()[sequence.held()..];
        let is_block = matches!(architecture.input, Input::Block { .. });
        if architecture.input == Input::Embedding || is_block && sequence.features.is_empty() {
            row += tokens.len() as u32;
            continue;
        }
        assert_eq!(sequence.features.len(), tokens.len(), "a feature for each row");
        for (&token, &feature) in tokens.iter().zip(sequence.features) {
            let values = match feature {
                RowFeature::Target(values)
                | RowFeature::Context(values)
                | RowFeature::Predicted(values) => values,
                RowFeature::Mask => {
                    &mask_features[(token as usize - architecture.vocab_size) * width..][..width]
                }
            };
            let place = FeaturePlace::of(architecture, feature);
            match runs.last_mut() {
                Some(run) if run.place == place && run.rows.end == row => run.rows.end += 1,
                _ => runs.push(FeatureRun { place, rows: row..row + 1, values: Vec::new() }),
            }
            let run = runs.last_mut().expect("a run");
            let width = place.width(architecture);
            let before = width.saturating_sub(values.len());
            run.values.resize(run.values.len() + before, 0.0);
            // The last part, if only that is read.
            run.values.extend_from_slice(&values[values.len() - (width - before)..]);
            row += 1;
        }
    }
    assert!(
        runs.is_empty() || runs.iter().map(|run| run.rows.len()).sum::<usize>() == row as usize,
        "all rows have features, or none"
    );
    runs
}

/// Returns the features of all rows of a context, part by part: `[parts, rows, width]`.
fn parts_of_context(pass: &Pass<'_>, architecture: &Architecture) -> FeatureRun {
    let features = pass.sequences.iter().flat_map(|sequence| sequence.features);
    let rows: Vec<&[f32]> = features
        .filter_map(|feature| match feature {
            RowFeature::Context(values) => Some(*values),
            _ => None,
        })
        .collect();
    let width = architecture.embedding_width();
    let parts = 0..architecture.feature_width() / width;
    let parts = parts.flat_map(|part| rows.iter().map(move |row| &row[part * width..][..width]));
    let values = parts.flatten().copied().collect();
    FeatureRun { place: FeaturePlace::Features, rows: 0..rows.len() as u32, values }
}

impl PassRun<'_> {
    /// Records the first layer's input.
    pub(crate) fn first_input(&mut self) {
        let (weights, scratch) = (self.weights, self.scratch);
        let Some(features) = weights.features.as_ref().filter(|_| self.reads_features()) else {
            return self.embed();
        };
        let architecture = weights.architecture();
        let (size, width) = (architecture.hidden_size, architecture.feature_width());
        let all = 0..self.row_count();
        let (hidden, normed) = (scratch.hidden.get(), scratch.normed.get());
        let (joined, stored) = (scratch.joined.get(), scratch.features.get());
        let embeddings = scratch.embeddings.get();
        match architecture.input {
            Input::Embedding | Input::UnprojectedFeature => {}
            Input::TargetKeys { width } => {
                if !self.rows.is_context {
                    self.input_on_keys(features, width);
                }
            }
            Input::EmbeddingAndFeature => {
                self.embed_tokens(joined, 2 * size);
                self.project(features, (joined, hidden), Store::Set, all);
            }
            Input::NormedEmbeddingAndFeature => {
                self.embed_tokens(embeddings, size);
                if let Some(norm) = &features.embedding_norm {
                    self.norm_into(norm, embeddings, (joined, 0), 2 * size);
                }
                self.norm_predictions(stored);
                self.norm_features(features, (stored, joined), (size, 2 * size), all.clone());
                self.project(features, (joined, hidden), Store::Set, all);
            }
            Input::Feature { .. } => {
                self.embed_tokens(embeddings, size);
                for rows in self.runs_at(FeaturePlace::Features) {
                    let both = (stored, joined);
                    let input = self.norm_features(features, both, (0, width), rows.clone());
                    self.project(features, (input, hidden), Store::Set, rows);
                }
                self.norm_predictions(hidden);
            }
            Input::Block { .. } => {
                self.project(features, (stored, normed), Store::Set, all);
                if let Some(norm) = &features.context_norm {
                    self.norm(norm, (normed, hidden), Store::Set);
                }
            }
            Input::EmbeddingPlusFeature { scale, .. } => {
                self.embed_tokens(hidden, size);
                let both = (stored, joined);
                let input = self.norm_features(features, both, (0, width), all.clone());
                self.project(features, (input, hidden), Store::Add(scale), all);
            }
        }
    }

    /// Records the first layer's input of rows on the target's keys, whose part of a feature has
    /// this width.
    fn input_on_keys(&mut self, features: &FeatureWeights, width: usize) {
        let scratch = self.scratch;
        let (stored, joined) = (scratch.features.get(), scratch.joined.get());
        let (normed, hidden) = (scratch.embeddings.get(), scratch.hidden.get());
        self.embed_tokens(joined, 2 * width);
        for rows in self.runs_at(FeaturePlace::Part) {
            self.norm_part(features, (stored, joined), (width, rows));
        }
        self.norm_predictions(normed);
        for rows in self.runs_at(FeaturePlace::Normed) {
            if let Some(matrix) = &features.prediction {
                let range = ProductRows::range(rows.clone(), matrix.inputs);
                let both = (normed, stored);
                self.recorder.product(matrix, both, (range, Store::Set), &self.weights.unused);
            }
            let row_bytes = (width * size_of::<f32>()) as u64;
            for row in rows.map(u64::from) {
                let to = (joined, (2 * row + 1) * row_bytes);
                self.recorder.copy((stored, row * row_bytes), to, row_bytes);
            }
        }
        self.project(features, (joined, hidden), Store::Set, 0..self.row_count());
    }

    /// Records the norm of the parts of some rows, into the second halves of rows of the result.
    fn norm_part(
        &mut self,
        features: &FeatureWeights,
        both: (&Buffer, &Buffer),
        (width, rows): (usize, Range<u32>),
    ) {
        let Some(FeatureNorms { weights, epsilon, .. }) = &features.norm else { return };
        let parameters = parameters::Norm {
            width: width as u32,
            epsilon: *epsilon,
            first_row: rows.start,
            input_stride: width as u32,
            output_start: width as u32,
            output_stride: 2 * width as u32,
            ..self.norm_parameters(weights, Store::Set)
        };
        self.norm_rows(weights, both, parameters, rows.len() as u32);
    }

    /// Records the keys and values that a layer has of the tokens before a block, from the hidden
    /// state as it is, or from the layer's part of the features.
    pub(crate) fn store_context(&mut self, layer: usize) {
        let (weights, scratch) = (self.weights, self.scratch);
        let Some(attention) = weights.layers[layer].attention() else { return };
        let (Input::TargetKeys { width }, AttentionNormWeights::Hidden(norm)) =
            (weights.architecture().input, &weights.layers[layer].attention_norm)
        else {
            return self.project_heads(layer, attention, scratch.hidden.get());
        };
        let rows = self.row_count();
        let first = layer as u32 * rows;
        let parameters = parameters::Norm {
            width: width as u32,
            first_row: first,
            input_stride: width as u32,
            output_stride: width as u32,
            ..self.norm_parameters(norm, Store::Set)
        };
        let (stored, joined) = (scratch.features.get(), scratch.joined.get());
        self.norm_rows(norm, (stored, joined), parameters, rows);
        let first_x = first * width as u32;
        let range = ProductRows { rows, first_x, first_y: 0 };
        let both = (joined, scratch.projected.get());
        let matrix = &attention.projection;
        self.recorder.product(matrix, both, (range, Store::Set), &weights.unused);
        self.heads(layer, attention);
    }

    /// Whether the rows read features.
    pub(crate) fn reads_features(&self) -> bool {
        !self.rows.features.is_empty()
    }

    fn runs_at(&self, place: FeaturePlace) -> Vec<Range<u32>> {
        let runs = self.rows.features.iter().filter(|run| run.place == place);
        runs.map(|run| run.rows.clone()).collect()
    }

    /// Records the projection of some rows.
    fn project(
        &mut self,
        features: &FeatureWeights,
        both: (&Buffer, &Buffer),
        store: Store,
        rows: Range<u32>,
    ) {
        if let Some(matrix) = &features.projection {
            let rows = ProductRows::range(rows, matrix.inputs);
            self.recorder.product(matrix, both, (rows, store), &self.weights.unused);
        }
    }

    /// Records the final norm of predicted hidden states.
    fn norm_predictions(&mut self, to: &Buffer) {
        let weights = self.weights;
        let Some(norm) = &weights.final_norm else { return };
        for rows in self.runs_at(FeaturePlace::Normed) {
            let parameters = parameters::Norm {
                first_row: rows.start,
                ..self.norm_parameters(norm, Store::Set)
            };
            let both = (self.scratch.normed.get(), to);
            self.norm_rows(norm, both, parameters, rows.len() as u32);
        }
    }

    /// Records the norms of features, with the first number and the width of rows of the result.
    /// Returns the buffer with the normed features, which is the first one if there are no norms.
    fn norm_features<'b>(
        &mut self,
        features: &FeatureWeights,
        (stored, to): (&'b Buffer, &'b Buffer),
        (start, stride): (usize, usize),
        rows: Range<u32>,
    ) -> &'b Buffer {
        let Some(FeatureNorms { weights, parts, width, epsilon }) = &features.norm else {
            return stored;
        };
        let feature_width = self.weights.architecture().feature_width();
        if parts * width < feature_width {
            // The parts without a norm stay as they are.
            let row_bytes = (feature_width * size_of::<f32>()) as u64;
            let first = u64::from(rows.start) * row_bytes;
            self.recorder.copy((stored, first), (to, first), rows.len() as u64 * row_bytes);
        }
        // Several parts follow one another in both buffers.
        let (input_stride, output_stride) = match parts {
            1 => (feature_width, stride),
            _ => (*width, *width),
        };
        let parameters = parameters::Norm {
            width: *width as u32,
            epsilon: *epsilon,
            first_row: rows.start * *parts as u32,
            input_stride: input_stride as u32,
            output_start: start as u32,
            output_stride: output_stride as u32,
            weight_rows: *parts as u32,
            ..self.norm_parameters(weights, Store::Set)
        };
        self.norm_rows(weights, (stored, to), parameters, rows.len() as u32 * *parts as u32);
        to
    }
}

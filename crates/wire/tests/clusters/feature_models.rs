//! Fake models that write and read features.

use forerun_core::{FeatureRows, Node, SequenceId, TokenId, TokenTree, node_of_row};
use forerun_lm::fake::{TableModel, row_prefix};
use forerun_lm::{
    BatchEntry, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel, complete_each,
};

pub(crate) const FEATURES: usize = 3;

fn output(logits: Vec<f32>, vocab_size: usize, tree: &TokenTree) -> ForwardOutput {
    ForwardOutput {
        logits,
        best: Vec::new(),
        vocab_size,
        computed_tokens: tree.len(),
        features: None,
    }
}

/// A target that reports features: a function of each token's prefix.
pub(crate) struct TargetWithFeatures(pub(crate) TableModel);

impl LanguageModel for TargetWithFeatures {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn context_length(&self) -> usize {
        self.0.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let ForwardRequest { tokens, tree, features_from, .. } = *request;
            let features = |prefix: &[TokenId]| self.0.row(prefix)[..FEATURES].to_vec();
            let of_tokens = (1..=tokens.len()).map(|len| features(&tokens[..len]));
            let nodes = (0..tree.len()).map(|node| features(&row_prefix(tokens, tree, Some(node))));
            let all: Vec<f32> = of_tokens.chain(nodes).flatten().collect();
            let features = features_from
                .map(|from| FeatureRows::new(FEATURES, all[from * FEATURES..].to_vec()));
            Ok(ForwardOutput { features, ..self.0.logits(request)? })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A model that reads the features before the last token, the last token and the path to a row.
pub(crate) struct FeatureTable(pub(crate) TableModel);

impl LanguageModel for FeatureTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn context_length(&self) -> usize {
        self.0.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let ForwardRequest { tokens, tree, first_row, .. } = *request;
            let features = request.features.unwrap();
            // All features count, so a wrong one anywhere changes the draft.
            let known: Vec<TokenId> =
                features.rows_from(0).flatten().map(|value| value.to_bits() >> 1).collect();
            assert_eq!(known.len(), (tokens.len() - 1) * FEATURES);
            let row = |at: Option<Node>| {
                let path = row_prefix(&tokens[tokens.len() - 1..], tree, at);
                self.0.row(&[&known[..], &path].concat())
            };
            let logits = (first_row..=tree.len()).map(node_of_row).flat_map(row).collect();
            Ok(output(logits, self.0.vocab_size, tree))
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for FeatureTable {}

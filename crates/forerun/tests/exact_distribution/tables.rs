//! Models: tables from prefixes to logits and features.

use crate::experiment::PROMPT;
use forerun_core::{FeatureRows, Node, SequenceId, TokenId, TokenTree, node_of_row};
use forerun_lm::fake::{TableModel, row_prefix};
use forerun_lm::{
    BatchEntry, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel, LayerOrder,
    LayeredModel, ModelError, complete_each,
};

pub(crate) const VOCAB: usize = 3;

/// A model with approximate rows from another table.
pub(crate) struct LayerParallelTable(pub(crate) TableModel);

impl LayerParallelTable {
    /// Returns the table of the row after `tokens`, of which `exact` are exact.
    pub(crate) fn table(&self, tokens: &[TokenId], exact: usize, at: Option<Node>) -> TableModel {
        let is_exact = at.is_none() && exact == tokens.len();
        TableModel { seed: self.0.seed + u64::from(!is_exact), ..self.0 }
    }
}

impl LanguageModel for LayerParallelTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            if request.order == LayerOrder::Sequential {
                return self.0.logits(request);
            }
            let ForwardRequest { tokens, tree, first_row, exact_tokens, .. } = *request;
            let row = |at| self.table(tokens, exact_tokens, at).row(&row_prefix(tokens, tree, at));
            let logits = rows_of(tree).skip(first_row).flat_map(row).collect();
            Ok(output(logits, self.0.vocab_size, tree))
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl LayeredModel for LayerParallelTable {}

pub(crate) fn output(logits: Vec<f32>, vocab_size: usize, tree: &TokenTree) -> ForwardOutput {
    ForwardOutput {
        logits,
        best: Vec::new(),
        vocab_size,
        computed_tokens: tree.len(),
        features: None,
    }
}

/// A target that reports features: one number for each token, a function of its prefix.
pub(crate) struct TableWithFeatures {
    pub(crate) table: TableModel,
}

impl LanguageModel for TableWithFeatures {
    fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.table.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let ForwardRequest { tokens, tree, features_from, .. } = *request;
            let prefix = |row: usize| match row.checked_sub(tokens.len()) {
                None => tokens[..=row].to_vec(),
                node => row_prefix(tokens, tree, node),
            };
            let features = features_from.map(|from| {
                let rows = from..tokens.len() + tree.len();
                FeatureRows::new(1, rows.map(|row| self.table.row(&prefix(row))[0]).collect())
            });
            Ok(ForwardOutput { features, ..self.table.logits(request)? })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A drafter's table by its inputs: the feature before the last token, the last token, and a path.
pub(crate) struct FeatureTable(pub(crate) TableModel);

impl FeatureTable {
    pub(crate) fn row(&self, feature: &[f32], path: &[TokenId]) -> Vec<f32> {
        let feature: Vec<TokenId> = feature.iter().map(|number| number.to_bits()).collect();
        self.0.row(&[&feature[..], path].concat())
    }
}

/// Computes rows from the feature before the last token.
pub(crate) fn answer_from_features(
    request: &ForwardRequest<'_>,
    vocab_size: usize,
    row: impl Fn(&[f32], Option<Node>) -> Vec<f32>,
) -> Result<ForwardOutput, ModelError> {
    let ForwardRequest { tokens, tree, first_row, .. } = *request;
    let feature = request.features.unwrap().rows_from(tokens.len() - 2).next().unwrap();
    let logits = rows_of(tree).skip(first_row).flat_map(|at| row(feature, at)).collect();
    Ok(output(logits, vocab_size, tree))
}

impl LanguageModel for FeatureTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn context_length(&self) -> usize {
        64
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let last = &request.tokens[request.tokens.len() - 1..];
            answer_from_features(request, self.0.vocab_size, |feature, at| {
                self.row(feature, &row_prefix(last, request.tree, at))
            })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for FeatureTable {}

/// Three heads, each of which reads the feature before the last token.
pub(crate) struct HeadsTable(pub(crate) FeatureTable);

impl LanguageModel for HeadsTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        64
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            answer_from_features(request, self.0.vocab_size(), |feature, at| {
                let head = at.map_or(0, |node| request.tree.depth(node));
                assert!(head < 3, "a head for each depth");
                self.0.row(feature, &[head as TokenId])
            })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for HeadsTable {}

/// Returns the rows of a tree: the row after the prefix, then the rows after its nodes.
pub(crate) fn rows_of(tree: &TokenTree) -> impl Iterator<Item = Option<Node>> {
    (0..=tree.len()).map(node_of_row)
}

pub(crate) const DRAFT_MODEL: TableModel = TableModel::new(77, VOCAB, 3.0);

pub(crate) fn target(seed: u64) -> TableModel {
    TableModel::new(seed, VOCAB, 4.0)
}

/// A model that fails once it has to read a token after the prompt.
pub(crate) struct FailingTable {
    pub(crate) table: TableModel,
    pub(crate) token: TokenId,
}

impl LanguageModel for FailingTable {
    fn vocab_size(&self) -> usize {
        self.table.vocab_size
    }

    fn context_length(&self) -> usize {
        self.table.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let mut read = request.tokens[PROMPT.len()..].iter().chain(request.tree.tokens());
            match read.any(|&token| token == self.token) {
                true => Err(ModelError::Empty),
                false => self.table.logits(request),
            }
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

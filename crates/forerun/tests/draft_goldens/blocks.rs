//! The bits of blocks: they do not depend on the passes in which a block and its context are
//! computed.

use super::{GoldenDrafters, SEQUENCE, features, goldens, on_cpu, on_reference, weights};
use forerun::TokenId;
use forerun::cpu::Team;
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::Transformer;
use forerun_formats::{DraftBlock, Speculator};
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, LayeredModel, Progress};
use forerun_model::{BlockModel, CachedTransformer};
use std::path::Path;
use std::sync::Arc;

/// Returns the masks of a whole block in which the last token predicts nothing.
pub(crate) fn masks(block: DraftBlock) -> TokenTree {
    chain(block, block.size - 1)
}

fn chain(block: DraftBlock, masks: usize) -> TokenTree {
    TokenTree::chain(&vec![block.mask; masks])
}

/// Returns the logits of the masks of a block.
pub(crate) fn block_logits(
    model: &mut impl LanguageModel,
    masks: &TokenTree,
    (tokens, features): (&[TokenId], &Features),
) -> Vec<f32> {
    logits_from(1, model, masks, (tokens, features))
}

/// Returns the logits of all rows from this one on.
pub(crate) fn logits_from(
    first_row: usize,
    model: &mut impl LanguageModel,
    masks: &TokenTree,
    (tokens, features): (&[TokenId], &Features),
) -> Vec<f32> {
    let request = ForwardRequest::new(SEQUENCE, tokens, masks);
    let request = ForwardRequest { first_row, features: Some(features), ..request };
    model.logits(&request).unwrap().logits
}

impl GoldenDrafters {
    /// Contexts grow by one to four tokens, rejected tokens are forgotten, and blocks of several
    /// sequences share a pass. Blocks have these masks, and logits of the rows from `first_row` on.
    pub(crate) fn assert_bits_do_not_depend_on_passes(
        &self,
        masks: impl Fn(&Speculator) -> TokenTree,
        first_row: usize,
    ) {
        for drafter in self.names {
            let opened = self.open(drafter);
            let masks = masks(&opened.1);
            let [target, weights] = weights(&opened);
            let team = |cores| Arc::new(Team::unpinned(cores).unwrap());
            let target = Transformer::new(target, team(1)).with_features(opened.2);
            let mut target = CachedTransformer::new(target);
            let goldens = goldens(&self.path(drafter)).prompts;
            let golden = goldens.last().unwrap();
            let features = features(&mut target, golden, drafter);
            let tokens = golden.tokens();
            let new = |cores| BlockModel::new(Transformer::new(Arc::clone(&weights), team(cores)));
            let logits = |model: &mut BlockModel<Transformer>, tokens: &[TokenId]| {
                logits_from(first_row, model, &masks, (tokens, &features))
            };
            let expected = logits(&mut new(1), &tokens);
            let mut model = new(3);
            let mut end = 1;
            for step in (1..=4).cycle() {
                logits(&mut model, &tokens[..end]);
                if end == tokens.len() {
                    break;
                }
                // As a token, a mask reads other features than the mask that was in its place.
                let further = [&tokens[..end], &[masks.token(0), 5]].concat();
                for wrong in [[&tokens[..end - 1], &[5, 7]].concat(), further] {
                    if wrong.len() <= tokens.len() {
                        let fresh = logits(&mut new(1), &wrong);
                        assert_eq!(logits(&mut model, &wrong), fresh, "{drafter}");
                    }
                }
                end = (end + step).min(tokens.len());
            }
            assert_eq!(logits(&mut model, &tokens), expected, "{drafter}");
            let lengths = [tokens.len(), 1, 9];
            let mut progress: [Progress; 3] = Default::default();
            while progress.iter().any(|progress| progress.result.is_none()) {
                let entries = lengths.iter().zip(1..).zip(&mut progress);
                let mut batch: Vec<BatchEntry<'_>> = entries
                    .filter(|(_, progress)| progress.result.is_none())
                    .map(|((&length, sequence), progress)| {
                        let tokens = &tokens[..length];
                        let request = ForwardRequest::new(SequenceId(sequence), tokens, &masks);
                        let features = Some(&features);
                        let request = ForwardRequest { first_row, features, ..request };
                        BatchEntry { request, progress }
                    })
                    .collect();
                model.forward(&mut batch);
            }
            for (length, progress) in lengths.into_iter().zip(progress) {
                let alone = logits(&mut new(1), &tokens[..length]);
                let shared = progress.result.unwrap().unwrap().logits;
                assert_eq!(shared, alone, "{drafter}, {length}");
            }
        }
    }

    /// Shorter blocks have the first rows of the whole block, bit for bit, if and only if no row
    /// sees later ones.
    pub(crate) fn assert_only_causal_blocks_have_first_rows(&self) {
        for drafter in self.names {
            let (block, path) = (self.open(drafter).1.block().unwrap(), self.path(drafter));
            let (mut target, device) = on_reference(self.open(drafter));
            let mut model = BlockModel::new(device);
            assert_first_rows((&path, block), &mut target, &mut model, "the reference");
            for (mut target, device, isa) in on_cpu(self.open(drafter)) {
                let mut model = BlockModel::new(device);
                assert_first_rows((&path, block), &mut target, &mut model, &isa.to_string());
            }
        }
    }
}

fn assert_first_rows(
    (folder, block): (&Path, DraftBlock),
    target: &mut impl LayeredModel,
    model: &mut impl LanguageModel,
    device: &str,
) {
    let goldens = goldens(folder).prompts;
    let golden = goldens.last().unwrap();
    let what = format!("{}, {device}", folder.display());
    let features = features(target, golden, &what);
    let tokens = golden.tokens();
    let all = block_logits(model, &masks(block), (&tokens, &features));
    for masks in 1..block.size - 1 {
        let short = block_logits(model, &chain(block, masks), (&tokens, &features));
        assert_eq!(short.len(), masks * model.vocab_size(), "{what}");
        let is_equal = short == all[..short.len()];
        assert_eq!(is_equal, block.causal, "{what}, {masks} masks");
    }
}

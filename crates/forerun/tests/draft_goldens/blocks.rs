//! The bits of blocks: they do not depend on the passes in which a block and its context are
//! computed.

use super::{Opened, SEQUENCE, features, goldens, on_cpu, on_reference, weights};
use forerun::TokenId;
use forerun::cpu::Team;
use forerun_core::{Features, SequenceId, TokenTree};
use forerun_cpu::Transformer;
use forerun_formats::DraftBlock;
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
    sequence: SequenceId,
    masks: &TokenTree,
    (tokens, features): (&[TokenId], &Features),
) -> Vec<f32> {
    let request = ForwardRequest::new(sequence, tokens, masks);
    let request = ForwardRequest { first_row: 1, features: Some(features), ..request };
    model.logits(&request).unwrap().logits
}

/// Contexts grow by one to four tokens, rejected tokens are forgotten, and blocks of several
/// sequences share a pass.
pub(crate) fn assert_bits_do_not_depend_on_passes(
    folder: &Path,
    drafters: &[&str],
    open: impl Fn(&str) -> Opened,
) {
    for drafter in drafters {
        let opened = open(drafter);
        let masks = masks(opened.1.block().unwrap());
        let [target, weights] = weights(&opened);
        let team = |cores| Arc::new(Team::unpinned(cores).unwrap());
        let target = Transformer::new(target, team(1)).with_features(opened.2);
        let mut target = CachedTransformer::new(target);
        let goldens = goldens(&folder.join(drafter)).prompts;
        let golden = goldens.last().unwrap();
        let features = features(&mut target, golden, drafter);
        let tokens = golden.tokens();
        let mut whole = BlockModel::new(Transformer::new(Arc::clone(&weights), team(1)));
        let expected = block_logits(&mut whole, SEQUENCE, &masks, (&tokens, &features));
        let mut model = BlockModel::new(Transformer::new(Arc::clone(&weights), team(3)));
        let mut end = 1;
        for step in (1..=4).cycle() {
            block_logits(&mut model, SEQUENCE, &masks, (&tokens[..end], &features));
            if end == tokens.len() {
                break;
            }
            let wrong = [&tokens[..end - 1], &[5, 7]].concat();
            block_logits(&mut model, SEQUENCE, &masks, (&wrong, &features));
            end = (end + step).min(tokens.len());
        }
        let found = block_logits(&mut model, SEQUENCE, &masks, (&tokens, &features));
        assert_eq!(found, expected, "{drafter}");
        let lengths = [tokens.len(), 3, 9];
        let mut progress: [Progress; 3] = Default::default();
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = lengths.iter().zip(1..).zip(&mut progress);
            let mut batch: Vec<BatchEntry<'_>> = entries
                .filter(|(_, progress)| progress.result.is_none())
                .map(|((&length, sequence), progress)| {
                    let request =
                        ForwardRequest::new(SequenceId(sequence), &tokens[..length], &masks);
                    let features = Some(&features);
                    let request = ForwardRequest { first_row: 1, features, ..request };
                    BatchEntry { request, progress }
                })
                .collect();
            model.forward(&mut batch);
        }
        for (&length, progress) in lengths.iter().zip(progress) {
            let mut alone = BlockModel::new(Transformer::new(Arc::clone(&weights), team(1)));
            let context = (&tokens[..length], &features);
            let expected = block_logits(&mut alone, SEQUENCE, &masks, context);
            assert_eq!(progress.result.unwrap().unwrap().logits, expected, "{drafter}, {length}");
        }
    }
}

/// Shorter blocks have the first rows of the whole block, bit for bit, if and only if no row sees
/// later ones.
pub(crate) fn assert_only_causal_blocks_have_first_rows(
    folder: &Path,
    drafters: &[&str],
    open: impl Fn(&str) -> Opened,
) {
    for drafter in drafters {
        let block = open(drafter).1.block().unwrap();
        let folder = folder.join(drafter);
        let (mut target, device) = on_reference(open(drafter));
        let mut model = BlockModel::new(device);
        assert_first_rows((&folder, block), &mut target, &mut model, "the reference");
        for (mut target, device, isa) in on_cpu(open(drafter)) {
            let mut model = BlockModel::new(device);
            assert_first_rows((&folder, block), &mut target, &mut model, &isa);
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
    let all = block_logits(model, SEQUENCE, &masks(block), (&tokens, &features));
    for masks in 1..block.size - 1 {
        let short = block_logits(model, SEQUENCE, &chain(block, masks), (&tokens, &features));
        assert_eq!(short.len(), masks * model.vocab_size(), "{what}");
        let is_equal = short == all[..short.len()];
        assert_eq!(is_equal, block.causal, "{what}, {masks} masks");
    }
}

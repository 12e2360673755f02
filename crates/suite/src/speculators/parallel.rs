//! ParallelSpec computes what its paper defines.

use super::*;

/// Returns the mask tokens, which come after the vocabulary.
fn masks(target: &Target) -> [TokenId; POSITIONS] {
    let first_mask = target.config.vocab_size as TokenId;
    [first_mask, first_mask + 1, first_mask + 2]
}

/// A mask's row uses the mask's own embedding and feature. It attends to the tokens and to the
/// masks before it.
pub(super) fn parallelspec_matches_its_paper<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let (config, size) = (&target.config, target.config.hidden_size);
    let masks = masks(&target);
    let tree = TokenTree::chain(&masks);
    let tokens = tokens();
    let all = |_: usize, _: usize| true;
    let (drafter, tensors) = target.random(device, L::ParallelEagle);
    let features = features(tokens.len() - 1, size);
    let embedding = |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size);
    let of_mask = |name: &str, mask: usize| tensors.row(name, mask, size);
    let real = tokens[1..].iter().zip(rows_of(&features));
    let real = real.map(|(&token, feature)| tensors.fused(embedding(token), &feature));
    let rows = real.chain((0..POSITIONS).map(|mask| {
        let feature = of_mask("mask_features.weight", mask);
        tensors.fused(of_mask("mask_embeddings.weight", mask), feature)
    }));
    let rows: Vec<_> = rows.enumerate().collect();
    let predictions = tensors.layer(config, PLAIN, (&rows, &[]), all);
    let expected = tensors.logits(&predictions[tokens.len() - 2..]);
    let found = logits(&mut drafter.eagle(1), &tokens, &features, &tree, 0);
    assert_near(&found, &expected, "on features");

    let (drafter, tensors) = target.random(device, L::ParallelMedusa);
    let layers = drafter.layers(device.best());
    let [first, .., last] = masks;
    assert_eq!(layers.architecture().mask_ids(), first..last + 1);
    let real = tokens.iter().map(|&t| tensors.row("embed_tokens.weight", t as usize, size));
    let masked = (0..POSITIONS).map(|mask| tensors.row("mask_embeddings.weight", mask, size));
    let rows: Vec<_> = real.chain(masked).map(<[f64]>::to_vec).enumerate().collect();
    let states = tensors.layer(config, PLAIN, (&rows, &[]), all);
    let expected = tensors.logits(&states[tokens.len() - 1..]);
    let request = ForwardRequest::new(SEQUENCE, &tokens, &tree);
    let found = CachedTransformer::new(layers).logits(&request).unwrap();
    assert_near(&found.logits, &expected, "on tokens");
}

/// A draft goes on after its own tokens in one pass. The features of these tokens are those that
/// the draft predicted: the last token's row that of the first, and each mask's row that of the
/// next one.
pub(super) fn parallelspec_continues_a_draft_on_its_predictions<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let (config, size) = (&target.config, target.config.hidden_size);
    let masks = masks(&target);
    let (drafter, tensors) = target.random(device, L::ParallelEagle);
    let mut model = drafter.eagle(1);
    let tokens = tokens();
    let known = features(tokens.len(), size);
    let embedding = |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size);
    let mask_rows = || {
        (0..POSITIONS).map(|mask| {
            let feature = tensors.row("mask_features.weight", mask, size);
            tensors.fused(tensors.row("mask_embeddings.weight", mask, size), feature)
        })
    };
    let read = |tokens: &[TokenId]| -> Vec<Vec<f64>> {
        let rows = tokens[1..].iter().zip(rows_of(&known));
        rows.map(|(&token, feature)| tensors.fused(embedding(token), &feature)).collect()
    };
    let predict = |rows: Vec<Vec<f64>>| {
        let rows: Vec<_> = rows.into_iter().chain(mask_rows()).enumerate().collect();
        tensors.layer(config, PLAIN, (&rows, &[]), |_, _| true)
    };
    let last = tokens.len() - 2;
    let drafted = [7, 30];
    logits(&mut model, &tokens, &known, &TokenTree::chain(&masks), 0);
    let first = predict(read(&tokens));

    // Both draft tokens are unverified.
    let ahead =
        [tensors.fused(embedding(7), &first[last]), tensors.fused(embedding(30), &first[last + 1])];
    let second = predict([read(&tokens), ahead.to_vec()].concat());
    let tree = TokenTree::chain(&[&drafted[..], &masks].concat());
    let found = logits(&mut model, &tokens, &known, &tree, 2);
    assert_near(&found, &tensors.logits(&second[last + 2..]), "two unverified tokens");

    // The target has read the last token, and its feature has come.
    let longer = [&tokens[..], &drafted[..1]].concat();
    let ahead = vec![tensors.fused(embedding(30), &second[last + 1])];
    let third = predict([read(&longer), ahead].concat());
    let tree = TokenTree::chain(&[&drafted[1..], &masks].concat());
    let found = logits(&mut model, &longer, &known, &tree, 1);
    assert_near(&found, &tensors.logits(&third[last + 2..]), "one unverified token");

    // After another token the predictions are of no use: the next token waits for its feature.
    let other = [&tokens[..], &[9]].concat();
    let chain = TokenTree::chain(&[30]);
    let found = logits(&mut model, &other, &known, &chain, 1);
    assert_eq!(found, logits(&mut drafter.eagle(1), &other, &known, &chain, 1));
}

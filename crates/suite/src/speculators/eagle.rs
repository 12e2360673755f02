//! EAGLE and EAGLE-3 compute what their papers define.

use super::*;

/// Returns which rows see which, where `real` rows of tokens come before those of a tree.
fn visibility(tree: &TokenTree, real: usize) -> impl Fn(usize, usize) -> bool + Copy {
    move |row, other| {
        other < real || row == other || tree.path(row - real).contains(&(other - real))
    }
}

/// Row `i` of EAGLE combines token `i + 1` and feature `i` at position `i`. After the tokens, each
/// node uses the feature predicted by the row above it.
pub(super) fn eagle_matches_its_paper<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    for layout in [L::Eagle, L::SharedEmbeddingEagle] {
        assert_matches(device, &target, layout, None);
    }
}

/// A row of EAGLE-3 is `fc` of the target's features, or the feature predicted by the row above.
/// The attention also reads embeddings. Options add norms.
pub(super) fn eagle_3_matches_its_paper<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let plain = Eagle3Options {
        speculators: false,
        layers: 1,
        feature_norm: FeatureNorm::None,
        norm_before_residual: false,
        norm_output: false,
    };
    assert_matches(device, &target, L::Eagle3, Some(&plain));
    for options in Eagle3Options::all() {
        assert_matches(device, &target, L::Eagle3With(options), Some(&options));
    }
}

/// EAGLE-3 has options.
fn assert_matches<D: Device>(
    device: &D,
    target: &Target,
    layout: SpeculatorLayout,
    options: Option<&Eagle3Options>,
) {
    let (config, size) = (&target.config, target.config.hidden_size);
    let (drafter, tensors) = target.random(device, layout);
    let mut model = drafter.eagle(D::THREADS);
    let (tokens, tree) = (tokens(), tree());
    let features = features(tokens.len() - 1, model.device().architecture().feature_width());
    let embedding =
        |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size).to_vec();
    let row = |token: TokenId, feature: Vec<f64>, is_predicted: bool| match options {
        None => tensors.fused(&embedding(token), &feature),
        Some(Eagle3Options { norm_output: true, .. }) if is_predicted => {
            tensors.norm("norm.weight", &feature)
        }
        Some(_) if is_predicted => feature,
        Some(options) => tensors.eagle3_input(options, &feature),
    };
    let real = tokens[1..].iter().zip(rows_of(&features)).enumerate();
    let real = real.map(|(position, (&token, feature))| (position, row(token, feature, false)));
    let mut rows: Vec<(usize, Vec<f64>)> = real.collect();
    let mut embeddings: Vec<Vec<f64>> = tokens[1..].iter().map(|&token| embedding(token)).collect();
    let real = rows.len();
    let is_visible = visibility(&tree, real);
    let predict = |rows: &[_], embeddings: &[_]| match options {
        None => tensors.layer(config, PLAIN, (rows, &[]), is_visible),
        Some(options) => tensors.eagle3_layers(config, options, (rows, embeddings), is_visible),
    };
    for node in 0..tree.len() {
        let above = tree.parent(node).map_or(real - 1, |parent| real + parent);
        let prediction = predict(&rows, &embeddings).swap_remove(above);
        let token = tree.token(node);
        rows.push((real - 1 + tree.depth(node), row(token, prediction, true)));
        embeddings.push(embedding(token));
    }
    let found = logits(&mut model, &tokens, &features, &tree, 0);
    let expected = tensors.logits(&predict(&rows, &embeddings)[real - 1..]);
    match options {
        None => assert_near(&found, &expected, &format!("{layout:?}")),
        Some(_) => {
            // Every second token is known.
            let even: Vec<f32> = found
                .chunks_exact(config.vocab_size)
                .flat_map(|row| row.iter().copied().step_by(2))
                .collect();
            assert_near(&even, &expected, &format!("{layout:?}"));
            let others =
                found.chunks_exact(config.vocab_size).flat_map(|row| row.iter().skip(1).step_by(2));
            assert!(others.copied().all(|logit| logit == EXCLUDED_LOGIT), "{layout:?}");
        }
    }
    // The bits of a tree that grows are the same, also on one thread.
    for mut model in [model, drafter.eagle(1)] {
        assert_eq!(grown_logits(&mut model, &tokens, &features, &tree), found, "{layout:?}");
    }
}

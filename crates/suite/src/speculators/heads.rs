//! Medusa and Hydra compute what their papers define, and heads with few tokens or with the
//! target's head what these say.

use super::*;

/// Computes the logits of a Medusa head from a feature.
fn medusa_row(
    tensors: &Tensors,
    layout: SpeculatorLayout,
    head: usize,
    feature: &[f64],
) -> Vec<f64> {
    let [weight, bias, own] = match layout {
        L::VllmMedusa => [
            format!("blocks.{head}.layers.0.weight"),
            String::new(),
            format!("lm_heads.{head}.weight"),
        ],
        _ => [
            format!("{head}.0.linear.weight"),
            format!("{head}.0.linear.bias"),
            format!("{head}.1.weight"),
        ],
    };
    let delta = tensors.times(&weight, feature);
    let bias = tensors.0.get(&bias).cloned().unwrap_or_else(|| vec![0.0; delta.len()]);
    let activated: Vec<f64> = plus(&delta, &bias).into_iter().map(silu).collect();
    let own = if layout == L::SharedHeadMedusa { "lm_head.weight" } else { &own };
    tensors.times(own, &plus(feature, &activated))
}

pub(super) fn medusa_matches_its_paper_in_every_layout<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let size = target.config.hidden_size;
    let feature: Vec<f32> = features(1, size).rows_from(0).flatten().copied().collect();
    let wide: Vec<f64> = feature.iter().map(|&x| f64::from(x)).collect();
    for layout in [L::Medusa, L::VllmMedusa, L::SharedHeadMedusa] {
        let (drafter, tensors) = target.random(device, layout);
        let mut heads = drafter.heads(device.best());
        assert_eq!(heads.n_heads(), POSITIONS);
        let expected = (0..POSITIONS).map(|head| medusa_row(&tensors, layout, head, &wide));
        let expected: Vec<_> = expected.collect();
        let depths = TokenTree::chain(&vec![0; heads.n_heads() - 1]);
        let mut logits = |feature: &[f32]| {
            let mut features = Features::new();
            features.push(FeatureRows::new(feature.len(), feature.to_vec()));
            let request = ForwardRequest::new(SEQUENCE, &[1, 2], &depths);
            heads.logits(&ForwardRequest { features: Some(&features), ..request })
        };
        assert_near(&logits(&feature).unwrap().logits, &expected, &format!("{layout:?}"));
        let message = logits(&feature[1..]).err().unwrap().to_string();
        assert!(
            message.contains("needs width 48") && message.contains("have width 47"),
            "{message}"
        );
    }
}

/// Heads with fewer tokens have the same logits for them as whole ones, and exclude all others.
pub(super) fn drafters_with_fewer_tokens_have_the_logits_of_their_tokens<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let (tokens, vocab_size) = (tokens(), target.config.vocab_size);
    let features = features(tokens.len() - 1, target.config.hidden_size);
    let rows = |layout| {
        let drafter = target.on(device, target.drafter(layout));
        match layout {
            L::ParallelMedusa | L::ReducedParallelMedusa => {
                let layers = drafter.layers(device.best());
                let masks: Vec<TokenId> = layers.architecture().mask_ids().collect();
                let tree = TokenTree::chain(&masks);
                let request = ForwardRequest::new(SEQUENCE, &tokens, &tree);
                CachedTransformer::new(layers).logits(&request).unwrap().logits
            }
            _ => {
                let tree = TokenTree::chain(&[5, 6]);
                logits(&mut drafter.heads(device.best()), &tokens, &features, &tree, 0)
            }
        }
    };
    for (whole, reduced) in [
        (L::Medusa, L::ReducedMedusa),
        (L::SharedHeadHydra, L::ReducedHydra),
        (L::ParallelMedusa, L::ReducedParallelMedusa),
    ] {
        let (all, some) = (rows(whole), rows(reduced));
        assert_eq!(all.len(), some.len());
        for (all, some) in all.chunks_exact(vocab_size).zip(some.chunks_exact(vocab_size)) {
            // The rows of random matrices of their own are the same. Of the target's head, they are
            // those of even tokens.
            let row = |token| if whole == L::Medusa { token / 2 } else { token };
            for (token, &logit) in some.iter().enumerate() {
                let expected = if token % 2 == 0 { all[row(token)] } else { EXCLUDED_LOGIT };
                assert_eq!(logit, expected, "{reduced:?}, token {token}");
            }
        }
    }
}

/// Computes the logits of a Hydra head, which reads the state and the embeddings of a path.
fn hydra_row(
    tensors: &Tensors,
    layout: SpeculatorLayout,
    state: &[f64],
    path: &[TokenId],
) -> Vec<f64> {
    let (head, size) = (path.len() - 1, state.len());
    let embedding = |&t: &TokenId| tensors.row("embed_tokens.weight", t as usize, size);
    let read: Vec<&[f64]> = std::iter::once(state).chain(path.iter().map(embedding)).collect();
    let read = read.concat();
    let has_prefix = layout == L::HydraPlusPlus;
    let first = if has_prefix { 1 } else { 0 };
    let name = |layer: usize, part: &str| format!("hydra_mlp.{head}.{layer}.{part}");
    let activated = |layer: usize, x: &[f64]| -> Vec<f64> {
        tensors.times_plus_bias(&name(layer, "linear"), x).into_iter().map(silu).collect()
    };
    let residual = tensors.times_plus_bias(&name(first, "res_connection"), &read);
    let mut x = plus(&residual, &activated(first, &read));
    if has_prefix {
        x = plus(&x, &activated(3, &x));
    }
    if layout == L::SharedHeadHydra {
        return tensors.times("lm_head.weight", &x);
    }
    let place = if has_prefix { ".1" } else { "" };
    tensors.times_plus_bias(&format!("hydra_lm_head.{head}{place}"), &x)
}

/// Head `h` reads the state, the last token and `h` drafted tokens. Hydra++ computes the state from
/// all features.
pub(super) fn hydra_matches_its_paper<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let tokens = tokens();
    let features = features(tokens.len() - 1, target.config.hidden_size);
    for layout in [L::Hydra, L::HydraPlusPlus, L::SharedHeadHydra] {
        let (drafter, tensors) = target.random(device, layout);
        let mut model = drafter.heads(device.best());
        assert_eq!(model.n_heads(), POSITIONS);
        let mut state = rows_of(&features).pop().unwrap();
        if layout == L::HydraPlusPlus {
            let of_prefix = |(name, values): (&String, &Vec<f64>)| {
                Some((name.strip_prefix("prefix_embeding_layer.")?.to_owned(), values.clone()))
            };
            let prefix = Tensors(tensors.0.iter().filter_map(of_prefix).collect());
            let rows: Vec<_> = rows_of(&features).into_iter().enumerate().collect();
            let states = prefix.layer(&target.config, PLAIN, (&rows, &[]), |_, _| true);
            state = prefix.norm("norm.weight", states.last().unwrap());
        }
        // A chain of three nodes has more rows than there are heads.
        let deep = tree();
        let mut tree = TokenTree::chain(&[5, 6]);
        tree.push(Some(0), 8);
        tree.push(None, 9);
        let path = |node: usize| tree.path(node).into_iter().map(|node| tree.token(node)).collect();
        let paths = std::iter::once(Vec::new()).chain((0..tree.len()).map(path));
        let last = &tokens[tokens.len() - 1..];
        let row = |path: Vec<TokenId>| hydra_row(&tensors, layout, &state, &[last, &path].concat());
        let expected: Vec<_> = paths.map(row).collect();
        let all = logits(&mut model, &tokens, &features, &tree, 0);
        assert_near(&all, &expected, &format!("{layout:?}"));
        // The bits of a tree that grows on one thread are the same.
        let mut other = drafter.heads(Run { threads: 1, ..device.best() });
        assert_eq!(grown_logits(&mut other, &tokens, &features, &tree), all, "{layout:?}");
        let request = ForwardRequest::new(SEQUENCE, &tokens, &deep);
        let error = model.logits(&ForwardRequest { features: Some(&features), ..request }).err();
        assert_eq!(error, Some(ModelError::Context { position: 3, context: 3 }));
    }
}

/// Heads that use the target's head also apply its divisor of logits (Granite), and its limit
/// (Gemma 2).
pub(super) fn logits_of_the_targets_head_are_divided_and_limited<D: Device>(device: &D) {
    for family in [Family::Granite, Family::Gemma2] {
        let config = examples().into_iter().find(|config| config.family == family).unwrap();
        // The limit is small, so that it changes all logits.
        let final_logit_softcapping = config.final_logit_softcapping.map(|_| 1.0);
        let target = Target::of(Config { final_logit_softcapping, ..config }, false);
        let architecture = target.checkpoint.architecture();
        let is_changed =
            [architecture.factors.logit_divisor != 1.0, architecture.logit_cap.is_some()];
        assert_eq!(is_changed, [family == Family::Granite, family == Family::Gemma2]);
        let drafter = target.on(device, target.drafter(L::SharedHeadMedusa));
        let speculator = &drafter.speculator;
        let SpeculatorArchitecture::Heads(heads) = speculator.architecture().unwrap() else {
            panic!("heads")
        };
        let arithmetic = device.arithmetic(drafter.types, device.best().variant);
        let source = &target.checkpoint;
        let of_target = ReferenceModel::load_with(architecture.clone(), source, arithmetic, None);
        let of_target = Arc::new(of_target.unwrap());
        let reference = ReferenceHeads::load(heads, speculator, arithmetic, of_target).unwrap();
        let mut reference = HeadsModel::<_, ReferenceDevice>::new(reference, None);
        let (tokens, tree) = (tokens(), TokenTree::chain(&[0; POSITIONS - 1]));
        let features = features(tokens.len() - 1, target.config.hidden_size);
        let found = logits(&mut drafter.heads(device.best()), &tokens, &features, &tree, 0);
        let largest = found.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        assert!(family != Family::Gemma2 || (0.1..=1.0).contains(&largest), "{largest}");
        assert_eq!(found, logits(&mut reference, &tokens, &features, &tree, 0), "{family}");
    }
}

//! Rounds that continue, roll back, diverge or are cancelled leave nothing wrong in the caches.

use super::*;

/// Families with MTP heads: with compressed keys and values, experts, gated attention, and hybrids,
/// whose heads have attention.
pub(super) const WITH_MTP: [Family; 5] =
    [Family::DeepseekV3, Family::Glm4Moe, Family::Qwen3Next, Family::Qwen35, Family::Qwen35Moe];

/// Rounds that continue, roll back and diverge, over more tokens than fit in one pass.
pub(super) fn hydras_cached_states_equal_those_of_a_fresh_model<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let mut text = text(600, 37);
    let all = features(text.len(), target.config.hidden_size);
    let drafter = target.on(device, target.drafter(L::HydraPlusPlus));
    let mut model = drafter.heads(device.best());
    let chain = TokenTree::chain(&[5, 6]);
    for (round, len) in [2, 3, 300, 301, 304, 304, 120, 310, 500, 5].into_iter().enumerate() {
        // Another token, so that the cached tokens no longer agree.
        if round == 6 {
            text[60] += 1;
        }
        let tokens = &text[..len];
        let found = logits(&mut model, tokens, &all, &chain, 0);
        let mut fresh = drafter.heads(Run { threads: 1, ..device.best() });
        assert_eq!(found, logits(&mut fresh, tokens, &all, &chain, 0), "round {round}");
    }
    model.release(SEQUENCE);
}

/// Rounds that accept different parts of a tree, or diverge. Each returns the logits of a fresh
/// drafter, and only rows that were computed from the target's features count as exact.
pub(super) fn a_round_keeps_no_predicted_rows<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let options = *Eagle3Options::all().last().unwrap();
    for layout in [L::Eagle, L::Eagle3With(options)] {
        assert_keeps_no_predicted_rows(device, &target, target.drafter(layout));
    }
}

/// The same with MTP heads.
pub(super) fn rounds_of_mtp_heads_have_the_bits_of_fresh_ones<D: Device>(device: &D) {
    let configs = device.offer().configs.into_iter();
    let with_mtp = configs.filter(|config| WITH_MTP.contains(&config.family));
    for config in with_mtp.step_by(device.effort().step_of_examples) {
        let target = Target::of(config, true);
        let speculator = Speculator::open_mtp(&target.checkpoint).unwrap();
        assert_keeps_no_predicted_rows(device, &target, speculator);
    }
}

fn assert_keeps_no_predicted_rows<D: Device>(device: &D, target: &Target, speculator: Speculator) {
    let mut text = text(400, 37);
    let drafter = target.on(device, speculator);
    let weights = drafter.weights();
    let new = |threads| {
        let run = Run { threads, ..device.best() };
        EagleModel::new(device.model(&weights, run))
    };
    let mut model = new(D::THREADS);
    let architecture = model.device().architecture();
    assert!(!architecture.layers.iter().any(|layer| layer.recurrent.is_some()));
    let size = architecture.feature_width();
    let (all, tree) = (features(text.len(), size), tree());
    for (round, len) in [2, 3, 300, 301, 304, 304, 120, 310, 5, 6].into_iter().enumerate() {
        // The next round accepts a path of this round's tree.
        (0..3).for_each(|depth| text[len + depth] = tree.token(depth));
        let tokens = &text[..len];
        for (first_row, nodes) in [(0, 0), (1, 2), (3, 5)] {
            let tree = tree.first(nodes);
            let found = logits(&mut model, tokens, &all, &tree, first_row);
            let expected = logits(&mut new(1), tokens, &all, &tree, first_row);
            assert_eq!(found, expected, "round {round}, {nodes} nodes");
            assert!(model.cache(SEQUENCE).unwrap().index().exact_len() < len);
        }
    }
    // Another first token changes all features after it, although the tokens stay the same.
    text[0] = 200;
    let other = features(7, size);
    let found = logits(&mut model, &text[..7], &other, &TokenTree::new(), 0);
    assert_eq!(found, logits(&mut new(1), &text[..7], &other, &TokenTree::new(), 0));
}

/// A request that is cancelled fails, or has the right rows, and the next ones have the right rows
/// in any case.
pub(super) fn cancelled_passes_of_drafters_leave_no_wrong_rows<D: Device>(device: &D) {
    let target = Target::plain();
    let (tokens, tree) = (text(40, 7), TokenTree::chain(&[4, 5]));
    for layout in [L::Eagle, L::HydraPlusPlus, L::Medusa] {
        let mut drafter = target.on(device, target.drafter(layout));
        drafter.part = TargetPart::WithoutLayers;
        let ([mut model, mut reference], shape) = models(&drafter, device.best());
        let features = features(tokens.len(), shape.width);
        for (len, moments) in [(12, None), (20, Some(100)), (30, Some(20_000)), (40, Some(100_000))]
        {
            let request = ForwardRequest::new(SEQUENCE, &tokens[..len], &tree);
            let request = ForwardRequest { features: Some(&features), ..request };
            let cancel = AtomicBool::new(moments.is_none());
            let cancelled = std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..moments.unwrap_or(0)).for_each(|_| std::hint::spin_loop());
                    cancel.store(true, Ordering::Relaxed);
                });
                model.logits(&ForwardRequest { cancel: &cancel, ..request })
            });
            let expected = reference.logits(&request).unwrap().logits;
            match cancelled {
                Ok(output) => assert_eq!(output.logits, expected, "{layout:?}"),
                Err(error) => assert_eq!(error, ModelError::Cancelled, "{layout:?}"),
            }
            let found = model.logits(&request).unwrap().logits;
            assert_eq!(found, expected, "{layout:?}, {len} tokens, after a cancelled pass");
        }
    }
}

/// PARD-2 shares nothing but the target's final norm, which can be loaded alone.
pub(super) fn pard_2_drafts_the_same_with_the_targets_final_norm_alone<D: Device>(device: &D) {
    let target = Target::of_one_layer();
    let mut drafter = target.on(device, target.drafter(L::Pard2));
    let width = drafter.speculator.features().unwrap().width(target.config.hidden_size);
    let tokens = text(9, 37);
    let found = [TargetPart::Whole, TargetPart::FinalNorm].map(|part| {
        drafter.part = part;
        let mut model = BlockModel::new(drafter.layers(device.best()));
        let masks = TokenTree::chain(&[0; 3]);
        logits(&mut model, &tokens, &features(tokens.len(), width), &masks, 0)
    });
    assert_eq!(found[0], found[1]);
}

/// A long prompt takes several passes, alone or next to another one, and has the bits of one that
/// came in steps.
pub(super) fn long_prompts_of_pard_2_have_the_bits_of_short_steps<D: Device>(device: &D) {
    let config = example_config();
    let config = Config { num_hidden_layers: 1, max_position_embeddings: 1024, ..config };
    let target = Target::of(config, false);
    let drafter = target.on(device, target.drafter(L::Pard2));
    let width = drafter.speculator.features().unwrap().width(target.config.hidden_size);
    let weights: Arc<D::Weights> = drafter.weights();
    let new = || BlockModel::new(device.model(&weights, device.best()));
    let text = text(600, 37);
    let features = features(text.len(), width);
    let masks = TokenTree::chain(&[0; 3]);
    // They share no prefix, so neither has rows of the other.
    let texts = [&text[..], &text[1..301]];
    let expected = texts.map(|text| {
        let mut model = new();
        for part in (100..text.len()).step_by(100) {
            logits(&mut model, &text[..part], &features, &masks, 0);
        }
        logits(&mut model, text, &features, &masks, 0)
    });
    assert_eq!(logits(&mut new(), &text, &features, &masks, 0), expected[0]);
    let requests = [(0, texts[0]), (1, texts[1])].map(|(sequence, text)| {
        let request = ForwardRequest::new(SequenceId(sequence), text, &masks);
        ForwardRequest { features: Some(&features), ..request }
    });
    let both = run_all(&mut new(), &requests);
    assert!(both.into_iter().map(|output| output.unwrap().logits).eq(expected));
    let mut progress: [Progress; 2] = Default::default();
    let mut model = new();
    let mut passes = 0;
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = requests.into_iter().zip(&mut progress);
        let unfinished = entries.filter(|(_, progress)| progress.result.is_none());
        let batch = unfinished.map(|(request, progress)| BatchEntry { request, progress });
        model.forward(&mut batch.collect::<Vec<_>>());
        passes += 1;
    }
    assert_eq!(passes, 4, "900 rows, at most 256 of prompts in a pass");
}

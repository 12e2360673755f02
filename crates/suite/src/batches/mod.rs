//! Row invariance with company: whatever other sequences share a pass, a request's rows and
//! features have the bits that the request has alone. Requests that read only the best tokens get
//! the best of the whole rows.

mod schedule;

use crate::prelude::*;
use schedule::*;

suite! { $ batches:
    a_request_has_the_same_bits_in_company,
    schedules_that_once_failed_have_the_same_bits,
    features_of_a_text_do_not_depend_on_states,
    equal_prompts_are_computed_and_stored_once,
    long_prompts_make_progress_with_a_small_budget,
    numbers_beyond_the_caches_range_fail_only_their_own_request,
    models_on_two_threads_have_the_same_bits,
}

/// Creates a model that keeps the features before and after the first layer, and after the last
/// one.
fn model<D: Device>(
    device: &D,
    weights: &Arc<D::Weights>,
    run: Run<D::Variant>,
    layers: usize,
) -> CachedTransformer<D::Model> {
    let mut kept = vec![0, 1, layers];
    kept.dedup();
    let model = device.model(weights, run);
    CachedTransformer::new(D::with_features(model, FeatureSource::Layers(kept)))
}

/// Loads a plain model in f32, and returns a function that creates it on the most threads.
fn plain_model<D: Device>(device: &D) -> impl Fn() -> CachedTransformer<D::Model> {
    let weights = Kind::of(device, 0, WeightType::F32).weights(device);
    move || CachedTransformer::new(device.model(&weights, device.best()))
}

/// A long pass keeps no state after the last row of the text if only later nodes are requested. The
/// text's features are still there when the pass has ended, also those of recurrent models.
fn features_of_a_text_do_not_depend_on_states<D: Device>(device: &D) {
    let (tokens, tree) = (text(140, 7), TokenTree::chain(&[3, 4]));
    // The last ones are recurrent.
    for example in (0..device.offer().configs.len()).rev().step_by(device.effort().step_of_examples)
    {
        let kind = Kind::of(device, example, WeightType::F32);
        let weights = kind.weights(device);
        let features = |first_row| {
            let mut model = model(device, &weights, device.best(), kind.layers(device));
            let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
            let request = ForwardRequest { first_row, features_from: Some(32), ..request };
            model.logits(&request).unwrap().features
        };
        assert_eq!(features(2), features(0), "{kind:?}");
    }
}

/// Eight sequences with one prompt: the pages and the rows of one, and of what is not a whole page.
fn equal_prompts_are_computed_and_stored_once<D: Device>(device: &D) {
    let new_model = plain_model(device);
    let (prompt, none) = (text(7 * PAGE_ROWS + 9, 7), TokenTree::new());
    let rows_of = |sequences: u64| {
        let mut model = new_model();
        let request = |sequence| ForwardRequest::new(SequenceId(sequence), &prompt, &none);
        let outputs = run_all(&mut model, &(0..sequences).map(request).collect::<Vec<_>>());
        let (logits, rows): (Vec<_>, Vec<_>) = outputs
            .into_iter()
            .map(|output| output.map(|output| (output.logits, output.computed_tokens)).unwrap())
            .unzip();
        assert!(logits.windows(2).all(|pair| pair[0] == pair[1]));
        (model.pool().allocated(), rows.iter().sum::<usize>())
    };
    let (pages, rows) = rows_of(1);
    assert_eq!((pages, rows), (8, prompt.len()));
    // Each further sequence has one page of its own, and computes its rows.
    assert_eq!(rows_of(8), (8 + 7, prompt.len() + 7 * 9));
}

/// Two prompts, each of which needs more pages than the budget: neither takes the pages of the
/// other for ever.
fn long_prompts_make_progress_with_a_small_budget<D: Device>(device: &D) {
    let mut model = plain_model(device)().with_page_budget(2);
    let prompts = [3, 5].map(|step| text(600, step));
    let mut progress = [(); 2].map(|()| Progress::default());
    for passes in 0.. {
        assert!(passes < 20, "the requests make no progress");
        let batch = progress.iter_mut().zip(&prompts).zip(0..).map(|((progress, prompt), id)| {
            BatchEntry { request: ForwardRequest::next_token(SequenceId(id), prompt), progress }
        });
        model.forward(&mut batch.collect::<Vec<_>>());
        if progress.iter().all(|progress| progress.result.is_some()) {
            break;
        }
    }
}

/// Keys and values that are just too large for an f16 cache for some tokens only: these requests
/// fail, whatever shares their pass, and the others have the bits that they have alone.
fn numbers_beyond_the_caches_range_fail_only_their_own_request<D: Device>(device: &D) {
    for (tensor, part) in [("k_proj", CachePart::Key), ("v_proj", CachePart::Value)] {
        let folder = tempfile::tempdir().unwrap();
        random_checkpoint(folder.path(), &examples()[0]);
        let file = folder.path().join("model.safetensors");
        // The largest of 24 normally distributed numbers is between 1 and 4 for nearly all tokens.
        let name = format!("model.layers.1.self_attn.{tensor}.weight");
        scale_tensor(&file, &name, 30_000.0).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        for weight_type in device.offer().kinds_of_weights {
            let weights = device.load((checkpoint.architecture(), &checkpoint), weight_type.into());
            let results = rows_of_single_tokens(device, &Arc::new(weights));
            let errors: Vec<_> =
                results.iter().filter_map(|result| result.as_ref().err()).collect();
            let expected = ModelError::CacheRange { layer: 1, part };
            assert!(errors.iter().all(|error| **error == expected), "{weight_type}");
            match weight_type {
                WeightType::F32 => assert!(errors.is_empty()),
                _ => assert!((1..results.len()).contains(&errors.len()), "{weight_type}"),
            }
        }
    }
}

/// Returns the rows of twelve sequences of a token each, which are the same alone and together.
fn rows_of_single_tokens<D: Device>(
    device: &D,
    weights: &Arc<D::Weights>,
) -> Vec<Result<ForwardOutput, ModelError>> {
    let tokens: Vec<TokenId> = (0..12).collect();
    let of_token =
        |number| ForwardRequest::next_token(SequenceId(number as u64), &tokens[number..=number]);
    let requests: Vec<ForwardRequest<'_>> = (0..tokens.len()).map(of_token).collect();
    let new_model = || CachedTransformer::new(device.model(weights, device.best()));
    let alone = requests.iter().flat_map(|request| run_all(&mut new_model(), &[*request]));
    let alone: Vec<_> = alone.collect();
    let mut model = new_model();
    // A request that failed fails again: the cache does not hold its row.
    for _ in 0..2 {
        assert!(alone == run_all(&mut model, &requests));
    }
    alone
}

/// Two models with the same weights, at the same time.
fn models_on_two_threads_have_the_same_bits<D: Device>(device: &D) {
    let new_model = plain_model(device);
    let tokens = text(90, 3);
    let run = || {
        let mut model = new_model();
        let ends = (10..tokens.len()).step_by(7);
        let logits = ends.flat_map(|end| {
            let request = ForwardRequest::next_token(SequenceId(1), &tokens[..end]);
            model.logits(&request).unwrap().logits
        });
        logits.map(f32::to_bits).collect::<Vec<_>>()
    };
    let alone = run();
    std::thread::scope(|scope| {
        let both = [scope.spawn(run), scope.spawn(run)];
        assert!(both.into_iter().all(|thread| thread.join().unwrap() == alone));
    });
}

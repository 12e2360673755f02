//! A loader reports progress, can be cancelled, and shares weights between engines.

use forerun::{Engine, ForerunError, Loader, Options, Plan, RandomPair, Request, Step};
use std::ops::ControlFlow;

#[test]
fn loading_is_reported_layer_by_layer_for_each_model() {
    let pair = RandomPair::make().unwrap();
    let core = forerun::placement::available_cores()[0];
    let options = Options {
        model: pair.target().into(),
        draft_model: Some(pair.drafter().into()),
        placement: Some(format!("drafter=cpu:{core},target=cpu:{core},shared").parse().unwrap()),
        ..Options::default()
    };
    let plan = Plan::new(options).unwrap();
    let mut reported = Vec::new();
    let mut loader = Loader::new().on_progress(|progress| {
        let Step::Load { model, types } = progress.step else { return ControlFlow::Break(()) };
        assert_eq!(types, "f32");
        reported.push((model.to_owned(), progress.done, progress.total));
        ControlFlow::Continue(())
    });
    let engine = Engine::open_with(&plan, &mut loader).unwrap();
    drop(loader);
    let mut expected = Vec::new();
    for (model, layers) in [(pair.target(), engine.config().num_hidden_layers), (pair.drafter(), 1)]
    {
        let layers = layers as u64;
        let name = model.to_string_lossy();
        expected.extend((0..=layers).map(|done| (name.clone().into_owned(), done, layers)));
    }
    assert_eq!(reported, expected);
    // A progress callback changes nothing in the models.
    let request = Request { max_tokens: 8, ..Request::default() };
    let watched = engine.complete("ka", &request).unwrap();
    drop(engine);
    let alone = Engine::open_plan(&plan).unwrap().complete("ka", &request).unwrap();
    assert_eq!(watched.tokens, alone.tokens);
}

#[test]
fn the_progress_callback_can_cancel() {
    let pair = RandomPair::make().unwrap();
    let options = Options { model: pair.target().into(), ..Options::default() };
    let plan = Plan::new(options).unwrap();
    let mut loader = Loader::new().on_progress(|_| ControlFlow::Break(()));
    let outcome = Engine::open_with(&plan, &mut loader).map(drop);
    assert!(matches!(outcome, Err(ForerunError::Cancelled)), "{outcome:?}");
}

#[test]
fn engines_of_one_loader_share_weights_on_request() {
    let pair = RandomPair::make().unwrap();
    let core = forerun::placement::available_cores()[0];
    let options = Options {
        model: pair.target().into(),
        draft_model: Some(pair.drafter().into()),
        placement: Some(format!("drafter=cpu:{core},target=cpu:{core},shared").parse().unwrap()),
        ..Options::default()
    };
    let alone = Options { draft_model: None, ..options.clone() };
    let plans = [options, alone].map(|options| Plan::new(options).unwrap());
    for (shared, loaded) in [(true, 2), (false, 3)] {
        let mut finished = 0;
        let loader = Loader::new().on_progress(|progress| {
            finished += usize::from(progress.done == progress.total);
            ControlFlow::Continue(())
        });
        let mut loader = if shared { loader.sharing_weights() } else { loader };
        let engines = plans.each_ref().map(|plan| Engine::open_with(plan, &mut loader).unwrap());
        drop(loader);
        assert_eq!(finished, loaded);
        let request = Request { max_tokens: 24, ..Request::default() };
        let answers = engines.each_ref().map(|engine| engine.complete("ka", &request).unwrap());
        assert_eq!(answers[0].tokens, answers[1].tokens);
        for answer in answers {
            // The commits account for every token, and for the times of the first and the last.
            let tokens: usize = answer.commits.iter().map(|commit| commit.tokens).sum();
            assert_eq!(tokens, answer.tokens.len());
            assert!(answer.commits.is_sorted_by_key(|commit| commit.at_ns));
            assert_eq!(answer.commits[0].at_ns, answer.first_token_ns);
            assert!(answer.commits.iter().all(|commit| commit.at_ns <= answer.total_ns));
        }
    }
}

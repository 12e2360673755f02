//! Log-probabilities of given tokens.

use forerun::{
    Canceller, Engine, ForerunError, Options, RandomPair, Request, SamplingOptions, TokenId,
};

fn engine(pair: &RandomPair) -> Engine {
    let options = Options {
        model: pair.target().into(),
        draft_model: Some(pair.drafter().into()),
        ..Options::default()
    };
    Engine::open(options).unwrap()
}

#[test]
fn scores_of_an_answer_are_its_log_probabilities() {
    let pair = RandomPair::make().unwrap();
    let engine = engine(&pair);
    let prompt = engine.tokenizer().encode("Once upon a time").unwrap();
    for temperature in [0.0, 1.5] {
        let request = Request {
            sampling: SamplingOptions { temperature, ..SamplingOptions::default() },
            max_tokens: 100,
            ignore_eos: true,
            logprobs: Some(3),
            seed: Some(1),
            ..Request::default()
        };
        let answer = engine.complete("Once upon a time", &request).unwrap();
        // Several jobs, and jobs of one row.
        for scored in [100, 33, 1] {
            let start = answer.tokens.len() - scored;
            let before = [&prompt[..], &answer.tokens[..start]].concat();
            let scores =
                engine.score(&before, &answer.tokens[start..], 3, &Canceller::new()).unwrap();
            assert_eq!(scores, answer.logprobs.as_ref().unwrap()[start..]);
        }
    }
    assert_eq!(engine.score(&prompt, &[], 0, &Canceller::new()).unwrap(), []);
    // With an answer, and without one.
    let with_prompt = |prompt_logprobs| {
        let request = Request { prompt_logprobs, max_tokens: 3, ..Request::default() };
        engine.complete("Once upon a time", &request).unwrap()
    };
    let scores = engine.score(&prompt[..1], &prompt[1..], 2, &Canceller::new()).unwrap();
    let answer = with_prompt(Some(2));
    assert_eq!(answer.prompt_logprobs, Some(scores));
    let without = with_prompt(None);
    assert_eq!((without.prompt_logprobs, without.tokens), (None, answer.tokens));
    let request = Request { prompt_logprobs: Some(21), ..Request::default() };
    assert!(request.validate().is_err());
}

#[test]
fn every_token_has_a_probability() {
    let pair = RandomPair::make().unwrap();
    let engine = engine(&pair);
    let vocabulary = 0..engine.config().vocab_size as TokenId;
    let score = |token| {
        let scores = engine.score(&[1], &[token], 0, &Canceller::new()).unwrap();
        f64::from(scores[0].logprob)
    };
    let total: f64 = vocabulary.map(|token| score(token).exp()).sum();
    assert!((total - 1.0).abs() < 1e-4, "{total}");
}

#[test]
fn the_text_may_fill_the_context_and_is_refused_beyond() {
    let pair = RandomPair::make().unwrap();
    let engine = engine(&pair);
    let context = engine.config().max_position_embeddings;
    let text = vec![5; context + 2];
    let score = |tokens: &[TokenId]| engine.score(&tokens[..1], &tokens[1..], 0, &Canceller::new());
    assert_eq!(score(&text[..=context]).unwrap().len(), context);
    let error = score(&text).unwrap_err();
    assert!(matches!(error, ForerunError::TextTooLong { tokens, .. } if tokens == context + 2));
    assert!(matches!(score(&[5]), Ok(scores) if scores.is_empty()));
    let unknown = engine.config().vocab_size as TokenId;
    assert!(score(&[1, unknown, 1]).is_err());
    assert!(engine.score(&[], &[1], 0, &Canceller::new()).is_err());
    assert!(engine.score(&[1], &[1], 21, &Canceller::new()).is_err());
    let cancelled = Canceller::new();
    cancelled.cancel();
    assert!(engine.score(&[1], &[1], 0, &cancelled).is_err());
}

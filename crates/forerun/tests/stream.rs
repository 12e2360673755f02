//! Answers as iterators of events, and several answers at once on one engine.

use crate::common::Pair;
use forerun::placement::available_cores;
use forerun::{
    Answer, AnswerEvent, AnswerToken, Engine, Finish, Method, Options, Request, TokenOrigin,
    Verification, VerificationChoice,
};
use std::ops::ControlFlow;

fn engine(pair: &Pair, method: Method) -> Engine {
    engine_with_cache(pair, method, None)
}

fn engine_with_cache(pair: &Pair, method: Method, cache_bytes: Option<usize>) -> Engine {
    let core = available_cores()[0];
    let draft_model = method.drafts().then(|| pair.drafter.clone().into());
    let options = Options {
        model: pair.target.clone().into(),
        draft_model,
        method: Some(method.into()),
        placement: method
            .is_parallel()
            .then(|| format!("drafter=cpu:{core},target=cpu:{core},shared").parse().unwrap()),
        cache_bytes,
        ..Options::default()
    };
    Engine::open(options).unwrap()
}

fn request(seed: u64) -> Request {
    Request {
        max_tokens: 40,
        seed: Some(seed),
        verification: VerificationChoice::Always(Verification::Coupled),
        logprobs: Some(2),
        ..Request::default()
    }
}

/// The events of a stream: tokens, text, and the answer.
fn collect(
    stream: impl Iterator<Item = Result<AnswerEvent, forerun::ForerunError>>,
) -> (Vec<AnswerToken>, String, Answer) {
    let (mut tokens, mut text, mut answer) = (Vec::new(), String::new(), None);
    for event in stream {
        assert!(answer.is_none(), "the answer is the last event");
        match event.unwrap() {
            AnswerEvent::Token(token) => tokens.push(token),
            AnswerEvent::Text(part) => text += &part,
            AnswerEvent::Finished(finished) => answer = Some(*finished),
        }
    }
    (tokens, text, answer.unwrap())
}

/// A cache of a single page for several answers at the same time: they take it from each other.
#[test]
fn the_text_does_not_depend_on_the_memory_of_the_caches() {
    let pair = Pair::generated();
    for method in Method::all() {
        let (enough, one_page) = (engine(&pair, method), engine_with_cache(&pair, method, Some(1)));
        let expected = (0..).zip(&pair.prompts[..3]);
        let expected: Vec<Answer> = expected
            .map(|(seed, prompt)| enough.complete(prompt, &request(seed)).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for ((seed, prompt), expected) in (0..).zip(&pair.prompts).zip(&expected) {
                let one_page = &one_page;
                scope.spawn(move || {
                    let answer = one_page.complete(prompt, &request(seed)).unwrap();
                    assert_eq!(answer.tokens, expected.tokens, "{method}");
                });
            }
        });
    }
}

#[test]
fn the_events_are_the_parts_of_the_answer() {
    let pair = Pair::generated();
    for method in Method::all() {
        let engine = engine(&pair, method);
        for (seed, prompt) in (0..).zip(&pair.prompts[..3]) {
            let expected = engine.complete(prompt, &request(seed)).unwrap();
            let mut stream = engine.stream(prompt, &request(seed)).unwrap();
            let (tokens, text, answer) = collect(&mut stream);
            assert!(stream.next().is_none());
            assert_eq!((&text, &answer.tokens), (&expected.text, &expected.tokens), "{method}");
            assert_eq!(text, answer.text);
            assert!(tokens.iter().map(|token| token.token).eq(answer.tokens.iter().copied()));
            let logprobs = tokens.iter().map(|token| token.logprob.clone().unwrap());
            assert_eq!(Some(logprobs.collect::<Vec<_>>()), answer.logprobs);
            let origins = tokens.iter().map(|token| (token.round, token.origin));
            let rounds = answer.verifications.iter().enumerate();
            let expected = rounds.flat_map(|(round, record)| {
                let own = match (record.accepted, record.rejected.len()) {
                    (0, 0) => TokenOrigin::Plain,
                    (_, 0) => TokenOrigin::Bonus,
                    _ => TokenOrigin::Correction,
                };
                let is_own = move |number| number >= record.accepted;
                (0..record.committed).map(move |number| {
                    (round, if is_own(number) { own } else { TokenOrigin::Draft })
                })
            });
            assert!(origins.eq(expected), "{method}");
        }
    }
}

#[test]
fn a_dropped_stream_cancels_its_answer() {
    let pair = Pair::generated();
    for method in Method::all() {
        let engine = engine(&pair, method);
        let expected = engine.complete(&pair.prompts[0], &request(1)).unwrap();
        for events in [0, 1, 5] {
            let stream = engine.stream(&pair.prompts[0], &request(1)).unwrap();
            assert!(stream.take(events).all(|event| event.is_ok()));
            let answer = engine.complete(&pair.prompts[0], &request(1)).unwrap();
            assert_eq!(answer.tokens, expected.tokens, "{method}");
            // The trace has no job of the cancelled answer.
            let mut sequences = answer.trace.spans.iter().map(|span| span.sequence.base());
            let first = sequences.next();
            assert!(sequences.all(|sequence| Some(sequence) == first), "{method}");
        }
    }
}

#[test]
fn a_stopped_stream_ends_with_the_tokens_so_far() {
    let pair = Pair::generated();
    let engine = engine(&pair, Method::Speculative);
    let mut stream = engine.stream(&pair.prompts[0], &request(1)).unwrap();
    let mut tokens = 0;
    while tokens < 7 {
        tokens += usize::from(matches!(stream.next().unwrap().unwrap(), AnswerEvent::Token(_)));
    }
    stream.stop();
    let (rest, text, answer) = collect(&mut stream);
    assert!(rest.is_empty() && text.is_empty());
    assert_eq!((answer.tokens.len(), answer.finish), (7, Finish::Stopped));
}

/// Several streams on one thread, which advance alternately, and answers on several threads.
#[test]
fn answers_at_the_same_time_are_those_that_each_has_alone() {
    let pair = Pair::generated();
    for method in Method::all() {
        let engine = engine(&pair, method);
        let prompts = &pair.prompts[..5];
        let alone: Vec<_> = (0..)
            .zip(prompts)
            .map(|(seed, prompt)| engine.complete(prompt, &request(seed)).unwrap().tokens)
            .collect();
        let mut streams: Vec<_> = (0..)
            .zip(prompts)
            .map(|(seed, prompt)| engine.stream(prompt, &request(seed)).unwrap())
            .collect();
        let mut tokens = vec![Vec::new(); streams.len()];
        let mut ended = 0;
        while ended < streams.len() {
            for (stream, tokens) in streams.iter_mut().zip(&mut tokens) {
                match stream.next().transpose().unwrap() {
                    Some(AnswerEvent::Token(token)) => tokens.push(token.token),
                    Some(AnswerEvent::Finished(_)) => ended += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(tokens, alone, "{method}");
        std::thread::scope(|scope| {
            for (seed, (prompt, tokens)) in (0..).zip(prompts.iter().zip(&alone)) {
                let engine = &engine;
                scope.spawn(move || {
                    let on_text = |_: &str| ControlFlow::Continue(());
                    let answer = engine.generate(prompt, &request(seed), on_text).unwrap();
                    assert_eq!(answer.tokens, *tokens, "{method}");
                });
            }
        });
    }
}

//! Answers end at every position of a round: at the first token, inside an accepted draft, at the
//! correction, at the bonus token. Nothing after the end is returned or counted.

use crate::common::Pair;
use forerun::trace::SpanKind;
use forerun::{
    DraftTokens, DrafterKind, Engine, Finish, Lookup, Method, MethodOptions, Options, Request,
    SamplingOptions, TokenId, Tree, Verification, VerificationChoice,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const TOKENS: usize = 14;

fn engines(pair: &Pair) -> Vec<Engine> {
    const MODEL: DrafterKind = DrafterKind::Model;
    const LOOKUP: DrafterKind = DrafterKind::PromptLookup;
    let speculative = |tree| MethodOptions::Speculative { tree, lookup: Lookup::None };
    let pearl = |options: &str| MethodOptions::Pearl(options.parse().unwrap());
    let cells = [
        (Method::Autoregressive.into(), DrafterKind::None),
        (speculative(Tree::None), MODEL),
        (speculative(Tree::Top { width: 3, depth: Some(3), budget: Some(7) }), MODEL),
        (speculative(Tree::Sampled { branching: vec![2, 2, 1] }), MODEL),
        (speculative(Tree::None), DrafterKind::Ouroboros),
        (speculative(Tree::None), LOOKUP),
        (pearl("eager"), MODEL),
        (pearl("paper"), MODEL),
        (pearl("paper,no-pre-verify"), MODEL),
        (pearl("paper,no-post-verify"), MODEL),
        (pearl("eager"), LOOKUP),
        (Method::Dsi.into(), MODEL),
        (Method::Dsi.into(), LOOKUP),
    ];
    let engine = |(method, drafter): (MethodOptions, DrafterKind)| {
        let options = Options {
            model: pair.target.clone().into(),
            draft_model: drafter.has_model().then(|| pair.drafter.clone()).map(Into::into),
            method: Some(method),
            drafter: Some(drafter.into()),
            draft_tokens: DraftTokens::Fixed(3),
            ..Options::default()
        };
        Engine::open(options).unwrap()
    };
    cells.into_iter().map(engine).collect()
}

fn answer(engine: &Engine, prompt: &[TokenId], request: &Request) -> forerun::Answer {
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt.to_vec(), request, go_on).unwrap()
}

fn request() -> Request {
    Request { max_tokens: TOKENS, ignore_eos: true, ..Request::default() }
}

fn check_tokens(pair: &Pair) {
    let engines = engines(pair);
    for prompt in &pair.prompts[..2] {
        let prompt = pair.tokenizer().encode(prompt).unwrap();
        let whole = answer(&engines[0], &prompt, &request()).tokens;
        let text = |end: usize| match end {
            0 => String::new(),
            _ => answer(&engines[0], &prompt, &Request { max_tokens: end, ..request() }).text,
        };
        let texts: Vec<String> = (0..TOKENS).map(text).collect();
        for engine in &engines {
            for end in 1..=TOKENS {
                let short = Request { max_tokens: end, ..request() };
                let cut = answer(engine, &prompt, &short);
                assert_eq!(cut.tokens, whole[..end]);
                assert_eq!(cut.finish, Finish::MaxTokens);
                assert_eq!(cut.statistics.committed, end as u64);

                let eos = whole[end - 1];
                let first = whole.iter().position(|&token| token == eos).unwrap() + 1;
                let stopped =
                    answer(engine, &prompt, &Request { stop_tokens: vec![eos], ..request() });
                assert_eq!(stopped.tokens, whole[..first]);
                assert_eq!(stopped.text, texts[first - 1], "the end has no text");
                assert_eq!(stopped.finish, Finish::Eos);
                assert_eq!(stopped.statistics.committed, first as u64);
                let accepted: u64 = stopped.statistics.accepted.iter().sum();
                let from_target = stopped.statistics.committed - accepted;
                let passes = stopped.statistics.target_forwards;
                assert!(from_target <= passes, "the target adds one token per forward pass");
            }
        }
    }
}

#[test]
fn a_generated_pair_ends_at_every_token() {
    check_tokens(&Pair::generated());
}

#[test]
fn the_real_pair_ends_at_every_token() {
    if let Some(pair) = Pair::real() {
        check_tokens(&pair);
    }
}

/// With the target as its own drafter, everything that Ouroboros drafts is right. A limit, assisted
/// draft lengths and a seed shorten its phrases, but not the model's own draft.
#[test]
fn phrases_do_not_shorten_the_models_own_draft() {
    let pair = Pair::generated();
    let engine = |draft_tokens| {
        let options = Options {
            model: pair.target.clone().into(),
            draft_model: Some(pair.target.clone().into()),
            drafter: Some(DrafterKind::Ouroboros.into()),
            draft_tokens,
            ..Options::default()
        };
        Engine::open(options).unwrap()
    };
    let drafts = |answer: &forerun::Answer| -> Vec<usize> {
        let drafts = answer.trace.spans.iter().filter(|span| span.kind == SpanKind::Draft);
        drafts.map(|span| span.rows).collect()
    };
    let [fixed, assisted, auto] =
        [DraftTokens::Fixed(5), DraftTokens::Assisted, DraftTokens::Auto].map(engine);
    for prompt in &pair.prompts[..6] {
        let prompt = pair.tokenizer().encode(prompt).unwrap();
        for end in 2..=6 {
            let short = answer(&fixed, &prompt, &Request { max_tokens: end, ..request() });
            assert_eq!(short.statistics.target_forwards, 1, "all of {end} tokens in one round");
        }
        // 5 tokens and the target's own, then 7, then 9.
        let long = answer(&assisted, &prompt, &Request { max_tokens: 24, ..request() });
        assert!(long.statistics.target_forwards <= 3, "{:?}", long.statistics);
        let seeded = Request {
            sampling: SamplingOptions { temperature: 1.0, ..request().sampling },
            seed: Some(1),
            verification: VerificationChoice::Always(Verification::Rejection),
            ..request()
        };
        let seeded = answer(&auto, &prompt, &seeded);
        assert!(drafts(&seeded)[0] >= 4, "{:?}", drafts(&seeded));
    }
}

/// The tests above reach every position of a round. A step with `n` tokens has `n − 1` accepted
/// ones and one of the target's own.
#[test]
fn rounds_have_tokens_at_every_kind_of_position() {
    use forerun_core::{DraftShape, Sampling, SequenceId};
    use forerun_cpu::{Team, Transformer, Weights};
    use forerun_decode::{
        DraftLength, Limits, Sequence, Speculative, SpeculativeDraftLength, generate,
    };
    use forerun_draft::ModelDrafter;
    use forerun_formats::Checkpoint;
    use forerun_model::CachedTransformer;
    use forerun_runtime::{Engine, InlineCluster};
    use std::sync::Arc;

    let pair = Pair::generated();
    let model = |path| {
        let weights = Weights::load(&Checkpoint::open(path).unwrap()).unwrap();
        CachedTransformer::new(Transformer::new(Arc::new(weights), Arc::new(Team::single_thread())))
    };
    let engine = Engine::new()
        .with_target(0, model(&pair.target))
        .with_drafter(0, ModelDrafter::new(model(&pair.drafter)));
    let sampling = Sampling::greedy();
    let mut cluster = InlineCluster::new(engine, Arc::new(sampling.randomness));
    let mut places = BTreeSet::new();
    for (prompt, id) in pair.prompts[..12].iter().zip(0..12) {
        let prompt = pair.tokenizer().encode(prompt).unwrap();
        let limits = Limits { max_tokens: TOKENS, context_length: 2_000, eos: Vec::new() };
        let mut sequence = Sequence::new(SequenceId(id), prompt, sampling.clone(), limits);
        let draft_length =
            SpeculativeDraftLength::new(DraftShape::Chain { length: 3 }, DraftLength::Fixed);
        let mut decoder = Speculative::new(draft_length);
        generate(&mut decoder, &mut sequence, &mut cluster, |tokens| {
            for place in 0..tokens.len() - 1 {
                places.insert(format!("accepted {place}"));
            }
            let own = if tokens.len() == 4 { "bonus" } else { "correction" };
            places.insert(format!("{own} after {}", tokens.len() - 1));
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    let expected = [
        "accepted 0",
        "accepted 1",
        "accepted 2",
        "bonus after 3",
        "correction after 0",
        "correction after 1",
        "correction after 2",
    ];
    assert_eq!(places.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn a_stop_string_ends_the_text_at_every_position() {
    let Some(pair) = Pair::real() else { return };
    let engines = engines(&pair);
    let prompt = pair.tokenizer().encode("Once upon a time").unwrap();
    let whole = answer(&engines[0], &prompt, &request()).text;
    for engine in &engines {
        for start in 0..whole.len() - 4 {
            let stop = &whole[start..start + 4];
            let mut streamed = String::new();
            let stopping = Request { stop: vec![stop.into()], ..request() };
            let answer = engine
                .generate_tokens(prompt.clone(), &stopping, |text| {
                    streamed += text;
                    ControlFlow::Continue(())
                })
                .unwrap();
            let first = whole.find(stop).unwrap();
            assert_eq!(answer.text, whole[..first], "{stop:?}");
            assert_eq!(streamed, answer.text);
            assert_eq!(answer.finish, Finish::Stopped);
            assert!(answer.tokens.len() <= TOKENS);
        }
    }
}

/// Every token is a byte, and biases allow only a few of them. Characters are spread over tokens,
/// some bytes form no character, and stop strings begin and end within the tokens of a step.
#[test]
fn stop_strings_of_several_bytes_end_the_text() {
    const CANDIDATES: [&str; 8] = ["é", "éa", "aé", "aa", "éé", "a", "aéa", "ééa"];
    let pair = Pair::generated();
    let engines = engines(&pair);
    let prompt = pair.tokenizer().encode("ka").unwrap();
    let mut found = BTreeSet::new();
    for seed in 0..6 {
        let bytes = "aé".bytes().map(|byte| (TokenId::from(byte), 100.0));
        let forced = Request {
            sampling: SamplingOptions {
                temperature: 10.0,
                top_k: 3,
                logit_bias: bytes.collect(),
                ..request().sampling
            },
            max_tokens: 24,
            seed: Some(seed),
            ..request()
        };
        let whole = answer(&engines[0], &prompt, &forced).text;
        assert!(whole.chars().all(|c| "aé\u{fffd}".contains(c)), "{whole}");
        for (number, stop) in CANDIDATES.into_iter().enumerate() {
            // Alone, and together with another one that may be complete earlier or at the same
            // time.
            for stops in [vec![stop], vec![stop, CANDIDATES[(number * 3 + 1) % CANDIDATES.len()]]] {
                let complete = |stop: &&str| whole.find(stop).map(|at| (at + stop.len(), at));
                let Some((_, end)) = stops.iter().filter_map(complete).min() else { continue };
                found.insert(stop);
                for engine in &engines {
                    let stop = stops.iter().map(|&stop| stop.to_owned()).collect();
                    let stopped = answer(engine, &prompt, &Request { stop, ..forced.clone() });
                    assert_eq!(stopped.text, whole[..end], "{stops:?} in {whole:?}");
                    assert_eq!(stopped.finish, Finish::Stopped);
                    assert!(stopped.tokens.len() <= 24);
                }
            }
        }
    }
    assert!(found.len() >= 6, "too few of the candidates occurred: {found:?}");
}

/// The end-of-sequence tokens are those of the checkpoint and those of the request.
#[test]
fn the_first_of_several_end_tokens_ends_the_answer() {
    let pair = Pair::generated();
    let whole = answer(&engines(&pair)[0], &pair.tokenizer().encode("ka lo").unwrap(), &request());
    let distinct: BTreeSet<TokenId> = whole.tokens.iter().copied().collect();
    let late = *distinct.iter().max_by_key(|&&token| first(&whole.tokens, token)).unwrap();
    for &other in &distinct {
        // The generation config has a list, as for instruction-tuned models.
        let file = pair.target.join("generation_config.json");
        std::fs::write(file, format!(r#"{{"eos_token_id": [{late}, {other}]}}"#)).unwrap();
        for engine in engines(&pair) {
            let prompt = pair.tokenizer().encode("ka lo").unwrap();
            let kept = Request { ignore_eos: false, ..request() };
            let end = first(&whole.tokens, other).min(first(&whole.tokens, late)) + 1;
            let ended = answer(&engine, &prompt, &kept);
            assert_eq!((&ended.tokens[..], ended.finish), (&whole.tokens[..end], Finish::Eos));
            // A stop token of the request works with and without them.
            let start = whole.tokens[0];
            for ignore_eos in [false, true] {
                let stop_tokens = vec![start];
                let ended =
                    answer(&engine, &prompt, &Request { ignore_eos, stop_tokens, ..request() });
                assert_eq!((&ended.tokens[..], ended.finish), (&[start][..], Finish::Eos));
            }
        }
    }
}

/// Returns the first position of a token.
fn first(tokens: &[TokenId], token: TokenId) -> usize {
    tokens.iter().position(|&other| other == token).unwrap()
}

/// Log-probabilities end with the tokens, even if the last step has more.
#[test]
fn log_probabilities_belong_to_the_answers_tokens() {
    let pair = Pair::generated();
    let prompt = pair.tokenizer().encode("ka lo mi").unwrap();
    let two = Request { logprobs: Some(2), ..request() };
    let engines = engines(&pair);
    let whole = answer(&engines[0], &prompt, &two);
    for engine in &engines {
        for end in 1..TOKENS {
            let short = answer(engine, &prompt, &Request { max_tokens: end, ..two.clone() });
            assert_eq!(short.logprobs.as_deref(), whole.logprobs.as_ref().map(|all| &all[..end]));
            let Some(character) = whole.text.chars().nth(end) else { continue };
            let stop = vec![character.to_string()];
            let stopped = answer(engine, &prompt, &Request { stop, ..two.clone() });
            let logprobs = stopped.logprobs.unwrap();
            assert_eq!(logprobs, whole.logprobs.as_ref().unwrap()[..stopped.tokens.len()]);
        }
        assert_eq!(answer(engine, &prompt, &request()).logprobs, None);
        let alone = answer(engine, &prompt, &Request { logprobs: Some(0), ..request() });
        for (alone, two) in alone.logprobs.unwrap().iter().zip(whole.logprobs.as_ref().unwrap()) {
            assert_eq!((alone.token, alone.logprob, alone.top.len()), (two.token, two.logprob, 0));
        }
    }
}

#[test]
fn a_callback_that_stops_is_not_called_again() {
    let pair = Pair::generated();
    for engine in engines(&pair) {
        let mut calls = 0;
        let prompt = pair.tokenizer().encode("ka lo mi").unwrap();
        let answer = engine
            .generate_tokens(prompt, &request(), |_| {
                calls += 1;
                ControlFlow::Break(())
            })
            .unwrap();
        assert_eq!(calls, 1);
        assert_eq!(answer.finish, Finish::Stopped);
    }
}

/// Jobs for tokens after the end are finished with the answer, and its trace has all of its jobs.
#[test]
fn no_job_outlives_its_answer() {
    let pair = Pair::generated();
    let prompt = pair.tokenizer().encode("ka lo mi").unwrap();
    for engine in engines(&pair) {
        let mut next_ticket = 0;
        for end in 1..=20 {
            let mut left = end;
            let long = Request { max_tokens: 90, ..request() };
            let stopped = engine.generate_tokens(prompt.clone(), &long, |_| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let trace = stopped.unwrap().trace;
            let tickets: BTreeSet<u64> = trace.spans.iter().map(|span| span.ticket.0).collect();
            let end_ticket = next_ticket + tickets.len() as u64;
            let name = (engine.plan().method(), engine.plan().drafter());
            assert!(tickets.into_iter().eq(next_ticket..end_ticket), "{name:?}, {end} pieces");
            next_ticket = end_ticket;
        }
    }
}

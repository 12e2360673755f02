//! Long prompts. Those that are far too long are refused early: neither time nor memory grows with
//! them.

use forerun::{
    CacheType, Chat, ChatError, ChatTemplate, Engine, ForerunError, Method, Options, RandomPair,
    Request, TokenId,
};
use forerun_core::testing::is_complete;
use forerun_formats::Config;
use forerun_formats::checkpoint::random::{example_config, write_random_pair};
use std::ops::ControlFlow;
use tempfile::tempdir;

/// Twenty megabytes of words. Tokenizing them as a whole takes long, and hundreds of megabytes of
/// memory.
fn long_text() -> String {
    "ka lo mi\n".repeat(20_000_000 / 9)
}

#[test]
fn a_prompt_of_many_megabytes_is_refused_by_its_length() {
    let pair = RandomPair::make().unwrap();
    let options = Options { model: pair.target().into(), ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let (text, context) = (long_text(), engine.config().max_position_embeddings);
    let check = |error: &ForerunError| {
        let ForerunError::PromptFarTooLong { bytes, tokens, context: limit, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((*bytes, *limit), (text.len(), context));
        assert!(*tokens > context, "{tokens}");
        let message = error.to_string();
        assert!(message.contains(&format!("at most {} tokens", context - 1)), "{message}");
    };
    check(&engine.complete(&text, &Request::default()).err().unwrap());
    check(&engine.stream(&text, &Request::default()).err().unwrap());

    let mut chat = Chat::new(&engine, ChatTemplate::from_checkpoint(pair.target()).unwrap());
    let go_on = |_: &str| ControlFlow::Continue(());
    let request = Request { max_tokens: 3, ..Request::default() };
    for _ in 0..2 {
        let error = chat.send(&text, &request, go_on).err().unwrap();
        let ChatError::FarTooLong { tokens, context: limit, .. } = error else { panic!("{error}") };
        assert!(tokens > limit && limit == context);
        // The conversation goes on.
        chat.send("ka", &request, go_on).unwrap();
    }
}

#[test]
fn drafts_keep_the_text_of_long_prompts() {
    // The long version takes minutes.
    let tokens = if is_complete() { 32_768 } else { 4_096 };
    let config = Config {
        num_hidden_layers: 1,
        num_attention_heads: 1,
        num_key_value_heads: 1,
        max_position_embeddings: 33_000,
        ..example_config()
    };
    let (target, drafter) = (tempdir().unwrap(), tempdir().unwrap());
    write_random_pair(target.path(), drafter.path(), &config, 7, 0.15, 1).unwrap();
    let prompt: Vec<TokenId> = (0..tokens).map(|place| 3 + place * place / 7 % 250).collect();
    let request = Request { max_tokens: 48, ignore_eos: true, ..Request::default() };
    let types = [CacheType::F16, CacheType::Q4, CacheType::Q8, CacheType::F32];
    for &cache_type in if is_complete() { &types[..] } else { &types[..1] } {
        let answer = |draft_model, method| {
            let options = Options { draft_model, method, ..Options::new(target.path()) };
            let options = Options { cache_type: Some(cache_type), ..options };
            let engine = Engine::open(options).unwrap();
            engine.generate_tokens(prompt.clone(), &request, |_| ControlFlow::Continue(())).unwrap()
        };
        let plain = answer(None, Some(Method::Autoregressive.into()));
        let drafted = answer(Some(drafter.path().into()), Some(Method::Speculative.into()));
        assert_eq!(drafted.tokens, plain.tokens, "{cache_type}");
        assert!(drafted.statistics.draft_tokens > 0, "{cache_type}");
    }
}

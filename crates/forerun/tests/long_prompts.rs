//! Prompts that are far too long are refused early: neither time nor memory grows with them.

use forerun::{Chat, ChatError, ChatTemplate, Engine, ForerunError, Options, RandomPair, Request};
use std::ops::ControlFlow;

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

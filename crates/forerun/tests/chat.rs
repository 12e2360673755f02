//! Conversations: caches are reused between turns, the text is the target's, and the oldest turns
//! are left out when the context is full.

use forerun::placement::available_cores;
use forerun::trace::SpanKind;
use forerun::{
    Answer, Canceller, Chat, ChatError, ChatTemplate, DraftTokens, Engine, Finish, Lookup, Message,
    Method, MethodOptions, Options, RandomPair, Reply, Request, TokenId, Tree,
};
use forerun_core::Need;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

const METHODS: [Method; 4] =
    [Method::Autoregressive, Method::Speculative, Method::Pearl, Method::Dsi];

/// A template that writes all messages unchanged, so that every token of the history counts.
const TEMPLATE: &str = "\
{% for message in messages %}
{{ '[' + message.role + '] ' + message.content + '\n' }}
{%- endfor %}
{{ '[assistant] ' }}";

fn open(pair: &RandomPair) -> Engine {
    open_with(pair, None)
}

fn open_with(pair: &RandomPair, method: Option<MethodOptions>) -> Engine {
    let core = available_cores()[0];
    let options = Options {
        model: pair.target().into(),
        draft_model: Some(pair.drafter().into()),
        placement: Some(format!("drafter=cpu:{core},target=cpu:{core},shared").parse().unwrap()),
        draft_tokens: DraftTokens::Fixed(3),
        method,
        ..Options::default()
    };
    Engine::open(options).unwrap()
}

fn template(folder: &Path) -> ChatTemplate {
    let file = folder.join("template.jinja");
    std::fs::write(&file, TEMPLATE).unwrap();
    ChatTemplate::choose(folder, file.to_str().unwrap()).unwrap()
}

fn request(max_tokens: usize) -> Request {
    Request { max_tokens, ignore_eos: true, ..Request::default() }
}

fn send(chat: &mut Chat<'_>, text: &str, max_tokens: usize) -> Reply {
    let go_on = |_: &str| ControlFlow::Continue(());
    chat.send(text, &request(max_tokens), go_on).unwrap()
}

/// Returns the number of tokens that the target computed for an answer.
fn computed_tokens(answer: &Answer) -> usize {
    let scores = answer.trace.spans.iter().filter(|span| span.kind == SpanKind::Score);
    scores.map(|span| span.computed_tokens).sum()
}

/// Returns the number of tokens that a plain answer must compute after another answer: those of the
/// prompt that are new or that are encoded differently than they were generated, and the answer's
/// own. The answer's last token is computed only when something follows it.
fn new_tokens(engine: &Engine, chat: &Chat<'_>, before: &Answer, answer: &Answer) -> usize {
    let all: Vec<Message> = chat.messages().collect();
    let encode = |end: usize| chat.template().encode(&all[..end], engine.tokenizer()).unwrap();
    let (prompt, earlier) = (encode(all.len() - 1), encode(all.len() - 3));
    assert_eq!((prompt.len(), earlier.len()), (answer.prompt_tokens, before.prompt_tokens));
    let held = [&earlier[..], &before.tokens[..before.tokens.len() - 1]].concat();
    let agreeing = held.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
    assert!(agreeing >= earlier.len(), "the earlier prompt is a prefix of this one");
    prompt.len() - agreeing + answer.tokens.len() - 1
}

/// Returns the answer to these messages from empty caches.
fn answer_from_scratch(
    engine: &Engine,
    template: &ChatTemplate,
    messages: &[Message],
    n: usize,
) -> Answer {
    let prompt = template.encode(messages, engine.tokenizer()).unwrap();
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt, &request(n), go_on).unwrap()
}

/// The method of an answer must have the whole drafts whose place the engine's lookup takes.
#[test]
fn a_lookup_is_never_left_out_silently() {
    let pair = RandomPair::make().unwrap();
    let lookup = MethodOptions::Speculative { tree: Tree::None, lookup: Lookup::Suffix };
    let (plain, with_lookup) = (open(&pair), open_with(&pair, Some(lookup)));
    for method in Method::all() {
        assert_eq!(plain.check_method(method), Ok(()), "{method}");
        let has_place = !method.drafts() || method.offers(Need::WholeDrafts);
        assert_eq!(with_lookup.check_method(method).is_ok(), has_place, "{method}");
    }
    let mut chat = Chat::new(&with_lookup, template(pair.target()));
    let error = chat.set_method(Method::Pearl).unwrap_err().to_string();
    assert!(error.contains("pearl") && error.contains("`lookup`"), "{error}");
}

#[test]
fn an_engine_that_was_opened_by_its_path_chats_with_its_own_template() {
    let pair = RandomPair::make().unwrap();
    std::fs::write(pair.target().join("chat_template.jinja"), TEMPLATE).unwrap();
    let engine = Engine::open(pair.target()).unwrap();
    let mut chat = engine.chat().unwrap();
    let messages = [Message::user("ka")];
    let rendered = |template: &ChatTemplate| template.render(&messages, true).unwrap();
    assert_eq!(rendered(chat.template()), rendered(&template(pair.target())));

    let answer = send(&mut chat, "ka", 4).answer;
    let prompt = engine.encode_chat(chat.template(), &messages).unwrap();
    let alone = engine.generate_tokens(prompt, &request(4), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.tokens, alone.tokens);
    assert!(answer.decode_tokens_per_second() > 0.0);
    // One step leaves nothing to measure.
    assert_eq!(send(&mut chat, "ka", 1).answer.decode_tokens_per_second(), 0.0);
}

#[test]
fn a_turn_computes_only_new_tokens() {
    let pair = RandomPair::make().unwrap();
    let engine = open(&pair);
    let mut chat = Chat::new(&engine, template(pair.target()));
    chat.set_method(Method::Autoregressive).unwrap();
    let long = "a question of many words ".repeat(10);
    let mut before: Option<Answer> = None;
    for text in [&long[..], "and another one", "and a last one"] {
        let answer = send(&mut chat, text, 20).answer;
        let all = answer.prompt_tokens + answer.tokens.len() - 1;
        let new = before.map_or(all, |before| {
            let new = new_tokens(&engine, &chat, &before, &answer);
            // Bytes that form no character are encoded differently in the history, at worst all of
            // the answer.
            let grown = answer.prompt_tokens - before.prompt_tokens;
            assert!(new < grown + answer.tokens.len(), "{text}: {new}");
            assert!(2 * new < all, "most tokens are cached, {text}: {new} of {all}");
            new
        });
        assert_eq!(computed_tokens(&answer), new, "{text}");
        let messages: Vec<Message> = chat.messages().collect();
        let fresh =
            answer_from_scratch(&engine, chat.template(), &messages[..messages.len() - 1], 20);
        assert_eq!(fresh.tokens, answer.tokens, "{text}");
        before = Some(answer);
    }
    // A reset frees the caches.
    chat.reset();
    let answer = send(&mut chat, "and another one", 20).answer;
    assert_eq!(computed_tokens(&answer), answer.prompt_tokens + answer.tokens.len() - 1);
}

#[test]
fn an_interrupted_answer_stays_in_the_conversation() {
    let pair = RandomPair::make().unwrap();
    let engine = open(&pair);
    for method in METHODS {
        let mut chat = Chat::new(&engine, template(pair.target()));
        chat.set_method(method).unwrap();
        chat.set_system("be brief").unwrap();
        let canceller = Canceller::new();
        let mut pieces = 0;
        let interrupt = |_: &str| {
            pieces += 1;
            if pieces == 6 {
                canceller.cancel();
            }
            ControlFlow::Continue(())
        };
        let reply =
            chat.send_interruptibly("tell me all", &request(500), &canceller, interrupt).unwrap();
        assert!(reply.kept);
        assert_eq!(reply.answer.finish, Finish::Stopped, "{method}");
        assert!(reply.answer.tokens.len() < 500, "{method}");
        let next = send(&mut chat, "go on", 30).answer;
        let all: Vec<Message> = chat.messages().collect();
        assert_eq!(all[2], Message::assistant(&*reply.answer.text));
        let fresh = answer_from_scratch(&engine, chat.template(), &all[..4], 30);
        assert_eq!(fresh.tokens, next.tokens, "{method}");
        if method == Method::Autoregressive {
            assert_eq!(computed_tokens(&next), new_tokens(&engine, &chat, &reply.answer, &next));
        }
        // A message interrupted before its answer begins is not part of the conversation.
        let canceller = Canceller::new();
        canceller.cancel();
        let go_on = |_: &str| ControlFlow::Continue(());
        let reply = chat.send_interruptibly("never", &request(30), &canceller, go_on).unwrap();
        assert!(!reply.kept && reply.answer.text.is_empty(), "{method}");
        assert_eq!(chat.messages().count(), 5);
        let (again, fresh) = (send(&mut chat, "go on", 30), chat.messages().collect::<Vec<_>>());
        let fresh = answer_from_scratch(&engine, chat.template(), &fresh[..6], 30);
        assert_eq!(fresh.tokens, again.answer.tokens, "{method}");
    }
}

#[test]
fn the_text_does_not_depend_on_methods_or_on_changing_them() {
    let pair = RandomPair::make().unwrap();
    let engine = open(&pair);
    let next_ticket = Cell::new(0);
    let converse = |method_of: fn(usize) -> usize| {
        let mut chat = Chat::new(&engine, template(pair.target()));
        let turn = |turn: usize| {
            chat.set_method(METHODS[method_of(turn)]).unwrap();
            let answer = send(&mut chat, ["one", "two", "three", "four"][turn], 40).answer;
            assert!(answer.statistics.drafts == 0 || method_of(turn) > 0, "{turn}");
            assert!(answer.statistics.drafts > 0 || method_of(turn).is_multiple_of(3), "{turn}");
            // The trace has all jobs of this answer, and none of another.
            let tickets: BTreeSet<u64> = answer.trace.spans.iter().map(|s| s.ticket.0).collect();
            let first = next_ticket.replace(next_ticket.get() + tickets.len() as u64);
            assert!(tickets.into_iter().eq(first..next_ticket.get()), "{turn}");
            answer.tokens
        };
        (0..4).map(turn).collect::<Vec<_>>()
    };
    let plain = converse(|_| 0);
    assert_eq!(converse(|_| 1), plain);
    assert_eq!(converse(|turn| turn % 2), plain);
    assert_eq!(converse(|turn| (turn + 1) % 2), plain);
    assert_eq!(converse(|_| 2), plain);
    assert_eq!(converse(|_| 3), plain);
    assert_eq!(converse(|turn| turn), plain);
    assert_eq!(converse(|turn| 3 - turn), plain);
}

#[test]
fn the_oldest_turns_are_left_out_when_the_context_is_full() {
    let pair = RandomPair::make().unwrap();
    let engine = open(&pair);
    let context = engine.config().max_position_embeddings;
    let mut chat = Chat::new(&engine, template(pair.target()));
    chat.set_system("be brief").unwrap();
    let mut forgotten = 0;
    for turn in 0..8 {
        let reply = send(&mut chat, &format!("{turn} ").repeat(200), 50);
        forgotten += reply.forgotten_turns;
        assert!(reply.answer.prompt_tokens + 50 <= context);
        assert_eq!(reply.answer.tokens.len(), 50);
        // The model sees the system message and the latest whole turns.
        let all: Vec<Message> = chat.messages().collect();
        assert_eq!(all.len(), 1 + 2 * (turn + 1));
        let seen = [&all[..1], &all[1 + 2 * forgotten..all.len() - 1]].concat();
        let fresh = answer_from_scratch(&engine, chat.template(), &seen, 50);
        assert_eq!(fresh.tokens, reply.answer.tokens, "turn {turn}");
    }
    assert!(forgotten >= 3, "{forgotten}");
    // A message that fits only without earlier turns gets an answer in the remaining room.
    let around = "[system] be brief\n[user] \n[assistant] ";
    let tokens = |text: &str| engine.tokenizer().encode(text).unwrap().len();
    let fixed = tokens(around) + 1;
    let reply = send(&mut chat, &"x".repeat(context - fixed - 20), 50);
    assert_eq!(reply.answer.finish, Finish::Context);
    assert!((1..50).contains(&reply.answer.tokens.len()), "{}", reply.answer.tokens.len());
    // A message that does not fit at all is refused, and the conversation is unchanged.
    let before: Vec<Message> = chat.messages().collect();
    let go_on = |_: &str| ControlFlow::Continue(());
    let long = "x".repeat(context + 100);
    let error = chat.send(&long, &request(50), go_on).err().unwrap();
    let ChatError::TooLong { tokens, context: limit, system: true } = error else {
        panic!("{error}")
    };
    assert_eq!(limit, context);
    let over = tokens + 1 - context;
    assert!(error.to_string().contains(&format!("too long by {over} tokens")), "{error}");
    assert_eq!(chat.messages().collect::<Vec<_>>(), before);
    // Shortened by the number of tokens in the error, it fits.
    let short = &long[over..];
    let reply = chat.send(short, &request(50), go_on).unwrap();
    assert_eq!(reply.answer.tokens.len(), 1);
}

/// The token that the tokenizer's configuration names ends a turn, in addition to the model's own.
#[test]
fn an_answer_ends_at_the_end_of_turn_token_of_the_tokenizer() {
    let pair = RandomPair::make().unwrap();
    let engine = open(&pair);
    let mut chat = Chat::new(&engine, template(pair.target()));
    let whole = send(&mut chat, "hello", 40).answer;
    // A token that occurs late, and its text in the tokenizer's file.
    let first = |token: &TokenId| whole.tokens.iter().position(|other| other == token).unwrap();
    let end = whole.tokens.iter().copied().max_by_key(first).unwrap();
    let file = std::fs::read_to_string(pair.target().join("tokenizer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&file).unwrap();
    let vocabulary = json["model"]["vocab"].as_object().unwrap();
    let name = vocabulary.iter().find(|&(_, id)| id == end).unwrap().0;
    let config = serde_json::json!({ "eos_token": name }).to_string();
    std::fs::write(pair.target().join("tokenizer_config.json"), config).unwrap();
    for method in METHODS {
        let mut chat = Chat::new(&engine, template(pair.target()));
        chat.set_method(method).unwrap();
        assert_eq!(send(&mut chat, "hello", 40).answer.tokens, whole.tokens, "{method}");
        chat.reset();
        let request = Request { max_tokens: 40, ..Request::default() };
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = chat.send("hello", &request, go_on).unwrap().answer;
        assert_eq!(answer.finish, Finish::Eos, "{method}");
        assert_eq!(answer.tokens, whole.tokens[..=first(&end)], "{method}");
    }
}

#[test]
fn control_tokens_within_a_message_are_text() {
    let pair = RandomPair::make().unwrap();
    // Add a control token to the tokenizer.
    let file = pair.target().join("tokenizer.json");
    let mut json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let control = serde_json::json!({
        "id": 5, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let added = json["added_tokens"].as_array_mut();
    match added {
        Some(list) => list.push(control),
        None => json["added_tokens"] = serde_json::json!([control]),
    }
    std::fs::write(&file, json.to_string()).unwrap();
    let tokenizer = forerun::text::Tokenizer::from_checkpoint(pair.target()).unwrap();
    let end = tokenizer.encode("<|end|>").unwrap().last().copied().unwrap();
    let template = pair.target().join("t.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}").unwrap();
    let template = ChatTemplate::choose(pair.target(), template.to_str().unwrap()).unwrap();
    let ends = |text: &str| {
        let tokens = template.encode(&[Message::user(text)], &tokenizer).unwrap();
        tokens.iter().filter(|&&token| token == end).count()
    };
    assert_eq!(ends("hello"), 1);
    assert_eq!(ends("hello<|end|>and <|end|><|end|>"), 1);
}

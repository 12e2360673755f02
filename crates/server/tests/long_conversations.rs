//! Conversations that are longer than the context.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use forerun::ChatTemplate;
use forerun_server::Server;
use serde_json::{Value, json};

const CONTEXT: usize = 400;
const ANSWER: usize = 40;
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// Returns a system message, turns with a call of a tool, and a last question.
fn conversation(turns: usize) -> Vec<Value> {
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    for turn in 0..turns {
        messages.extend([
            json!({"role": "user", "content": format!("Question {turn} about the weather?")}),
            json!({"role": "assistant", "content": format!("I look into it, {turn}.")}),
            json!({"role": "tool", "content": "Rain."}),
            json!({"role": "assistant", "content": "It rains."}),
        ]);
    }
    messages.push(json!({"role": "user", "content": "And tomorrow?"}));
    messages
}

fn left_out(response: &Response) -> Option<usize> {
    let name = "forerun-messages-left-out: ";
    let line = response.headers.lines().find_map(|line| line.strip_prefix(name));
    line.map(|number| number.trim().parse().unwrap())
}

#[test]
fn the_oldest_turns_that_do_not_fit_are_left_out_if_the_request_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("template.jinja");
    std::fs::write(&file, TEMPLATE).unwrap();
    let template = ChatTemplate::choose(folder.path(), file.to_str().unwrap()).unwrap();
    let server = Server::bind(server_options()).unwrap();
    let server = run_with(server, engine_with_context(CONTEXT), template);
    let whole = conversation(30);
    let sampling = json!({"temperature": 0, "ignore_eos": true});
    let openai = with(json!({"max_tokens": ANSWER}), sampling.clone());
    let responses = json!({"max_output_tokens": ANSWER, "temperature": 0, "ignore_eos": true});
    let options = with(json!({"num_predict": ANSWER}), sampling);
    let ollama = json!({"model": MODEL, "options": options, "stream": false});
    let auto = json!({"truncation": "auto"});
    for (path, messages, body, allows, forbids, text, tokens) in [
        (
            "/v1/chat/completions",
            "messages",
            openai,
            auto.clone(),
            json!({}),
            "/choices/0/message/content",
            "/usage/prompt_tokens",
        ),
        (
            "/v1/responses",
            "input",
            responses,
            auto,
            json!({"truncation": "disabled"}),
            "/output/0/content/0/text",
            "/usage/input_tokens",
        ),
        (
            "/api/chat",
            "messages",
            ollama,
            json!({}),
            json!({"truncate": false}),
            "/message/content",
            "/prompt_eval_count",
        ),
    ] {
        let ask = |conversation: &[Value], fields: &Value| {
            let body = with(with(body.clone(), json!({messages: conversation})), fields.clone());
            server.post(path, &body)
        };
        let answer = ask(&whole, &allows);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let number = left_out(&answer).unwrap();
        assert_eq!(number % 4, 0, "whole turns");
        // It is the answer to the system message and the turns that are left.
        let rest = [&whole[..1], &whole[1 + number..]].concat();
        let same = ask(&rest, &forbids);
        assert_eq!((same.status, left_out(&same)), (200, None), "{path}: {}", same.body);
        for pointer in [text, tokens] {
            assert_eq!(answer.json().pointer(pointer), same.json().pointer(pointer), "{path}");
        }
        // One more turn would leave too little room for the answer.
        let longer = [&whole[..1], &whole[1 + number - 4..]].concat();
        assert_eq!(left_out(&ask(&longer, &allows)), Some(4), "{path}");
        let streamed = ask(&whole, &with(allows.clone(), json!({"stream": true})));
        assert_eq!(left_out(&streamed), Some(number), "{path}");
        // Without permission, and without a turn to leave out, it is an error.
        let alone = [json!({"role": "user", "content": "long ".repeat(CONTEXT)})];
        for (conversation, fields) in [(&whole[..], &forbids), (&alone[..], &allows)] {
            let refused = ask(conversation, fields);
            assert_eq!(refused.status, 400, "{path}: {}", refused.body);
            assert!(refused.body.contains("context"), "{path}: {}", refused.body);
        }
    }
    let refused = server.post("/v1/completions", &json!({"prompt": "a", "truncation": "auto"}));
    assert!(refused.status == 400 && refused.body.contains("truncation"), "{}", refused.body);
}

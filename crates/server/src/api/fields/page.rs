//! The guide's page about fields, written from the table.
//!
//! `just reference` updates `docs/guide/src/server-fields.md`; the test fails if the file is out of date.

use super::table::TABLE;
use super::{Api, Decision, Field};
use std::path::Path;

const INTRODUCTION: &str = "\
<!-- Generated from the server's table of fields by `just reference`. Do not edit. -->

# Fields of requests

This page says what [the server](server.md) does with every field that clients of OpenAI, Anthropic, vLLM and llama-server
know. A field is one of these:

* **obeyed**: it does what it says;
* **ignored**: it changes nothing about the text;
* **refused**: the request gets status 400 and the field's name, unless the value asks for nothing. Such values are listed.
  Empty texts, lists and objects are among them.

`null` means that a field is absent, everywhere. Fields that are not on this page are ignored. The log warns of each of them
once.
";

/// The APIs, their paths, and what else is to be known.
const SECTIONS: [(Api, &str, &str); 4] = [
    (
        Api::Chat,
        "/v1/chat/completions",
        "\
If the last message is one of the assistant with a text and without calls, the model continues it, and the answer is only the
rest, as in llama-server. `continue_final_message: false` or `add_generation_prompt: true` begins a new message instead.
`continue_final_message: true` continues any last message. `add_generation_prompt: false` with another last message begins none.

The text parts of a message are joined as in vLLM: with a line break, or one after another if the template itself goes through
them.
",
    ),
    (Api::Completions, "/v1/completions", ""),
    (
        Api::Responses,
        "/v1/responses",
        "\
A message of the assistant at the end of the input is complete: the answer is a new one.
",
    ),
    (
        Api::Messages,
        "/v1/messages` and `/v1/messages/count_tokens",
        "\
If the last message is one of the assistant with a text, the model continues it, and the answer is only the rest.
",
    ),
];

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (api, path, text) in SECTIONS {
        page += &format!("\n## `{path}`\n");
        if !text.is_empty() {
            page += &format!("\n{text}");
        }
        type IsListed = fn(&Decision) -> bool;
        let parts: [(&str, &str, IsListed); 3] = [
            ("Obeyed", "what it does", |it| matches!(it, Decision::Obeyed)),
            ("Refused", "why", |it| matches!(it, Decision::Refused(_))),
            ("Ignored", "why", |it| matches!(it, Decision::Ignored)),
        ];
        for (title, head, is_listed) in parts {
            page += &format!("\n**{title}**\n\n| field | of | {head} |\n|---|---|---|\n");
            for (from, fields) in TABLE {
                let listed =
                    fields.iter().filter(|it| it.apis.contains(&api) && is_listed(&it.decision));
                for field in listed {
                    page += &row(field, from);
                }
            }
        }
    }
    page
}

fn row(field: &Field, from: &str) -> String {
    let Field { name, note, .. } = field;
    let neutral = match field.decision {
        Decision::Refused(neutral) if !neutral.is_empty() => {
            let neutral: Vec<String> = neutral.iter().map(|text| format!("`{text}`")).collect();
            format!("; {} may be given", neutral.join(" or "))
        }
        _ => String::new(),
    };
    format!("| `{name}` | {from} | {note}{neutral} |\n")
}

#[test]
fn the_guides_page_of_fields_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/server-fields.md");
    let expected = page();
    if std::env::var_os("FORERUN_UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, &expected).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let difference =
        found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/guide/src/server-fields.md is out of date: run `just reference`. First difference: {difference:?}"
    );
}

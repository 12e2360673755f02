//! The guide's page about fields, written from the table.
//!
//! `just reference` updates `docs/guide/src/server-fields.md`; the test fails if the file is out of
//! date.

use super::table::TABLE;
use super::{Api, Decision, Field};
use std::path::Path;

const INTRODUCTION: &str = "\
<!-- Generated from the server's table of fields by `just reference`. Do not edit. -->

# Fields of requests

This page says what [the server](server.md) does with the fields that clients of OpenAI, Anthropic,
vLLM, llama-server and ollama know. The columns are `/v1/completions`, `/v1/chat/completions`,
`/v1/responses`, `/v1/messages` with `/v1/messages/count_tokens`, `/api/chat` and `/api/generate`.
A field is one of these:

* **obeyed**: it does what it says;
* **ignored**: it changes nothing about the text;
* **refused**: the request gets status 400 and the field's name. Values that ask for nothing pass:
  empty texts, lists and objects, and those that the last column names.

`null` means that a field is absent. Other fields are ignored, also where a column is empty; the log
warns of each of them once. `object.member` is a member of an object.

## The last message

In chat completions, Anthropic's messages and ollama's, the model continues a last message of the
assistant that is a text without calls, and the answer is only the rest, as in llama-server. In chat
completions, two fields change this: `continue_final_message: false` or `add_generation_prompt: true`
begins a new message, `continue_final_message: true` continues any last message, and
`add_generation_prompt: false` after another message begins none. A response is always a new message.

The text parts of a message are joined as in vLLM: with a line break, or without one if the template
itself goes through them.
";

/// The APIs in the order of the columns, with their names.
const COLUMNS: [(Api, &str); 6] = [
    (Api::Completions, "completions"),
    (Api::Chat, "chat"),
    (Api::Responses, "responses"),
    (Api::Messages, "messages"),
    (Api::OllamaChat, "chat"),
    (Api::OllamaGenerate, "generate"),
];

/// Fields with equal decisions and remarks.
struct Row {
    names: Vec<&'static str>,
    cells: Vec<&'static str>,
    remark: String,
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (from, fields) in TABLE {
        page += &format!("\n## Fields of {from}\n\n| field |");
        let columns = columns(fields);
        for (_, name) in &columns {
            page += &format!(" {name} |");
        }
        page += &format!(" remark |\n|---|{}---|\n", "---|".repeat(columns.len()));
        for Row { names, cells, remark } in rows(fields) {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            page += &format!("| {} | {} | {remark} |\n", names.join(", "), cells.join(" | "));
        }
    }
    page
}

/// Returns the columns of a table: the APIs that have one of its fields.
fn columns(fields: &[Field]) -> Vec<(Api, &'static str)> {
    let has_field = |(api, _): &(Api, _)| fields.iter().any(|field| field.apis.contains(api));
    COLUMNS.into_iter().filter(has_field).collect()
}

/// Returns the rows of a table. A field has one row for all APIs.
fn rows(fields: &[Field]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, Field { name, .. }) in fields.iter().enumerate() {
        if fields[..index].iter().any(|field| field.name == *name) {
            continue;
        }
        let all: Vec<&Field> = fields.iter().filter(|field| field.name == *name).collect();
        let of = |api: Api| all.iter().find(|field| field.apis.contains(&api));
        let columns = columns(fields).into_iter();
        let cells = columns.map(|(api, _)| of(api).map_or("", |field| word(&field.decision)));
        let cells: Vec<&str> = cells.collect();
        let remarks: Vec<String> = all.iter().map(|field| remark(field, all.len() > 1)).collect();
        let remark = remarks.join("; ");
        match rows.iter_mut().find(|row| row.cells == cells && row.remark == remark) {
            Some(row) => row.names.push(name),
            None => rows.push(Row { names: vec![name], cells, remark }),
        }
    }
    rows
}

fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Obeyed => "obeyed",
        Decision::Ignored => "ignored",
        Decision::Refused(_) => "refused",
    }
}

/// Returns what a field does or why it does not, with the values that pass. `is_one_of_several`
/// says whether the APIs differ.
fn remark(field: &Field, is_one_of_several: bool) -> String {
    let Field { apis, decision, note, .. } = field;
    let mut remark = (*note).to_owned();
    if is_one_of_several && !matches!(decision, Decision::Obeyed) {
        let apis = COLUMNS.iter().filter(|(api, _)| apis.contains(api));
        let apis: Vec<&str> = apis.map(|(_, name)| *name).collect();
        remark = format!("{}: {remark}", apis.join(", "));
    }
    match decision {
        Decision::Refused(neutral) if !neutral.is_empty() => {
            let neutral: Vec<String> = neutral.iter().map(|text| format!("`{text}`")).collect();
            let pass = if neutral.len() == 1 { "passes" } else { "pass" };
            format!("{remark} ({} {pass})", neutral.join(", "))
        }
        _ => remark,
    }
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

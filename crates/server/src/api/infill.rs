//! llama-server's `/infill`, which editors use to complete code at the cursor.

use super::answers::{Answers, StreamWriter, prepare, stream};
use super::error::ApiError;
use super::fields::Api;
use super::openai::body::Body;
use super::state::State;
use super::{body_of, parse};
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use forerun::text::{ChatPart as Part, Gap};
use forerun::{Answer, AnswerToken, Finish};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The text with a gap. The other fields are those of completions.
#[derive(Default, Deserialize)]
#[serde(default)]
struct InfillFields {
    input_prefix: Option<String>,
    input_suffix: Option<String>,
    input_extra: Option<Vec<OtherFile>>,
    /// The begun line, which stands after the prefix.
    prompt: Option<String>,
}

#[derive(Deserialize)]
struct OtherFile {
    #[serde(default)]
    filename: Option<String>,
    text: String,
}

/// Fields that completions do not have: those of the gap, and what editors send to save time.
const OWN: [&str; 9] = [
    "input_prefix",
    "input_suffix",
    "input_extra",
    "prompt",
    "samplers",
    "n_indent",
    "t_max_prompt_ms",
    "t_max_predict_ms",
    "response_fields",
];

pub(crate) async fn infill(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let bytes = body_of(body)?;
    let (body, writer) = prepare(move || completion(&bytes)).await?;
    let model = state.lend(body.model()).await?;
    let (streams, shared) = (body.streams(), Arc::clone(&model));
    let prepared = prepare(move || body.completions(&shared)).await?;
    let answers = Answers::start(&state, &model, prepared).await?;
    if streams {
        return Ok(stream(answers, writer));
    }
    let collected = answers.collect().await?;
    let mut values: Vec<Value> =
        collected.iter().map(|choice| writer.last(&choice.answer, &choice.answer.text)).collect();
    let value = if values.len() == 1 { values.remove(0) } else { values.into() };
    Ok(axum::Json(value).into_response())
}

/// Returns the same request as a completion, and what writes its answer.
fn completion(bytes: &Bytes) -> Result<(Body, InfillWriter), ApiError> {
    let InfillFields { input_prefix, input_suffix, input_extra, prompt } = parse(bytes)?;
    let mut fields: Map<String, Value> = parse(bytes)?;
    fields.retain(|name, _| !OWN.contains(&&**name));
    let mut body = Body::parse(Api::Completions, &Value::from(fields).to_string().into())?;
    for (name, is_given) in [
        ("best_of", body.fields.best_of.is_some()),
        ("echo", body.echoes()),
        ("logprobs", body.reports_logprobs()),
    ] {
        if is_given {
            return Err(ApiError::field(
                name,
                format!("{name} is for /v1/completions: leave it out"),
            ));
        }
    }
    let limit = body.given_limit().map(|(_, limit)| limit);
    body.fields.n_predict = match limit {
        None => Some(-1),
        // The engine generates one token at least.
        Some(0) => Some(1),
        Some(_) => body.fields.n_predict,
    };
    let name = |file: &OtherFile| file.filename.clone().unwrap_or_else(|| "tmp".to_owned());
    body.gap = Some(Gap {
        prefix: input_prefix.unwrap_or_default(),
        suffix: input_suffix.unwrap_or_default(),
        begun: prompt.unwrap_or_default(),
        files: input_extra.into_iter().flatten().map(|file| (name(&file), file.text)).collect(),
    });
    Ok((body, InfillWriter { is_empty: limit == Some(0) }))
}

struct InfillWriter {
    /// Whether the request only reads the prompt into the cache, and shows no tokens.
    is_empty: bool,
}

impl InfillWriter {
    /// Returns an answer, or the last event of its stream.
    fn last(&self, answer: &Answer, content: &str) -> Value {
        let stop_type = match answer.finish {
            Finish::Eos => "eos",
            Finish::Stopped => "word",
            Finish::MaxTokens | Finish::Context => "limit",
        };
        let (content, tokens) =
            if self.is_empty { ("", 0) } else { (content, answer.tokens.len()) };
        json!({
            "content": content, "stop": true, "stop_type": stop_type, "truncated": false,
            "tokens_evaluated": answer.prompt_tokens, "tokens_predicted": tokens,
        })
    }
}

impl StreamWriter for InfillWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, choice: usize, part: Part, _tokens: &[AnswerToken]) -> Vec<Event> {
        match part {
            Part::Text(text) if !text.is_empty() && !self.is_empty => {
                event(choice, json!({"content": text, "stop": false}))
            }
            _ => Vec::new(),
        }
    }

    fn end_choice(&mut self, choice: usize, answer: &Answer) -> Vec<Event> {
        event(choice, self.last(answer, ""))
    }

    fn end(&mut self, _answers: &[Box<Answer>]) -> Vec<Event> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::default().data(error.body().to_string())]
    }
}

fn event(choice: usize, mut value: Value) -> Vec<Event> {
    value["index"] = choice.into();
    vec![Event::default().data(value.to_string())]
}

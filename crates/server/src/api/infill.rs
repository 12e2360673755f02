//! llama-server's `/infill`, which editors use to complete code at the cursor.

use super::answers::{Answers, StreamWriter, prepare, stream};
use super::error::ApiError;
use super::fields::Api;
use super::openai::body::Body;
use super::state::State;
use super::{body_of, parse};
use crate::generation::LineLimits;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use forerun::text::{ChatPart as Part, Gap};
use forerun::trace::tokens_per_second;
use forerun::{Answer, AnswerToken, Finish};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The text with a gap. The other fields are those of completions.
#[derive(Default, Deserialize)]
#[serde(default)]
struct InfillFields {
    input_prefix: Option<String>,
    input_suffix: Option<String>,
    input_extra: Option<Vec<OtherFile>>,
    /// The begun line, which stands after the prefix.
    prompt: Option<String>,
    n_indent: Option<i64>,
    t_max_predict_ms: Option<i64>,
    response_fields: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct OtherFile {
    #[serde(default)]
    filename: Option<String>,
    text: String,
}

/// Fields that completions do not have, or refuse.
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
    let InfillFields {
        input_prefix,
        input_suffix,
        input_extra,
        prompt,
        n_indent,
        t_max_predict_ms,
        response_fields,
    } = parse(bytes)?;
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
    body.fields.n_predict = Some(body.given_limit().map_or(-1, |(_, limit)| limit));
    let milliseconds = t_max_predict_ms.and_then(|limit| u64::try_from(limit).ok());
    body.lines = Some(LineLimits {
        time: milliseconds.filter(|limit| *limit > 0).map(Duration::from_millis),
        indent: n_indent.and_then(|indent| usize::try_from(indent).ok()).unwrap_or(0),
    });
    let name = |file: &OtherFile| file.filename.clone().unwrap_or_else(|| "tmp".to_owned());
    body.gap = Some(Gap {
        prefix: input_prefix.unwrap_or_default(),
        suffix: input_suffix.unwrap_or_default(),
        begun: prompt.unwrap_or_default(),
        files: input_extra.into_iter().flatten().map(|file| (name(&file), file.text)).collect(),
    });
    Ok((body, InfillWriter { response_fields: response_fields.unwrap_or_default() }))
}

struct InfillWriter {
    /// The paths of the fields that the answer has; none of them: all.
    response_fields: Vec<String>,
}

impl InfillWriter {
    /// Returns an answer, or the last event of its stream.
    fn last(&self, answer: &Answer, content: &str) -> Value {
        let stop_type = match answer.finish {
            Finish::Eos => "eos",
            Finish::Stopped => "word",
            Finish::MaxTokens | Finish::Context => "limit",
        };
        let tokens = answer.tokens.len();
        let whole = json!({
            "content": content, "stop": true, "stop_type": stop_type, "truncated": false,
            "tokens_evaluated": answer.prompt_tokens, "tokens_predicted": tokens,
            "tokens_cached": answer.prompt_tokens + tokens, "timings": timings(answer),
        });
        if self.response_fields.is_empty() {
            return whole;
        }
        let fields = self.response_fields.iter();
        let found = fields.filter_map(|path| Some((path, whole.pointer(&format!("/{path}"))?)));
        found.map(|(path, value)| (path.clone(), value.clone())).collect()
    }
}

impl StreamWriter for InfillWriter {
    type Item = Event;

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, choice: usize, part: Part, _tokens: &[AnswerToken]) -> Vec<Event> {
        match part {
            Part::Text(text) if !text.is_empty() => {
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

fn timings(answer: &Answer) -> Value {
    let (cached, tokens) = (answer.cached_prompt_tokens(), answer.tokens.len());
    let computed = answer.prompt_tokens - cached;
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    let prompt_ms = milliseconds(answer.first_token_ns);
    let predicted_ms = milliseconds(answer.total_ns.saturating_sub(answer.first_token_ns));
    json!({
        "cache_n": cached,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / computed.max(1) as f64,
        "prompt_per_second": tokens_per_second(computed, answer.first_token_ns),
        "predicted_n": tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / tokens.max(1) as f64,
        "predicted_per_second": answer.decode_tokens_per_second(),
    })
}

fn event(choice: usize, mut value: Value) -> Vec<Event> {
    value["index"] = choice.into();
    vec![Event::default().data(value.to_string())]
}

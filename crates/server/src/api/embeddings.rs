//! Embeddings and reranking: OpenAI's `/v1/embeddings`, and `/v1/rerank` as Jina, vLLM and
//! llama-server have it.

use super::answers::{prepare, timed_out};
use super::error::{ApiError, of_engine};
use super::state::State;
use super::{body_of, parse};
use crate::models::Lease;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::{Json, extract};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forerun::{Canceller, TokenId};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// The most texts of a request, as in OpenAI's API.
const MOST_TEXTS: usize = 2048;

/// One text or several, as text or as tokens.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of tokens, or several")]
pub(super) enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    TokenLists(Vec<Vec<TokenId>>),
}

/// A text to embed.
pub(super) enum Text {
    Plain(String),
    Tokens(Vec<TokenId>),
}

/// What to embed.
pub(super) struct Texts {
    pub(super) texts: Vec<Text>,
    /// Whether texts that are too long lose their ends, and are no errors.
    pub(super) truncates: bool,
    /// The most numbers of an embedding.
    pub(super) dimensions: Option<usize>,
}

/// Embeddings, and the number of their texts' tokens.
pub(super) struct Embedded {
    pub(super) embeddings: Vec<Vec<f32>>,
    pub(super) tokens: usize,
}

impl From<Input> for Texts {
    fn from(input: Input) -> Self {
        let plain = |texts: Vec<String>| texts.into_iter().map(Text::Plain).collect();
        let texts = match input {
            Input::Text(text) => vec![Text::Plain(text)],
            Input::Texts(texts) => plain(texts),
            Input::Tokens(tokens) => vec![Text::Tokens(tokens)],
            Input::TokenLists(lists) => lists.into_iter().map(Text::Tokens).collect(),
        };
        Self { texts, truncates: false, dimensions: None }
    }
}

/// Stops a computation when the client goes away.
struct CancelOnDrop(Canceller);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Texts {
    /// Computes the embeddings in the place of one answer. `param` is the field of the texts.
    pub(super) async fn embed(
        self,
        state: &State,
        model: Arc<Lease>,
        param: &'static str,
    ) -> Result<Embedded, ApiError> {
        let count = self.texts.len();
        if count > MOST_TEXTS {
            let message =
                format!("{param} has {count} texts, but a request takes {MOST_TEXTS}: split it");
            return Err(ApiError::field(param, message));
        }
        let deadline = Instant::from_std(model.asked) + state.options.request_timeout;
        let admitted = state.admission.enter(1, &model.metrics);
        let mut admitted = admitted
            .map_err(|full| ApiError::new(StatusCode::TOO_MANY_REQUESTS, full.to_string()))?;
        let place = timeout_at(deadline, admitted.place()).await.map_err(|_| timed_out())?;
        let guard = CancelOnDrop(Canceller::new());
        let canceller = guard.0.clone();
        let embedded = prepare(move || {
            let _place = place;
            self.compute(&model, &canceller).map_err(|error| of_engine(&error, param))
        });
        timeout_at(deadline, embedded).await.map_err(|_| timed_out())?
    }

    fn compute(
        self,
        model: &Lease,
        canceller: &Canceller,
    ) -> Result<Embedded, forerun::ForerunError> {
        let forerun = model.generator.forerun();
        let encode = |text| match text {
            Text::Plain(text) => forerun.encode_to_embed(&text, self.truncates),
            Text::Tokens(tokens) => Ok(tokens),
        };
        let texts = self.texts.into_iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        let mut embeddings = forerun.embed_tokens(&texts, canceller)?;
        if let Some(dimensions) = self.dimensions {
            embeddings.iter_mut().for_each(|embedding| shorten(embedding, dimensions));
        }
        Ok(Embedded { embeddings, tokens: texts.iter().map(Vec::len).sum() })
    }
}

/// Keeps the first numbers of an embedding, scaled to length 1.
fn shorten(embedding: &mut Vec<f32>, dimensions: usize) {
    embedding.truncate(dimensions);
    let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    embedding.iter_mut().for_each(|x| *x /= length);
}

/// Checks a number of dimensions. `width` is that of the model.
pub(super) fn check_dimensions(dimensions: Option<usize>, width: usize) -> Result<(), ApiError> {
    match dimensions {
        Some(found) if found == 0 || found > width => {
            let message = format!(
                "dimensions is {found}, but the model's embeddings have {width}: give 1 to {width}"
            );
            Err(ApiError::field("dimensions", message))
        }
        _ => Ok(()),
    }
}

/// The form of embeddings.
#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// The bytes of the numbers as f32, little-endian.
    Base64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbeddingsBody {
    model: Option<String>,
    input: Input,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    #[serde(rename = "user")]
    _user: Option<IgnoredAny>,
}

pub(super) async fn embeddings(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let body: EmbeddingsBody = parse(&body_of(body)?)?;
    let model = state.lend(body.model.as_deref()).await?;
    let name = model.name.clone();
    check_dimensions(body.dimensions, model.generator.forerun().config().hidden_size)?;
    let texts = Texts { dimensions: body.dimensions, ..body.input.into() };
    if texts.texts.is_empty() {
        return Err(ApiError::field("input", "input is an empty list"));
    }
    let Embedded { embeddings, tokens } = texts.embed(&state, model, "input").await?;
    let encoded = |embedding: Vec<f32>| match body.encoding_format.unwrap_or_default() {
        Encoding::Float => json!(embedding),
        Encoding::Base64 => {
            let bytes: Vec<u8> = embedding.into_iter().flat_map(f32::to_le_bytes).collect();
            STANDARD.encode(bytes).into()
        }
    };
    let data = embeddings.into_iter().enumerate().map(
        |(index, embedding)| json!({"object": "embedding", "index": index, "embedding": encoded(embedding)}),
    );
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a text, or an object with a text and nothing else"
)]
enum Document {
    Plain(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object { text } => text,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RerankBody {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

/// Sorts documents by their similarity to a query: the product of their embeddings.
pub(super) async fn rerank(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let RerankBody { model, query, documents, top_n, return_documents } = parse(&body_of(body)?)?;
    let model = state.lend(model.as_deref()).await?;
    let name = model.name.clone();
    let documents: Vec<String> = documents.into_iter().map(Document::into_text).collect();
    let embed = |input, param| Texts::from(input).embed(&state, Arc::clone(&model), param);
    let query = embed(Input::Text(query), "query").await?;
    let returned = if return_documents == Some(true) { documents.clone() } else { Vec::new() };
    let others = embed(Input::Texts(documents), "documents").await?;
    let tokens = query.tokens + others.tokens;
    let query = query.embeddings.concat();
    let score = |other: &Vec<f32>| query.iter().zip(other).map(|(x, y)| x * y).sum::<f32>();
    let mut scores: Vec<(usize, f32)> = others.embeddings.iter().map(score).enumerate().collect();
    scores.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    scores.truncate(top_n.unwrap_or(usize::MAX));
    let results = scores.into_iter().map(|(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if let Some(text) = returned.get(index) {
            result["document"] = json!({"text": text});
        }
        result
    });
    Ok(Json(json!({
        "object": "list",
        "results": results.collect::<Vec<_>>(),
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

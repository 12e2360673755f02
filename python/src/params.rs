//! The options of an answer, as Python's `SamplingParams` holds them.

use crate::errors::value_error;
use forerun::method::Dry;
use forerun::text::GrammarKind;
use forerun::{Grammar, Request, SamplingOptions, TokenId};
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// The attributes of a `SamplingParams`.
#[derive(FromPyObject)]
pub(crate) struct Params {
    temperature: f32,
    top_p: f32,
    top_k: i64,
    min_p: f32,
    typical_p: f32,
    top_n_sigma: f32,
    xtc_probability: f32,
    xtc_threshold: f32,
    dynatemp_range: f32,
    dynatemp_exponent: f32,
    dry_multiplier: f32,
    dry_base: f32,
    dry_allowed_length: usize,
    dry_penalty_last_n: i64,
    dry_sequence_breakers: Vec<String>,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    stop_token_ids: Vec<TokenId>,
    seed: Option<u64>,
    logprobs: Option<usize>,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    logit_bias: BTreeMap<TokenId, f32>,
    ignore_eos: bool,
    skip_special_tokens: bool,
    structured_outputs: Option<Structure>,
    verify: String,
    draft_tokens: Option<usize>,
    tree: Option<String>,
    adapter: Option<String>,
}

/// The attributes of a `StructuredOutputsParams`. One of them is set.
#[derive(FromPyObject)]
struct Structure {
    /// A JSON schema as text.
    json: Option<String>,
    json_object: bool,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
}

impl Structure {
    fn grammar(self) -> PyResult<Option<Grammar>> {
        let grammars = [
            self.json.map(|text| Grammar::new(GrammarKind::JsonSchema, text)),
            self.json_object.then(Grammar::json_object),
            self.regex.map(Grammar::regex),
            self.choice.map(|texts| Grammar::choice(&texts)),
            self.grammar.map(Grammar::guess),
        ];
        let mut given = grammars.into_iter().flatten();
        match (given.next(), given.next()) {
            (grammar, None) => Ok(grammar),
            (_, Some(_)) => Err(value_error(
                "json, json_object, regex, choice and grammar cannot be combined: give one of them",
            )),
        }
    }
}

impl Params {
    /// Returns the request to the engine, whose options are in range.
    pub(crate) fn into_request(self) -> PyResult<Request> {
        // −1 keeps all tokens, as in vLLM.
        let top_k = match self.top_k {
            -1 => 0,
            top_k => usize::try_from(top_k).map_err(|_| {
                value_error(format!(
                    "`top_k` is {top_k}, but it must be at least -1 (-1 and 0 keep every token)"
                ))
            })?,
        };
        let grammar = self.structured_outputs.map(Structure::grammar).transpose()?.flatten();
        let request = Request {
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            sampling: SamplingOptions {
                temperature: self.temperature,
                top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                typical_p: self.typical_p,
                top_n_sigma: self.top_n_sigma,
                xtc_probability: self.xtc_probability,
                xtc_threshold: self.xtc_threshold,
                dynatemp_range: self.dynatemp_range,
                dynatemp_exponent: self.dynatemp_exponent,
                dry: Dry {
                    multiplier: self.dry_multiplier,
                    base: self.dry_base,
                    allowed_length: self.dry_allowed_length,
                    penalty_last_n: usize::try_from(self.dry_penalty_last_n).ok(),
                    sequence_breakers: self.dry_sequence_breakers,
                },
                repetition_penalty: self.repetition_penalty,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                logit_bias: self.logit_bias,
            },
            seed: self.seed,
            verification: self.verify.parse().map_err(value_error)?,
            stop: self.stop,
            stop_tokens: self.stop_token_ids,
            ignore_eos: self.ignore_eos,
            special_tokens: !self.skip_special_tokens,
            logprobs: self.logprobs,
            prompt_logprobs: None,
            draft_tokens: self.draft_tokens,
            tree: match self.tree {
                None => forerun::Tree::None,
                Some(tree) => tree.parse().map_err(value_error)?,
            },
            grammar,
            adapter: self.adapter,
        };
        request.validate().map_err(value_error)?;
        Ok(request)
    }
}

/// Checks the options of an answer.
#[pyfunction]
pub(crate) fn check_params(params: Params) -> PyResult<()> {
    params.into_request().map(drop)
}

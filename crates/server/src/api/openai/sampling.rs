//! The fields of a request about sampling and the end of an answer. All APIs share them.

use crate::api::error::ApiError;
use crate::models::Model;
use forerun::method::Dry;
use forerun::{Request, SamplingOptions, TokenId};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;

/// The most stop strings.
const MOST_STOPS: usize = 16;

/// The fields of OpenAI's API, vLLM and llama-server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SamplingFields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<Seed>,
    pub(crate) stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<TokenId>>,
    ignore_eos: Option<bool>,
    min_tokens: Option<u64>,
    samplers: Option<Vec<String>>,
    skip_special_tokens: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The seed of a request; `None` if it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seed(Option<u64>);

impl SamplingFields {
    /// Writes the options to a request to the engine, which has those of requests that set none.
    pub(crate) fn apply(&self, model: &Model, request: &mut Request) -> Result<(), ApiError> {
        let sampling = &mut request.sampling;
        for (field, place) in [
            (self.temperature, &mut sampling.temperature),
            (self.top_p, &mut sampling.top_p),
            (self.min_p, &mut sampling.min_p),
            (self.typical_p, &mut sampling.typical_p),
            (self.top_n_sigma, &mut sampling.top_n_sigma),
            (self.xtc_probability, &mut sampling.xtc_probability),
            (self.xtc_threshold, &mut sampling.xtc_threshold),
            (self.dynatemp_range, &mut sampling.dynatemp_range),
            (self.dynatemp_exponent, &mut sampling.dynatemp_exponent),
            (self.dry_multiplier, &mut sampling.dry.multiplier),
            // As in llama-server.
            (self.dry_base.filter(|base| *base >= 1.0), &mut sampling.dry.base),
            (self.presence_penalty, &mut sampling.presence_penalty),
            (self.frequency_penalty, &mut sampling.frequency_penalty),
            (self.repetition_penalty.or(self.repeat_penalty), &mut sampling.repetition_penalty),
        ] {
            *place = field.unwrap_or(*place);
        }
        self.apply_dry(&mut sampling.dry)?;
        // −1 keeps all tokens, as in vLLM.
        if let Some(top_k) = self.top_k {
            let message = || format!("top_k is {top_k}, but it must be at least -1");
            let top_k = if top_k == -1 { Ok(0) } else { usize::try_from(top_k) };
            sampling.top_k = top_k.map_err(|_| ApiError::field("top_k", message()))?;
        }
        // As in llama-server.
        if self.top_p == Some(0.0) {
            (sampling.top_k, sampling.top_p) = (1, 1.0);
        }
        for (token, bias) in self.logit_bias.iter().flatten() {
            let message = || format!("logit_bias has {token:?}, which is not a token's number");
            let token = token.parse().map_err(|_| ApiError::field("logit_bias", message()))?;
            sampling.logit_bias.insert(token, *bias);
        }
        if let Some(names) = self.samplers.as_deref().filter(|names| !names.is_empty()) {
            keep_named(names, sampling)?;
        }
        let config = model.generator.forerun().config();
        self.limit_penalties(sampling, config.max_position_embeddings)?;
        request.seed = self.seed.and_then(|Seed(seed)| seed);
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        request.special_tokens = self.skip_special_tokens == Some(false);
        request.stop = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text.clone()],
            Some(OneOrMany::Many(texts)) => texts.clone(),
        };
        if request.stop.len() > MOST_STOPS || request.stop.iter().any(String::is_empty) {
            let message = format!("stop must have at most {MOST_STOPS} texts, none of them empty");
            return Err(ApiError::field("stop", message));
        }
        request.stop_tokens = self.stop_token_ids.clone().unwrap_or_default();
        let outside = |token: &&TokenId| **token as usize >= config.vocab_size;
        if let Some(token) = request.stop_tokens.iter().find(outside) {
            let message =
                format!("stop_token_ids has {token}, but there are {} tokens", config.vocab_size);
            return Err(ApiError::field("stop_token_ids", message));
        }
        Ok(())
    }

    fn apply_dry(&self, dry: &mut Dry) -> Result<(), ApiError> {
        if let Some(length) = self.dry_allowed_length {
            dry.allowed_length = length;
        }
        if let Some(count) = self.dry_penalty_last_n {
            let message = || format!("dry_penalty_last_n is {count}, but it must be at least -1");
            let found = (count != -1).then(|| usize::try_from(count)).transpose();
            dry.penalty_last_n =
                found.map_err(|_| ApiError::field("dry_penalty_last_n", message()))?;
        }
        if let Some(breakers) = &self.dry_sequence_breakers {
            dry.sequence_breakers.clone_from(breakers);
        }
        Ok(())
    }

    /// Checks that nothing ends an answer before it has the least number of tokens, given the whole
    /// request to the engine.
    pub(crate) fn check_min_tokens(&self, request: &Request) -> Result<(), ApiError> {
        let has_ends = !request.ignore_eos
            || !request.stop.is_empty()
            || !request.stop_tokens.is_empty()
            || request.grammar.is_some();
        match self.min_tokens {
            Some(count) if count > 0 && has_ends => {
                let message = "min_tokens is supported only if nothing ends an answer early: set ignore_eos to true, and \
                               leave stop strings, stop tokens and formats out";
                Err(ApiError::field("min_tokens", message))
            }
            Some(count) if usize::try_from(count).is_ok_and(|count| count > request.max_tokens) => {
                let message = format!(
                    "min_tokens is {count}, but the answer has at most {} tokens",
                    request.max_tokens
                );
                Err(ApiError::field("min_tokens", message))
            }
            _ => Ok(()),
        }
    }

    /// Checks that penalties count the last tokens that the request says: all of them, or none.
    fn limit_penalties(
        &self,
        sampling: &mut SamplingOptions,
        context: usize,
    ) -> Result<(), ApiError> {
        let none = SamplingOptions::default();
        let penalties = |of: &SamplingOptions| {
            [of.repetition_penalty, of.frequency_penalty, of.presence_penalty]
        };
        match self.repeat_last_n {
            None | Some(-1) => Ok(()),
            _ if penalties(sampling) == penalties(&none) => Ok(()),
            Some(0) => {
                sampling.repetition_penalty = none.repetition_penalty;
                sampling.frequency_penalty = none.frequency_penalty;
                sampling.presence_penalty = none.presence_penalty;
                Ok(())
            }
            Some(count) if usize::try_from(count).is_ok_and(|count| count >= context) => Ok(()),
            Some(count) => {
                let message = format!(
                    "repeat_last_n is {count}, but penalties count all tokens here: set it to -1, or to 0 for no \
                     penalties"
                );
                Err(ApiError::field("repeat_last_n", message))
            }
        }
    }
}

/// Leaves out the samplers that a request does not name, as in llama-server.
fn keep_named(names: &[String], sampling: &mut SamplingOptions) -> Result<(), ApiError> {
    let logit_bias = std::mem::take(&mut sampling.logit_bias);
    let mut kept = SamplingOptions { temperature: 1.0, logit_bias, ..SamplingOptions::default() };
    for name in names {
        match &**name {
            "penalties" => {
                kept.repetition_penalty = sampling.repetition_penalty;
                kept.frequency_penalty = sampling.frequency_penalty;
                kept.presence_penalty = sampling.presence_penalty;
            }
            "dry" => kept.dry = sampling.dry.clone(),
            "top_n_sigma" => kept.top_n_sigma = sampling.top_n_sigma,
            "top_k" => kept.top_k = sampling.top_k,
            "typ_p" | "typical_p" => kept.typical_p = sampling.typical_p,
            "top_p" => kept.top_p = sampling.top_p,
            "min_p" => kept.min_p = sampling.min_p,
            "xtc" => {
                kept.xtc_probability = sampling.xtc_probability;
                kept.xtc_threshold = sampling.xtc_threshold;
            }
            "temperature" => {
                kept.temperature = sampling.temperature;
                kept.dynatemp_range = sampling.dynatemp_range;
                kept.dynatemp_exponent = sampling.dynatemp_exponent;
            }
            _ => {
                let message = format!(
                    "samplers has {name:?}, but it must be of penalties, dry, top_n_sigma, top_k, typ_p, top_p, \
                     min_p, xtc and temperature"
                );
                return Err(ApiError::field("samplers", message));
            }
        }
    }
    *sampling = kept;
    Ok(())
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a 64-bit integer, or -1 for a random seed")
    }

    fn visit_i64<E: de::Error>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed((seed != -1).then_some(seed as u64)))
    }

    fn visit_u64<E: de::Error>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(Some(seed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::tests::{ALL, fields_are_known, nulls_are_absent};
    use serde_json::json;

    #[test]
    fn every_field_may_be_null() {
        fields_are_known::<SamplingFields>(&ALL);
        let whole = json!({
            "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "presence_penalty": 1,
            "typical_p": 0.5, "top_n_sigma": 1, "xtc_probability": 0.5, "xtc_threshold": 0.1,
            "dynatemp_range": 0.5, "dynatemp_exponent": 1, "dry_multiplier": 0.8, "dry_base": 1.75,
            "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"],
            "frequency_penalty": 1, "repetition_penalty": 1.1, "repeat_penalty": 1.1,
            "repeat_last_n": -1, "logit_bias": {"1": 2}, "seed": 3, "stop": ["a"],
            "stop_token_ids": [1], "ignore_eos": true, "min_tokens": 1,
            "skip_special_tokens": false, "samplers": ["top_k"],
        });
        nulls_are_absent::<SamplingFields>(&whole, &[]);
    }

    #[test]
    fn seeds_are_all_integers_of_64_bits_and_one_of_them_is_random() {
        let seed =
            |text: &str| serde_json::from_str::<Seed>(text).map_err(|error| error.to_string());
        assert_eq!(seed("-1"), Ok(Seed(None)));
        assert_eq!(seed("0"), Ok(Seed(Some(0))));
        assert_eq!(seed("-2"), Ok(Seed(Some(u64::MAX - 1))));
        assert_eq!(seed("-9223372036854775808"), Ok(Seed(Some(1 << 63))));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        for wrong in
            ["18446744073709551616", "-9223372036854775809", "1e30", "0.5", "\"7\"", "true"]
        {
            let error = seed(wrong).expect_err(wrong);
            assert!(error.contains("a 64-bit integer, or -1 for a random seed"), "{error}");
        }
    }
}

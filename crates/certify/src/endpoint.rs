//! Servers with OpenAI's API: whether two of them, such as one without and one with speculation,
//! give the same greedy text.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// The longest time of one request.
const REQUEST_TIME: Duration = Duration::from_secs(600);

/// The number of alternatives whose log-probabilities are requested.
const ALTERNATIVES: usize = 5;

/// From this log-probability on, a token counts as certain.
const CERTAIN_LOGPROB: f64 = -1e-4;

/// A server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name in reports.
    pub name: String,
    /// Its address, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The key that it requires, if any.
    pub api_key: Option<String>,
}

/// An error of a server.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The server cannot be reached.
    #[error("cannot reach {name} at {url}: {reason}")]
    Unreachable {
        /// The server's name.
        name: String,
        /// The address of the request.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The server refused the request.
    #[error("{name} answered with status {status}: {body}")]
    Refused {
        /// The server's name.
        name: String,
        /// The HTTP status.
        status: u16,
        /// The answer, cut.
        body: String,
    },
    /// The answer has no log-probabilities.
    #[error(
        "{name} reports no log-probabilities of its tokens: choose a server that supports `logprobs` in \
         /v1/completions"
    )]
    NoLogprobs {
        /// The server's name.
        name: String,
    },
}

/// The comparison of a server with another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndpointComparison {
    /// The server without speculation.
    pub reference: String,
    /// The server that was compared with it.
    pub endpoint: String,
    /// The number of prompts.
    pub prompts: usize,
    /// The number of prompts with equal answers.
    pub equal_prompts: usize,
    /// The number of equal tokens before the first difference of each answer.
    pub tokens: usize,
    /// The largest difference between the log-probabilities of equal tokens, in nats. Above 0, the
    /// server's logits depend on how tokens are grouped into passes. Unreported ones do not count.
    pub largest_gap_nats: f64,
    /// The number of equal tokens whose log-probability is 0, although the reference's is not. Some
    /// servers do not report those of accepted draft tokens.
    pub unreported: usize,
    /// The first difference.
    pub divergence: Option<EndpointDivergence>,
}

/// The first token that differs between two servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointDivergence {
    /// The index of the prompt, from 0.
    pub prompt: usize,
    /// The position in the answer, from 0.
    pub position: usize,
    /// The texts of the reference's token and of the other one; `None` after the end of an answer.
    pub tokens: [Option<String>; 2],
    /// By how much the reference prefers its token, in nats, if it reports both.
    pub gap_nats: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct AnsweredToken {
    text: String,
    logprob: f64,
    alternatives: Vec<(String, f64)>,
}

/// Compares the greedy answers of a server with those of a reference.
///
/// # Errors
/// If a server cannot be reached, refuses a request, or reports no log-probabilities.
pub fn compare_endpoints(
    reference: &Endpoint,
    other: &Endpoint,
    prompts: &[String],
    max_tokens: usize,
) -> Result<EndpointComparison, EndpointError> {
    let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIME));
    let agent: ureq::Agent = config.http_status_as_error(false).build().into();
    let mut comparison = EndpointComparison {
        reference: reference.name.clone(),
        endpoint: other.name.clone(),
        prompts: prompts.len(),
        equal_prompts: 0,
        tokens: 0,
        largest_gap_nats: 0.0,
        unreported: 0,
        divergence: None,
    };
    for (index, prompt) in prompts.iter().enumerate() {
        let plain = answer(&agent, reference, prompt, max_tokens)?;
        let tokens = answer(&agent, other, prompt, max_tokens)?;
        comparison.add(index, &plain, &tokens);
    }
    Ok(comparison)
}

impl EndpointComparison {
    fn add(&mut self, prompt: usize, plain: &[AnsweredToken], other: &[AnsweredToken]) {
        let pairs = plain.iter().zip(other);
        let position = pairs.clone().take_while(|(a, b)| a.text == b.text).count();
        self.tokens += position;
        for (a, b) in pairs.take(position) {
            if b.logprob == 0.0 && a.logprob < CERTAIN_LOGPROB {
                self.unreported += 1;
                continue;
            }
            self.largest_gap_nats = self.largest_gap_nats.max((a.logprob - b.logprob).abs());
        }
        let texts =
            [plain, other].map(|tokens| tokens.get(position).map(|token| token.text.clone()));
        if texts == [None, None] {
            self.equal_prompts += 1;
            return;
        }
        let gap_nats = plain.get(position).zip(texts[1].as_ref()).and_then(|(token, text)| {
            let other = token.alternatives.iter().find(|(alternative, _)| alternative == text);
            other.map(|(_, logprob)| token.logprob - logprob)
        });
        let divergence = EndpointDivergence { prompt, position, tokens: texts, gap_nats };
        self.divergence.get_or_insert(divergence);
    }
}

/// Requests a greedy answer.
fn answer(
    agent: &ureq::Agent,
    endpoint: &Endpoint,
    prompt: &str,
    max_tokens: usize,
) -> Result<Vec<AnsweredToken>, EndpointError> {
    let name = || endpoint.name.clone();
    let body = json!({
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 0,
        "logprobs": ALTERNATIVES,
    });
    let url = format!("{}/v1/completions", endpoint.url.trim_end_matches('/'));
    let mut request = agent.post(&url).header("Content-Type", "application/json");
    if let Some(key) = &endpoint.api_key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let unreachable = |error: ureq::Error| EndpointError::Unreachable {
        name: name(),
        url: url.clone(),
        reason: error.to_string(),
    };
    let mut response = request.send(body.to_string()).map_err(unreachable)?;
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string().map_err(unreachable)?;
    if status != 200 {
        let body = body.chars().take(300).collect();
        return Err(EndpointError::Refused { name: name(), status, body });
    }
    let value: Value = serde_json::from_str(&body).unwrap_or_default();
    tokens(&value["choices"][0]["logprobs"])
        .ok_or_else(|| EndpointError::NoLogprobs { name: name() })
}

/// Reads the tokens of an answer, in the form of OpenAI's completions or, as llama.cpp's server has
/// it, of chat completions.
fn tokens(logprobs: &Value) -> Option<Vec<AnsweredToken>> {
    if let Some(content) = logprobs["content"].as_array() {
        let token = |value: &Value| {
            let pair = |value: &Value| {
                Some((value["token"].as_str()?.to_owned(), value["logprob"].as_f64()?))
            };
            let (text, logprob) = pair(value)?;
            let alternatives = value["top_logprobs"].as_array()?.iter().filter_map(pair).collect();
            Some(AnsweredToken { text, logprob, alternatives })
        };
        return content.iter().map(token).collect();
    }
    let texts = logprobs["tokens"].as_array()?;
    let token = |(index, text): (usize, &Value)| {
        let alternatives = logprobs["top_logprobs"][index].as_object().into_iter().flatten();
        let pair = |(text, logprob): (&String, &Value)| Some((text.clone(), logprob.as_f64()?));
        Some(AnsweredToken {
            text: text.as_str()?.to_owned(),
            logprob: logprobs["token_logprobs"][index].as_f64()?,
            alternatives: alternatives.filter_map(pair).collect(),
        })
    };
    texts.iter().enumerate().map(token).collect()
}

impl fmt::Display for EndpointComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, endpoint, prompts, equal_prompts, tokens, largest_gap_nats, .. } =
            self;
        writeln!(f, "{endpoint}, compared with {reference}: greedy answers to {prompts} prompts")?;
        writeln!(f, "  {equal_prompts} answers are equal, {tokens} tokens before differences")?;
        write!(
            f,
            "  log-probabilities of equal tokens differ by up to {largest_gap_nats:.2e} nats"
        )?;
        if self.unreported > 0 {
            write!(
                f,
                "\n  {endpoint} reports a log-probability of 0 for {} other tokens, as if they were certain",
                self.unreported
            )?;
        }
        let Some(EndpointDivergence { prompt, position, tokens, gap_nats }) = &self.divergence
        else {
            return Ok(());
        };
        let text = |token: &Option<String>| {
            token.as_ref().map_or("the end".to_owned(), |text| format!("{text:?}"))
        };
        write!(
            f,
            "\n  first difference: prompt {}, position {position}: {} instead of {}",
            prompt + 1,
            text(&tokens[1]),
            text(&tokens[0]),
        )?;
        match gap_nats {
            Some(gap) => write!(f, ", which {reference} finds {gap:.2e} nats more probable"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> EndpointComparison {
        EndpointComparison {
            reference: "plain".into(),
            endpoint: "speculative".into(),
            prompts: 2,
            equal_prompts: 0,
            tokens: 0,
            largest_gap_nats: 0.0,
            unreported: 0,
            divergence: None,
        }
    }

    #[test]
    fn both_forms_of_log_probabilities_are_read() {
        let completions = json!({
            "tokens": [" a", " b"],
            "token_logprobs": [-0.5, -1.0],
            "top_logprobs": [{" a": -0.5, " x": -2.0}, {" b": -1.0}],
        });
        let chat = json!({"content": [
            {"token": " a", "logprob": -0.5, "top_logprobs": [
                {"token": " a", "logprob": -0.5}, {"token": " x", "logprob": -2.0}]},
            {"token": " b", "logprob": -1.0, "top_logprobs": [{"token": " b", "logprob": -1.0}]},
        ]});
        let read = tokens(&completions).unwrap();
        assert_eq!(read, tokens(&chat).unwrap());
        assert_eq!(read[0].alternatives[1], (" x".to_owned(), -2.0));
        assert_eq!(tokens(&Value::Null), None);
    }

    #[test]
    fn the_first_difference_is_reported_with_its_gap() {
        let token = |text: &str, logprob, alternatives: &[(&str, f64)]| AnsweredToken {
            text: text.into(),
            logprob,
            alternatives: alternatives.iter().map(|&(text, l)| (text.to_owned(), l)).collect(),
        };
        let plain = [token(" a", -0.5, &[]), token(" b", -0.7, &[(" b", -0.7), (" c", -0.75)])];
        let mut comparison = comparison();
        comparison.add(0, &plain, &plain);
        comparison.add(1, &plain, &[token(" a", -0.5625, &[]), token(" c", -0.7, &[])]);
        assert_eq!((comparison.equal_prompts, comparison.tokens), (1, 3));
        assert!((comparison.largest_gap_nats - 0.0625).abs() < 1e-12);
        let divergence = comparison.divergence.clone().unwrap();
        assert_eq!((divergence.prompt, divergence.position), (1, 1));
        assert!((divergence.gap_nats.unwrap() - 0.05).abs() < 1e-9);
        let page = comparison.to_string();
        assert!(
            page.contains("\" c\" instead of \" b\", which plain finds 5.00e-2 nats"),
            "{page}"
        );
        // A log-probability of 0 is missing, unless the token is certain.
        comparison.add(0, &plain, &[token(" a", 0.0, &[]), token(" b", -0.7, &[])]);
        let certain = [token(" a", -1e-9, &[])];
        comparison.add(0, &certain, &[token(" a", 0.0, &[])]);
        assert_eq!((comparison.unreported, comparison.equal_prompts), (1, 3));
        assert!((comparison.largest_gap_nats - 0.0625).abs() < 1e-12);
        assert!(comparison.to_string().contains("0 for 1 other tokens"), "{comparison}");
        // An answer that ends earlier.
        comparison.divergence = None;
        comparison.add(0, &plain, &plain[..1]);
        assert_eq!(comparison.divergence.unwrap().tokens, [Some(" b".into()), None]);
    }
}

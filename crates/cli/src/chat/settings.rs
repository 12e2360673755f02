//! Options of answers that `/set` changes, spelt as on the command line.

use crate::arguments::values;
use forerun::{Method, Request};
use std::fmt::Display;
use std::str::FromStr;

/// The names, for help and errors.
const NAMES: &str = "temperature, top-k, top-p, min-p, repetition-penalty, frequency-penalty, \
                     presence-penalty, seed, max-tokens, system";

/// Returns the request with one option changed, for answers of this method. The error is a hint for
/// the user.
pub(super) fn changed(
    request: &Request,
    method: Method,
    name: &str,
    value: &str,
) -> Result<Request, String> {
    let mut request = request.clone();
    let sampling = &mut request.sampling;
    match name.replace('_', "-").as_str() {
        "temperature" | "temp" => sampling.temperature = parsed(value)?,
        "top-k" => sampling.top_k = parsed(value)?,
        "top-p" => sampling.top_p = parsed(value)?,
        "min-p" => sampling.min_p = parsed(value)?,
        "repetition-penalty" | "repeat-penalty" => sampling.repetition_penalty = parsed(value)?,
        "frequency-penalty" => sampling.frequency_penalty = parsed(value)?,
        "presence-penalty" => sampling.presence_penalty = parsed(value)?,
        "seed" if value == "none" => request.seed = None,
        "seed" => request.seed = Some(parsed(value)?),
        "max-tokens" => request.max_tokens = values::tokens(value).map_err(|e| wrong(value, e))?,
        _ => return Err(format!("there is no option {name}; /set changes {NAMES}")),
    }
    match request.validate_for(method) {
        Ok(()) => Ok(request),
        Err(error) => Err(error.to_string().replace('`', "")),
    }
}

fn parsed<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| wrong(value, error))
}

fn wrong(value: &str, reason: impl Display) -> String {
    format!("{value:?} cannot be used: {reason}")
}

/// Lists the options with their values.
pub(super) fn listed(request: &Request) -> String {
    let sampling = &request.sampling;
    let seed = request.seed.map_or("none".to_owned(), |seed| seed.to_string());
    let max_tokens = match request.max_tokens {
        usize::MAX => "-1".to_owned(),
        tokens => tokens.to_string(),
    };
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repetition-penalty {}, frequency-penalty {}, \
         presence-penalty {}, seed {seed}, max-tokens {max_tokens}",
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(request: &Request, name: &str, value: &str) -> Result<Request, String> {
        changed(request, Method::Speculative, name, value)
    }

    #[test]
    fn every_listed_option_can_be_changed() -> Result<(), String> {
        let mut request = Request::default();
        for (name, value) in [
            ("temperature", "0.5"),
            ("top-k", "40"),
            ("top_p", "0.9"),
            ("min-p", "0.1"),
            ("repetition-penalty", "1.25"),
            ("frequency-penalty", "-0.5"),
            ("presence-penalty", "0.25"),
            ("seed", "7"),
            ("max-tokens", "-1"),
        ] {
            request = set(&request, name, value)?;
            let shown = format!("{} {value}", name.replace('_', "-"));
            assert!(listed(&request).contains(&shown), "{shown}: {}", listed(&request));
            assert!(NAMES.contains(&name.replace('_', "-")), "{name}");
        }
        assert_eq!(set(&request, "seed", "none")?.seed, None);
        assert_eq!(set(&request, "max-tokens", "9")?.max_tokens, 9);
        Ok(())
    }

    #[test]
    fn wrong_options_are_refused() {
        let request = Request::default();
        for (name, value, words) in [
            ("temprature", "1", "/set changes temperature"),
            ("temperature", "warm", "\"warm\""),
            ("temperature", "-1", "temperature is -1"),
            ("top-p", "1.5", "at most 1"),
            ("max-tokens", "0", "at least one"),
            ("max-tokens", "-2", "\"-2\""),
            ("seed", "-1", "\"-1\""),
        ] {
            let error = set(&request, name, value).err().unwrap_or_default();
            assert!(error.contains(words), "{name} {value}: {error}");
        }
    }
}

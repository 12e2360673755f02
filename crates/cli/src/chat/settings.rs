//! Options of answers that `/set` changes, spelt as on the command line.

use crate::arguments::values;
use forerun::{Method, Request};
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
    let name = own_name(name);
    let number = || parsed(&name, value, "a number");
    match &*name {
        "temperature" => sampling.temperature = number()?,
        "top-k" => sampling.top_k = parsed(&name, value, "a whole number; 0 means all tokens")?,
        "top-p" => sampling.top_p = number()?,
        "min-p" => sampling.min_p = number()?,
        "repetition-penalty" => sampling.repetition_penalty = number()?,
        "frequency-penalty" => sampling.frequency_penalty = number()?,
        "presence-penalty" => sampling.presence_penalty = number()?,
        "seed" if value == "none" => request.seed = None,
        "seed" => request.seed = Some(parsed(&name, value, "a whole number, or none")?),
        "max-tokens" => {
            let expected = "a whole number, or -1 for no limit";
            request.max_tokens =
                values::tokens(value).map_err(|_| wrong(&name, value, expected))?;
        }
        _ => return Err(unknown(&name)),
    }
    match request.validate_for(method) {
        Ok(()) => Ok(request),
        Err(error) => Err(error.to_string().replace('`', "")),
    }
}

/// Returns the name that `/set` lists, given one of llama.cpp or ollama.
fn own_name(name: &str) -> String {
    let name = name.replace('_', "-");
    match &*name {
        "temp" => "temperature".to_owned(),
        "repeat-penalty" => "repetition-penalty".to_owned(),
        "num-predict" | "n-predict" => "max-tokens".to_owned(),
        _ => name,
    }
}

/// Returns whether `/set` changes an option of this name.
pub(super) fn is_option(name: &str) -> bool {
    NAMES.split(", ").any(|known| known == own_name(name))
}

fn unknown(name: &str) -> String {
    match name {
        "num-ctx" | "ctx-size" | "context-length" => {
            format!("{name} cannot change during a chat: start it with --context-length N")
        }
        _ => format!("there is no option {name}; /set changes {NAMES}"),
    }
}

fn parsed<T: FromStr>(name: &str, value: &str, expected: &str) -> Result<T, String> {
    value.parse().map_err(|_| wrong(name, value, expected))
}

fn wrong(name: &str, value: &str, expected: &str) -> String {
    format!("{name} is {value:?}, but it must be {expected}")
}

/// Returns an option with its value. The error is a hint for the user.
pub(super) fn shown(request: &Request, name: &str) -> Result<String, String> {
    let name = own_name(name);
    let all = listed(request);
    let found = all.split(", ").find(|entry| entry.split(' ').next() == Some(&*name));
    found.map(str::to_owned).ok_or_else(|| unknown(&name))
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
            assert_eq!(super::shown(&request, name)?, shown);
            assert!(NAMES.contains(&name.replace('_', "-")), "{name}");
        }
        assert_eq!(set(&request, "seed", "none")?.seed, None);
        assert_eq!(set(&request, "max-tokens", "9")?.max_tokens, 9);
        assert_eq!(set(&request, "num_predict", "8")?.max_tokens, 8);
        Ok(())
    }

    #[test]
    fn wrong_options_are_refused() {
        let request = Request::default();
        for (name, value, words) in [
            ("temprature", "1", "/set changes temperature"),
            ("num_ctx", "4096", "--context-length"),
            ("temperature", "warm", "temperature is \"warm\", but it must be a number"),
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

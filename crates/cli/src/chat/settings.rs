//! Options of answers that `/set` changes, spelt as on the command line.

use crate::arguments::values;
use forerun::{Method, Request, SamplingOptions};
use std::str::FromStr;

/// The names, for help and errors.
pub(super) const NAMES: &str = "temperature, top-k, top-p, min-p, typical-p, top-n-sigma, xtc-probability, xtc-threshold, \
     dynatemp-range, dynatemp-exponent, repetition-penalty, frequency-penalty, presence-penalty, \
     dry-multiplier, dry-base, dry-allowed-length, dry-penalty-last-n, seed, max-tokens, system";

/// Returns the request with one option changed, for answers of this method. The error is a hint for
/// the user.
pub(super) fn changed(
    request: &Request,
    method: Method,
    name: &str,
    value: &str,
) -> Result<Request, String> {
    let mut request = request.clone();
    let name = own_name(name);
    let sampling = &mut request.sampling;
    match &*name {
        "top-k" => sampling.top_k = parsed(&name, value, "a whole number; 0 means all tokens")?,
        "dry-allowed-length" => {
            sampling.dry.allowed_length = parsed(&name, value, "a whole number")?;
        }
        "dry-penalty-last-n" if value == "-1" => sampling.dry.penalty_last_n = None,
        "dry-penalty-last-n" => {
            let expected = "a whole number, or -1 for all tokens";
            sampling.dry.penalty_last_n = Some(parsed(&name, value, expected)?);
        }
        "seed" if value == "none" => request.seed = None,
        "seed" => request.seed = Some(parsed(&name, value, "a whole number, or none")?),
        "max-tokens" => {
            let expected = "a whole number, or -1 for no limit";
            request.max_tokens =
                values::tokens(value).map_err(|_| wrong(&name, value, expected))?;
        }
        _ => {
            let number = number(sampling, &name).ok_or_else(|| unknown(&name))?;
            *number = parsed(&name, value, "a number")?;
        }
    }
    match request.validate_for(method) {
        Ok(()) => Ok(request),
        Err(error) => Err(error.to_string().replace('`', "")),
    }
}

/// Returns the sampling option of this name, if it is a number that need not be whole.
fn number<'a>(sampling: &'a mut SamplingOptions, name: &str) -> Option<&'a mut f32> {
    Some(match name {
        "temperature" => &mut sampling.temperature,
        "top-p" => &mut sampling.top_p,
        "min-p" => &mut sampling.min_p,
        "typical-p" => &mut sampling.typical_p,
        "top-n-sigma" => &mut sampling.top_n_sigma,
        "xtc-probability" => &mut sampling.xtc_probability,
        "xtc-threshold" => &mut sampling.xtc_threshold,
        "dynatemp-range" => &mut sampling.dynatemp_range,
        "dynatemp-exponent" => &mut sampling.dynatemp_exponent,
        "repetition-penalty" => &mut sampling.repetition_penalty,
        "frequency-penalty" => &mut sampling.frequency_penalty,
        "presence-penalty" => &mut sampling.presence_penalty,
        "dry-multiplier" => &mut sampling.dry.multiplier,
        "dry-base" => &mut sampling.dry.base,
        _ => return None,
    })
}

/// Returns the name that `/set` lists, given one of llama.cpp or ollama.
fn own_name(name: &str) -> String {
    let name = name.replace('_', "-");
    match &*name {
        "temp" => "temperature".to_owned(),
        "typical" => "typical-p".to_owned(),
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
    let sampling = &request.sampling;
    let or_all = |count: Option<usize>| count.map_or("-1".to_owned(), |count| count.to_string());
    let value = match &*name {
        "top-k" => sampling.top_k.to_string(),
        "dry-allowed-length" => sampling.dry.allowed_length.to_string(),
        "dry-penalty-last-n" => or_all(sampling.dry.penalty_last_n),
        "seed" => request.seed.map_or("none".to_owned(), |seed| seed.to_string()),
        "max-tokens" => or_all(Some(request.max_tokens).filter(|&tokens| tokens < usize::MAX)),
        _ => match number(&mut sampling.clone(), &name) {
            Some(number) => number.to_string(),
            None => return Err(unknown(&name)),
        },
    };
    Ok(format!("{name} {value}"))
}

/// Lists the options with their values.
pub(super) fn listed(request: &Request) -> String {
    let all: Vec<_> = NAMES.split(", ").filter_map(|name| shown(request, name).ok()).collect();
    all.join(", ")
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
            ("typical", "0.75"),
            ("xtc_probability", "0.5"),
            ("dry-multiplier", "0.8"),
            ("dry-penalty-last-n", "64"),
            ("dry-penalty-last-n", "-1"),
            ("seed", "7"),
            ("max-tokens", "-1"),
        ] {
            request = set(&request, name, value)?;
            let shown = format!("{} {value}", own_name(name));
            assert!(listed(&request).contains(&shown), "{shown}: {}", listed(&request));
            assert_eq!(super::shown(&request, name)?, shown);
            assert!(NAMES.contains(&own_name(name)), "{name}");
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

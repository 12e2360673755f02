//! How much tests test: environment variables choose more than a sample.

/// Returns the number in an environment variable, or `default` if the variable is not set.
///
/// # Panics
/// If the variable is set to something else.
#[must_use]
pub fn env_number(name: &str, default: u64) -> u64 {
    let Ok(value) = std::env::var(name) else { return default };
    value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}"))
}

/// Returns the number of cases that a test has: `FORERUN_CASES`, or `default` if that is not set.
///
/// # Panics
/// If the variable is set to something else than a number.
#[must_use]
pub fn cases(default: u32) -> u32 {
    let cases = env_number("FORERUN_CASES", default.into());
    u32::try_from(cases).unwrap_or_else(|_| panic!("FORERUN_CASES={cases}: too large"))
}

/// Returns whether a test tests everything, and not a sample: whether `FORERUN_CASES` is set.
#[must_use]
pub fn is_complete() -> bool {
    std::env::var_os("FORERUN_CASES").is_some()
}

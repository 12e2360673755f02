//! Helpers of randomised tests.

/// Returns the number in an environment variable, or `default` if the variable is not set.
///
/// # Panics
/// If the variable is set to something else.
#[must_use]
pub fn env_number(name: &str, default: u64) -> u64 {
    let Ok(value) = std::env::var(name) else { return default };
    value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}"))
}

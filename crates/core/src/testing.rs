//! What tests need of the environment: how much they test, and the data of real models.

use std::io::Write;
use std::path::{Path, PathBuf};

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

/// Returns the folder with real checkpoints and prompts, which `FORERUN_DATA` names. By default it
/// is `shared/data` next to the repository. Without it, tests of real checkpoints are skipped with
/// a message.
///
/// # Panics
/// In CI without the folder, because skipped tests prove nothing.
#[must_use]
pub fn data_folder() -> Option<PathBuf> {
    let shared_data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("FORERUN_DATA").map_or(shared_data, PathBuf::from);
    if folder.join("models").is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("CI").is_none() && std::env::var_os("FORERUN_DATA").is_none(),
        "no data in {}: set FORERUN_DATA to the folder with models/ and prompts/",
        folder.display()
    );
    report(&format!("SKIPPED: no data in {} (set FORERUN_DATA)", folder.display()));
    None
}

/// Prints a line even if the test passes: it bypasses the capture of the test harness.
pub fn report(line: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

//! What the integration tests share.

use std::path::{Path, PathBuf};

/// The folder with real checkpoints and prompts: `FORERUN_DATA`, or `shared/data` beside the
/// checkout. Where there is none, tests of real checkpoints are skipped with a message; but a CI run
/// without it would prove less than it seems to, and fails.
pub(crate) fn data_folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("FORERUN_DATA").map_or(beside, PathBuf::from);
    if folder.join("models").is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "no data in {}: set FORERUN_DATA to the folder with models/ and prompts/",
        folder.display()
    );
    eprintln!("SKIPPED: no data in {} (set FORERUN_DATA)", folder.display());
    None
}

//! PyTorch's pickled tensors, which are told apart and not read: reading them runs what they say.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::load_error::LoadError;

/// How PyTorch's files begin: a zip archive, or before version 1.6 a pickle of a magic number.
const MARKS: [[u8; 4]; 2] = [*b"PK\x03\x04", *b"\x80\x02\x8a\x0a"];

/// Whether a file is one that PyTorch has written.
pub(crate) fn is_pickle(file: &Path) -> bool {
    let mut first = [0; 4];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && MARKS.contains(&first)
}

/// The pickled weights that lie in a directory, if there are any: shards by the first of them. Without
/// a configuration they may be anybody's, unless they are named as heads are.
pub(super) fn find_pickled_weights(directory: &Path) -> Option<PathBuf> {
    let has_config = directory.join("config.json").exists();
    let names = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
    let is_pickled = |name: &String| {
        let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
        // llama2.c and tokenizers have files of that ending, too.
        let named = ending == Some("bin") && name.contains("pytorch_model");
        (named || matches!(ending, Some("pt" | "pth"))) && (has_config || name.contains("_lm_head"))
    };
    let mut pickled: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(is_pickled).collect();
    // Those of optimizers and the like come last.
    let is_weights = |name: &str| name.contains("pytorch_model") || name.contains("_lm_head");
    pickled.sort_by_key(|name| (!is_weights(name), name.clone()));
    pickled.first().map(|name| directory.join(name))
}

/// What to do about a pickled file.
pub(crate) fn error(file: PathBuf) -> LoadError {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.replace("pytorch_model", "model");
    let into = file.with_file_name(name).with_extension("safetensors");
    LoadError::Pickle { file, into }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_pickled_file_is_found_and_told_how_to_convert() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tokenizer.bin", "stories.bin", "config.json"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(find_pickled_weights(folder.path()), None);
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("stories.pt"), "").unwrap();
        assert_eq!(find_pickled_weights(other.path()), None);
        for (name, into) in [
            ("zip.pt", "zip.safetensors"),
            ("pytorch_model-00002-of-00002.bin", "model-00002-of-00002.safetensors"),
            ("pytorch_model-00001-of-00002.bin", "model-00001-of-00002.safetensors"),
            ("medusa_lm_head.pt", "medusa_lm_head.safetensors"),
        ] {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            assert_eq!(find_pickled_weights(folder.path()), Some(file.clone()));
            let message = error(file).to_string();
            assert!(message.contains(name) && message.contains(into), "{message}");
            assert!(message.contains("weights_only=True"), "{message}");
        }
        let file = other.path().join("file");
        // The last begins as a llama2.c file with a hidden size of 640 does.
        for (bytes, expected) in [
            (&b"PK\x03\x04rest"[..], true),
            (b"\x80\x02\x8a\x0al", true),
            (b"ak42", false),
            (b"PK", false),
            (b"\x80\x02\0\0", false),
        ] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(is_pickle(&file), expected, "{bytes:?}");
        }
        assert!(!is_pickle(&other.path().join("nothing")));
    }
}

//! Recognises PyTorch's pickled tensors. They are not read, because unpickling can execute code.

use crate::load_error::LoadError;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The first bytes of PyTorch's files: of a zip archive, or before version 1.6 of a pickled number.
const MAGIC: [[u8; 4]; 2] = [*b"PK\x03\x04", *b"\x80\x02\x8a\x0a"];

/// Whether a file has the format of PyTorch's files.
pub(crate) fn is_pickle(file: &Path) -> bool {
    let mut first = [0; 4];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && MAGIC.contains(&first)
}

/// Returns the file of pickled weights in a directory, if there is one: of several shards, the
/// first. Without a `config.json` only files with the names of draft heads count, because other
/// files may not be weights at all.
pub(super) fn find_pickled_weights(directory: &Path) -> Option<PathBuf> {
    let has_config = directory.join("config.json").exists();
    let names = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
    let is_pickled = |name: &String| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        // Models of llama2.c and tokenizers have the extension `bin`, too.
        let is_pytorch_bin = extension == Some("bin") && name.contains("pytorch_model");
        let is_pytorch = is_pytorch_bin || matches!(extension, Some("pt" | "pth"));
        is_pytorch && (has_config || name.contains("_lm_head"))
    };
    let mut pickled: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(is_pickled).collect();
    // Other pickles, such as optimizer states, come last.
    let is_weights = |name: &str| name.contains("pytorch_model") || name.contains("_lm_head");
    pickled.sort_by_key(|name| (!is_weights(name), name.clone()));
    pickled.first().map(|name| directory.join(name))
}

/// Returns the error for a pickled file, which contains the command that converts it.
pub(crate) fn pickle_error(file: PathBuf) -> LoadError {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.replace("pytorch_model", "model");
    let into = file.with_file_name(name).with_extension("safetensors");
    LoadError::Pickle { file, into }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickled_files_are_found_and_errors_say_how_to_convert_them() {
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
            let message = pickle_error(file).to_string();
            assert!(message.contains(name) && message.contains(into), "{message}");
            assert!(message.contains("weights_only=True"), "{message}");
        }
        let file = other.path().join("file");
        // The last one begins like a llama2.c file with a hidden size of 640.
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

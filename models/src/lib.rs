//! The demonstration models, trained by forerun itself, for a first run without any checkpoint. The
//! crate's `README.md` describes their data, their training and their quality.
//!
//! The target and its drafter are part of the binary, and are loaded from there.

/// The files of a checkpoint: names and contents.
pub type Files = &'static [(&'static str, &'static [u8])];

macro_rules! files {
    ($folder:literal) => {
        &[
            ("config.json", include_bytes!(concat!("../", $folder, "/config.json"))),
            (
                "generation_config.json",
                include_bytes!(concat!("../", $folder, "/generation_config.json")),
            ),
            ("model.safetensors", include_bytes!(concat!("../", $folder, "/model.safetensors"))),
            ("tokenizer.json", include_bytes!(concat!("../", $folder, "/tokenizer.json"))),
            (
                "tokenizer_config.json",
                include_bytes!(concat!("../", $folder, "/tokenizer_config.json")),
            ),
        ]
    };
}

/// The target.
pub static TARGET: Files = files!("target");
/// The drafter of the target.
pub static DRAFTER: Files = files!("drafter");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_models_have_weights_and_a_tokenizer() {
        for files in [TARGET, DRAFTER] {
            for name in ["config.json", "model.safetensors", "tokenizer.json"] {
                assert!(files.iter().any(|(file, content)| *file == name && !content.is_empty()));
            }
        }
    }
}

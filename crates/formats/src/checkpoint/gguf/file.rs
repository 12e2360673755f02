//! GGUF files on disk: their names, the parts of a split one, and a file of which only the metadata
//! are read.

use super::architectures::ASSISTANT;
use super::metadata::GgufMetadata;
use super::parse::{GgufHead, MAGIC, invalid};
use super::reader::{Split, StoredMetadata};
use crate::checkpoint::{WeightFile, model_file};
use crate::load_error::LoadError;
use std::path::Path;

/// A GGUF file, of which only the metadata are read.
pub struct GgufFile {
    file: WeightFile,
    metadata: StoredMetadata,
}

impl GgufFile {
    /// Finds the GGUF file that [`Checkpoint::open`](crate::Checkpoint::open) reads at `path`, or
    /// the first part of a split one. Returns `None` for models of other formats, and for paths
    /// without a model.
    ///
    /// # Errors
    /// When the file is broken, or a part of it is missing.
    pub fn find(path: &Path) -> Result<Option<Self>, LoadError> {
        let file = model_file(path).ok().flatten().and_then(|file| WeightFile::map(file).ok());
        let Some(file) = file.filter(is_gguf) else { return Ok(None) };
        let Some(file) = with_other_parts(file)?.into_iter().next() else { return Ok(None) };
        let head = GgufHead::parse(file.bytes(), file.path())?;
        Ok(Some(Self { file, metadata: StoredMetadata(head.metadata) }))
    }

    /// Returns whether it is an assistant of Gemma 4, which drafts for its target, and not a model.
    pub(crate) fn is_assistant(&self) -> bool {
        self.metadata().text("general.architecture").ok().flatten() == Some(ASSISTANT)
    }

    /// Returns the metadata.
    #[must_use]
    pub fn metadata(&self) -> GgufMetadata<'_> {
        self.metadata.of(&self.file)
    }
}

/// Returns whether a file is named as a GGUF model, or as a part of one, and not as a projector of
/// images.
#[must_use]
pub fn is_model_name(name: &str) -> bool {
    name.ends_with(".gguf") && !name.starts_with("mmproj")
}

/// Returns the names of all parts of a split model, in their order, given the name of one of them.
/// Any other name is that of the only part.
#[must_use]
pub fn part_names(name: &str) -> Vec<String> {
    match split_name(name) {
        Some((prefix, count)) => {
            (0..count).map(|part| prefix.to_owned() + &part_ending(part, count)).collect()
        }
        None => vec![name.to_owned()],
    }
}

/// Returns the name of a file without the ending of a part, and the number of parts, or zero: equal
/// for all parts of a model.
pub(crate) fn model_name(name: &str) -> (&str, u32) {
    split_name(name).unwrap_or((name, 0))
}

/// Splits the name of a part into that of the model and the number of parts.
fn split_name(name: &str) -> Option<(&str, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(count) || !is_number(number) {
        return None;
    }
    Some((prefix, count.parse().ok()?))
}

/// Returns the ending of the name of a part, counted from 0.
fn part_ending(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// Whether a file begins as GGUF files do.
pub(crate) fn is_gguf(file: &WeightFile) -> bool {
    file.bytes().starts_with(&MAGIC)
}

/// Maps the other parts of a split file, which are beside it. Returns all parts in their order.
/// Fails when the file is broken, its name does not fit its place among the parts, or another part
/// is missing.
pub(crate) fn with_other_parts(file: WeightFile) -> Result<Vec<WeightFile>, LoadError> {
    let head = GgufHead::parse(file.bytes(), file.path())?;
    let Split { number, count, .. } = Split::read(GgufMetadata::new(&file, &head.metadata))?;
    if count == 1 {
        return Ok(vec![file]);
    }
    let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ending = part_ending(number, count);
    let Some(prefix) = name.strip_suffix(&ending) else {
        let expected =
            format!("a name that ends in {ending}: it is part {} of {count}", number + 1);
        return Err(invalid(file.path(), "the file's name", name, expected));
    };
    let path = file.path().to_owned();
    let mut file = Some(file);
    (0..count)
        .map(|part| match file.take_if(|_| part == number) {
            Some(file) => Ok(file),
            None => {
                WeightFile::map(path.with_file_name(prefix.to_owned() + &part_ending(part, count)))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_after_their_numbers() {
        let parts = part_names("x-Q4_0-00002-of-00003.gguf");
        let expected = [1, 2, 3].map(|number| format!("x-Q4_0-0000{number}-of-00003.gguf"));
        assert_eq!(parts, expected);
        for whole in ["x.gguf", "x-2-of-3.gguf", "x-00001-of-00002.bin", "-of-.gguf", ""] {
            assert_eq!(part_names(whole), [whole]);
        }
        assert_eq!(model_name("folder/x-00001-of-00002.gguf"), ("folder/x", 2));
        assert_eq!(model_name("x.gguf"), ("x.gguf", 0));
    }
}

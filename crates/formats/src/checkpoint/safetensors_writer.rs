//! Writes safetensors files.

use super::Dtype as FloatType;
use forerun_output::OutputFile;
use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, View};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

/// Writes tensors to a safetensors file, one at a time, with the metadata `format: pt` that other
/// engines expect of a model.
///
/// # Errors
/// If the file cannot be written.
pub fn write_safetensors<V: View>(
    file: &Path,
    tensors: impl IntoIterator<Item = (String, V)>,
) -> io::Result<()> {
    let mut tensors: Vec<(String, V)> = tensors.into_iter().collect();
    // Types of larger elements come first, so that all tensors are aligned.
    tensors.sort_by(|(name, tensor), (other_name, other)| {
        other.dtype().cmp(&tensor.dtype()).then(name.cmp(other_name))
    });
    let mut end = 0;
    let entry = |(name, tensor): &(String, V)| {
        let start = end;
        end += tensor.data_len();
        let shape = tensor.shape().to_vec();
        let data_offsets = (start, end);
        (name.clone(), TensorInfo { dtype: tensor.dtype(), shape, data_offsets })
    };
    let entries = tensors.iter().map(entry).collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(metadata), entries).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let mut out = OutputFile::create(file)?;
    out.reserve((size_of::<u64>() + header.len() + end) as u64)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, tensor) in &tensors {
        out.write_all(&tensor.data())?;
    }
    out.finish()
}

/// A tensor as stored in a file.
pub struct SerializedTensor {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements, row-major and little-endian.
    pub bytes: Vec<u8>,
}

impl SerializedTensor {
    /// Converts values to a type. Safetensors has no blocks, so f32 takes their place.
    #[must_use]
    pub fn new(values: &[f32], shape: Vec<usize>, dtype: FloatType) -> Self {
        let stored = match dtype {
            FloatType::F32 | FloatType::Block(_) => Dtype::F32,
            FloatType::Bf16 => Dtype::BF16,
            FloatType::F16 => Dtype::F16,
        };
        Self { dtype: stored, shape, bytes: to_bytes(values, dtype) }
    }
}

impl View for SerializedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Converts values to little-endian bytes of a type.
fn to_bytes(values: &[f32], dtype: FloatType) -> Vec<u8> {
    let values = values.iter();
    match dtype {
        FloatType::F32 | FloatType::Block(_) => {
            values.flat_map(|value| value.to_le_bytes()).collect()
        }
        FloatType::Bf16 => values.flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        FloatType::F16 => values.flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_what_the_safetensors_crate_writes_and_others_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..24).collect();
        let tensors = [
            ("b".to_owned(), TensorView::new(Dtype::BF16, vec![2, 3], &bytes[..12]).unwrap()),
            ("c".to_owned(), TensorView::new(Dtype::F32, vec![3], &bytes[12..]).unwrap()),
            ("a".to_owned(), TensorView::new(Dtype::BF16, vec![0], &[]).unwrap()),
        ];
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let expected = safetensors::serialize(tensors.clone(), Some(metadata)).unwrap();
        let file = folder.path().join("model.safetensors");
        write_safetensors(&file, tensors).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), expected);
        // The permissions of any new file, by the process's umask.
        let other = folder.path().join("other");
        std::fs::write(&other, []).unwrap();
        let mode = |file: &Path| file.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&file), mode(&other));
    }
}

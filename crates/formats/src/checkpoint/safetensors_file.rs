//! The header of a safetensors file: eight bytes of length, JSON, then the tensors' bytes.

use crate::load_error::LoadError;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The contents of one safetensors file.
pub(super) struct SafetensorsFile {
    /// By name. The order is fixed, so if there are several errors, the same one is always
    /// reported.
    pub(super) tensors: BTreeMap<String, StoredTensor>,
}

pub(super) struct StoredTensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
}

impl SafetensorsFile {
    /// Parses the header, and checks that the tensors' ranges are within `bytes` and match the
    /// shapes. Fails when the header is broken, or the file is longer or shorter than the header
    /// says.
    pub(super) fn parse(bytes: &[u8], file: &Path) -> Result<Self, LoadError> {
        let (header, data_start) = header(bytes, file)?;
        // `SafeTensors::deserialize` is not used, because its sums of lengths can overflow.
        let metadata: Metadata = serde_json::from_slice(header)
            .map_err(|cause| LoadError::Header { file: file.to_owned(), cause })?;
        let expected = data_start as u128 + metadata.data_len() as u128;
        if expected != bytes.len() as u128 {
            return Err(wrong_length(file, expected, bytes.len()));
        }
        let stored = |info: &safetensors::tensor::TensorInfo| StoredTensor {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: data_start + info.data_offsets.0..data_start + info.data_offsets.1,
        };
        let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, stored(info)));
        Ok(Self { tensors: tensors.collect() })
    }
}

/// Returns the header's JSON and the offset of the data after it.
fn header<'a>(bytes: &'a [u8], file: &Path) -> Result<(&'a [u8], usize), LoadError> {
    /// The format's own limit, 100 MB.
    const LIMIT: u64 = 100_000_000;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(wrong_length(file, 8, bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > LIMIT {
        return Err(LoadError::Format {
            file: file.to_owned(),
            expected: "a safetensors file",
            found: format!(
                "a header length of {length} bytes, above the format's limit of {LIMIT}"
            ),
        });
    }
    match rest.get(..length as usize) {
        Some(header) => Ok((header, 8 + length as usize)),
        None => Err(wrong_length(file, 8 + u128::from(length), bytes.len())),
    }
}

fn wrong_length(file: &Path, expected: u128, found: usize) -> LoadError {
    let hint = "the file is truncated or damaged: download it again";
    LoadError::Length { file: file.to_owned(), expected, found, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn message(bytes: &[u8]) -> String {
        match SafetensorsFile::parse(bytes, Path::new("a.safetensors")) {
            Ok(_) => panic!("expected an error"),
            Err(error) => error.to_string(),
        }
    }

    const HEADER: &str = r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    #[test]
    fn byte_ranges_are_relative_to_the_file() {
        let bytes = file(HEADER, &[7; 8]);
        let parsed = SafetensorsFile::parse(&bytes, Path::new("a")).unwrap();
        let tensor = &parsed.tensors["t"];
        assert_eq!((tensor.dtype, tensor.shape.as_slice()), (Dtype::F32, [2].as_slice()));
        assert_eq!(bytes[tensor.bytes.clone()], [7; 8]);
    }

    #[test]
    fn wrong_file_lengths_are_rejected() {
        assert!(message(&[1, 2, 3]).contains("expected 8 bytes from its header, found 3"));
        assert!(
            message(&file(HEADER, &[0; 7])).contains("expected 70 bytes from its header, found 69")
        );
        assert!(
            message(&file(HEADER, &[0; 9])).contains("expected 70 bytes from its header, found 71")
        );
        assert!(message(&u64::MAX.to_le_bytes()).contains("18446744073709551615"));
        let cut_header = message(&file(HEADER, &[])[..20]);
        assert!(cut_header.contains("expected 62 bytes"), "{cut_header}");
    }

    #[test]
    fn lengths_that_overflow_64_bits_are_rejected() {
        let size = (1usize << 61) - 1;
        let tensor = |i: usize| {
            let (start, end) = (i * size, (i + 1) * size);
            format!(r#""{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{end}]}}"#)
        };
        let tensors: Vec<String> = (0..8).map(tensor).collect();
        let message = message(&file(&format!("{{{}}}", tensors.join(",")), &[]));
        assert!(message.contains("expected 18446744073709"), "{message}");
    }

    #[test]
    fn a_broken_header_says_what_is_wrong() {
        assert!(
            message(&file("{", &[])).contains("a.safetensors: invalid safetensors header: EOF")
        );
        let gap = HEADER.replace("[0,8]", "[4,12]");
        assert!(message(&file(&gap, &[0; 12])).contains("invalid offset for tensor `t`"));
        let unknown = HEADER.replace("F32", "F7");
        assert!(message(&file(&unknown, &[0; 8])).contains("F7"));
    }
}

//! A model that is padded with weights which change nothing, to show how larger ones behave.

use super::safetensors_file::{SafetensorsFile, StoredTensor};
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The exponents of four bfloat16 numbers, which are then ±2⁻⁷ to ±2⁻⁶.
const EXPONENTS: u64 = 0x3c00_3c00_3c00_3c00;
const SIGNS_AND_FRACTIONS: u64 = 0x807f_807f_807f_807f;

/// Returns a safetensors file of bfloat16 tensors with `units` further hidden units in each
/// feed-forward layer. Their inputs (`gate_proj`, `up_proj`) have random weights, and their outputs
/// (`down_proj`) have zeros, so that they take time to read, but change no number.
///
/// # Errors
/// When the header is broken.
///
/// # Panics
/// If a matrix of a feed-forward layer has no rows.
pub(super) fn pad(bytes: &[u8], file: &Path, units: usize) -> Result<Vec<u8>, LoadError> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let SafetensorsFile { tensors } = SafetensorsFile::parse(bytes, file)?;
    for (name, StoredTensor { dtype, mut shape, bytes: range }) in tensors {
        let (start, stored) = (data.len(), &bytes[range]);
        let row = stored.len() / shape[0].max(1);
        match name.strip_suffix("_proj.weight").and_then(|name| name.rsplit_once('.')) {
            Some((_, "gate" | "up")) => {
                data.extend_from_slice(stored);
                data.extend((0..units * row / 8).flat_map(|_| four_numbers(&mut random)));
                shape[0] += units;
            }
            Some((_, "down")) => {
                for row in stored.chunks(row) {
                    data.extend_from_slice(row);
                    data.resize(data.len() + 2 * units, 0);
                }
                shape[1] += units;
            }
            _ => data.extend_from_slice(stored),
        }
        let offsets = [start, data.len()];
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let length = (header.len() as u64).to_le_bytes();
    Ok([&length, header.as_bytes(), &data].concat())
}

/// Returns four random numbers (xorshift, G. Marsaglia 2003).
fn four_numbers(state: &mut u64) -> [u8; 8] {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state & SIGNS_AND_FRACTIONS | EXPONENTS).to_le_bytes()
}

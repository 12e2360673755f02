//! Typed access to a GGUF file's metadata.

use super::layout::GgufValue;
use super::parse::{invalid, option};
use super::value::{Scalar, StoredValue, ValueType};
use crate::checkpoint::WeightFile;
use crate::load_error::LoadError;
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata of a GGUF file: options by name, such as `tokenizer.ggml.tokens`. Values are read
/// from the file when they are asked for, and texts borrow its bytes.
///
/// All methods return `None` for an absent option, and [`LoadError::GgufField`] for one of another
/// type.
#[derive(Clone, Copy)]
pub struct GgufMetadata<'a> {
    file: &'a WeightFile,
    values: &'a BTreeMap<String, StoredValue>,
}

impl<'a> GgufMetadata<'a> {
    pub(super) fn new(file: &'a WeightFile, values: &'a BTreeMap<String, StoredValue>) -> Self {
        Self { file, values }
    }

    /// Returns the file, for messages.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        self.file.path()
    }

    /// Returns the names of all options, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.values.keys().map(String::as_str)
    }

    /// Returns a text.
    ///
    /// # Errors
    /// When the option is not a string in UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        self.typed(key, "a string in UTF-8", Scalar::text)
    }

    /// Returns an integer, which may be stored in any integer type.
    ///
    /// # Errors
    /// When the option is not an integer, or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.typed(key, "an integer from 0 to 4294967295", Scalar::integer)
    }

    /// Returns a float. One of 64 bits is rounded.
    ///
    /// # Errors
    /// When the option is not a float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.typed(key, "a float", Scalar::float)
    }

    /// Returns a boolean.
    ///
    /// # Errors
    /// When the option is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", Scalar::bool)
    }

    /// Returns the texts of an array.
    ///
    /// # Errors
    /// When the option is not an array of strings in UTF-8.
    pub fn strings(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = &'a str> + use<'a>>, LoadError> {
        self.array(key, "strings in UTF-8", Scalar::text)
    }

    /// Returns the numbers of an array of floats.
    ///
    /// # Errors
    /// When the option is not an array of floats.
    pub fn f32s(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = f32> + use<'a>>, LoadError> {
        self.array(key, "floats", Scalar::float)
    }

    /// Returns the numbers of an array of integers of any type.
    ///
    /// # Errors
    /// When the option is not an array of integers, or one does not fit.
    pub fn i32s(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = i32> + use<'a>>, LoadError> {
        self.array(key, "32-bit integers", Scalar::integer)
    }

    /// Returns the flags of an array of booleans.
    ///
    /// # Errors
    /// When the option is not an array of booleans.
    pub fn bools(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = bool> + use<'a>>, LoadError> {
        self.array(key, "booleans", Scalar::bool)
    }

    /// Returns a value as the file stores it, to be written to another file.
    #[must_use]
    pub fn stored(&self, key: &str) -> Option<GgufValue> {
        let StoredValue { value_type, array_length, bytes } = self.values.get(key)?;
        let mut stored = Vec::new();
        if array_length.is_some() {
            stored.extend(ValueType::Array.code().to_le_bytes());
        }
        stored.extend(value_type.code().to_le_bytes());
        let text_length = (*value_type == ValueType::Text).then_some(bytes.len());
        if let Some(length) = array_length.or(text_length) {
            stored.extend((length as u64).to_le_bytes());
        }
        stored.extend(&self.file.bytes()[bytes.clone()]);
        Some(GgufValue::Stored(stored))
    }

    /// Whether there is an option with this name, of any type.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    pub(super) fn is_array(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| value.array_length.is_some())
    }

    pub(super) fn array_length(&self, key: &str) -> Option<usize> {
        self.values.get(key)?.array_length
    }

    pub(super) fn scalar(&self, key: &str) -> Option<Scalar<'a>> {
        let value = self.values.get(key).filter(|value| value.array_length.is_none())?;
        Scalar::decode(value.value_type, &self.file.bytes()[value.bytes.clone()])
    }

    /// Returns an option's value as messages show it.
    pub(super) fn displayed(&self, key: &str) -> String {
        let Some(value) = self.values.get(key) else { return "absent".to_owned() };
        match (self.scalar(key), value.array_length) {
            (Some(scalar), _) => scalar.to_string(),
            (None, Some(length)) => format!("an array of {length} {} values", value.value_type),
            (None, None) => format!("an invalid {}", value.value_type),
        }
    }

    pub(super) fn invalid(&self, key: &str, expected: &str) -> LoadError {
        invalid(self.path(), option(key), self.displayed(key), expected)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(Scalar<'a>) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        if !self.contains(key) {
            return Ok(None);
        }
        let value = self.scalar(key).and_then(convert);
        value.map(Some).ok_or_else(|| self.invalid(key, expected))
    }

    fn array<T>(
        &self,
        key: &str,
        expected: &str,
        convert: fn(Scalar<'a>) -> Option<T>,
    ) -> Result<Option<Elements<'a, T>>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let expected = format!("an array of {expected}");
        let Some(length) = value.array_length else { return Err(self.invalid(key, &expected)) };
        let elements = Elements {
            value_type: value.value_type,
            bytes: &self.file.bytes()[value.bytes.clone()],
            left: length,
            convert,
        };
        // If one element is invalid, the iterator ends before it.
        let valid = elements.clone().count();
        if valid < length {
            let field = format!("element {valid} of {}", option(key));
            let found = format!("not valid in {}", self.displayed(key));
            return Err(invalid(self.path(), field, found, expected));
        }
        Ok(Some(elements))
    }
}

/// The elements of an array, decoded one after another.
struct Elements<'a, T> {
    value_type: ValueType,
    bytes: &'a [u8],
    left: usize,
    convert: fn(Scalar<'a>) -> Option<T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<T> Iterator for Elements<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        let length = match self.value_type.width() {
            Some(width) => width,
            None => {
                let (length, rest) = self.bytes.split_first_chunk()?;
                self.bytes = rest;
                usize::try_from(u64::from_le_bytes(*length)).ok()?
            }
        };
        let (element, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        (self.convert)(Scalar::decode(self.value_type, element)?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Elements<'_, T> {}

//! Reads options from a JSON object, with errors that name the file, the option and its value.

use crate::load_error::{LoadError, shortened};
use serde_json::{Map, Value};
use std::path::Path;

/// The largest size that is accepted: hundreds of times that of any model, and small enough that
/// the product of two sizes fits in 64 bits.
pub(crate) const MAX_SIZE: usize = 1 << 28;

/// The options of a JSON file, or of an object in it. `null` counts as absent, as in Hugging Face's
/// configurations.
pub(crate) struct JsonOptions<'a> {
    values: Map<String, Value>,
    file: &'a Path,
}

impl<'a> JsonOptions<'a> {
    pub(crate) fn parse(text: &str, file: &'a Path) -> Result<Self, LoadError> {
        match serde_json::from_str(text) {
            Ok(values) => Ok(Self { values, file }),
            Err(cause) => Err(LoadError::Json { file: file.to_owned(), cause }),
        }
    }

    /// Returns these options, with some of others where they are absent here.
    pub(crate) fn with_defaults(mut self, others: &Self, options: &[&str]) -> Self {
        for &option in options {
            if let Some(value) = others.get(option)
                && self.get(option).is_none()
            {
                self.values.insert(option.to_owned(), value.clone());
            }
        }
        self
    }

    /// Returns these options with other names: each pair has the present name and the new one. An
    /// option that is present under both keeps the value under its new name.
    pub(crate) fn with_names(mut self, names: &[(&str, &str)]) -> Self {
        for (own, common) in names {
            if let Some(value) = self.values.remove(*own)
                && self.get(common).is_none()
            {
                self.values.insert((*common).to_owned(), value);
            }
        }
        self
    }

    /// Returns the JSON text of all options except one.
    pub(crate) fn without(&self, option: &str) -> String {
        let mut values = self.values.clone();
        values.remove(option);
        Value::Object(values).to_string()
    }

    /// Returns the JSON with another value of an option.
    pub(crate) fn with(&self, option: &str, value: &str) -> String {
        let mut values = self.values.clone();
        values.insert(option.to_owned(), value.into());
        Value::Object(values).to_string()
    }

    /// Whether the option is present, even as `null`.
    pub(crate) fn contains(&self, option: &str) -> bool {
        self.values.contains_key(option)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns a size: a whole number. Zero is accepted, so callers check whether it is valid.
    pub(crate) fn size(&self, option: &'static str) -> Result<Option<usize>, LoadError> {
        let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
        self.typed(option, "a positive whole number", size)
    }

    pub(crate) fn required_size(&self, option: &'static str) -> Result<usize, LoadError> {
        self.size(option)?.ok_or_else(|| self.missing(option, "a positive whole number"))
    }

    pub(crate) fn number(&self, option: &'static str) -> Result<Option<f32>, LoadError> {
        self.typed(option, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    pub(crate) fn required_number(&self, option: &'static str) -> Result<f32, LoadError> {
        self.number(option)?.ok_or_else(|| self.missing(option, "a number"))
    }

    pub(crate) fn required_numbers(&self, option: &'static str) -> Result<Vec<f32>, LoadError> {
        let numbers = self.typed(option, "a list of numbers", |value| {
            let number = |value: &Value| value.as_f64().map(|number| number as f32);
            value.as_array()?.iter().map(number).collect()
        })?;
        numbers.ok_or_else(|| self.missing(option, "a list of numbers"))
    }

    pub(crate) fn string(&self, option: &'static str) -> Result<Option<String>, LoadError> {
        self.typed(option, "a string", as_string)
    }

    pub(crate) fn strings(&self, option: &'static str) -> Result<Option<Vec<String>>, LoadError> {
        self.typed(option, "a list of strings", |value| {
            value.as_array()?.iter().map(as_string).collect()
        })
    }

    pub(crate) fn sizes(&self, option: &'static str) -> Result<Option<Vec<usize>>, LoadError> {
        let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
        self.typed(option, "a list of numbers, each at least 0", |value| {
            value.as_array()?.iter().map(size).collect()
        })
    }

    pub(crate) fn flag(&self, option: &'static str) -> Result<Option<bool>, LoadError> {
        self.typed(option, "true or false", Value::as_bool)
    }

    pub(crate) fn object(
        &self,
        option: &'static str,
    ) -> Result<Option<JsonOptions<'a>>, LoadError> {
        self.typed(option, "an object", |value| {
            value.as_object().map(|values| JsonOptions { values: values.clone(), file: self.file })
        })
    }

    /// Returns the values of all options of this object, which must be objects. `option` is its own
    /// name.
    pub(crate) fn objects(&self, option: &'static str) -> Result<Vec<Self>, LoadError> {
        let object = |(name, value): (&String, &Value)| match value.as_object() {
            Some(values) => Ok(Self { values: values.clone(), file: self.file }),
            None => {
                let found = shortened(&format!("{name:?}: {value}"));
                Err(self.invalid(option, &found, "an object of objects"))
            }
        };
        self.values.iter().map(object).collect()
    }

    pub(crate) fn token_id(&self, option: &'static str) -> Result<Option<u32>, LoadError> {
        self.typed(option, "a token id", as_token_id)
    }

    /// Returns token ids, which may be given as one id or as a list.
    pub(crate) fn token_ids(&self, option: &'static str) -> Result<Option<Vec<u32>>, LoadError> {
        self.typed(option, "a token id or a list of token ids", |value| match value {
            Value::Array(ids) => ids.iter().map(as_token_id).collect(),
            id => as_token_id(id).map(|id| vec![id]),
        })
    }

    /// Fails unless the option is absent or `is_supported` holds for its value.
    pub(crate) fn check_supported(
        &self,
        option: &'static str,
        supported: &'static str,
        is_supported: impl Fn(&Value) -> bool,
    ) -> Result<(), LoadError> {
        match self.get(option) {
            Some(value) if !is_supported(value) => Err(self.unsupported(option, supported)),
            _ => Ok(()),
        }
    }

    /// Fails if an option is present that is not known. `owner` is what it would belong to.
    pub(crate) fn reject_unknown(
        &self,
        owner: &'static str,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<(), LoadError> {
        let mut present = self.names().filter(|name| self.get(name).is_some());
        match present.find(|name| !is_known(name)) {
            Some(option) => Err(LoadError::UnknownOption {
                file: self.file.to_owned(),
                option: shortened(option),
                found: self.displayed(option),
                owner,
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn unsupported(&self, option: &'static str, supported: &'static str) -> LoadError {
        let (file, found) = (self.file.to_owned(), self.displayed(option));
        LoadError::UnsupportedOption { file, option, found, supported }
    }

    pub(crate) fn invalid(
        &self,
        option: &'static str,
        found: &dyn std::fmt::Display,
        expected: &str,
    ) -> LoadError {
        LoadError::invalid_option(self.file, option, found, expected)
    }

    pub(crate) fn missing(&self, option: &'static str, expected: &'static str) -> LoadError {
        LoadError::MissingOption { file: self.file.to_owned(), option, expected }
    }

    fn typed<T>(
        &self,
        option: &'static str,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(option) else { return Ok(None) };
        let invalid = || self.invalid(option, &self.displayed(option), expected);
        convert(value).map(Some).ok_or_else(invalid)
    }

    pub(crate) fn get(&self, option: &str) -> Option<&Value> {
        self.values.get(option).filter(|value| !value.is_null())
    }

    /// Returns the option's value as messages show it.
    pub(crate) fn displayed(&self, option: &str) -> String {
        self.get(option).map_or_else(|| "absent".to_owned(), |value| shortened(&value.to_string()))
    }
}

fn as_string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn as_token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

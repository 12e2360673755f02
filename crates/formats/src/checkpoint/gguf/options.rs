//! Typed access to the options of a model, whose keys begin with the name of its architecture.

use super::metadata::GgufMetadata;
use super::parse::{option, unsupported};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

pub(super) struct ModelOptions<'a> {
    pub(super) metadata: GgufMetadata<'a>,
    pub(super) architecture: &'a str,
}

impl ModelOptions<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn invalid(&self, name: &str, expected: &str) -> LoadError {
        self.metadata.invalid(&self.key(name), expected)
    }

    pub(super) fn unsupported(&self, name: &str, supported: &str) -> LoadError {
        let key = self.key(name);
        unsupported(self.metadata.path(), option(&key), self.metadata.displayed(&key), supported)
    }

    pub(super) fn missing(&self, name: &str) -> LoadError {
        self.invalid(name, "a positive number")
    }

    pub(super) fn size(&self, name: &str, largest: usize) -> Result<Option<usize>, LoadError> {
        let Some(size) = self.metadata.u32(&self.key(name))? else { return Ok(None) };
        match usize::try_from(size) {
            Ok(size) if (1..=largest).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(name, &format!("a size from 1 to {largest}"))),
        }
    }

    /// Returns a size that is absent if it is 0.
    pub(super) fn size_or_zero(&self, name: &str) -> Result<Option<usize>, LoadError> {
        match self.metadata.u32(&self.key(name))? {
            None | Some(0) => Ok(None),
            Some(_) => self.size(name, MAX_SIZE),
        }
    }

    pub(super) fn required_size(&self, name: &str, largest: usize) -> Result<usize, LoadError> {
        self.size(name, largest)?.ok_or_else(|| self.missing(name))
    }

    /// Returns a size that may be given for each layer, if it is the same for all of them.
    pub(super) fn of_layers(&self, name: &str, layers: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_array(&key) {
            return self.size(name, MAX_SIZE);
        }
        let Some(mut sizes) = self.metadata.i32s(&key)? else { return Ok(None) };
        let expected = format!("a positive number for each of the {layers} layers");
        if sizes.len() != layers {
            return Err(self.invalid(name, &expected));
        }
        let first = sizes.next().unwrap_or(0);
        if sizes.any(|size| size != first) {
            return Err(self.unsupported(name, "the same number for all layers"));
        }
        match usize::try_from(first) {
            Ok(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(name, &expected)),
        }
    }

    /// Returns a size that may be given for each layer, if it is the same for all of them or 0;
    /// `None` if it is 0 for all of them.
    pub(super) fn of_some_layers(
        &self,
        name: &str,
        layers: usize,
    ) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_array(&key) {
            return self.size_or_zero(name);
        }
        let Some(sizes) = self.metadata.i32s(&key)? else { return Ok(None) };
        let expected = format!("a number of at least 0 for each of the {layers} layers");
        if sizes.len() != layers {
            return Err(self.invalid(name, &expected));
        }
        let mut sizes = sizes.filter(|size| *size != 0);
        let Some(first) = sizes.next() else { return Ok(None) };
        if sizes.any(|size| size != first) {
            return Err(self.unsupported(name, "the same number, or 0, for all layers"));
        }
        match usize::try_from(first) {
            Ok(size) if size <= MAX_SIZE => Ok(Some(size)),
            _ => Err(self.invalid(name, &expected)),
        }
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        match self.metadata.f32(&self.key(name))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.invalid(name, "a positive, finite number"))
            }
            value => Ok(value),
        }
    }

    pub(super) fn required_positive(&self, name: &str) -> Result<f32, LoadError> {
        self.positive(name)?.ok_or_else(|| self.missing(name))
    }

    /// Returns a number that is absent if it is 0.
    pub(super) fn positive_or_zero(&self, name: &str) -> Result<Option<f32>, LoadError> {
        match self.metadata.f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.positive(name),
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.metadata.contains(&self.key(name))
    }

    /// Fails unless the option is absent or has this size.
    pub(super) fn check_size(&self, name: &str, expected: usize) -> Result<(), LoadError> {
        match self.metadata.u32(&self.key(name))? {
            Some(size) if size as usize != expected => {
                Err(self.unsupported(name, &format!("the size of a head, {expected}")))
            }
            _ => Ok(()),
        }
    }
}

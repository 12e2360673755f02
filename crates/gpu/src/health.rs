//! Whether an open GPU still works.

use std::sync::{Mutex, PoisonError};

/// The first error of a device that was not expected. From then on, its results cannot be trusted,
/// so the device counts as lost for good.
#[derive(Default)]
pub(crate) struct Health(Mutex<Option<String>>);

impl Health {
    /// Notes an error. The first one is kept.
    pub(crate) fn fail(&self, reason: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.into());
    }

    /// Returns the first error; `None` if the device works.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept() {
        let health = Health::default();
        assert_eq!(health.failure(), None);
        health.fail("no power");
        health.fail("no results");
        assert_eq!(health.failure().as_deref(), Some("no power"));
    }
}

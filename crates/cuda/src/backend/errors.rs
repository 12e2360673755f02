//! Where errors go.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use wgpu::{Error, ErrorFilter, UncapturedErrorHandler};

/// A scope, and the first error in it.
type Scope = (ErrorFilter, Option<Error>);

/// The scopes of errors of all threads, and the handler of other errors.
#[derive(Default)]
pub(super) struct Errors {
    scopes: Mutex<HashMap<ThreadId, Vec<Scope>>>,
    handler: Mutex<Option<Arc<dyn UncapturedErrorHandler>>>,
}

impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Errors")
    }
}

impl Errors {
    pub(super) fn set_handler(&self, handler: Arc<dyn UncapturedErrorHandler>) {
        *self.handler.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    /// Opens a scope of the calling thread, and returns its number.
    pub(super) fn push(&self, filter: ErrorFilter) -> u32 {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let own = scopes.entry(thread::current().id()).or_default();
        own.push((filter, None));
        (own.len() - 1) as u32
    }

    /// Closes a scope of the calling thread, and those in it, and returns its error.
    pub(super) fn pop(&self, index: u32) -> Option<Error> {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let id = thread::current().id();
        let own = scopes.get_mut(&id)?;
        let closed = own.drain((index as usize).min(own.len())..).next();
        if own.is_empty() {
            scopes.remove(&id);
        }
        closed?.1
    }

    /// Gives an error to the innermost scope for it of the calling thread, or else to the handler.
    pub(super) fn report(&self, error: Error) {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let own = scopes.get_mut(&thread::current().id());
        let is_for = |(filter, _): &&mut Scope| {
            matches!(
                (filter, &error),
                (ErrorFilter::OutOfMemory, Error::OutOfMemory { .. })
                    | (ErrorFilter::Validation, Error::Validation { .. })
                    | (ErrorFilter::Internal, Error::Internal { .. })
            )
        };
        if let Some((_, first)) = own.and_then(|own| own.iter_mut().rev().find(is_for)) {
            first.get_or_insert(error);
            return;
        }
        drop(scopes);
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match handler {
            Some(handler) => handler(error),
            None => eprintln!("CUDA: {error}"),
        }
    }

    /// Reports a call that wgpu's rules exclude.
    pub(super) fn report_invalid(&self, description: impl Into<String>) {
        let description = description.into();
        self.report(Error::Validation { source: description.clone().into(), description });
    }
}

//! Drafters whose contexts are shorter than the target's.

use crate::drafter::OpenDrafter;
use std::sync::atomic::{AtomicBool, Ordering};

/// The drafter with the shortest context, if that is shorter than the target's.
#[derive(Debug, Default)]
pub(crate) struct DrafterContext {
    /// The drafter's name, and its context in tokens.
    shortest: Option<(String, usize)>,
    is_noted: AtomicBool,
}

impl DrafterContext {
    /// Returns the shortest context of these drafters. `target`: that of the target, in tokens.
    pub(crate) fn of(drafters: &[OpenDrafter<'_>], target: usize) -> Self {
        let contexts = drafters.iter().filter_map(|drafter| {
            let context = drafter.context_length().filter(|&context| context < target)?;
            Some((drafter.name(), context))
        });
        let shortest = contexts.min_by_key(|&(_, context)| context);
        Self { shortest, is_noted: AtomicBool::new(false) }
    }

    /// Returns a note for the first text that is longer than a drafter's context. `tokens`: the
    /// length of a text.
    pub(crate) fn note(&self, tokens: usize) -> Option<String> {
        let (drafter, context) = self.shortest.as_ref().filter(|(_, context)| tokens > *context)?;
        if self.is_noted.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(format!(
            "the drafter {drafter} has a context of {context} tokens, which is shorter than the model's: it drafts nothing \
             after them, and longer texts are written without it"
        ))
    }
}

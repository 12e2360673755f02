//! What submitted work uses.

use super::buffer::BufferInner;
use super::commands::Command;
use crate::driver::{Graph, Memory, Operation, Span};
use std::collections::HashMap;
use std::sync::Arc;

/// What submitted work uses, until it is done.
#[derive(Debug)]
pub(super) struct Kept {
    /// The number of the submission.
    submission: u64,
    /// The memory, by its address.
    pub(super) memory: HashMap<u64, Arc<Memory>>,
    pub(super) data: Vec<Vec<u8>>,
    pub(super) graph: Option<Arc<Graph>>,
}

impl Kept {
    pub(super) fn of(submission: u64) -> Self {
        Self { submission, memory: HashMap::new(), data: Vec::new(), graph: None }
    }

    /// Returns what a command is for the driver, and keeps the memory that it uses. `None` if there
    /// is nothing to do.
    ///
    /// # Errors
    /// With what is wrong, if the command is invalid or its memory was destroyed.
    pub(super) fn operation(&mut self, command: &Command) -> Result<Option<Operation>, String> {
        let destroyed = || "a buffer that was destroyed is used".to_owned();
        let operation = match command {
            Command::Invalid(what) => return Err(what.clone()),
            Command::Copy { from, to, bytes } => {
                let from = self.span(&from.buffer, from.offset, *bytes).ok_or_else(destroyed)?;
                let to = self.span(&to.buffer, to.offset, *bytes).ok_or_else(destroyed)?;
                Operation::Copy { from: from.address, to: to.address, bytes: *bytes }
            }
            Command::Clear { at, bytes } => {
                let at = self.span(&at.buffer, at.offset, *bytes).ok_or_else(destroyed)?;
                Operation::Clear { at: at.address, bytes: *bytes }
            }
            Command::Dispatch { kernel, group, immediates, grid } => {
                let span = |(binding, _): &(u32, bool)| {
                    let bound = group.0.iter().find(|bound| bound.binding == *binding)?;
                    self.span(&bound.buffer, bound.offset, bound.bytes)
                };
                let bindings: Option<Vec<Span>> = kernel.bindings.iter().map(span).collect();
                let immediates =
                    if kernel.immediate_bytes == 0 { &[][..] } else { &immediates[..] };
                Operation::Launch {
                    kernel: kernel.kernel,
                    threads: kernel.threads,
                    grid: *grid,
                    bindings: bindings.ok_or_else(destroyed)?,
                    immediates: immediates.to_vec(),
                }
            }
        };
        let is_empty = matches!(
            operation,
            Operation::Copy { bytes: 0, .. } | Operation::Clear { bytes: 0, .. }
        );
        Ok((!is_empty).then_some(operation))
    }

    /// Returns a part of a buffer, keeps its memory, and notes the use. `None` if it was destroyed.
    pub(super) fn span(&mut self, buffer: &BufferInner, offset: u64, bytes: u64) -> Option<Span> {
        let memory = buffer.memory()?;
        buffer.note_use(self.submission);
        let span = Span { address: memory.span.address + offset, bytes };
        self.memory.entry(memory.span.address).or_insert(memory);
        Some(span)
    }
}

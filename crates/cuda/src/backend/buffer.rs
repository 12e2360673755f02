//! Buffers.

use super::device::Inner;
use crate::driver::{Memory, Place};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::{
    BufferInterface, BufferMapCallback, BufferMappedRangeInterface, DispatchBufferMappedRange,
};
use wgpu::{BufferAsyncError, BufferUsages, MapMode, MapRangeError, WriteOnly};

/// A buffer. Those that the processor reads are on the host, all others on the device.
#[derive(Clone, Debug)]
pub(super) struct CudaBuffer(pub(super) Arc<BufferInner>);

#[derive(Debug)]
pub(super) struct BufferInner {
    pub(super) device: Arc<Inner>,
    pub(super) size: u64,
    /// `None` if there was none, or after it was destroyed.
    memory: Mutex<Option<Arc<Memory>>>,
    /// It changes under the lock of the device's work only, so that no work is submitted between a
    /// check and what relies on it.
    mapping: Mutex<Mapping>,
    /// The number of the last submission that uses the buffer; 0 before the first.
    last_use: AtomicU64,
}

/// Whether the processor may read a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    None,
    /// When the work that uses it is done.
    Requested,
    Ready,
}

/// Returns where a buffer for such uses is.
pub(super) fn place_for(usage: BufferUsages) -> Place {
    match usage.contains(BufferUsages::MAP_READ) {
        true => Place::Host,
        false => Place::Device,
    }
}

impl BufferInner {
    pub(super) fn new(device: Arc<Inner>, size: u64, memory: Option<Memory>) -> Self {
        let memory = Mutex::new(memory.map(Arc::new));
        Self {
            device,
            size,
            memory,
            mapping: Mutex::new(Mapping::None),
            last_use: AtomicU64::new(0),
        }
    }

    /// Returns the buffer's memory. `None` if it was destroyed.
    pub(super) fn memory(&self) -> Option<Arc<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a part is in the buffer, and may be copied.
    pub(super) fn has_part(&self, offset: u64, bytes: u64) -> bool {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.size);
        is_inside && offset.is_multiple_of(4) && bytes.is_multiple_of(4)
    }

    fn set_mapping(&self, mapping: Mapping) -> Mapping {
        std::mem::replace(&mut self.mapping.lock().unwrap_or_else(PoisonError::into_inner), mapping)
    }

    fn mapping(&self) -> Mapping {
        *self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether work may use the buffer: not while it is mapped.
    pub(super) fn is_free(&self) -> bool {
        self.mapping() == Mapping::None
    }

    /// Returns whether the processor may read the buffer when work is done.
    pub(super) fn can_be_mapped(&self) -> bool {
        // SAFETY: the bytes are not read here.
        let is_on_host = |memory: Arc<Memory>| unsafe { memory.bytes() }.is_some();
        self.is_free() && self.memory().is_some_and(is_on_host)
    }

    pub(super) fn request_mapping(&self) {
        self.set_mapping(Mapping::Requested);
    }

    /// Ends the mapping, or the wait for it.
    pub(super) fn end_mapping(&self) {
        self.set_mapping(Mapping::None);
    }

    /// Returns the number of the last submission that uses the buffer.
    pub(super) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    /// Notes that a submission uses the buffer. It is called under the lock of the device's work.
    pub(super) fn note_use(&self, submission: u64) {
        self.last_use.store(submission, Ordering::Relaxed);
    }

    /// Lets the processor read, if it still waits for that.
    pub(super) fn finish_mapping(&self) -> Result<(), BufferAsyncError> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        match *mapping {
            Mapping::Requested => {
                *mapping = Mapping::Ready;
                Ok(())
            }
            _ => Err(BufferAsyncError),
        }
    }
}

impl BufferInterface for CudaBuffer {
    fn map_async(&self, mode: MapMode, _: Range<u64>, callback: BufferMapCallback) {
        match mode {
            MapMode::Read => self.0.device.map_when_done(&self.0, callback),
            MapMode::Write => {
                self.0.device.errors.report_invalid("buffers are mapped for reading only");
                callback(Err(BufferAsyncError));
            }
        }
    }

    fn get_mapped_range(
        &self,
        range: Range<u64>,
    ) -> Result<DispatchBufferMappedRange, MapRangeError> {
        let is_ready = self.0.mapping() == Mapping::Ready;
        let memory = self.0.memory().filter(|_| is_ready && range.end <= self.0.size);
        if memory.is_none() {
            // wgpu lets no other crate create its error, so the view is of zeros.
            self.0.device.errors.report_invalid("a buffer is read that is not mapped");
        }
        Ok(DispatchBufferMappedRange::custom(MappedRange::new(memory, range)))
    }

    fn unmap(&self) {
        self.0.device.unmap(&self.0);
    }

    fn destroy(&self) {
        let memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Submissions that use it keep it.
        drop(memory);
    }
}

/// A view of a mapped buffer. wgpu lets a buffer be unmapped only when there is none.
#[derive(Debug)]
struct MappedRange {
    memory: Option<Arc<Memory>>,
    range: Range<usize>,
    /// What is read without a mapped buffer.
    zeros: Vec<u8>,
}

impl MappedRange {
    fn new(memory: Option<Arc<Memory>>, range: Range<u64>) -> Self {
        let range = range.start as usize..range.end as usize;
        let zeros = if memory.is_some() { Vec::new() } else { vec![0; range.len()] };
        Self { memory, range, zeros }
    }
}

impl BufferMappedRangeInterface for MappedRange {
    fn len(&self) -> usize {
        self.range.len()
    }

    unsafe fn read_slice(&self) -> &[u8] {
        // SAFETY: work that uses the buffer was done before it was mapped, and no other is
        // submitted while it is.
        let bytes = self.memory.as_ref().and_then(|memory| unsafe { memory.bytes() });
        bytes.and_then(|bytes| bytes.get(self.range.clone())).unwrap_or(&self.zeros)
    }

    unsafe fn write_slice(&mut self) -> WriteOnly<'_, [u8]> {
        unreachable!("buffers are mapped for reading only")
    }
}

//! A GPU's memory.

use crate::closing::begin_call;
use crate::device::{ALIGNMENT, GpuDevice};
use crate::error::GpuFailure;
use std::sync::PoisonError;
use wgpu::{Buffer, BufferDescriptor, BufferUsages, ErrorFilter, MapMode, SubmissionIndex};

/// The largest part of an upload. The driver holds copies of the last two.
const UPLOAD_BYTES: usize = 16 << 20;

/// Memory that buffers leave free for wgpu itself, which holds copies of what is written and gives
/// the device up if there is no memory for them.
const RESERVE_BYTES: u64 = 3 * UPLOAD_BYTES as u64;

/// The largest part of a probe of the free memory.
const PROBE_BYTES: u64 = 256 << 20;

/// Smaller buffers may use the reserve.
const SMALL_BYTES: u64 = 1 << 20;

impl GpuDevice {
    /// Allocates memory that kernels can read and write. Its content is zero.
    ///
    /// # Errors
    /// [`GpuFailure::OutOfMemory`], with `what` is to be stored, if there is no memory or a kernel
    /// cannot address so much. [`GpuFailure::Lost`] if the GPU has failed.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Result<Buffer, GpuFailure> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        self.new_buffer(what, bytes, usage, self.binding_limit)
    }

    /// Copies two buffers to larger ones, and frees them: of each `[held, new]` bytes. A buffer of
    /// no bytes stays as it is.
    ///
    /// # Errors
    /// As [`GpuDevice::allocate`]. Nothing has changed then.
    pub(crate) fn move_to_larger(
        &self,
        what: &str,
        buffers: &[Buffer; 2],
        bytes: [[u64; 2]; 2],
    ) -> Result<[Buffer; 2], GpuFailure> {
        let allocate = |part: usize| match bytes[part] {
            [_, 0] => Ok(buffers[part].clone()),
            [_, new] => self.allocate(what, new),
        };
        let moved = [allocate(0)?, allocate(1)?];
        let held = buffers.iter().zip(&moved).zip(bytes).filter(|(_, [held, _])| *held > 0);
        let held: Vec<_> = held.collect();
        if held.is_empty() {
            return Ok(moved);
        }
        let mut encoder = self.new_encoder();
        for ((from, to), [bytes, _]) in &held {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes);
        }
        self.wait(self.submit(encoder))?;
        // Bindings of earlier passes would keep their memory.
        held.iter().for_each(|((from, _), _)| from.destroy());
        Ok(moved)
    }

    /// Allocates memory from which the processor reads.
    ///
    /// # Errors
    /// As [`GpuDevice::allocate`].
    pub(crate) fn allocate_staging(&self, what: &str, bytes: u64) -> Result<Buffer, GpuFailure> {
        self.new_buffer(what, bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST, u64::MAX)
    }

    /// Allocates memory for other uses than [`GpuDevice::allocate`].
    ///
    /// # Errors
    /// As [`GpuDevice::allocate`].
    pub(crate) fn allocate_for(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Buffer, GpuFailure> {
        self.new_buffer(what, bytes, usage, u64::MAX)
    }

    fn new_buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
        most: u64,
    ) -> Result<Buffer, GpuFailure> {
        let out_of_memory = || GpuFailure::OutOfMemory {
            adapter: self.adapter().name.clone(),
            what: what.to_owned(),
            bytes,
        };
        let size = bytes.max(ALIGNMENT).next_multiple_of(ALIGNMENT);
        if size > most.min(self.adapter().max_buffer_bytes) {
            return Err(out_of_memory());
        }
        let buffer = self.create_buffer(size, usage)?.ok_or_else(out_of_memory)?;
        if size >= SMALL_BYTES {
            let reserve = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
            match self.create_buffer(RESERVE_BYTES, reserve)? {
                Some(reserve) => reserve.destroy(),
                None => {
                    buffer.destroy();
                    return Err(out_of_memory());
                }
            }
        }
        Ok(buffer)
    }

    /// Returns whether this many bytes are free: allocates them in parts, and gives them back.
    /// Buffers that were dropped count as free. Fails if the GPU has failed.
    pub(crate) fn has_memory(&self, bytes: u64) -> Result<bool, GpuFailure> {
        // Buffers are freed when the work that used them has ended.
        self.wait(self.submit_writes())?;
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let largest = PROBE_BYTES.min(self.max_binding_bytes());
        let (mut parts, mut left) = (Vec::new(), bytes);
        while left > 0 {
            let size = left.min(largest).next_multiple_of(ALIGNMENT);
            let Some(part) = self.create_buffer(size, usage)? else { break };
            parts.push(part);
            left = left.saturating_sub(size);
        }
        parts.iter().for_each(Buffer::destroy);
        Ok(left == 0)
    }

    /// Returns a new buffer; `None` if there is no memory.
    fn create_buffer(&self, size: u64, usage: BufferUsages) -> Result<Option<Buffer>, GpuFailure> {
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            let left = |left: usize| left.checked_sub(1);
            if self.buffers_left.fetch_update(Relaxed, Relaxed, left).is_err() {
                return Ok(None);
            }
        }
        let descriptor = BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let scope = self.inner().push_error_scope(ErrorFilter::OutOfMemory);
        let _call = begin_call();
        let buffer = self.inner().create_buffer(&descriptor);
        let error = pollster::block_on(scope.pop());
        self.check()?;
        Ok(error.is_none().then_some(buffer))
    }

    /// Writes before the next submission. The bytes are a multiple of four.
    pub(crate) fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        let _call = begin_call();
        self.queue.write_buffer(buffer, offset, bytes);
    }

    /// Writes a large amount, in parts, of which two at most are in progress. Fails if the GPU has
    /// failed.
    pub(crate) fn upload(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), GpuFailure> {
        for (index, part) in bytes.chunks(UPLOAD_BYTES).enumerate() {
            self.write(buffer, offset + (index * UPLOAD_BYTES) as u64, part);
            let submission = self.submit_writes();
            let mut last = self.last_upload.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(previous) = last.replace(submission) {
                self.wait(previous)?;
            }
        }
        self.check()
    }

    /// Reads the start of a staging buffer to which the commands of `submission` copy. Fails if the
    /// GPU has failed. `visit` is not called then.
    pub(crate) fn read(
        &self,
        staging: &Buffer,
        bytes: u64,
        submission: SubmissionIndex,
        visit: impl FnOnce(&[u8]),
    ) -> Result<(), GpuFailure> {
        if bytes == 0 {
            return self.wait(submission);
        }
        let slice = staging.slice(..bytes);
        // The outcome is that of `get_mapped_range`.
        let call = begin_call();
        slice.map_async(MapMode::Read, |_| ());
        drop(call);
        self.wait(submission)?;
        match slice.get_mapped_range() {
            Ok(view) => visit(&view),
            Err(error) => return Err(self.fail(format!("results cannot be read: {error}"))),
        }
        staging.unmap();
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuOptions;
    use crate::testing::{gpu, gpu_with};
    use std::sync::atomic::Ordering;

    #[test]
    fn large_buffers_leave_memory_for_wgpu() {
        let Some(device) = gpu() else { return };
        for (buffers, bytes, fits) in [
            (2, SMALL_BYTES, true),
            (1, SMALL_BYTES, false),
            (1, SMALL_BYTES - ALIGNMENT, true),
            (0, 16, false),
        ] {
            device.buffers_left.store(buffers, Ordering::Relaxed);
            let allocated = device.allocate("numbers", bytes);
            assert_eq!(allocated.is_ok(), fits, "{bytes} bytes, {buffers} buffers");
            assert_eq!(device.check(), Ok(()));
        }
    }

    #[test]
    fn free_memory_is_probed_in_parts() {
        let options = GpuOptions { max_binding_bytes: 1 << 20, ..GpuOptions::default() };
        let Some(device) = gpu_with(options) else { return };
        for (buffers, bytes, is_there) in
            [(3, 3 << 20, true), (3, (3 << 20) + 1, false), (0, 1, false), (0, 0, true)]
        {
            device.buffers_left.store(buffers, Ordering::Relaxed);
            assert_eq!(device.has_memory(bytes), Ok(is_there), "{bytes} bytes, {buffers} buffers");
            assert_eq!(device.check(), Ok(()));
        }
    }
}

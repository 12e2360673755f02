//! Recorded commands.

use super::COMPUTES_ONLY;
use super::adapter::{IMMEDIATE_BYTES, MAX_BLOCKS};
use super::buffer::{BufferInner, CudaBuffer};
use super::device::Inner;
use super::pipeline::{CompiledKernel, CudaBindGroup, CudaPipeline};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::{
    CommandBufferInterface, CommandEncoderInterface, ComputePassInterface, DispatchBindGroup,
    DispatchBuffer, DispatchCommandBuffer, DispatchComputePass, DispatchComputePipeline,
    DispatchQuerySet, DispatchRenderPass, DispatchTexture, DispatchTextureView,
};
use wgpu::{
    Blas, BlasBuildEntry, BufferTransition, ComputePassDescriptor, Extent3d, ImageSubresourceRange,
    RenderPassDescriptor, TexelCopyBufferInfo, TexelCopyTextureInfo, TextureTransition, Tlas,
};

/// A part of a buffer.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) buffer: Arc<BufferInner>,
    pub(super) offset: u64,
}

/// A command that runs when it is submitted.
#[derive(Debug)]
pub(super) enum Command {
    Dispatch {
        kernel: Arc<CompiledKernel>,
        group: CudaBindGroup,
        immediates: [u8; IMMEDIATE_BYTES],
        grid: [u32; 3],
    },
    Copy {
        from: Part,
        to: Part,
        bytes: u64,
    },
    Clear {
        at: Part,
        bytes: u64,
    },
    /// A command that was wrong. Nothing of what was recorded runs.
    Invalid(String),
}

/// The commands of an encoder and of its passes, in order.
#[derive(Clone, Debug, Default)]
struct Commands(Arc<Mutex<Vec<Command>>>);

impl Commands {
    fn push(&self, command: Command) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Records commands.
#[derive(Debug, Default)]
pub(super) struct CudaEncoder {
    commands: Commands,
}

/// What has been recorded.
#[derive(Debug)]
pub(super) struct CudaCommandBuffer(Mutex<Vec<Command>>);

impl CudaCommandBuffer {
    /// Returns the commands. They are there once.
    pub(super) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CommandBufferInterface for CudaCommandBuffer {}

fn part(buffer: &DispatchBuffer, offset: u64, bytes: u64) -> Result<Part, String> {
    let buffer = buffer.as_custom::<CudaBuffer>().ok_or("a buffer of another backend")?;
    match buffer.0.has_part(offset, bytes) {
        true => Ok(Part { buffer: Arc::clone(&buffer.0), offset }),
        false => {
            Err(format!("{bytes} bytes from {offset} on are not in a buffer of {}", buffer.0.size))
        }
    }
}

fn copy(
    from: (&DispatchBuffer, u64),
    to: (&DispatchBuffer, u64),
    bytes: Option<u64>,
) -> Result<Command, String> {
    let rest = || Some(from.0.as_custom::<CudaBuffer>()?.0.size.saturating_sub(from.1));
    let bytes = bytes.or_else(rest).unwrap_or(0);
    let (from, to) = (part(from.0, from.1, bytes)?, part(to.0, to.1, bytes)?);
    match Arc::ptr_eq(&from.buffer, &to.buffer) {
        true => Err("a copy within one buffer".into()),
        false => Ok(Command::Copy { from, to, bytes }),
    }
}

impl CommandEncoderInterface for CudaEncoder {
    fn copy_buffer_to_buffer(
        &self,
        source: &DispatchBuffer,
        source_offset: u64,
        destination: &DispatchBuffer,
        destination_offset: u64,
        copy_size: Option<u64>,
    ) {
        let copy = copy((source, source_offset), (destination, destination_offset), copy_size);
        self.commands.push(copy.unwrap_or_else(Command::Invalid));
    }

    fn copy_buffer_to_texture(
        &self,
        _: TexelCopyBufferInfo<'_>,
        _: TexelCopyTextureInfo<'_>,
        _: Extent3d,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn copy_texture_to_buffer(
        &self,
        _: TexelCopyTextureInfo<'_>,
        _: TexelCopyBufferInfo<'_>,
        _: Extent3d,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn copy_texture_to_texture(
        &self,
        _: TexelCopyTextureInfo<'_>,
        _: TexelCopyTextureInfo<'_>,
        _: Extent3d,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn begin_compute_pass(&self, _: &ComputePassDescriptor<'_>) -> DispatchComputePass {
        DispatchComputePass::custom(CudaPass {
            commands: self.commands.clone(),
            pipeline: None,
            group: None,
            immediates: [0; IMMEDIATE_BYTES],
        })
    }

    fn begin_render_pass(&self, _: &RenderPassDescriptor<'_>) -> DispatchRenderPass {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn finish(&mut self) -> DispatchCommandBuffer {
        DispatchCommandBuffer::custom(CudaCommandBuffer(Mutex::new(self.commands.take())))
    }

    fn clear_texture(&self, _: &DispatchTexture, _: &ImageSubresourceRange) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn clear_buffer(&self, buffer: &DispatchBuffer, offset: u64, size: Option<u64>) {
        let rest = || Some(buffer.as_custom::<CudaBuffer>()?.0.size.saturating_sub(offset));
        let bytes = size.or_else(rest).unwrap_or(0);
        let at = part(buffer, offset, bytes).map(|at| Command::Clear { at, bytes });
        self.commands.push(at.unwrap_or_else(Command::Invalid));
    }

    fn insert_debug_marker(&self, _: &str) {}

    fn push_debug_group(&self, _: &str) {}

    fn pop_debug_group(&self) {}

    fn write_timestamp(&self, _: &DispatchQuerySet, _: u32) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn resolve_query_set(&self, _: &DispatchQuerySet, _: u32, _: u32, _: &DispatchBuffer, _: u64) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn mark_acceleration_structures_built<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a Blas>,
        _: &mut dyn Iterator<Item = &'a Tlas>,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn build_acceleration_structures<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a BlasBuildEntry<'a>>,
        _: &mut dyn Iterator<Item = &'a Tlas>,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = TextureTransition<&'a DispatchTexture>>,
    ) {
        // Buffers have no states: all work is on one stream.
    }
}

/// A sequence of dispatches.
#[derive(Debug)]
struct CudaPass {
    commands: Commands,
    pipeline: Option<Arc<CompiledKernel>>,
    group: Option<CudaBindGroup>,
    immediates: [u8; IMMEDIATE_BYTES],
}

impl CudaPass {
    fn dispatch(&self, grid: [u32; 3]) -> Result<Command, String> {
        let kernel = self.pipeline.clone().ok_or("a dispatch without a kernel")?;
        let group = match &self.group {
            Some(group) => group.clone(),
            None if kernel.bindings.is_empty() => CudaBindGroup(Arc::default()),
            None => return Err("a dispatch without buffers".into()),
        };
        // The kernel's compiler relies on it that what is only read is not written.
        let is_bound = |(binding, is_written): &(u32, bool)| {
            let mut all = group.0.iter();
            all.any(|bound| bound.binding == *binding && bound.read_only != *is_written)
        };
        if !kernel.bindings.iter().all(is_bound) {
            return Err("a dispatch without one of the kernel's buffers, or one that only the layout or only the kernel writes".into());
        }
        if grid.iter().any(|blocks| *blocks > MAX_BLOCKS) {
            return Err(format!("a dispatch of {grid:?} workgroups"));
        }
        if kernel.immediate_bytes > IMMEDIATE_BYTES {
            return Err(format!("immediates of {} bytes", kernel.immediate_bytes));
        }
        Ok(Command::Dispatch { kernel, group, immediates: self.immediates, grid })
    }
}

impl ComputePassInterface for CudaPass {
    fn set_pipeline(&mut self, pipeline: &DispatchComputePipeline) {
        self.pipeline =
            pipeline.as_custom::<CudaPipeline>().and_then(|pipeline| pipeline.0.clone());
    }

    fn set_bind_group(&mut self, index: u32, group: Option<&DispatchBindGroup>, offsets: &[u32]) {
        if index != 0 || !offsets.is_empty() {
            let invalid = "a group of bindings that is not the first, or has dynamic offsets";
            return self.commands.push(Command::Invalid(invalid.into()));
        }
        self.group = group.and_then(|group| group.as_custom::<CudaBindGroup>().cloned());
    }

    fn set_immediates(&mut self, offset: u32, data: &[u8]) {
        let at = offset as usize;
        let end = at.checked_add(data.len());
        match end.and_then(|end| self.immediates.get_mut(at..end)) {
            Some(part) => part.copy_from_slice(data),
            None => {
                let invalid = format!("{} bytes of immediates from {at} on", data.len());
                self.commands.push(Command::Invalid(invalid));
            }
        }
    }

    fn insert_debug_marker(&mut self, _: &str) {}

    fn push_debug_group(&mut self, _: &str) {}

    fn pop_debug_group(&mut self) {}

    fn write_timestamp(&mut self, _: &DispatchQuerySet, _: u32) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn begin_pipeline_statistics_query(&mut self, _: &DispatchQuerySet, _: u32) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn end_pipeline_statistics_query(&mut self) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn dispatch_workgroups(&mut self, x: u32, y: u32, z: u32) {
        // wgpu allows a dispatch of nothing, CUDA does not.
        if x == 0 || y == 0 || z == 0 {
            return;
        }
        self.commands.push(self.dispatch([x, y, z]).unwrap_or_else(Command::Invalid));
    }

    fn dispatch_workgroups_indirect(&mut self, _: &DispatchBuffer, _: u64) {
        self.commands.push(Command::Invalid("an indirect dispatch".into()));
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = TextureTransition<&'a DispatchTextureView>>,
    ) {
    }
}

// wgpu requires it of passes.
impl Drop for CudaPass {
    fn drop(&mut self) {}
}

/// Checks that a device may run commands: all are right, and what they use is the device's and not
/// mapped. It is called under the lock of the device's work.
///
/// # Errors
/// With what is wrong.
pub(super) fn check(commands: &[Command], device: &Arc<Inner>) -> Result<(), String> {
    let is_own =
        |buffer: &Arc<BufferInner>| Arc::ptr_eq(&buffer.device, device) && buffer.is_free();
    for command in commands {
        let is_right = match command {
            Command::Invalid(what) => return Err(what.clone()),
            Command::Dispatch { kernel, group, .. } => {
                Arc::ptr_eq(&kernel.context, &device.context)
                    && group.0.iter().all(|bound| is_own(&bound.buffer))
            }
            Command::Copy { from, to, .. } => is_own(&from.buffer) && is_own(&to.buffer),
            Command::Clear { at, .. } => is_own(&at.buffer),
        };
        if !is_right {
            return Err("a buffer is mapped, or something is of another device".into());
        }
    }
    Ok(())
}

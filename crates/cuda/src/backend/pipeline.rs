//! Shaders, pipelines, and what is bound to them.

use super::buffer::{BufferInner, CudaBuffer};
use super::device::Inner;
use crate::driver::{Context, Kernel};
use crate::nvrtc::OPTIONS;
use crate::translate::Translation;
use std::collections::HashMap;
use std::future::ready;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::custom::{
    BindGroupInterface, BindGroupLayoutInterface, ComputePipelineInterface,
    DispatchBindGroupLayout, PipelineCacheInterface, PipelineLayoutInterface,
    ShaderCompilationInfoFuture, ShaderModuleInterface,
};
use wgpu::{
    BindGroupDescriptor, BindGroupLayoutDescriptor, BindingResource, BindingType,
    BufferBindingType, CompilationInfo,
};

/// A shader. `None` if it could not be translated, which was reported.
#[derive(Debug)]
pub(super) struct CudaShader(pub(super) Option<Translation>);

impl ShaderModuleInterface for CudaShader {
    fn get_compilation_info(&self) -> Pin<Box<dyn ShaderCompilationInfoFuture>> {
        Box::pin(ready(CompilationInfo { messages: Vec::new() }))
    }
}

/// The bindings that are read only.
#[derive(Clone, Debug)]
pub(super) struct CudaBindGroupLayout(Arc<HashMap<u32, bool>>);

impl CudaBindGroupLayout {
    /// Returns the layout. `None` if something else than whole storage buffers is bound.
    pub(super) fn new(descriptor: &BindGroupLayoutDescriptor<'_>) -> Option<Self> {
        let entries = descriptor.entries.iter().map(|entry| match entry.ty {
            BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                ..
            } if entry.count.is_none() => Some((entry.binding, read_only)),
            _ => None,
        });
        Some(Self(Arc::new(entries.collect::<Option<_>>()?)))
    }

    pub(super) fn empty() -> Self {
        Self(Arc::default())
    }
}

impl BindGroupLayoutInterface for CudaBindGroupLayout {}

/// Bound buffers. They stay destroyed if they are.
#[derive(Clone, Debug)]
pub(super) struct CudaBindGroup(pub(super) Arc<Vec<BoundBuffer>>);

#[derive(Debug)]
pub(super) struct BoundBuffer {
    pub(super) binding: u32,
    /// Whether kernels only read it.
    pub(super) read_only: bool,
    pub(super) buffer: Arc<BufferInner>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl CudaBindGroup {
    /// Returns the bound buffers.
    ///
    /// # Errors
    /// With what is wrong, if they do not fit the layout. A buffer that is read only is not also
    /// written: the kernel's compiler relies on it.
    pub(super) fn new(descriptor: &BindGroupDescriptor<'_>) -> Result<Self, &'static str> {
        let layout = descriptor.layout.as_custom::<CudaBindGroupLayout>();
        let layout = layout.ok_or("a layout of another backend")?;
        let mut bound: Vec<BoundBuffer> = Vec::new();
        for entry in descriptor.entries {
            let BindingResource::Buffer(ref part) = entry.resource else {
                return Err("only buffers can be bound");
            };
            let buffer =
                part.buffer.as_custom::<CudaBuffer>().ok_or("a buffer of another backend")?;
            let left = buffer
                .0
                .size
                .checked_sub(part.offset)
                .ok_or("an offset after the end of a buffer")?;
            let bytes = part.size.map_or(left, std::num::NonZeroU64::get);
            if bytes > left || !part.offset.is_multiple_of(256) {
                return Err("a part that is not in its buffer, or not aligned");
            }
            let read_only =
                *layout.0.get(&entry.binding).ok_or("a binding that is not in the layout")?;
            let is_conflict = |other: &BoundBuffer| {
                Arc::ptr_eq(&other.buffer, &buffer.0) && read_only != other.read_only
            };
            if bound.iter().any(is_conflict) {
                return Err("a buffer is read only and written in one kernel");
            }
            bound.push(BoundBuffer {
                binding: entry.binding,
                read_only,
                buffer: Arc::clone(&buffer.0),
                offset: part.offset,
                bytes,
            });
        }
        Ok(Self(Arc::new(bound)))
    }
}

impl BindGroupInterface for CudaBindGroup {}

/// What a pipeline may bind. Dispatches compare what is bound with the kernel.
#[derive(Debug)]
pub(super) struct CudaPipelineLayout;

impl PipelineLayoutInterface for CudaPipelineLayout {}

/// A compiled kernel. `None` if it could not be compiled, which was reported.
#[derive(Clone, Debug)]
pub(super) struct CudaPipeline(pub(super) Option<Arc<CompiledKernel>>);

#[derive(Debug)]
pub(super) struct CompiledKernel {
    /// The device that has it.
    pub(super) context: Arc<dyn Context>,
    pub(super) kernel: Kernel,
    pub(super) threads: u32,
    /// The bindings in the order of the kernel's parameters, and whether each is written.
    pub(super) bindings: Vec<(u32, bool)>,
    pub(super) immediate_bytes: usize,
}

impl CudaPipeline {
    /// Compiles a kernel, or takes its code from a cache.
    pub(super) fn new(
        device: &Inner,
        shader: &CudaShader,
        cache: Option<&CudaPipelineCache>,
    ) -> Self {
        let Some(translation) = &shader.0 else { return Self(None) };
        let key = key(&translation.cuda_source());
        let known = cache.and_then(|cache| cache.code(key));
        match device.context.load(translation, known.as_deref().map(Vec::as_slice)) {
            Ok((kernel, code)) => {
                if let Some(cache) = cache {
                    cache.add(key, code);
                }
                Self(Some(Arc::new(CompiledKernel {
                    context: Arc::clone(&device.context),
                    kernel,
                    threads: translation.threads,
                    bindings: translation.bindings.clone(),
                    immediate_bytes: translation.immediate_bytes as usize,
                })))
            }
            Err(error) => {
                let description = format!("a kernel cannot be compiled: {error}");
                let source = description.clone().into();
                device.errors.report(wgpu::Error::Internal { source, description });
                Self(None)
            }
        }
    }
}

impl ComputePipelineInterface for CudaPipeline {
    fn get_bind_group_layout(&self, _: u32) -> DispatchBindGroupLayout {
        DispatchBindGroupLayout::custom(CudaBindGroupLayout::empty())
    }
}

/// Returns a number for a kernel's source and the options of its compilation.
fn key(source: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (source, OPTIONS).hash(&mut hasher);
    hasher.finish()
}

/// The code of compiled kernels, by their sources.
#[derive(Debug, Default)]
pub(super) struct CudaPipelineCache(Mutex<HashMap<u64, Arc<Vec<u8>>>>);

impl CudaPipelineCache {
    /// Returns a cache with data of an earlier one. Data that end early are used as far as they go.
    pub(super) fn with_data(mut data: &[u8]) -> Self {
        let mut codes = HashMap::new();
        while let Some((head, rest)) = data.split_at_checked(16) {
            let number = |at: usize| {
                head[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
            };
            let Ok(length) = usize::try_from(number(8)) else { break };
            let Some((code, rest)) = rest.split_at_checked(length) else { break };
            codes.insert(number(0), Arc::new(code.to_vec()));
            data = rest;
        }
        Self(Mutex::new(codes))
    }

    fn code(&self, key: u64) -> Option<Arc<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn add(&self, key: u64, code: Vec<u8>) {
        if !code.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(code));
        }
    }
}

impl PipelineCacheInterface for CudaPipelineCache {
    fn get_data(&self) -> Option<Vec<u8>> {
        let codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = Vec::new();
        for (key, code) in &*codes {
            data.extend(key.to_le_bytes());
            data.extend((code.len() as u64).to_le_bytes());
            data.extend(&**code);
        }
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_the_code_of_an_earlier_one() {
        let cache = CudaPipelineCache::default();
        cache.add(7, vec![1, 2, 3]);
        cache.add(1 << 60, vec![4]);
        cache.add(9, Vec::new());
        let data = cache.get_data().unwrap_or_default();
        let code = |data: &[u8], key| {
            CudaPipelineCache::with_data(data).code(key).map(|code| code.to_vec())
        };
        assert_eq!(code(&data, 7), Some(vec![1, 2, 3]));
        assert_eq!(code(&data, 1 << 60), Some(vec![4]));
        assert_eq!(code(&data, 9), None);
        for length in 0..data.len() {
            let all = [7, 1 << 60].map(|key| code(&data[..length], key));
            assert!(all.contains(&None), "the last one is not complete");
        }
    }
}

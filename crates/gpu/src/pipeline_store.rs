//! Compiled pipelines on disk, so that drivers need not compile them when a process starts.
//!
//! A file holds the pipelines of one kind of GPU. Its first line says which version of this crate wrote it; a checksum follows,
//! then the driver's data. A file that another version wrote, or that is damaged, is as good as none. It is read once, when a
//! GPU is opened, and written whole and under its name at once, so processes may share it: the last one wins.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use wgpu::{AdapterInfo, Device, Features, PipelineCache, PipelineCacheDescriptor};

/// What a file begins with.
const FIRST_LINE: &str = concat!("forerun pipelines ", env!("CARGO_PKG_VERSION"), "\n");

/// The environment variable with the folder of the files; 0 for none.
const FOLDER: &str = "FORERUN_GPU_CACHE";

/// The pipelines of a GPU, which are also in a file.
pub(crate) struct PipelineStore {
    pub(crate) cache: PipelineCache,
    file: PathBuf,
    /// Number of pipelines that were built, and of those that were built when the file was last written.
    built: Mutex<Built>,
}

#[derive(Clone, Copy, Default)]
struct Built {
    /// Pipelines that were built since the GPU was opened.
    all: usize,
    /// Those of them that were built when the last pass ended.
    seen: usize,
    /// Those of them that are in the file.
    stored: usize,
}

impl PipelineStore {
    /// Opens the store of a GPU in a folder. `None` if its driver cannot give its pipelines away.
    pub(crate) fn open(device: &Device, adapter: &AdapterInfo, folder: PathBuf) -> Option<Self> {
        if !device.features().contains(Features::PIPELINE_CACHE) {
            return None;
        }
        let mut file = folder;
        file.push(wgpu::util::pipeline_cache_key(adapter)?);
        let data = fs::read(&file).ok();
        let data = data.as_deref().and_then(driver_data);
        let descriptor = PipelineCacheDescriptor { label: None, data, fallback: true };
        // SAFETY: the checksum says that these are the bytes that `store` has got from a driver. wgpu and the driver check
        // that it was the same one.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { cache, file, built: Mutex::default() })
    }

    /// Notes that a pipeline was built.
    pub(crate) fn add(&self) {
        self.built.lock().unwrap_or_else(PoisonError::into_inner).all += 1;
    }

    /// Writes the file if pipelines were built, but none since the last call: so it is written rarely.
    pub(crate) fn end_pass(&self) {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if built.all > built.seen {
            built.seen = built.all;
        } else if built.all > built.stored {
            built.stored = built.all;
            self.store();
        }
    }

    /// Writes the file. Without it, the next process only starts more slowly, so errors are ignored.
    fn store(&self) {
        let (Some(data), Some(folder)) = (self.cache.get_data(), self.file.parent()) else {
            return;
        };
        let mut bytes = FIRST_LINE.as_bytes().to_vec();
        bytes.extend(checksum(&data).to_le_bytes());
        bytes.extend(data);
        let _ = fs::create_dir_all(folder).and_then(|()| forerun_output::write(&self.file, &bytes));
    }
}

impl Drop for PipelineStore {
    fn drop(&mut self) {
        let built = *self.built.get_mut().unwrap_or_else(PoisonError::into_inner);
        if built.all > built.stored {
            self.store();
        }
    }
}

/// Returns a driver's data in a file; `None` if another version wrote it, or it is damaged.
fn driver_data(file: &[u8]) -> Option<&[u8]> {
    let (sum, data) = file.strip_prefix(FIRST_LINE.as_bytes())?.split_first_chunk()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

/// Returns a number that changes with the bytes (FNV-1a). It finds damage, not malice.
fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Returns the folder of the files: that of the environment variable, or `forerun/pipelines` in the user's folder of caches.
/// `None` if the variable is 0, or there is no such folder. Drivers that compute on the processor only use that of the variable.
pub(crate) fn folder_from_environment(is_software: bool) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable(FOLDER) {
        return (folder != "0").then(|| folder.into());
    }
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("LOCALAPPDATA"));
    let caches = caches.or_else(|| Some(absolute("HOME")?.join(".cache")));
    caches.filter(|_| !is_software).map(|caches| caches.join("forerun").join("pipelines"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_have_no_data() {
        let data = b"what a driver gives away";
        let sum = checksum(data).to_le_bytes();
        let whole = [FIRST_LINE.as_bytes(), &sum[..], &data[..]].concat();
        assert_eq!(driver_data(&whole), Some(&data[..]));
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 4;
            assert_eq!(driver_data(&damaged), None, "byte {byte}");
            assert_eq!(driver_data(&whole[..byte]), None, "{byte} bytes");
        }
        let older = [b"forerun pipelines 0.0.0\n", &whole[FIRST_LINE.len()..]].concat();
        assert_eq!(driver_data(&older), None);
    }
}

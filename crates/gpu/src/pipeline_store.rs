//! Compiled pipelines on disk, so that drivers need not compile them when a process starts.
//!
//! A file holds the pipelines of one kind of GPU. Its first line says which version of this crate
//! wrote it; a checksum follows, then the driver's data. A file that another version wrote, or that
//! is damaged, is as good as none. It is read once, when a GPU is opened, and written whole and
//! under its name at once, so processes may share it. Two that run different models may overwrite
//! each other's pipelines.
//!
//! The checksum is there because drivers trust what they get back, and damaged data may crash them.
//! Drivers that compute on the processor have no file unless one is asked for: lavapipe gives away
//! a header without code.

use crate::closing::begin_call;
use crate::cuda;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wgpu::{AdapterInfo, Device, ErrorFilter, Features, PipelineCache, PipelineCacheDescriptor};

/// What a file begins with.
const FIRST_LINE: &str = concat!("forerun pipelines ", env!("CARGO_PKG_VERSION"), "\n");

/// Bytes before the driver's data.
const HEADER_BYTES: usize = FIRST_LINE.len() + size_of::<u64>();

/// The environment variable with the folder of the files; 0 for none.
const FOLDER: &str = "FORERUN_GPU_CACHE";

/// The largest size of a file. A process that has more pipelines removes it, and the next one
/// begins anew.
const MAX_BYTES: u64 = 64 << 20;

/// The file is written again after this time at the earliest, except when the GPU is dropped.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// The pipelines of a GPU, which are also in a file.
pub(crate) struct PipelineStore {
    pub(crate) cache: PipelineCache,
    file: PathBuf,
    built: Mutex<Built>,
}

/// Counts pipelines, and knows which of them are in the file.
#[derive(Default)]
struct Built {
    /// Pipelines that were built since the GPU was opened.
    all: usize,
    /// Those of them that were built when the last pass ended.
    seen: usize,
    /// Those of them that are in the file.
    stored: usize,
    /// When the file was last written.
    written: Option<Instant>,
    /// The thread that writes the file.
    writer: Option<JoinHandle<()>>,
}

impl Built {
    /// Notes the end of a pass. Returns whether the file should be written: if pipelines were built
    /// that are not in it, but none in this pass.
    fn end_pass(&mut self) -> bool {
        if self.all > self.seen {
            self.seen = self.all;
            return false;
        }
        let is_due = self.written.is_none_or(|written| written.elapsed() >= WRITE_INTERVAL);
        let is_writing = self.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if self.all == self.stored || !is_due || is_writing {
            return false;
        }
        self.stored = self.all;
        self.written = Some(Instant::now());
        true
    }
}

impl PipelineStore {
    /// Opens the store of a GPU in a folder. `None` if its driver cannot give its pipelines away.
    pub(crate) fn open(device: &Device, adapter: &AdapterInfo, folder: &Path) -> Option<Self> {
        if !device.features().contains(Features::PIPELINE_CACHE) {
            return None;
        }
        let key = cuda::cache_key(device).or_else(|| wgpu::util::pipeline_cache_key(adapter));
        let file = folder.join(key?);
        let create = |data: Option<&[u8]>| {
            let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
            let validation = device.push_error_scope(ErrorFilter::Validation);
            let descriptor = PipelineCacheDescriptor { label: None, data, fallback: true };
            let call = begin_call();
            // SAFETY: the checksum says that these are the bytes that a process has got from a
            // driver. wgpu and the driver check that it was the same one.
            let cache = unsafe { device.create_pipeline_cache(&descriptor) };
            drop(call);
            let refused = pollster::block_on(validation.pop());
            let failed = refused.or(pollster::block_on(memory.pop()));
            failed.is_none().then_some(cache)
        };
        let cache = open_cache(&file, create)?;
        Some(Self { cache, file, built: Mutex::default() })
    }

    /// Notes that a pipeline was built.
    pub(crate) fn add(&self) {
        self.lock().all += 1;
    }

    /// Writes the file on a thread of its own, if pipelines were built, but none since the last
    /// call: so it is written rarely, and passes do not wait for the disk.
    pub(crate) fn end_pass(&self) {
        if !self.lock().end_pass() {
            return;
        }
        let Some(data) = self.cache.get_data() else { return };
        let file = self.file.clone();
        let writer = std::thread::Builder::new().name("forerun-pipelines".into());
        // Without a thread, the file is written when the GPU is dropped.
        match writer.spawn(move || write(&file, &data)) {
            Ok(writer) => self.lock().writer = Some(writer),
            Err(_) => self.lock().stored = 0,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Built> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PipelineStore {
    fn drop(&mut self) {
        let built = self.built.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A write that has failed only costs time.
        let _ = built.writer.take().map(JoinHandle::join);
        if built.all > built.stored
            && let Some(data) = self.cache.get_data()
        {
            write(&self.file, &data);
        }
    }
}

/// Creates a cache of pipelines with the data of a file. If the driver refuses them, or there is no
/// file that fits, it is empty. `None` if there is no memory for it.
fn open_cache<C>(file: &Path, create: impl Fn(Option<&[u8]>) -> Option<C>) -> Option<C> {
    let is_small = fs::metadata(file).is_ok_and(|file| file.len() <= MAX_BYTES);
    let bytes = is_small.then(|| fs::read(file).ok()).flatten();
    match bytes.as_deref().and_then(driver_data) {
        Some(data) => create(Some(data)).or_else(|| create(None)),
        None => create(None),
    }
}

/// Writes a driver's data to a file. Without it, the next process only starts more slowly, so
/// errors are ignored.
fn write(file: &Path, data: &[u8]) {
    if (HEADER_BYTES + data.len()) as u64 > MAX_BYTES {
        let _ = fs::remove_file(file);
        return;
    }
    let mut bytes = FIRST_LINE.as_bytes().to_vec();
    bytes.extend(checksum(data).to_le_bytes());
    bytes.extend(data);
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    let _ = folder.and_then(|()| forerun_output::write(file, &bytes));
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

/// Returns the folder of the files: that of the environment variable, or `forerun/pipelines` in the
/// user's folder of caches. `None` if the variable is 0, or there is no such folder. Drivers that
/// compute on the processor only use that of the variable.
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
    use std::cell::RefCell;

    #[test]
    fn a_cache_is_created_with_the_data_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a new folder").join("pipelines");
        let seen = RefCell::new(Vec::new());
        // A driver that refuses data that begin with x, and has memory for so many bytes.
        let open = |most: usize| {
            seen.take();
            open_cache(&file, |data| {
                seen.borrow_mut().push(data.map(<[u8]>::to_vec));
                let is_right = data.is_none_or(|data| !data.starts_with(b"x"));
                (is_right && data.map_or(1, <[u8]>::len) <= most).then_some(())
            })
        };
        assert_eq!((open(100), seen.take()), (Some(()), vec![None]));
        write(&file, b"code");
        assert_eq!((open(100), seen.take()), (Some(()), vec![Some(b"code".to_vec())]));
        write(&file, b"x");
        assert_eq!((open(100), seen.take()), (Some(()), vec![Some(b"x".to_vec()), None]));
        assert_eq!((open(0), seen.take()), (None, vec![Some(b"x".to_vec()), None]));
        fs::write(&file, b"x").unwrap();
        assert_eq!((open(100), seen.take()), (Some(()), vec![None]));
    }

    #[test]
    fn large_files_begin_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pipelines");
        let read = || open_cache(&file, |data| Some(data.map_or(0, <[u8]>::len)));
        write(&file, b"code");
        assert_eq!(read(), Some(4));
        write(&file, &vec![7; MAX_BYTES as usize - HEADER_BYTES + 1]);
        assert!(!file.exists());
        // A file that is too large is not even read.
        write(&file, b"code");
        fs::File::options().write(true).open(&file).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(read(), Some(0));
    }

    #[test]
    fn the_file_is_written_rarely() {
        let mut built = Built { all: 3, ..Built::default() };
        assert_eq!([(); 3].map(|()| built.end_pass()), [false, true, false]);
        built.all = 4;
        assert_eq!([(); 3].map(|()| built.end_pass()), [false; 3], "within a minute");
        built.written = Instant::now().checked_sub(WRITE_INTERVAL);
        assert_eq!([(); 2].map(|()| built.end_pass()), [true, false]);
    }

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

//! Pages of caches in a folder, which later processes find again.
//!
//! Each page, and each state of recurrent layers, is a file of its own, in a folder for each first
//! byte of its name, which only its owner can read. A thread writes them, so that answers do not
//! wait; files appear as a whole, and a checksum finds those that a crash broke. Several processes
//! can use a folder at the same time. The time of a file's last change says when it was last used:
//! the oldest are removed once the budget is used up.

use crate::error::ForerunError;
use crate::model_source::ModelSource;
use crate::open_model::OpenModel;
use crate::ranks::Fingerprint;
use forerun_cache::{PageName, PageStore};
use forerun_cpu::{ARITHMETIC, Isa};
use forerun_formats::FeatureSource;
use forerun_model::{CachedTransformer, Forward};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

/// The budget of a folder in bytes, unless another one is set.
pub(crate) const DEFAULT_FOLDER_BYTES: usize = 10 << 30;

/// What a file starts with. The last two digits are the version of the format.
const MAGIC: &[u8; 16] = b"forerun page 01\n";

/// The bytes before a file's content: the magic, and a checksum of the name and the content.
const HEADER: usize = MAGIC.len() + 32;

/// The most bytes that wait for the disk, apart from a larger page alone. Further pages are not
/// kept.
const QUEUE_BYTES: usize = 256 << 20;

/// Of pages that are used together, each later one counts as used so much earlier: without those
/// before it, it is of no use.
const EARLIER_PER_PAGE: Duration = Duration::from_millis(1);

/// A [`PageStore`] in a folder. Dropped, it writes what waits.
pub(crate) struct PageFolder {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    queue: Option<Sender<Waiting>>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    folder: PathBuf,
    budget: u64,
    queued: Mutex<Queued>,
    has_warned: [AtomicBool; 4],
    /// Once a file was broken: those that are known to be whole.
    whole: Mutex<Option<HashSet<PageName>>>,
}

/// What is in the queue: names, and the bytes of their contents.
#[derive(Default)]
struct Queued {
    names: HashSet<PageName>,
    bytes: usize,
}

/// What a warning is about. There is one of each.
#[derive(Clone, Copy)]
enum Trouble {
    Read,
    Write,
    Queue,
    Model,
}

/// The pages of one model in a folder.
#[derive(Clone)]
pub(crate) struct ModelPages {
    folder: Arc<PageFolder>,
    model: ModelSource,
    /// Identifies the model's weights, features and arithmetic.
    weights: Arc<str>,
}

impl ModelPages {
    /// Names the pages of a model, which was opened as `name` and keeps these features.
    ///
    /// # Errors
    /// If its files cannot be read, or `FORERUN_ISA` is wrong.
    pub(crate) fn new(
        folder: &Arc<PageFolder>,
        (name, model): (&ModelSource, &OpenModel),
        features: Option<&FeatureSource>,
    ) -> Result<Self, ForerunError> {
        let weights = match name {
            ModelSource::Embedded(model) => model.name.to_owned(),
            _ => {
                let Fingerprint { content, changed } = Fingerprint::of(model.checkpoint.path())?;
                format!("{content} {changed:?}")
            }
        };
        let (isa, version) = (Isa::from_environment()?, env!("CARGO_PKG_VERSION"));
        let weights = format!("{MAGIC:?} {version} {ARITHMETIC} {isa} {weights} {features:?}");
        let folder = Arc::clone(folder);
        Ok(Self { folder, model: name.clone(), weights: weights.into() })
    }

    /// Returns the model with its pages.
    ///
    /// # Errors
    /// If its first pass fails.
    pub(crate) fn of<F: Forward>(
        &self,
        model: CachedTransformer<F>,
    ) -> Result<CachedTransformer<F>, String> {
        let folder = Arc::clone(&self.folder);
        let model = model.with_store(folder, &self.weights).map_err(|error| error.to_string())?;
        if !model.pool().has_store() {
            self.folder.warn_of(&self.model);
        }
        Ok(model)
    }
}

/// A file that is to be written, with an empty checksum.
struct Waiting {
    name: PageName,
    number: usize,
    bytes: Vec<u8>,
}

impl PageFolder {
    /// Opens a folder, which is created if it does not exist, and starts its thread.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub(crate) fn open(folder: &Path, budget: usize) -> Result<Self, ForerunError> {
        let error = |cause| ForerunError::CacheDir { path: folder.to_owned(), cause };
        create_folder(folder).map_err(error)?;
        tempfile::tempfile_in(folder).map_err(error)?;
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            budget: budget as u64,
            queued: Mutex::default(),
            has_warned: [const { AtomicBool::new(false) }; 4],
            whole: Mutex::default(),
        });
        let (queue, waiting) = mpsc::channel();
        let writer = Arc::clone(&shared);
        let thread = thread::Builder::new().name("cache-dir".into());
        let writer = thread.spawn(move || writer.write_all(&waiting)).map_err(error)?;
        Ok(Self { shared, queue: Some(queue), writer: Some(writer) })
    }

    /// Warns of a model that has no pages here.
    pub(crate) fn warn_of(&self, model: &ModelSource) {
        let message = format!(
            "nothing is kept of {model}: encoders, drafters on GPUs or on a target's hidden states, \
             and contexts of less than a page have none"
        );
        self.shared.warn(Trouble::Model, &message);
    }
}

impl Drop for PageFolder {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}

impl PageStore for PageFolder {
    fn touch(&self, name: PageName, number: usize) -> bool {
        let path = self.shared.path(name);
        touch(&path, number) && self.shared.is_trusted(&path, name)
    }

    fn load(&self, name: PageName, parts: &mut [&mut [u8]]) -> bool {
        let path = self.shared.path(name);
        let loaded = read(&path, name, parts);
        if let Err(error) = &loaded
            && self.shared.remove_broken(&path, error)
        {
            lock(&self.shared.whole).get_or_insert_default().remove(&name);
        }
        loaded.is_ok()
    }

    fn save(&self, name: PageName, number: usize, parts: &[&mut [u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let new = (HEADER + len) as u64;
        if new > self.shared.room() {
            let message = format!("{new} bytes do not fit in {}", self.shared.budget);
            return self.shared.warn(Trouble::Write, &message);
        }
        let mut queued = lock(&self.shared.queued);
        if queued.names.contains(&name) {
            return;
        }
        if queued.bytes > 0 && queued.bytes + len > QUEUE_BYTES {
            let message = "the disk is too slow, so some pages are not kept";
            return self.shared.warn(Trouble::Queue, message);
        }
        queued.names.insert(name);
        queued.bytes += len;
        drop(queued);
        let mut bytes = Vec::with_capacity(HEADER + len);
        bytes.extend(MAGIC);
        bytes.resize(HEADER, 0);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let waiting = Waiting { name, number, bytes };
        // The thread ends only after the queue.
        drop(self.queue.as_ref().map(|queue| queue.send(waiting)));
    }
}

impl Shared {
    /// Returns the path of a file: two digits, a folder, and the others.
    fn path(&self, name: PageName) -> PathBuf {
        let digits: String = name.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (folder, file) = digits.split_at(2);
        self.folder.join(folder).join(file)
    }

    /// Returns the bytes that the files may have after the oldest were removed.
    fn room(&self) -> u64 {
        self.budget - self.budget / 16
    }

    /// Warns once: a broken disk or a copied folder has many broken files.
    fn warn(&self, trouble: Trouble, message: &str) {
        if !self.has_warned[trouble as usize].swap(true, Ordering::Relaxed) {
            tracing::warn!("cache-dir: {message}; there are no more warnings of this kind");
        }
    }

    /// Removes a file if this error of reading it says that it is broken. Returns whether it is.
    fn remove_broken(&self, path: &Path, error: &io::Error) -> bool {
        let is_broken =
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
        if is_broken {
            self.warn(Trouble::Read, &format!("{} is removed: {error}", path.display()));
            drop(fs::remove_file(path));
        } else if error.kind() != io::ErrorKind::NotFound {
            self.warn(Trouble::Read, &format!("cannot read {}: {error}", path.display()));
        }
        is_broken
    }

    /// Whether a file may be counted on. Where one was broken, others may be as well, so each is
    /// read once and removed if it is. Otherwise it would never be written again.
    fn is_trusted(&self, path: &Path, name: PageName) -> bool {
        let mut whole = lock(&self.whole);
        let Some(whole) = &mut *whole else { return true };
        if whole.contains(&name) {
            return true;
        }
        match read_whole(path, name) {
            Ok(()) => whole.insert(name),
            Err(error) => {
                self.remove_broken(path, &error);
                false
            }
        }
    }

    /// Writes what comes through the queue, within the budget.
    fn write_all(&self, waiting: &Receiver<Waiting>) {
        let mut used = self.remove_oldest(self.budget);
        let mut unseen = 0;
        for Waiting { name, number, mut bytes } in waiting {
            let mut queued = lock(&self.queued);
            queued.names.remove(&name);
            queued.bytes -= bytes.len() - HEADER;
            drop(queued);
            let path = self.path(name);
            // Several models of a process may have computed it at the same time.
            if touch(&path, number) {
                continue;
            }
            let new = bytes.len() as u64;
            // Other processes write as well.
            if used + new > self.budget || unseen > self.budget / 16 {
                (used, unseen) = (self.remove_oldest(self.room() - new), 0);
            }
            let checksum = Sha256::new_with_prefix(name.0).chain_update(&bytes[HEADER..]);
            let checksum: [u8; 32] = checksum.finalize().into();
            bytes[MAGIC.len()..HEADER].copy_from_slice(&checksum);
            match write(&path, &bytes) {
                Ok(()) => {
                    touch(&path, number);
                    (used, unseen) = (used + new, unseen + new);
                }
                Err(error) => {
                    let message = format!("cannot write {}: {error}", path.display());
                    self.warn(Trouble::Write, &message);
                }
            }
        }
    }

    /// Removes the files that were not used for the longest time until the others have at most
    /// `budget` bytes. Returns how many they have.
    fn remove_oldest(&self, budget: u64) -> u64 {
        let mut files: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for folder in (0..=u8::MAX).map(|byte| self.folder.join(format!("{byte:02x}"))) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Ok(metadata) = entry.metadata()
                    && metadata.is_file()
                    && is_own(&entry.file_name().to_string_lossy())
                    && let Ok(used) = metadata.modified()
                {
                    files.push((used, entry.path(), metadata.len()));
                }
            }
        }
        files.sort();
        let mut all: u64 = files.iter().map(|(_, _, len)| len).sum();
        for (_, path, len) in files {
            if all <= budget {
                break;
            }
            if fs::remove_file(path).is_ok() {
                all -= len;
            }
        }
        all
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a folder for its owner alone: prompts can be recovered from keys and values.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// Writes a file as a whole. It need not survive a crash of the system.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    create_folder(folder)?;
    let mut file = tempfile::Builder::new().prefix(".").suffix(".partial").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Whether a file has the name of a page, or of one that was not completed.
fn is_own(name: &str) -> bool {
    let is_hex = |name: &str| name.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.len() == 62 && is_hex(name) || name.starts_with('.') && name.ends_with(".partial")
}

/// Notes that a file is in use. Returns whether there is one.
fn touch(path: &Path, number: usize) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let earlier = EARLIER_PER_PAGE * u32::try_from(number).unwrap_or(u32::MAX);
    // Where this is not allowed, pages are removed in the order in which they were written.
    drop(SystemTime::now().checked_sub(earlier).map(|used| file.set_modified(used)));
    true
}

/// Reads the content of a file.
fn read(path: &Path, name: PageName, parts: &mut [&mut [u8]]) -> io::Result<()> {
    let mut file = File::open(path)?;
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if file.metadata()?.len() != (HEADER + len) as u64 {
        return Err(broken("it has another size than a page of this model"));
    }
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    for part in parts.iter_mut() {
        file.read_exact(part)?;
    }
    check(&header, name, parts.iter().map(|part| &**part))
}

/// Checks the content of a file.
fn read_whole(path: &Path, name: PageName) -> io::Result<()> {
    let bytes = fs::read(path)?;
    match bytes.split_at_checked(HEADER) {
        Some((header, content)) => check(header, name, [content]),
        None => Err(broken("it has no header")),
    }
}

/// Checks that a content is what was saved under its name.
fn check<'a>(
    header: &[u8],
    name: PageName,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let (magic, checksum) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(broken("it has another format"));
    }
    let mut hash = Sha256::new_with_prefix(name.0);
    parts.into_iter().for_each(|part| hash.update(part));
    let found: [u8; 32] = hash.finalize().into();
    if found != *checksum {
        return Err(broken("its checksum is wrong"));
    }
    Ok(())
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

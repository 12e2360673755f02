//! One file from the hub into the cache, where it appears once it is whole and right.

use super::FetchError;
use super::cache::{Place, create_folder_of};
use super::client::{Client, Description};
use super::error::HubError;
use super::model_id::ModelId;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 18;

/// A file to fetch.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    pub(super) place: &'a Place,
    pub(super) id: &'a ModelId,
    /// Its name in the repository.
    pub(super) name: &'a str,
    pub(super) file: &'a Description,
}

/// The part of a file that is here, and its hashes so far.
struct Partial {
    file: File,
    done: u64,
    hashes: Hashes,
}

/// The hashes that a file's ETag may be; none where it is no hash.
struct Hashes(Vec<(&'static str, Context)>);

impl Hashes {
    fn new(file: &Description) -> Self {
        let sha1 = || Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        Self(match file.hash_digits() {
            Some(64) => vec![("its SHA-256", Context::new(&SHA256))],
            // Git's has a header in front; some mirrors tell the content's own.
            Some(40) => {
                let mut git = sha1();
                git.update(format!("blob {}\0", file.size).as_bytes());
                vec![("its SHA-1", git), ("its SHA-1", sha1())]
            }
            _ => Vec::new(),
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, hash)| hash.update(bytes));
    }

    /// The first hash with its name, unless one of them is as expected, or there is none.
    fn mismatch(self, expected: &str) -> Option<(&'static str, String)> {
        let digits = |(name, hash): (_, Context)| {
            let bytes = hash.finish();
            (name, bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        };
        let found: Vec<_> = self.0.into_iter().map(digits).collect();
        let is_right = found.iter().any(|(_, hash)| hash.eq_ignore_ascii_case(expected));
        found.into_iter().next().filter(|_| !is_right)
    }
}

impl Transfer<'_> {
    /// Fetches what is missing of the file, going on where an earlier run ended, and checks its size
    /// and, where the hub tells one, its hash. `report` sees the bytes that are here and may end
    /// the transfer.
    pub(super) fn run(
        &self,
        mut report: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), FetchError> {
        let etag = &self.file.etag;
        let _lock = self.place.lock(etag)?;
        let blob = self.place.blob(etag);
        // An older commit has the same file, or another process has just fetched it.
        if fs::metadata(&blob).is_ok_and(|found| found.len() == self.file.size) {
            return Ok(());
        }
        let mut partial = self.open()?;
        if partial.done < self.file.size {
            self.receive(&mut partial, &mut report)?;
        }
        let Partial { file, hashes, .. } = partial;
        if let Some((what, found)) = hashes.mismatch(etag) {
            return Err(self.damaged(what, found, etag.clone()).into());
        }
        let keep = || {
            file.sync_all()?;
            fs::rename(self.place.partial(etag), &blob)
        };
        Ok(keep().map_err(|cause| HubError::Cache { path: blob.clone(), cause })?)
    }

    /// What an earlier run left, or nothing.
    fn open(&self) -> Result<Partial, HubError> {
        let path = self.place.partial(&self.file.etag);
        let open = || {
            create_folder_of(&path)?;
            let mut file = File::options().read(true).append(true).create(true).open(&path)?;
            if file.metadata()?.len() > self.file.size {
                file.set_len(0)?;
            }
            let (mut hashes, mut done) = (Hashes::new(self.file), 0);
            let mut buffer = vec![0; CHUNK];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(Partial { file, done, hashes }),
                    read => {
                        hashes.update(&buffer[..read]);
                        done += read as u64;
                    }
                }
            }
        };
        open().map_err(|cause| HubError::Cache { path: path.clone(), cause })
    }

    fn receive(
        &self,
        partial: &mut Partial,
        report: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), FetchError> {
        let write_error =
            |cause| HubError::Cache { path: self.place.partial(&self.file.etag), cause };
        let content = self.client.content(self.id, self.file, partial.done)?;
        if partial.done > 0 && !content.resumed {
            // The server sends the whole file again.
            partial.file.set_len(0).map_err(write_error)?;
            (partial.done, partial.hashes) = (0, Hashes::new(self.file));
        }
        let mut reader = content.reader;
        let mut buffer = vec![0; CHUNK];
        loop {
            if report(partial.done).is_break() {
                return Err(FetchError::Cancelled);
            }
            let read = match reader.read(&mut buffer) {
                Ok(0) if partial.done == self.file.size => return Ok(()),
                Ok(0) => return Err(self.broke_off(partial.done, "the connection ended").into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broke_off(partial.done, &error.to_string()).into()),
            };
            partial.done += read as u64;
            if partial.done > self.file.size {
                let more = format!("more than {} bytes", self.file.size);
                let expected = format!("{} bytes", self.file.size);
                return Err(self.damaged("its size", more, expected).into());
            }
            partial.file.write_all(&buffer[..read]).map_err(write_error)?;
            partial.hashes.update(&buffer[..read]);
        }
    }

    fn broke_off(&self, done: u64, reason: &str) -> HubError {
        let (model, file) = (self.id.to_string(), self.name.to_owned());
        HubError::BrokeOff { model, file, done, size: self.file.size, reason: reason.to_owned() }
    }

    /// Deletes the file, so that the next run does not build on it.
    fn damaged(&self, what: &'static str, found: String, expected: String) -> HubError {
        let path = self.place.partial(&self.file.etag);
        if let Err(cause) = fs::remove_file(&path) {
            return HubError::Cache { path, cause };
        }
        let (model, file) = (self.id.to_string(), self.name.to_owned());
        HubError::Damaged { model, file, what, found, expected }
    }
}

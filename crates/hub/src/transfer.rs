//! The download of one file into the cache, where it appears once it is complete and verified.

use crate::cache::{CachedModel, create_folder_of};
use crate::client::{Client, Description};
use crate::error::HubError;
use crate::fetch::FetchError;
use crate::model_id::ModelId;
use forerun_formats::checkpoint::hexadecimal;
use sha1::Sha1;
use sha2::digest::DynDigest;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;

/// The size of the read buffer in bytes.
const CHUNK: usize = 1 << 18;

/// The download of one file.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cached_model: &'a CachedModel,
    pub(crate) id: &'a ModelId,
    /// The file's name in the repository.
    pub(crate) name: &'a str,
    pub(crate) file: &'a Description,
}

/// The downloaded part of a file, and its hashes.
struct Partial {
    file: File,
    done: u64,
    hashes: Hashes,
}

/// The hashes that a file's ETag may be. Empty if the ETag is not a hash.
struct Hashes(Vec<(&'static str, Box<dyn DynDigest>)>);

impl Hashes {
    fn new(file: &Description) -> Self {
        Self(match file.hash_digits() {
            Some(64) => vec![("its SHA-256", Box::new(Sha256::new()))],
            // Git hashes a header and the content. Some mirrors send the hash of the content alone.
            Some(40) => {
                let mut git = Sha1::new();
                Digest::update(&mut git, format!("blob {}\0", file.size).as_bytes());
                vec![("its SHA-1", Box::new(git)), ("its SHA-1", Box::new(Sha1::new()))]
            }
            _ => Vec::new(),
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, hash)| hash.update(bytes));
    }

    /// Returns the first hash and its name, unless one of the hashes is as expected or there is
    /// none.
    fn mismatch(self, expected: &str) -> Option<(&'static str, String)> {
        let digits = |(name, hash): (_, Box<dyn DynDigest>)| (name, hexadecimal(&hash.finalize()));
        let found: Vec<_> = self.0.into_iter().map(digits).collect();
        let is_right = found.iter().any(|(_, hash)| hash.eq_ignore_ascii_case(expected));
        found.into_iter().next().filter(|_| !is_right)
    }
}

impl Transfer<'_> {
    /// Downloads the file, resumes a partial download, and verifies the size and, if the ETag is
    /// one, the hash. `report` receives the number of bytes downloaded and may cancel.
    pub(crate) fn run(
        &self,
        mut report: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), FetchError> {
        let etag = &self.file.etag;
        let _lock = self.cached_model.lock(etag)?;
        let blob = self.cached_model.blob(etag);
        // An older commit has the same file, or another process has just downloaded it.
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
            fs::rename(self.cached_model.partial(etag), &blob)
        };
        Ok(keep().map_err(|cause| HubError::Cache { path: blob.clone(), cause })?)
    }

    /// Opens the part that an earlier run has downloaded, or an empty file.
    fn open(&self) -> Result<Partial, HubError> {
        let path = self.cached_model.partial(&self.file.etag);
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
            |cause| HubError::Cache { path: self.cached_model.partial(&self.file.etag), cause };
        let content = self.client.content(self.id, self.file, partial.done)?;
        if partial.done > 0 && !content.resumed {
            // The server did not resume, but sends the whole file.
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
                Ok(0) => return Err(self.interrupted(partial.done, "the connection ended").into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(self.interrupted(partial.done, &error.to_string()).into());
                }
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

    fn interrupted(&self, done: u64, reason: &str) -> HubError {
        let (model, file) = (self.id.to_string(), self.name.to_owned());
        HubError::DownloadInterrupted {
            model,
            file,
            done,
            size: self.file.size,
            reason: reason.to_owned(),
        }
    }

    /// Deletes the partial file, so that the next run starts anew, and returns the error.
    fn damaged(&self, what: &'static str, found: String, expected: String) -> HubError {
        let path = self.cached_model.partial(&self.file.etag);
        if let Err(cause) = fs::remove_file(&path) {
            return HubError::Cache { path, cause };
        }
        let (model, file) = (self.id.to_string(), self.name.to_owned());
        HubError::Damaged { model, file, what, found, expected }
    }
}

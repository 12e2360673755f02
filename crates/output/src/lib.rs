//! The one writer of files of the whole project.
//!
//! An [`OutputFile`] or [`OutputFolder`] has a temporary name beside its final name until it is
//! complete. It replaces only regular files (or folders), and nothing remains of it after an error
//! or [`remove_unfinished`]. Leftovers of a killed process are removed by the next output with the
//! same name. A [`Lock`] keeps a second process away from a file or folder that grows over time.
//!
//! Errors are of [`std::io`] and say what is wrong and what to do. They do not name the file or
//! folder: callers do, as in "cannot write FILE: ERROR".

mod destination;
mod file;
mod folder;
mod lock;
mod partial;
mod space;
mod system;

pub use destination::{append, check};
pub use file::{OutputFile, write};
pub use folder::OutputFolder;
pub use lock::Lock;
pub use partial::remove_unfinished;

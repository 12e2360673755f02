//! Files and folders are complete or absent, and only regular files and folders are replaced.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_output::{Lock, OutputFile, OutputFolder, append, check, write};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(file: &Path) -> u32 {
    file.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_appears_only_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    fs::write(&file, "earlier").unwrap();
    let mut out = OutputFile::create(&file).unwrap();
    out.write_all(b"new").unwrap();
    assert_eq!((fs::read(&file).unwrap(), names(folder.path()).len()), (b"earlier".to_vec(), 2));
    drop(out);
    assert_eq!((fs::read(&file).unwrap(), names(folder.path()).len()), (b"earlier".to_vec(), 1));
    write(&file, "new").unwrap();
    assert_eq!((fs::read(&file).unwrap(), names(folder.path()).len()), (b"new".to_vec(), 1));
}

#[test]
fn permissions_are_those_of_the_umask_or_of_the_replaced_file() {
    let folder = tempfile::tempdir().unwrap();
    let [expected, file] = ["expected", "file"].map(|name| folder.path().join(name));
    fs::write(&expected, "").unwrap();
    write(&file, "").unwrap();
    assert_eq!(mode(&file), mode(&expected));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    write(&file, "").unwrap();
    assert_eq!(mode(&file), 0o640);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).unwrap();
    assert!(write(&file, "").unwrap_err().to_string().contains("read-only"));
}

#[test]
fn only_regular_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(path("target"), "target").unwrap();
    symlink("target", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let before = names(folder.path());
    for (file, reason) in [
        (path("pipe"), "it is a pipe"),
        ("/dev/full".into(), "it is a device"),
        (path("link"), "a symbolic link to target"),
        (path("dangling"), "a symbolic link to nowhere"),
        (path("folder"), "it is a folder"),
        (path("no/such"), "does not exist: create it first"),
        (path(".."), "it has no name"),
        ("/dev/null/file".into(), "Not a directory"),
    ] {
        for result in [check(&file), write(&file, "new"), append(&file).map(drop)] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(reason), "{}: {error}", file.display());
        }
    }
    for name in ["target", "link", "pipe"] {
        let error = OutputFolder::create(&path(name)).map(drop).unwrap_err().to_string();
        assert!(error.contains("it is a"), "{name}: {error}");
    }
    assert_eq!(names(folder.path()), before);
    assert_eq!(fs::read(path("target")).unwrap(), b"target");
    assert!(path("link").is_symlink());
}

#[test]
fn leftovers_of_killed_processes_are_removed_and_those_of_living_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path(".out.0123abcd.partial"), "").unwrap();
    fs::create_dir(path(".out.0123abce.partial")).unwrap();
    fs::write(path(".out.0123abce.partial").join("file"), "").unwrap();
    let others = [".other.0123abcd.partial", ".out.notes.partial", ".out.0123abcd.partial.txt"];
    for name in others {
        fs::write(path(name), "").unwrap();
    }
    let mut first = OutputFile::create(&path("out")).unwrap();
    let second = OutputFile::create(&path("out")).unwrap();
    assert_eq!(names(folder.path()).len(), 2 + others.len());
    drop(second);
    first.write_all(b"first").unwrap();
    first.finish().unwrap();
    assert_eq!(names(folder.path()).len(), 1 + others.len());
    assert_eq!(fs::read(path("out")).unwrap(), b"first");
}

#[test]
fn a_folder_appears_only_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    for content in ["first", "second"] {
        drop(OutputFolder::create(&path).unwrap());
        let out = OutputFolder::create(&path).unwrap();
        write(&out.path().join("file"), content).unwrap();
        assert_eq!(path.exists(), content == "second");
        out.finish().unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), content);
        assert_eq!(names(folder.path()), ["model"]);
    }
}

#[test]
fn a_lock_names_its_owner_and_a_stale_one_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let lock = Lock::folder(path).unwrap();
    let error = Lock::folder(path).unwrap_err().to_string();
    assert!(error.contains(&format!("process {} is working", std::process::id())), "{error}");
    drop(lock);
    assert!(names(path).is_empty());
    // What a killed process leaves.
    fs::write(path.join(".lock"), "1\n").unwrap();
    drop(Lock::folder(path).unwrap());
    let file = path.join("table.csv");
    let lock = Lock::file(&file).unwrap();
    assert!(Lock::file(&file).is_err() && Lock::file(&path.join("other.csv")).is_ok());
    drop(lock);
}

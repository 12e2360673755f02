//! `answers.jsonl`, which records every answer at once, so that an interrupted comparison can be
//! resumed.

use crate::record::AnswerRecord;
use crate::{BenchError, Provenance};
use forerun_output::Lock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    /// The first line: the identity of the comparison and its hash.
    Run { hash: String, identity: Value },
    /// A start of the program. An interrupted comparison has several.
    Session(Provenance),
    /// What the peers reported about themselves, if there are peers.
    Peers { peers: Value },
    /// An answer.
    Answer(Box<AnswerRecord>),
}

/// The journal of a comparison: its file and the contents.
#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    out: File,
    _lock: Lock,
    /// The answers in the order in which they were generated.
    pub answers: Vec<AnswerRecord>,
    /// The starts of the program; the last one is this one.
    pub sessions: Vec<Provenance>,
    /// What the peers of these answers reported about themselves.
    peers: Option<Value>,
}

impl Journal {
    /// Opens `answers.jsonl` in `folder` and creates both if they do not exist.
    ///
    /// `identity` is everything that the answers depend on; a file with another identity is
    /// rejected. An incomplete last line is dropped.
    ///
    /// # Errors
    /// If the file cannot be read or written, belongs to another comparison, or another process is
    /// working in the folder.
    pub fn open(folder: &Path, identity: &Value, session: Provenance) -> Result<Self, BenchError> {
        let file = folder.join("answers.jsonl");
        let failed = |cause| BenchError::Write { file: file.clone(), cause };
        fs::create_dir_all(folder).map_err(failed)?;
        forerun_output::check(&file).map_err(failed)?;
        let in_folder = |cause| BenchError::Write { file: folder.to_owned(), cause };
        let lock = Lock::folder(folder).map_err(in_folder)?;
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(BenchError::Read { file, cause }),
        };
        let hash = hash(identity);
        let found = read(&file, &bytes, &hash)?;
        let out = forerun_output::append(&file).map_err(failed)?;
        out.set_len(found.length as u64).map_err(failed)?;
        let Contents { answers, sessions, peers, .. } = found;
        let mut journal = Self { file, out, _lock: lock, answers, sessions, peers };
        if found.length == 0 {
            journal.write(&Line::Run { hash, identity: identity.clone() })?;
        }
        journal.sessions.push(session.clone());
        journal.write(&Line::Session(session))?;
        Ok(journal)
    }

    /// Records what the peers report about themselves. This is part of the identity, but is known
    /// only once the peers are running.
    ///
    /// # Errors
    /// If the journal has answers of peers that reported something else, or if it cannot be
    /// written.
    pub fn set_peers(&mut self, peers: Value) -> Result<(), BenchError> {
        match self.peers.replace(peers.clone()) {
            Some(found) if found == peers => Ok(()),
            Some(found) if !self.answers.is_empty() => Err(BenchError::OtherPeers {
                file: self.file.clone(),
                found: found.to_string(),
                expected: peers.to_string(),
            }),
            _ => self.write(&Line::Peers { peers }),
        }
    }

    /// Returns whether the journal has an answer.
    #[must_use]
    pub fn has(&self, configuration: &str, prompt: &str, repeat: usize) -> bool {
        self.answers.iter().any(|answer| {
            answer.repeat == repeat
                && answer.prompt == prompt
                && answer.configuration == configuration
        })
    }

    /// Records an answer.
    ///
    /// # Errors
    /// If the answer cannot be written.
    pub fn push(&mut self, answer: AnswerRecord) -> Result<(), BenchError> {
        self.answers.push(answer.clone());
        self.write(&Line::Answer(Box::new(answer)))
    }

    /// Writes a line in one piece, so that only the last line can be incomplete.
    fn write(&mut self, line: &Line) -> Result<(), BenchError> {
        let failed = |cause| BenchError::Write { file: self.file.clone(), cause };
        let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.out.write_all(&text).map_err(failed)
    }
}

/// The contents of a journal file.
#[derive(Default)]
struct Contents {
    /// Length of the complete lines in bytes.
    length: usize,
    answers: Vec<AnswerRecord>,
    sessions: Vec<Provenance>,
    peers: Option<Value>,
}

fn read(file: &Path, bytes: &[u8], expected: &str) -> Result<Contents, BenchError> {
    let mut found = Contents::default();
    let mut other = None;
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let parsed = match serde_json::from_slice::<Line>(line) {
            Ok(parsed) if line.ends_with(b"\n") => parsed,
            // The last line is incomplete.
            _ if lines.peek().is_none() => break,
            parsed => {
                let reason = parsed.err().map_or("no line break".into(), |error| error.to_string());
                let file = file.to_owned();
                return Err(BenchError::Journal { file, line: index + 1, reason });
            }
        };
        match parsed {
            Line::Run { hash, .. } => other = Some(hash).filter(|hash| hash != expected),
            Line::Session(session) => found.sessions.push(session),
            Line::Peers { peers } => found.peers = Some(peers),
            Line::Answer(answer) => found.answers.push(*answer),
        }
        found.length += line.len();
    }
    match other {
        // Another comparison without any answer is overwritten.
        Some(_) if found.answers.is_empty() => Ok(Contents::default()),
        Some(found) => {
            let (file, expected) = (file.to_owned(), expected.to_owned());
            Err(BenchError::OtherRun { file, found, expected })
        }
        None => Ok(found),
    }
}

/// Computes the 64-bit FNV-1a hash, which is the same on every machine.
pub(crate) fn hash(identity: &Value) -> String {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", identity.to_string().as_bytes().iter().fold(start, step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, turn};
    use serde_json::json;

    fn open(folder: &Path, seed: u64) -> Result<Journal, BenchError> {
        Journal::open(folder, &json!({ "seed": seed }), Provenance::default())
    }

    #[test]
    fn complete_lines_survive_a_cut_at_any_point() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(folder.path(), 1).unwrap();
        for repeat in 0..3 {
            journal.push(answer("a", "p", repeat, turn(&[(5, 1), (9, 2)]))).unwrap();
        }
        let whole = journal.answers.clone();
        drop(journal);
        let file = folder.path().join("answers.jsonl");
        let bytes = fs::read(&file).unwrap();
        for length in (0..bytes.len()).step_by(7).chain([bytes.len() - 1, bytes.len()]) {
            fs::write(&file, &bytes[..length]).unwrap();
            let mut journal = open(folder.path(), 1).unwrap();
            let lines = bytes[..length].iter().filter(|&&byte| byte == b'\n').count();
            let kept = lines.saturating_sub(2);
            assert_eq!(journal.answers, whole[..kept], "cut at {length}");
            // A new answer is found the next time.
            journal.push(answer("b", "p", 0, turn(&[(1, 1)]))).unwrap();
            drop(journal);
            let again = open(folder.path(), 1).unwrap();
            assert_eq!(again.answers.len(), kept + 1);
            assert!(again.has("b", "p", 0) && !again.has("b", "p", 1));
        }
    }

    #[test]
    fn answers_of_other_peers_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let peers = |version: u64| json!([["shell", { "version": version }]]);
        // Without answers, the peers may change.
        open(folder.path(), 1).unwrap().set_peers(peers(1)).unwrap();
        let mut journal = open(folder.path(), 1).unwrap();
        journal.set_peers(peers(2)).unwrap();
        journal.push(answer("a", "p", 0, turn(&[(5, 1)]))).unwrap();
        let busy = open(folder.path(), 1).unwrap_err().to_string();
        assert!(busy.contains(&format!("process {} is working", std::process::id())), "{busy}");
        drop(journal);
        open(folder.path(), 1).unwrap().set_peers(peers(2)).unwrap();
        let error = open(folder.path(), 1).unwrap().set_peers(peers(3)).unwrap_err().to_string();
        for word in ["other peers", "\"version\":2", "\"version\":3", "set `out`"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn other_comparisons_and_damaged_lines_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), 2).unwrap());
        // A comparison without answers is overwritten.
        let mut journal = open(folder.path(), 1).unwrap();
        assert_eq!(journal.sessions.len(), 1);
        journal.push(answer("a", "p", 0, turn(&[(5, 1)]))).unwrap();
        drop(journal);
        let error = open(folder.path(), 2).unwrap_err().to_string();
        assert!(error.contains("another comparison") && error.contains("set `out`"), "{error}");
        let file = folder.path().join("answers.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.clone() + "{\"line\": nonsense}\n" + &text).unwrap();
        let error = open(folder.path(), 1).unwrap_err().to_string();
        assert!(error.contains("line 4") && error.contains("delete that line"), "{error}");
    }
}

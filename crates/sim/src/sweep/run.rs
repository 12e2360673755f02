//! Runs a sweep on all cores.

use super::{RowSource, SweepError, Table};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// The progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of rows in the table.
    pub done: usize,
    /// Number of rows in the complete table.
    pub total: usize,
    /// Number of decoding rounds simulated since the start of this run.
    pub rounds: u64,
}

/// Number of rows that a thread computes at a time.
const CHUNK: usize = 32;

/// The rows that a thread has computed.
struct Chunk {
    text: String,
    /// Number of rows in `text`.
    count: usize,
    /// Number of simulated decoding rounds.
    rounds: u64,
    /// The error after which the thread stopped.
    error: Option<SweepError>,
}

/// Simulates the rows that the table does not have yet and adds them in order.
///
/// `on_progress` may stop the sweep. The rows so far stay in the table, and the next run continues
/// after them.
///
/// # Errors
/// If a configuration cannot be simulated or a row cannot be written.
pub fn run<R: RowSource>(
    sweep: &R,
    table: &mut Table,
    threads: usize,
    mut on_progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), SweepError> {
    let (first, total) = (table.rows, sweep.count());
    let next = AtomicUsize::new(first);
    let (report, reports) = mpsc::sync_channel::<(usize, Chunk)>(threads * 4);
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (report, next) = (report.clone(), &next);
            scope.spawn(move || {
                let mut cache = R::Cache::default();
                loop {
                    let start = next.fetch_add(CHUNK, Ordering::Relaxed);
                    // The receiver is closed after a failure.
                    if start >= total
                        || report.send((start, chunk(sweep, start, &mut cache))).is_err()
                    {
                        return;
                    }
                }
            });
        }
        drop(report);
        let outcome = collect(table, &reports, first, |done, rounds| {
            on_progress(Progress { done, total, rounds })
        });
        // Threads that still run find no more work, and a closed channel.
        next.store(total, Ordering::Relaxed);
        drop(reports);
        outcome
    })
}

/// Writes the rows in order as they arrive.
fn collect(
    table: &mut Table,
    reports: &mpsc::Receiver<(usize, Chunk)>,
    first: usize,
    mut on_progress: impl FnMut(usize, u64) -> ControlFlow<()>,
) -> Result<(), SweepError> {
    let (mut early, mut expected, mut rounds) = (BTreeMap::new(), first, 0);
    for (start, rows) in reports {
        early.insert(start, rows);
        while let Some(rows) = early.remove(&expected) {
            table.push(rows.count, &rows.text)?;
            if let Some(error) = rows.error {
                return Err(error);
            }
            expected += rows.count;
            rounds += rows.rounds;
            if on_progress(table.rows, rounds).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Computes the chunk of rows that begins at `start`.
fn chunk<R: RowSource>(sweep: &R, start: usize, cache: &mut R::Cache) -> Chunk {
    let mut chunk = Chunk { text: String::new(), count: 0, rounds: 0, error: None };
    for index in start..sweep.count().min(start + CHUNK) {
        match sweep.row(index, cache) {
            Ok((text, rounds)) => {
                chunk.text += &text;
                chunk.count += 1;
                chunk.rounds += rounds;
            }
            Err(error) => {
                chunk.error = Some(error);
                break;
            }
        }
    }
    chunk
}

//! A sweep on all cores.

use super::{Rows, SweepError, Table};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// How far a sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows in the table.
    pub done: usize,
    /// Rows that it will have.
    pub total: usize,
    /// Rounds of decoding that were simulated since the start.
    pub rounds: u64,
}

/// Configurations that a thread takes at a time.
const CHUNK: usize = 32;

/// What a thread made of a chunk: rows as text, their number, and rounds.
struct Chunk {
    text: String,
    count: usize,
    rounds: u64,
    /// Why it has no more rows.
    error: Option<SweepError>,
}

/// Simulates what the table does not have yet, and adds it in the order of configurations.
/// `on_progress` may stop it; what is in the table then stays, and the next run goes on there.
///
/// # Errors
/// If a configuration cannot be simulated or a row not be written.
pub fn run<R: Rows>(
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
                let mut memory = R::Memory::default();
                loop {
                    let start = next.fetch_add(CHUNK, Ordering::Relaxed);
                    // Nobody listens any more once one has failed.
                    if start >= total
                        || report.send((start, chunk(sweep, start, &mut memory))).is_err()
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
        // Whoever still works finds no more, and nobody to tell.
        next.store(total, Ordering::Relaxed);
        drop(reports);
        outcome
    })
}

/// Writes rows as they come, in their order.
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

fn chunk<R: Rows>(sweep: &R, start: usize, memory: &mut R::Memory) -> Chunk {
    let mut chunk = Chunk { text: String::new(), count: 0, rounds: 0, error: None };
    for index in start..sweep.count().min(start + CHUNK) {
        match sweep.row(index, memory) {
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

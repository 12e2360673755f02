//! Ctrl-C (SIGINT), SIGTERM and the end of the terminal (SIGHUP): commands that can stop early keep
//! their results, and no command leaves unfinished files or a terminal in line editing.

use crate::terminal;
use anyhow::Context;
use forerun::Canceller;
#[cfg(not(windows))]
use signal_hook::consts::{SIGHUP, SIGXFSZ};
use signal_hook::consts::{SIGINT, SIGTERM};
#[cfg(not(windows))]
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
#[cfg(not(windows))]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::{io, process};

/// The signals that end a command.
#[cfg(not(windows))]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM, SIGHUP];
#[cfg(windows)]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM];

const FAILED: &str = "cannot install the handler for Ctrl-C";

/// Whether the command itself handles signals.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// The latest signal.
static LATEST: AtomicI32 = AtomicI32::new(SIGINT);

/// Removes unfinished files on every signal that ends the process. Signals that the process was
/// started to ignore, as background jobs of a shell are, stay ignored. A file that becomes larger
/// than the limit of the process (`ulimit -f`) is an error of the write instead of a signal.
pub(crate) fn clean_up_on_signals() -> anyhow::Result<()> {
    #[cfg(not(windows))]
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context(FAILED)?;
    let signals = SIGNALS.iter().copied().filter(|signal| !is_ignored(*signal));
    handle("cleanup", signals, |signal| {
        if !LISTENING.load(Ordering::SeqCst) {
            end();
            // The signal ends the process as if it were not handled, and shells see that.
            drop(emulate_default_handler(signal));
        }
    })
}

/// Calls `on_signal` on every signal from now on. If it returns `true`, the process ends at once.
pub(crate) fn listen(on_signal: impl Fn() -> bool + Send + 'static) -> anyhow::Result<()> {
    LISTENING.store(true, Ordering::SeqCst);
    // With `nohup`, a command goes on after its terminal.
    let is_handled = |signal: &i32| [SIGINT, SIGTERM].contains(signal) || !is_ignored(*signal);
    handle("interrupts", SIGNALS.iter().copied().filter(is_handled), move |signal| {
        LATEST.store(signal, Ordering::Relaxed);
        if on_signal() {
            end();
            process::exit(interrupted().into());
        }
    })
}

/// Leaves nothing unfinished.
pub(crate) fn end() {
    forerun_output::remove_unfinished();
    terminal::restore();
}

/// Starts a thread that calls `action` for each of these signals.
fn handle(
    thread: &str,
    signals: impl IntoIterator<Item = i32>,
    action: impl Fn(i32) + Send + 'static,
) -> anyhow::Result<()> {
    let work = on_each(signals.into_iter().collect(), action).context(FAILED)?;
    thread::Builder::new().name(thread.into()).spawn(work).context(FAILED)?;
    Ok(())
}

/// Returns a loop that calls `action` for each of these signals.
#[cfg(not(windows))]
fn on_each(
    signals: Vec<i32>,
    action: impl Fn(i32) + Send + 'static,
) -> io::Result<impl FnOnce() + Send> {
    let mut signals = Signals::new(signals)?;
    Ok(move || signals.forever().for_each(action))
}

/// Returns a loop that calls `action` for each of these signals. Nothing can wait for them on
/// Windows, so it looks for them.
#[cfg(windows)]
fn on_each(
    signals: Vec<i32>,
    action: impl Fn(i32) + Send + 'static,
) -> io::Result<impl FnOnce() + Send> {
    use signal_hook::flag::register_usize;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;
    const PAUSE: Duration = Duration::from_millis(50);
    let latest = Arc::new(AtomicUsize::new(0));
    for signal in signals {
        register_usize(signal, Arc::clone(&latest), signal as usize)?;
    }
    Ok(move || {
        loop {
            match latest.swap(0, Ordering::SeqCst) {
                0 => thread::sleep(PAUSE),
                signal => action(signal as i32),
            }
        }
    })
}

/// Returns whether the process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit `n` stands for signal `n + 1`.
    let ignored = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    ignored.unwrap_or(0) & (1 << (signal - 1)) != 0
}

/// Returns the exit code of an interrupted process, by the shells' convention: 130 after Ctrl-C,
/// and 143 after SIGTERM.
pub(crate) fn interrupted() -> u8 {
    128 + LATEST.load(Ordering::Relaxed) as u8
}

/// Lets the first signal cancel the answer, and the second one end the process.
pub(crate) fn cancel_on_interrupt(canceller: &Canceller) -> anyhow::Result<()> {
    let canceller = canceller.clone();
    listen(move || {
        let before = canceller.is_cancelled();
        canceller.cancel();
        before
    })
}

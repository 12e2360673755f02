//! Ctrl-C (SIGINT) and SIGTERM: commands that can stop early keep their results, and no command leaves
//! unfinished files.

use anyhow::Context;
use forerun::Canceller;
use signal_hook::consts::{SIGINT, SIGTERM};
#[cfg(not(windows))]
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::{io, process};

/// Whether the command itself handles signals.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// The latest signal.
static LATEST: AtomicI32 = AtomicI32::new(SIGINT);

/// Removes unfinished files on every signal that ends the process. Signals that the process was
/// started to ignore, as background jobs of a shell are, stay ignored.
pub(crate) fn clean_up_on_signals() -> anyhow::Result<()> {
    let ignored = ignored_signals();
    let signals = [SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    handle("cleanup", signals, |signal| {
        if !LISTENING.load(Ordering::SeqCst) {
            forerun_output::remove_unfinished();
            // The signal ends the process as if it were not handled, and shells see that.
            drop(emulate_default_handler(signal));
        }
    })
}

/// Calls `on_signal` on every signal from now on. If it returns `true`, the process ends at once.
pub(crate) fn listen(on_signal: impl Fn() -> bool + Send + 'static) -> anyhow::Result<()> {
    LISTENING.store(true, Ordering::SeqCst);
    handle("interrupts", [SIGINT, SIGTERM], move |signal| {
        LATEST.store(signal, Ordering::Relaxed);
        if on_signal() {
            forerun_output::remove_unfinished();
            process::exit(interrupted().into());
        }
    })
}

/// Starts a thread that calls `action` for each of these signals.
fn handle(
    thread: &str,
    signals: impl IntoIterator<Item = i32>,
    action: impl Fn(i32) + Send + 'static,
) -> anyhow::Result<()> {
    let failed = "cannot install the handler for Ctrl-C";
    let work = on_each(signals.into_iter().collect(), action).context(failed)?;
    thread::Builder::new().name(thread.into()).spawn(work).context(failed)?;
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

/// Returns a loop that calls `action` for each of these signals. Nothing can wait for them on Windows, so it
/// looks for them.
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

/// Returns the set of signals that are ignored: bit `n` stands for signal `n + 1`.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the exit code of an interrupted process, by the shells' convention: 130 after Ctrl-C, and
/// 143 after SIGTERM.
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

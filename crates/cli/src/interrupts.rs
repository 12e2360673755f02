//! Ctrl-C, for commands that can stop early and keep their results.

use anyhow::Context;
use forerun::Canceller;

/// Exit code of an interrupted process, by the shells' convention.
pub(crate) const INTERRUPTED: u8 = 130;

/// Calls `on_interrupt` on every interrupt from now on. If it returns `true`, the process ends at
/// once.
pub(crate) fn listen(on_interrupt: impl Fn() -> bool + Send + 'static) -> anyhow::Result<()> {
    let handler = move || {
        if on_interrupt() {
            std::process::exit(INTERRUPTED.into());
        }
    };
    ctrlc::set_handler(handler).context("cannot install the handler for Ctrl-C")
}

/// Lets the first interrupt cancel the answer, and the second one end the process.
pub(crate) fn cancel_on_interrupt(canceller: &Canceller) -> anyhow::Result<()> {
    let canceller = canceller.clone();
    listen(move || {
        let before = canceller.is_cancelled();
        canceller.cancel();
        before
    })
}

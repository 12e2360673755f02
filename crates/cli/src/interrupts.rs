//! Ctrl-C, for commands that can end with what is there.

use anyhow::Context;
use forerun::Canceller;

/// Exit code of a process that an interrupt ended, by the shells' convention.
pub(crate) const INTERRUPTED: u8 = 130;

/// Tells of every interrupt from now on; where that answers `true`, the process ends at once.
pub(crate) fn listen(told: impl Fn() -> bool + Send + 'static) -> anyhow::Result<()> {
    let handler = move || {
        if told() {
            std::process::exit(INTERRUPTED.into());
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for interrupts")
}

/// The first interrupt cancels the answer, the second one ends the process.
pub(crate) fn cancel_on_interrupt(canceller: &Canceller) -> anyhow::Result<()> {
    let canceller = canceller.clone();
    listen(move || {
        let before = canceller.is_cancelled();
        canceller.cancel();
        before
    })
}

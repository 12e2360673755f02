//! The settings of the terminal, which line editing changes. A signal that ends the process must restore them.

#[cfg(unix)]
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
#[cfg(unix)]
use std::sync::OnceLock;

/// The settings before line editing.
#[cfg(unix)]
static SETTINGS: OnceLock<Termios> = OnceLock::new();

/// Remembers the settings of the terminal at standard input.
pub(crate) fn remember() {
    #[cfg(unix)]
    if let Ok(settings) = tcgetattr(std::io::stdin()) {
        drop(SETTINGS.set(settings));
    }
}

/// Restores the remembered settings, if there are any.
pub(crate) fn restore() {
    #[cfg(unix)]
    if let Some(settings) = SETTINGS.get() {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, settings);
    }
}

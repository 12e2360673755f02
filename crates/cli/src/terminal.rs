//! The settings of the terminal, which line editing changes. A signal that ends the process must
//! restore them.

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

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

/// Returns the size of the terminal at standard output, or that of a usual one.
pub(crate) fn size() -> Size {
    let usual = Size { columns: 80, lines: 24 };
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout()) {
        let (columns, lines) = (size.ws_col.into(), size.ws_row.into());
        return if columns == 0 || lines == 0 { usual } else { Size { columns, lines } };
    }
    usual
}

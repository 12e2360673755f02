//! Simulations that cannot be.

use forerun_core::Role;

/// A simulation that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// Two devices of one role.
    #[error("both {first} and {second} play {role:?}: give each role one device")]
    RoleTwice {
        /// The role.
        role: Role,
        /// A device.
        first: String,
        /// Another one.
        second: String,
    },
    /// A fault of a device that there is not.
    #[error("a fault names device {device}, but there are only {devices}, counted from 0")]
    NoSuchDevice {
        /// The index.
        device: usize,
        /// Number of devices.
        devices: usize,
    },
    /// An option out of range.
    #[error("{option} cannot be {found}, but must be {expected}")]
    Range {
        /// What it is.
        option: &'static str,
        /// What it was to be.
        found: String,
        /// What is possible.
        expected: &'static str,
    },
    /// Decoding ended early.
    #[error("the simulated answer ended early: {0}")]
    Decode(String),
    /// A decoder that changed the text: a bug of its own.
    #[error("the answer is not the target's own text: please report this simulation")]
    OtherText,
    /// Passes without layers.
    #[error("{device} has passes of 0 layers: give it at least one")]
    NoLayers {
        /// The device.
        device: String,
    },
    /// What threads cannot do.
    #[error("{0} are simulated in virtual time only: leave --real-time out, or them")]
    VirtualOnly(&'static str),
    /// A thread that cannot start.
    #[error("a device cannot start: {0}")]
    Start(String),
}

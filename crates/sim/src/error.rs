//! Errors of simulations.

use forerun_core::Role;

/// A simulation that is invalid or that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// Two devices have the same role.
    #[error("{first} and {second} both have the role {role:?}: give each role to one device only")]
    RoleTwice {
        /// The role.
        role: Role,
        /// The first device with this role.
        first: String,
        /// The second device with this role.
        second: String,
    },
    /// A fault refers to a device that does not exist.
    #[error(
        "a fault refers to device {device}, but there are only {devices} devices, numbered from 0"
    )]
    NoSuchDevice {
        /// The index in the fault.
        device: usize,
        /// Number of devices.
        devices: usize,
    },
    /// An option is out of range.
    #[error("{option} is {found}, but must be {expected}")]
    Range {
        /// The option: its field's name in backticks, or its name in a file.
        option: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// Decoding failed before the last token.
    #[error("the simulated answer failed: {0}")]
    Decode(String),
    /// The decoder changed the text, which is a bug in the decoder.
    #[error(
        "the decoder changed the text: the answer is not the target's own. This is a bug; please report \
         it with the parameters of the simulation"
    )]
    ChangedText,
    /// A device has passes without layers.
    #[error("the passes of {device} have 0 layers: set `layers` to at least 1")]
    NoLayers {
        /// The device.
        device: String,
    },
    /// The simulation needs a feature that only virtual time has.
    #[error("{0} are simulated in virtual time only: remove them, or turn off `real_time`")]
    VirtualOnly(&'static str),
    /// The thread of a device cannot start.
    #[error("cannot start the thread of a device: {0}")]
    Start(String),
}

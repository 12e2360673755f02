//! Commands whose feature is not part of this build: `--help` does not list them, but running one
//! says how to get it.

#![cfg_attr(
    all(feature = "laboratory", feature = "plots", feature = "server", feature = "train"),
    expect(dead_code, reason = "this build has every command")
)]

use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

/// The arguments of a missing command, which are ignored.
#[derive(Args, Debug)]
pub(crate) struct Missing {
    /// Any arguments, so that the error about the missing feature comes first.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Fails with the way to get a command.
pub(crate) fn command(name: &str, feature: &str) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "`forerun {name}` is not part of this build: it needs the feature {feature}. In a clone of the \
         repository, install it with `cargo install --locked --path crates/cli --features {feature}`, or run \
         `cargo run --release --features {feature} -- {name} ...`"
    )
}

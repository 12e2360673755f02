//! End-to-end tests of the `forerun` binary: command lines, output and exit codes. The tests create
//! random checkpoints, so they need no downloads.
//!
//! All tests are in one binary, which is linked only once; each module covers one topic. [`common`]
//! contains shared helpers.

mod bench_run;
mod browser;
mod common;

#[cfg(unix)]
mod chat;
mod easyspec;
#[cfg(feature = "hub")]
mod hub;
#[cfg(feature = "hub")]
mod hub_failures;
#[cfg(target_os = "linux")]
mod interrupts;
mod methods;
mod output;
#[cfg(unix)]
mod peers;
#[cfg(unix)]
mod pipes;
mod prompts;
mod quality;
mod show_drafts;
mod simulate;
mod speculators;
mod stopping;
mod synthetic_pair;
mod trace;
#[cfg(all(feature = "train", target_os = "linux"))]
mod train;
mod without_a_model;
mod wrong_checkpoints;
mod wrong_options;

//! End-to-end tests of the `forerun` binary: command lines, output and exit codes. The tests create
//! random checkpoints, so they need no downloads.
//!
//! All tests are in one binary, which is linked only once; each module covers one topic. [`common`]
//! contains shared helpers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "laboratory")]
mod acceptance;
mod bench_run;
mod browser;
mod common;

mod certify;
#[cfg(unix)]
mod chat;
mod config_file;
mod demo;
mod doctor;
mod easyspec;
#[cfg(feature = "laboratory")]
mod easyspec_laboratory;
#[cfg(target_os = "linux")]
mod files;
mod gguf;
#[cfg(feature = "cuda")]
mod gpus;
#[cfg(feature = "hub")]
mod hub;
#[cfg(feature = "hub")]
mod hub_failures;
#[cfg(target_os = "linux")]
mod interrupts;
#[cfg(target_os = "linux")]
mod memory;
mod methods;
#[cfg(not(all(feature = "plots", feature = "train")))]
mod missing;
#[cfg(feature = "hub")]
mod models;
mod output;
#[cfg(unix)]
mod peers;
#[cfg(unix)]
mod pipes;
mod plan;
mod prompts;
mod quality;
mod run_model;
#[cfg(all(feature = "server", target_os = "linux"))]
mod serve;
mod shell;
mod show_drafts;
#[cfg(feature = "laboratory")]
mod simulate;
mod speculators;
mod stopping;
mod structured;
#[cfg(feature = "laboratory")]
mod synthetic_pair;
mod trace;
#[cfg(all(feature = "train", target_os = "linux"))]
mod train;
mod verbosity;
mod without_a_model;
mod wrong_checkpoints;
mod wrong_options;

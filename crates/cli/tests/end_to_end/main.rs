//! The `forerun` binary from end to end, as users meet it: what they type, what they see, and how
//! it ends. Every checkpoint is random and made on the spot, so nothing has to be there.
//!
//! This is one test binary, since it is linked once; each module is a topic. [`common`] has what
//! they share.

mod bench_run;
mod browser;
mod common;

#[cfg(unix)]
mod chat;
mod easyspec;
mod ends;
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
mod synthetic_pair;
mod trace;
#[cfg(all(feature = "train", target_os = "linux"))]
mod train;
mod without_a_model;
mod wrong_checkpoints;
mod wrong_options;

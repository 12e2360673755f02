//! `forerun models`: lists, shows, downloads and removes models.

mod cache;
mod draft_models;
mod show;

use crate::arguments::Models;
use std::process::ExitCode;

pub(crate) fn run(models: Models) -> anyhow::Result<ExitCode> {
    match models {
        Models::List(arguments) => cache::list(&arguments),
        Models::Show(arguments) => show::run(&arguments),
        Models::Pull(arguments) => cache::pull(&arguments),
        Models::Rm(arguments) => cache::remove(&arguments),
    }
}

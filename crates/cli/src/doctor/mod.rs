//! `forerun doctor`: what this machine offers, and what would make forerun faster.
//!
//! Each check looks at one thing and changes nothing. A check that cannot look says so, and is no
//! failure.

mod gpu;
mod hub;
mod machine;
mod memory;

use crate::arguments::DoctorArguments;
use crate::note::printable;
use forerun::placement::Topology;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// Whether there is something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// Nothing to do.
    Ok,
    /// The advice would make forerun faster, or let it do more.
    Advice,
    /// It could not be found out.
    Unknown,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What was found.
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// Returns what was found and what to do if other programs use the cores.
pub(crate) fn load_advice() -> Option<(String, String)> {
    let check = machine::current_load(&Topology::of_this_machine())?;
    Some((check.found, check.advice?))
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), advice: None }
    }

    fn unknown(name: &'static str, reason: impl Into<String>) -> Self {
        Self { name, status: Status::Unknown, found: reason.into(), advice: None }
    }

    fn advice(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Self { name, status: Status::Advice, found: found.into(), advice }
    }

    fn text(&self) -> String {
        let sign = match self.status {
            Status::Ok => "ok",
            Status::Advice => "advice",
            Status::Unknown => "unknown",
        };
        let mut text = format!("{sign:<8}{:<17}{}\n", self.name, printable(&self.found));
        if let Some(advice) = &self.advice {
            text += &format!("{:25}→ {}\n", "", printable(advice));
        }
        text
    }
}

/// Checks everything, and prints each result as soon as it is known.
pub(crate) fn run(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut checks = Vec::new();
    let parts: [&dyn Fn() -> Vec<Check>; 5] = [
        &|| vec![build()],
        &machine::checks,
        &|| memory::checks(!arguments.no_measure),
        &|| hub::checks(arguments.offline),
        &gpu::checks,
    ];
    for part in parts {
        let found = part();
        if !arguments.json {
            found.iter().try_for_each(|check| write!(out, "{}", check.text()))?;
        }
        checks.extend(found);
    }
    if arguments.json {
        let report = serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "checks": checks });
        writeln!(out, "{report}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The version and the features of this build.
fn build() -> Check {
    let features = [
        ("hub", cfg!(feature = "hub")),
        ("server", cfg!(feature = "server")),
        ("laboratory", cfg!(feature = "laboratory")),
        ("plots", cfg!(feature = "plots")),
        ("train", cfg!(feature = "train")),
        ("mpi", cfg!(feature = "mpi")),
        ("gpu", cfg!(feature = "gpu")),
    ];
    let features: Vec<&str> =
        features.iter().filter(|(_, is_in)| *is_in).map(|(name, _)| *name).collect();
    let system = format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS);
    let found = format!(
        "forerun {} for {system}, features: {}",
        env!("CARGO_PKG_VERSION"),
        if features.is_empty() { "none".into() } else { features.join(" ") }
    );
    if cfg!(debug_assertions) {
        return Check::advice(
            "build",
            found,
            "this is a debug build: `cargo build --release` makes a faster one",
        );
    }
    Check::ok("build", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_was_found() {
        let text = Check::advice("cores", "1 thread", "use more\u{7}").text();
        assert_eq!(
            text,
            "advice  cores            1 thread\n                         → use more\\u{7}\n"
        );
        let json = serde_json::to_value(Check::ok("cores", "2 threads")).ok();
        let expected = serde_json::json!({"name": "cores", "status": "ok", "found": "2 threads"});
        assert_eq!(json, Some(expected));
    }
}

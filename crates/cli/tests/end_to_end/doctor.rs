//! `forerun doctor`.

use crate::common::Run;
#[cfg(feature = "hub")]
use crate::common::{Hub, Models, Quirk};
use serde_json::Value;

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn doctor_checks_the_machine_and_succeeds() {
    let run = Run::of("doctor --offline --json --no-measure");
    let report = run.succeed().json();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    for name in ["build", "processor", "cores", "CPU quota", "memory", "huge pages", "gpu"] {
        let check = check(&report, name);
        let status = check["status"].as_str().unwrap();
        assert_eq!(check["advice"].is_string(), status == "advice", "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    }
    let text = Run::of("doctor --offline").succeed().output();
    assert!(text.contains("bandwidth") && text.contains("GB/s"), "{text}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_slower_instruction_set_than_possible_gets_advice() {
    let run = Run::of("doctor --offline --json --no-measure");
    let report = run.variable("FORERUN_ISA", "portable").succeed().json();
    let processor = check(&report, "processor");
    assert!(processor["found"].as_str().unwrap().contains("uses portable"), "{processor}");
    assert_eq!(processor["status"], "advice");
}

#[cfg(feature = "hub")]
#[test]
fn doctor_asks_the_hub_with_the_token() {
    let hub = Hub::start();
    let report = |run: Run| run.words("doctor --json --no-measure").succeed().json();
    let reached = report(hub.run());
    assert_eq!(check(&reached, "hub")["status"], "ok", "{reached}");
    assert!(check(&reached, "token")["found"].as_str().unwrap().starts_with("none"));
    hub.quirk(Quirk::Token("right"));
    hub.take_requests();
    let refused = report(hub.run().variable("HF_TOKEN", "wrong"));
    assert_eq!(check(&refused, "hub")["status"], "advice", "{refused}");
    assert!(check(&refused, "hub")["advice"].as_str().unwrap().contains("HF_TOKEN"), "{refused}");
    assert_eq!(hub.take_requests()[0].headers["authorization"], "Bearer wrong");
    assert!(!refused.to_string().contains("wrong"), "no token is shown: {refused}");
    let accepted = report(hub.run().variable("HF_TOKEN", "right"));
    let found = check(&accepted, "hub")["found"].as_str().unwrap();
    assert!(found.ends_with("accepts the token of tester"), "{accepted}");
    hub.take_requests();
    // Offline, nothing is sent.
    for run in [hub.run().words("doctor --offline --no-measure"), {
        hub.run().words("doctor --no-measure").variable("HF_HUB_OFFLINE", "1")
    }] {
        assert!(run.succeed().output().contains("is not asked"));
    }
    assert!(hub.take_requests().is_empty());
}

#[cfg(feature = "hub")]
#[test]
fn an_unreachable_hub_is_no_failure() {
    let hub = Hub::start();
    // Nothing listens on this port, which no other test can get.
    let run = hub.run().variable("HF_ENDPOINT", "http://127.0.0.1:1");
    let report = run.words("doctor --json --no-measure").succeed().json();
    let hub = check(&report, "hub");
    assert_eq!(hub["status"], "advice");
    assert!(hub["found"].as_str().unwrap().contains("does not answer"), "{hub}");
}

#[cfg(feature = "hub")]
#[test]
fn doctor_counts_the_models_of_the_cache() {
    let pair = Models::pair();
    let hub = Hub::serving(&pair.target());
    hub.run().words("models pull owner/name").succeed();
    let run = hub.run().words("doctor --json --no-measure --offline");
    let report = run.succeed().json();
    let cache = check(&report, "model cache");
    assert!(cache["found"].as_str().unwrap().contains(": 1 model, "), "{cache}");
}

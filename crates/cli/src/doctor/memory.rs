//! Memory: how much there is, how fast it is, and huge pages.

use super::Check;
use crate::size::bytes;
use crate::{bench, progress};
use forerun::cpu::measure::BandwidthProbe;
use forerun::placement::available_memory;
use std::fs;

/// The memory that the measurement may take.
const MEASURED: u64 = 1 << 30;
/// Less memory is too little for models that chat well.
const LITTLE: u64 = 2_000_000_000;
/// The number of measurements of the bandwidth.
const READS: usize = 4;

pub(super) fn checks(measure: bool) -> Vec<Check> {
    let available = available_memory();
    let mut checks = vec![memory(available)];
    if measure {
        checks.push(match available.is_none_or(|available| available > MEASURED) {
            true => bandwidth(),
            false => Check::unknown("bandwidth", "there is too little memory to measure it"),
        });
    }
    let pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    checks.push(match pages {
        Ok(text) => huge_pages(&text),
        Err(_) => Check::unknown("huge pages", "the system does not say"),
    });
    checks
}

/// The memory for models.
fn memory(available: Option<u64>) -> Check {
    let Some(available) = available else {
        return Check::unknown("memory", "the system does not say how much is free");
    };
    // Caches, activations and the program need the rest.
    let weights = available / 5 * 4;
    let found = format!(
        "{} available, for models of about {} parameters in int8 or {} in bf16",
        bytes(available),
        crate::size::parameters(weights),
        crate::size::parameters(weights / 2),
    );
    match available < LITTLE {
        true => Check::advice(
            "memory",
            found,
            "stop other programs, or raise the memory limit of the container: models that chat well need more",
        ),
        false => Check::ok("memory", found),
    }
}

/// Measures how fast all default threads together read memory.
fn bandwidth() -> Check {
    let _progress = progress::Waiting::new("measuring the memory bandwidth");
    let team = match bench::team(None) {
        Ok(team) => team,
        Err(error) => return Check::unknown("bandwidth", format!("{error:#}")),
    };
    let probe = match BandwidthProbe::new() {
        Ok(probe) => probe,
        Err(error) => return Check::unknown("bandwidth", error.to_string()),
    };
    let best = (0..READS).map(|_| probe.read(&team)).fold(0.0, f64::max);
    Check::ok("bandwidth", describe(best))
}

fn describe(bandwidth: f64) -> String {
    let tokens = bandwidth / 1e9;
    format!(
        "{:.1} GB/s, so plain decoding with weights of 1 GB reaches at most {tokens:.0} tokens/s; smaller types \
         (`--dtype`) and drafts raise this limit",
        bandwidth / 1e9
    )
}

/// `text` is that of the system's file, such as `always [madvise] never`.
fn huge_pages(text: &str) -> Check {
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some("always") => Check::ok("huge pages", "used for all memory"),
        Some(chosen) => Check::advice(
            "huge pages",
            format!("off (transparent_hugepage={chosen})"),
            "as root, `echo always > /sys/kernel/mm/transparent_hugepage/enabled`, and compare with `forerun \
             devices --model MODEL`",
        ),
        None => Check::unknown("huge pages", "the system does not say"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn the_chosen_kind_of_pages_is_in_brackets() {
        assert_eq!(huge_pages("[always] madvise never\n").status, Status::Ok);
        let check = huge_pages("always [madvise] never\n");
        assert_eq!(check.status, Status::Advice);
        assert!(check.found.contains("madvise"), "{}", check.found);
        assert_eq!(huge_pages("").status, Status::Unknown);
    }

    #[test]
    fn memory_is_translated_to_models() {
        let check = memory(Some(10_000_000_000));
        assert_eq!(check.status, Status::Ok);
        assert!(
            check.found.contains("8.00 B parameters in int8 or 4.00 B in bf16"),
            "{}",
            check.found
        );
        assert_eq!(memory(Some(1_000_000_000)).status, Status::Advice);
        assert_eq!(memory(None).status, Status::Unknown);
        assert!(describe(20e9).starts_with(
            "20.0 GB/s, so plain decoding with weights of 1 GB reaches at most 20 tokens/s"
        ));
    }
}

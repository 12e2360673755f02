//! What is said below the panes: the speeds, and what the devices did.

use super::recording::Recording;
use super::{DRAFT_TOKENS, RUNS};

/// The time that timelines show, in tokens of plain decoding.
const SHOWN_TOKENS: f64 = 14.0;

/// A smaller gain is shown as less than 1.0.
const NO_LOSS: f64 = 0.95;

/// Returns the speeds and timelines of all methods, in lines of at most `columns` columns where
/// that is possible. The first method is plain decoding.
pub(super) fn summary(recordings: &[Recording], columns: usize) -> String {
    let Some(plain) = recordings.first() else { return String::new() };
    let window_ns = ((SHOWN_TOKENS * 1e9 / plain.speed()) as u64).max(1);
    let names = recordings.iter().flat_map(|recording| &recording.trace.lanes);
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let width = columns.saturating_sub(longest + 4).clamp(20, 120) as u64;
    let mut text = format!(
        "All methods wrote the same tokens, in {RUNS} runs each. Speeds are medians, with the\n\
         slowest and the fastest run. Each draft has up to {DRAFT_TOKENS} tokens.\n\n\
         Timelines show the {:.1} ms in which drafter and target worked together the most.\n\
         D: drafting, S: verification, d and s: the same with a rejection, x: cancelled,\n\
         a dot: idle.\n",
        window_ns as f64 / 1e6
    );
    for recording in recordings {
        let (trace, tokens) = recording.busiest(window_ns);
        text += &format!(
            "\n{}: {}\n{}{}\nTokens {} to {} of {}{}:\n{}",
            recording.title,
            recording.explanation,
            result(recording, plain),
            recording.paced.as_ref().map_or(String::new(), |paced| format!(", {paced}")),
            tokens.start(),
            tokens.end(),
            recording.tokens.len(),
            together(recording),
            trace.to_ascii(window_ns.div_ceil(width))
        );
    }
    if recordings.iter().filter_map(|one| one.gain(plain)).any(|gain| gain < NO_LOSS) {
        text += "\nDrafts pay most if the target is too large for the processor's cache. To find\n\
                 the fastest method for your own pair: forerun plan MODEL --draft-model DRAFTER\n";
    }
    text
}

/// Returns the speed of a method, and what its drafts gained or cost.
fn result(recording: &Recording, plain: &Recording) -> String {
    let [slowest, fastest] = recording.speeds;
    let speed = format!("{:.0} tok/s ({slowest:.0} to {fastest:.0})", recording.speed());
    let tokens = recording.statistics.mean_accepted_tokens();
    match recording.gain(plain) {
        _ if std::ptr::eq(recording, plain) => speed,
        None => format!("{speed}, no drafts: as plain decoding"),
        Some(gain) if gain < NO_LOSS => format!(
            "{speed}, {gain:.1} × plain decoding: slower, because a verification\n\
             gives {tokens:.2} tokens in the time of {:.2} plain ones",
            tokens / gain
        ),
        Some(gain) => format!("{speed}, {gain:.1} × plain decoding"),
    }
}

/// Returns how long drafter and target worked together in the whole answer, if they did.
fn together(recording: &Recording) -> String {
    let wall_ns = recording.trace.occupancy().wall_ns.max(1);
    match recording.trace.together_ns() {
        0 => String::new(),
        ns => format!(" (drafter and target together {} % of the whole time)", ns * 100 / wall_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::super::recording::tests::recording;
    use super::*;
    use forerun::Statistics;

    /// Returns the lines about a method with these statistics, and all of the summary.
    fn of_method(step_ns: u64, statistics: Statistics) -> (String, String) {
        let mut plain = recording("plain decoding", 1_000_000);
        plain.statistics = Statistics::default();
        let other = Recording { statistics, ..recording("PEARL", step_ns) };
        let text = summary(&[plain, other], 80);
        let start = text.find("\nPEARL: ").unwrap_or_default();
        (text[start..].to_owned(), text)
    }

    #[test]
    fn gains_and_losses_are_named_and_nothing_is_claimed_without_drafts() {
        let drafts =
            Statistics { drafts: 2, committed: 6, target_forwards: 4, ..Statistics::default() };
        let (lines, all) = of_method(500_000, drafts.clone());
        assert!(lines.contains("2000 tok/s (2000 to 2000), 2.0 × plain decoding\n"), "{lines}");
        assert!(lines.contains("Tokens 2 to 4 of 4 (drafter and target together 25 % "), "{lines}");
        assert!(!all.contains("slower") && !all.contains("forerun plan"), "{all}");
        assert!(all.contains("1000 tok/s (1000 to 1000)\n"), "{all}");

        let (lines, all) = of_method(2_000_000, drafts);
        assert!(lines.contains("0.5 × plain decoding: slower, because"), "{lines}");
        assert!(lines.contains("gives 1.50 tokens in the time of 3.00 plain ones\n"), "{lines}");
        assert!(all.contains("forerun plan MODEL --draft-model DRAFTER"), "{all}");

        let (lines, all) = of_method(500_000, Statistics::default());
        assert!(
            lines.contains("2000 tok/s (2000 to 2000), no drafts: as plain decoding\n"),
            "{lines}"
        );
        assert!(!lines.contains('×') && !all.contains("forerun plan"), "{all}");
    }
}

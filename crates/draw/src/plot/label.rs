//! Labels of axes.

/// Returns a column's name in words, with its unit.
#[must_use]
pub fn label(column: &str) -> String {
    match column {
        "speedup" => return "speedup over plain decoding (×)".into(),
        "tokens-per-s" => return "speed (tokens/s)".into(),
        "acceptance" => return "acceptance probability of a draft token".into(),
        "draft-tokens" => return "draft tokens per round".into(),
        "tokens-per-target-forward" => return "tokens per target forward".into(),
        "mean-ms" => return "time of an answer (ms)".into(),
        "deviation-ms" => return "standard deviation of an answer's time (ms)".into(),
        "target-ms" => return "target forward pass (ms)".into(),
        "draft-ms" => return "drafter forward pass (ms)".into(),
        "cancelled-time" => return "time in cancelled jobs (share)".into(),
        "unused-drafts" => return "unused draft tokens (share)".into(),
        "drafter-busy" | "target-busy" => return column.replace("-busy", " busy (share of time)"),
        _ => {}
    }
    match column.strip_suffix("-ms") {
        Some(name) => format!("{} (ms)", name.replace('-', " ")),
        None => column.replace('-', " "),
    }
}

/// Formats a number with four significant digits.
pub(crate) fn short(number: f64) -> String {
    let rounded: f64 = format!("{number:.3e}").parse().unwrap_or(number);
    // Negative zero.
    if rounded == 0.0 { "0".into() } else { rounded.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_units_and_numbers_are_short() {
        assert_eq!(label("link-ms"), "link (ms)");
        assert_eq!(label("row-count"), "row count");
        let shown = [0.30000000000000004, 12.0, 1.23456, -0.0, 1000.0].map(short);
        assert_eq!(shown, ["0.3", "12", "1.235", "0", "1000"]);
    }
}

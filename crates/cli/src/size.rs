//! Sizes as people read them.

/// Formats a number of bytes with three digits, such as `3.42 GB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    // A number that would be rounded to 1000 has the next unit.
    let unit = units.into_iter().find(|(size, _)| count as f64 >= size * 0.9995);
    let Some((size, name)) = unit else { return format!("{count} B") };
    format!("{} {name}", three_digits(count as f64 / size))
}

/// Formats a number of parameters, such as `135 M`.
pub(crate) fn parameters(count: u64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(size, _)| count as f64 >= size * 0.9995);
    let Some((size, name)) = unit else { return count.to_string() };
    format!("{} {name}", three_digits(count as f64 / size))
}

fn three_digits(number: f64) -> String {
    match number {
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (count, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (999_999, "1.00 MB"),
            (12_345_678, "12.3 MB"),
            (3_420_000_000, "3.42 GB"),
            (999_400_000_000, "999 GB"),
            (5_000_000_000_000, "5.00 TB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(parameters(134_515_008), "135 M");
        assert_eq!(parameters(7_240_000_000), "7.24 B");
        assert_eq!(parameters(12), "12");
    }
}

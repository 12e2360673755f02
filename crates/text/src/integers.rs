//! Integers that JSON values cannot hold exactly.

/// Returns the first integer of a JSON text that is neither within −2^63 to 2^63 − 1 nor within 0
/// to 2^64 − 1. Reading it would give another number.
#[must_use]
pub fn large_integer(json: &[u8]) -> Option<&str> {
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => {
                let mut escaped = false;
                let end = json[at + 1..].iter().position(|byte| {
                    let ends = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    ends
                });
                at += end? + 2;
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| {
                    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
                };
                let length = json[at..].iter().position(|byte| !is_part(byte));
                let length = length.unwrap_or(json.len() - at);
                let number = std::str::from_utf8(&json[at..at + length]).ok()?;
                if is_other_float(number) {
                    return Some(number);
                }
                let is_integer =
                    number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
                if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// Returns whether a number such as `9007199254740993.0` is an integer that is another one as a
/// floating-point number.
fn is_other_float(number: &str) -> bool {
    let Some((whole, fraction)) = number.split_once('.') else { return false };
    let is_integer = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    is_integer && number.parse::<f64>().is_ok_and(|value| format!("{value:.0}") != whole)
}

/// Returns what is wrong with such a number.
#[must_use]
pub fn too_large(number: &str) -> String {
    let shown: String = number.chars().take(40).collect();
    let dots = if shown.len() < number.len() { "…" } else { "" };
    format!("the integer {shown}{dots} has more digits than JSON numbers keep: send it as a string")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_more_than_64_bits_are_found() {
        let found = |json: &str| large_integer(json.as_bytes()).map(str::to_owned);
        for json in [
            "",
            "[-9223372036854775808, 18446744073709551615]",
            "{\"18446744073709551616\": \"\\\"99999999999999999999\", \"b\": 1e30, \"c\": 1.5}",
            "99999999999999999999.5",
            "\"unclosed 99999999999999999999",
        ] {
            assert_eq!(found(json), None, "{json}");
        }
        assert_eq!(
            found("{\"a\": [18446744073709551616]}").as_deref(),
            Some("18446744073709551616")
        );
        assert_eq!(found("-9223372036854775809").as_deref(), Some("-9223372036854775809"));
        assert_eq!(found("[9007199254740993.0]").as_deref(), Some("9007199254740993.0"));
        assert_eq!(found("[9007199254740992.0, -1.0, 0.0, 1.50]"), None);
        assert!(too_large(&"9".repeat(1000)).len() < 200);
    }
}

//! Strings of a schema: the regular expressions of their JSON texts.

use crate::grammar::gbnf::regex_character;
use llguidance::derivre::{RegexAst, RegexBuilder};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use std::fmt::Write as _;

/// How much work it may be to find out whether a regular expression matches anything, in
/// llguidance's units (about 100 ns each).
const FUEL: u64 = 500_000;

/// A character of a JSON string. Characters that need no escape have none, so that each text has
/// few spellings.
const CHARACTER: &str =
    r#"(?:[^"\\\x00-\x1F\x7F]|\\["\\bfnrt]|\\u00(?:0[0-9a-fA-F]|1[0-9a-fA-F]|7[fF]))"#;

/// The strings that a schema allows.
#[derive(Debug, Default)]
pub(super) struct Strings {
    pub(super) min_length: u64,
    pub(super) max_length: Option<u64>,
    /// Regular expressions of whole JSON texts, with their quotes.
    pub(super) quoted: Vec<String>,
}

impl Strings {
    /// Returns regular expressions that a string's JSON text must all match, or `None` if there is
    /// no such string.
    ///
    /// # Errors
    /// If it is too much work to find out whether there is one.
    pub(super) fn regexes(&self) -> Result<Option<Vec<String>>, String> {
        let Self { min_length, max_length, quoted } = self;
        let most = max_length.map(|most| most.to_string()).unwrap_or_default();
        let too_long = *min_length > u64::from(u32::MAX - 1);
        if max_length.is_some_and(|most| most < *min_length) || too_long {
            return Ok(None);
        }
        let mut all = quoted.clone();
        let counted = max_length.is_some_and(|most| most < u64::from(u32::MAX));
        if counted || *min_length > 0 {
            let most = if counted { &most } else { "" };
            all.push(format!("\"{CHARACTER}{{{min_length},{most}}}\""));
        } else if all.is_empty() {
            all.push(format!("\"{CHARACTER}*\""));
        }
        // Lengths alone always leave some strings.
        let is_empty = !quoted.is_empty() && is_empty(&all, &[])?;
        Ok((!is_empty).then_some(all))
    }
}

/// Returns whether no text matches all regular expressions of `all`, and none of `none`.
///
/// # Errors
/// If it is too much work to find out.
pub(super) fn is_empty(all: &[String], none: &[String]) -> Result<bool, String> {
    let regex = |text: &String| RegexAst::Regex(text.clone());
    let not = |text: &String| RegexAst::Not(Box::new(regex(text)));
    let parts = all.iter().map(regex).chain(none.iter().map(not)).collect();
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(&RegexAst::And(parts)).map_err(|error| error.to_string())?;
    let found = builder.into_regex_limited(expression, FUEL);
    let too_much =
        "it takes too long to find out whether a string can match its patterns and lengths";
    Ok(found.map_err(|_| too_much)?.always_empty())
}

/// Returns the regular expression of a string's own JSON text.
pub(super) fn literal(text: &str) -> String {
    text_of(text).chars().map(regex_character).collect()
}

/// Returns a string as JSON.
pub(super) fn text_of(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7F}', "\\u007f")
}

/// Returns the regular expression of the JSON texts of the strings in which a pattern is found.
///
/// # Errors
/// What is wrong with the pattern, or not supported.
pub(super) fn quoted(pattern: &str) -> Result<String, String> {
    let wrong = |reason: &str| format!("the pattern {pattern:?} cannot be used: {reason}");
    // As in ECMA-262, digits and letters are those of ASCII.
    let ascii = llguidance::regex_to_lark(pattern, "dw");
    let hir = regex_syntax::ParserBuilder::new().nest_limit(100).build().parse(&ascii);
    let hir = hir.map_err(|error| match error {
        regex_syntax::Error::Parse(error) => wrong(&error.kind().to_string()),
        regex_syntax::Error::Translate(error) => wrong(&error.kind().to_string()),
        error => wrong(&error.to_string()),
    })?;
    let mut inner = String::new();
    search(&hir, &mut inner).map_err(wrong)?;
    Ok(format!("\"{inner}\""))
}

/// Returns the regular expressions of the JSON texts of a format's strings. There are none for a
/// format that is not known: such formats are annotations, as the specification has it.
///
/// # Errors
/// Never for the formats here.
pub(super) fn format(name: &str) -> Result<Vec<String>, String> {
    const DATE: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
                        |02-(?:0[1-9]|1[0-9]|2[0-8]))";
    // Without leap seconds, which few minutes have (RFC 3339, section 5.7).
    const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    const IPV4: &str = "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}\
                        (?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const URI_TEXT: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*";
    let mut longest = None;
    let pattern = match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => {
            let time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
            let days = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
            format!("P(?:[0-9]+W|{days}(?:{time})?|{time})")
        }
        "email" => {
            longest = Some("[^@]{1,64}@.{1,189}");
            format!("[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@{LABEL}(?:\\.{LABEL})+")
        }
        "hostname" => {
            longest = Some(".{1,253}");
            format!("{LABEL}(?:\\.{LABEL})*")
        }
        "ipv4" => IPV4.to_owned(),
        "ipv6" => {
            let group = "[0-9A-Fa-f]{1,4}";
            let mut options = vec![format!("{group}(?::{group}){{7}}")];
            options.extend((0..6).map(|before| {
                let head = match before {
                    0 => String::new(),
                    _ => format!("{group}(?::{group}){{{}}}", before - 1),
                };
                format!("{head}::(?:{group}(?::{group}){{0,{}}})?", 5 - before)
            }));
            options.join("|")
        }
        "uuid" => {
            "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}".to_owned()
        }
        "uri" => format!(
            "[A-Za-z][A-Za-z0-9+.-]*:(?://{LABEL}(?:\\.{LABEL})*(?::[0-9]{{1,5}})?(?:/{URI_TEXT})?|[A-Za-z0-9]{URI_TEXT})"
        ),
        _ => return Ok(Vec::new()),
    };
    let patterns = [Some(&*pattern), longest].into_iter().flatten();
    patterns.map(|pattern| quoted(&format!("^(?:{pattern})$"))).collect()
}

/// Writes the regular expression of the strings in which `hir` is found.
fn search(hir: &Hir, out: &mut String) -> Result<(), &'static str> {
    match hir.kind() {
        HirKind::Capture(capture) => return search(&capture.sub, out),
        HirKind::Alternation(options) => {
            return joined(options, out, search);
        }
        _ => {}
    }
    let mut parts = match hir.kind() {
        HirKind::Concat(parts) => &parts[..],
        _ => std::slice::from_ref(hir),
    };
    let is = |part: &Hir, looks: [Look; 2]| matches!(part.kind(), HirKind::Look(look) if looks.contains(look));
    let (starts, ends) = ([Look::Start, Look::StartLF], [Look::End, Look::EndLF]);
    let (mut at_start, mut at_end) = (false, false);
    while let [first, rest @ ..] = parts
        && is(first, starts)
    {
        (at_start, parts) = (true, rest);
    }
    while let [rest @ .., last] = parts
        && is(last, ends)
    {
        (at_end, parts) = (true, rest);
    }
    if !at_start {
        let _ = write!(out, "{CHARACTER}*");
    }
    for part in parts {
        write(part, out)?;
    }
    if !at_end {
        let _ = write!(out, "{CHARACTER}*");
    }
    Ok(())
}

/// Writes a group of options.
fn joined(
    options: &[Hir],
    out: &mut String,
    mut write: impl FnMut(&Hir, &mut String) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    out.push_str("(?:");
    for (index, option) in options.iter().enumerate() {
        if index > 0 {
            out.push('|');
        }
        write(option, out)?;
    }
    out.push(')');
    Ok(())
}

/// Writes the regular expression of the JSON text of what `hir` matches.
fn write(hir: &Hir, out: &mut String) -> Result<(), &'static str> {
    match hir.kind() {
        HirKind::Empty => out.push_str("(?:)"),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "it matches single bytes")?;
            text.chars().for_each(|character| spell(character, out));
        }
        HirKind::Class(Class::Unicode(class)) => class_of(class, out),
        HirKind::Class(Class::Bytes(class)) => {
            class_of(&class.to_unicode_class().ok_or("it matches single bytes")?, out);
        }
        HirKind::Look(Look::Start | Look::StartLF | Look::End | Look::EndLF) => {
            return Err("`^` and `$` are supported at its start and end only");
        }
        HirKind::Look(_) => return Err("boundaries of words are not supported"),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write(&repetition.sub, out)?;
            let most = repetition.max.map(|most| most.to_string()).unwrap_or_default();
            let _ = write!(out, "){{{},{most}}}", repetition.min);
        }
        HirKind::Capture(capture) => {
            out.push_str("(?:");
            write(&capture.sub, out)?;
            out.push(')');
        }
        HirKind::Concat(parts) => return parts.iter().try_for_each(|part| write(part, out)),
        HirKind::Alternation(options) => return joined(options, out, write),
    }
    Ok(())
}

/// Returns the letter after the backslash of a character with a short escape.
fn short_escape(character: char) -> Option<char> {
    Some(match character {
        '"' | '\\' => character,
        '\u{8}' => 'b',
        '\u{C}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        _ => return None,
    })
}

/// Writes the regular expression of a character in a JSON string.
fn spell(character: char, out: &mut String) {
    let code = u32::from(character);
    match short_escape(character) {
        Some(letter) => {
            out.push_str(r"\\");
            out.push_str(&regex_character(letter));
        }
        None if character.is_ascii_control() => {
            let (high, low) = (code >> 4, code & 15);
            let _ = match low {
                10.. => {
                    let letter = char::from(b'a' + low as u8 - 10);
                    write!(out, r"\\u00{high}[{letter}{}]", letter.to_ascii_uppercase())
                }
                _ => write!(out, r"\\u00{high}{low}"),
            };
        }
        None => out.push_str(&regex_character(character)),
    }
}

/// Writes the regular expression of a class of characters.
fn class_of(class: &ClassUnicode, out: &mut String) {
    let escaped = ['\0'..='\u{1F}', '"'..='"', '\\'..='\\', '\u{7F}'..='\u{7F}'];
    let ranges =
        escaped.each_ref().map(|range| ClassUnicodeRange::new(*range.start(), *range.end()));
    let mut with_escape = ClassUnicode::new(ranges);
    let mut plain = class.clone();
    plain.difference(&with_escape);
    with_escape.intersect(class);
    let mut options = Vec::new();
    if !plain.ranges().is_empty() {
        let mut text = String::from("[");
        for range in plain.ranges() {
            text.push_str(&regex_character(range.start()));
            if range.end() > range.start() {
                text.push('-');
                text.push_str(&regex_character(range.end()));
            }
        }
        text.push(']');
        options.push(text);
    }
    for character in with_escape.ranges().iter().flat_map(|range| range.start()..=range.end()) {
        let mut text = String::new();
        spell(character, &mut text);
        options.push(text);
    }
    match &options[..] {
        // Nothing matches.
        [] => out.push_str(r"[^\x{0}-\x{10FFFF}]"),
        [one] => out.push_str(one),
        all => {
            let _ = write!(out, "(?:{})", all.join("|"));
        }
    }
}

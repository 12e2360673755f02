//! Methods of Python's strings.

use super::arguments::{bind, flag, integer, integer_or, items, pairs, required, string};
use super::characters::{self, decimal, ends_line, has_case, is_space, is_title, printable};
use super::text::{str, type_name};
use super::{failure, format};
use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

pub(super) const METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Calls a method. Returns `None` if there is none of this name.
pub(super) fn method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let found = match name {
        "lower" | "upper" | "title" | "capitalize" | "swapcase" | "casefold" => {
            let [] = bind(name, [], arguments)?;
            Value::from(cased(text, name))
        }
        _ if name.starts_with("is") && METHODS.contains(&name) => {
            let [] = bind(name, [], arguments)?;
            Value::from(is(text, name))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = bind(name, ["chars"], arguments)?;
            let characters = characters.filter(|characters| !characters.is_none());
            let characters = characters.as_ref().map(|value| string(name, value)).transpose()?;
            Value::from(stripped(text, characters, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => split(text, name, arguments)?,
        "splitlines" => {
            let [keep] = bind(name, ["keepends"], arguments)?;
            lines(text, flag(keep.as_ref())).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => partition(text, name, arguments)?,
        "join" => join(text, arguments)?,
        "replace" => {
            let [old, new, count] = bind(name, ["old", "new", "count"], arguments)?;
            let (old, new) = (required(name, "old", old)?, required(name, "new", new)?);
            let (old, new) = (string(name, &old)?, string(name, &new)?);
            Value::from(replaced(text, old, new, integer_or(name, count.as_ref(), -1)?))
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            search(text, name, arguments)?
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = bind(name, ["affix"], arguments)?;
            let affix = required(name, "affix", affix)?;
            let affix = string(name, &affix)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(affix),
                _ => text.strip_suffix(affix),
            };
            Value::from(rest.unwrap_or(text))
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = bind(name, ["width", "fillchar"], arguments)?;
            let width = integer(name, &required(name, "width", width)?)?;
            let fill = fill.unwrap_or_else(|| Value::from(" "));
            let mut fill = string(name, &fill)?.chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return Err(failure(format!("{name} fills with exactly one character")));
            };
            Value::from(padded(text, name, width, fill))
        }
        "zfill" => {
            let [width] = bind(name, ["width"], arguments)?;
            let width = integer(name, &required(name, "width", width)?)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = if text.starts_with(['+', '-']) { &text[..1] } else { "" };
            let digits = if sign.is_empty() { digits } else { &text[1..] };
            let width = width.saturating_sub(sign.len() as i64);
            Value::from(sign.to_owned() + &padded(digits, "rjust", width, '0'))
        }
        "expandtabs" => {
            let [size] = bind(name, ["tabsize"], arguments)?;
            Value::from(with_spaces(text, integer_or(name, size.as_ref(), 8)?))
        }
        "format" => format::braces(text, arguments)?,
        "format_map" => {
            let [map] = bind(name, ["mapping"], arguments)?;
            format::braces_of(text, &[], &pairs(&required(name, "mapping", map)?))?
        }
        "translate" => {
            let [table] = bind(name, ["table"], arguments)?;
            Value::from(translated(text, &required(name, "table", table)?)?)
        }
        "encode" => {
            let [encoding, errors] = bind(name, ["encoding", "errors"], arguments)?;
            let encoding = encoding.as_ref().map_or(Ok("utf-8"), |value| string(name, value))?;
            match encoding.to_ascii_lowercase().replace('_', "-").as_str() {
                "utf-8" | "utf8" if errors.is_none() => Value::from_bytes(text.into()),
                _ => return Err(failure("encode supports only UTF-8")),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Calls a method of bytes.
pub(super) fn bytes_method(bytes: &[u8], name: &str) -> Result<Option<Value>, Error> {
    match name {
        "decode" => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(Value::from(text))),
            Err(_) => Err(failure("the bytes are not UTF-8")),
        },
        _ => Ok(None),
    }
}

/// Returns the text in another case, by the name of the method.
pub(super) fn cased(text: &str, name: &str) -> String {
    match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
        "capitalize" => {
            let mut characters = text.chars();
            let first = characters.next().map(characters::title);
            first.unwrap_or_default() + &characters.as_str().to_lowercase()
        }
        "swapcase" => {
            let mut swapped = String::with_capacity(text.len());
            for character in text.chars() {
                match character {
                    _ if is_title(character) => swapped.push(character),
                    _ if character.is_uppercase() => swapped.extend(character.to_lowercase()),
                    _ => swapped.extend(character.to_uppercase()),
                }
            }
            swapped
        }
        _ => {
            let mut titled = String::with_capacity(text.len());
            for word in text.split_inclusive(|character| !has_case(character)) {
                let mut characters = word.chars();
                let first = characters.next();
                titled += &first.map(characters::title).unwrap_or_default();
                // The lower case of a letter depends on those before it.
                let first = first.map_or(0, |first| first.to_lowercase().map(char::len_utf8).sum());
                titled += &word.to_lowercase()[first..];
            }
            titled
        }
    }
}

/// Returns what a method whose name begins with `is` says of a text.
fn is(text: &str, name: &str) -> bool {
    let some_and_all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = text.chars().any(has_case);
    match name {
        "isalpha" => some_and_all(characters::is_letter),
        "isdecimal" => some_and_all(|character| decimal(character).is_some()),
        "isdigit" => some_and_all(characters::is_digit),
        "isnumeric" => some_and_all(characters::is_numeric),
        "isalnum" => some_and_all(|one| characters::is_letter(one) || characters::is_numeric(one)),
        "isspace" => some_and_all(is_space),
        "islower" => cased && !text.chars().any(|one| one.is_uppercase() || is_title(one)),
        "isupper" => cased && !text.chars().any(|one| one.is_lowercase() || is_title(one)),
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(printable),
        "isidentifier" => {
            let mut characters = text.chars();
            let starts = |one: char| one == '_' || one.is_alphabetic();
            characters.next().is_some_and(starts)
                && characters.all(|one| starts(one) || decimal(one).is_some())
        }
        _ => {
            // In a title, capitals follow characters without case, and only those.
            let mut within_word = false;
            cased
                && text.chars().all(|one| {
                    let capital = one.is_uppercase() || is_title(one);
                    let right = !has_case(one) || capital != within_word;
                    within_word = has_case(one);
                    right
                })
        }
    }
}

/// Returns the text without characters at its ends: those given, or whitespace.
pub(super) fn stripped<'a>(
    text: &'a str,
    characters: Option<&str>,
    start: bool,
    end: bool,
) -> &'a str {
    let unwanted = |one: char| match characters {
        Some(characters) => characters.contains(one),
        None => is_space(one),
    };
    let text = if start { text.trim_start_matches(unwanted) } else { text };
    if end { text.trim_end_matches(unwanted) } else { text }
}

fn split(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, count] = bind(name, ["sep", "maxsplit"], arguments)?;
    let count = integer_or(name, count.as_ref(), -1)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let from_end = name == "rsplit";
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts = Vec::new();
    let mut rest = text;
    match separator.as_ref().map(|separator| string(name, separator)).transpose()? {
        Some("") => return Err(failure(format!("{name} needs a separator that is not empty"))),
        Some(separator) => {
            while parts.len() < count {
                let halves = match from_end {
                    true => rest.rsplit_once(separator).map(|(rest, part)| (part, rest)),
                    false => rest.split_once(separator),
                };
                let Some((part, others)) = halves else { break };
                parts.push(part);
                rest = others;
            }
            parts.push(rest);
        }
        None => loop {
            rest = stripped(rest, None, !from_end, from_end);
            if rest.is_empty() {
                break;
            }
            let space = match from_end {
                true => rest.rfind(is_space),
                false => rest.find(is_space),
            };
            let Some(space) = space.filter(|_| parts.len() < count) else {
                parts.push(stripped(rest, None, false, from_end));
                break;
            };
            let width = rest[space..].chars().next().map_or(0, char::len_utf8);
            let (before, after) = (&rest[..space], &rest[space + width..]);
            let (part, others) = if from_end { (after, before) } else { (before, after) };
            parts.push(part);
            rest = others;
        },
    }
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Returns the lines of a text, with what ends them if `keep` is set.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(ends_line) {
        let width = rest[end..].chars().next().map_or(0, char::len_utf8);
        let next = if rest[end..].starts_with("\r\n") { end + 2 } else { end + width };
        lines.push(if keep { &rest[..next] } else { &rest[..end] });
        rest = &rest[next..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn partition(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(name, ["sep"], arguments)?;
    let separator = required(name, "sep", separator)?;
    let separator = string(name, &separator)?;
    if separator.is_empty() {
        return Err(failure(format!("{name} needs a separator that is not empty")));
    }
    let from_end = name == "rpartition";
    let halves = match from_end {
        true => text.rsplit_once(separator),
        false => text.split_once(separator),
    };
    let parts = match halves {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

fn join(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [list] = bind("join", ["iterable"], arguments)?;
    let mut joined = String::new();
    for (number, item) in items(&required("join", "iterable", list)?)?.iter().enumerate() {
        joined += if number > 0 { text } else { "" };
        joined += string("join", item)?;
    }
    Ok(Value::from(joined))
}

/// Replaces the first `count` places, or all if it is negative.
pub(super) fn replaced(text: &str, old: &str, new: &str, count: i64) -> String {
    match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }
}

/// Searches for a text within a part of another.
fn search(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, stop] = bind(name, ["sub", "start", "end"], arguments)?;
    let wanted = required(name, "sub", wanted)?;
    let part = part(
        text,
        integer_or(name, start.as_ref(), 0)?,
        integer_or(name, stop.as_ref(), i64::MAX)?,
    );
    if matches!(name, "startswith" | "endswith") {
        let alternatives = if wanted.is_tuple() { items(&wanted)? } else { vec![wanted] };
        for alternative in &alternatives {
            let wanted = string(name, alternative)?;
            let found = part.is_some_and(|(_, part)| match name {
                "startswith" => part.starts_with(wanted),
                _ => part.ends_with(wanted),
            });
            if found {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    let wanted = string(name, &wanted)?;
    if name == "count" {
        return Ok(Value::from(part.map_or(0, |(_, part)| part.matches(wanted).count())));
    }
    let found = part.and_then(|(skipped, part)| {
        let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| skipped + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(failure(format!("the text that {name} looks for is not there"))),
    }
}

/// Returns `text[start:stop]`, and how many characters are before it. There is none if it would
/// start after the text's end, or after its own.
fn part(text: &str, start: i64, stop: i64) -> Option<(usize, &str)> {
    let length = text.chars().count();
    let bound = |bound: i64| match usize::try_from(bound) {
        Ok(bound) => bound,
        Err(_) => length.saturating_sub(bound.unsigned_abs() as usize),
    };
    let (start, stop) = (bound(start), bound(stop).min(length));
    if start > stop {
        return None;
    }
    let offset = |index| text.char_indices().nth(index).map_or(text.len(), |(offset, _)| offset);
    Some((start, &text[offset(start)..offset(stop)]))
}

fn padded(text: &str, name: &str, width: i64, fill: char) -> String {
    let length = text.chars().count();
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(length);
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Python puts the odd character before a text if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = |count| String::from(fill).repeat(count);
    fill(before) + text + &fill(missing - before)
}

fn with_spaces(text: &str, size: i64) -> String {
    let size = usize::try_from(size).unwrap_or(0);
    let (mut expanded, mut column) = (String::with_capacity(text.len()), 0);
    for character in text.chars() {
        match character {
            '\t' => {
                let spaces = if size > 0 { size - column % size } else { 0 };
                expanded.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            _ => {
                expanded.push(character);
                column = if matches!(character, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    expanded
}

fn translated(text: &str, table: &Value) -> Result<String, Error> {
    let mut translated = String::with_capacity(text.len());
    for character in text.chars() {
        let code = Value::from(u32::from(character));
        let new = table.as_object().and_then(|table| table.get_value(&code));
        match new {
            None => translated.push(character),
            Some(new) => match new.kind() {
                ValueKind::None => {}
                ValueKind::String => translated += &str(&new),
                _ => {
                    let code = u32::try_from(integer("translate", &new)?).ok();
                    translated.push(code.and_then(char::from_u32).ok_or_else(|| {
                        failure(format!("translate: no character for {}", type_name(&new)))
                    })?);
                }
            },
        }
    }
    Ok(translated)
}

//! From conjunctions of schemas to rules.

use super::Style;
use super::decimal::Decimal;
use super::document::{Document, Kind, Part, at, below};
use super::rules::{Rule, Rules, Symbol, Terminal, Written};
use super::strings::{self, Strings};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet, VecDeque};

/// More items or properties are not counted.
pub(super) const MOST_COUNTED: u64 = 1_000_000_000;

pub(super) struct Compiler<'a> {
    pub(super) document: Document<'a>,
    pub(super) style: &'a Style,
    pub(super) rules: Rules,
    root: &'a Value,
    /// The rules of conjunctions, by their sorted parts.
    known: HashMap<Vec<Part>, Rule>,
    /// Conjunctions whose rules have no text yet.
    waiting: VecDeque<(Vec<Part>, Rule)>,
    /// Rules that must have no text, because the options of `oneOf` must exclude each other, and
    /// the place.
    excluded: Vec<(Rule, String)>,
    /// The regular expressions of patterns.
    patterns: HashMap<String, String>,
}

/// The types of values that a conjunction allows.
#[derive(Clone, Copy, Debug)]
struct Types {
    null: bool,
    boolean: bool,
    number: Numbers,
    string: bool,
    array: bool,
    object: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Numbers {
    None,
    Integers,
    All,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(root: &'a Value, style: &'a Style) -> Self {
        Self {
            document: Document::new(root),
            style,
            rules: Rules::default(),
            root,
            known: HashMap::new(),
            waiting: VecDeque::new(),
            excluded: Vec::new(),
            patterns: HashMap::new(),
        }
    }

    /// Writes the rules of the schema.
    pub(super) fn compile(mut self, written: &mut Written<'_>) -> Result<(), String> {
        let root = self.document.schema(self.root, "")?;
        let start = self.conjunction(root.into_iter().collect())?;
        while let Some((parts, rule)) = self.waiting.pop_front() {
            self.expand(parts, rule)?;
        }
        let productive = self.rules.productive();
        for (rule, place) in &self.excluded {
            if productive.has(*rule) {
                let message = "a value can satisfy several options of `oneOf`, which is not supported: use `anyOf`, \
                               or options that exclude each other";
                return Err(at(place, message));
            }
        }
        if !productive.has(start) {
            return Err("no value satisfies it".into());
        }
        self.rules.write(start, &productive, written);
        Ok(())
    }

    /// Returns the rule of the values that satisfy all parts.
    pub(super) fn conjunction(&mut self, parts: Vec<Part>) -> Result<Rule, String> {
        let mut key = parts.clone();
        key.sort_unstable();
        key.dedup();
        if let Some(&rule) = self.known.get(&key) {
            return Ok(rule);
        }
        let rule = self.rules.add()?;
        self.known.insert(key, rule);
        self.waiting.push_back((parts, rule));
        Ok(rule)
    }

    /// Adds what `allOf`, `$ref` and `const` require.
    pub(super) fn closure(&mut self, parts: Vec<Part>) -> Result<Vec<Part>, String> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        let mut waiting: VecDeque<Part> = parts.into();
        while let Some(part) = waiting.pop_front() {
            if !seen.insert(part) {
                continue;
            }
            all.push(part);
            let Kind::Schema(schema) = self.document.kind(part) else { continue };
            let place = self.document.place(part).to_owned();
            if let Some(reference) = schema.get("$ref") {
                waiting.extend(self.document.target(reference, &place)?);
            }
            if let Some(value) = schema.get("const") {
                waiting.push_back(self.document.constant(value, &below(&place, "const")));
            }
            for (option, place) in options(schema, "allOf", &place)? {
                waiting.extend(self.document.schema(option, &place)?);
            }
        }
        Ok(all)
    }

    /// Allows the texts of a conjunction.
    fn expand(&mut self, parts: Vec<Part>, rule: Rule) -> Result<(), String> {
        let all = self.closure(parts)?;
        if all.contains(&Document::NEVER) {
            return Ok(());
        }
        if let Some(options) = self.choice(&all)? {
            for option in options {
                let next = self.conjunction([&all[..], &[option]].concat())?;
                self.rules.allow(rule, vec![Symbol::Rule(next)]);
            }
            return Ok(());
        }
        let types = self.types(&all)?;
        if types.null {
            let null = self.rules.text("null");
            self.rules.allow(rule, vec![null]);
        }
        if types.boolean {
            self.booleans(&all, rule);
        }
        if types.number != Numbers::None {
            self.numbers(&all, types.number == Numbers::Integers, rule)?;
        }
        if types.string
            && let Some(string) = self.strings(&all)?
        {
            self.rules.allow(rule, vec![string]);
        }
        if types.array {
            self.arrays(&all, rule)?;
        }
        if types.object {
            self.objects(&all, rule)?;
        }
        Ok(())
    }

    /// Returns the options of the first choice that is not made yet.
    pub(super) fn choice(&mut self, all: &[Part]) -> Result<Option<Vec<Part>>, String> {
        for &part in all {
            let Kind::Schema(schema) = self.document.kind(part) else { continue };
            let place = self.document.place(part).to_owned();
            if let Some(values) = schema.get("enum") {
                let wrong = || at(&place, "`enum` must be a list");
                let values = values.as_array().ok_or_else(wrong)?;
                let place = below(&place, "enum");
                let range = values.as_ptr_range();
                let is_made = all.iter().any(|&part| {
                    matches!(self.document.kind(part), Kind::Const(value) if range.contains(&std::ptr::from_ref(value)))
                });
                if !is_made {
                    let constant = |value| self.document.constant(value, &place);
                    return Ok(Some(values.iter().map(constant).collect()));
                }
            }
            for keyword in ["anyOf", "oneOf"] {
                let mut found = Vec::new();
                for (option, place) in options(schema, keyword, &place)? {
                    found.push(self.document.schema(option, &place)?);
                }
                let is_made =
                    found.iter().any(|option| option.is_none_or(|option| all.contains(&option)));
                if keyword == "oneOf" && !(is_made && found.iter().all(Option::is_some)) {
                    self.exclude_pairs(all, &found, &below(&place, keyword))?;
                }
                if schema.contains_key(keyword) && !is_made {
                    return Ok(Some(found.into_iter().flatten().collect()));
                }
            }
        }
        Ok(None)
    }

    /// Requires that no value satisfies two of the options.
    fn exclude_pairs(
        &mut self,
        all: &[Part],
        options: &[Option<Part>],
        place: &str,
    ) -> Result<(), String> {
        for (index, first) in options.iter().enumerate() {
            for second in &options[..index] {
                let both = all.iter().chain(first).chain(second).copied();
                let rule = self.conjunction(both.collect())?;
                self.excluded.push((rule, place.to_owned()));
            }
        }
        Ok(())
    }

    fn types(&self, all: &[Part]) -> Result<Types, String> {
        let mut types = Types::new(true, Numbers::All);
        for &part in all {
            types.keep(match self.document.kind(part) {
                Kind::Never => Types::new(false, Numbers::None),
                Kind::Name(_) => Types::of(&Value::from("")),
                Kind::Const(value) => Types::of(value),
                Kind::Schema(schema) => match schema.get("type") {
                    None => continue,
                    Some(names) => Types::named(names)
                        .map_err(|reason| at(self.document.place(part), &reason))?,
                },
            });
        }
        Ok(types)
    }

    fn booleans(&mut self, all: &[Part], rule: Rule) {
        for value in [true, false] {
            let differs = |part: &&Part| matches!(self.document.kind(**part), Kind::Const(other) if *other != value);
            if !all.iter().any(|part| differs(&part)) {
                let text = self.rules.text(if value { "true" } else { "false" });
                self.rules.allow(rule, vec![text]);
            }
        }
    }

    /// Returns the place of the first part with a keyword.
    pub(super) fn first_place(&self, all: &[Part], keyword: &str) -> &str {
        let has = |part: &&Part| matches!(self.document.kind(**part), Kind::Schema(schema) if schema.contains_key(keyword));
        all.iter().find(has).map_or("", |part| self.document.place(*part))
    }

    /// Returns the strings of a conjunction, if there are any.
    fn strings(&mut self, all: &[Part]) -> Result<Option<Symbol>, String> {
        let strings = self.strings_of(all)?;
        let mut constants = all.iter().filter_map(|&part| match self.document.kind(part) {
            Kind::Const(value) => value.as_str(),
            Kind::Name(number) => Some(self.document.name(number)),
            _ => None,
        });
        let place = |reason: String| at(self.first_place(all, "pattern"), &reason);
        let Some(text) = constants.next() else {
            let regexes = strings.regexes().map_err(place)?;
            return Ok(regexes.map(|all| self.rules.terminal(Terminal::Regex(all, Vec::new()))));
        };
        if constants.any(|other| other != text) {
            return Ok(None);
        }
        let length = text.chars().count() as u64;
        if length < strings.min_length || strings.max_length.is_some_and(|most| length > most) {
            return Ok(None);
        }
        if !strings.quoted.is_empty() {
            let both = [&strings.quoted[..], &[strings::literal(text)]].concat();
            if strings::is_empty(&both, &[]).map_err(place)? {
                return Ok(None);
            }
        }
        let text = strings::text_of(text);
        Ok(Some(self.rules.text(&text)))
    }

    /// Returns what the schemas of a conjunction say about strings.
    pub(super) fn strings_of(&mut self, all: &[Part]) -> Result<Strings, String> {
        let mut strings = Strings::default();
        for &part in all {
            let Kind::Schema(schema) = self.document.kind(part) else { continue };
            let place = self.document.place(part).to_owned();
            let (least, most) = counts(schema, "minLength", "maxLength", &place)?;
            strings.min_length = strings.min_length.max(least);
            strings.max_length = smaller(strings.max_length, most);
            if let Some(pattern) = text(schema, "pattern", &place)? {
                strings.quoted.push(self.pattern(pattern, &place)?);
            }
            if let Some(name) = text(schema, "format", &place)? {
                strings.quoted.extend(strings::format(name)?);
            }
        }
        strings.quoted.dedup();
        Ok(strings)
    }

    /// Returns the regular expression of the strings in which a pattern is found.
    pub(super) fn pattern(&mut self, pattern: &str, place: &str) -> Result<String, String> {
        if let Some(known) = self.patterns.get(pattern) {
            return Ok(known.clone());
        }
        let quoted = strings::quoted(pattern).map_err(|reason| at(place, &reason))?;
        self.patterns.insert(pattern.to_owned(), quoted.clone());
        Ok(quoted)
    }

    /// Returns the rule of a separator and what follows it.
    pub(super) fn separated(&mut self, symbols: Vec<Symbol>) -> Result<Rule, String> {
        let rule = self.rules.add()?;
        let separator = self.rules.text(&self.style.item_separator);
        self.rules.allow(rule, [vec![separator], symbols].concat());
        Ok(rule)
    }
}

impl Types {
    fn new(all: bool, number: Numbers) -> Self {
        Self { null: all, boolean: all, number, string: all, array: all, object: all }
    }

    fn of(value: &Value) -> Self {
        let none = Self::new(false, Numbers::None);
        match value {
            Value::Null => Self { null: true, ..none },
            Value::Bool(_) => Self { boolean: true, ..none },
            Value::Number(number) if Decimal::new(number).is_integer() => {
                Self { number: Numbers::Integers, ..none }
            }
            Value::Number(_) => Self { number: Numbers::All, ..none },
            Value::String(_) => Self { string: true, ..none },
            Value::Array(_) => Self { array: true, ..none },
            Value::Object(_) => Self { object: true, ..none },
        }
    }

    /// Reads a type's name, or a list of names.
    fn named(names: &Value) -> Result<Self, String> {
        let mut types = Self::new(false, Numbers::None);
        let names = names.as_array().map_or(std::slice::from_ref(names), Vec::as_slice);
        for name in names {
            match name.as_str() {
                Some("null") => types.null = true,
                Some("boolean") => types.boolean = true,
                Some("number") => types.number = Numbers::All,
                Some("integer") => types.number = types.number.max(Numbers::Integers),
                Some("string") => types.string = true,
                Some("array") => types.array = true,
                Some("object") => types.object = true,
                Some("any") => types = Self::new(true, Numbers::All),
                _ => return Err(format!("there is no type {name}")),
            }
        }
        Ok(types)
    }

    fn keep(&mut self, other: Self) {
        self.null &= other.null;
        self.boolean &= other.boolean;
        self.number = self.number.min(other.number);
        self.string &= other.string;
        self.array &= other.array;
        self.object &= other.object;
    }
}

/// Returns the schemas of `allOf`, `anyOf` or `oneOf` with their places.
fn options<'a>(
    schema: &'a Map<String, Value>,
    keyword: &str,
    place: &str,
) -> Result<Vec<(&'a Value, String)>, String> {
    let Some(options) = schema.get(keyword) else { return Ok(Vec::new()) };
    let wrong = || at(place, &format!("`{keyword}` must be a list of schemas"));
    let options = options.as_array().ok_or_else(wrong)?;
    let place = below(place, keyword);
    Ok(options.iter().enumerate().map(|(index, one)| (one, format!("{place}/{index}"))).collect())
}

/// Returns two counts of a schema: the least and the most.
pub(super) fn counts(
    schema: &Map<String, Value>,
    least: &str,
    most: &str,
    place: &str,
) -> Result<(u64, Option<u64>), String> {
    let count = |keyword: &str| match schema.get(keyword) {
        None => Ok(None),
        Some(value) => {
            let whole = || value.as_f64().filter(|value| value.fract() == 0.0 && *value >= 0.0);
            let count = value.as_u64().or_else(|| whole().map(|value| value as u64));
            let wrong =
                || at(place, &format!("`{keyword}` must be a number of at least 0, not {value}"));
            count.map(Some).ok_or_else(wrong)
        }
    };
    Ok((count(least)?.unwrap_or(0), count(most)?))
}

fn text<'a>(
    schema: &'a Map<String, Value>,
    keyword: &str,
    place: &str,
) -> Result<Option<&'a str>, String> {
    match schema.get(keyword) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(at(place, &format!("`{keyword}` must be a text"))),
    }
}

pub(super) fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

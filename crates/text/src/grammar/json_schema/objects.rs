//! Objects: properties in the order in which the schemas list them, and then further ones.
//!
//! Schemas that list properties usually mean no others, so there are none unless one of the schemas
//! speaks of them, as with `additionalProperties: true`. Each answer satisfies the schemas all the
//! same.

use super::compiler::{Compiler, MOST_COUNTED, counts, smaller};
use super::document::{Document, Kind, Part, at, below};
use super::rules::{Rule, Symbol, Terminal};
use super::strings;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The most patterns of names in one object.
const MOST_PATTERNS: usize = 8;

/// The most states of counting an object's properties.
const MOST_COUNTS: u64 = 20_000;

/// Keywords about properties that are not listed. `false` allows none.
const OPENING: [&str; 3] = ["additionalProperties", "unevaluatedProperties", "propertyNames"];

/// What the schemas of a conjunction say about objects.
#[derive(Default)]
struct Properties {
    /// All names that have a schema of their own or are required.
    names: Vec<String>,
    required: HashSet<String>,
    patterns: Vec<String>,
    least: u64,
    most: Option<u64>,
    /// The schemas of the names themselves.
    of_names: Vec<Part>,
    /// Whether only `names` are allowed.
    closed: bool,
    /// Whether a schema lists properties or patterns of names.
    lists: bool,
    /// Whether a schema speaks of names that none lists.
    opens: bool,
}

impl Properties {
    /// Returns whether a property is allowed whose name has no schema and matches no pattern.
    fn is_open(&self) -> bool {
        !self.lists || self.opens || self.least > self.names.len() as u64
    }
}

impl Compiler<'_> {
    pub(super) fn objects(&mut self, all: &[Part], rule: Rule) -> Result<(), String> {
        let properties = self.properties(all)?;
        let mut items = Vec::new();
        for name in &properties.names {
            let parts = self.parts_of(all, name)?;
            let mut symbols = Vec::new();
            if !properties.of_names.is_empty() {
                let named = self.document.named(name);
                let parts = [&properties.of_names[..], &[named]].concat();
                symbols.push(Symbol::Condition(self.conjunction(parts)?));
            }
            let value = self.conjunction(parts)?;
            symbols.push(self.rules.text(&strings::text_of(name)));
            symbols.push(self.rules.text(&self.style.key_separator));
            symbols.push(Symbol::Rule(value));
            items.push((symbols, properties.required.contains(name)));
        }
        let is_closed = properties.patterns.is_empty() && !properties.is_open();
        let further = match properties.closed || is_closed {
            true => None,
            false => self.further(all, &properties)?,
        };
        let members = self.members(&items, further, &properties)?;
        let (open, close) = (self.rules.text("{"), self.rules.text("}"));
        self.rules.allow(rule, vec![open, Symbol::Rule(members), close]);
        Ok(())
    }

    fn properties(&mut self, all: &[Part]) -> Result<Properties, String> {
        let mut properties = Properties::default();
        let mut required = Vec::new();
        let mut of_names = Vec::new();
        for &part in all {
            match self.document.kind(part) {
                Kind::Const(Value::Object(fields)) => {
                    properties.names.extend(fields.keys().cloned());
                    required.extend(fields.keys().cloned());
                }
                Kind::Schema(schema) => {
                    let place = self.document.place(part).to_owned();
                    let (least, most) = counts(schema, "minProperties", "maxProperties", &place)?;
                    properties.least = properties.least.max(least);
                    properties.most = smaller(properties.most, most);
                    let named = map(schema, "properties", &place)?;
                    properties.names.extend(named.into_iter().flat_map(Map::keys).cloned());
                    let patterns = map(schema, "patternProperties", &place)?;
                    properties.patterns.extend(patterns.into_iter().flat_map(Map::keys).cloned());
                    properties.lists |= named.or(patterns).is_some();
                    properties.opens |= OPENING.iter().any(|keyword| {
                        schema.get(*keyword).is_some_and(|value| *value != Value::Bool(false))
                    });
                    required.extend(required_of(schema, &place)?);
                    if let Some(names) = schema.get("propertyNames") {
                        of_names
                            .extend(self.document.schema(names, &below(&place, "propertyNames"))?);
                    }
                }
                _ => {}
            }
        }
        properties.names.extend(required.iter().cloned());
        properties.required.extend(required);
        properties.patterns.sort_unstable();
        properties.patterns.dedup();
        self.read_names(&mut properties, of_names)?;
        let mut seen = HashSet::new();
        properties.names.retain(|name| seen.insert(name.clone()));
        Ok(properties)
    }

    /// Reads what names must be like.
    fn read_names(
        &mut self,
        properties: &mut Properties,
        of_names: Vec<Part>,
    ) -> Result<(), String> {
        let all = self.closure(of_names)?;
        let options = self.choice(&all)?;
        let listed = options.iter().flatten().chain(&all).filter_map(|&part| {
            match self.document.kind(part) {
                Kind::Const(value) => Some(value),
                _ => None,
            }
        });
        let listed: Vec<&Value> = listed.collect();
        if !listed.is_empty() {
            properties.closed = true;
            properties
                .names
                .extend(listed.into_iter().filter_map(Value::as_str).map(str::to_owned));
        } else if options.is_some() {
            let place = all.first().map_or("", |&part| self.document.place(part));
            return Err(at(place, "options of `propertyNames` are not supported, but for `enum`"));
        } else if all.contains(&Document::NEVER) {
            properties.closed = true;
        }
        properties.of_names = all;
        Ok(())
    }

    /// Returns the conjunction of the property with this name.
    fn parts_of(&mut self, all: &[Part], name: &str) -> Result<Vec<Part>, String> {
        let literal = strings::literal(name);
        self.parts_where(all, Some(name), &mut |compiler, pattern, place| {
            let pattern = compiler.pattern(pattern, place)?;
            let is_empty = strings::is_empty(&[pattern, literal.clone()], &[]);
            is_empty.map(|is_empty| !is_empty).map_err(|reason| at(place, &reason))
        })
    }

    /// Returns the conjunction of a property, given its name, if it has a schema of its own, and
    /// whether it matches a pattern.
    fn parts_where(
        &mut self,
        all: &[Part],
        name: Option<&str>,
        matches: &mut dyn FnMut(&mut Self, &str, &str) -> Result<bool, String>,
    ) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        for &part in all {
            match self.document.kind(part) {
                Kind::Const(Value::Object(fields)) => {
                    let place = self.document.place(part).to_owned();
                    parts.push(match name.and_then(|name| fields.get(name)) {
                        Some(value) => self.document.constant(value, &place),
                        None => Document::NEVER,
                    });
                }
                Kind::Schema(schema) => {
                    let place = self.document.place(part).to_owned();
                    let mut is_additional = true;
                    let named = map(schema, "properties", &place)?;
                    if let Some((name, value)) =
                        name.and_then(|name| Some((name, named?.get(name)?)))
                    {
                        is_additional = false;
                        let place = below(&below(&place, "properties"), name);
                        parts.extend(self.document.schema(value, &place)?);
                    }
                    for (pattern, value) in
                        map(schema, "patternProperties", &place)?.into_iter().flatten()
                    {
                        if matches(self, pattern, &place)? {
                            is_additional = false;
                            let place = below(&below(&place, "patternProperties"), pattern);
                            parts.extend(self.document.schema(value, &place)?);
                        }
                    }
                    if is_additional && let Some(value) = schema.get("additionalProperties") {
                        let place = below(&place, "additionalProperties");
                        parts.extend(self.document.schema(value, &place)?);
                    }
                }
                _ => {}
            }
        }
        Ok(parts)
    }

    /// Returns the rule of a property without a schema of its own, if there can be any.
    fn further(&mut self, all: &[Part], properties: &Properties) -> Result<Option<Rule>, String> {
        let place = all.first().map_or("", |&part| self.document.place(part)).to_owned();
        if properties.patterns.len() > MOST_PATTERNS {
            let message =
                format!("more than {MOST_PATTERNS} `patternProperties` are not supported");
            return Err(at(&place, &message));
        }
        let names = self.strings_of(&properties.of_names)?;
        let Some(required) = names.regexes().map_err(|reason| at(&place, &reason))? else {
            return Ok(None);
        };
        let known: Vec<String> =
            properties.names.iter().map(|name| strings::literal(name)).collect();
        // The names that match one of the patterns so far, or none, with the regular expressions
        // that say so.
        let mut classes = vec![(Vec::new(), required, known)];
        for pattern in &properties.patterns {
            let regex = self.pattern(pattern, &place)?;
            let mut next = Vec::new();
            for (matched, all, none) in classes {
                let with = [&all[..], std::slice::from_ref(&regex)].concat();
                let without = [&none[..], std::slice::from_ref(&regex)].concat();
                for (matched, all, none) in [
                    ([&matched[..], &[pattern]].concat(), with, none.clone()),
                    (matched, all, without),
                ] {
                    if !strings::is_empty(&all, &none).map_err(|reason| at(&place, &reason))? {
                        next.push((matched, all, none));
                    }
                }
            }
            classes = next;
        }
        let rule = self.rules.add()?;
        for (matched, names, none) in classes {
            if matched.is_empty() && !properties.is_open() {
                continue;
            }
            let parts = self.parts_where(all, None, &mut |_, pattern, _| {
                Ok(matched.iter().any(|one: &&String| *one == pattern))
            })?;
            if parts.contains(&Document::NEVER) {
                continue;
            }
            if properties.patterns.is_empty()
                && !properties.of_names.is_empty()
                && strings::is_empty(&names, &none).map_err(|reason| at(&place, &reason))?
            {
                continue;
            }
            let key = self.rules.terminal(Terminal::Regex(names, none));
            let separator = self.rules.text(&self.style.key_separator);
            let value = Symbol::Rule(self.conjunction(parts)?);
            self.rules.allow(rule, vec![key, separator, value]);
        }
        Ok(Some(rule))
    }

    /// Returns the rule of what stands between the braces.
    fn members(
        &mut self,
        items: &[(Vec<Symbol>, bool)],
        further: Option<Rule>,
        properties: &Properties,
    ) -> Result<Rule, String> {
        let (mut least, mut most) = (properties.least, properties.most);
        // Counting is only needed if it can decide something.
        if least <= properties.required.len() as u64 {
            least = 0;
        }
        if further.is_none() && most.is_some_and(|most| most >= items.len() as u64) {
            most = None;
        }
        let most = most.filter(|most| *most < MOST_COUNTED);
        // There are no more properties to count than those that have a name.
        let counted = most.unwrap_or(least).min(items.len() as u64);
        if counted * items.len() as u64 > MOST_COUNTS || least >= MOST_COUNTED {
            return Err(
                "`minProperties` and `maxProperties` are too large for that many properties".into(),
            );
        }
        let separator = self.rules.text(&self.style.item_separator);
        let end = |compiler: &mut Self, count: u64, follows: bool| -> Result<Rule, String> {
            let rule = compiler.rules.add()?;
            let least = least.saturating_sub(count);
            let most = most.map(|most| most - count);
            if least == 0 {
                compiler.rules.allow(rule, Vec::new());
            }
            let Some(further) = further.filter(|_| most != Some(0)) else { return Ok(rule) };
            let next = compiler.separated(vec![Symbol::Rule(further)])?;
            let rest = Symbol::Repeated(next, least.saturating_sub(1), most.map(|most| most - 1));
            let mut sequence = vec![Symbol::Rule(further), rest];
            if follows {
                sequence.insert(0, separator.clone());
            }
            compiler.rules.allow(rule, sequence);
            Ok(rule)
        };
        // The rules after the items so far, by the number of properties. The first list is for
        // those that follow another.
        let mut following =
            (0..=counted).map(|count| end(self, count, true)).collect::<Result<Vec<_>, _>>()?;
        let mut first = end(self, 0, false)?;
        for (symbols, is_required) in items.iter().rev() {
            // The number of properties with this one, if it may be there.
            let with = |count: u64| match most {
                Some(most) if count == most => None,
                _ => Some((count + 1).min(counted)),
            };
            let mut next = Vec::new();
            for count in 0..=counted {
                let rule = self.rules.add()?;
                if let Some(more) = with(count) {
                    let mut sequence = vec![separator.clone()];
                    sequence.extend(symbols.iter().cloned());
                    sequence.push(Symbol::Rule(following[more as usize]));
                    self.rules.allow(rule, sequence);
                }
                if !is_required {
                    self.rules.allow(rule, vec![Symbol::Rule(following[count as usize])]);
                }
                next.push(rule);
            }
            let rule = self.rules.add()?;
            if let Some(more) = with(0) {
                let mut sequence = symbols.clone();
                sequence.push(Symbol::Rule(following[more as usize]));
                self.rules.allow(rule, sequence);
            }
            if !is_required {
                self.rules.allow(rule, vec![Symbol::Rule(first)]);
            }
            (following, first) = (next, rule);
        }
        Ok(first)
    }
}

fn map<'a>(
    schema: &'a Map<String, Value>,
    keyword: &str,
    place: &str,
) -> Result<Option<&'a Map<String, Value>>, String> {
    match schema.get(keyword) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(at(place, &format!("`{keyword}` must be an object of schemas"))),
    }
}

fn required_of(schema: &Map<String, Value>, place: &str) -> Result<Vec<String>, String> {
    let names = match schema.get("required") {
        // In draft 3, it is said of the property itself.
        None | Some(Value::Bool(_)) => return Ok(Vec::new()),
        Some(Value::Array(names)) => names,
        Some(_) => return Err(at(place, "`required` must be a list of names")),
    };
    let name = |name: &Value| name.as_str().map(str::to_owned);
    let names: Option<Vec<String>> = names.iter().map(name).collect();
    names.ok_or_else(|| at(place, "`required` must be a list of names"))
}

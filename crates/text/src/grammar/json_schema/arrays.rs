//! Lists: the first items, which may have schemas of their own, and the further ones.

use super::compiler::{Compiler, MOST_COUNTED, counts, smaller};
use super::document::{Document, Kind, Part, at, below};
use super::rules::{Rule, Symbol};
use serde_json::{Map, Value};

impl Compiler<'_> {
    /// Allows the lists of a conjunction.
    pub(super) fn arrays(&mut self, all: &[Part], rule: Rule) -> Result<(), String> {
        let (mut least, mut most, mut prefix) = (0, None, 0);
        for &part in all {
            match self.document.kind(part) {
                Kind::Const(Value::Array(items)) => {
                    let count = items.len() as u64;
                    (least, most) = (least.max(count), smaller(most, Some(count)));
                    prefix = prefix.max(items.len());
                }
                Kind::Schema(schema) => {
                    let place = self.document.place(part);
                    let (min_items, max_items) = counts(schema, "minItems", "maxItems", place)?;
                    (least, most) = (least.max(min_items), smaller(most, max_items));
                    prefix = prefix.max(items_of(schema, place)?.0.len());
                }
                _ => {}
            }
        }
        let most = most.filter(|most| *most < MOST_COUNTED);
        if most.is_some_and(|most| most < least) || least >= MOST_COUNTED {
            return Ok(());
        }
        let prefix = most.map_or(prefix, |most| prefix.min(most as usize));
        let separator = self.rules.text(&self.style.item_separator);
        let mut next = self.array_tail(all, prefix, least, most)?;
        for index in (0..prefix).rev() {
            let parts = self.items_at(all, index)?;
            let item = self.conjunction(parts)?;
            let rest = std::mem::replace(&mut next, self.rules.add()?);
            let mut sequence = vec![Symbol::Rule(item), Symbol::Rule(rest)];
            if index > 0 {
                sequence.insert(0, separator.clone());
            }
            self.rules.allow(next, sequence);
            if index as u64 >= least {
                self.rules.allow(next, Vec::new());
            }
        }
        let (open, close) = (self.rules.text("["), self.rules.text("]"));
        self.rules.allow(rule, vec![open, Symbol::Rule(next), close]);
        Ok(())
    }

    /// Returns the rule of the items after the first `prefix` ones.
    fn array_tail(
        &mut self,
        all: &[Part],
        prefix: usize,
        least: u64,
        most: Option<u64>,
    ) -> Result<Rule, String> {
        let tail = self.rules.add()?;
        let least = least.saturating_sub(prefix as u64);
        let most = most.map(|most| most.saturating_sub(prefix as u64));
        if least == 0 {
            self.rules.allow(tail, Vec::new());
        }
        if most == Some(0) {
            return Ok(tail);
        }
        let parts = self.items_at(all, usize::MAX)?;
        let item = Symbol::Rule(self.conjunction(parts)?);
        let further = self.separated(vec![item.clone()])?;
        let counted = |first: u64| {
            Symbol::Repeated(further, least.saturating_sub(first), most.map(|most| most - first))
        };
        let sequence = match prefix {
            0 => vec![item, counted(1)],
            _ => vec![self.rules.text(&self.style.item_separator), item, counted(1)],
        };
        self.rules.allow(tail, sequence);
        Ok(tail)
    }

    /// Returns the conjunction of the item with this number.
    fn items_at(&mut self, all: &[Part], index: usize) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        for &part in all {
            match self.document.kind(part) {
                Kind::Const(Value::Array(items)) => parts.push(match items.get(index) {
                    Some(item) => {
                        let place = self.document.place(part).to_owned();
                        self.document.constant(item, &place)
                    }
                    None => Document::NEVER,
                }),
                Kind::Schema(schema) => {
                    let place = self.document.place(part).to_owned();
                    let (prefix, rest) = items_of(schema, &place)?;
                    if let Some((item, keyword)) =
                        prefix.get(index).map(|item| (item, "prefixItems")).or(rest)
                    {
                        parts.extend(self.document.schema(item, &below(&place, keyword))?);
                    }
                }
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// Returns the schemas of the first items, and that of the others with its keyword.
#[expect(clippy::type_complexity, reason = "a list and a schema with its keyword")]
fn items_of<'a>(
    schema: &'a Map<String, Value>,
    place: &str,
) -> Result<(&'a [Value], Option<(&'a Value, &'static str)>), String> {
    // Before draft 2020-12, a list of `items` is the prefix.
    let (prefix, rest) = match schema.get("items") {
        Some(Value::Array(prefix)) => (Some(&prefix[..]), "additionalItems"),
        _ => (None, "items"),
    };
    let prefix = match (prefix, schema.get("prefixItems")) {
        (Some(prefix), _) => prefix,
        (None, None) => &[],
        (None, Some(Value::Array(prefix))) => prefix,
        (None, Some(_)) => return Err(at(place, "`prefixItems` must be a list of schemas")),
    };
    Ok((prefix, schema.get(rest).map(|schema| (schema, rest))))
}

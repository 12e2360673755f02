//! GBNF, the grammars of llama.cpp, as Lark grammars.
//!
//! Each character becomes a lexeme of its own. All lexemes then have the same length, so the lexer
//! decides nothing, and the parser accepts exactly the texts of the grammar.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Groups may be nested this deep.
const MAX_DEPTH: usize = 200;

/// A repetition may have at most this many copies.
const MAX_REPETITIONS: u32 = 10_000;

/// Returns whether a grammar defines rules as GBNF does.
pub(super) fn looks_like_gbnf(text: &str) -> bool {
    let code = |line: &str| line.split_once("::=").is_some_and(|(name, _)| is_name(name.trim()));
    text.lines().any(code)
}

/// Translates a grammar. Its start rule is `root`.
///
/// # Errors
/// The line and what is wrong there.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser {
        rest: text.chars().peekable(),
        line: 1,
        depth: 0,
        rules: HashMap::new(),
        uses: Vec::new(),
        lark: String::new(),
    };
    let result = parser.grammar();
    result.map_err(|reason| format!("line {}: {reason}", parser.line))?;
    let Parser { rules, uses, lark, .. } = parser;
    for (name, line) in uses {
        if !rules.get(&name).is_some_and(|rule| rule.defined) {
            return Err(format!("line {line}: there is no rule {name:?}"));
        }
    }
    match rules.get("root").filter(|rule| rule.defined) {
        Some(root) => Ok(format!("start: r{}\n{lark}", root.number)),
        None => Err("there is no rule \"root\", where the text starts".into()),
    }
}

/// Returns a character for a regular expression, outside and inside of classes.
pub(super) fn regex_character(character: char) -> String {
    if character.is_ascii_alphanumeric() {
        return character.into();
    }
    format!("\\x{{{:X}}}", u32::from(character))
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_character)
}

struct Rule {
    number: usize,
    defined: bool,
}

/// Reads a grammar and writes Lark as it goes.
struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    /// The number of groups around the current place.
    depth: usize,
    rules: HashMap<String, Rule>,
    /// The rules that are used, with their lines.
    uses: Vec<(String, usize)>,
    lark: String,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn next_if(&mut self, expected: char) -> bool {
        let found = self.rest.peek() == Some(&expected);
        if found {
            self.next();
        }
        found
    }

    /// Skips spaces and comments, and the ends of lines if these do not end a rule here.
    fn skip_space(&mut self, lines: bool) {
        while let Some(&next) = self.rest.peek() {
            match next {
                ' ' | '\t' => {}
                '\r' | '\n' if lines => {}
                '#' => {
                    while self.rest.peek().is_some_and(|&next| next != '\n') {
                        self.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(&next) = self.rest.peek().filter(|&&next| is_name_character(next)) {
            name.push(next);
            self.next();
        }
        name
    }

    fn number_of(&mut self, name: String) -> usize {
        let number = self.rules.len();
        self.rules.entry(name).or_insert(Rule { number, defined: false }).number
    }

    fn push(&mut self, lark: &str) {
        self.lark.push(' ');
        self.lark.push_str(lark);
    }

    fn grammar(&mut self) -> Result<(), String> {
        self.skip_space(true);
        while self.rest.peek().is_some() {
            self.rule()?;
            self.skip_space(true);
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name();
        if name.is_empty() {
            return Err(self.unexpected("the name of a rule"));
        }
        self.skip_space(false);
        let mut ahead = self.rest.clone();
        if !"::=".chars().all(|expected| ahead.next() == Some(expected)) {
            return Err(self.unexpected(&format!("`::=` after {name:?}")));
        }
        self.rest = ahead;
        let number = self.number_of(name.clone());
        if let Some(rule) = self.rules.get_mut(&name)
            && std::mem::replace(&mut rule.defined, true)
        {
            return Err(format!("the rule {name:?} is defined twice"));
        }
        let _ = write!(self.lark, "r{number}:");
        self.skip_space(true);
        self.alternatives()?;
        if !matches!(self.rest.peek(), None | Some('\r' | '\n')) {
            return Err(self.unexpected("the end of the line"));
        }
        self.lark.push('\n');
        Ok(())
    }

    fn alternatives(&mut self) -> Result<(), String> {
        self.sequence()?;
        while self.next_if('|') {
            self.push("|");
            self.skip_space(true);
            self.sequence()?;
        }
        Ok(())
    }

    fn sequence(&mut self) -> Result<(), String> {
        while let Some(&next) = self.rest.peek() {
            // The whole item is a group, so that a repetition applies to all of it.
            let item_start = self.lark.len();
            match next {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.next();
                    self.push("/[\\x{0}-\\x{10FFFF}]/");
                }
                '(' => self.group()?,
                '<' | '!' => {
                    return Err("tokens such as <think> are not supported: write their text".into());
                }
                next if is_name_character(next) => {
                    let name = self.name();
                    self.uses.push((name.clone(), self.line));
                    let number = self.number_of(name);
                    self.push(&format!("r{number}"));
                }
                _ => return Ok(()),
            }
            self.skip_space(self.depth > 0);
            while let Some(repetition) = self.repetition()? {
                let item = self.lark.split_off(item_start);
                let _ = write!(self.lark, " ({item} ){repetition}");
                self.skip_space(self.depth > 0);
            }
        }
        Ok(())
    }

    fn group(&mut self) -> Result<(), String> {
        self.next();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        self.push("(");
        self.skip_space(true);
        self.alternatives()?;
        if !self.next_if(')') {
            return Err(self.unexpected("`)`"));
        }
        self.depth -= 1;
        self.push(")");
        Ok(())
    }

    fn literal(&mut self) -> Result<(), String> {
        self.next();
        self.push("(");
        let mut is_empty = true;
        loop {
            match self.next() {
                Some('"') => break,
                Some('\n') | None => return Err("a text in `\"` does not end".into()),
                Some(first) => {
                    let character = self.character(first)?;
                    is_empty = false;
                    self.push(&format!("/{}/", regex_character(character)));
                }
            }
        }
        self.push(if is_empty { "\"\" )" } else { ")" });
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        self.next();
        let mut class = String::from("[");
        if self.next_if('^') {
            class.push('^');
        }
        let mut is_empty = true;
        loop {
            let first = match self.next() {
                Some(']') => break,
                Some('\n') | None => return Err("a class in `[` does not end".into()),
                Some(first) => self.character(first)?,
            };
            is_empty = false;
            class += &regex_character(first);
            if self.rest.peek() != Some(&'-') {
                continue;
            }
            self.next();
            if self.rest.peek() == Some(&']') {
                class += &regex_character('-');
                continue;
            }
            let last = match self.next() {
                Some(last) => self.character(last)?,
                None => return Err("a class in `[` does not end".into()),
            };
            if last < first {
                return Err(format!("the range {first:?}-{last:?} is empty"));
            }
            class.push('-');
            class += &regex_character(last);
        }
        if is_empty {
            return Err("a class in `[` is empty".into());
        }
        self.push(&format!("/{class}]/"));
        Ok(())
    }

    /// Returns a character, given its first one in the grammar, which may start an escape sequence.
    fn character(&mut self, first: char) -> Result<char, String> {
        if first != '\\' {
            return Ok(first);
        }
        let escaped = self.next().ok_or("the grammar ends after `\\`")?;
        let digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escaped),
            _ => return Err(format!("unknown escape sequence `\\{escaped}`")),
        };
        let code: String = (0..digits).map_while(|_| self.next()).collect();
        let number = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        number.ok_or_else(|| format!("`\\{escaped}{code}` is no character"))
    }

    /// Reads how often the item before this place repeats, in Lark's syntax.
    fn repetition(&mut self) -> Result<Option<String>, String> {
        let Some(&next) = self.rest.peek() else { return Ok(None) };
        if matches!(next, '*' | '+' | '?') {
            self.next();
            return Ok(Some(next.into()));
        }
        if !self.next_if('{') {
            return Ok(None);
        }
        self.skip_space(true);
        let least = self.count()?.unwrap_or(0);
        let mut most = Some(least);
        if self.next_if(',') {
            self.skip_space(true);
            most = self.count()?;
        }
        if !self.next_if('}') {
            return Err(self.unexpected("`}`"));
        }
        match most {
            Some(most) if most < least => Err(format!("{{{least},{most}}} repeats nothing")),
            Some(most) => Ok(Some(format!("{{{least},{most}}}"))),
            None => Ok(Some(format!("{{{least},}}"))),
        }
    }

    fn count(&mut self) -> Result<Option<u32>, String> {
        let mut digits = String::new();
        while let Some(&next) = self.rest.peek().filter(|next| next.is_ascii_digit()) {
            digits.push(next);
            self.next();
        }
        self.skip_space(true);
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse() {
            Ok(count) if count <= MAX_REPETITIONS => Ok(Some(count)),
            _ => Err(format!("{digits} repetitions are more than {MAX_REPETITIONS}")),
        }
    }

    fn unexpected(&mut self, expected: &str) -> String {
        match self.rest.peek() {
            Some(found) => format!("expected {expected}, found {found:?}"),
            None => format!("expected {expected}, but the grammar ends"),
        }
    }
}

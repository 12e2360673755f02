//! The rules of a grammar, and how they are written in Lark.

use super::strings;
use std::collections::HashMap;
use std::fmt::Write as _;

/// The most rules of a schema. llguidance reads rules within rules on the stack.
const MOST_RULES: usize = 30_000;

/// A rule: one of several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rule(usize);

/// A part of a sequence.
#[derive(Clone, Debug)]
pub(super) enum Symbol {
    Rule(Rule),
    Terminal(usize),
    /// Several of a rule's texts.
    Repeated(Rule, u64, Option<u64>),
    /// No text, and only possible if the rule has one.
    Condition(Rule),
    /// What may stand after a value that consists of characters.
    Space,
}

/// A text that is one lexeme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Terminal {
    Text(String),
    /// A text that matches all of the first and none of the second.
    Regex(Vec<String>, Vec<String>),
    /// A part of a number, after which no space may stand.
    Character(String),
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    sequences: Vec<Vec<Vec<Symbol>>>,
    terminals: Vec<Terminal>,
    numbers: HashMap<Terminal, usize>,
    /// Whether values consist of characters.
    has_characters: bool,
}

impl Rules {
    /// Adds a rule that has no text yet.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn add(&mut self) -> Result<Rule, String> {
        if self.sequences.len() == MOST_RULES {
            return Err(format!("it is too large: it needs more than {MOST_RULES} rules"));
        }
        self.sequences.push(Vec::new());
        Ok(Rule(self.sequences.len() - 1))
    }

    pub(super) fn allow(&mut self, rule: Rule, sequence: Vec<Symbol>) {
        self.sequences[rule.0].push(sequence);
    }

    pub(super) fn terminal(&mut self, terminal: Terminal) -> Symbol {
        if let Some(&number) = self.numbers.get(&terminal) {
            return Symbol::Terminal(number);
        }
        self.terminals.push(terminal.clone());
        let number = self.terminals.len() - 1;
        self.numbers.insert(terminal, number);
        Symbol::Terminal(number)
    }

    pub(super) fn text(&mut self, text: &str) -> Symbol {
        self.terminal(Terminal::Text(text.to_owned()))
    }

    pub(super) fn character(&mut self, text: &str) -> Symbol {
        self.has_characters = true;
        self.terminal(Terminal::Character(text.to_owned()))
    }

    /// Returns which rules have a text.
    pub(super) fn productive(&self) -> Productive {
        // The sequences that wait for a rule, and how many rules each sequence still waits for.
        let mut waiting: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.sequences.len()];
        let mut missing: Vec<Vec<usize>> = Vec::with_capacity(self.sequences.len());
        let mut found = vec![false; self.sequences.len()];
        let mut next = Vec::new();
        for (rule, sequences) in self.sequences.iter().enumerate() {
            missing.push(Vec::with_capacity(sequences.len()));
            for (index, sequence) in sequences.iter().enumerate() {
                let mut count = 0;
                for needed in sequence.iter().filter_map(Symbol::needs) {
                    waiting[needed.0].push((rule, index));
                    count += 1;
                }
                missing[rule].push(count);
                if count == 0 && !found[rule] {
                    found[rule] = true;
                    next.push(rule);
                }
            }
        }
        while let Some(rule) = next.pop() {
            for (waiter, index) in std::mem::take(&mut waiting[rule]) {
                missing[waiter][index] -= 1;
                if missing[waiter][index] == 0 && !found[waiter] {
                    found[waiter] = true;
                    next.push(waiter);
                }
            }
        }
        Productive(found)
    }

    /// Returns the terminals that a rule consists of, if there are many: the values of `enum`. As
    /// one lexeme, they are one thing for the parser to follow. Each comes with its own rule.
    fn terminals_of(&self, rule: Rule) -> Option<Vec<(usize, Rule)>> {
        const MANY: usize = 4;
        let sequences = &self.sequences[rule.0];
        if sequences.len() < MANY {
            return None;
        }
        let terminal = |sequence: &Vec<Symbol>| {
            let [Symbol::Rule(option)] = sequence[..] else { return None };
            match &self.sequences[option.0][..] {
                // No value satisfies it.
                [] => Some((usize::MAX, option)),
                [only] => match only[..] {
                    [Symbol::Terminal(number)] => Some((number, option)),
                    _ => None,
                },
                _ => None,
            }
        };
        sequences.iter().map(terminal).collect()
    }

    /// Writes what `start` needs. Sequences without a text are left out, so that an answer never
    /// gets stuck.
    pub(super) fn write(&self, start: Rule, productive: &Productive, written: &mut Written<'_>) {
        let mut is_used = vec![false; self.sequences.len()];
        let mut uses_terminal = vec![false; self.terminals.len()];
        let mut next = vec![start];
        is_used[start.0] = true;
        // Usually, the lexer leaves spaces out. It would do so within numbers, too, that consist of
        // characters.
        written.spaces(self.has_characters);
        written.rule_name(start);
        while let Some(rule) = next.pop() {
            let usable = |sequence: &&Vec<Symbol>| {
                sequence.iter().filter_map(Symbol::needs).all(|rule| productive.has(rule))
            };
            if let Some(terminals) = self.terminals_of(rule) {
                let used = terminals.iter().filter(|(_, rule)| productive.has(*rule));
                let used: Vec<usize> = used.map(|(terminal, _)| *terminal).collect();
                used.iter().for_each(|terminal| uses_terminal[*terminal] = true);
                written.any_terminal(rule, &used);
                continue;
            }
            for (index, sequence) in self.sequences[rule.0].iter().filter(usable).enumerate() {
                written.begin_sequence(rule, index);
                let start = written.lark.len();
                for symbol in sequence {
                    match symbol {
                        Symbol::Condition(_) | Symbol::Repeated(_, 0, Some(0)) => {}
                        Symbol::Space => written.space(),
                        // Of something that has no text, there are none.
                        Symbol::Repeated(rule, _, _) if !productive.has(*rule) => {}
                        Symbol::Rule(used) => written.rule(*used),
                        Symbol::Terminal(number) => {
                            uses_terminal[*number] = true;
                            written.terminal(*number);
                            if !matches!(self.terminals[*number], Terminal::Character(_)) {
                                written.space();
                            }
                        }
                        Symbol::Repeated(used, least, most) => {
                            written.rule(*used);
                            let most = most.map(|most| most.to_string()).unwrap_or_default();
                            let _ = write!(written.lark, "{{{least},{most}}}");
                        }
                    }
                    if let Symbol::Rule(used) | Symbol::Repeated(used, _, _) = symbol
                        && !std::mem::replace(&mut is_used[used.0], true)
                    {
                        next.push(*used);
                    }
                }
                if written.lark.len() == start {
                    written.lark.push_str(" \"\"");
                }
            }
            written.lark.push('\n');
        }
        for (number, terminal) in self.terminals.iter().enumerate() {
            if uses_terminal[number] {
                written.define(number, terminal);
            }
        }
    }
}

/// Rules in Lark.
pub(super) struct Written<'a> {
    pub(super) lark: &'a mut String,
    /// What the names of rules begin with. Those of terminals begin with the same in capitals.
    pub(super) prefix: &'a str,
    /// The regular expression of the spaces between lexemes.
    pub(super) space: Option<&'a str>,
    /// Whether they are a terminal, and not left out by the lexer.
    pub(super) explicit: bool,
}

impl Written<'_> {
    /// Says how spaces are read.
    fn spaces(&mut self, has_characters: bool) {
        self.explicit |= has_characters;
        let Some(space) = self.space else { return };
        let name = self.prefix.to_uppercase();
        let _ = match self.explicit {
            true => writeln!(self.lark, "{name}SPACE: /{space}/"),
            false => {
                writeln!(self.lark, "%llguidance {{\"ignore_once\": true}}\n%ignore /{space}/")
            }
        };
    }

    fn rule_name(&mut self, start: Rule) {
        let _ = writeln!(self.lark, "{}start: {0}r{}", self.prefix, start.0);
    }

    fn begin_sequence(&mut self, rule: Rule, index: usize) {
        let _ = match index {
            0 => write!(self.lark, "{}r{}:", self.prefix, rule.0),
            _ => write!(self.lark, " |"),
        };
    }

    /// Writes a rule that is one of these terminals.
    fn any_terminal(&mut self, rule: Rule, terminals: &[usize]) {
        let name = self.prefix.to_uppercase();
        let _ = write!(self.lark, "{}r{}: {name}E{}", self.prefix, rule.0, rule.0);
        self.space();
        let options: Vec<String> =
            terminals.iter().map(|number| format!("{name}T{number}")).collect();
        let _ = writeln!(self.lark, "\n{name}E{}: {}", rule.0, options.join(" | "));
    }

    fn rule(&mut self, rule: Rule) {
        let _ = write!(self.lark, " {}r{}", self.prefix, rule.0);
    }

    fn terminal(&mut self, number: usize) {
        let _ = write!(self.lark, " {}T{number}", self.prefix.to_uppercase());
    }

    fn space(&mut self) {
        if self.space.is_some() && self.explicit {
            let _ = write!(self.lark, " {}SPACE?", self.prefix.to_uppercase());
        }
    }

    fn define(&mut self, number: usize, terminal: &Terminal) {
        let name = self.prefix.to_uppercase();
        let regexes = |regexes: &[String], between: &str| {
            let regexes: Vec<String> = regexes.iter().map(|regex| format!("/{regex}/")).collect();
            regexes.join(between)
        };
        let _ = match terminal {
            Terminal::Text(text) | Terminal::Character(text) => {
                // Lark writes texts as JSON does.
                writeln!(self.lark, "{name}T{number}: {}", strings::text_of(text))
            }
            Terminal::Regex(all, none) if none.is_empty() => {
                writeln!(self.lark, "{name}T{number}: {}", regexes(all, " & "))
            }
            Terminal::Regex(all, none) => {
                let _ = writeln!(self.lark, "{name}N{number}: {}", regexes(none, " | "));
                writeln!(self.lark, "{name}T{number}: {} & ~{name}N{number}", regexes(all, " & "))
            }
        };
    }
}

impl Symbol {
    /// Returns the rule that must have a text.
    fn needs(&self) -> Option<Rule> {
        match *self {
            Self::Rule(rule) | Self::Condition(rule) => Some(rule),
            Self::Repeated(rule, least, _) => (least > 0).then_some(rule),
            Self::Terminal(_) | Self::Space => None,
        }
    }
}

/// Which rules have a text.
pub(super) struct Productive(Vec<bool>);

impl Productive {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.0[rule.0]
    }
}

//! Templates that pay for what they do: a compiled template, rewritten so that every operation that
//! builds or reads values of any size is paid from a [`Budget`](super::budget) first.
//!
//! minijinja bounds the number of steps, but one step can double a string. So payments are added to
//! the compiled instructions. Operators that differ from Python's are replaced there, too.

use super::budget::{CALL, PAY, SETTLE};
use super::python;
use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, Span, TemplateConfig, Token, eval,
    make_string_output, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A filter that is not cached in a local of the virtual machine.
const NOT_CACHED: u8 = u8::MAX;

/// A template's instructions, with the payments.
pub(super) struct Metered<'source> {
    instructions: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

impl<'source> Metered<'source> {
    /// Compiles the text that [`without_constants`] returned.
    ///
    /// # Errors
    /// If the template is malformed, or passes a list as separate arguments.
    pub(super) fn compile(
        name: &'source str,
        text: &'source str,
        syntax: SyntaxConfig,
    ) -> Result<Self, Error> {
        let default_auto_escape = Arc::new(|_: &str| AutoEscape::None);
        let config = TemplateConfig { syntax_config: syntax, default_auto_escape };
        let CompiledTemplate { instructions, blocks, .. } =
            CompiledTemplate::new(name, text, &config)?;
        let blocks = blocks.iter().map(|(name, block)| Ok((*name, with_payments(block)?)));
        let blocks = blocks.collect::<Result<_, Error>>()?;
        Ok(Self { instructions: with_payments(&instructions)?, blocks })
    }

    /// Renders the template. The environment must have the filters of [`super::budget`].
    pub(super) fn render(
        &'source self,
        environment: &'source Environment<'source>,
        context: Value,
    ) -> Result<String, Error> {
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let (instructions, blocks) = (&self.instructions, &self.blocks);
        eval(environment, instructions, context, blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }
}

/// A filter that marks a number as not constant. It is no part of the metered instructions.
const NUMBER: &str = "not_a_constant";

/// Makes the numbers of a template non-constant, because the compiler would compute constants such
/// as `"a" * 10**8` unpaid, and by minijinja's operators.
pub(super) fn without_constants(text: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let tokens = tokenize(text, false, syntax.clone()).collect::<Result<Vec<_>, _>>()?;
    check_with(&tokens)?;
    let (mut changed, mut end, mut after_dot) = (String::with_capacity(text.len()), 0, false);
    for (token, span) in &tokens {
        let number = matches!(token, Token::Int(_) | Token::Int128(_) | Token::Float(_));
        if matches!(token, Token::Ident(NUMBER)) {
            return Err(unsupported(format!("the name {NUMBER}")));
        }
        if number && !after_dot {
            let number = span.start_offset as usize..span.end_offset as usize;
            changed += &text[end..number.start];
            changed += &format!("({}|{NUMBER})", &text[number.clone()]);
            end = number.end;
        }
        if let Some(string) =
            python_string(&text[span.start_offset as usize..span.end_offset as usize], token)?
        {
            changed += &text[end..span.start_offset as usize];
            changed += &string;
            end = span.end_offset as usize;
        }
        after_dot = matches!(token, Token::Dot);
    }
    Ok(changed + &text[end..])
}

/// Returns a literal in which escapes that minijinja does not have, or has otherwise, are replaced.
fn python_string(literal: &str, token: &Token<'_>) -> Result<Option<String>, Error> {
    if !matches!(token, Token::Str(_) | Token::String(_)) || !literal.contains('\\') {
        return Ok(None);
    }
    let (mut changed, mut rest) = (String::new(), literal);
    while let Some((before, escape)) = rest.split_once('\\') {
        changed += before;
        let length = escape.chars().next().map_or(0, char::len_utf8);
        rest = &escape[length..];
        match &escape[..length] {
            "\n" => {}
            "a" => changed.push('\x07'),
            "v" => changed.push('\x0b'),
            "/" => changed += "\\\\/",
            "U" => {
                let digits = escape.get(1..9);
                let digits = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let character = digits.and_then(char::from_u32);
                changed.push(character.ok_or_else(|| unsupported("an escape of no character"))?);
                rest = &escape[9..];
            }
            "N" => return Err(unsupported("the escape \\N")),
            other => {
                changed.push('\\');
                changed += other;
            }
        }
    }
    Ok(Some(changed + rest))
}

/// Checks that the values of a `with` do not read its variables: minijinja computes each value
/// after it has set the variables before it, and jinja2 before it sets any.
fn check_with(tokens: &[(Token<'_>, Span)]) -> Result<(), Error> {
    let mut names = None;
    for (index, (token, _)) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &tokens[before].0);
        match token {
            Token::Ident("with") if matches!(before, Some(Token::BlockStart)) => {
                names = Some(Vec::new());
            }
            Token::BlockEnd => names = None,
            Token::Ident(name) if !matches!(before, Some(Token::Dot)) => {
                let Some(names) = &mut names else { continue };
                match tokens.get(index + 1) {
                    Some((Token::Assign, _)) => names.push(*name),
                    _ if names.contains(name) => {
                        let what = format!("a value of `with` that reads its variable {name}");
                        return Err(unsupported(what));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the instructions with a payment before each operation, and a check of each new
/// container.
fn with_payments<'source>(
    original: &Instructions<'source>,
) -> Result<Instructions<'source>, Error> {
    let all = (0..).map_while(|index| original.get(index)).cloned().collect();
    let python::Bound { instructions, mut before, mut after } = python::bind_macros(all);
    let mut paid = Vec::with_capacity(instructions.len());
    let mut unpacked = None;
    for (index, instruction) in instructions.iter().enumerate() {
        let mut group = before.remove(&index).unwrap_or_default();
        group.extend(match (instruction, unpacked.take()) {
            (Instruction::UnpackLists(lists), _) => {
                unpacked = Some(*lists);
                Vec::new()
            }
            (call, Some(lists)) => call_with_lists(call, lists)?,
            (instruction, None) => paid_for(instruction)?,
        });
        group.extend(after.remove(&index).unwrap_or_default());
        paid.push(group);
    }
    // The new index of each original instruction, and of the end.
    let mut starts = vec![0];
    starts.extend(paid.iter().scan(0, |end, group| {
        *end += group.len() as u32;
        Some(*end)
    }));
    let moved = |target: u32| starts.get(target as usize).copied().unwrap_or(target);
    let mut metered = Instructions::new(original.name(), original.source());
    for (index, group) in paid.into_iter().enumerate() {
        let line = original.get_line(index as u32).and_then(|line| u16::try_from(line).ok());
        for mut instruction in group {
            match &mut instruction {
                Instruction::Iterate(target)
                | Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::BuildMacro(_, target, _) => *target = moved(*target),
                _ => {}
            }
            match line {
                Some(line) => metered.add_with_line(instruction, line),
                None => metered.add(instruction),
            };
        }
    }
    Ok(metered)
}

/// Returns an instruction with what must happen before and after it.
fn paid_for<'source>(
    instruction: &Instruction<'source>,
) -> Result<Vec<Instruction<'source>>, Error> {
    use Instruction as I;
    let original = || instruction.clone();
    let operator =
        |paid: &str, operands, filter| settled(paying(paid, operands, apply(filter, operands)));
    let several = |count: &Option<u16>| usize::from(count.unwrap_or_default());
    Ok(match instruction {
        // Raw text is paid when it is written, as values are.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        I::Add => operator("+", 2, python::ADD),
        I::Rem => operator("%", 2, python::REMAINDER),
        I::Mul => settled(paying("*", 2, original())),
        I::Pow => paying("**", 2, original()),
        I::Slice => operator("[:]", 4, python::SLICE),
        I::StringConcat => operator("~", 2, python::CONCATENATE),
        I::Lt | I::Lte | I::Gt | I::Gte => paying("<", 2, original()),
        I::Eq | I::Ne => paying("compare", 2, original()),
        // The kind of a comparison is not public, but printed.
        I::CompareAndPreserve(comparison) => {
            let operation = match &format!("{comparison:?}")[..] {
                "Lt" | "Lte" | "Gt" | "Gte" => "<",
                "In" | "NotIn" => "in",
                _ => "compare",
            };
            paying(operation, 2, original())
        }
        I::In => paying("in", 2, original()),
        I::GetItem => paying("[]", 2, apply(python::ITEM, 2)),
        // A method without a call.
        I::GetAttr(name) if python::names_method(name) => {
            settled(vec![I::LoadConst(Value::from(*name)), apply(python::ATTRIBUTE, 2)])
        }
        I::PushLoop(_) => paying("for", 1, original()),
        I::UnpackList(_) => {
            let mut unpacked = paying("for", 1, apply(python::UNPACKED, 1));
            unpacked.push(original());
            unpacked
        }
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => settled(vec![original()]),
        I::Include(_) | I::LoadBlocks => {
            return Err(unsupported("another template (`include`, `extends`)"));
        }
        I::PushAutoEscape => return Err(unsupported("`autoescape`")),
        I::SetAttr(name) if name.starts_with('_') => {
            return Err(unsupported(format!("the attribute {name} of a namespace")));
        }
        I::SetAttr(_) => vec![I::Swap, settle(), I::Swap, original()],
        I::ApplyFilter(NUMBER, ..) => Vec::new(),
        I::CallMethod("cycle", Some(1)) => {
            return Err(unsupported("loop.cycle without arguments"));
        }
        // A range is lazy, but small.
        I::CallFunction("range", Some(count)) => paying("range()", usize::from(*count), original()),
        I::PerformTest(_, count, _) => paying(&name_of(instruction)?, several(count), original()),
        I::ApplyFilter(_, count, _)
        | I::CallFunction(_, count)
        | I::CallMethod(_, count)
        | I::CallObject(count) => {
            settled(paying(&name_of(instruction)?, several(count), original()))
        }
        _ => vec![original()],
    })
}

/// Returns the name of a call for the budget.
fn name_of(call: &Instruction<'_>) -> Result<String, Error> {
    Ok(match call {
        Instruction::ApplyFilter(name, ..) => format!("|{name}"),
        Instruction::PerformTest(name, ..) => format!("is {name}"),
        Instruction::CallFunction(name, _) => format!("{name}()"),
        Instruction::CallMethod(name, _) => format!(".{name}"),
        Instruction::CallObject(_) => "()".to_owned(),
        _ => return Err(unsupported("a list as separate arguments (`*list`) here")),
    })
}

/// Returns a call whose arguments are in lists.
fn call_with_lists<'source>(
    call: &Instruction<'source>,
    lists: usize,
) -> Result<Vec<Instruction<'source>>, Error> {
    let name = Instruction::LoadConst(Value::from(name_of(call)?));
    Ok(settled(vec![name, apply(CALL, lists + 1)]))
}

fn apply<'source>(filter: &'source str, operands: usize) -> Instruction<'source> {
    Instruction::ApplyFilter(filter, u16::try_from(operands).ok(), NOT_CACHED)
}

fn paying<'source>(
    operation: &str,
    operands: usize,
    instruction: Instruction<'source>,
) -> Vec<Instruction<'source>> {
    // No template has so many operands, and without operands there is nothing to pay for.
    let Some(count) = u16::try_from(operands + 1).ok().filter(|_| operands > 0) else {
        return vec![instruction];
    };
    vec![
        Instruction::LoadConst(Value::from(operation)),
        Instruction::ApplyFilter(PAY, Some(count), NOT_CACHED),
        Instruction::UnpackList(operands),
        instruction,
    ]
}

fn settled(mut instructions: Vec<Instruction<'_>>) -> Vec<Instruction<'_>> {
    instructions.push(settle());
    instructions
}

fn settle<'source>() -> Instruction<'source> {
    Instruction::ApplyFilter(SETTLE, Some(1), NOT_CACHED)
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not supported"))
}

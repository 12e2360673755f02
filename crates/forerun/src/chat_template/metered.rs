//! Templates that pay for what they do: a compiled template, rewritten so that every operation that
//! builds or reads values of any size is paid from a [`Budget`](super::budget) first.
//!
//! minijinja bounds the number of steps, but one step can double a string. Its operators cannot be
//! replaced, so the calls are added to the compiled instructions.

use super::budget::{PAY, SETTLE};
use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, TemplateConfig, Token, eval, make_string_output,
    tokenize,
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

/// Makes the numbers of a template with products non-constant, because the compiler would compute
/// constant products such as `"a" * 10**8` unpaid.
pub(super) fn without_constants(text: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let tokens = tokenize(text, false, syntax.clone()).collect::<Result<Vec<_>, _>>()?;
    if !tokens.iter().any(|(token, _)| matches!(token, Token::Mul)) {
        return Ok(text.to_owned());
    }
    let (mut changed, mut end, mut after_dot) = (String::with_capacity(text.len()), 0, false);
    for (token, span) in &tokens {
        let number = matches!(token, Token::Int(_) | Token::Int128(_) | Token::Float(_));
        if number && !after_dot {
            let number = span.start_offset as usize..span.end_offset as usize;
            changed += &text[end..number.start];
            changed += &format!("({}|default)", &text[number.clone()]);
            end = number.end;
        }
        after_dot = matches!(token, Token::Dot);
    }
    Ok(changed + &text[end..])
}

/// Returns the instructions with a payment before each operation, and a check of each new container.
fn with_payments<'source>(
    original: &Instructions<'source>,
) -> Result<Instructions<'source>, Error> {
    let all = (0..).map_while(|index| original.get(index)).collect::<Vec<_>>();
    let mut paid = Vec::with_capacity(all.len());
    for instruction in &all {
        paid.push(paid_for(instruction)?);
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
    let several = |count: &Option<u16>| count.map(usize::from).ok_or_else(unpacked);
    Ok(match instruction {
        // Raw text is paid when it is written, as values are.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        I::Add => settled(paying("+", 2, original())),
        I::Mul => settled(paying("*", 2, original())),
        I::Slice => settled(paying("[:]", 4, original())),
        I::StringConcat => paying("~", 2, original()),
        I::Eq | I::Ne | I::Lt | I::Lte | I::Gt | I::Gte | I::CompareAndPreserve(_) => {
            paying("compare", 2, original())
        }
        I::In => paying("in", 2, original()),
        I::GetItem => paying("[]", 2, original()),
        I::PushLoop(_) => paying("for", 1, original()),
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => settled(vec![original()]),
        I::UnpackLists(_) => return Err(unpacked()),
        I::SetAttr(_) => vec![I::Swap, settle(), I::Swap, original()],
        I::ApplyFilter(name, count, _) => {
            settled(paying(&format!("|{name}"), several(count)?, original()))
        }
        I::PerformTest(name, count, _) => {
            paying(&format!("is {name}"), several(count)?, original())
        }
        // A range is lazy, but small.
        I::CallFunction("range", count) => paying("range()", several(count)?, original()),
        I::CallFunction(name, count) => {
            settled(paying(&format!("{name}()"), several(count)?, original()))
        }
        I::CallMethod(name, count) => {
            settled(paying(&format!(".{name}"), several(count)?, original()))
        }
        I::CallObject(count) => settled(paying("()", several(count)?, original())),
        _ => vec![original()],
    })
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

fn unpacked() -> Error {
    Error::new(ErrorKind::SyntaxError, "lists as separate arguments (`*list`) are not supported")
}

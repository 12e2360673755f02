//! Compiles grammars for a tokenizer, and keeps what it compiled.

use super::constraint::GrammarConstraint;
use super::vocabulary::Vocabulary;
use super::{Grammar, GrammarError, GrammarKind, gbnf};
use crate::tokenizer::Tokenizer;
use forerun_core::{CompileConstraint, TokenConstraint, TokenId};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The largest grammar, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The largest grammar with rules of its own, in bytes. Its rules may be nested as deep as it is long.
const MAX_RULES: usize = 1 << 17;

/// The most compiled grammars that are kept.
const KEPT: usize = 32;

/// The stack of the thread that compiles. Only what is used takes memory.
const STACK: usize = 1 << 28;

/// Between the parts of a JSON value, as in llama.cpp: a space, or line breaks and an indent. Without a limit, a model
/// could write spaces for ever.
const JSON_SPACE: &str = r"(\x20|\x0A{1,2}[\x20\x09]{0,20})";

/// Compiles grammars for one tokenizer.
pub(crate) struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// The number of tokens of the model.
    vocab_size: usize,
    /// Made when the first grammar needs it.
    factory: OnceLock<Result<Factory, GrammarError>>,
    /// The newest first.
    kept: Mutex<VecDeque<(Grammar, Arc<CompiledGrammar>)>>,
}

/// What all grammars of a tokenizer share.
struct Factory {
    tokenizer: Arc<Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    parsers: ParserFactory,
}

/// A grammar in its initial state.
pub(crate) struct CompiledGrammar {
    pub(super) kind: GrammarKind,
    pub(super) vocabulary: Arc<Vocabulary>,
    tokenizer: Arc<Tokenizer>,
    start: Mutex<Matcher>,
}

/// What makes a constraint, as it is sent to other processes.
#[derive(Serialize, Deserialize)]
struct Specification {
    grammar: Grammar,
    end_tokens: Vec<TokenId>,
}

impl GrammarCompiler {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, factory: OnceLock::new(), kept: Mutex::default() }
    }

    /// Compiles a grammar, unless it is kept from before.
    ///
    /// # Errors
    /// If the grammar cannot be used, or the bytes of the tokens are not known.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
        if let Some(compiled) = self.kept(grammar) {
            return Ok(compiled);
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref();
        let factory = factory.map_err(Clone::clone)?;
        let compiled = Arc::new(factory.compile(grammar)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((grammar.clone(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Returns the constraint of an answer that ends with one of `end_tokens`, and its specification.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`], or if there is no end token.
    pub(crate) fn constraint(
        &self,
        grammar: &Grammar,
        end_tokens: &[TokenId],
    ) -> Result<(String, Arc<GrammarConstraint>), GrammarError> {
        let compiled = self.compile(grammar)?;
        let ends = |token: &&TokenId| {
            (**token as usize) < self.vocab_size && !compiled.vocabulary.has_text(**token)
        };
        let end_tokens: Vec<TokenId> = end_tokens.iter().filter(ends).copied().collect();
        if end_tokens.is_empty() {
            return Err(GrammarError::NoEnd);
        }
        let specification = Specification { grammar: grammar.clone(), end_tokens };
        let text = serde_json::to_string(&specification);
        let text = text.map_err(|error| invalid(grammar.kind, &error.to_string()))?;
        Ok((text, Arc::new(GrammarConstraint::new(compiled, specification.end_tokens))))
    }

    fn kept(&self, grammar: &Grammar) -> Option<Arc<CompiledGrammar>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|(other, _)| other == grammar);
        found.map(|(_, compiled)| Arc::clone(compiled))
    }

    fn factory(&self) -> Result<Factory, GrammarError> {
        let error =
            |reason| GrammarError::Tokenizer { file: self.tokenizer.file().to_owned(), reason };
        let vocabulary = Vocabulary::new(&self.tokenizer, self.vocab_size).map_err(error)?;
        let vocabulary = Arc::new(vocabulary);
        let environment: TokEnv = vocabulary.clone();
        let parsers = ParserFactory::new(
            &environment,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::general_slices(),
        );
        let mut parsers = parsers.map_err(|cause| error(message(&cause.to_string())))?;
        parsers.quiet();
        *parsers.limits_mut() = ParserLimits {
            // About 2 kB each.
            max_lexer_states: 50_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Factory { tokenizer: Arc::clone(&self.tokenizer), vocabulary, parsers })
    }
}

impl CompileConstraint for GrammarCompiler {
    fn compile(&self, specification: &str) -> Result<Arc<dyn TokenConstraint>, String> {
        let specification: Specification =
            serde_json::from_str(specification).map_err(|error| error.to_string())?;
        let constraint = self.constraint(&specification.grammar, &specification.end_tokens);
        Ok(constraint.map_err(|error| error.to_string())?.1)
    }
}

impl Factory {
    fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
        let kind = grammar.kind;
        let source = source(grammar).map_err(|reason| invalid(kind, &reason))?;
        let matcher = on_large_stack(|| Matcher::new(self.parsers.create_parser(source)));
        let matcher = matcher.map_err(|reason| invalid(kind, &reason))?;
        if let Some(reason) = matcher.get_error() {
            return Err(invalid(kind, &message(&reason)));
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let tokenizer = Arc::clone(&self.tokenizer);
        let compiled = CompiledGrammar { kind, vocabulary, tokenizer, start: Mutex::new(matcher) };
        match compiled.start().compute_mask() {
            Ok(_) => Ok(compiled),
            Err(reason) => Err(invalid(kind, &stuck(&reason.to_string()))),
        }
    }
}

impl CompiledGrammar {
    /// Returns a matcher at the start of an answer. It shares no state with others.
    pub(super) fn start(&self) -> Matcher {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// Returns the tokens with which the tokenizer continues `last` with a text, without those at the end of the
    /// text, which depend on what follows it. They may be none.
    pub(super) fn spell(&self, last: Option<TokenId>, text: &[u8]) -> Vec<TokenId> {
        let (vocabulary, last) = (&self.vocabulary, last.as_slice());
        let encode = |before: &[TokenId]| {
            let mut bytes = vocabulary.bytes(before);
            bytes.extend(text);
            // A character may have to continue after the text.
            let text = bytes.utf8_chunks().next()?.valid();
            let mut tokens = self.tokenizer.encode_part(text, false).ok()?;
            let spells = vocabulary.bytes(&tokens) == text.as_bytes();
            if !spells || !tokens.starts_with(before) {
                return None;
            }
            tokens.pop();
            tokens.drain(..before.len().min(tokens.len()));
            Some(tokens)
        };
        encode(last).or_else(|| encode(&[])).unwrap_or_default()
    }
}

fn invalid(kind: GrammarKind, reason: &str) -> GrammarError {
    GrammarError::Invalid { kind, reason: reason.to_owned() }
}

/// The longest message of the library that is passed on, in characters. Some quote the whole grammar.
const MAX_MESSAGE: usize = 400;

/// Returns the library's message without its notes for debugging.
pub(super) fn message(text: &str) -> String {
    let notes = ["\n<backtrace>", "\n<state>", "\n<non-verbose/>"];
    let end = notes.iter().filter_map(|note| text.find(note)).min().unwrap_or(text.len());
    let text = text[..end].trim();
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((cut, _)) => format!("{} …", &text[..cut]),
        None => text.to_owned(),
    }
}

/// Returns why no token is allowed.
pub(super) fn stuck(text: &str) -> String {
    match message(text).as_str() {
        "NoExtensionBias" => "no token of the model continues the text".into(),
        other => other.to_owned(),
    }
}

/// Returns a grammar as the library reads it.
fn source(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    let text = &grammar.text;
    let has_rules = matches!(grammar.kind, GrammarKind::Lark | GrammarKind::Gbnf);
    let most = if has_rules { MAX_RULES } else { MAX_TEXT };
    if text.len() > most {
        return Err(format!("it has {} bytes, more than {most}", text.len()));
    }
    let is_empty = match has_rules {
        true => text.trim().is_empty(),
        false => text.is_empty(),
    };
    if is_empty {
        return Err("it is empty".into());
    }
    Ok(match grammar.kind {
        GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(schema(text)?),
        GrammarKind::Regex => TopLevelGrammar::from_regex(without_anchors(text)),
        GrammarKind::Lark => TopLevelGrammar::from_lark(text.clone()),
        GrammarKind::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
    })
}

/// Returns a schema with our options for the library.
fn schema(text: &str) -> Result<Value, String> {
    const OPTIONS: &str = "x-guidance";
    let mut schema: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match &mut schema {
        Value::Object(schema) if schema.contains_key(OPTIONS) => {
            return Err(format!("`{OPTIONS}` is not supported"));
        }
        Value::Object(schema) => {
            let options = serde_json::json!({ "whitespace_pattern": JSON_SPACE });
            schema.insert(OPTIONS.into(), options);
        }
        Value::Bool(true) => return self::schema("{}"),
        Value::Bool(false) => return Err("no value satisfies `false`".into()),
        _ => return Err("a schema is an object or `true`".into()),
    }
    exclude_leap_seconds(&mut schema);
    Ok(schema)
}

/// Excludes leap seconds from the formats of times. The library allows them in every minute, but they are
/// valid in few (RFC 3339, section 5.7).
fn exclude_leap_seconds(schema: &mut Value) {
    let seconds = match schema["format"].as_str() {
        Some("date-time") => Some("^.{17}[0-5]"),
        Some("time") => Some("^.{6}[0-5]"),
        _ => None,
    };
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(exclude_leap_seconds),
        Value::Object(fields) => {
            // Values are no schemas.
            let is_schema =
                |field: &str| !["const", "enum", "default", "examples"].contains(&field);
            let parts = fields.iter_mut().filter(|(field, _)| is_schema(field));
            parts.for_each(|(_, part)| exclude_leap_seconds(part));
            let all_of = seconds.map(|_| fields.entry("allOf").or_insert(Value::Array(Vec::new())));
            if let (Some(Value::Array(all_of)), Some(pattern)) = (all_of, seconds) {
                all_of.push(serde_json::json!({ "pattern": pattern }));
            }
        }
        _ => {}
    }
}

/// Returns a regular expression without `^` and `$` around it, since it matches the whole text anyway.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(inner) if (inner.len() - inner.trim_end_matches('\\').len()).is_multiple_of(2) => {
            inner
        }
        _ => regex,
    }
}

/// Runs `compile` on a thread whose stack is large enough for rules within rules.
fn on_large_stack<T: Send>(compile: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, compile);
        let thread = thread.map_err(|error| format!("no thread to compile it: {error}"))?;
        thread.join().map_err(|_| "it made the compiler fail".into())
    })
}

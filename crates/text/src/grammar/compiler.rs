//! Compiles grammars for a tokenizer, and keeps what it compiled.

use super::constraint::GrammarConstraint;
use super::json_schema::{self, Style};
use super::keys::Names;
use super::lark::{self, STYLE};
use super::vocabulary::Vocabulary;
use super::{Grammar, GrammarError, GrammarKind, gbnf};
use crate::integers::{large_integer, too_large};
use crate::tokenizer::Tokenizer;
use forerun_core::{CompileConstraint, TokenConstraint, TokenId};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The largest grammar, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The largest grammar with rules of its own, in bytes. Its rules may be nested as deep as it is
/// long.
const MAX_RULES: usize = 1 << 17;

/// The most compiled grammars that are kept.
const KEPT: usize = 32;

/// The longest time that a grammar may take to compile. The library's own limits usually end it
/// much earlier.
const LONGEST: Duration = Duration::from_secs(10);

/// The most grammars that are compiled at the same time. One that took too long counts until it has
/// ended.
const MOST_AT_A_TIME: usize = 4;

/// The stack of the thread that compiles. Only what is used takes memory.
const STACK: usize = 1 << 28;

/// Compiles grammars for one tokenizer.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// The number of tokens of the model.
    vocab_size: usize,
    /// Made when the first grammar needs it.
    factory: OnceLock<Result<Arc<Factory>, GrammarError>>,
    /// The newest first.
    kept: Mutex<VecDeque<(Grammar, Arc<CompiledGrammar>)>>,
}

/// What all grammars of a tokenizer share.
struct Factory {
    tokenizer: Arc<Tokenizer>,
    vocabulary: Arc<Vocabulary>,
    names: Arc<Names>,
    parsers: ParserFactory,
    /// How many grammars are being compiled.
    compiling: AtomicUsize,
}

/// A grammar in its initial state.
pub(crate) struct CompiledGrammar {
    pub(super) kind: GrammarKind,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Present if the whole text is a JSON value.
    pub(super) names: Option<Arc<Names>>,
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
    /// Creates a compiler for a model of `vocab_size` tokens with this tokenizer.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, factory: OnceLock::new(), kept: Mutex::default() }
    }

    /// Checks that a grammar can be used with the tokenizer, and keeps it for answers.
    ///
    /// # Errors
    /// If it is malformed, has no texts, needs something unsupported, or is too large.
    pub fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        self.compile(grammar).map(|_| ())
    }

    /// Compiles a grammar, unless it is kept from before.
    ///
    /// # Errors
    /// If the grammar cannot be used, or the bytes of the tokens are not known.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
        if let Some(compiled) = self.kept(grammar) {
            return Ok(compiled);
        }
        let factory = self.factory.get_or_init(|| self.factory().map(Arc::new)).as_ref();
        let factory = factory.map_err(Clone::clone)?;
        let compiled = Arc::new(factory.compile_in_time(grammar)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((grammar.clone(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Returns the constraint of an answer that ends with one of `end_tokens`, and its
    /// specification.
    ///
    /// # Errors
    /// As [`GrammarCompiler::check`], or if there is no end token.
    pub fn constraint(
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
            // An object may have thousands of properties.
            max_items_in_row: 60_000,
            step_max_items: 300_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let names = Arc::new(Names::new(&vocabulary));
        Ok(Factory {
            tokenizer: Arc::clone(&self.tokenizer),
            vocabulary,
            names,
            parsers,
            compiling: AtomicUsize::new(0),
        })
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
    /// Compiles a grammar on a thread of its own, whose stack is large enough for rules within
    /// rules. The caller does not wait for it longer than allowed, and the end of the process ends
    /// it.
    fn compile_in_time(
        self: &Arc<Self>,
        grammar: &Grammar,
    ) -> Result<CompiledGrammar, GrammarError> {
        let invalid = |reason: &str| invalid(grammar.kind, reason);
        if self.compiling.fetch_add(1, Ordering::Relaxed) >= MOST_AT_A_TIME {
            self.compiling.fetch_sub(1, Ordering::Relaxed);
            return Err(invalid("too many other grammars are being compiled: try again later"));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let (factory, grammar) = (Arc::clone(self), grammar.clone());
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            let compile = AssertUnwindSafe(|| factory.compile(&grammar));
            let compiled = std::panic::catch_unwind(compile);
            factory.compiling.fetch_sub(1, Ordering::Relaxed);
            // Nobody waits for a grammar that took too long.
            let _ = sender.send(compiled);
        });
        if let Err(error) = started {
            self.compiling.fetch_sub(1, Ordering::Relaxed);
            return Err(invalid(&format!("no thread to compile it: {error}")));
        }
        match receiver.recv_timeout(LONGEST) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                Err(invalid("it made the compiler fail"))
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(invalid(&format!("it takes longer than {} s to compile", LONGEST.as_secs())))
            }
        }
    }

    fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
        let kind = grammar.kind;
        let source = source(grammar).map_err(|reason| invalid(kind, &reason))?;
        let matcher = Matcher::new(self.parsers.create_parser(source));
        if let Some(reason) = matcher.get_error() {
            return Err(invalid(kind, &message(&reason)));
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let tokenizer = Arc::clone(&self.tokenizer);
        let names = (kind == GrammarKind::JsonSchema).then(|| Arc::clone(&self.names));
        let start = Mutex::new(matcher);
        let compiled = CompiledGrammar { kind, vocabulary, names, tokenizer, start };
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

    /// Returns the tokens with which the tokenizer continues `last` with a text, without those at
    /// the end of the text, which depend on what follows it. They may be none.
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

/// The longest message of the library that is passed on, in characters. Some quote the whole
/// grammar.
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
        GrammarKind::JsonSchema => TopLevelGrammar::from_lark(schema(text)?),
        GrammarKind::Regex => TopLevelGrammar::from_regex(without_anchors(text)),
        GrammarKind::Lark => TopLevelGrammar::from_lark(lark::with_schemas_as_rules(text)?),
        GrammarKind::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
    })
}

/// Returns the Lark grammar of a schema.
fn schema(text: &str) -> Result<String, String> {
    if let Some(number) = large_integer(text.as_bytes()) {
        return Err(too_large(number));
    }
    let schema: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if schema.get(STYLE).is_some() {
        return Err(format!("`{STYLE}` is not supported"));
    }
    json_schema::to_lark(&schema, &Style::default())
}

/// Returns a regular expression without `^` and `$` around it, since it matches the whole text
/// anyway.
pub(crate) fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(inner) if (inner.len() - inner.trim_end_matches('\\').len()).is_multiple_of(2) => {
            inner
        }
        _ => regex,
    }
}

//! Constraints: which tokens an answer may have, such as those of a grammar.
//!
//! A row's mask is a function of the answer's tokens before it, so drafted rows are masked as the
//! target's are. This crate knows masks only. Who makes the constraint knows texts and grammars.

use crate::{SamplingError, TokenId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A set of allowed tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Token `t` is bit `t % 32` of word `t / 32`. The last word is not 0, and tokens beyond are
    /// forbidden.
    words: Arc<[u32]>,
}

impl TokenMask {
    /// Creates a mask from its bits: token `t` is allowed if bit `t % 32` of word `t / 32` is set.
    #[must_use]
    pub fn from_words(mut words: Vec<u32>) -> Self {
        let end = words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        words.truncate(end);
        Self { words: words.into() }
    }

    /// Creates the mask that allows these tokens.
    #[must_use]
    pub fn of(tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let mut words = Vec::new();
        for token in tokens {
            let word = token as usize / WORD;
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (token as usize % WORD);
        }
        Self::from_words(words)
    }

    /// Returns whether a token is allowed.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.words.get(token as usize / WORD).copied().unwrap_or(0);
        word >> (token as usize % WORD) & 1 == 1
    }

    /// Iterates over the allowed tokens in ascending order.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        let end = (self.words.len() * WORD) as TokenId;
        (0..end).filter(|&token| self.allows(token))
    }

    /// Returns the bits of the tokens from `32 * index` on.
    pub(crate) fn word(&self, index: usize) -> u32 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.tokens()).finish()
    }
}

/// The number of tokens in a word of a mask.
pub(crate) const WORD: usize = 32;

/// Which tokens may follow the tokens of an answer.
///
/// Drafter and target ask at the same time.
pub trait TokenConstraint: fmt::Debug + Send + Sync {
    /// Returns the tokens that may follow `answer`: the tokens after the prompt, up to the row. The
    /// result is a function of `answer` alone, and never empty.
    ///
    /// `None` leaves the row as it is. This is for an `answer` that is itself forbidden, which no
    /// committed token follows.
    fn allowed(&self, answer: &[TokenId]) -> Option<TokenMask>;

    /// Returns tokens that spell what has to follow `answer`, at most `limit`. They are a good
    /// draft, and a function of `answer` alone. By default there are none.
    fn forced(&self, answer: &[TokenId], limit: usize) -> Vec<TokenId> {
        let _ = (answer, limit);
        Vec::new()
    }
}

/// Compiles constraints that arrive as their specifications from another process.
pub trait CompileConstraint: Send + Sync {
    /// Compiles a specification.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    fn compile(&self, specification: &str) -> Result<Arc<dyn TokenConstraint>, String>;
}

/// The constraint of one answer: its specification, and its compiled form.
///
/// Constraints are equal if their specifications are, and only the specification is serialised. In
/// another process, the worker's engine compiles it again ([`Constraint::compile_with`]).
#[derive(Clone)]
pub struct Constraint {
    specification: Arc<str>,
    /// Shared by all clones, so that each process compiles it once.
    compiled: Arc<OnceLock<Result<Arc<dyn TokenConstraint>, String>>>,
}

impl Constraint {
    /// Creates a constraint from its specification and its compiled form.
    #[must_use]
    pub fn new(specification: impl Into<Arc<str>>, compiled: Arc<dyn TokenConstraint>) -> Self {
        Self {
            specification: specification.into(),
            compiled: Arc::new(OnceLock::from(Ok(compiled))),
        }
    }

    /// Returns the specification.
    #[must_use]
    pub fn specification(&self) -> &str {
        &self.specification
    }

    /// Compiles the constraint, unless it is compiled already. Without a compiler, its rows are
    /// errors.
    pub fn compile_with(&self, compiler: Option<&dyn CompileConstraint>) {
        self.compiled.get_or_init(|| match compiler {
            Some(compiler) => compiler.compile(&self.specification),
            None => Err("this worker has nothing that compiles constraints".into()),
        });
    }

    /// Returns the compiled form.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`] if it could not be compiled in this process.
    pub fn compiled(&self) -> Result<&dyn TokenConstraint, SamplingError> {
        match self.compiled.get() {
            Some(Ok(compiled)) => Ok(&**compiled),
            Some(Err(reason)) => Err(SamplingError::Constraint(reason.clone())),
            None => Err(SamplingError::Constraint("it was not compiled".into())),
        }
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        self.specification == other.specification
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Constraint").field(&self.specification).finish()
    }
}

impl Serialize for Constraint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.specification.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let specification = String::deserialize(deserializer)?.into();
        Ok(Self { specification, compiled: Arc::default() })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Sampler, Sampling, TokenTree};

    #[derive(Debug)]
    struct Only(TokenId);

    impl TokenConstraint for Only {
        fn allowed(&self, _answer: &[TokenId]) -> Option<TokenMask> {
            Some(TokenMask::of([self.0]))
        }
    }

    struct Numbers;

    impl CompileConstraint for Numbers {
        fn compile(&self, specification: &str) -> Result<Arc<dyn TokenConstraint>, String> {
            let number = specification.parse().map_err(|_| format!("no number: {specification}"));
            Ok(Arc::new(Only(number?)))
        }
    }

    #[test]
    fn masks_hold_the_tokens_that_they_are_made_of() {
        let tokens = [0, 31, 32, 63, 100];
        let mask = TokenMask::of(tokens);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), tokens);
        assert!(mask.allows(32) && !mask.allows(33) && !mask.allows(5_000));
        assert_eq!(mask, TokenMask::from_words(vec![1 | 1 << 31, 1 | 1 << 31, 0, 1 << 4, 0]));
        assert_eq!(format!("{mask:?}"), "{0, 31, 32, 63, 100}");
    }

    #[test]
    fn another_process_compiles_the_specification() {
        let sampling = Sampling {
            constraint: Some(Constraint::new("2", Arc::new(Only(2)))),
            ..Sampling::greedy()
        };
        let text = serde_json::to_string(&sampling).unwrap();
        let row = |sampling: &Sampling| {
            let sampler = Sampler::new(sampling, &[0], 1);
            let row = sampler.distribution(&[5.0, 4.0, 3.0], &TokenTree::new(), None);
            row.map(|row| row.as_point()).map_err(|error| error.to_string())
        };
        assert_eq!(row(&sampling), Ok(Some(2)));
        let received = || serde_json::from_str::<Sampling>(&text).unwrap();
        assert_eq!(received(), sampling);
        for (compiler, expected) in
            [(None, "nothing that compiles"), (Some(&Numbers as &dyn CompileConstraint), "")]
        {
            let received = received();
            let clone = received.clone();
            assert!(row(&received).unwrap_err().contains("not compiled"));
            received.constraint.as_ref().unwrap().compile_with(compiler);
            match compiler {
                None => assert!(row(&clone).unwrap_err().contains(expected)),
                Some(_) => assert_eq!(row(&clone), Ok(Some(2))),
            }
        }
        let broken: Constraint = serde_json::from_str("\"two\"").unwrap();
        broken.compile_with(Some(&Numbers));
        assert!(broken.compiled().unwrap_err().to_string().contains("no number: two"));
    }
}

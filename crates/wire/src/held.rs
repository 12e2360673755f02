//! What both ends hold of a sequence: the tokens and features of its last job.

use crate::WireError;
use crate::digests::{Digest, Digests};
use crate::rows::{CompactFeatures, bytes_of};
use forerun_core::{FeatureRows, Features, Sampling, TokenId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// The first part of a list, which the receiver holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HeldPrefix {
    /// The number of its elements.
    count: usize,
    digest: Digest,
}

/// The tokens of a job, without those that the receiver holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TokensDelta<'a> {
    start: Start<'a>,
    new: Cow<'a, [TokenId]>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Start<'a> {
    /// The receiver holds the first tokens and the sampling options. The digest includes both.
    Held(HeldPrefix),
    /// The receiver needs everything.
    Whole(Cow<'a, Sampling>),
}

/// The features of a job, without the parts that the receiver holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FeaturesDelta<'a> {
    held: Option<HeldPrefix>,
    new: Vec<CompactFeatures<'a>>,
}

/// Tokens and sampling options of a sequence's last job.
#[derive(Debug)]
pub(crate) struct HeldTokens {
    sampling: Sampling,
    tokens: Arc<[TokenId]>,
    digests: Digests,
}

/// The features of a sequence's last draft job.
#[derive(Debug)]
pub(crate) struct HeldFeatures {
    parts: Vec<Arc<FeatureRows>>,
    digests: Digests,
}

/// What one end holds of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Held {
    tokens: Option<HeldTokens>,
    features: HeldFeatures,
}

impl TokensDelta<'_> {
    /// Creates the message for a receiver that holds nothing.
    pub(crate) fn whole<'a>(sampling: &'a Sampling, tokens: &'a [TokenId]) -> TokensDelta<'a> {
        TokensDelta { start: Start::Whole(Cow::Borrowed(sampling)), new: Cow::Borrowed(tokens) }
    }
}

impl FeaturesDelta<'_> {
    /// Creates the message for a receiver that holds nothing.
    pub(crate) fn whole(features: &Features) -> FeaturesDelta<'_> {
        let new = features.parts().iter().map(|part| CompactFeatures::new(part)).collect();
        FeaturesDelta { held: None, new }
    }
}

impl Held {
    /// Returns what the receiver of this sequence's last job lacks of a job's tokens, and holds
    /// them from now on.
    pub(crate) fn send_tokens<'a>(
        &mut self,
        sampling: &'a Sampling,
        tokens: &'a Arc<[TokenId]>,
    ) -> TokensDelta<'a> {
        let seed = seed_of(sampling);
        let same_options = |held: &&mut HeldTokens| held.digests.of_first(0) == Some(seed);
        if let Some(held) = self.tokens.as_mut().filter(same_options) {
            let pairs = held.tokens.iter().zip(&**tokens);
            let count = pairs.take_while(|(held, new)| held == new).count();
            let prefix = held.digests.of_first(count).filter(|_| count > 0);
            if let Some(digest) = prefix {
                held.replace_after(count, Arc::clone(tokens));
                let start = Start::Held(HeldPrefix { count, digest });
                return TokensDelta { start, new: Cow::Borrowed(&tokens[count..]) };
            }
        }
        self.tokens = Some(HeldTokens::new(sampling.clone(), Arc::clone(tokens)));
        TokensDelta::whole(sampling, tokens)
    }

    /// Returns what the receiver of this sequence's last draft job lacks of a job's features, and
    /// holds them from now on.
    pub(crate) fn send_features<'a>(&mut self, features: &'a Features) -> FeaturesDelta<'a> {
        let held = &mut self.features;
        let pairs = held.parts.iter().zip(features.parts());
        let count = pairs.take_while(|(held, new)| same_rows(held, new)).count();
        let prefix = held.digests.of_first(count).filter(|_| count > 0);
        held.replace_after(count, &features.parts()[count..]);
        let new = features.parts()[count..].iter().map(|part| CompactFeatures::new(part)).collect();
        FeaturesDelta { held: prefix.map(|digest| HeldPrefix { count, digest }), new }
    }

    /// Returns the sampling options and the tokens of a job, and holds them from now on. `None` if
    /// this end does not hold what the message refers to.
    pub(crate) fn receive_tokens(
        &mut self,
        delta: &TokensDelta<'_>,
    ) -> Option<(Sampling, Arc<[TokenId]>)> {
        match &delta.start {
            Start::Whole(sampling) => {
                let tokens = Arc::from(&*delta.new);
                self.tokens = Some(HeldTokens::new(sampling.clone().into_owned(), tokens));
            }
            Start::Held(HeldPrefix { count, digest }) => {
                let held = self.tokens.as_mut()?;
                held.digests.of_first(*count).filter(|held| held == digest)?;
                let tokens = held.tokens[..*count].iter().chain(&*delta.new).copied().collect();
                held.replace_after(*count, tokens);
            }
        }
        self.tokens.as_ref().map(|held| (held.sampling.clone(), Arc::clone(&held.tokens)))
    }

    /// Returns whether this end holds the features that a message refers to.
    pub(crate) fn has_features(&self, delta: &FeaturesDelta<'_>) -> bool {
        let has =
            |held: HeldPrefix| self.features.digests.of_first(held.count) == Some(held.digest);
        delta.held.is_none_or(has)
    }

    /// Returns the features of a job, and holds them from now on. This end must have what the
    /// message refers to ([`Held::has_features`]).
    pub(crate) fn receive_features(
        &mut self,
        delta: FeaturesDelta<'_>,
    ) -> Result<Features, WireError> {
        let rows = |part: CompactFeatures<'_>| Ok(Arc::new(part.into_rows()?));
        let new: Vec<_> = delta.new.into_iter().map(rows).collect::<Result<_, WireError>>()?;
        if new.iter().any(|part| part.is_empty()) {
            return Err(WireError::Invalid("a part of the features has no rows"));
        }
        self.features.replace_after(delta.held.map_or(0, |held| held.count), &new);
        Ok(self.features.parts.iter().cloned().collect())
    }

    /// Returns the memory that this end uses for the sequence, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rows = |part: &Arc<FeatureRows>| size_of_val(part.values());
        let features: usize = self.features.parts.iter().map(rows).sum();
        let tokens = self.tokens.as_ref().map_or(0, |held| {
            let biases = held.sampling.logit_bias.len() * size_of::<(TokenId, f32)>();
            let breakers = held.sampling.dry_breakers.iter();
            let breakers: usize = breakers.map(|tokens| size_of_val(&**tokens)).sum();
            let constraint = held.sampling.constraint.as_ref();
            let constraint = constraint.map_or(0, |constraint| constraint.specification().len());
            size_of_val(&*held.tokens) + held.digests.bytes() + biases + breakers + constraint
        });
        tokens + features + self.features.digests.bytes()
    }
}

impl HeldTokens {
    fn new(sampling: Sampling, tokens: Arc<[TokenId]>) -> Self {
        let mut held = Self { digests: Digests::new(seed_of(&sampling)), sampling, tokens };
        held.replace_after(0, Arc::clone(&held.tokens));
        held
    }

    /// Holds other tokens, of which the first `count` are as before.
    fn replace_after(&mut self, count: usize, tokens: Arc<[TokenId]>) {
        self.digests.truncate(count);
        for (index, token) in tokens.iter().enumerate().skip(count) {
            self.digests.set(index, [token.to_le_bytes()]);
        }
        self.tokens = tokens;
    }
}

impl Default for HeldFeatures {
    fn default() -> Self {
        Self { parts: Vec::new(), digests: Digests::new(Digest::of_context(b"features")) }
    }
}

impl HeldFeatures {
    fn replace_after(&mut self, count: usize, parts: &[Arc<FeatureRows>]) {
        self.parts.truncate(count);
        self.digests.truncate(count);
        for part in parts {
            let width = (part.width() as u64).to_le_bytes();
            self.digests.set(self.parts.len(), [&width[..], &bytes_of(part.values())]);
            self.parts.push(Arc::clone(part));
        }
    }
}

/// Returns the digest of no tokens with these options.
fn seed_of(sampling: &Sampling) -> Digest {
    let bytes = postcard::to_allocvec(sampling).expect("sampling options can be serialised");
    Digest::of_context(&[&b"tokens"[..], &bytes].concat())
}

/// Returns whether two parts have the same bits. Usually they are the same part.
fn same_rows(a: &Arc<FeatureRows>, b: &Arc<FeatureRows>) -> bool {
    let bits = |rows: &FeatureRows| rows.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    Arc::ptr_eq(a, b) || (a.width() == b.width() && bits(a) == bits(b))
}

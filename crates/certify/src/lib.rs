//! Certificates: whether every method gives the tokens of plain decoding, on a user's own models,
//! device and prompts.
//!
//! A [`Certifier`] decodes the same prompts with plain decoding and with every method, and
//! compares:
//!
//! * **Greedy** and **seeded** answers, token by token, and the target's log-probabilities at every
//!   position bit by bit. Both must be equal. Seeded answers take turns with penalties, filters and
//!   a grammar.
//! * Answers of **rejection sampling** and **block verification** have no text to be compared with.
//!   Each of their tokens is tested against the distribution that plain decoding draws it from
//!   ([`SamplingTest`]).
//! * Decoders and verification know nothing of models. So each configuration also answers with
//!   **known models**, tiny built-in ones ([`KnownPair`]). Counts of their short texts are tested
//!   against the exact probabilities ([`KnownCheck`]), which shows errors that need too many tokens
//!   of large models.
//!
//! What is not drafted is not checked. So drafts have a fixed size and never pause, the methods of
//! `auto` take turns, and a configuration that drafted or accepted too few tokens, or whose drafter
//! failed, is not certified ([`Drafts`]).
//!
//! [`compare_endpoints`] compares the greedy answers of two servers, whatever engine they run.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod certificate;
mod certifier;
mod configuration;
mod drafts;
mod endpoint;
mod known_answers;
mod known_check;
mod known_models;
mod repeated_texts;
mod sampling_test;
mod seeded_options;
mod subject;
mod text_counts;
mod time_left;

pub use certificate::{
    Cause, Certificate, Check, CheckResult, Comparison, Divergence, KnownResult, Outcome,
    SamplingVerdict,
};
pub use certifier::{Certifier, CertifyError, CertifyOptions, PlainAnswers};
pub use drafts::Drafts;
pub use endpoint::{
    Endpoint, EndpointComparison, EndpointDivergence, EndpointError, compare_endpoints,
};
pub use known_answers::{AnswerRandomness, DecoderSetup, DecoderSource, MakeDecoderSetup};
pub use known_check::{KnownCheck, KnownGroup, KnownVerdict};
pub use known_models::{KNOWN_PROMPT, KNOWN_VOCAB, KnownModel, KnownPair};
pub use sampling_test::{SamplingResult, SamplingTest};
pub use seeded_options::SeededOptions;
pub use subject::{Subject, SubjectAnswer};
pub use time_left::CertifyProgress;

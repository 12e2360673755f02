//! Losslessness above temperature 0: the joint distribution of consecutive tokens is exactly the
//! target's, for every combination of decoder, drafter and shape.
//!
//! Nothing is sampled. The production decoders, drafters and verification run unchanged on a
//! vocabulary of three tokens, but an enumerator replaces their keyed generator. Every key is one
//! unknown number in [0, 1). The enumerator splits its interval at each requested threshold, runs
//! every combination of splits to its end, and weighs it by the lengths of its intervals. The
//! result is the exact joint distribution of the first two tokens, or of more tokens if rounds
//! reach further.
//!
//! Mutants of the algorithms check the proof itself: published and likely mistakes. The
//! distribution of each mutant must be visibly wrong. They also run on small checkpoints, where
//! `forerun certify` must find those of `certified_mutants`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod drafters;
mod enumerator;
mod exactness;
mod experiment;
mod methods;
mod mutants;
mod options;
mod tables;

mod block_heads;
mod blocks;
mod certified_mutants;
mod enumerated_mutants;
mod failures;
mod kinds_of_drafters;
mod known_mutants;
mod lookups;
mod parallel_methods;
mod speculative;

//! What the tests share: devices, sequences and checked answers.

use forerun_core::{Role, Sampling, SequenceId};
use forerun_decode::{DecodeError, Decoder, Limits, Sequence, generate};
use forerun_sim::{Cost, Device, Oracle, SimCluster};
use std::ops::ControlFlow;

/// A millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn device(name: impl Into<String>, role: Role, cost: Cost) -> Device {
    Device { name: name.into(), roles: vec![role], cost }
}

/// Returns a drafter and a target with a device each.
pub(crate) fn pair(drafter: Cost, target: Cost) -> Vec<Device> {
    vec![device("drafter", Role::Drafter(0), drafter), device("target", Role::Target(0), target)]
}

/// Returns a sequence whose prompt is the beginning of the oracle's text.
pub(crate) fn sequence(oracle: &Oracle, prompt: usize, max_tokens: usize) -> Sequence {
    let limits = Limits { max_tokens, context_length: usize::MAX, eos: Vec::new() };
    Sequence::new(SequenceId(0), oracle.text(prompt), Sampling::greedy(), limits)
}

/// Answers a prompt of this many tokens, and checks that the text is the target's, also after an
/// error.
pub(crate) fn answer(
    decoder: &mut dyn Decoder,
    cluster: &mut SimCluster,
    oracle: &Oracle,
    prompt: usize,
    max_tokens: usize,
) -> Result<(), DecodeError> {
    let mut sequence = sequence(oracle, prompt, max_tokens);
    let outcome = generate(decoder, &mut sequence, cluster, |_| ControlFlow::Continue(()));
    assert_eq!(sequence.tokens(), oracle.text(sequence.tokens().len()));
    outcome?;
    assert_eq!(sequence.generated().len(), max_tokens);
    Ok(())
}

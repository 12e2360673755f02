//! Autoregressive decoding: one target forward for each token. This is the baseline of the other
//! decoders, and the reference for their output.

use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, Sequence, jobs};
use forerun_core::{Cluster, Draft, verify};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "autoregressive",
    help: "One forward pass of the target per token, no drafts",
    drafting: Drafting::None,
    several_targets: false,
    offers: &[],
    combines_drafters: false,
    decoder: |_| Box::new(Autoregressive),
};

/// Decodes one token in each step, without drafting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Autoregressive;

impl Decoder for Autoregressive {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = Draft::empty();
        let score = jobs::score(sequence, cluster, &draft.tree)?;
        let position = sequence.tokens().len();
        let verdict = verify(&draft, &score.output.rows, position, sequence.randomness());
        jobs::commit(&draft, &verdict, &score.output, [score.ticket], sequence, cluster);
        Ok(())
    }
}

impl AnswerDecoder for Autoregressive {
    fn for_next_answer(&self, _options: &DecoderOptions, _prompt: usize) -> Box<dyn AnswerDecoder> {
        Box::new(Self)
    }
}

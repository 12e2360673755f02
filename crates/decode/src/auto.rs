//! Chooses between decoding methods, and between drafters, while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text with any drafter, so a sequence can go
//! from one to another after any step. They share a planner ([`Planned`]), which learns times and
//! acceptance once for all, and says which is the fastest on the text at hand.

use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::registry::{CHOICES, fastest};
use crate::repeated_drafters::RepeatedDrafters;
use crate::{DecodeError, Decoder, Sequence, jobs::wasted};
use forerun_core::{Cluster, Need};
use forerun_plan::Planned;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "auto",
    help: "Predict and measure speculative decoding, PEARL and DSI, and use the fastest",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::SeveralDrafters],
    combines_drafters: true,
    decoder: |options| fastest(&CHOICES, options),
};

/// Decodes with the fastest of several decoders.
pub struct Auto {
    candidates: Vec<Candidate>,
    current: usize,
}

/// A decoder to choose.
pub(crate) struct Candidate {
    /// The index of its drafter.
    pub(crate) drafter: usize,
    /// The number of drafters if it uses those on the target's devices, else 0.
    pub(crate) offset: usize,
    pub(crate) decoder: Box<dyn AnswerDecoder>,
}

impl Auto {
    /// Creates a decoder that begins with the first of `decoders`, which have the same drafter.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(decoders: Vec<Box<dyn AnswerDecoder>>) -> Self {
        let candidate = |decoder| Candidate { drafter: 0, offset: 0, decoder };
        Self::of_candidates(decoders.into_iter().map(candidate).collect())
    }

    /// Creates a decoder for `candidates`, whose planners become one.
    pub(crate) fn of_candidates(mut candidates: Vec<Candidate>) -> Self {
        let (first, others) = candidates.split_first_mut().expect("a decoder to choose");
        let mut current = 0;
        if let Some(planned) = first.decoder.planned() {
            planned.set_drafter(first.drafter, first.drafter + first.offset);
            for Candidate { drafter, offset, decoder } in others {
                if let Some(other) = decoder.planned() {
                    other.join(planned, *drafter, *drafter + *offset);
                }
            }
            current = planned.working().unwrap_or(0);
        }
        Self { candidates, current }
    }
}

impl Decoder for Auto {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let Candidate { offset, decoder, .. } = &mut self.candidates[self.current];
        decoder.step(sequence, &mut RepeatedDrafters { cluster, offset: *offset })?;
        if decoder.has_failed_drafter()
            && let Some(planned) = decoder.planned()
        {
            planned.exclude();
        }
        let next = decoder.planned().and_then(|planned| planned.working());
        if let Some(next) = next.filter(|&next| next != self.current) {
            decoder.stop(cluster);
            // The next decoder must not get its jobs.
            while let Ok(completion) = cluster.next_completion() {
                cluster.observe(wasted(completion.ticket));
            }
            self.current = next;
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.candidates[self.current].decoder.stop(cluster);
    }
}

impl AnswerDecoder for Auto {
    fn for_next_answer(&self, options: &DecoderOptions, prompt: usize) -> Box<dyn AnswerDecoder> {
        let candidate = |old: &Candidate| {
            let options = options.of_drafter(old.drafter);
            Candidate { decoder: old.decoder.for_next_answer(&options, prompt), ..*old }
        };
        let mut candidates: Vec<Candidate> = self.candidates.iter().map(candidate).collect();
        let mut current = self.current;
        if let Some((first, others)) = candidates.split_first_mut()
            && let Some(planned) = first.decoder.planned()
        {
            for other in others.iter_mut().filter_map(|other| other.decoder.planned()) {
                other.share(planned);
            }
            current = planned.working().unwrap_or(current);
        }
        Box::new(Self { candidates, current })
    }

    fn planned(&mut self) -> Option<&mut Planned> {
        self.candidates[0].decoder.planned()
    }
}

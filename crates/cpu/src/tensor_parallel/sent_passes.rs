//! What a leader knows of the passes and storages that the other members have, too.

use super::exchange::ExchangeError;
use super::message::{PassMessage, SequenceMessage, groups};
use crate::cpu_pages::{CpuPages, DroppedStorages, Mirror, take_dropped};
use forerun_formats::{Architecture, Input};
use forerun_lm::LayerOrder;
use forerun_model::{Cancelled, Pass};
use std::cell::Cell;
use std::sync::Arc;

/// The passes that a leader sends to the other members.
pub(crate) struct SentPasses {
    /// The number of passes so far.
    number: u32,
    /// Whether a pass has begun and not ended: it has panicked, and the other members are in the
    /// middle of it.
    is_in_pass: bool,
    storages: Cell<u32>,
    dropped: DroppedStorages,
}

impl SentPasses {
    /// Prepares to send passes of a model.
    ///
    /// # Panics
    /// If the model reads features, or its head has other tokens than its embedding: such models
    /// are drafters.
    pub(crate) fn new(architecture: &Architecture) -> Self {
        assert_eq!(architecture.input, Input::Embedding, "a model that reads tokens only");
        assert!(architecture.head_tokens.is_none(), "a head with all tokens");
        let (storages, dropped) = (Cell::new(0), DroppedStorages::default());
        Self { number: 0, is_in_pass: false, storages, dropped }
    }

    /// Returns a new storage of which the other members have parts. `of_others` are the bytes of
    /// their pages and states.
    pub(crate) fn mirrored(&self, storage: CpuPages, of_others: (usize, usize)) -> CpuPages {
        let number = self.storages.get();
        self.storages.set(number + 1);
        storage.with_mirror(Mirror::new(number, of_others, Arc::clone(&self.dropped)))
    }

    /// Panics if a pass cannot be computed, before the other members hear of it.
    fn check(&self, pass: &Pass<'_>, architecture: &Architecture) {
        assert!(
            !self.is_in_pass,
            "a pass of the group that computes the model has failed, so its members are out of step"
        );
        if let LayerOrder::Groups(groups) = pass.order {
            assert_eq!(groups.n_layers(), architecture.layers.len(), "groups of all layers");
        }
        for sequence in pass.sequences {
            let held = sequence.held();
            let outputs = held..=sequence.tree.len();
            assert!(outputs.contains(&sequence.first_output), "output rows must be new rows");
            assert!(sequence.features.is_empty(), "a model that reads tokens only");
            let mut tokens = sequence.tree.tokens()[held..].iter();
            let vocabulary = architecture.vocab_size;
            assert!(tokens.all(|token| (*token as usize) < vocabulary), "tokens with an embedding");
            if let Some(table) = architecture.positions {
                let deepest = (held..sequence.tree.len()).map(|node| sequence.tree.depth(node));
                let end = sequence.cache.prefix_len() + deepest.max().unwrap_or(0);
                assert!(table.first + end <= table.rows, "positions with an embedding");
            }
        }
    }

    /// Starts a pass. `send` sends the message about it to the other members.
    ///
    /// # Errors
    /// [`Cancelled`] if the pass is cancelled already. The other members do not hear of it then.
    ///
    /// # Panics
    /// If the pass cannot be computed or sent, or the storage is not a [mirrored](Self::mirrored)
    /// one.
    pub(crate) fn start(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
        architecture: &Architecture,
        send: impl FnOnce(PassMessage) -> Result<(), ExchangeError>,
    ) -> Result<(), Cancelled> {
        self.check(pass, architecture);
        if pass.is_cancelled() {
            return Err(Cancelled);
        }
        let (storage, operations) =
            storage.take_operations().expect("a storage of which other members have parts");
        self.number += 1;
        self.is_in_pass = true;
        let layers = &architecture.layers;
        let sent = send(PassMessage {
            number: self.number,
            dropped: take_dropped(&self.dropped),
            storage,
            operations,
            groups: groups(pass.order, layers.len()),
            sequences: SequenceMessage::all(
                pass,
                layers.iter().any(|layer| layer.recurrent.is_some()),
            ),
        });
        sent.unwrap_or_else(|error| panic!("{error}"));
        Ok(())
    }

    /// Ends a pass, after which the members are not out of step.
    pub(crate) fn end(&mut self) {
        self.is_in_pass = false;
    }
}

//! Caches are correct when drafting runs ahead. After every rejection, cancellation and restart,
//! target and drafter compute with their caches the same logits, bit for bit, as a fresh forward
//! pass. This holds on separate devices, and on two devices that they share.

use crate::common::Pair;
use forerun_core::{Sampling, SequenceId, TokenId};
use forerun_cpu::{
    AlternatingModel, CpuPages, ExclusiveDevice, PipelineParallelModel, Team, Transformer, Weights,
};
use forerun_decode::{
    Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl, PearlDraftLength, Sequence, generate,
};
use forerun_draft::{ModelDrafter, TwoDeviceDrafter};
use forerun_formats::Checkpoint;
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, complete_each,
};
use forerun_model::{CachedTransformer, Forward};
use forerun_runtime::{Engine, InlineCluster, SharedDevice};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A model that compares all its logits with those of the same model without caches.
struct CheckedModel {
    model: CachedTransformer<Box<dyn Forward<Storage = CpuPages>>>,
    weights: Arc<Weights>,
    rows: Arc<AtomicUsize>,
}

impl CheckedModel {
    fn load(
        path: &Path,
        rows: &Arc<AtomicUsize>,
        passes: impl FnOnce(&Arc<Weights>) -> Box<dyn Forward<Storage = CpuPages>>,
    ) -> Self {
        let weights = Arc::new(Weights::load(&Checkpoint::open(path).unwrap()).unwrap());
        let model = CachedTransformer::new(passes(&weights));
        Self { model, weights, rows: Arc::clone(rows) }
    }
}

fn on_one_device(weights: &Arc<Weights>) -> Box<dyn Forward<Storage = CpuPages>> {
    Box::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

/// Returns the model with an empty cache.
fn fresh_model(weights: &Arc<Weights>) -> CachedTransformer<Transformer> {
    CachedTransformer::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

impl CheckedModel {
    fn answer(&mut self, context: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let cached = self.model.logits(context)?;
        let fresh = fresh_model(&self.weights).logits(context)?;
        let bits =
            |output: &ForwardOutput| output.logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&cached), bits(&fresh), "{:?} {:?}", context.tokens, context.tree);
        self.rows.fetch_add(cached.rows().count(), Ordering::Relaxed);
        Ok(cached)
    }
}

impl LanguageModel for CheckedModel {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

/// Two target replicas and a drafter, each on its own device.
fn separate_devices(pair: &Pair, rows: &Arc<AtomicUsize>) -> Engine {
    Engine::new()
        .with_target(0, CheckedModel::load(&pair.target, rows, on_one_device))
        .with_target(1, CheckedModel::load(&pair.target, rows, on_one_device))
        .with_drafter(0, ModelDrafter::new(CheckedModel::load(&pair.drafter, rows, on_one_device)))
}

/// The target's layers on two devices, and the drafter on the same two devices.
fn shared_devices(pair: &Pair, rows: &Arc<AtomicUsize>) -> Engine {
    let engine = Engine::new();
    let devices = ["a", "b"].map(SharedDevice::unpinned);
    let leases = || {
        devices.each_ref().map(|device| Box::new(engine.lease(device)) as Box<dyn ExclusiveDevice>)
    };
    let target = |weights: &Arc<Weights>| -> Box<dyn Forward<Storage = CpuPages>> {
        Box::new(PipelineParallelModel::new(weights, leases().into()).unwrap())
    };
    let drafter = |weights: &Arc<Weights>| -> Box<dyn Forward<Storage = CpuPages>> {
        Box::new(AlternatingModel::new(weights, leases()))
    };
    let drafter = ModelDrafter::new(CheckedModel::load(&pair.drafter, rows, drafter));
    let target = CheckedModel::load(&pair.target, rows, target);
    engine.with_target(0, target).with_drafter(0, TwoDeviceDrafter::new(drafter))
}

/// Decodes with jobs in an order that follows from a seed, and returns the number of rejections.
fn run(
    pair: &Pair,
    engine: fn(&Pair, &Arc<AtomicUsize>) -> Engine,
    decoder: &mut dyn Decoder,
    (prompt, order): (&[TokenId], u64),
) -> u64 {
    let rows = Arc::new(AtomicUsize::new(0));
    let engine = engine(pair, &rows);
    let sampling = Sampling::greedy();
    let mut cluster =
        InlineCluster::new(engine, Arc::new(sampling.randomness)).with_random_order(order);
    let limits = Limits { max_tokens: 40, context_length: 200, eos: Vec::new() };
    let mut sequence = Sequence::new(SequenceId(0), prompt.to_vec(), sampling, limits);
    generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    decoder.stop(&mut cluster);
    assert_eq!(sequence.generated().len(), 40);
    assert!(rows.load(Ordering::Relaxed) >= 40);
    let statistics = sequence.statistics();
    statistics.tested.iter().sum::<u64>() - statistics.accepted.iter().sum::<u64>()
}

#[test]
fn cached_logits_equal_those_of_a_fresh_forward_pass() {
    let pair = Pair::generated();
    let tokenizer = pair.tokenizer();
    let (mut separate, mut replicated, mut shared) = (0, 0, 0);
    // A prompt of one token, and longer ones.
    for (number, text) in ["k", "ka lo", &pair.prompts[0]].into_iter().enumerate() {
        let prompt = tokenizer.encode(text).unwrap();
        let order = number as u64;
        for length in [1, 2, 4] {
            let draft_length = || PearlDraftLength::new(length, DraftLength::Fixed, true);
            for options in ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"] {
                let mut decoder = Pearl::new(options.parse().unwrap(), draft_length());
                separate += run(&pair, separate_devices, &mut decoder, (&prompt, order));
                let mut decoder = Pearl::new(options.parse().unwrap(), draft_length());
                shared += run(&pair, shared_devices, &mut decoder, (&prompt, order));
            }
            for replicas in [1, 2] {
                let lookahead = DsiLookahead::new(length, DraftLength::Fixed, replicas);
                let mut decoder = Dsi::new(replicas, lookahead);
                replicated += run(&pair, separate_devices, &mut decoder, (&prompt, order));
            }
        }
    }
    // The devices do not change the outcome.
    assert!(separate == shared && separate > 100, "{separate} and {shared} rejections");
    assert!(replicated > 10, "{replicated} rejections show little");
}

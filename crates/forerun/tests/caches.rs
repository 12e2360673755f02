//! Invariant 3 where drafting runs ahead: after every rejection, cancellation and restart, what target and
//! drafter compute behind their caches is, bit for bit, what a fresh forward computes; on devices of their own,
//! and on two that they have in turn.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Pair;
use forerun_core::{Sampling, SequenceId, TokenId};
use forerun_decode::{
    Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl, PearlDraftLength, Sequence, generate,
};
use forerun_draft::{ModelDrafter, TwoDeviceDrafter};
use forerun_model::{
    AlternatingModel, CachedTransformer, Checkpoint, ExclusiveDevice, Forward, LanguageModel,
    Logits, LogitsContext, ModelError, PassAssignment, PipelineParallelModel, Team, Transformer,
    Weights,
};
use forerun_runtime::{Engine, InlineCluster, SharedDevice};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A model whose every answer is compared with that of the same model without caches.
struct Compared {
    model: CachedTransformer<Box<dyn Forward>>,
    weights: Arc<Weights>,
    rows: Arc<AtomicUsize>,
}

impl Compared {
    fn load(
        path: &Path,
        rows: &Arc<AtomicUsize>,
        passes: impl FnOnce(&Arc<Weights>) -> Box<dyn Forward>,
    ) -> Self {
        let weights = Arc::new(Weights::load(&Checkpoint::open(path).unwrap()).unwrap());
        let model = CachedTransformer::new(passes(&weights));
        Self { model, weights, rows: Arc::clone(rows) }
    }
}

/// The model on one device.
fn alone(weights: &Arc<Weights>) -> Box<dyn Forward> {
    Box::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

fn model(weights: &Arc<Weights>) -> CachedTransformer {
    CachedTransformer::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

impl LanguageModel for Compared {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        let cached = self.model.logits(context)?;
        let fresh = model(&self.weights).logits(context)?;
        let bits = |logits: &Logits| logits.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&cached), bits(&fresh), "{:?} {:?}", context.tokens, context.tree);
        self.rows.fetch_add(cached.rows().count(), Ordering::Relaxed);
        Ok(cached)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

/// Everybody on a device of their own.
fn apart(pair: &Pair, rows: &Arc<AtomicUsize>) -> Engine {
    Engine::new()
        .with_target(0, Compared::load(&pair.target, rows, alone))
        .with_target(1, Compared::load(&pair.target, rows, alone))
        .with_drafter(0, ModelDrafter::new(Compared::load(&pair.drafter, rows, alone)))
}

/// The target's layers on two devices, and the drafter on both of them.
fn in_turn(pair: &Pair, rows: &Arc<AtomicUsize>) -> Engine {
    let engine = Engine::new();
    let devices = ["a", "b"].map(SharedDevice::anywhere);
    let places =
        || devices.each_ref().map(|own| Box::new(engine.lease(own)) as Box<dyn ExclusiveDevice>);
    let target = |weights: &Arc<Weights>| -> Box<dyn Forward> {
        Box::new(PipelineParallelModel::new(weights, places().into()).unwrap())
    };
    let sharing = PassAssignment::default();
    let drafter = |weights: &Arc<Weights>| -> Box<dyn Forward> {
        Box::new(AlternatingModel::new(weights, places(), sharing.clone()))
    };
    let drafter = ModelDrafter::new(Compared::load(&pair.drafter, rows, drafter));
    let target = Compared::load(&pair.target, rows, target);
    engine.with_target(0, target).with_drafter(0, TwoDeviceDrafter::new(drafter, sharing))
}

/// Decodes, jobs being run in the order of a seed, and tells how many rejections there were.
fn run(
    pair: &Pair,
    engine: fn(&Pair, &Arc<AtomicUsize>) -> Engine,
    decoder: &mut dyn Decoder,
    (prompt, order): (&[TokenId], u64),
) -> u64 {
    let rows = Arc::new(AtomicUsize::new(0));
    let engine = engine(pair, &rows);
    let sampling = Sampling::greedy();
    let mut cluster = InlineCluster::new(engine, Arc::new(sampling.randomness)).in_order_of(order);
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
fn what_is_computed_behind_a_cache_is_what_a_fresh_forward_computes() {
    let pair = Pair::generated();
    let tokenizer = pair.tokenizer();
    let (mut separate, mut spread, mut shared) = (0, 0, 0);
    // A prompt of one token, and longer ones.
    for (number, text) in ["k", "ka lo", &pair.prompts[0]].into_iter().enumerate() {
        let prompt = tokenizer.encode(text).unwrap();
        let order = number as u64;
        for length in [1, 2, 4] {
            let pace = || PearlDraftLength::new(length, DraftLength::Fixed, true);
            for options in ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"] {
                let mut decoder = Pearl::new(options.parse().unwrap(), pace());
                separate += run(&pair, apart, &mut decoder, (&prompt, order));
                let mut decoder = Pearl::new(options.parse().unwrap(), pace());
                shared += run(&pair, in_turn, &mut decoder, (&prompt, order));
            }
            for replicas in [1, 2] {
                let lookahead = DsiLookahead::new(length, DraftLength::Fixed, replicas);
                let mut decoder = Dsi::new(replicas, lookahead);
                spread += run(&pair, apart, &mut decoder, (&prompt, order));
            }
        }
    }
    // Where jobs run is nobody's concern.
    assert!(separate == shared && separate > 100, "{separate} and {shared} rejections");
    assert!(spread > 10, "{spread} rejections show little");
}

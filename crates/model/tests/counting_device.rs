//! A device that computes nothing, but counts: the pieces that a pass would compute and the bytes
//! that it would read, from the architecture alone. It runs below the real cache.

#![expect(clippy::unwrap_used, reason = "tests")]

mod made_up_family;

use forerun_cache::{PAGE_ROWS, PageId, PageStorage, RowPlace, StorageError};
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::example_config;
use forerun_formats::checkpoint::{LayerTensor as T, Tensor};
use forerun_formats::{Architecture, Layer};
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, Progress};
use forerun_model::{CachedTransformer, Forward, Pass, PassError, PassOutput, SequencePass};

/// What one pass computes and reads. A piece counts once for each row. Everything is in 32-bit
/// floats.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    norms: usize,
    attentions: usize,
    mlps: usize,
    heads: usize,
    weight_bytes: usize,
    cache_bytes: usize,
}

/// A model whose logits are all 0.
struct CountingDevice {
    architecture: Architecture,
    logits: Vec<f32>,
}

/// The device's memory. It holds no rows, but remembers what the passes did.
struct Pages {
    page_bytes: usize,
    copied_rows: usize,
    passes: Vec<Counts>,
}

impl PageStorage for Pages {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&mut self, _page: PageId) -> Result<(), StorageError> {
        Ok(())
    }

    fn copy_row(&mut self, _from: RowPlace, _to: RowPlace) {
        self.copied_rows += 1;
    }

    fn release(&mut self, _page: PageId) {}
}

/// Returns the bytes of keys and values that the new rows of a sequence read in a layer.
fn bytes_read(sequence: &SequencePass<'_>, layer: &Layer) -> usize {
    let visible = |node| sequence.cache.prefix_len() + sequence.tree.depth(node);
    let Some(attention) = &layer.attention else { return 0 };
    let window = attention.window.unwrap_or(usize::MAX);
    let rows = (sequence.held()..sequence.tree.len()).map(|node| visible(node).min(window));
    rows.sum::<usize>() * 2 * attention.kv_size() * size_of::<f32>()
}

impl Forward for CountingDevice {
    type Storage = Pages;

    fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    fn new_storage(&self) -> Pages {
        let layers = self.architecture.layers.iter();
        let attention = layers.filter_map(|layer| layer.attention.as_ref());
        let values = attention.map(|attention| 2 * attention.kv_size());
        let page_bytes = PAGE_ROWS * values.sum::<usize>() * size_of::<f32>();
        Pages { page_bytes, copied_rows: 0, passes: Vec::new() }
    }

    fn forward(&mut self, pass: &Pass<'_>, pages: &mut Pages) -> Result<PassOutput<'_>, PassError> {
        let architecture = &self.architecture;
        let rows: usize = pass.sequences.iter().map(SequencePass::rows).sum();
        let heads = pass.sequences.iter().map(SequencePass::output_rows).sum();
        let bytes =
            |tensor| size_of::<f32>() * architecture.shape(tensor).iter().product::<usize>();
        let pieces = rows * architecture.layers.len();
        let mut counts = Counts { attentions: pieces, mlps: pieces, heads, ..Counts::default() };
        // Each row reads its embedding. Everything else is read once for all rows.
        counts.weight_bytes = rows * architecture.hidden_size * size_of::<f32>();
        for (index, layer) in architecture.layers.iter().enumerate() {
            let norms = [T::AttentionNorm, T::HiddenNorm, T::QueryNorm, T::KeyNorm, T::MlpNorm];
            counts.norms +=
                rows * norms.into_iter().filter(|norm| layer.has(*norm, architecture.norm)).count();
            let tensors =
                layer.tensors(architecture.norm).map(|tensor| bytes(Tensor::Layer(index, tensor)));
            counts.weight_bytes += tensors.sum::<usize>();
            let read = pass.sequences.iter().map(|sequence| bytes_read(sequence, layer));
            counts.cache_bytes += read.sum::<usize>();
        }
        if heads > 0 {
            let norm = usize::from(architecture.final_norm);
            counts.norms += norm * heads;
            counts.weight_bytes += norm * bytes(Tensor::FinalNorm) + bytes(Tensor::Head);
        }
        pages.passes.push(counts);
        self.logits = vec![0.0; heads * architecture.head_size()];
        Ok(PassOutput { logits: &self.logits, best: &[], hidden: &[], overflows: &[] })
    }
}

/// Computes a batch of requests. Returns the counts of the passes that this takes.
fn run(model: &mut CachedTransformer<CountingDevice>, batch: &[ForwardRequest<'_>]) -> Vec<Counts> {
    let before = model.pool().storage().passes.len();
    let mut progress: Vec<Progress> = batch.iter().map(|_| Progress::default()).collect();
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = batch.iter().zip(&mut progress);
        let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
        model.forward(&mut entries.collect::<Vec<_>>());
    }
    progress.into_iter().for_each(|progress| drop(progress.result.unwrap().unwrap()));
    model.pool().storage().passes[before..].to_vec()
}

#[test]
fn passes_read_weights_once_and_compute_what_the_cache_lacks() {
    let architecture = example_config().architecture();
    let mut model = CachedTransformer::new(CountingDevice { architecture, logits: vec![] });
    // Hidden states and queries of 48, keys and values of 24, an MLP of 100, a vocabulary of 259.
    let layers = 2 * (2 + 2 * 48 + 2 * 24 + 3 * 100);
    let counts = |rows: usize, heads: usize, visible: usize| Counts {
        norms: 4 * rows + heads,
        attentions: 2 * rows,
        mlps: 2 * rows,
        heads,
        weight_bytes: 4 * 48 * (layers + if heads > 0 { 1 + 259 } else { 0 } + rows),
        cache_bytes: 4 * 2 * 2 * 24 * visible,
    };
    let prompt: Vec<TokenId> = (0..300).map(|i| i % 100).collect();
    let mut tree = TokenTree::chain(&[2, 3]);
    tree.push(None, 4);
    let long = ForwardRequest::next_token(SequenceId(1), &prompt);
    let branches = ForwardRequest::new(SequenceId(2), &[1], &tree);
    // A part of the prompt shares a pass with the tree, whose rows see 1, 2, 3 and 2 positions.
    let rest = counts(44, 1, (257..=300).sum());
    let passes = run(&mut model, &[long, branches]);
    assert_eq!(passes, [counts(256 + 4, 4, (1..=256).sum::<usize>() + 8), rest.clone()]);
    // The cache holds all of the prompt, but a requested row is always computed.
    assert_eq!(run(&mut model, &[long]), [counts(1, 1, 300)]);
    // Another sequence shares the full pages of the prompt.
    assert_eq!(run(&mut model, &[ForwardRequest { sequence: SequenceId(3), ..long }]), [rest]);
    // The second branch of the tree was accepted. Its row moves to the place after the prefix.
    let accepted = ForwardRequest::next_token(SequenceId(2), &[1, 4, 5]);
    assert_eq!(run(&mut model, &[accepted]), [counts(1, 1, 3)]);
    assert_eq!(model.pool().storage().copied_rows, 1);
}

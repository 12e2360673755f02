//! Row invariance: a row's logits depend, bit for bit, only on the weights and on the row's own
//! token prefix.
//!
//! For any batch of rows, any tree, any number of threads and any state of the cache, every row
//! must have the bits that the slow reference computes for its prefix in a fresh forward pass.

use crate::prelude::*;

suite! { $ row_invariance:
    every_row_has_the_bits_of_a_fresh_forward,
    any_split_of_a_sequence_into_forwards_gives_the_same_bits,
    a_tree_that_grows_node_by_node_gives_the_bits_of_one_forward,
    a_long_prompt_in_several_passes_gives_the_bits_of_one,
    deep_trees_after_long_prompts_have_the_same_bits_for_every_model,
    a_cancelled_forward_leaves_the_cache_unchanged,
    a_cancelled_forward_leaves_states_and_compressed_rows_unchanged,
    invalid_requests_are_errors,
}

const SEQUENCE: SequenceId = SequenceId(0);

/// Returns the logits after a prefix.
pub type Fresh = dyn Fn(&[TokenId]) -> Vec<f32>;

/// A model, each of whose rows is compared with the row of a fresh forward pass.
pub struct Subject<F: Forward> {
    /// The model.
    pub model: CachedTransformer<F>,
    /// A fresh forward pass.
    pub fresh: Box<Fresh>,
}

/// Loads a model and the reference.
fn load<D: Device>(device: &D, kind: Kind<D::Variant>, threads: usize) -> Subject<D::Model> {
    let Models { weights, reference } = kind.models(device);
    let model = CachedTransformer::new(device.model(&weights, kind.run(threads)));
    let fresh = move |prefix: &[TokenId]| reference.logits(prefix).pop().unwrap();
    Subject { model, fresh: Box::new(fresh) }
}

impl<F: Forward> Subject<F> {
    /// Checks the rows of a tree after tokens, from the first one on.
    ///
    /// # Errors
    /// If a row has other bits.
    pub fn check(
        &mut self,
        tokens: &[TokenId],
        tree: &TokenTree,
        first_row: usize,
    ) -> TestCaseResult {
        let request = ForwardRequest::new(SEQUENCE, tokens, tree);
        let logits = self.model.logits(&ForwardRequest { first_row, ..request }).unwrap();
        prop_assert_eq!(logits.rows().count(), tree.len() + 1 - first_row);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        for (row, logits) in (first_row..).zip(logits.rows()) {
            let prefix = row_prefix(tokens, tree, row.checked_sub(1));
            let is_same = bits(logits) == bits(&(self.fresh)(&prefix));
            prop_assert!(is_same, "row {} after {:?}", row, prefix);
        }
        Ok(())
    }

    /// Checks the rows of steps.
    ///
    /// # Errors
    /// If a row has other bits.
    pub fn follow(&mut self, steps: Vec<Step>) -> TestCaseResult {
        let (mut tokens, mut tree) = (vec![1], TokenTree::new());
        for step in steps {
            if !tree.is_empty() {
                let path = tree.path(step.follow % tree.len());
                tokens.extend(path.into_iter().map(|node| tree.token(node)));
            }
            tokens.truncate(1 + step.keep % tokens.len());
            tokens.extend(step.append);
            tree = TokenTree::new();
            grow(&mut tree, &step.nodes);
            self.check(&tokens, &tree, step.first_row % (tree.len() + 1))?;
        }
        Ok(())
    }

    /// Cancels passes from another thread: before the pass, between layers, and after the last
    /// layer. Each pass also accepts the second branch of a tree, whose rows are copied.
    ///
    /// # Panics
    /// If no pass is cancelled, or a later row has other bits.
    pub fn cancel_at_many_times(mut self, moments: usize) {
        let tokens = text(80, 5);
        let tree = tree_of([(None, 9), (None, 5), (Some(1), 6)]);
        let (mut cancelled, mut finished) = (0, 0);
        for moment in 0..moments {
            // Drops most rows, so that the next forward takes long enough to be cancelled.
            self.check(&tokens[..3], &tree, 0).unwrap();
            let accepted = [&tokens[..3], &[5, 6]].concat();
            let longer = [&accepted[..], &tokens[5..]].concat();
            let switch = AtomicBool::new(moment == 0);
            let outcome = std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..moment * 6000 / moments).for_each(|_| std::hint::spin_loop());
                    switch.store(true, Ordering::Relaxed);
                });
                let request = ForwardRequest::new(SEQUENCE, &longer, &tree);
                self.model.logits(&ForwardRequest { cancel: &switch, ..request })
            });
            match outcome {
                Err(error) => {
                    assert_eq!(error, ModelError::Cancelled);
                    cancelled += 1;
                }
                Ok(_) => finished += 1,
            }
            self.check(&accepted, &TokenTree::chain(&[1]), 1 - moment % 2).unwrap();
            if moment % 40 == 1 {
                self.check(&longer[..3 + moment / 4], &tree, 0).unwrap();
            }
        }
        println!("{cancelled} forwards were cancelled, {finished} finished");
        assert!(cancelled > 0);
        self.check(&tokens, &tree, 0).unwrap();
    }
}

/// One request to a model, relative to the tokens of the previous request.
#[derive(Clone, Debug)]
pub struct Step {
    /// How many of the previous tokens and accepted nodes to keep (modulo their number).
    keep: usize,
    /// The last node of the previous tree's accepted path (modulo the number of nodes).
    follow: usize,
    append: Vec<TokenId>,
    /// The parent and the token of each node. The parent is taken modulo the number of nodes so far
    /// plus one, where 0 is the prefix.
    nodes: Vec<(usize, TokenId)>,
    first_row: usize,
}

/// Returns up to five steps, each with fewer nodes than this.
pub fn steps(nodes: usize) -> impl Strategy<Value = Vec<Step>> {
    // Few different tokens, so that sequences often agree by chance and the cache has rows to keep.
    let token = || 0..4_u32;
    let append = prop::collection::vec(token(), 0..6);
    let nodes = prop::collection::vec((0..64_usize, token()), 0..nodes);
    let step = (0..40_usize, 0..64_usize, append, nodes, 0..8_usize).prop_map(
        |(keep, follow, append, nodes, first_row)| Step { keep, follow, append, nodes, first_row },
    );
    prop::collection::vec(step, 1..6)
}

/// Adds nodes as [`Step::nodes`] has them.
fn grow(tree: &mut TokenTree, nodes: &[(usize, TokenId)]) {
    for &(parent, token) in nodes {
        tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
    }
}

fn every_row_has_the_bits_of_a_fresh_forward<D: Device>(device: &D) {
    let strategy = (any_kind(device), 1..=D::THREADS, steps(64));
    check(device.effort().row_cases, &strategy, |(kind, threads, steps)| {
        load(device, kind, threads).follow(steps)
    });
}

fn any_split_of_a_sequence_into_forwards_gives_the_same_bits<D: Device>(device: &D) {
    let tokens = prop::collection::vec(0..250_u32, 1..40);
    let cuts = prop::collection::vec(1..12_usize, 40);
    let strategy = (any_kind(device), 1..=D::THREADS, tokens, cuts);
    check(device.effort().row_cases, &strategy, |(kind, threads, tokens, cuts)| {
        let mut subject = load(device, kind, threads);
        let mut end = 0;
        for cut in cuts {
            end = (end + cut).min(tokens.len());
            subject.check(&tokens[..end], &TokenTree::new(), 0)?;
            if end == tokens.len() {
                break;
            }
        }
        Ok(())
    });
}

fn a_tree_that_grows_node_by_node_gives_the_bits_of_one_forward<D: Device>(device: &D) {
    let nodes = prop::collection::vec((0..64_usize, 0..4_u32), 1..40);
    let strategy = (any_kind(device), 1..=D::THREADS, nodes, 1..9_usize);
    check(device.effort().row_cases, &strategy, |(kind, threads, nodes, level)| {
        let mut subject = load(device, kind, threads);
        let (tokens, mut tree) = ([1, 2, 3], TokenTree::new());
        subject.check(&tokens, &tree, 0)?;
        for level in nodes.chunks(level) {
            let first_row = tree.len() + 1;
            grow(&mut tree, level);
            subject.check(&tokens, &tree, first_row)?;
        }
        Ok(())
    });
}

/// A prompt of three passes, and of several splits of attention on devices that split it at
/// multiples of 256 positions. The tree crosses such a border.
fn a_long_prompt_in_several_passes_gives_the_bits_of_one<D: Device>(device: &D) {
    let examples = (0..device.offer().configs.len()).step_by(device.effort().step_of_long_prompts);
    let in_f32 = examples.map(|example| Kind::of(device, example, WeightType::F32));
    let others = device.offer().kinds_of_weights.into_iter().skip(1).take(3);
    let plain = others.map(|weight_type| Kind::of(device, 0, weight_type));
    let tokens = text(766, 7);
    let tree = tree_of([(None, 3), (Some(0), 4), (Some(1), 5), (Some(0), 7)]);
    for (number, kind) in in_f32.chain(plain).enumerate() {
        let threads = 1 + number % D::THREADS;
        load(device, kind, threads).check(&tokens, &tree, 0).unwrap();
    }
}

/// A prompt longer than every window, followed by a tree with paths longer than the shortest
/// window.
fn deep_trees_after_long_prompts_have_the_same_bits_for_every_model<D: Device>(device: &D) {
    let tokens = text(30, 11);
    let mut tree = TokenTree::chain(&[7, 8, 9]);
    let fork = tree.push(Some(0), 5);
    let long = (30..36).fold(fork, |parent, token| tree.push(Some(parent), token));
    tree.push(None, 4);
    let kinds = Kind::sample(device, device.effort().kinds_of_deep_trees);
    for (number, kind) in kinds.into_iter().enumerate() {
        let mut subject = load(device, kind, 1 + number % D::THREADS);
        subject.check(&tokens, &tree, 0).unwrap();
        // Again, with the long path accepted and a chain after it.
        let accepted = row_prefix(&tokens, &tree, Some(long));
        subject.check(&accepted, &TokenTree::chain(&[1, 2]), 0).unwrap();
    }
}

fn a_cancelled_forward_leaves_the_cache_unchanged<D: Device>(device: &D) {
    let subject = load(device, Kind::of(device, 0, WeightType::F32), 1);
    subject.cancel_at_many_times(device.effort().moments[0]);
}

/// The same with states of recurrent layers, of which the cache has few, and with compressed keys
/// and values.
fn a_cancelled_forward_leaves_states_and_compressed_rows_unchanged<D: Device>(device: &D) {
    let configs = device.offer().configs;
    for family in [Family::Qwen3Next, Family::Lfm2, Family::DeepseekV2] {
        let example = configs.iter().position(|config| config.family == family).unwrap();
        let mut subject = load(device, Kind::of(device, example, WeightType::F32), 1);
        if subject.model.architecture().state_bytes() > 0 {
            subject.model = subject.model.with_state_budget(12);
        }
        subject.cancel_at_many_times(device.effort().moments[1]);
    }
}

fn invalid_requests_are_errors<D: Device>(device: &D) {
    let mut model = load(device, Kind::of(device, 0, WeightType::F32), 1).model;
    let mut error = |tokens: &[TokenId], tree: &TokenTree| {
        let error = model.logits(&ForwardRequest::new(SEQUENCE, tokens, tree)).err();
        error.unwrap().to_string()
    };
    assert!(error(&[], &TokenTree::new()).contains("at least one token"));
    assert!(error(&[1, 5_000], &TokenTree::new()).contains("token 5000"));
    let longest = LONGEST_TEXT;
    let too_long = error(&vec![1; longest + 1], &TokenTree::new());
    assert!(too_long.contains(&format!("context of {longest}")), "{too_long}");
    let too_deep = error(&vec![1; longest - 1], &TokenTree::chain(&[1, 1]));
    assert!(too_deep.contains(&format!("position {longest}")), "{too_deep}");
}

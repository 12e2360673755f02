//! Windows of a data set: batches to train on, and fixed windows to evaluate on.

use super::error::DataError;
use super::permutation::{Permutation, hash_words, map_to_range};
use super::shards::{Dataset, Split, TokenStream};

/// Purposes of random numbers. Each purpose has its own stream.
const ORDER: u64 = 1;
const OFFSET: u64 = 2;

/// A batch of rows of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The input tokens: `[rows, context]`.
    pub inputs: Vec<u32>,
    /// The token after each input token: `[rows, context]`.
    pub targets: Vec<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Number of tokens of a row.
    pub context: usize,
}

impl Batch {
    /// Combines windows of held-out text, all of the same size, into a batch.
    pub(crate) fn from_windows(windows: &[ValidationWindow]) -> Self {
        let context = windows.first().map_or(0, |window| window.inputs.len());
        Self {
            inputs: windows.iter().flat_map(|window| &window.inputs).copied().collect(),
            targets: windows.iter().flat_map(|window| &window.targets).copied().collect(),
            rows: windows.len(),
            context,
        }
    }
}

/// The batches of a run. Each is a pure function of the seed and the step.
///
/// In each epoch, the text is cut into windows of `context + 1` tokens. Neighbouring windows share
/// one token, so that every token is a target once. The offset of the first window and the order of
/// the windows are random and differ between epochs. Windows ignore document boundaries; separators
/// mark them. A batch may contain the end of one epoch and the start of the next.
pub struct Batches<'a> {
    tokens: &'a TokenStream,
    rows: usize,
    context: usize,
    seed: u64,
    /// Number of windows of an epoch.
    windows: u64,
    same_windows: bool,
}

impl<'a> Batches<'a> {
    /// Creates the batches of `rows` windows with `context` input tokens each.
    ///
    /// # Errors
    /// If `rows` or `context` is 0, or the text is shorter than two windows.
    pub fn new(
        dataset: &'a Dataset,
        rows: usize,
        context: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        check_positive("rows", rows)?;
        check_positive("context", context)?;
        // The offset is less than the context, so this number of windows fits after any offset.
        let needed = 2 * context as u64;
        let tokens = dataset.tokens(Split::Training);
        if tokens.len() < needed {
            let (folder, found) = (dataset.folder().to_owned(), tokens.len());
            return Err(DataError::TooFewTokens { folder, found, context, needed });
        }
        let windows = (tokens.len() - context as u64) / context as u64;
        Ok(Self { tokens, rows, context, seed, windows, same_windows: false })
    }

    /// Returns the batches with the same windows in every epoch if `same_windows`: the first one
    /// begins with the text. Their order still differs.
    #[must_use]
    pub fn with_same_windows(self, same_windows: bool) -> Self {
        Self { same_windows, ..self }
    }

    /// Returns the number of windows of an epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Returns the number of batches that contain every window once, rounded up.
    #[must_use]
    pub fn epoch_steps(&self) -> u64 {
        self.windows.div_ceil(self.rows as u64)
    }

    /// Returns the batch of a step. Steps are counted from 0.
    #[must_use]
    pub fn batch(&self, step: u64) -> Batch {
        let (rows, context) = (self.rows, self.context);
        let mut inputs = Vec::with_capacity(rows * context);
        let mut targets = Vec::with_capacity(rows * context);
        let first = u128::from(step) * rows as u128;
        let mut window = Vec::with_capacity(context + 1);
        let mut order: Option<(u64, Permutation)> = None;
        for sample in (0..rows as u128).map(|row| first + row) {
            let epoch = (sample / u128::from(self.windows)) as u64;
            let index = (sample % u128::from(self.windows)) as u64;
            let (_, permutation) = match order.take() {
                Some(current) if current.0 == epoch => order.insert(current),
                _ => order.insert((epoch, self.order(epoch))),
            };
            window.clear();
            let start = self.offset(epoch) + permutation.apply(index) * context as u64;
            self.tokens.read(start, context + 1, &mut window);
            inputs.extend_from_slice(&window[..context]);
            targets.extend_from_slice(&window[1..]);
        }
        Batch { inputs, targets, rows, context }
    }

    fn order(&self, epoch: u64) -> Permutation {
        Permutation::new(self.windows, hash_words(&[self.seed, ORDER, epoch]))
    }

    /// Returns the offset of an epoch's first window.
    fn offset(&self, epoch: u64) -> u64 {
        if self.same_windows {
            return 0;
        }
        map_to_range(hash_words(&[self.seed, OFFSET, epoch]), self.context as u64)
    }
}

/// A window of held-out text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationWindow {
    /// The input tokens: `[context]`.
    pub inputs: Vec<u32>,
    /// The token after each input token: `[context]`.
    pub targets: Vec<u32>,
    /// Bytes of UTF-8 text that the targets represent. Separators represent none.
    pub target_bytes: u64,
}

/// Held-out text for evaluations.
pub struct Validation;

impl Validation {
    /// Returns fixed windows of the held-out text, in order and evenly spread. They have at most
    /// `max_tokens` targets in total, but there is at least one window. No token is a target twice.
    /// If the text is shorter than a window, the only window is as long as the text.
    ///
    /// # Errors
    /// If `context` is 0, or the held-out text has fewer than two tokens.
    pub fn windows(
        dataset: &Dataset,
        context: usize,
        max_tokens: u64,
    ) -> Result<Vec<ValidationWindow>, DataError> {
        check_positive("context", context)?;
        let tokens = dataset.tokens(Split::HeldOut);
        if tokens.len() < 2 {
            return Err(DataError::NoHeldOutText { folder: dataset.folder().to_owned() });
        }
        let context = context.min((tokens.len() - 1) as usize);
        let available = (tokens.len() - 1) / context as u64;
        let chosen = (max_tokens / context as u64).clamp(1, available);
        let window = |number: u64| {
            let index = u128::from(number) * u128::from(available) / u128::from(chosen);
            let mut window = Vec::with_capacity(context + 1);
            tokens.read(index as u64 * context as u64, context + 1, &mut window);
            let targets = window[1..].to_vec();
            window.truncate(context);
            let target_bytes = dataset.bytes_of(&targets);
            ValidationWindow { inputs: window, targets, target_bytes }
        };
        Ok((0..chosen).map(window).collect())
    }
}

/// Returns the bits that a model needs per byte of text. Unlike the loss per token, the result does
/// not depend on the tokenizer.
///
/// `nll_nats` is the sum, not the mean, of the negative log-likelihoods of all targets, in nats.
/// `bytes` is the number of bytes of text that the targets represent. Separators cost bits but
/// represent no bytes, so the result is slightly too high.
#[must_use]
pub fn bits_per_byte(nll_nats: f64, bytes: u64) -> f64 {
    nll_nats / std::f64::consts::LN_2 / bytes as f64
}

fn check_positive(option: &'static str, value: usize) -> Result<(), DataError> {
    if value > 0 {
        return Ok(());
    }
    Err(DataError::Option { option, found: "0".to_owned(), expected: "at least 1".to_owned() })
}

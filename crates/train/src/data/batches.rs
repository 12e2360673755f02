//! Windows of a data set: batches to learn from, and a fixed set to be tested on.

use super::error::DataError;
use super::permutation::{Permutation, below, mixed};
use super::shards::{Dataset, Split, TokenStream};

/// Purposes of random numbers, so that no two share one.
const ORDER: u64 = 1;
const OFFSET: u64 = 2;

/// Rows to learn from at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Tokens that are read, `[rows, context]`.
    pub inputs: Vec<u32>,
    /// The token that follows each of them, `[rows, context]`.
    pub targets: Vec<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Tokens of a row.
    pub context: usize,
}

impl Batch {
    /// Windows of held-out text, which are of one size, as a batch.
    pub(crate) fn of_windows(windows: &[ValidationWindow]) -> Self {
        let context = windows.first().map_or(0, |window| window.inputs.len());
        Self {
            inputs: windows.iter().flat_map(|window| &window.inputs).copied().collect(),
            targets: windows.iter().flat_map(|window| &window.targets).copied().collect(),
            rows: windows.len(),
            context,
        }
    }
}

/// The batches of a run: each is a pure function of the seed and the step.
///
/// An epoch cuts the text into windows of `context + 1` tokens, of which neighbours share one, so
/// that every token is a target once. Where the first begins is drawn anew for each epoch, and so
/// is their order. Windows do not heed documents: a separator within one tells where the next
/// begins. A batch may hold the end of an epoch and the start of the next.
pub struct Batches<'a> {
    tokens: &'a TokenStream,
    rows: usize,
    context: usize,
    seed: u64,
    /// Windows of an epoch.
    windows: u64,
}

impl<'a> Batches<'a> {
    /// Batches of `rows` windows, each of `context` tokens that are read.
    ///
    /// # Errors
    /// If `rows` or `context` is nought, or the text is shorter than two windows.
    pub fn new(
        dataset: &'a Dataset,
        rows: usize,
        context: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        at_least_one("rows", rows)?;
        at_least_one("context", context)?;
        // Whatever the offset, which is less than the context, so many windows fit behind it.
        let needed = 2 * context as u64;
        let tokens = long_enough(dataset, Split::Training, context, needed)?;
        let windows = (tokens.len() - context as u64) / context as u64;
        Ok(Self { tokens, rows, context, seed, windows })
    }

    /// Windows of an epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Steps until every window was seen once, rounded up.
    #[must_use]
    pub fn epoch_steps(&self) -> u64 {
        self.windows.div_ceil(self.rows as u64)
    }

    /// The batch of a step, counted from 0.
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
            let start = self.offset(epoch) + permutation.of(index) * context as u64;
            self.tokens.read(start, context + 1, &mut window);
            inputs.extend_from_slice(&window[..context]);
            targets.extend_from_slice(&window[1..]);
        }
        Batch { inputs, targets, rows, context }
    }

    fn order(&self, epoch: u64) -> Permutation {
        Permutation::new(self.windows, mixed(&[self.seed, ORDER, epoch]))
    }

    /// Where an epoch's first window begins.
    fn offset(&self, epoch: u64) -> u64 {
        below(mixed(&[self.seed, OFFSET, epoch]), self.context as u64)
    }
}

/// A window of held-out text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationWindow {
    /// Tokens that are read, `[context]`.
    pub inputs: Vec<u32>,
    /// The token that follows each of them, `[context]`.
    pub targets: Vec<u32>,
    /// Bytes of UTF-8 text that the targets stand for. Separators stand for none.
    pub target_bytes: u64,
}

/// Held-out text to be tested on.
pub struct Validation;

impl Validation {
    /// Fixed windows in the order of the text, evenly spread over all that is held out, with at most
    /// `max_tokens` targets in all, but at least one window. No token is a target twice.
    ///
    /// # Errors
    /// If `context` is nought, or less than a window is held out.
    pub fn windows(
        dataset: &Dataset,
        context: usize,
        max_tokens: u64,
    ) -> Result<Vec<ValidationWindow>, DataError> {
        at_least_one("context", context)?;
        let tokens = long_enough(dataset, Split::HeldOut, context, context as u64 + 1)?;
        let available = (tokens.len() - 1) / context as u64;
        let chosen = (max_tokens / context as u64).clamp(1, available);
        let window = |number: u64| {
            let place = u128::from(number) * u128::from(available) / u128::from(chosen);
            let mut window = Vec::with_capacity(context + 1);
            tokens.read(place as u64 * context as u64, context + 1, &mut window);
            let targets = window[1..].to_vec();
            window.truncate(context);
            let target_bytes = dataset.bytes_of(&targets);
            ValidationWindow { inputs: window, targets, target_bytes }
        };
        Ok((0..chosen).map(window).collect())
    }
}

/// Bits that a model needs for a byte of text, whatever its tokenizer.
///
/// `nll_nats` is the sum, not the mean, of the negative log-likelihoods of all targets, in nats;
/// `bytes` is how many bytes of text these targets stand for. Separators cost bits and stand for no
/// bytes, so that the figure errs on the high side.
#[must_use]
pub fn bits_per_byte(nll_nats: f64, bytes: u64) -> f64 {
    nll_nats / std::f64::consts::LN_2 / bytes as f64
}

fn at_least_one(option: &'static str, value: usize) -> Result<(), DataError> {
    if value > 0 {
        return Ok(());
    }
    Err(DataError::Option { option, found: "0".to_owned(), expected: "at least 1".to_owned() })
}

fn long_enough(
    dataset: &Dataset,
    split: Split,
    context: usize,
    needed: u64,
) -> Result<&TokenStream, DataError> {
    let tokens = dataset.tokens(split);
    if tokens.len() >= needed {
        return Ok(tokens);
    }
    Err(DataError::TooFewTokens {
        folder: dataset.folder().to_owned(),
        split: split.name(),
        found: tokens.len(),
        context,
        needed,
    })
}

//! The storage layouts of DFlash 2: what it adds to DFlash's layers ([`super::dflash`]).
//!
//! *DFlash 2* has no paper yet. Its authors' code (z-lab/dflash) computes it, and vLLM's
//! speculators train it. Every layer has convolutions over the rows of the block ([`BlockConv`]),
//! and a selector scores the most probable tokens of each position by the token before it
//! ([`CandidateSelector`]). Their sizes are in `dflash_config`, or among the other options in the
//! layout of speculators. All four are required, as in its authors' code:
//!
//! | | |
//! |---|---|
//! | `conv_kernel_size`, `conv_group_size` | the rows that a convolution reads, and the channels that share a row's numbers |
//! | `selector_rank`, `selector_top_k` | the width of the selector's tables, and the number of tokens that it scores |
//!
//! Rows see each other in both directions also in layers with a window, unless an option says
//! otherwise. The head has the whole vocabulary.

use super::dflash::holder;
use super::layers::short_name;
use crate::architecture::{BlockConv, CandidateSelector};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::tensor::BlockHeadTensor;

const TAPS: &str = "conv_kernel_size";
const GROUP: &str = "conv_group_size";
const RANK: &str = "selector_rank";
const CANDIDATES: &str = "selector_top_k";

/// The options next to DFlash's.
pub(super) const OPTIONS: &[&str] = &[TAPS, GROUP, RANK, CANDIDATES];

/// What DFlash 2 adds to DFlash.
#[derive(Clone, Copy)]
pub(super) struct Additions {
    pub(super) conv: BlockConv,
    pub(super) selector: CandidateSelector,
}

/// Returns whether a block drafter's tensors are those of DFlash 2.
pub(super) fn is_dflash2(tensors: &NamedTensors) -> bool {
    let first = Tensor::Layer(0, LayerTensor::AttentionConv);
    [first, Tensor::BlockHead(BlockHeadTensor::Predecessor)]
        .iter()
        .any(|tensor| tensors.has(&short_name(*tensor)))
}

impl Additions {
    /// Reads the sizes, for a block of this number of rows. Fails when a size is missing or
    /// invalid.
    pub(super) fn read(
        options: &JsonOptions<'_>,
        nested: Option<&JsonOptions<'_>>,
        config: &Config,
        block_size: usize,
    ) -> Result<Self, LoadError> {
        let size = |option: &'static str, most: usize, what: &str| {
            let options = holder(options, nested, option)?;
            let size = options.required_size(option)?;
            match (1..=most).contains(&size) {
                true => Ok(size),
                false => {
                    let expected = format!("a number from 1 to {most}{what}");
                    Err(options.invalid(option, &size, &expected))
                }
            }
        };
        // A tap beyond the block would read nothing. The authors' code fails with more than one.
        let taps = size(TAPS, block_size, ", the number of rows of a block")?;
        let group_size = size(GROUP, config.hidden_size, ", the hidden size")?;
        if !config.hidden_size.is_multiple_of(group_size) {
            let expected = format!("a divisor of {}, the hidden size", config.hidden_size);
            return Err(holder(options, nested, GROUP)?.invalid(GROUP, &group_size, &expected));
        }
        let rank = size(RANK, MAX_SIZE, "")?;
        let candidates = size(CANDIDATES, config.vocab_size, ", the size of the vocabulary")?;
        let conv = BlockConv { taps, group_size };
        Ok(Self { conv, selector: CandidateSelector { rank, candidates } })
    }
}

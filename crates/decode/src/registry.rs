//! The registry of decoding methods. Each method's entry stands in the file of its decoder.

use crate::method::{AnswerDecoder, DecoderOptions, MethodEntry};
use crate::{auto, autoregressive, dsi, pearl, speculative, ssd};
use forerun_core::Need;

/// All methods, plain decoding first. To add one, write its decoder and its entry in a module of
/// this crate, and name the entry here.
pub static METHODS: &[MethodEntry] = &[
    autoregressive::METHOD,
    speculative::METHOD,
    pearl::METHOD,
    dsi::METHOD,
    ssd::METHOD,
    auto::METHOD,
];

/// Returns the decoder of an engine that has not answered yet. With several drafters, or with one
/// in several places, it uses the fastest.
#[must_use]
pub fn new_decoder(method: &MethodEntry, options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
    let has_choice = method.offers.contains(&Need::SeveralDrafters) && !method.combines_drafters;
    match has_choice {
        true => auto::fastest(&[method], options),
        false => (method.decoder)(options),
    }
}

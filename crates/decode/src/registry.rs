//! The registry of decoding methods. Each method's entry stands in the file of its decoder.

use crate::auto::{Auto, Candidate};
use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
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

/// The methods that `auto` chooses from.
pub(crate) static CHOICES: [&MethodEntry; 3] = [&speculative::METHOD, &pearl::METHOD, &dsi::METHOD];

/// `auto` for checks of the text: its methods and drafters take turns, so that all of them work,
/// and are changed, in any answer. It has the name of `auto`, and so its placement.
pub static AUTO_IN_TURNS: MethodEntry = MethodEntry {
    decoder: |options| {
        let mut decoder = fastest(&CHOICES, options);
        if !options.reproducible
            && let Some(planned) = decoder.planned()
        {
            planned.take_turns(TURN_STEPS);
        }
        decoder
    },
    ..auto::METHOD
};

/// The number of steps of a turn: PEARL and DSI verify drafts that they made during verification
/// from the second one on.
const TURN_STEPS: u32 = 4;

/// Returns the decoder of an engine that has not answered yet. With several drafters, or with one
/// in several places, it uses the fastest.
#[must_use]
pub fn new_decoder(method: &MethodEntry, options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
    let has_choice = method.offers.contains(&Need::SeveralDrafters) && !method.combines_drafters;
    match has_choice {
        true => fastest(&[method], options),
        false => (method.decoder)(options),
    }
}

/// Returns a decoder that uses the fastest of the methods with the fastest drafter. If the text of
/// a seed depends on drafts, it must not follow the clock, so it is that of the first method and
/// drafter.
///
/// If the drafters are also on the target's devices, methods that draft before they verify use them
/// there: all cores compute the draft, and nothing is handed over between workers.
pub(crate) fn fastest(
    methods: &[&MethodEntry],
    options: &DecoderOptions,
) -> Box<dyn AnswerDecoder> {
    let offset_of = |method: &MethodEntry| match method.drafting {
        Drafting::BeforeVerification if options.repeats_drafters => options.drafters(),
        _ => 0,
    };
    let is_single = methods.len() == 1 && options.drafters() == 1;
    if options.reproducible || is_single && offset_of(methods[0]) == 0 {
        return (methods[0].decoder)(&options.of_drafter(options.drafter));
    }
    let drafters = options.drafter..options.drafter + options.drafters();
    let candidates = methods.iter().flat_map(|method| {
        let offset = offset_of(method);
        drafters.clone().map(move |drafter| {
            let decoder = (method.decoder)(&options.of_drafter(drafter));
            Candidate { drafter, offset, decoder }
        })
    });
    Box::new(Auto::of_candidates(candidates.collect()))
}

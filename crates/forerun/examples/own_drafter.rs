//! Brings a drafter of one's own, and compares it with plain decoding:
//! `cargo run --release -p forerun --example own_drafter -- TARGET_DIR`.
use forerun::draft::{DraftContext, Drafter, DrafterEntry, ModelError};
use forerun::{DrafterKind, Forerun, ModelSource, Options, Plan, RandomPair, Request, TokenId};
use forerun_core::{Draft, SequenceId, TokenTree};
use std::collections::HashMap;

/// Remembers which token followed each pair of tokens, and proposes the same ones again.
#[derive(Default)]
struct Bigrams {
    next: HashMap<[TokenId; 2], TokenId>,
}

impl Drafter for Bigrams {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // Only verified tokens are learnt: the context holds no others.
        for window in context.tokens.windows(3) {
            self.next.insert([window[0], window[1]], window[2]);
        }
        let [.., mut before, mut last] = *context.tokens else { return Ok(Draft::empty()) };
        let mut draft = Vec::new();
        while let Some(&token) = self.next.get(&[before, last])
            && draft.len() < context.shape.depth()
        {
            draft.push(token);
            (before, last) = (last, token);
        }
        // The tokens follow from those before them, so they have no distribution.
        Ok(Draft::deterministic(TokenTree::chain(&draft)))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

static BIGRAMS: DrafterEntry =
    DrafterEntry::on_tokens("bigrams", "Pairs of tokens that occurred before", &|| {
        Box::new(Bigrams::default())
    });

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without an argument: a small random model, whose text is noise.
    let pair = RandomPair::make()?;
    let model = std::env::args().nth(1).map_or_else(|| pair.target().into(), ModelSource::from);
    let request = Request { max_tokens: 100, ignore_eos: true, ..Request::default() };
    let answer = |drafter| {
        let options = Options { model: model.clone(), drafter, ..Options::default() };
        Forerun::open(&Plan::new(options)?)?.complete("Once upon a time", &request)
    };
    let plain = answer(None)?;
    let drafted = answer(Some(DrafterKind::new(&BIGRAMS)))?;
    assert_eq!(drafted.tokens, plain.tokens, "a drafter never changes the text");
    println!("{}\nplain:   {}\nbigrams: {}", plain.text, plain.summary(), drafted.summary());
    Ok(())
}

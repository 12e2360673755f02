//! Brings a drafter of one's own, and compares it with plain decoding:
//! `cargo run --release -p forerun --example own_drafter -- TARGET_DIR`.
use forerun::draft::{Draft, DraftContext, Drafter, ModelError, SequenceId, TokenTree};
use forerun::{DrafterKind, Engine, ModelSource, Options, RandomPair, Request, TokenId};
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without an argument: a small random model, whose text is noise.
    let pair = RandomPair::make()?;
    let model = std::env::args().nth(1).map_or_else(|| pair.target().into(), ModelSource::from);
    let request = Request { max_tokens: 100, ignore_eos: true, ..Request::default() };
    let answer = |drafter| {
        let options = Options { drafter, ..Options::new(model.clone()) };
        Engine::open(options)?.complete("Once upon a time", &request)
    };
    let plain = answer(None)?;
    let bigrams = DrafterKind::own("bigrams", || Box::new(Bigrams::default()));
    let drafted = answer(Some(bigrams.into()))?;
    assert_eq!(drafted.tokens, plain.tokens, "a drafter never changes the text");
    println!("{}\nplain:   {}\nbigrams: {}", plain.text, plain.summary(), drafted.summary());
    Ok(())
}

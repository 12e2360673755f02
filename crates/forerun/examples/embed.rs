//! Streams text from a target and a drafter:
//! `cargo run -p forerun --example embed -- TARGET_DIR DRAFTER_DIR`.
use forerun::{Engine, ModelSource, Options, RandomPair, Request};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without arguments: a small random pair, whose text is noise.
    let pair = RandomPair::make()?;
    let mut models = std::env::args().skip(1).map(ModelSource::from);
    let model = models.next().unwrap_or_else(|| pair.target().into());
    let draft_model = Some(models.next().unwrap_or_else(|| pair.drafter().into()));
    let engine = Engine::open(Options { draft_model, ..Options::new(model) })?;
    let request = Request { max_tokens: 64, ..Request::default() };
    let answer = engine.generate("Once upon a time", &request, |text| {
        print!("{text}");
        std::io::stdout().flush().map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    println!("\n{}", answer.summary());
    Ok(())
}

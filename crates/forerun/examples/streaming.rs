//! Streams an answer, and stops it from the callback or from another thread:
//! `cargo run -p forerun --example streaming`.
use forerun::{Canceller, Engine, Options, RandomPair, Request, SamplingOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pair = RandomPair::make()?;
    let draft_model = Some(pair.drafter().into());
    let options = Options { draft_model, ..Options::new(pair.target()) };
    let engine = Engine::open(options)?;

    // A time limit. Cancelling also stops a running forward pass.
    let canceller = Canceller::new();
    let timer = canceller.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(2));
        timer.cancel();
    });

    let request = Request {
        sampling: SamplingOptions { temperature: 0.8, ..SamplingOptions::default() },
        seed: Some(7),
        ..Request::default()
    };
    let mut characters = 0;
    let answer =
        engine.generate_interruptibly("Once upon a time", &request, &canceller, |text| {
            print!("{text}");
            characters += text.chars().count();
            // End the answer when standard output is closed, or when there is enough text.
            match std::io::stdout().flush() {
                Ok(()) if characters < 200 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })?;
    println!("\n{:?}, {} tokens", answer.finish, answer.tokens.len());
    Ok(())
}

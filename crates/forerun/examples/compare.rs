//! Compares two methods on prompts:
//! `cargo run --release -p forerun --example compare -- TARGET DRAFTER`.
use forerun::{
    Engine, Loader, Method, ModelSource, Options, Plan, RandomPair, Request, Statistics,
};

const METHODS: [Method; 2] = [Method::Speculative, Method::Pearl];
const PROMPTS: [&str; 3] = ["Once upon a time", "The old house by the sea", "In the morning,"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without arguments: a small random pair, whose text is noise.
    let pair = RandomPair::make()?;
    let mut models = std::env::args().skip(1).map(ModelSource::from);
    let target = models.next().unwrap_or_else(|| pair.target().into());
    let draft_model = Some(models.next().unwrap_or_else(|| pair.drafter().into()));
    let options = Options { draft_model, ..Options::new(target) };

    // Each method has its own engine, because each needs another placement: PEARL gives the drafter
    // cores of its own, and speculative decoding lets both take turns. They share weights.
    let mut loader = Loader::new().sharing_weights();
    let request = Request { max_tokens: 64, ignore_eos: true, ..Request::default() };
    for method in METHODS {
        let plan = Plan::new(Options { method: Some(method.into()), ..options.clone() })?;
        let engine = Engine::open_with(&plan, &mut loader)?;
        // The first answer learns the length of drafts.
        engine.complete(PROMPTS[0], &request)?;
        let (mut speeds, mut statistics) = (Vec::new(), Statistics::default());
        for prompt in PROMPTS {
            let answer = engine.complete(prompt, &request)?;
            speeds.push(answer.decode_tokens_per_second());
            statistics.add(&answer.statistics);
        }
        speeds.sort_by(f64::total_cmp);
        println!(
            "{method}: {:.1} tokens/s, {:.2} mean accepted tokens, on {}",
            speeds[PROMPTS.len() / 2],
            statistics.mean_accepted_tokens(),
            plan.placement(),
        );
    }
    Ok(())
}

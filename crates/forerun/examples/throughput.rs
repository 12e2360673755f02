//! Measures several answers at once on one engine:
//! `cargo run --release -p forerun --example throughput -- TARGET [DRAFTER]`.
//!
//! Every answer has its own prompt and thread. The last column compares the measured gain over one
//! answer with the gain that a forward pass allows: the rows of `n` sequences cost less than `n`
//! passes. Without a drafter the method is plain decoding, of which a pass has one row for each
//! sequence.
use forerun::checkpoint::Checkpoint;
use forerun::cpu::{ModelProbe, Team, Transformer, Weights};
use forerun::placement::default_cores;
use forerun::{Engine, Method, ModelSource, Options, Request, WeightType};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

const SEQUENCES: [usize; 5] = [1, 2, 4, 8, 16];
const TOKENS: usize = 96;
/// Short, so that the time is that of decoding.
const PROMPT: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut models = std::env::args().skip(1);
    let target = models.next().ok_or("name a target: a directory with a checkpoint")?;
    let drafter = models.next();
    let source = ModelSource::from(target.clone());
    for weight_type in [WeightType::Bf16, WeightType::INT8] {
        let method = if drafter.is_some() { Method::Speculative } else { Method::Autoregressive };
        let options = Options {
            model: source.clone(),
            draft_model: drafter.clone().map(ModelSource::from),
            method: Some(method.into()),
            weight_type: Some(weight_type.into()),
            ..Options::default()
        };
        let engine = Engine::open(options)?;
        let costs = pass_costs(&target, weight_type)?;
        println!("{weight_type}, {method}");
        println!("| sequences | tokens/s | gain | gain of a pass | ratio |");
        println!("|---|---|---|---|---|");
        run(&engine, 1)?;
        let mut alone = 0.0;
        for sequences in SEQUENCES {
            // The median of three.
            let mut speeds = Vec::new();
            for _ in 0..3 {
                speeds.push(run(&engine, sequences)?);
            }
            speeds.sort_by(f64::total_cmp);
            if sequences == 1 {
                alone = speeds[1];
            }
            let cost = |rows: usize| costs.iter().find(|(of, _)| *of == rows).map_or(0.0, |c| c.1);
            let (gain, allowed) = (speeds[1] / alone, sequences as f64 * cost(1) / cost(sequences));
            println!(
                "| {sequences} | {:.1} | {gain:.2} | {allowed:.2} | {:.2} |",
                speeds[1],
                gain / allowed
            );
        }
    }
    Ok(())
}

/// Generates several answers at once. Returns their tokens per second.
fn run(engine: &Engine, sequences: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let request = Request { max_tokens: TOKENS, ignore_eos: true, ..Request::default() };
    let started = Instant::now();
    let answers = std::thread::scope(|scope| {
        let answer = |number: usize| {
            let (engine, request) = (engine, &request);
            scope.spawn(move || {
                let token = |index: usize| ((index * 31 + number * 977) % 1_000) as u32;
                let prompt = (0..PROMPT).map(token).collect();
                let on_text = |_: &str| ControlFlow::Continue(());
                engine.generate_tokens(prompt, request, on_text)
            })
        };
        let answers: Vec<_> = (0..sequences).map(answer).collect();
        let answers = answers.into_iter().map(|answer| answer.join().expect("no panic"));
        answers.collect::<Result<Vec<_>, _>>()
    })?;
    let tokens: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
    Ok(tokens as f64 / started.elapsed().as_secs_f64())
}

/// Measures the seconds of a forward pass by its rows, after some tokens.
fn pass_costs(
    target: &str,
    weight_type: WeightType,
) -> Result<Vec<(usize, f64)>, Box<dyn std::error::Error>> {
    let weights = Weights::load_as(&Checkpoint::open(target.as_ref())?, weight_type)?;
    let team = Arc::new(Team::unpinned(default_cores().len())?);
    let model = Transformer::new(Arc::new(weights), team);
    let mut probe = ModelProbe::new(model, PROMPT + TOKENS / 2, 16);
    let mut cost = |rows: usize| {
        let mut seconds: Vec<f64> = (0..9).map(|_| probe.run(rows)).collect();
        seconds.sort_by(f64::total_cmp);
        (rows, seconds[4])
    };
    Ok(SEQUENCES.map(&mut cost).to_vec())
}

//! `forerun analyze acceptance`: a drafter's acceptance rate from two greedy answers, as DSI's
//! authors estimate it (arXiv 2405.14105, appendix A).

use crate::arguments::AcceptanceArguments;
use crate::progress::{Task, Unit};
use crate::{note, progress};
use anyhow::{Context, ensure};
use forerun::{Engine, Loader, ModelSource, Options, Plan, Request, TokenId};
use forerun_bench::suite;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

pub(super) fn run(arguments: &AcceptanceArguments) -> anyhow::Result<ExitCode> {
    let request = Request { max_tokens: arguments.max_tokens, ..Request::default() };
    let (model, draft_model) = (arguments.pair.model.require()?, &arguments.pair.draft_model);
    let mut texts = arguments.suites.read()?;
    if let Some(count) = arguments.limit {
        texts = suite::limit(texts, count);
    }
    let mut loader = progress::loader(arguments.pair.offline, true);
    let [target, drafter] = [model, draft_model].map(|model| open(model, arguments, &mut loader));
    let (target, drafter) = (target?, drafter?);
    ensure!(
        target.tokenizer().agrees_with(drafter.tokenizer()),
        "{draft_model} has another vocabulary than {model}, so their tokens cannot be compared: choose \
         a draft model with the same vocabulary"
    );
    let contexts = [&target, &drafter].map(|engine| engine.config().max_position_embeddings);
    let context = contexts[0].min(contexts[1]);
    let mut prompts = Vec::new();
    for text in &texts {
        let Some(turn) = text.turns.first() else { continue };
        let tokens = target.encode_prompt(turn).with_context(|| format!("prompt {}", text.id))?;
        if tokens.len() + request.max_tokens <= context {
            prompts.push(tokens);
        } else {
            note(format_args!(
                "skipped, because it does not fit the context of {context} together with an answer: {}",
                text.id
            ));
        }
    }
    ensure!(
        !prompts.is_empty(),
        "no prompt fits the models' context of {context} together with an answer of {} tokens: lower \
         --max-tokens",
        request.max_tokens
    );
    let (mut agreed, mut whole) = (0, 0);
    let mut task = Task::new("comparing", Unit::Pieces("prompts"), prompts.len() as u64);
    for (index, prompt) in prompts.iter().enumerate() {
        let texts = [&target, &drafter].map(|engine| answer(engine, prompt, &request));
        let [of_target, of_drafter] = texts;
        let (of_target, of_drafter) = (of_target?, of_drafter?);
        let common = of_target.iter().zip(&of_drafter).take_while(|(a, b)| a == b).count();
        agreed += common;
        whole += usize::from(common == of_target.len() && common == of_drafter.len());
        task.update(index as u64 + 1);
    }
    drop(task);
    let mean = agreed as f64 / prompts.len() as f64;
    writeln!(
        std::io::stdout(),
        "{} prompts: target and drafter agree on the first {mean:.2} tokens on average, and on {whole} \
         whole answers\n\
         acceptance {:.3}: 1 - 1 / (1 + {mean:.2})",
        prompts.len(),
        1.0 - 1.0 / (1.0 + mean),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Opens an engine that decodes with one of the models alone.
fn open(
    model: &ModelSource,
    arguments: &AcceptanceArguments,
    loader: &mut Loader<'_>,
) -> anyhow::Result<Engine> {
    let plan = Plan::new(Options {
        model: model.clone(),
        weight_type: arguments.pair.dtype,
        threads: arguments.threads,
        ..Options::default()
    })?;
    Ok(Engine::open_with(&plan, loader)?)
}

/// Returns the tokens of a greedy answer.
fn answer(engine: &Engine, prompt: &[TokenId], request: &Request) -> anyhow::Result<Vec<TokenId>> {
    let go_on = |_: &str| ControlFlow::Continue(());
    let answer = engine.generate_tokens(prompt.to_vec(), request, go_on)?;
    Ok(answer.tokens)
}

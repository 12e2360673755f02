//! Runs a custom decoder on the engine's workers: `cargo run -p forerun --example decoder`.
use forerun::{Engine, Options, RandomPair};
use forerun_core::{
    Cluster, Draft, DraftShape, Job, JobOutput, Role, Sampling, ScoreJob, SequenceId,
    TargetFeedback, verify,
};
use forerun_decode::{DecodeError, Decoder, Limits, Sequence, generate};
use std::ops::ControlFlow;

/// Drafts up to four tokens, verifies them, and repeats.
struct DraftFour;

impl Decoder for DraftFour {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // The target adds one token of its own, so a draft never needs the last place.
        let length = sequence.remaining().saturating_sub(1).min(4);
        let draft = if length == 0 {
            Draft::empty()
        } else {
            let job = Job::Draft {
                sequence: sequence.id(),
                tokens: sequence.tokens().into(),
                prompt_len: sequence.prompt_len(),
                sampling: sequence.sampling().clone(),
                shape: DraftShape::Chain { length },
                feedback: TargetFeedback::default(),
            };
            cluster.submit(Role::Drafter(0), job)?;
            match cluster.next_completion()?.output? {
                JobOutput::Draft(draft) => draft,
                JobOutput::Score(_) => return Err(DecodeError::Answer("expected a draft")),
            }
        };
        let job = Job::Score(ScoreJob {
            sequence: sequence.id(),
            tokens: sequence.tokens().into(),
            prompt_len: sequence.prompt_len(),
            tree: draft.tree.clone(),
            sampling: sequence.sampling().clone(),
            logprobs: None,
            features_from: None,
        });
        cluster.submit(Role::Target(0), job)?;
        let scores = match cluster.next_completion()?.output? {
            JobOutput::Score(scores) => scores,
            JobOutput::Draft(_) => return Err(DecodeError::Answer("expected scores")),
        };
        let position = sequence.tokens().len();
        let verdict = verify(&draft, &scores.rows, position, sequence.randomness());
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pair = RandomPair::make()?;
    let draft_model = Some(pair.drafter().into());
    let options = Options { draft_model, ..Options::new(pair.target()) };
    let engine = Engine::open(options)?;

    let prompt = engine.tokenizer().encode("Once upon a time")?;
    let limits = Limits {
        max_tokens: 64,
        context_length: engine.config().max_position_embeddings,
        eos: engine.config().eos_token_ids.clone(),
    };
    // The engine numbers its own sequences from 0.
    let id = SequenceId(u64::MAX);
    let mut sequence = Sequence::new(id, prompt, Sampling::greedy(), limits);
    let mut cluster = engine.cluster();
    generate(&mut DraftFour, &mut sequence, &mut *cluster, |_| ControlFlow::Continue(()))?;
    cluster.release(id);

    println!("{}", engine.tokenizer().decode(sequence.generated()));
    let statistics = sequence.statistics();
    println!("mean accepted tokens: {:.2}", statistics.mean_accepted_tokens());
    Ok(())
}

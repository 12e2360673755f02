//! Mutants of sampling options in trees.

use crate::methods::{chain, iid, top};
use crate::mutants::explicit::{draft, scores};
use crate::mutants::{Mutant, Setup, SharedModels};
use crate::options::{constraint, sampling};
use crate::tables::rows_of;
use forerun_core::{Cluster, DraftShape, Node, Sampler, Sampling, SamplingOptions, Scores};
use forerun_decode::{DecodeError, Decoder, Sequence};
use forerun_lm::fake::row_prefix;
use std::rc::Rc;

/// Speculative decoding that applies the sampling options itself: to each row with the prefix of
/// its own path or, as mutants, to all rows with those of the prefix, or as if the prompt were part
/// of the answer.
struct ExplicitSampling {
    models: SharedModels,
    shape: DraftShape,
    mistake: Mistake,
}

#[derive(Clone, Copy)]
enum Mistake {
    None,
    /// All rows of a tree have the options of its root, if these sampling options are in use.
    OfTheRoot(fn(&Sampling) -> bool),
    /// The prompt counts as part of the answer.
    PromptCounted,
}

impl Decoder for ExplicitSampling {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = draft(sequence, cluster, self.shape.clone())?;
        let scores = scores(sequence, cluster, &draft)?;
        let (tokens, sampling) = (sequence.tokens(), sequence.sampling());
        let of_the_root = matches!(self.mistake, Mistake::OfTheRoot(applies) if applies(sampling));
        let prompt_apart = !matches!(self.mistake, Mistake::PromptCounted);
        let prompt_len = if prompt_apart { sequence.prompt_len() } else { 0 };
        let sampler = Sampler::new(sampling, tokens, prompt_len);
        let row = |at: Option<Node>| {
            let logits = self.models.target_row(&row_prefix(tokens, &draft.tree, at));
            sampler.distribution(&logits, &draft.tree, at.filter(|_| !of_the_root)).unwrap()
        };
        let rows = rows_of(&draft.tree).map(row).collect();
        let scores = Scores { rows, ..scores };
        let verdict = sequence.verify_whole(&draft, &scores.rows);
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

/// A sampling option that depends on the tokens before a row.
struct OptionOfPath {
    name: &'static str,
    sampling: fn() -> Sampling,
    is_used: fn(&Sampling) -> bool,
}

const OPTIONS: [OptionOfPath; 4] = [
    OptionOfPath {
        name: "repetition penalty",
        sampling: || with(SamplingOptions { repetition_penalty: 1.8, ..warm().options }),
        is_used: |sampling| sampling.options.repetition_penalty != 1.0,
    },
    OptionOfPath {
        name: "frequency penalty",
        sampling: || with(SamplingOptions { frequency_penalty: 1.2, ..warm().options }),
        is_used: |sampling| sampling.options.frequency_penalty != 0.0,
    },
    OptionOfPath {
        name: "presence penalty",
        sampling: || with(SamplingOptions { presence_penalty: 1.5, ..warm().options }),
        is_used: |sampling| sampling.options.presence_penalty != 0.0,
    },
    OptionOfPath {
        name: "constraint",
        sampling: || Sampling { constraint: constraint(3), ..warm() },
        is_used: |sampling| sampling.constraint.is_some(),
    },
];

fn with(options: SamplingOptions) -> Sampling {
    Sampling { options, ..warm() }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let mut all = Vec::new();
    for shape in [chain(2), top(2, 2), iid(&[2, 1])] {
        let setup = |mistake| {
            let (table, shape) = (Rc::clone(models), shape.clone());
            Setup::with_model(models, move || {
                let (models, shape) = (Rc::clone(&table), shape.clone());
                Box::new(ExplicitSampling { models, shape, mistake })
            })
        };
        let mutant = |name: &str, sampling, mistake| {
            let name = format!("{name}, {shape:?}");
            Mutant { sampling, ..Mutant::new(name, setup(Mistake::None), setup(mistake)) }
        };
        for option in OPTIONS {
            let name = format!("the root's {} in a tree", option.name);
            all.push(mutant(&name, (option.sampling)(), Mistake::OfTheRoot(option.is_used)));
        }
        let sampling = with(SamplingOptions { frequency_penalty: 0.5, ..warm().options });
        all.push(mutant("prompt counted", sampling, Mistake::PromptCounted));
    }
    all
}

fn warm() -> Sampling {
    sampling(1.0, 0, 1.0)
}

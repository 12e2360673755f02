//! Targets are asked only for what is read of their rows, and give the same scores.

use forerun_core::{
    Job, JobOutput, KeyedRandomness, Role, RowUse, Sampling, SamplingOptions, ScoreJob, Scores,
    SequenceId, TokenTree, Verification,
};
use forerun_lm::fake::TableModel;
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel};
use forerun_runtime::Engine;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

const VOCAB: usize = 50;

/// A model that returns whole rows, or what is read of them. It notes what that is.
struct Target {
    returns_whole: bool,
    read: Arc<Mutex<Vec<RowUse>>>,
}

impl LanguageModel for Target {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        100
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        for BatchEntry { request, progress } in batch {
            self.read.lock().unwrap().push(request.rows_for);
            let rows_for = if self.returns_whole { RowUse::Full } else { request.rows_for };
            let mut model = TableModel::new(3, VOCAB, 6.0);
            progress.result = Some(model.logits(&ForwardRequest { rows_for, ..*request }));
        }
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

#[test]
fn scores_are_the_same_from_whole_and_from_partial_rows() {
    let read = Arc::new(Mutex::new(Vec::new()));
    let target = |returns_whole| Target { returns_whole, read: Arc::clone(&read) };
    let mut engines =
        [true, false].map(|returns_whole| Engine::new().with_target(0, target(returns_whole)));
    let best = |count| RowUse::Best { count, tokens: VOCAB };
    let default = SamplingOptions::default;
    let warm = || SamplingOptions { temperature: 0.7, ..default() };
    let (exact, coupled) = (Verification::Rejection, Verification::Coupled);
    let table = [
        (default(), exact, None, best(1)),
        (default(), exact, Some(0), RowUse::Full),
        (SamplingOptions { presence_penalty: 0.5, ..default() }, exact, None, RowUse::Full),
        (SamplingOptions { logit_bias: [(3, 1.0)].into(), ..default() }, exact, None, RowUse::Full),
        (warm(), exact, None, RowUse::Full),
        (SamplingOptions { top_p: 0.9, ..warm() }, exact, None, RowUse::Full),
        (SamplingOptions { top_k: 8, ..warm() }, exact, None, best(8)),
        (SamplingOptions { top_k: 8, top_p: 0.9, min_p: 0.02, ..warm() }, exact, None, best(8)),
        (SamplingOptions { top_k: 8, ..warm() }, coupled, None, best(8)),
        (SamplingOptions { top_k: VOCAB, ..warm() }, exact, None, RowUse::Full),
        (SamplingOptions { top_k: 8, ..warm() }, exact, Some(2), RowUse::Full),
    ];
    for (options, verification, logprobs, expected) in table {
        let case = format!("{options:?}, {verification:?}, {logprobs:?}");
        let randomness = KeyedRandomness { seed: 4, sample: 0 };
        let job = Job::Score(ScoreJob {
            sequence: SequenceId(0),
            tokens: [5, 8, 13][..].into(),
            prompt_len: 2,
            tree: TokenTree::chain(&[1, 4, 9]),
            sampling: Sampling {
                options,
                randomness,
                verification,
                constraint: None,
                dry_breakers: Arc::default(),
                adapter: None,
            },
            logprobs,
            features_from: None,
        });
        let scores: [Scores; 2] = engines.each_mut().map(|engine| {
            let cancel = AtomicBool::new(false);
            match engine.execute(Role::Target(0), &job, &randomness, &cancel).unwrap() {
                JobOutput::Score(scores) => scores,
                JobOutput::Draft(_) => panic!("a target does not draft"),
            }
        });
        assert_eq!(scores[0], scores[1], "{case}");
        assert_eq!(scores[0].rows.len(), 4);
        assert_eq!(read.lock().unwrap().drain(..).collect::<Vec<_>>(), [expected; 2], "{case}");
    }
}

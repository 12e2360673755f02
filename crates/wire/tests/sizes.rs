//! How many bytes a round of drafting and verifying takes: its two jobs and two completions.

use forerun_core::{
    Completion, Distribution, Draft, DraftShape, FeatureRows, Features, Job, JobCost, JobOutput,
    KeyedRandomness, Proposal, Role, RowLogprobs, Sampler, Sampling, SamplingOptions, ScoreJob,
    Scores, SequenceId, TargetFeedback, Ticket, TokenId, TokenTree, Verification,
};
use forerun_wire::{Command, HostEnd, Reply, WorkerEnd};
use serde::Serialize;
use std::sync::Arc;

/// Draft tokens of a round.
const CHAIN: usize = 8;

/// What a round looks like.
#[derive(Clone, Copy, Debug)]
struct Case {
    prefix: usize,
    vocab_size: usize,
    sampling: fn() -> Sampling,
    logprobs: Option<usize>,
    /// The number of features of a token.
    features: Option<usize>,
}

/// Bytes from the host, and to it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bytes {
    jobs: usize,
    completions: usize,
}

fn sampling(temperature: f32, top_k: usize, verification: Verification) -> Sampling {
    Sampling {
        options: SamplingOptions { temperature, top_k, ..SamplingOptions::default() },
        randomness: KeyedRandomness { seed: 0x1234_5678_9abc_def0, sample: 0 },
        verification,
        constraint: None,
        dry_breakers: Arc::default(),
        adapter: None,
    }
}

fn greedy() -> Sampling {
    sampling(0.0, 0, Verification::Rejection)
}

fn coupled() -> Sampling {
    sampling(0.8, 0, Verification::Coupled)
}

fn top_50() -> Sampling {
    sampling(0.8, 50, Verification::Rejection)
}

fn unfiltered() -> Sampling {
    sampling(0.8, 0, Verification::Rejection)
}

impl Case {
    fn logits(&self, row: usize) -> Vec<f32> {
        let randomness = KeyedRandomness { seed: row as u64, sample: 0 };
        (0..self.vocab_size as TokenId).map(|token| randomness.gumbel(row, token) as f32).collect()
    }

    fn rows(&self, first: usize, count: usize) -> Vec<Distribution> {
        let sampling = (self.sampling)();
        let sampler = Sampler::new(&sampling, &[0], 1);
        (first..first + count)
            .map(|row| sampler.distribution(&self.logits(row), &TokenTree::new(), None).unwrap())
            .collect()
    }

    /// Returns the jobs and completions of a round in which the sequence has `prefix` tokens, `new`
    /// of them since the round before, and the features of all.
    fn round(&self, tokens: &[TokenId], features: &Features) -> [(Job, Completion); 2] {
        let (sequence, sampling) = (SequenceId(1), (self.sampling)());
        let tokens: Arc<[TokenId]> = tokens.into();
        let proposed = self.rows(100, CHAIN);
        let tree = TokenTree::chain(
            &proposed.iter().map(|row| row.most_probable().unwrap()).collect::<Vec<_>>(),
        );
        let draft = Job::Draft {
            sequence,
            tokens: Arc::clone(&tokens),
            prompt_len: self.prefix,
            sampling: sampling.clone(),
            shape: DraftShape::Chain { length: CHAIN },
            feedback: TargetFeedback { features: features.clone(), last_draft: None },
        };
        let proposal = match sampling.is_deterministic() {
            true => Proposal::Deterministic,
            false => {
                Proposal::Sampled(proposed.into_iter().chain([Distribution::default()]).collect())
            }
        };
        let drafted = JobOutput::Draft(Draft::new(tree.clone(), proposal));
        let score = Job::Score(ScoreJob {
            sequence,
            tokens: Arc::clone(&tokens),
            prompt_len: self.prefix,
            tree,
            sampling,
            logprobs: self.logprobs,
            features_from: self.features.map(|_| tokens.len() - 1),
        });
        let rows = self.rows(200, CHAIN + 1);
        let logprobs = |top| {
            let of_row = |(index, row)| RowLogprobs::new(&self.logits(200 + index), row, top, 0);
            rows.iter().enumerate().map(of_row).collect::<Result<_, _>>().unwrap()
        };
        let scored = JobOutput::Score(Scores {
            logprobs: self.logprobs.map(logprobs),
            features: self.features.map(|width| feature_rows(width, CHAIN + 1)),
            rows,
        });
        let completion = |ticket, output| Completion {
            ticket: Ticket(ticket),
            output: Ok(output),
            started_ns: 123_456_789_000,
            finished_ns: 123_466_789_000,
            cost: JobCost {
                passes: 1,
                own_rows: 9,
                batch_rows: 9,
                batch_sequences: 1,
                busy_ns: 9_876_543,
                active_sequences: 1,
            },
        };
        [(draft, completion(2_000, drafted)), (score, completion(2_001, scored))]
    }

    /// Returns the bytes of a round by serialising jobs and completions as they are, and with this
    /// crate. The round before it was sent, too.
    fn bytes(&self) -> (Bytes, Bytes) {
        let vocab_size = self.vocab_size as TokenId;
        let text = |len: usize| -> Vec<TokenId> {
            (0..len as TokenId)
                .map(|token| token.wrapping_mul(2_654_435_761) % vocab_size)
                .collect()
        };
        let mut features = Features::new();
        if let Some(width) = self.features {
            features.push(feature_rows(width, self.prefix - 1));
        }
        let before = self.round(&text(self.prefix), &features);
        if let Some(width) = self.features {
            features.push(feature_rows(width, 3));
        }
        let round = self.round(&text(self.prefix + 3), &features);
        let plain = Bytes {
            jobs: round.iter().map(|(job, _)| plain(job)).sum(),
            completions: round.iter().map(|(_, completion)| plain(completion)).sum(),
        };

        let (mut host, mut worker) = (HostEnd::new(), WorkerEnd::new(1 << 30));
        let mut compact = Bytes { jobs: 0, completions: 0 };
        for round in [before, round] {
            compact = Bytes { jobs: 0, completions: 0 };
            for (job, completion) in round {
                let ticket = completion.ticket;
                let bytes = host.submit(ticket, Role::Target(0), job.clone());
                compact.jobs += bytes.len();
                let received = worker.receive(&bytes).unwrap();
                let run = Command::Run { ticket, role: Role::Target(0), job };
                assert!(received.commands == [run], "the job arrives as it was sent");
                let bytes = worker.complete(completion.clone());
                compact.completions += bytes.len();
                let reply = host.receive(&bytes).unwrap();
                assert!(reply == Reply::Completed(completion), "so does the completion");
            }
        }
        (plain, compact)
    }
}

fn feature_rows(width: usize, rows: usize) -> FeatureRows {
    FeatureRows::new(width, (0..width * rows).map(|value| value as f32).collect())
}

fn plain(message: &impl Serialize) -> usize {
    postcard::to_allocvec(message).unwrap().len()
}

/// Prefix 4,096, vocabulary 128,000, 8 draft tokens, 4,096 features. Shown with `--no-capture`.
#[test]
fn messages_grow_neither_with_the_prefix_nor_where_possible_with_the_vocabulary() {
    println!("bytes of a round            plain: jobs  completions   compact: jobs  completions");
    let base = Case {
        prefix: 4_096,
        vocab_size: 128_000,
        sampling: greedy,
        logprobs: None,
        features: None,
    };
    let row = 4 * base.vocab_size;
    let feature_row = 4 * 4_096;
    // The most bytes for jobs and completions.
    let cases: &[(&str, Case, usize, usize)] = &[
        ("greedy", base, 160, 160),
        ("greedy, 5 logprobs", Case { logprobs: Some(5), ..base }, 160, 600),
        ("coupled", Case { sampling: coupled, ..base }, 160, 160),
        ("rejection, top-k 50", Case { sampling: top_50, ..base }, 160, 17 * 50 * 7),
        ("rejection, whole rows", Case { sampling: unfiltered, ..base }, 160, 17 * row + 200),
        (
            "greedy, features",
            Case { features: Some(4_096), ..base },
            3 * feature_row + 200,
            9 * feature_row + 150,
        ),
    ];
    for &(name, case, max_jobs, max_completions) in cases {
        let (plain, compact) = case.bytes();
        println!(
            "{name:<24}{:>15}{:>13}{:>16}{:>13}",
            plain.jobs, plain.completions, compact.jobs, compact.completions
        );
        assert!(compact.jobs <= max_jobs && compact.completions <= max_completions, "{name}");
        let short = Case { prefix: 512, ..case }.bytes().1;
        assert!(compact.jobs.abs_diff(short.jobs) <= 8, "{name}: {short:?}");
        assert!(compact.completions.abs_diff(short.completions) <= 8, "{name}: {short:?}");
        if (case.sampling)().top_k > 0 || (case.sampling)().is_deterministic() {
            let small = Case { vocab_size: 16_000, ..case }.bytes().1;
            // Larger token ids take up to one byte more.
            let tokens = 17 * (1 + 50 + case.logprobs.unwrap_or(0));
            assert!(compact.jobs.abs_diff(small.jobs) <= 40, "{name}: {small:?}");
            assert!(compact.completions.abs_diff(small.completions) <= tokens, "{name}: {small:?}");
        }
    }
}

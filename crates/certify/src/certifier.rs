//! Decodes prompts with every method, and compares.

use crate::certificate::{
    Cause, Certificate, Check, CheckResult, Comparison, Divergence, IMPLAUSIBLE, KnownResult,
    Outcome, SamplingVerdict,
};
use crate::known_check::KnownCheck;
use crate::repeated_texts::COUNTED_TOKENS;
use crate::sampling_test::SamplingTest;
use crate::seeded_options::SeededOptions;
use crate::subject::{Subject, SubjectAnswer};
use forerun::{
    Canceller, Forerun, ForerunError, Isa, Loader, MAX_LOGPROBS, Method, Options, Placement, Plan,
    Request, SamplingOptions, TokenId, TokenLogprob, Verification, VerificationChoice,
};
use forerun_core::{Key, KeyedRandomness, Purpose, Role};

/// What to compare.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// The texts to continue.
    pub prompts: Vec<String>,
    /// The number of tokens to compare in each way. Prompts are continued in turn until there are as many.
    pub tokens: usize,
    /// The number of tokens to test of rejection sampling and block verification.
    pub sampled_tokens: usize,
    /// The number of answers of known models to count for each rule of verification, with a seed and without one; 0 for
    /// none.
    pub known_answers: usize,
    /// The maximum number of tokens of an answer.
    pub answer_tokens: usize,
    /// The temperature of seeded answers, rejection sampling and block verification, above 0.
    pub temperature: f32,
    /// The first seed.
    pub seed: u64,
}

/// An error of a certification.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// A model cannot be opened, or an answer failed.
    #[error(transparent)]
    Engine(#[from] ForerunError),
    /// There are no prompts.
    #[error("there are no prompts: give at least one")]
    NoPrompts,
    /// The answers are too short.
    #[error(
        "all answers together have only {tokens} tokens, but {wanted} are to be compared: give more or other prompts"
    )]
    ShortAnswers {
        /// The number of tokens of all answers.
        tokens: usize,
        /// The number of tokens to compare.
        wanted: usize,
    },
    /// The certification was cancelled.
    #[error("interrupted")]
    Cancelled,
}

/// The number of prompts with many short answers, whose tokens are counted.
const REPEATED_PROMPTS: usize = 2;

/// The number of short answers for each long one.
const SHORT_ANSWERS: u32 = 10;

/// Compares configurations with plain decoding.
pub struct Certifier<'a> {
    options: CertifyOptions,
    plain: Forerun,
    loader: Loader<'a>,
    canceller: Canceller,
}

/// The answers of plain decoding that others are compared with.
pub struct PlainAnswers {
    greedy: Vec<Case>,
    seeded: Vec<Case>,
}

/// An answer to a prompt, and the request that it answers.
struct Case {
    prompt: usize,
    request: Request,
    /// The options of a seeded answer.
    seeded: Option<SeededOptions>,
    tokens: Vec<TokenId>,
    logprobs: Vec<TokenLogprob>,
}

impl<'a> Certifier<'a> {
    /// Opens the target of `options` for plain decoding. `loader` should share weights
    /// ([`Loader::sharing_weights`]).
    ///
    /// # Errors
    /// If there are no prompts, or the target cannot be opened.
    pub fn open(
        options: CertifyOptions,
        engine: &Options,
        mut loader: Loader<'a>,
        canceller: Canceller,
    ) -> Result<Self, CertifyError> {
        if options.prompts.is_empty() {
            return Err(CertifyError::NoPrompts);
        }
        let plain = Options {
            model: engine.model.clone(),
            method: Some(Method::Autoregressive),
            weight_type: engine.weight_type,
            cache_type: engine.cache_type,
            cache_bytes: engine.cache_bytes,
            threads: engine.threads,
            placement: placement_on_gpu(engine),
            gpu_layers: engine.gpu_layers,
            ..Options::default()
        };
        let plan = Plan::new(plain).map_err(ForerunError::from)?;
        let plain = Forerun::open_with(&plan, &mut loader)?;
        Ok(Self { options, plain, loader, canceller })
    }

    /// Checks configurations. `progress` receives the name of each before it is checked.
    ///
    /// # Errors
    /// If a model cannot be opened, an answer fails, or the certification is cancelled.
    pub fn run(
        mut self,
        configurations: &[Options],
        mut progress: impl FnMut(&str),
    ) -> Result<Certificate, CertifyError> {
        progress("plain decoding");
        let answers = self.plain_answers()?;
        let (sampled, known) = (self.sampled(&self.plain)?, self.known(&self.plain)?);
        let plain = Outcome { greedy: None, seeded: None, sampled, known };
        let name = "plain decoding".to_owned();
        let mut checks =
            vec![Check { configuration: name, result: CheckResult::Compared(Box::new(plain)) }];
        let mut draft_model = None;
        for options in configurations {
            let plan = match Plan::new(options.clone()) {
                Ok(plan) => plan,
                Err(error) => {
                    let result = CheckResult::Skipped(error.to_string());
                    checks.push(Check { configuration: described(options), result });
                    continue;
                }
            };
            let configuration = name_of(&plan, options);
            progress(&configuration);
            let engine = Forerun::open_with(&plan, &mut self.loader)?;
            draft_model = draft_model.or(plan.draft_model().map(ToString::to_string));
            let outcome = self.check(&engine, &answers)?;
            checks.push(Check { configuration, result: CheckResult::Compared(Box::new(outcome)) });
        }
        let isa = Isa::from_environment().map_err(ForerunError::from)?;
        Ok(Certificate {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.plain.plan().model().to_string(),
            draft_model,
            instruction_set: isa.to_string(),
            prompts: self.options.prompts.len(),
            temperature: self.options.temperature,
            checks,
        })
    }

    /// Decodes the prompts with plain decoding, greedily and with seeds.
    ///
    /// # Errors
    /// If an answer fails, the answers are too short, or the certification is cancelled.
    pub fn plain_answers(&self) -> Result<PlainAnswers, CertifyError> {
        let greedy = self.cases(&[])?;
        let seeded = self.cases(&SeededOptions::supported_by(&self.plain))?;
        Ok(PlainAnswers { greedy, seeded })
    }

    /// Checks one subject, whose target must be that of this certifier.
    ///
    /// # Errors
    /// If an answer fails, the answers are too short, or the certification is cancelled.
    pub fn check(
        &self,
        subject: &dyn Subject,
        plain: &PlainAnswers,
    ) -> Result<Outcome, CertifyError> {
        Ok(Outcome {
            greedy: Some(self.compare(subject, &plain.greedy)?),
            seeded: Some(self.compare(subject, &plain.seeded)?),
            sampled: self.sampled(subject)?,
            known: self.known(subject)?,
        })
    }

    /// Counts a subject's answers with known models.
    fn known(&self, subject: &dyn Subject) -> Result<KnownResult, CertifyError> {
        let CertifyOptions { known_answers: answers, temperature, seed, .. } = self.options;
        if answers == 0 {
            return Ok(KnownResult::Skipped("no answers are requested".into()));
        }
        let Some(setup) = subject.decoder_setup() else {
            return Ok(KnownResult::Skipped("it cannot decode with other models".into()));
        };
        let check = KnownCheck { answers, temperature, seed };
        check.run(&*setup, &self.canceller).map(KnownResult::Counted)
    }

    /// Answers prompts with plain decoding until there are enough tokens: greedily, or with seeds and these options
    /// in turn.
    fn cases(&self, seeded: &[SeededOptions]) -> Result<Vec<Case>, CertifyError> {
        let (mut cases, mut tokens) = (Vec::new(), 0);
        let all = self.options.prompts.len();
        for number in 0.. {
            if tokens >= self.options.tokens {
                break;
            }
            // Greedy answers to the same prompt are the same.
            if number >= all && (seeded.is_empty() || tokens < number) {
                return Err(CertifyError::ShortAnswers { tokens, wanted: self.options.tokens });
            }
            // Each prompt gets all options, if there are enough answers.
            let seeded = seeded.get((number + number / all) % seeded.len().max(1)).copied();
            let request = self.request(number, seeded);
            let prompt = number % all;
            let answer = self.answer(&self.plain, prompt, &request)?;
            tokens += answer.tokens.len();
            let (text, logprobs) = (answer.tokens, answer.logprobs);
            cases.push(Case { prompt, request, seeded, tokens: text, logprobs });
        }
        Ok(cases)
    }

    /// Returns the request of the answer with this number, which is greedy or has these options.
    fn request(&self, number: usize, seeded: Option<SeededOptions>) -> Request {
        let request = Request {
            max_tokens: self.options.answer_tokens,
            logprobs: Some(MAX_LOGPROBS),
            ..Request::default()
        };
        let Some(seeded) = seeded else { return request };
        Request {
            sampling: seeded.sampling(self.options.temperature),
            grammar: seeded.grammar(),
            seed: Some(self.options.seed.wrapping_add(number as u64)),
            verification: VerificationChoice::Always(Verification::Coupled),
            ..request
        }
    }

    fn answer(
        &self,
        subject: &dyn Subject,
        prompt: usize,
        request: &Request,
    ) -> Result<SubjectAnswer, CertifyError> {
        let answer = subject.answer(&self.options.prompts[prompt], request, &self.canceller)?;
        match self.canceller.is_cancelled() {
            true => Err(CertifyError::Cancelled),
            false => Ok(answer),
        }
    }

    /// Compares a subject's answers with those of plain decoding, up to the first difference.
    fn compare(&self, subject: &dyn Subject, cases: &[Case]) -> Result<Comparison, CertifyError> {
        let mut comparison = Comparison::default();
        for case in cases {
            let answer = self.answer(subject, case.prompt, &case.request)?;
            comparison.drafted += answer.accepted;
            if let Some(divergence) = divergence(case, &answer.tokens, &answer.logprobs) {
                comparison.tokens += divergence.position;
                comparison.divergence = Some(divergence);
                return Ok(comparison);
            }
            comparison.tokens += case.tokens.len();
            comparison.logprobs += case.logprobs.iter().map(|row| row.top.len() + 1).sum::<usize>();
        }
        Ok(comparison)
    }

    /// Samples answers whose text depends on the drafts, and tests their tokens against the target's
    /// distributions. If the method verifies whole drafts, every second answer is verified in blocks.
    fn sampled(&self, subject: &dyn Subject) -> Result<SamplingVerdict, CertifyError> {
        // With a top-k of the reported log-probabilities, these are the whole distribution.
        let sampling = SamplingOptions {
            temperature: self.options.temperature,
            top_k: MAX_LOGPROBS,
            ..SamplingOptions::default()
        };
        let (mut test, mut drafted, mut answers) = (SamplingTest::default(), 0, 0_u32);
        let uniforms = KeyedRandomness { seed: self.options.seed, sample: u32::MAX };
        let in_blocks = subject.verifies_whole_drafts();
        let mut tokens = 0;
        while tokens < self.options.sampled_tokens {
            let is_short = !answers.is_multiple_of(SHORT_ANSWERS + 1);
            let verification = match in_blocks && answers.is_multiple_of(2) {
                true => Verification::Block,
                false => Verification::Rejection,
            };
            let request = Request {
                sampling: sampling.clone(),
                seed: Some(self.options.seed.wrapping_add((1 << 32) + u64::from(answers))),
                verification: VerificationChoice::Always(verification),
                max_tokens: match is_short {
                    true => self.options.answer_tokens.min(COUNTED_TOKENS),
                    false => self.options.answer_tokens,
                },
                logprobs: Some(MAX_LOGPROBS),
                ..Request::default()
            };
            // Both rules answer each prompt.
            let pair = answers as usize / 2;
            let prompts = self.options.prompts.len();
            let prompt = pair % if is_short { prompts.min(REPEATED_PROMPTS) } else { prompts };
            answers += 1;
            let answer = self.answer(subject, prompt, &request)?;
            drafted += answer.accepted;
            test.start_answer(prompt);
            for row in &answer.logprobs {
                let distribution = distribution(row, self.options.temperature);
                let place = row.top.iter().position(|&(token, _)| token == row.token);
                // A token outside the distribution is impossible.
                let place = place.unwrap_or(distribution.len() - 1);
                tokens += 1;
                let key = Key { position: tokens, purpose: Purpose::Sample, candidate: 0 };
                test.add(&distribution, place, uniforms.uniform(key));
            }
            if answer.tokens.is_empty() {
                return Err(CertifyError::ShortAnswers {
                    tokens,
                    wanted: self.options.sampled_tokens,
                });
            }
        }
        let result = test.result();
        let plausible = result.probability() >= IMPLAUSIBLE;
        Ok(SamplingVerdict { result, drafted, plausible })
    }
}

/// Returns the probabilities of a row's reported tokens after temperature, and 0 for any other token.
fn distribution(row: &TokenLogprob, temperature: f32) -> Vec<f64> {
    let best = row.top.first().map_or(0.0, |&(_, logprob)| f64::from(logprob));
    let weight = |&(_, logprob): &(TokenId, f32)| {
        ((f64::from(logprob) - best) / f64::from(temperature)).exp()
    };
    let weights: Vec<f64> = row.top.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).chain([0.0]).collect()
}

/// Returns the first difference between an answer and that of plain decoding.
fn divergence(case: &Case, tokens: &[TokenId], logprobs: &[TokenLogprob]) -> Option<Divergence> {
    let length = case.tokens.len().max(tokens.len());
    let bits = |row: &TokenLogprob| -> Vec<(TokenId, u32)> {
        row.top.iter().map(|&(token, logprob)| (token, logprob.to_bits())).collect()
    };
    let position = (0..length).find(|&at| {
        let rows = case.logprobs.get(at).zip(logprobs.get(at));
        case.tokens.get(at) != tokens.get(at)
            || rows.is_none_or(|(plain, other)| bits(plain) != bits(other))
    })?;
    let pair = [case.tokens.get(position).copied(), tokens.get(position).copied()];
    let rows = case.logprobs.get(position).zip(logprobs.get(position));
    let gap_nats = rows.and_then(|(plain, _)| {
        let [first, second] = pair;
        let logprob = |token: TokenId| {
            plain
                .top
                .iter()
                .find(|&&(other, _)| other == token)
                .map(|&(_, logprob)| f64::from(logprob))
        };
        Some((logprob(first?)? - logprob(second?)?).abs())
    });
    let same_logits = rows.is_none_or(|(plain, other)| bits(plain) == bits(other));
    let cause = if same_logits { Cause::Verification } else { Cause::Logits };
    Some(Divergence {
        prompt: case.prompt,
        seed: case.request.seed,
        options: case.seeded,
        position,
        tokens: pair,
        gap_nats,
        cause,
    })
}

/// Names a configuration that cannot run.
fn described(options: &Options) -> String {
    options.method.map_or_else(|| "automatic method".to_owned(), |method| method.to_string())
}

/// Returns the placement of the target if it is on a GPU, as a whole or in part: devices round differently. On cores, it
/// has the same bits on any of them.
fn placement_on_gpu(engine: &Options) -> Option<Placement> {
    let placement = engine.placement.as_ref()?;
    placement.gpu_of(Role::Target(0)).map(|_| placement.of_first_target())
}

/// Names a configuration: its method, drafter, drafts and placement.
fn name_of(plan: &Plan, options: &Options) -> String {
    let length = match options.draft_tokens {
        forerun::DraftTokens::Fixed(count) => format!("{count} tokens"),
        forerun::DraftTokens::Auto => "automatic length".to_owned(),
        forerun::DraftTokens::Assisted => "assisted length".to_owned(),
    };
    let drafts = match &options.tree {
        forerun::Tree::None => length,
        tree => format!("tree {tree}"),
    };
    let lookup = match plan.lookup() {
        forerun::Lookup::None => String::new(),
        lookup => format!(" + {lookup}"),
    };
    let (method, drafter, placement) = (plan.method(), plan.drafter(), plan.placement());
    format!("{method}, drafter {drafter}{lookup}, {drafts}, {placement}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun::RandomPair;

    fn options() -> CertifyOptions {
        CertifyOptions {
            prompts: vec![
                "Once upon a time".into(),
                "The quick brown fox".into(),
                "12 + 30 =".into(),
            ],
            tokens: 60,
            sampled_tokens: 60,
            known_answers: 400,
            answer_tokens: 30,
            temperature: 0.8,
            seed: 1,
        }
    }

    #[test]
    fn a_random_pair_is_certified() {
        let pair = RandomPair::make().unwrap();
        let engine = |method| Options {
            model: pair.target().into(),
            draft_model: Some(pair.drafter().into()),
            method: Some(method),
            draft_tokens: forerun::DraftTokens::Fixed(3),
            ..Options::default()
        };
        let plain = engine(Method::Speculative);
        let loader = Loader::new().sharing_weights();
        let certifier = Certifier::open(options(), &plain, loader, Canceller::new()).unwrap();
        let configurations = [plain, engine(Method::Pearl), engine(Method::Dsi)];
        let mut named = Vec::new();
        let certificate =
            certifier.run(&configurations, |name| named.push(name.to_owned())).unwrap();
        assert!(certificate.is_exact(), "{certificate}");
        assert_eq!(certificate.checks.len(), 4);
        let known: Vec<_> =
            certificate.outcomes().map(|outcome| outcome.known.verdict().unwrap()).collect();
        assert!(known.iter().all(|known| known.answers() >= 400), "{known:?}");
        assert_eq!((known[0].groups.len(), known[0].groups[0].drafted), (1, 0), "plain decoding");
        for known in &known[1..] {
            assert_eq!(known.groups.len(), 2, "with a seed and without one");
            assert!(known.groups.iter().all(|group| group.drafted > 0), "{known:?}");
        }
        let page = certificate.to_string();
        assert!(
            page.contains("equal")
                && page.contains("known distributions")
                && page.contains("exact: all"),
            "{page}"
        );
        let json = serde_json::to_string(&certificate).unwrap();
        assert!(serde_json::from_str::<Certificate>(&json).unwrap().is_exact());
    }

    #[test]
    fn differences_are_named_with_their_cause() {
        let row =
            |token, top: &[(TokenId, f32)]| TokenLogprob { token, logprob: 0.0, top: top.to_vec() };
        let logits = [(3, -0.5), (4, -0.75)];
        let case = Case {
            prompt: 1,
            request: Request { seed: Some(9), ..Request::default() },
            seeded: Some(SeededOptions::Penalties),
            tokens: vec![7, 3],
            logprobs: vec![row(7, &logits), row(3, &logits)],
        };
        let same = divergence(&case, &case.tokens, &case.logprobs);
        assert_eq!(same, None);
        let other_choice = [row(7, &logits), row(4, &logits)];
        let found = divergence(&case, &[7, 4], &other_choice).unwrap();
        assert_eq!(
            (found.position, found.cause, found.gap_nats),
            (1, Cause::Verification, Some(0.25))
        );
        assert!(
            found
                .to_string()
                .contains("prompt 2 (seed 9, penalties), position 1: token 4 instead of token 3")
        );
        let other_bits = [row(7, &[(3, -0.5), (4, -0.75000006)]), row(3, &logits)];
        let found = divergence(&case, &[7, 3], &other_bits).unwrap();
        assert_eq!((found.position, found.cause), (0, Cause::Logits));
        let shorter = divergence(&case, &[7], &case.logprobs[..1]).unwrap();
        assert_eq!((shorter.position, shorter.tokens), (1, [Some(3), None]));
    }
}

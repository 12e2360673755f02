//! Decodes prompts with every method, and compares.

use crate::certificate::{
    Cause, Certificate, Check, CheckResult, Comparison, Divergence, IMPLAUSIBLE, KnownResult,
    Outcome, SamplingVerdict,
};
use crate::configuration::{certified, described, name_of, plain};
use crate::drafts::Drafts;
use crate::known_check::KnownCheck;
use crate::repeated_texts::COUNTED_TOKENS;
use crate::sampling_test::SamplingTest;
use crate::seeded_options::SeededOptions;
use crate::subject::{Subject, SubjectAnswer};
use crate::time_left::{CertifyProgress, Meter, Part, TimeLeft};
use forerun::cpu::Isa;
use forerun::{
    Canceller, Engine, ForerunError, Loader, Options, Plan, Request, SamplingOptions, TokenId,
    TokenLogprob, Verification, VerificationChoice,
};
use forerun_core::{Key, KeyedRandomness, Purpose};
use std::collections::BTreeSet;

/// What to compare.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// The texts to continue.
    pub prompts: Vec<String>,
    /// The number of tokens to compare in each way. Prompts are continued in turn until there are
    /// as many: first as far as the model does, then also after its end-of-sequence tokens. Greedy
    /// answers may be fewer, because a prompt has only one.
    pub tokens: usize,
    /// The number of tokens to test of rejection sampling and block verification.
    pub sampled_tokens: usize,
    /// The number of answers of known models to count for each rule of verification, with a seed
    /// and without one; 0 for none.
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
    /// An answer has no tokens.
    #[error("the answer to prompt {prompt} has no tokens: leave this prompt out")]
    EmptyAnswer {
        /// The number of the prompt, from 1.
        prompt: usize,
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
    plain: Engine,
    loader: Loader<'a>,
    canceller: Canceller,
}

/// The answers of plain decoding that others are compared with.
pub struct PlainAnswers {
    greedy: Vec<Case>,
    seeded: Vec<Case>,
}

impl PlainAnswers {
    /// Returns the number of prompts that have answers.
    fn prompts(&self) -> usize {
        let cases = self.greedy.iter().chain(&self.seeded);
        cases.map(|case| case.prompt).collect::<BTreeSet<_>>().len()
    }
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
        let plan = Plan::new(plain(engine)).map_err(ForerunError::from)?;
        let plain = Engine::open_with(&plan, &mut loader)?;
        Ok(Self { options, plain, loader, canceller })
    }

    /// Checks configurations. Automatic draft lengths become fixed ones, and the methods of `auto`
    /// take turns: what is not drafted is not checked. `progress` receives how far the
    /// certification is.
    ///
    /// # Errors
    /// If a model cannot be opened, an answer fails, or the certification is cancelled.
    pub fn run(
        mut self,
        configurations: &[Options],
        progress: impl FnMut(CertifyProgress<'_>),
    ) -> Result<Certificate, CertifyError> {
        let configurations: Vec<Options> = configurations.iter().map(certified).collect();
        let plan = |options: &Options| Plan::new(options.clone());
        let plans: Vec<_> = configurations.iter().map(plan).collect();
        let CertifyOptions { tokens, sampled_tokens, .. } = self.options;
        let ran = plans.iter().filter(|plan| plan.is_ok()).count();
        let mut meter = Meter::new(TimeLeft::new(tokens, sampled_tokens, ran), progress);
        let known = self.known(&self.plain, &mut meter)?;
        let answers = self.measured_plain_answers(&mut meter)?;
        let sampled = self.sampled(&self.plain, &mut meter)?;
        let plain = Outcome { greedy: None, seeded: None, sampled, known, drafts: false };
        let name = "plain decoding".to_owned();
        let mut checks =
            vec![Check { configuration: name, result: CheckResult::Compared(Box::new(plain)) }];
        let mut draft_model = None;
        for (options, plan) in configurations.iter().zip(plans) {
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => {
                    let result = CheckResult::Skipped(error.to_string());
                    checks.push(Check { configuration: described(options), result });
                    continue;
                }
            };
            let configuration = name_of(&plan, options);
            meter.next_configuration(&configuration);
            let loader = &mut self.loader;
            let engine = meter.measure(Part::Open, |_| Engine::open_with(&plan, loader))?;
            draft_model = draft_model.or(plan.draft_model().map(ToString::to_string));
            let outcome = self.measured_check(&engine, &answers, &mut meter)?;
            checks.push(Check { configuration, result: CheckResult::Compared(Box::new(outcome)) });
        }
        let isa = Isa::from_environment().map_err(ForerunError::from)?;
        Ok(Certificate {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.plain.plan().model().to_string(),
            draft_model,
            instruction_set: isa.to_string(),
            gpu_arithmetic: self.plain.target_arithmetic().map(str::to_owned),
            prompts: answers.prompts(),
            tokens,
            sampled_tokens,
            answer_tokens: self.options.answer_tokens,
            known_answers: self.options.known_answers,
            temperature: self.options.temperature,
            checks,
        })
    }

    /// Decodes the prompts with plain decoding, greedily and with seeds.
    ///
    /// # Errors
    /// If an answer fails or has no tokens, or the certification is cancelled.
    pub fn plain_answers(&self) -> Result<PlainAnswers, CertifyError> {
        self.measured_plain_answers(&mut Meter::silent())
    }

    fn measured_plain_answers(&self, meter: &mut Meter<'_>) -> Result<PlainAnswers, CertifyError> {
        let seeded = SeededOptions::supported_by(&self.plain);
        Ok(PlainAnswers {
            greedy: meter.measure(Part::Greedy, |meter| self.cases(&[], meter))?,
            seeded: meter.measure(Part::Seeded, |meter| self.cases(&seeded, meter))?,
        })
    }

    /// Checks one subject, whose target must be that of this certifier.
    ///
    /// # Errors
    /// If an answer fails or has no tokens, or the certification is cancelled.
    pub fn check(
        &self,
        subject: &dyn Subject,
        plain: &PlainAnswers,
    ) -> Result<Outcome, CertifyError> {
        self.measured_check(subject, plain, &mut Meter::silent())
    }

    fn measured_check(
        &self,
        subject: &dyn Subject,
        plain: &PlainAnswers,
        meter: &mut Meter<'_>,
    ) -> Result<Outcome, CertifyError> {
        let PlainAnswers { greedy, seeded } = plain;
        Ok(Outcome {
            known: self.known(subject, meter)?,
            greedy: meter
                .measure(Part::Greedy, |meter| self.compare(subject, greedy, meter).map(Some))?,
            seeded: meter
                .measure(Part::Seeded, |meter| self.compare(subject, seeded, meter).map(Some))?,
            sampled: self.sampled(subject, meter)?,
            drafts: subject.drafts(),
        })
    }

    /// Counts a subject's answers with known models.
    fn known(
        &self,
        subject: &dyn Subject,
        meter: &mut Meter<'_>,
    ) -> Result<KnownResult, CertifyError> {
        let CertifyOptions { known_answers: answers, temperature, seed, .. } = self.options;
        if answers == 0 {
            return meter.measure(Part::Known, |_| {
                Ok(KnownResult::Skipped("no answers are requested".into()))
            });
        }
        let Some(setup) = subject.decoder_setup() else {
            return Ok(KnownResult::Skipped("it cannot decode with other models".into()));
        };
        let check = KnownCheck { answers, temperature, seed };
        let run = |meter: &mut Meter<'_>| {
            let mut progress = |done, all| meter.update(done, all);
            check.run_with_progress(&*setup, &self.canceller, &mut progress)
        };
        meter.measure(Part::Known, run).map(KnownResult::Counted)
    }

    /// Answers prompts with plain decoding until there are enough tokens: greedily, or with seeds
    /// and these options in turn.
    fn cases(
        &self,
        seeded: &[SeededOptions],
        meter: &mut Meter<'_>,
    ) -> Result<Vec<Case>, CertifyError> {
        let CertifyOptions { tokens: wanted, answer_tokens, ref prompts, .. } = self.options;
        let (mut cases, mut tokens): (Vec<Case>, usize) = (Vec::new(), 0);
        for number in 0.. {
            let (round, prompt) = (number / prompts.len(), number % prompts.len());
            // Greedy answers to the same prompt differ only after the end of the first one.
            if tokens >= wanted || (seeded.is_empty() && round > 1) {
                break;
            }
            let known = match seeded.is_empty() && round == 1 {
                true => cases[prompt].tokens.len(),
                false => 0,
            };
            if known >= answer_tokens {
                continue;
            }
            // Each prompt gets all options, if there are enough answers.
            let seeded = seeded.get((number + round) % seeded.len().max(1)).copied();
            let request = self.request(number, seeded, round > 0);
            let answer = self.answer(&self.plain, prompt, &request)?;
            tokens += answer.tokens.len().saturating_sub(known);
            let (text, logprobs) = (answer.tokens, answer.logprobs);
            cases.push(Case { prompt, request, seeded, tokens: text, logprobs });
            meter.update(tokens, wanted);
        }
        Ok(cases)
    }

    /// Returns the request of the answer with this number, which is greedy or has these options. If
    /// it `goes_on`, it ignores the model's end-of-sequence tokens, without which a grammar has no
    /// end.
    fn request(&self, number: usize, seeded: Option<SeededOptions>, goes_on: bool) -> Request {
        let request = Request {
            max_tokens: self.options.answer_tokens,
            logprobs: Some(Request::MAX_LOGPROBS),
            ignore_eos: goes_on,
            ..Request::default()
        };
        let Some(seeded) = seeded else { return request };
        let grammar = seeded.grammar();
        Request {
            sampling: seeded.sampling(self.options.temperature),
            ignore_eos: goes_on && grammar.is_none(),
            grammar,
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
            false if answer.tokens.is_empty() => {
                Err(CertifyError::EmptyAnswer { prompt: prompt + 1 })
            }
            false => Ok(answer),
        }
    }

    /// Compares a subject's answers with those of plain decoding, up to the first difference.
    fn compare(
        &self,
        subject: &dyn Subject,
        cases: &[Case],
        meter: &mut Meter<'_>,
    ) -> Result<Comparison, CertifyError> {
        let mut comparison = Comparison::default();
        for (index, case) in cases.iter().enumerate() {
            meter.update(index, cases.len());
            let answer = self.answer(subject, case.prompt, &case.request)?;
            comparison.drafts.count(&answer.statistics);
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

    /// Samples answers whose text depends on the drafts, and tests their tokens against the
    /// target's distributions. If the method verifies whole drafts, every second answer is verified
    /// in blocks.
    fn sampled(
        &self,
        subject: &dyn Subject,
        meter: &mut Meter<'_>,
    ) -> Result<SamplingVerdict, CertifyError> {
        meter.measure(Part::Sampled, |meter| self.sample(subject, meter))
    }

    fn sample(
        &self,
        subject: &dyn Subject,
        meter: &mut Meter<'_>,
    ) -> Result<SamplingVerdict, CertifyError> {
        // With a top-k of the reported log-probabilities, these are the whole distribution.
        let sampling = SamplingOptions {
            temperature: self.options.temperature,
            top_k: Request::MAX_LOGPROBS,
            ..SamplingOptions::default()
        };
        let (mut test, mut drafts) = (SamplingTest::default(), Drafts::default());
        let mut answers = 0_u32;
        let uniforms = KeyedRandomness { seed: self.options.seed, sample: u32::MAX };
        let in_blocks = subject.verifies_whole_drafts();
        let mut tokens = 0;
        while tokens < self.options.sampled_tokens {
            let is_short = !answers.is_multiple_of(SHORT_ANSWERS + 1);
            let verification = match in_blocks && answers.is_multiple_of(2) {
                true => Verification::Block,
                false => Verification::Rejection,
            };
            // Both rules answer each prompt.
            let pair = answers as usize / 2;
            let prompts = self.options.prompts.len();
            let prompt = pair % if is_short { prompts.min(REPEATED_PROMPTS) } else { prompts };
            let request = Request {
                ignore_eos: pair >= prompts,
                sampling: sampling.clone(),
                seed: Some(self.options.seed.wrapping_add((1 << 32) + u64::from(answers))),
                verification: VerificationChoice::Always(verification),
                max_tokens: match is_short {
                    true => self.options.answer_tokens.min(COUNTED_TOKENS),
                    false => self.options.answer_tokens,
                },
                logprobs: Some(Request::MAX_LOGPROBS),
                ..Request::default()
            };
            answers += 1;
            let answer = self.answer(subject, prompt, &request)?;
            drafts.count(&answer.statistics);
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
            meter.update(tokens, self.options.sampled_tokens);
        }
        let result = test.result();
        let plausible = result.probability() >= IMPLAUSIBLE;
        Ok(SamplingVerdict { result, drafts, plausible })
    }
}

/// Returns the probabilities of a row's reported tokens after temperature, and 0 for any other
/// token.
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

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::{Method, RandomPair};
    use forerun_decode::Statistics;
    use std::cell::Cell;
    use std::time::Duration;

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
        let engine = |method: Method| Options {
            model: pair.target().into(),
            draft_model: Some(pair.drafter().into()),
            method: Some(method.into()),
            draft_tokens: forerun::DraftTokens::Fixed(3),
            ..Options::default()
        };
        let plain = engine(Method::Speculative);
        let loader = Loader::new().sharing_weights();
        let certifier = Certifier::open(options(), &plain, loader, Canceller::new()).unwrap();
        let configurations = [plain, engine(Method::Pearl), engine(Method::Dsi)];
        let (mut named, mut last) = (Vec::new(), None);
        let certificate = certifier
            .run(&configurations, |progress| {
                named.push((progress.configuration.to_owned(), progress.done));
                last = progress.left;
            })
            .unwrap();
        assert!(certificate.is_exact(), "{certificate}");
        assert_eq!(certificate.checks.len(), 4);
        named.dedup();
        let numbers: Vec<_> = named.iter().map(|&(_, done)| done).collect();
        assert_eq!(numbers, [0, 1, 2, 3], "{named:?}");
        assert_eq!(last, Some(Duration::ZERO), "nothing is left");
        let known: Vec<_> =
            certificate.outcomes().map(|outcome| outcome.known.verdict().unwrap()).collect();
        assert!(known.iter().all(|known| known.answers() >= 400), "{known:?}");
        assert_eq!(
            (known[0].groups.len(), known[0].groups[0].drafts.drafted),
            (1, 0),
            "plain decoding"
        );
        for known in &known[1..] {
            assert_eq!(known.groups.len(), 2, "with a seed and without one");
            assert!(known.passes(), "{known:?}");
        }
        let page = certificate.to_string();
        assert!(page.contains("equal") && page.contains("known distributions"), "{page}");
        assert!(page.contains("covered: 4 configurations, with "), "{page}");
        let json = serde_json::to_string(&certificate).unwrap();
        assert!(serde_json::from_str::<Certificate>(&json).unwrap().is_exact());
    }

    /// An engine's answers, with these statistics.
    struct Counted<'a>(&'a Engine, Statistics, Cell<usize>);

    impl Subject for Counted<'_> {
        fn answer(
            &self,
            prompt: &str,
            request: &Request,
            canceller: &Canceller,
        ) -> Result<SubjectAnswer, ForerunError> {
            self.2.set(self.2.get() + 1);
            let answer = Subject::answer(self.0, prompt, request, canceller)?;
            Ok(SubjectAnswer { statistics: self.1.clone(), ..answer })
        }

        fn verifies_whole_drafts(&self) -> bool {
            true
        }
    }

    #[test]
    fn equal_text_without_drafts_or_with_a_failed_drafter_is_not_certified() {
        let pair = RandomPair::make().unwrap();
        let engine = Options { model: pair.target().into(), ..Options::default() };
        let loader = Loader::new().sharing_weights();
        let certifier = Certifier::open(options(), &engine, loader, Canceller::new()).unwrap();
        let plain = certifier.plain_answers().unwrap();
        let check = |tested, accepted, failures: &[&str]| {
            let statistics = Statistics {
                tested: vec![tested],
                accepted: vec![accepted],
                failures: failures.iter().map(|&failure| failure.to_owned()).collect(),
                ..Statistics::default()
            };
            let subject = Counted(&certifier.plain, statistics, Cell::default());
            let outcome = certifier.check(&subject, &plain).unwrap();
            assert!(outcome.is_exact() && subject.2.get() > 0);
            let result = CheckResult::Compared(Box::new(outcome.clone()));
            let check = |configuration: &str| Check {
                configuration: configuration.into(),
                result: result.clone(),
            };
            let certificate = Certificate {
                version: String::new(),
                model: String::new(),
                draft_model: None,
                instruction_set: String::new(),
                gpu_arithmetic: None,
                prompts: 3,
                tokens: 60,
                sampled_tokens: 60,
                answer_tokens: 30,
                known_answers: 400,
                temperature: 0.8,
                checks: vec![check("first"), check("second")],
            };
            assert_eq!(certificate.is_certified(), outcome.is_certified());
            (outcome.is_certified(), certificate.to_string())
        };
        let (certified, page) = check(100, 90, &[]);
        assert!(certified && page.contains("exact: all 2"), "{page}");
        let (certified, page) = check(0, 0, &[]);
        assert!(!certified && page.contains("greedy answers: drafted only 0 tokens"), "{page}");
        assert!(page.contains("NOT CERTIFIED: 2 of 2"), "{page}");
        let (certified, page) = check(100, 0, &[]);
        assert!(!certified && page.contains("rejection was tested, acceptance was not"), "{page}");
        let (certified, page) = check(100, 90, &["drafter 0 failed: it is tired"]);
        assert!(!certified && page.contains("FAILED    drafter 0 failed: it is tired"), "{page}");
        assert!(page.contains("FAILED: a drafter failed in 2 of 2"), "{page}");
    }

    /// Answers go on after the model's end until there are enough tokens; of greedy ones there may
    /// be no more.
    #[test]
    fn short_answers_are_continued() {
        let pair = RandomPair::make().unwrap();
        let ends = |options: CertifyOptions| {
            let engine = Options { model: pair.target().into(), ..Options::default() };
            let loader = Loader::new().sharing_weights();
            let certifier = Certifier::open(options, &engine, loader, Canceller::new()).unwrap();
            let PlainAnswers { greedy, seeded } = certifier.plain_answers().unwrap();
            [greedy, seeded].map(|cases| {
                let tokens: usize = cases.iter().map(|case| case.tokens.len()).sum();
                (tokens, cases.iter().any(|case| case.request.ignore_eos))
            })
        };
        let [greedy, seeded] = ends(CertifyOptions { tokens: 500, ..options() });
        assert!(greedy.0 <= 2 * 90 && seeded.0 >= 500, "{greedy:?}, {seeded:?}");
        assert!(seeded.1, "later answers ignore the model's end");
        let [greedy, seeded] = ends(options());
        assert!(greedy.0 >= 60 && seeded.0 >= 60 && !greedy.1, "{greedy:?}, {seeded:?}");
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

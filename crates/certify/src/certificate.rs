//! What was compared, and what came out.

use crate::drafts::Drafts;
use crate::known_check::{KnownGroup, KnownVerdict};
use crate::sampling_test::SamplingResult;
use crate::seeded_options::SeededOptions;
use forerun::TokenId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of a [`Certifier`](crate::Certifier).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certificate {
    /// The version of forerun.
    pub version: String,
    /// The target.
    pub model: String,
    /// The drafter's checkpoint, if there is one.
    pub draft_model: Option<String>,
    /// The instructions of the processor that the kernels used.
    pub instruction_set: String,
    /// The arithmetic of the target's GPU, if it has one.
    pub gpu_arithmetic: Option<String>,
    /// The number of prompts that have greedy or seeded answers.
    pub prompts: usize,
    /// The number of tokens to compare in each way. Greedy answers may have fewer.
    pub tokens: usize,
    /// The number of tokens of rejection sampling and block verification to test.
    pub sampled_tokens: usize,
    /// The maximum number of tokens of an answer.
    pub answer_tokens: usize,
    /// The number of answers of known models to count for each rule of verification.
    pub known_answers: usize,
    /// The temperature of seeded answers, rejection sampling and block verification.
    pub temperature: f32,
    /// The result of each configuration. The first one is plain decoding, whose samples are tested,
    /// too.
    pub checks: Vec<Check>,
}

/// The result of one configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The method, with its drafter and drafts.
    pub configuration: String,
    /// What came out.
    pub result: CheckResult,
}

/// What came out of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    /// The configuration ran.
    Compared(Box<Outcome>),
    /// The configuration cannot run here, for this reason.
    Skipped(String),
}

/// What came out of a configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Greedy answers, compared with those of plain decoding. `None` for plain decoding itself.
    pub greedy: Option<Comparison>,
    /// Sampled answers with seeds, compared with those of plain decoding. `None` for plain decoding
    /// itself.
    pub seeded: Option<Comparison>,
    /// Answers of rejection sampling and block verification, tested against plain decoding's
    /// distributions.
    pub sampled: SamplingVerdict,
    /// Answers of the same configuration with known models, tested against their exact
    /// probabilities.
    pub known: KnownResult,
    /// Whether the configuration drafts.
    pub drafts: bool,
}

/// What came of answers of known models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownResult {
    /// They were counted.
    Counted(KnownVerdict),
    /// They were not counted, for this reason.
    Skipped(String),
}

impl KnownResult {
    /// Returns the verdict, if answers were counted.
    #[must_use]
    pub fn verdict(&self) -> Option<&KnownVerdict> {
        match self {
            Self::Counted(verdict) => Some(verdict),
            Self::Skipped(_) => None,
        }
    }
}

/// A comparison with plain decoding.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Comparison {
    /// The number of compared tokens.
    pub tokens: usize,
    /// What became of the drafts.
    #[serde(flatten)]
    pub drafts: Drafts,
    /// The number of log-probabilities whose bits were compared.
    pub logprobs: usize,
    /// The first difference, if there is one.
    pub divergence: Option<Divergence>,
}

/// The first difference between an answer and that of plain decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The index of the prompt, from 0.
    pub prompt: usize,
    /// The seed of both answers, if they were sampled.
    pub seed: Option<u64>,
    /// The sampling options of both answers, if they were sampled.
    pub options: Option<SeededOptions>,
    /// The position in the answer, from 0.
    pub position: usize,
    /// The token of plain decoding and that of the method; `None` after the end of an answer.
    pub tokens: [Option<TokenId>; 2],
    /// By how much the two tokens' log-probabilities differ in plain decoding, in nats, if both are
    /// known.
    pub gap_nats: Option<f64>,
    /// The cause.
    pub cause: Cause,
}

/// Why an answer differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The target computed other logits for the same tokens: its bits depend on the rows of a pass.
    Logits,
    /// The logits are the same, but another token was chosen: verification is wrong.
    Verification,
}

/// The verdict on sampled tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingVerdict {
    /// The result of the tests.
    pub result: SamplingResult,
    /// What became of the drafts.
    #[serde(flatten)]
    pub drafts: Drafts,
    /// Whether the tokens could come from the distributions: the tests' probability is at least
    /// 10⁻⁶.
    pub plausible: bool,
}

/// The probability below which chance is no explanation.
pub(crate) const IMPLAUSIBLE: f64 = 1e-6;

impl Outcome {
    /// Returns whether no text and no sample speaks against the configuration.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let equal = |comparison: &Option<Comparison>| {
            comparison.as_ref().is_none_or(|comparison| comparison.divergence.is_none())
        };
        let known = self.known.verdict().is_none_or(|known| known.plausible);
        equal(&self.greedy) && equal(&self.seeded) && self.sampled.plausible && known
    }

    /// Returns whether the configuration is exact, no drafter failed, and enough was drafted to say
    /// so.
    #[must_use]
    pub fn is_certified(&self) -> bool {
        self.is_exact() && self.failures().is_empty() && self.shortfalls().is_empty()
    }

    /// Returns the drafters and replicas that failed, and why, once each.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut all = Drafts::default();
        self.all_drafts().iter().for_each(|(_, drafts)| all.add(drafts));
        all.failures
    }

    /// Returns which answers of an exact configuration drafted or accepted too few tokens to
    /// certify anything.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<String> {
        if !self.drafts || !self.is_exact() {
            return Vec::new();
        }
        let drafts = self.all_drafts().into_iter();
        let shortfall =
            |(answers, drafts): (_, &Drafts)| Some(format!("{answers}: {}", drafts.shortfall()?));
        drafts.filter_map(shortfall).collect()
    }

    /// Returns the drafts of all answers, with what these are.
    fn all_drafts(&self) -> Vec<(String, &Drafts)> {
        let compared = [("greedy answers", &self.greedy), ("seeded answers", &self.seeded)];
        let compared = compared.into_iter().filter_map(|(answers, comparison)| {
            Some((answers.to_owned(), &comparison.as_ref()?.drafts))
        });
        let groups = self.known.verdict().map_or(&[][..], |known| &known.groups);
        let known =
            groups.iter().map(|group| (format!("known models, {}", group.decoders), &group.drafts));
        let sampled = ("sampled answers".to_owned(), &self.sampled.drafts);
        compared.chain([sampled]).chain(known).collect()
    }
}

impl Certificate {
    /// Returns whether nothing speaks against any configuration that ran.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.outcomes().all(Outcome::is_exact)
    }

    /// Returns whether at least one configuration besides plain decoding ran, and all that ran are
    /// certified.
    #[must_use]
    pub fn is_certified(&self) -> bool {
        self.outcomes().count() > 1 && self.outcomes().all(Outcome::is_certified)
    }

    /// Returns what came out of the configurations that ran.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.checks.iter().filter_map(|check| match &check.result {
            CheckResult::Compared(outcome) => Some(&**outcome),
            CheckResult::Skipped(_) => None,
        })
    }

    /// Returns the number of tokens of all greedy answers, if there are fewer than requested.
    fn too_few_tokens(&self) -> Option<usize> {
        let greedy = self.outcomes().filter_map(|outcome| outcome.greedy.as_ref());
        let equal = greedy.filter(|comparison| comparison.divergence.is_none());
        equal.map(|comparison| comparison.tokens).find(|&tokens| tokens < self.tokens)
    }

    /// Returns what was covered.
    fn scope(&self) -> String {
        let Self {
            prompts, tokens, sampled_tokens, answer_tokens, known_answers, temperature, ..
        } = self;
        format!(
            "covered: {} configurations, with {prompts} prompts and answers of up to \
             {answer_tokens} tokens: {tokens} tokens at temperature 0, {tokens} with seeds and \
             {sampled_tokens} sampled ones at temperature {temperature}, and {known_answers} \
             answers of known models by each rule of verification",
            self.outcomes().count()
        )
    }

    /// Returns the last line: what the certificate says of all configurations together.
    fn verdict(&self) -> String {
        let ran = self.outcomes().count();
        let failed = self.outcomes().filter(|outcome| !outcome.failures().is_empty()).count();
        let short = self.outcomes().filter(|outcome| !outcome.shortfalls().is_empty()).count();
        if !self.is_exact() {
            return "NOT EXACT: see above. Please report it".into();
        }
        if failed > 0 {
            return format!(
                "FAILED: a drafter failed in {failed} of {ran} configurations, see above. Please report it"
            );
        }
        if short > 0 {
            return format!(
                "NOT CERTIFIED: {short} of {ran} configurations drafted or accepted too few tokens, see above. No text differs. \
                 Try --full, larger --tokens and --sampled-tokens, other --prompts, or another drafter"
            );
        }
        match ran {
            0 | 1 => "NOT CERTIFIED: nothing ran but plain decoding".into(),
            _ => format!("exact: all {ran} configurations that ran give plain decoding's text"),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |token: Option<TokenId>| {
            token.map_or("the end".to_owned(), |token| format!("token {token}"))
        };
        write!(f, "prompt {}", self.prompt + 1)?;
        if let (Some(seed), Some(options)) = (self.seed, self.options) {
            write!(f, " (seed {seed}, {options})")?;
        }
        let [plain, other] = self.tokens;
        write!(f, ", position {}: {} instead of {}", self.position, token(other), token(plain))?;
        if let Some(gap) = self.gap_nats {
            write!(f, ", {gap:.2e} nats apart")?;
        }
        f.write_str(match self.cause {
            Cause::Logits => "; the target's logits differ",
            Cause::Verification => "; the logits are equal, so verification chose wrongly",
        })
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "forerun {}, {}{}, {}{}",
            self.version,
            self.model,
            self.draft_model.as_ref().map_or(String::new(), |drafter| format!(" with {drafter}")),
            self.instruction_set,
            self.gpu_arithmetic.as_ref().map_or(String::new(), |of_gpu| format!(", {of_gpu}")),
        )?;
        writeln!(
            f,
            "Draft lengths are fixed, and drafting never pauses: what is not drafted is not checked."
        )?;
        if let Some(tokens) = self.too_few_tokens() {
            writeln!(
                f,
                "All greedy answers together have only {tokens} of {} tokens: give more --prompts, or a larger \
                 --max-tokens.",
                self.tokens
            )?;
        }
        for check in &self.checks {
            writeln!(f, "\n{}", check.configuration)?;
            match &check.result {
                CheckResult::Skipped(reason) => writeln!(f, "  not checked: {reason}")?,
                CheckResult::Compared(outcome) => outcome.write(f)?,
            }
        }
        writeln!(f, "\n{}", self.scope())?;
        f.write_str(&self.verdict())
    }
}

impl Outcome {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, comparison) in [("greedy", &self.greedy), ("seeded", &self.seeded)] {
            let Some(comparison) = comparison else { continue };
            let Comparison { tokens, drafts, logprobs, divergence } = comparison;
            write!(f, "  {name:<9} {tokens} tokens, {drafts}")?;
            match divergence {
                None => writeln!(f, ": equal, with {logprobs} log-probabilities bit by bit")?,
                Some(divergence) => writeln!(f, ": DIFFERENT at {divergence}")?,
            }
        }
        let SamplingVerdict { result, drafts, plausible } = &self.sampled;
        write!(f, "  sampled   {} tokens", result.tokens)?;
        if self.drafts {
            write!(f, ", {drafts}")?;
        }
        writeln!(
            f,
            ": {} (p = {:.2}: uniform {:.2}, independent \
             {:.2}, surprise {:.2}, repeated {:.2})",
            if *plausible {
                "from the target's distributions"
            } else {
                "NOT from the target's distributions"
            },
            result.probability(),
            result.uniform,
            result.independent,
            result.surprise,
            result.repeated,
        )?;
        match &self.known {
            KnownResult::Counted(verdict) => verdict.write(f)?,
            KnownResult::Skipped(reason) => writeln!(f, "  known     not counted: {reason}")?,
        }
        for failure in self.failures() {
            writeln!(f, "  FAILED    {failure}")?;
        }
        for shortfall in self.shortfalls() {
            writeln!(f, "  NOT CERTIFIED: {shortfall}")?;
        }
        Ok(())
    }
}

impl KnownVerdict {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("  known     built-in models with known distributions")?;
        for (index, drafter) in self.replaced_drafters.iter().enumerate() {
            f.write_str(if index == 0 { ", one of them in place of " } else { " and " })?;
            f.write_str(drafter)?;
        }
        for KnownGroup { decoders, answers, tokens, drafts } in &self.groups {
            write!(f, "; {decoders}, {answers} answers, {tokens} tokens")?;
            if self.drafts {
                write!(f, ", {drafts}")?;
            }
        }
        let Self { probability, farthest, .. } = self;
        match self.plausible {
            true if *probability < 0.01 => {
                writeln!(f, ": as often as expected (p ≤ {probability:.0e})")
            }
            true => writeln!(f, ": as often as expected (p ≤ {probability:.2})"),
            false => writeln!(f, ": NOT as often as expected (p ≤ {probability:.0e}: {farthest})"),
        }
    }
}

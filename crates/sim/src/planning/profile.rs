//! Profiles of hardware: the costs of passes and the acceptance of drafters, as a TOML file.

use super::PlannedDraft;
use crate::{AcceptanceModel, MeasuredPasses, SimError};
use forerun_decode::DraftPattern;
use forerun_runtime::Pace;
use serde::Deserialize;
use std::fmt;

/// Where a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// All numbers were measured on the hardware.
    Measured,
    /// At least one number was estimated.
    Estimated,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
        })
    }
}

/// What passes cost on some hardware, and where drafters agree with the target.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HardwareProfile {
    /// Where the numbers come from.
    pub source: Source,
    /// The hardware, in words.
    pub hardware: String,
    /// The target's checkpoint, as options name it. Empty: the built-in demonstration pair.
    #[serde(default)]
    pub model: String,
    /// The type of the weights, as the option `--dtype` names it. None: each checkpoint's own.
    #[serde(default)]
    pub dtype: Option<String>,
    /// The type of cached keys and values, as the option `--kv-type` names it. None: each model's
    /// default.
    #[serde(default)]
    pub kv_type: Option<String>,
    /// The number of threads of automatic placements, as the option `--threads`. None: the default.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Whether threads stayed on their cores in automatic placements too, as with the option
    /// `--pin`.
    #[serde(default)]
    pub pin: bool,
    /// The number of tokens of each answer.
    pub answer_tokens: usize,
    /// The drafters.
    #[serde(default, rename = "drafter")]
    pub drafters: Vec<DrafterRecord>,
    /// The costs in the rhythm of each method, drafter and placement.
    #[serde(rename = "timing")]
    pub timings: Vec<MethodTiming>,
}

/// Where a drafter agrees with the target. One of `acceptance`, `agreement` and `drafts` is given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DrafterRecord {
    /// The kind of drafter, as the option `--drafter` names it.
    pub name: String,
    /// Its checkpoint, if it has one and the pair is not the built-in one.
    #[serde(default)]
    pub model: Option<String>,
    /// The probability that a draft token is the target's, independently of all others.
    #[serde(default)]
    pub acceptance: Option<f64>,
    /// A line for each prompt, a character for each generated token: `1` if the drafter, given the
    /// target's own text so far, proposes it, else `0`.
    #[serde(default)]
    pub agreement: Vec<String>,
    /// For each prompt and generated token, the draft that begins there: its length and its
    /// accepted tokens. For drafters that may propose nothing, and for those whose later tokens are
    /// worse than their first one.
    #[serde(default)]
    pub drafts: Vec<Vec<(usize, usize)>>,
    /// For each prompt and generated token, the ranks of the target's own tokens in a tree that
    /// begins there: by depth, the place of the token among the drafter's candidates after the
    /// target's tokens so far, 0 for the best. They end where the token is not among the first ten
    /// candidates. Empty if no trees are planned.
    #[serde(default)]
    pub ranks: Vec<Vec<Vec<usize>>>,
    /// The largest number of positions that it drafts, if limited.
    #[serde(default)]
    pub positions: Option<usize>,
    /// Whether it drafts all positions in one forward pass.
    #[serde(default)]
    pub one_forward: bool,
    /// Whether it reads the target's hidden states. Then an answer's first round has no draft.
    #[serde(default)]
    pub reads_features: bool,
}

/// The costs of passes while a method decodes with a drafter on a placement.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MethodTiming {
    /// The method, as the option `--method` names it.
    pub method: String,
    /// The name of its drafter; none for plain decoding.
    #[serde(default)]
    pub drafter: Option<String>,
    /// The value of the option `--placement`; none for the automatic placement.
    #[serde(default)]
    pub placement: Option<String>,
    /// The cores that it was measured on, in the form of a placement. None: unknown.
    #[serde(default)]
    pub cores: Option<String>,
    /// Whether drafts are trees.
    #[serde(default)]
    pub tree: bool,
    /// The number of target replicas.
    #[serde(default = "one")]
    pub replicas: usize,
    /// The time from the end of a job to the next one's start, halved, in milliseconds. It includes
    /// verification, commits, text and messages.
    pub link_ms: f64,
    /// The measured time of answers divided by the simulated one, by draft length in ascending
    /// order; of trees, by their number of nodes. Sizes between them are interpolated. Empty: 1.
    #[serde(default)]
    pub scale: Vec<(usize, f64)>,
    /// The same if the size is chosen while decoding. None: that of the smallest drafts.
    #[serde(default)]
    pub auto_scale: Option<f64>,
    /// The passes of the target.
    pub target: MeasuredPasses,
    /// The passes of the drafter, if there is one.
    #[serde(default, rename = "draft")]
    pub drafter_passes: Option<MeasuredPasses>,
}

fn one() -> usize {
    1
}

/// The number of texts that stand for a given acceptance.
const IID_TEXTS: usize = 8;

impl DrafterRecord {
    /// Returns the acceptance of each text, for chains or for trees.
    #[must_use]
    pub fn texts(&self, of_trees: bool) -> Vec<AcceptanceModel> {
        if of_trees && !self.ranks.is_empty() {
            let nothing = Vec::new();
            let draft = |(at, ranks): (usize, &Vec<usize>), drafts: &Vec<(usize, usize)>| {
                let is_empty = drafts.get(at).is_some_and(|&(length, _)| length == 0);
                (!is_empty).then(|| ranks.clone())
            };
            let text = |(text, ranks): (usize, &Vec<Vec<usize>>)| {
                let drafts = self.drafts.get(text).unwrap_or(&nothing);
                let drafts = ranks.iter().enumerate().map(|entry| draft(entry, drafts));
                AcceptanceModel::Ranks(drafts.collect())
            };
            return self.ranks.iter().enumerate().map(text).collect();
        }
        if !self.drafts.is_empty() {
            return self.drafts.iter().cloned().map(AcceptanceModel::Drafts).collect();
        }
        if let Some(acceptance) = self.acceptance {
            return vec![AcceptanceModel::Iid(acceptance); IID_TEXTS];
        }
        let line = |line: &String| {
            AcceptanceModel::Recorded(line.bytes().map(|byte| byte == b'1').collect())
        };
        self.agreement.iter().map(line).collect()
    }

    /// Returns these drafts without chains that are as long as another one, because it drafts no
    /// more positions.
    #[must_use]
    pub fn distinct(&self, drafts: &[PlannedDraft]) -> Vec<PlannedDraft> {
        let Some(positions) = self.positions else { return drafts.to_vec() };
        let full = |draft: &PlannedDraft| match draft {
            PlannedDraft::Chain(length) => Some(*length).filter(|&length| length >= positions),
            _ => None,
        };
        let shortest = drafts.iter().filter_map(full).min();
        drafts
            .iter()
            .copied()
            .filter(|draft| full(draft).is_none_or(|length| Some(length) == shortest))
            .collect()
    }

    /// Returns what it can draft in a forward pass.
    pub(super) fn pattern(&self) -> DraftPattern {
        DraftPattern {
            positions: self.positions,
            one_forward: self.one_forward,
            ..DraftPattern::default()
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.positions == Some(0) {
            return Err(format!(
                "positions of the drafter {:?} is 0, but must be at least 1",
                self.name
            ));
        }
        let given = usize::from(self.acceptance.is_some())
            + usize::from(!self.agreement.is_empty())
            + usize::from(!self.drafts.is_empty());
        if given != 1 {
            return Err(format!(
                "the drafter {:?} has {given} of acceptance, agreement and drafts, but needs one",
                self.name
            ));
        }
        if let Some(acceptance) = self.acceptance.filter(|value| !(0.0..=1.0).contains(value)) {
            return Err(format!("acceptance is {acceptance}, but must be from 0 to 1"));
        }
        let is_record = |line: &String| {
            !line.is_empty() && line.bytes().all(|byte| matches!(byte, b'0' | b'1'))
        };
        if !self.agreement.iter().all(is_record) {
            return Err("agreement must have one line of 0s and 1s for each prompt".into());
        }
        match self.drafts.iter().flatten().find(|(length, accepted)| accepted > length) {
            Some((length, accepted)) => {
                Err(format!("a draft of {length} tokens cannot have {accepted} accepted ones"))
            }
            None => Ok(()),
        }
    }
}

impl MethodTiming {
    fn check(&self, drafters: &[DrafterRecord]) -> Result<(), String> {
        let Self { method, drafter, .. } = self;
        let known = forerun_decode::METHODS.iter().find(|entry| entry.name == method);
        let entry = known.ok_or_else(|| format!("there is no method {method:?}"))?;
        let drafts = entry.drafting != forerun_decode::Drafting::None;
        if drafts != drafter.is_some() || drafts != self.drafter_passes.is_some() {
            let needs = if drafts { "needs" } else { "must not have" };
            return Err(format!(
                "the timing of the method {method} {needs} `drafter` and `[timing.draft]`"
            ));
        }
        let record = |name: &String| drafters.iter().find(|drafter| drafter.name == *name);
        let record = match drafter {
            Some(name) => Some(
                record(name)
                    .ok_or_else(|| format!("there is no [[drafter]] with the name {name:?}"))?,
            ),
            None => None,
        };
        let has_trees =
            record.is_some_and(|record| !record.ranks.is_empty() || record.acceptance.is_some());
        if self.tree && (method != "speculative" || !has_trees) {
            return Err(format!(
                "the timing of the method {method} has `tree`, which needs the method speculative and a drafter \
                 with `ranks`"
            ));
        }
        if self.replicas == 0 || self.replicas > 1024 {
            return Err(format!("replicas is {}, but must be from 1 to 1024", self.replicas));
        }
        let is_scale = |scale: &f64| scale.is_finite() && *scale > 0.0;
        if let Some(scale) = self.auto_scale.filter(|scale| !is_scale(scale)) {
            return Err(format!("auto-scale is {scale}, but must be above 0"));
        }
        let in_order = self.scale.is_sorted_by(|a, b| a.0 < b.0);
        if !in_order || !self.scale.iter().all(|(_, scale)| is_scale(scale)) {
            let expected = "pairs of draft lengths, in ascending order, and numbers above 0";
            return Err(format!("scale is {:?}, but must be {expected}", self.scale));
        }
        let costs = self.costs().map_err(|error| error.to_string())?;
        match [costs.0.layers, costs.1.map_or(1, |cost| cost.layers)].contains(&0) {
            true => Err("layers is 0, but must be at least 1".into()),
            false => Ok(()),
        }
    }

    /// Returns whether its answers have such drafts.
    pub(super) fn has(&self, draft: PlannedDraft) -> bool {
        // Pauses change which cores do what in methods that draft and verify at the same time. What
        // that costs is known only of measured answers.
        let is_known = match draft.is_auto() {
            true => self.method == "speculative" || self.auto_scale.is_some(),
            false => self.method != "auto" || !self.scale.is_empty(),
        };
        draft.is_tree() == self.tree && is_known
    }

    /// Returns the measured time of answers with these drafts, divided by the simulated one.
    pub(super) fn scale_of(&self, draft: PlannedDraft) -> f64 {
        match draft.size() {
            Some(size) => self.scale_at(size),
            None => self.auto_scale.unwrap_or_else(|| self.scale_at(0)),
        }
    }

    fn scale_at(&self, length: usize) -> f64 {
        let above = self.scale.iter().position(|(at, _)| *at >= length);
        match (above, &self.scale[..]) {
            (_, []) => 1.0,
            (Some(0), [first, ..]) => first.1,
            (None, [.., last]) => last.1,
            (Some(index), all) => {
                let (low, high) = (all[index - 1], all[index]);
                let part = (length - low.0) as f64 / (high.0 - low.0) as f64;
                low.1 + part * (high.1 - low.1)
            }
        }
    }

    /// Returns the costs of the target and of the drafter.
    pub(super) fn costs(&self) -> Result<(crate::Cost, Option<crate::Cost>), SimError> {
        let link_ns = crate::calibration::ns("link-ms", self.link_ms)?;
        let drafter =
            self.drafter_passes.as_ref().map(|passes| passes.cost(link_ns)).transpose()?;
        Ok((self.target.cost(link_ns)?, drafter))
    }
}

impl HardwareProfile {
    /// Returns the pass times of each timing, for paced devices. They have the names of the methods,
    /// with a number from the second one of a method on.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn paces(&self) -> Result<Vec<Pace>, SimError> {
        let mut paces: Vec<Pace> = Vec::new();
        for timing in &self.timings {
            let (target, drafter) = timing.costs()?;
            let before = self.timings.iter().take(paces.len());
            let name = match before.filter(|other| other.method == timing.method).count() {
                0 => timing.method.clone(),
                count => format!("{}-{}", timing.method, count + 1),
            };
            let drafter = drafter.map(|cost| cost.pass_times());
            paces.push(Pace { name, target: target.pass_times(), drafter });
        }
        Ok(paces)
    }

    /// Parses the text of a profile.
    ///
    /// # Errors
    /// If the text is not valid TOML, a value is missing or out of range, or there is no timing of
    /// plain decoding.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if read.answer_tokens < 2 || read.answer_tokens > 1_000_000 {
            let found = read.answer_tokens;
            return Err(format!("answer-tokens is {found}, but must be from 2 to 1000000"));
        }
        read.drafters.iter().try_for_each(DrafterRecord::check)?;
        read.timings.iter().try_for_each(|timing| timing.check(&read.drafters))?;
        match read.timings.iter().any(|timing| timing.drafter.is_none()) {
            true => Ok(read),
            false => Err("there is no [[timing]] of the method autoregressive".into()),
        }
    }
}

//! Sweeps: the options to compare, each with one value or several.

use crate::{BenchError, PeerSpec, pacing};
use forerun::checkpoint::UnknownWeightType;
use forerun::{
    AdditionalDrafter, CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Lookup, Method,
    ModelSource, PearlOptions, Placement, Tree, WeightTypes,
};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Lists of option values. Every combination of values is a configuration. An empty list stands for
/// the default value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// The decoding methods. Autoregressive decoding is always added. Default: speculative.
    pub methods: Vec<Method>,
    /// The drafters. Default: the drafter that each draft model was trained for, or prompt lookup
    /// if there is no draft model.
    pub drafters: Vec<DrafterKind>,
    /// The draft models. Each is combined with the drafters that can use it. Default: the common
    /// draft model of all sweeps.
    pub draft_models: Vec<ModelSource>,
    /// The additional drafters of each configuration whose method takes several.
    pub additional_drafters: Vec<AdditionalDrafter>,
    /// The lookups of earlier text in addition to each drafter; ignored by methods that have none.
    pub lookups: Vec<Lookup>,
    /// The draft lengths.
    pub draft_tokens: Vec<DraftTokens>,
    /// The tree shapes of drafts.
    pub trees: Vec<Tree>,
    /// The options of PEARL; ignored by other methods.
    pub pearl: Vec<PearlOptions>,
    /// The placements of drafter and target on cores, as in the options of a plan.
    pub placements: Vec<Placement>,
    /// The weight types, each with its own baseline. `None` keeps the type of each checkpoint.
    pub weight_types: Vec<Option<WeightTypes>>,
    /// The layers that EasySpec's drafter computes at the same time; ignored by other drafters.
    pub layers: Vec<LayerStrategy>,
    /// The calibration policies of EasySpec's drafter.
    pub calibrations: Vec<CalibrationPolicy>,
    /// The temperatures, each with its own baseline. Default: 0.
    pub temperatures: Vec<f32>,
}

/// The sweeps and peers of a TOML file, such as
///
/// ```toml
/// model = "target"
/// draft-model = "drafter"
///
/// [[sweep]]
/// draft-tokens = [1, 2, 4, "auto"]
///
/// [[sweep]]
/// drafter = "easyspec"
/// lp = [1, 2, 4]
/// layer-groups = "0,1-5,6"
/// calibration = ["every-round", "never"]
///
/// [[sweep]]
/// drafter = "prompt-lookup"
/// dtype = ["bf16", "int8"]
///
/// [[sweep]]
/// draft-model = ["heads", "other-heads"]
/// temperature = [0, 1]
///
/// [[peer]]
/// name = "llama.cpp"
/// command = ["build/llama_peer", "-m", "target-q8_0.gguf", "-md", "drafter-q8_0.gguf"]
/// dtype = "int8"
/// drafter = ["none", "model", "prompt-lookup"]
/// draft-tokens = 4
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepFile {
    /// The checkpoint of the target.
    pub model: Option<ModelSource>,
    /// The draft models of sweeps that name none.
    pub draft_models: Vec<ModelSource>,
    /// The sweeps. Each stands for all combinations of its values.
    pub sweeps: Vec<Sweep>,
    /// Other engines to compare with.
    pub peers: Vec<PeerSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    model: Option<PathBuf>,
    #[serde(default)]
    draft_model: Values,
    #[serde(default)]
    sweep: Vec<RawSweep>,
    #[serde(default)]
    peer: Vec<RawPeer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPeer {
    name: String,
    command: Vec<String>,
    dtype: Option<String>,
    #[serde(default)]
    drafter: Values,
    #[serde(default)]
    draft_tokens: Values,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[derive(Default)]
struct RawSweep {
    method: Values,
    drafter: Values,
    draft_model: Values,
    also_draft: Values,
    lookup: Values,
    draft_tokens: Values,
    tree: Values,
    pearl: Values,
    placement: Values,
    dtype: Values,
    lp: Values,
    layer_groups: Values,
    calibration: Values,
    temperature: Values,
}

/// A value or a list of values.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(Value),
    Many(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u32),
    Fraction(f64),
    Text(String),
}

impl Default for Values {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Values {
    fn texts(&self) -> Vec<String> {
        let text = |value: &Value| match value {
            Value::Number(number) => number.to_string(),
            Value::Fraction(number) => number.to_string(),
            Value::Text(text) => text.clone(),
        };
        match self {
            Self::One(value) => vec![text(value)],
            Self::Many(values) => values.iter().map(text).collect(),
        }
    }

    fn models(&self) -> Vec<ModelSource> {
        self.texts().into_iter().map(ModelSource::from).collect()
    }

    fn parsed<T: FromStr<Err: ToString>>(&self, option: &str) -> Result<Vec<T>, String> {
        let parse = |text: &String| {
            text.parse().map_err(|error: T::Err| format!("{option}: {}", error.to_string()))
        };
        self.texts().iter().map(parse).collect()
    }
}

impl SweepFile {
    /// Reads a sweep file.
    ///
    /// # Errors
    /// If the file cannot be read, or has an unknown option or an invalid value.
    pub fn read(file: &Path) -> Result<Self, BenchError> {
        let text = fs::read_to_string(file)
            .map_err(|cause| BenchError::Read { file: file.to_owned(), cause })?;
        text.parse().map_err(|reason| BenchError::Sweep { file: file.to_owned(), reason })
    }
}

impl FromStr for SweepFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let raw: RawFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let sweeps = raw.sweep.iter().map(RawSweep::parsed).collect::<Result<_, _>>()?;
        let peers = raw.peer.iter().map(RawPeer::parsed).collect::<Result<_, _>>()?;
        Ok(Self {
            model: raw.model.map(Into::into),
            draft_models: raw.draft_model.models(),
            sweeps,
            peers,
        })
    }
}

/// Parses a weight type; `auto` is `None`.
fn weight_type(text: &str) -> Result<Option<WeightTypes>, String> {
    match text {
        "auto" => Ok(None),
        _ => {
            text.parse().map(Some).map_err(|unknown: UnknownWeightType| format!("dtype: {unknown}"))
        }
    }
}

impl RawPeer {
    fn parsed(&self) -> Result<PeerSpec, String> {
        let drafters: Vec<DrafterKind> = self.drafter.parsed("drafter")?;
        Ok(PeerSpec {
            name: self.name.clone(),
            command: self.command.clone(),
            weight_type: weight_type(self.dtype.as_deref().unwrap_or("auto"))?,
            drafters: if drafters.is_empty() { vec![DrafterKind::None] } else { drafters },
            draft_tokens: self.draft_tokens.parsed("draft-tokens")?,
        })
    }
}

impl RawSweep {
    fn parsed(&self) -> Result<Sweep, String> {
        let parallel = self.lp.parsed::<usize>("lp")?.into_iter().map(LayerStrategy::Parallel);
        let groups = self.layer_groups.parsed::<LayerStrategy>("layer-groups")?;
        Ok(Sweep {
            layers: parallel.chain(groups).collect(),
            calibrations: self.calibration.parsed("calibration")?,
            methods: self.method.parsed("method")?,
            drafters: self.drafter.parsed("drafter")?,
            draft_models: self.draft_model.models(),
            additional_drafters: self.also_draft.parsed("also-draft")?,
            lookups: self.lookup.parsed("lookup")?,
            temperatures: self.temperature.parsed("temperature")?,
            draft_tokens: self.draft_tokens.parsed("draft-tokens")?,
            trees: self.tree.parsed("tree")?,
            pearl: self.pearl.parsed("pearl")?,
            placements: {
                let texts = self.placement.texts();
                let parse = |text: &String| {
                    pacing::placement(text).map_err(|error| format!("placement: {error}"))
                };
                texts.iter().map(parse).collect::<Result<_, _>>()?
            },
            weight_types: {
                self.dtype.texts().iter().map(|text| weight_type(text)).collect::<Result<_, _>>()?
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::WeightType;

    #[test]
    fn single_values_and_lists_are_read() {
        let file: SweepFile = "model = 'a'\n[[sweep]]\ndraft-tokens = [1, 'auto']\ntree = 'top:2x3'\n\
             [[sweep]]\nmethod = 'speculative'\ndrafter = ['prompt-lookup']\ndtype = ['auto', 'int8']\n\
             [[sweep]]\ndrafter = 'easyspec'\nlp = 2\nlayer-groups = ['0,1-2']\ncalibration = 'never'\n\
             [[sweep]]\ndraft-model = ['b', 'c/d']\nlookup = ['none', 'suffix']\nalso-draft = ['prompt-lookup', 'e']\ntemperature = [0, 0.7]"
            .parse()
            .unwrap();
        assert_eq!(file.model, Some("a".into()));
        let first = Sweep {
            draft_tokens: vec![DraftTokens::Fixed(1), DraftTokens::Auto],
            trees: vec!["top:2x3".parse().unwrap()],
            ..Sweep::default()
        };
        let second = Sweep {
            methods: vec![Method::Speculative],
            drafters: vec![DrafterKind::PromptLookup],
            weight_types: vec![None, Some(WeightType::INT8.into())],
            ..Sweep::default()
        };
        let third = Sweep {
            drafters: vec![DrafterKind::EasySpec],
            layers: vec![LayerStrategy::Parallel(2), "0,1-2".parse().unwrap()],
            calibrations: vec![CalibrationPolicy::Never],
            ..Sweep::default()
        };
        let fourth = Sweep {
            draft_models: vec!["b".into(), "c/d".into()],
            additional_drafters: vec![
                AdditionalDrafter::Tokens(DrafterKind::PromptLookup),
                AdditionalDrafter::Model("e".into()),
            ],
            lookups: vec![Lookup::None, Lookup::Suffix],
            temperatures: vec![0.0, 0.7],
            ..Sweep::default()
        };
        assert_eq!(file.sweeps, [first, second, third, fourth]);
        assert!(file.peers.is_empty() && file.draft_models.is_empty());
        let file: SweepFile = "draft-model = 'd'".parse().unwrap();
        assert_eq!(file.draft_models, [ModelSource::from("d")]);
        let file: SweepFile = "draft-model = ['d', 'e']".parse().unwrap();
        assert_eq!(file.draft_models, [ModelSource::from("d"), "e".into()]);
        let text = "[[peer]]\nname = 'p'\ncommand = ['run', '-x']\ndtype = 'int8'\ndrafter = ['none', \
                    'model']\ndraft-tokens = 4\n[[peer]]\nname = 'q'\ncommand = ['q']";
        let file: SweepFile = text.parse().unwrap();
        let peer = PeerSpec {
            name: "p".into(),
            command: vec!["run".into(), "-x".into()],
            weight_type: Some(WeightType::INT8.into()),
            drafters: vec![DrafterKind::None, DrafterKind::Model],
            draft_tokens: vec![4],
        };
        assert_eq!(file.peers[0], peer);
        assert_eq!(file.peers[1].drafters, [DrafterKind::None]);
    }

    #[test]
    fn unknown_options_and_values_are_rejected_by_name() {
        let error = |text: &str| text.parse::<SweepFile>().unwrap_err();
        assert!(error("[[sweep]]\nspeed = 1").contains("speed"));
        assert!(error("[[sweep]]\ndrafter = 'me'").contains("drafter: \"me\" is not one of"));
        assert!(error("[[sweep]]\nlookup = 'text'").contains("lookup: \"text\" is not one of"));
        assert!(error("[[sweep]]\ndtype = 'q4'").contains("int8"));
        assert!(error("[[sweep]]\nlp = 'x'").contains("lp: "));
        assert!(error("[[sweep]]\ntemperature = 'hot'").contains("temperature: "));
        assert!(error("[[sweep]]\nlayer-groups = '0,2'").contains("layer 1"));
        assert!(error("[[sweep]]\ncalibration = 'now'").contains("every-round"));
        assert!(error("[[sweep").contains("1"));
    }
}

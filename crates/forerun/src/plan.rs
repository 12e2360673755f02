//! From options to a validated, immutable plan: what runs where. Each module decides one part of it.

mod cores;
mod drafters;
mod drafts;
mod error;
mod method;

pub use drafters::{AdditionalDrafter, DrafterKind};
pub use drafts::{DraftTokens, Tree};
pub use error::{PlanError, UnknownValue};
pub use method::Method;

use crate::easyspec::{EasySpec, LayerStrategy};
use forerun_core::DraftShape;
use forerun_decode::{DraftLength, PearlOptions};
use forerun_draft::CalibrationPolicy;
use forerun_model::{SpeculatorKind, WeightType};
use forerun_runtime::{Placement, available_cores, cores_within_quota};
use std::path::PathBuf;

/// What a user asks for; [`Plan::new`] turns it into a plan or an error.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The target's checkpoint: a Hugging Face directory, a llama2.c file, or with the feature `hub`
    /// a hub id (see [`Loader`](crate::Loader)).
    pub model: PathBuf,
    /// The drafter's checkpoint.
    pub draft_model: Option<PathBuf>,
    /// The decoder; by default speculative where there is a drafter.
    pub method: Option<Method>,
    /// The drafter; by default what the draft model is made for, where one is named.
    pub drafter: Option<DrafterKind>,
    /// Drafters beside that one, for [`Method::Dsi`]; of those that are right the first one is followed.
    pub additional_drafters: Vec<AdditionalDrafter>,
    /// Tokens drafted in a row; with DSI those of one verification (its lookahead).
    pub draft_tokens: DraftTokens,
    /// The shape of drafts.
    pub tree: Tree,
    /// What of PEARL is used; other methods leave it aside.
    pub pearl: PearlOptions,
    /// The type in which matrices are kept; by default each checkpoint's own.
    pub weight_type: Option<WeightType>,
    /// Which cores do what, as in `drafter=cpu:0,target=cpu:1-3`; by default both have all cores in
    /// turn, or, where they run at the same time, the drafter model has the first core and the target
    /// the others.
    pub placement: Option<String>,
    /// Which of the drafter's layers EasySpec computes at the same time.
    pub layers: Option<LayerStrategy>,
    /// When EasySpec makes the drafter's cache exact.
    pub calibration: Option<CalibrationPolicy>,
}

/// What runs where.
#[derive(Clone, Debug)]
pub struct Plan {
    model: PathBuf,
    draft_model: Option<PathBuf>,
    method: Method,
    drafter: DrafterKind,
    additional_drafters: Vec<AdditionalDrafter>,
    shape: DraftShape,
    length: DraftLength,
    pearl: PearlOptions,
    weight_type: Option<WeightType>,
    placement: Placement,
    easyspec: Option<EasySpec>,
}

impl Plan {
    /// Checks options against each other and against this machine's cores.
    ///
    /// # Errors
    /// Says which options do not go together, and what to do.
    pub fn new(options: Options) -> Result<Self, PlanError> {
        Self::build(options, &available_cores(), &cores_within_quota())
    }

    /// The same for a machine of the given cores.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn on_cores(options: Options, cores: &[usize]) -> Result<Self, PlanError> {
        Self::build(options, cores, cores)
    }

    /// A plan on any of `cores`, by default on those `granted`.
    fn build(options: Options, cores: &[usize], granted: &[usize]) -> Result<Self, PlanError> {
        // A checkpoint that is not here yet, or broken, is looked at when it is opened.
        let found = options.draft_model.as_ref().and_then(|path| SpeculatorKind::of(path).ok()?);
        let (method, drafter) = drafters::roles(&options, found)?;
        let (shape, length) = drafts::shape(&options, drafter)?;
        let found = found.filter(|&found| DrafterKind::of(found) == drafter);
        if let Some(found) = found {
            method::check_features(found, method)?;
        }
        method::check_in_turn(&options, method, drafter)?;
        let additional_drafters = drafters::further(&options, method)?;
        let easyspec = drafters::easyspec(&options, method, drafter)?;
        let models = drafters::models(drafter, &additional_drafters);
        let placement = cores::placement(&options, method, models, [cores, granted])?;
        if let Some(found) = found {
            cores::check_device(found, &placement)?;
        }
        let draft_model = options.draft_model.filter(|_| drafter.has_model());
        let Options { model, pearl, weight_type, .. } = options;
        Ok(Self {
            model,
            draft_model,
            method,
            drafter,
            additional_drafters,
            shape,
            length,
            pearl,
            weight_type,
            placement,
            easyspec,
        })
    }

    /// Whether this plan's method can go with what a checkpoint turns out to be.
    pub(crate) fn check_features(&self, found: SpeculatorKind) -> Result<(), PlanError> {
        method::check_features(found, self.method)?;
        cores::check_device(found, &self.placement)
    }

    /// How EasySpec computes, where it drafts.
    #[must_use]
    pub fn easyspec(&self) -> Option<&EasySpec> {
        self.easyspec.as_ref()
    }

    /// The target's checkpoint.
    #[must_use]
    pub fn model(&self) -> &std::path::Path {
        &self.model
    }

    /// The drafter's checkpoint, if the drafter is a model.
    #[must_use]
    pub fn draft_model(&self) -> Option<&std::path::Path> {
        self.draft_model.as_deref()
    }

    /// The decoder.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// The drafter.
    #[must_use]
    pub fn drafter(&self) -> DrafterKind {
        self.drafter
    }

    /// The drafters beside that one.
    #[must_use]
    pub fn additional_drafters(&self) -> &[AdditionalDrafter] {
        &self.additional_drafters
    }

    /// The shape of drafts.
    #[must_use]
    pub fn shape(&self) -> &DraftShape {
        &self.shape
    }

    /// Whether the number of draft tokens adapts.
    #[must_use]
    pub fn length(&self) -> DraftLength {
        self.length
    }

    /// What of PEARL is used.
    #[must_use]
    pub fn pearl(&self) -> PearlOptions {
        self.pearl
    }

    /// The type in which matrices are kept; `None` is each checkpoint's own.
    #[must_use]
    pub fn weight_type(&self) -> Option<WeightType> {
        self.weight_type
    }

    /// Which cores do what.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_draft::PHRASE_TOKENS;

    fn plan(change: impl FnOnce(&mut Options)) -> Result<Plan, String> {
        let mut options = Options { model: "target".into(), ..Options::default() };
        change(&mut options);
        Plan::on_cores(options, &[0, 1]).map_err(|error| error.to_string())
    }

    #[test]
    fn sensible_defaults_follow_from_what_is_given() -> Result<(), String> {
        let plain = plan(|_| ())?;
        assert_eq!((plain.method(), plain.drafter()), (Method::Autoregressive, DrafterKind::None));
        let drafted = plan(|options| options.draft_model = Some("drafter".into()))?;
        assert_eq!(drafted.method(), Method::Speculative);
        assert_eq!(drafted.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
        assert_eq!(drafted.length(), DraftLength::Auto);
        let parallel = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.method = Some(Method::Pearl);
        })?;
        assert_eq!(parallel.placement().to_string(), "drafter=cpu:0,target=cpu:1");
        let lookup = plan(|options| options.drafter = Some(DrafterKind::PromptLookup))?;
        assert_eq!(lookup.method(), Method::Speculative);
        assert_eq!(lookup.placement().devices().len(), 1);
        let easyspec = |options: &mut Options| {
            options.draft_model = Some("drafter".into());
            options.drafter = Some(DrafterKind::EasySpec);
            options.calibration = Some(CalibrationPolicy::OnMismatch);
        };
        let layer_parallel = plan(easyspec)?;
        assert_eq!(layer_parallel.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
        let expected = EasySpec {
            calibration: CalibrationPolicy::OnMismatch,
            layers: LayerStrategy::Parallel(4),
        };
        assert_eq!(
            (layer_parallel.method(), layer_parallel.easyspec()),
            (Method::Speculative, Some(&expected))
        );
        let plain = plan(|options| {
            easyspec(options);
            options.method = Some(Method::Autoregressive);
        })?;
        assert_eq!(plain.easyspec(), None);
        let several = plan(|options| {
            (options.method, options.draft_model) = (Some(Method::Dsi), Some("drafter".into()));
            options.additional_drafters =
                ["other", "prompt-lookup"].into_iter().flat_map(str::parse).collect();
        })?;
        let expected = [AdditionalDrafter::Model("other".into()), AdditionalDrafter::PromptLookup];
        assert_eq!(several.additional_drafters(), expected);
        let shared = "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared";
        assert_eq!(several.placement().to_string(), shared);
        // One flag switches a drafted run to its baseline.
        let baseline = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.method = Some(Method::Autoregressive);
        })?;
        assert_eq!((baseline.drafter(), baseline.draft_model()), (DrafterKind::None, None));
        Ok(())
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_with_a_way_out() {
        let refuse = |change: fn(&mut Options), word: &str| {
            let message = plan(change).err().unwrap_or_default();
            assert!(message.contains(word), "{word}: {message}");
        };
        refuse(|o| o.drafter = Some(DrafterKind::Model), "--draft-model DIR");
        refuse(|o| o.drafter = Some(DrafterKind::EasySpec), "\"easyspec\" needs a checkpoint");
        refuse(|o| o.layers = Some(LayerStrategy::Parallel(2)), "--drafter easyspec");
        refuse(|o| o.calibration = Some(CalibrationPolicy::Never), "leave --calibration out");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.layers = "0,1-2".parse().ok();
            },
            "--layer-groups",
        );
        refuse(
            |o| {
                (o.drafter, o.draft_model) = (Some(DrafterKind::EasySpec), Some("x".into()));
                o.layers = Some(LayerStrategy::Parallel(0));
            },
            "--lp is 0",
        );
        refuse(|o| o.drafter = Some(DrafterKind::Medusa), "\"medusa\" needs a checkpoint");
        refuse(|o| o.method = Some(Method::Speculative), "needs a drafter");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.drafter = Some(DrafterKind::PromptLookup);
            },
            "does not use a model",
        );
        refuse(
            |o| {
                (o.drafter, o.method) = (Some(DrafterKind::PromptLookup), Some(Method::Pearl));
                o.draft_tokens = DraftTokens::Assisted;
            },
            "the method pearl has none",
        );
        refuse(
            |o| (o.drafter, o.method) = (Some(DrafterKind::Lookahead), Some(Method::Dsi)),
            "does not wait for",
        );
        refuse(
            |o| {
                (o.drafter, o.method) = (Some(DrafterKind::Ouroboros), Some(Method::Pearl));
                o.draft_model = Some("x".into());
            },
            "the drafter ouroboros learns",
        );
        refuse(|o| o.draft_tokens = DraftTokens::Fixed(0), "1 to 64");
        refuse(|o| o.draft_tokens = DraftTokens::Fixed(65), "65");
        refuse(|o| o.tree = "top:0".parse().unwrap_or_default(), "top:0");
        refuse(|o| o.tree = "top:4x5:0".parse().unwrap_or_default(), "top:4x5:0");
        refuse(|o| o.tree = "top:30x20".parse().unwrap_or_default(), "512 nodes");
        refuse(|o| o.tree = Tree::Sampled { branching: vec![9; 9] }, "512 nodes");
        refuse(|o| o.placement = Some("target=cpu:7".into()), "core 7");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.additional_drafters = vec![AdditionalDrafter::PromptLookup];
            },
            "speculative has one drafter",
        );
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.placement = Some("target=cpu:1".into());
            },
            "no drafter group",
        );
    }

    /// They are no part of the number of draft tokens, and so take nothing of what that may be.
    #[test]
    fn phrases_come_on_top_of_the_draft_tokens() {
        let shape = |draft_tokens, tree: &str| {
            let plan = plan(|options| {
                options.draft_model = Some("drafter".into());
                options.drafter = Some(DrafterKind::Ouroboros);
                (options.draft_tokens, options.tree) =
                    (draft_tokens, tree.parse().unwrap_or_default());
            })?;
            Ok::<_, String>((plan.shape().length(), plan.shape().depth()))
        };
        let automatic = shape(DraftTokens::Auto, "none");
        assert_eq!(automatic.map(|(length, depth)| depth - length), Ok(PHRASE_TOKENS));
        for (draft_tokens, length) in [
            (DraftTokens::Fixed(1), 1),
            (DraftTokens::Fixed(61), 61),
            (DraftTokens::Fixed(64), 64),
            (DraftTokens::Assisted, 64),
        ] {
            assert_eq!(shape(draft_tokens, "none"), Ok((length, length + PHRASE_TOKENS)));
        }
        let error = shape(DraftTokens::Fixed(65), "none").err().unwrap_or_default();
        assert!(error.contains("--draft-tokens is 65") && error.contains("1 to 64"), "{error}");
        // A tree's depth is that of all.
        assert_eq!(shape(DraftTokens::Fixed(3), "top:4x6:12"), Ok((2, 6)));
    }

    #[test]
    fn values_are_read_and_unknown_ones_listed() {
        let top = |depth, budget| Ok(Tree::Top { width: 4, depth, budget });
        assert_eq!("top:4x5".parse(), top(Some(5), None));
        assert_eq!("top:4x5:16".parse(), top(Some(5), Some(16)));
        assert_eq!("top:4:16".parse(), top(None, Some(16)));
        assert_eq!("sampled:3,2".parse(), Ok(Tree::Sampled { branching: vec![3, 2] }));
        for text in ["none", "top:4", "top:4x5", "top:4:9", "top:4x5:9", "sampled:3,2,1"] {
            assert_eq!(text.parse::<Tree>().map(|tree| tree.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("7".parse(), Ok(DraftTokens::Fixed(7)));
        assert_eq!("assisted".parse(), Ok(DraftTokens::Assisted));
        let message = |result: Result<Method, UnknownValue>| {
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(message("magic".parse()).contains("speculative"));
        for text in ["top:x", "top:4x5:", "top:4x", "top:4:2:1", "top:-1"] {
            assert!(text.parse::<Tree>().is_err(), "{text}");
        }
        assert!("".parse::<DraftTokens>().is_err());
        assert!("medusa-2".parse::<DrafterKind>().is_err());
        let kinds = ["none", "model", "easyspec", "prompt-lookup", "lookahead", "medusa", "eagle"];
        for kind in kinds.into_iter().chain(["parallel", "hydra", "ouroboros"]) {
            assert_eq!(kind.parse().map(|own: DrafterKind| own.to_string()), Ok(kind.to_owned()));
        }
    }
}

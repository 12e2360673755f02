//! The options of a plan.

use super::{
    AdditionalDrafter, DraftTokens, DrafterOptions, Lookup, MethodOptions, NamedAdapter, Tree,
};
use crate::model_source::ModelSource;
use forerun_formats::{CacheType, WeightTypes};
use forerun_runtime::Placement;
use std::path::PathBuf;

/// The models, the method, the drafter and the devices that [`Plan::new`](super::Plan::new) checks.
///
/// Every field but `model` has a default ([`Options::new`]); a path or text alone converts to such
/// options. A draft model alone gives speculative decoding with an automatic draft length.
///
/// ```
/// use forerun::{DraftTokens, DrafterKind, Method, Options};
///
/// // Speculative decoding with a draft model.
/// let speculative = Options {
///     draft_model: Some("models/drafter".into()),
///     ..Options::new("models/target")
/// };
///
/// // PEARL, with drafts of four tokens, on cores of your choice.
/// let pearl = Options {
///     method: Some(Method::Pearl.into()),
///     draft_tokens: DraftTokens::Fixed(4),
///     placement: Some("drafter=cpu:0,target=cpu:1-3".parse()?),
///     ..speculative
/// };
///
/// // No second model: the drafter looks for repetitions in the text.
/// let lookup = Options {
///     drafter: Some(DrafterKind::PromptLookup.into()),
///     draft_model: None,
///     method: None,
///     ..pearl
/// };
/// # Ok::<(), forerun::placement::PlacementError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The target: a GGUF file, a Hugging Face directory, a llama2.c file, or a model of the hub.
    ///
    /// A text is a path if that exists. Otherwise, with the feature `hub`, `owner/name` is a model
    /// of the hub ([`ModelSource`]).
    pub model: ModelSource,
    /// Adapters of the target, among which each request chooses. Drafters have none, which changes
    /// how many drafts are accepted, not the text.
    pub adapters: Vec<NamedAdapter>,
    /// The drafter's checkpoint: a model, or a drafter trained for the target.
    pub draft_model: Option<ModelSource>,
    /// The decoding method, with its own options. By default `Method::Autoregressive` without a
    /// drafter, `Method::Auto` if a `placement` gives drafter and target devices of their own and
    /// the length of drafts is automatic, and `Method::Speculative` otherwise.
    ///
    /// `Method::Auto` is `Method::Speculative` if no other method supports the drafter.
    pub method: Option<MethodOptions>,
    /// The kind of drafter. By default the kind that the draft model's tensors show, or none
    /// without a draft model.
    pub drafter: Option<DrafterOptions>,
    /// Drafters in addition to the first one. `Method::Speculative`, `Method::Pearl` and
    /// `Method::Auto` use the one that is expected to be the fastest on the text at hand. Answers
    /// that must be reproducible although their text depends on drafts use the first one. With
    /// `Method::Dsi` all of them draft at the same time, and if several agree with the target,
    /// the first one's tokens are kept.
    pub additional_drafters: Vec<AdditionalDrafter>,
    /// The number of tokens drafted in a row. With DSI, the number per verification (its
    /// lookahead).
    pub draft_tokens: DraftTokens,
    /// The type in which weight matrices are kept in memory. By default each checkpoint's own.
    pub weight_type: Option<WeightTypes>,
    /// The type of cached keys and values. By default f32 for models whose weights are all f32, and
    /// f16 for others. f16 holds values up to 65,504.
    pub cache_type: Option<CacheType>,
    /// The memory in bytes that each model may use for the keys and values of all sequences. The
    /// least recently used ones are dropped, and computed again if they are needed. By default 4
    /// GiB, and 1 GiB for a drafter on the target's hidden states. With `Method::Auto` and an
    /// automatic placement, a drafter may use it twice.
    pub cache_bytes: Option<usize>,
    /// A folder for the keys and values of prompts and answers, which later engines read instead of
    /// computing them, also in other processes. Those that do not fit in `cache_bytes` are found
    /// there, too. It is created if it does not exist. By default nothing is kept.
    ///
    /// It holds those of language models on the cores of this machine. What a model trained for a
    /// target computes is not kept.
    pub cache_dir: Option<PathBuf>,
    /// The bytes of the files in `cache_dir`; the least recently used ones are removed. By default
    /// 10 GiB.
    pub cache_dir_size: Option<usize>,
    /// The most tokens of a prompt and its answer together, at most the model's own context length,
    /// which is the default.
    pub context_length: Option<usize>,
    /// The number of threads of an automatic placement. By default one for each performance core of
    /// a NUMA node, within the CPU quota
    /// ([`Topology::default_cores`](crate::placement::Topology::default_cores)).
    pub threads: Option<usize>,
    /// The cores of each role, as in `drafter=cpu:0,target=cpu:1-3`.
    ///
    /// By default target and drafter take turns on the same cores. If they run at the same time,
    /// the drafter has the first core and the target the others. With PEARL and `auto`, the drafter
    /// may have more of the first cores; how many follows from the bytes that passes of both read.
    /// If there is one core, they share it.
    pub placement: Option<Placement>,
    /// The number of the target's first layers on a GPU (llama.cpp's `-ngl`). The cores have the
    /// others, the embedding and the head.
    ///
    /// In a `placement` such as `target=gpu:0/cpu:0-7`, it takes the place of as many layers as fit
    /// in the GPU's memory. A target on cores alone gets the first GPU.
    pub gpu_layers: Option<usize>,
    /// Whether each thread stays on its core, also without `placement`. Threads of a `placement`
    /// always do. Pin threads only if no other program uses the cores.
    pub pin: bool,
}

impl Options {
    /// Returns the options of plain decoding of a model.
    #[must_use]
    pub fn new(model: impl Into<ModelSource>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// Returns the shape of drafts that the method has.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        match &self.method {
            Some(MethodOptions::Speculative { tree, .. } | MethodOptions::Own { tree, .. }) => tree,
            _ => &Tree::None,
        }
    }

    /// Returns the lookup that the method has.
    #[must_use]
    pub fn lookup(&self) -> Lookup {
        match self.method {
            Some(
                MethodOptions::Speculative { lookup, .. }
                | MethodOptions::Ssd { lookup }
                | MethodOptions::Own { lookup, .. },
            ) => lookup,
            _ => Lookup::None,
        }
    }
}

impl<T: Into<ModelSource>> From<T> for Options {
    fn from(model: T) -> Self {
        Self::new(model)
    }
}

//! Loaded models on their devices, and answers from them.

use crate::answer::Answer;
use crate::decoding::LearnedDraftLengths;
use crate::drafter::{LoadedDrafter, OpenDrafter};
use crate::loader::Loader;
use crate::plan::{DrafterKind, Method, Plan, PlanError};
use crate::request::{Request, RequestError};
use crate::sink::Sink;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::workers::{Loaded, workers};
use forerun_core::{Cluster, JobError, SequenceId, TokenId, TokenLogprob};
use forerun_decode::{DecodeError, Finish, Limits, Sequence, generate};
use forerun_model::{
    Checkpoint, Config, Isa, IsaError, LayerGroupsError, LoadError, SpeculatorKind,
};
use forerun_runtime::{Runtime, StartError, ThreadCluster};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use forerun_runtime::Canceller;

/// Why there is no engine, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum ForerunError {
    /// A checkpoint that cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A model of the hub that cannot be had.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Box<crate::hub::HubError>),
    /// A file of the hub's cache that makes no sense.
    #[cfg(feature = "hub")]
    #[error(
        "{cause}; if it was damaged in the cache, delete {file} and run again to fetch it anew"
    )]
    Cached {
        /// What is wrong with it.
        cause: Box<Self>,
        /// Where its content lies.
        file: PathBuf,
    },
    /// Whoever watched the loading broke it off.
    #[error("loading was cancelled; a download goes on from there the next time")]
    Cancelled,
    /// A tokenizer that cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// `FORERUN_ISA` asks for what there is not.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A worker that cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Options of the answer out of range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A tree of another vocabulary's tokens.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target} ({}): its drafts are \
         translated by their text, and so must be chains; leave --tree out, or choose a drafter of \
         the target's family",
        if drafter_size == target_size {
            format!("both have {target_size} tokens, but not the same")
        } else {
            format!("{drafter_size} tokens against {target_size} tokens")
        }
    )]
    Vocabulary {
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// Size of the target's vocabulary.
        target_size: usize,
        /// Size of the drafter's.
        drafter_size: usize,
    },
    /// A drafter of another vocabulary, of which such drafting makes no use.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target}, which --drafter \
         {kind} cannot translate: choose a drafter of the target's family, or --drafter model"
    )]
    NoTranslation {
        /// Who was to draft.
        kind: DrafterKind,
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// A draft model of another kind.
    #[error(
        "{path} holds {found}, which --drafter {asked} does not draft with: use --drafter {}",
        DrafterKind::of(*found)
    )]
    OtherDrafter {
        /// The draft model.
        path: PathBuf,
        /// What it is.
        found: SpeculatorKind,
        /// Who was to draft.
        asked: DrafterKind,
    },
    /// A draft model that is none of the asked kind.
    #[error(
        "{path} holds no drafter for --drafter {asked}: name a folder with the tensors of one, or use \
         --drafter model for a whole model"
    )]
    NoSuchDrafter {
        /// The draft model.
        path: PathBuf,
        /// Who was to draft.
        asked: DrafterKind,
    },
    /// A drafter that does not go with the plan, as its files tell.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Layer groups of another model.
    #[error("{cause}: {}", drafter.display())]
    LayerGroups {
        /// What does not fit.
        cause: LayerGroupsError,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// A tokenizer with more tokens than its model, those not counted that were added to it later.
    #[error(
        "the tokenizer {tokenizer} has tokens up to {largest}, but the model {model} only {expected} \
         tokens: they do not belong together"
    )]
    TokenizerSize {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// The checkpoint.
        model: PathBuf,
        /// The tokenizer's largest token.
        largest: TokenId,
        /// Tokens of the model.
        expected: usize,
    },
    /// Nothing to continue.
    #[error("the prompt is empty: give some text to continue")]
    EmptyPrompt,
    /// No room for an answer.
    #[error(
        "the prompt has {prompt} tokens, but the model {model} has a context of {context}: shorten \
         the prompt to at most {} tokens", context - 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the model can see.
        context: usize,
        /// The checkpoint.
        model: PathBuf,
    },
    /// Decoding failed; what was streamed before is certain all the same.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

#[cfg(feature = "hub")]
impl From<crate::hub::FetchError> for ForerunError {
    fn from(error: crate::hub::FetchError) -> Self {
        match error {
            crate::hub::FetchError::Hub(error) => Self::Hub(Box::new(error)),
            crate::hub::FetchError::Index(error) => Self::Load(error),
            crate::hub::FetchError::Cancelled => Self::Cancelled,
        }
    }
}

/// Models loaded on their device groups. Dropping it stops the workers.
pub struct Forerun {
    plan: Plan,
    config: Config,
    tokenizer: Arc<Tokenizer>,
    translates: bool,
    reads_features: bool,
    runtime: Runtime,
    sequences: AtomicU64,
    /// What earlier answers taught about drafting; each answer starts with it.
    learned: Mutex<LearnedDraftLengths>,
}

impl Forerun {
    /// Loads what the plan names, each device group on its own cores.
    ///
    /// # Errors
    /// If a checkpoint or tokenizer cannot be loaded, drafter and target do not go together, or a
    /// worker cannot start.
    pub fn open(plan: &Plan) -> Result<Self, ForerunError> {
        Self::open_with(plan, &mut Loader::new())
    }

    /// The same with a loader of one's own, which may tell how far it is and stay offline.
    ///
    /// # Errors
    /// As [`Forerun::open`], or if the loader's progress closure broke off.
    pub fn open_with(plan: &Plan, loader: &mut Loader<'_>) -> Result<Self, ForerunError> {
        Isa::from_environment()?;
        let target = open_model(plan.model(), loader)?;
        let drafters = OpenDrafter::all(plan, &target, loader)?;
        let translates = drafters.iter().any(OpenDrafter::translates);
        let features = drafters.iter().find_map(|drafter| drafter.features(&target));
        let weights = loader.load(plan.model(), &target.checkpoint, plan.weight_type())?;
        let drafters = drafters.into_iter().map(|own| own.load(plan, (&target, &weights), loader));
        let drafters = drafters.collect::<Result<Vec<_>, _>>()?;
        let loaded = Loaded { target: weights, features, drafters };
        let config = target.checkpoint.config().clone();
        let reads_features = loaded.features.is_some();
        let runtime = Runtime::start(workers(plan, &loaded)?)?;
        let first = loaded.drafters.iter().find(|drafter| drafter.index() == 0);
        let pattern = first.map(LoadedDrafter::pattern).unwrap_or_default();
        let learned = Mutex::new(LearnedDraftLengths::new(plan, pattern));
        let (plan, sequences, tokenizer) = (plan.clone(), AtomicU64::new(0), target.tokenizer);
        Ok(Self {
            plan,
            config,
            tokenizer,
            translates,
            reads_features,
            runtime,
            sequences,
            learned,
        })
    }

    fn lock_learned(&self) -> MutexGuard<'_, LearnedDraftLengths> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan that this engine runs.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The target's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The target's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a drafter has another vocabulary, so that drafts are translated by their text.
    #[must_use]
    pub fn translates_drafts(&self) -> bool {
        self.translates
    }

    /// Whether the drafter reads the target's hidden states, so that only methods that draft and verify
    /// in turn can go with it.
    #[must_use]
    pub fn reads_features(&self) -> bool {
        self.reads_features
    }

    /// A handle to the workers, for jobs and decoders of one's own. Sequences of [`Forerun`] itself
    /// are numbered from 0 on: others should choose names from the other end.
    #[must_use]
    pub fn cluster(&self) -> ThreadCluster {
        self.runtime.cluster()
    }

    /// Continues a text and returns the whole answer.
    ///
    /// # Errors
    /// As [`Forerun::generate`].
    pub fn complete(&self, prompt: &str, request: &Request) -> Result<Answer, ForerunError> {
        self.generate(prompt, request, |_| ControlFlow::Continue(()))
    }

    /// Continues a text. `on_text` sees the answer piece by piece and may stop it.
    ///
    /// # Errors
    /// If the prompt or an option cannot be served, or a job fails.
    pub fn generate(
        &self,
        prompt: &str,
        request: &Request,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        self.generate_interruptibly(prompt, request, &Canceller::new(), on_text)
    }

    /// The same; `canceller` stops the answer from another thread, even within a forward pass.
    ///
    /// # Errors
    /// As [`Forerun::generate`].
    pub fn generate_interruptibly(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        self.generate_tokens(self.tokenizer.encode(prompt)?, request, canceller, on_text)
    }

    /// Continues tokens, taken as they are.
    ///
    /// # Errors
    /// As [`Forerun::generate`].
    pub fn generate_tokens(
        &self,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let place = Continuation { sequence: self.new_sequence(), method: self.plan.method() };
        let answer = self.continue_with(place, prompt, request, canceller, on_text);
        self.release(place.sequence);
        answer
    }

    /// A name for caches that are kept until it is released.
    pub(crate) fn new_sequence(&self) -> SequenceId {
        SequenceId(self.sequences.fetch_add(1, Ordering::Relaxed))
    }

    /// Frees the caches of a sequence.
    pub(crate) fn release(&self, sequence: SequenceId) {
        self.runtime.cluster().release(sequence);
    }

    /// The same as [`Forerun::generate_tokens`] for one of several answers in a row: the workers use
    /// what their caches hold of `prompt`, and keep them.
    pub(crate) fn continue_with(
        &self,
        place: Continuation,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let sampling = request.sampling()?;
        sampling.validate_for(self.config.vocab_size).map_err(RequestError::from)?;
        let context = self.config.max_position_embeddings;
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        if prompt.len() >= context {
            let model = self.plan.model().to_owned();
            return Err(ForerunError::PromptTooLong { prompt: prompt.len(), context, model });
        }
        let mut eos = request.stop_tokens.clone();
        if !request.ignore_eos {
            eos.extend(&self.config.eos_token_ids);
        }
        let limits = Limits { max_tokens: request.max_tokens, context_length: context, eos };
        let id = place.sequence;
        let seed = sampling.randomness.seed;
        // Rejection sampling draws other numbers with other draft lengths: where a seed promises the
        // same text, the length must not follow measured times.
        let reproducible = !sampling.is_deterministic() && request.seed.is_some();
        let verification = sampling.verification;
        let mut sink = Sink::new(&self.tokenizer, &prompt, &request.stop, on_text);
        let prompt_tokens = prompt.len();
        let mut sequence = Sequence::new(id, prompt, sampling, limits);
        if let Some(top) = request.logprobs {
            sequence = sequence.with_logprobs(top);
        }
        if self.reads_features && place.method == Method::Speculative {
            sequence = sequence.with_features();
        }
        if self.plan.drafter().reads_scores() && place.method == Method::Speculative {
            sequence = sequence.with_draft_feedback();
        }
        let mut cluster = self.runtime.cluster_with(canceller);
        let decoding = Decoding { method: place.method, canceller, reproducible };
        let finish = self.decode(&mut sequence, &mut cluster, &decoding, &mut sink);
        let total_ns = sink.elapsed_ns();
        sink.flush();
        // What was begun for tokens that did not come to pass is this answer's still, and would go on
        // beside the next one's.
        cluster.settle();
        let trace = self.runtime.take_trace_of(id);
        let finish = finish?;
        let statistics = sequence.statistics().clone();
        // A stop string ends the answer within a step, too.
        let told = |all: &[TokenLogprob]| all.iter().take(sink.tokens.len()).cloned().collect();
        Ok(Answer {
            text: sink.text,
            logprobs: sequence.logprobs().map(told),
            tokens: sink.tokens,
            prompt_tokens,
            // A stop string may end the text within a step that reached a limit, too.
            finish: if sink.closed { Finish::Stopped } else { finish },
            seed,
            verification,
            first_token_ns: sink.commits.first().map_or(0, |commit| commit.at_ns),
            total_ns,
            commits: sink.commits,
            verifications: sequence.verifications().to_vec(),
            statistics,
            trace,
        })
    }

    fn decode<F: FnMut(&str) -> ControlFlow<()>>(
        &self,
        sequence: &mut Sequence,
        cluster: &mut ThreadCluster,
        decoding: &Decoding<'_>,
        sink: &mut Sink<'_, F>,
    ) -> Result<Finish, ForerunError> {
        let Decoding { method, canceller, reproducible } = *decoding;
        let on_tokens = |tokens: &[TokenId]| {
            let flow = sink.push(tokens);
            if canceller.is_cancelled() { ControlFlow::Break(()) } else { flow }
        };
        let mut decoder =
            self.lock_learned().decoder(method, &self.plan, sequence.tokens().len(), reproducible);
        let outcome = generate(decoder.as_dyn(), sequence, cluster, on_tokens);
        decoder.as_dyn().stop(cluster);
        if !reproducible {
            self.lock_learned().learn(decoder);
        }
        match outcome {
            // The interrupt reached a job: the answer ends with what was committed before.
            Err(DecodeError::Job(JobError::Cancelled)) if canceller.is_cancelled() => {
                Ok(Finish::Stopped)
            }
            outcome => Ok(outcome?),
        }
    }
}

/// What an answer continues, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    /// The name of the caches.
    pub(crate) sequence: SequenceId,
    /// The decoder, which the plan's devices must be able to serve.
    pub(crate) method: Method,
}

/// How one answer is decoded.
struct Decoding<'a> {
    method: Method,
    canceller: &'a Canceller,
    /// Whether the text must not depend on measured times.
    reproducible: bool,
}

/// A checkpoint with its tokenizer.
pub(crate) struct OpenModel {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

pub(crate) fn open_model(model: &Path, loader: &mut Loader<'_>) -> Result<OpenModel, ForerunError> {
    let path = loader.locate(model)?;
    open_located(&path, model)
}

/// The model of that name, which lies at `path`.
#[cfg_attr(
    not(feature = "hub"),
    expect(unused_variables, reason = "without a hub a model lies where its name says")
)]
pub(crate) fn open_located(path: &Path, model: &Path) -> Result<OpenModel, ForerunError> {
    let opened = open_files(path);
    #[cfg(feature = "hub")]
    let opened = opened.map_err(|error| if path == model { error } else { cached(error) });
    opened
}

/// What to do about a file of the cache that cannot be read as what it is.
#[cfg(feature = "hub")]
fn cached(cause: ForerunError) -> ForerunError {
    let file = match &cause {
        ForerunError::Load(LoadError::Json { file, .. })
        | ForerunError::Tokenizer(TokenizerError::Broken { file, .. }) => file,
        _ => return cause,
    };
    // A file there is a link to its content: without that, it is not there.
    let file = file.canonicalize().unwrap_or_else(|_| file.clone());
    ForerunError::Cached { cause: Box::new(cause), file }
}

fn open_files(path: &Path) -> Result<OpenModel, ForerunError> {
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(path)?);
    let (largest, expected) = (tokenizer.largest_ordinary(), checkpoint.config().vocab_size);
    // Tokens that were added, as padding is, may lie beyond: no text of the model's own has them.
    if largest as usize >= expected {
        let (tokenizer, model) = (tokenizer.file().to_owned(), path.to_owned());
        return Err(ForerunError::TokenizerSize { tokenizer, model, largest, expected });
    }
    Ok(OpenModel { checkpoint, tokenizer })
}

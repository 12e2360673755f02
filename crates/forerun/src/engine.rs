//! Loaded models on their devices, and answers from them.

use crate::answer::Answer;
use crate::decoding::LearnedDraftLengths;
use crate::drafter::{LoadedDrafter, OpenDrafter};
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::open_model::open_model;
use crate::plan::{Method, Plan};
use crate::request::{Request, RequestError};
use crate::sink::Sink;
use crate::tokenizer::Tokenizer;
use crate::workers::{Loaded, workers};
use forerun_core::{Cluster, JobError, SequenceId, TokenId, TokenLogprob};
use forerun_decode::{DecodeError, Finish, Limits, Sequence, generate};
use forerun_model::{Config, Isa};
use forerun_runtime::{Runtime, ThreadCluster};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use forerun_runtime::Canceller;

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

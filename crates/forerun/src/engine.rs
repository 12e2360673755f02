//! The engine: loaded models on their devices, which answer requests.

mod answering;
mod checks;
mod opening;
mod plain_speed;

pub(crate) use answering::Continuation;
pub(crate) use opening::OpenedPlan;

use crate::decoding::AnswerDecoders;
use crate::drafter_context::DrafterContext;
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::memory;
use crate::plan::{Method, Options, Plan};
use crate::ranks::RankError;
use forerun_cache::{PageEvent, PoolUsage};
use forerun_core::SequenceId;
use forerun_core::trace::Trace;
use forerun_decode::{AnswerDecoder, DraftPattern};
use forerun_formats::Config;
use forerun_runtime::{ClusterHandle, Runtime, Workers};
use forerun_text::{GrammarCompiler, SequenceBreakers, Tokenizer};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use forerun_runtime::Canceller;

/// An engine: models loaded on their device groups, ready to answer requests.
///
/// All methods take `&self`, so threads can share an engine. Answers that run at the same time
/// share forward passes. What one answer learns about draft lengths serves the next one. Dropping
/// the engine stops its workers.
///
/// ```
/// use forerun::{Engine, Options, RandomPair, Request, SamplingOptions};
/// use std::io::Write;
/// use std::ops::ControlFlow;
///
/// // A pair of tiny random models. Name your own checkpoints instead.
/// let pair = RandomPair::make()?;
/// let draft_model = Some(pair.drafter().into());
/// let options = Options { draft_model, ..Options::new(pair.target()) };
/// let engine = Engine::open(options)?;
///
/// let request = Request {
///     sampling: SamplingOptions { temperature: 0.7, ..SamplingOptions::default() },
///     max_tokens: 32,
///     seed: Some(1),
///     ..Request::default()
/// };
/// let answer = engine.generate("Once upon a time", &request, |text| {
///     print!("{text}");
///     std::io::stdout().flush().map_or(ControlFlow::Break(()), ControlFlow::Continue)
/// })?;
/// println!("\n{}", answer.summary());
/// # fn check_shareable(_: &(impl Send + Sync)) {}
/// # check_shareable(&engine);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    plan: Plan,
    config: Config,
    tokenizer: Arc<Tokenizer>,
    grammars: Arc<GrammarCompiler>,
    breakers: SequenceBreakers,
    translates: bool,
    drafter_context: DrafterContext,
    reads_features: bool,
    target_arithmetic: Option<String>,
    workers: Box<dyn Workers>,
    sequences: AtomicU64,
    /// The draft lengths that earlier answers arrived at. Each answer starts with them.
    learned: Mutex<AnswerDecoders>,
    cache_usage: Vec<Arc<PoolUsage>>,
}

impl Engine {
    /// Loads a model, or the models of [`Options`], and starts a worker for each device group.
    ///
    /// ```no_run
    /// use forerun::{Engine, Request};
    ///
    /// let engine = Engine::open("model.gguf")?;
    /// println!("{}", engine.complete("Hi", &Request::default())?.text);
    /// # Ok::<(), forerun::ForerunError>(())
    /// ```
    ///
    /// # Errors
    /// If the options do not work together ([`Plan::new`]), a checkpoint or tokenizer cannot be
    /// loaded, drafter and target do not fit together, or a worker cannot start.
    pub fn open(options: impl Into<Options>) -> Result<Self, ForerunError> {
        Self::open_plan(&Plan::new(options.into())?)
    }

    /// Opens an engine as [`Engine::open`] does, with options that were checked before.
    ///
    /// # Errors
    /// As [`Engine::open`], except for the options.
    pub fn open_plan(plan: &Plan) -> Result<Self, ForerunError> {
        Self::open_with(plan, &mut Loader::new())
    }

    /// Opens an engine as [`Engine::open_plan`] does, with a [`Loader`] that can report progress,
    /// share weights between engines, and stay offline.
    ///
    /// # Errors
    /// As [`Engine::open_plan`], or [`ForerunError::Cancelled`] if the loader's progress callback stops
    /// the loading.
    pub fn open_with(plan: &Plan, loader: &mut Loader<'_>) -> Result<Self, ForerunError> {
        Self::open_connected(plan, loader, |runtime| Box::new(runtime))
    }

    /// Opens an engine as [`Engine::open_with`] does, and reaches its workers through what
    /// `connect` makes of them, such as messages (`forerun_wire::Connection`) to the workers of
    /// [`Plan::workers`].
    ///
    /// # Errors
    /// As [`Engine::open_with`].
    pub fn open_connected(
        plan: &Plan,
        loader: &mut Loader<'_>,
        connect: impl FnOnce(Runtime) -> Box<dyn Workers>,
    ) -> Result<Self, ForerunError> {
        if !plan.placement().ranks().is_empty() {
            return Err(RankError::NoJob(plan.placement().to_string()).into());
        }
        let (opened, runtime) = OpenedPlan::start(plan, loader, None)?;
        let patterns = opened.patterns();
        Ok(opened.into_engine(connect(runtime), &patterns))
    }

    /// Returns the memory in bytes that an engine takes at most on cores, apart from activations:
    /// the weights of its models and adapters, and full caches. It reads their files, but not the
    /// models' weights.
    ///
    /// # Errors
    /// If a checkpoint cannot be read, or drafter and target do not fit together.
    pub fn most_memory(plan: &Plan, loader: &mut Loader<'_>) -> Result<u64, ForerunError> {
        memory::most_of_plan(plan, loader)
    }

    fn lock_learned(&self) -> MutexGuard<'_, AnswerDecoders> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the plan that this engine was opened with.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns a note, once, if a drafter's context is shorter than a text of this many tokens: the
    /// rest of the text is written without the drafter.
    #[must_use]
    pub fn note_on_drafter_context(&self, tokens: usize) -> Option<String> {
        self.drafter_context.note(tokens)
    }

    /// Returns new decoders with this engine's options, for your own cluster. They do not have what
    /// those of the engine learned.
    #[must_use]
    pub fn decoders(&self) -> AnswerDecoders {
        AnswerDecoders::new(&self.plan, &self.lock_learned().patterns())
    }

    /// Returns the target's configuration. Its `max_position_embeddings` is the plan's context
    /// length, if the plan has one.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the target's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Returns whether a drafter has another vocabulary than the target. Its drafts are then
    /// translated by their text.
    #[must_use]
    pub fn translates_drafts(&self) -> bool {
        self.translates
    }

    /// Returns whether the drafter reads the target's hidden states. Parallel methods do not
    /// support such drafters.
    #[must_use]
    pub fn reads_features(&self) -> bool {
        self.reads_features
    }

    /// Returns the arithmetic of the target's products on its GPU, in words: replicas have equal
    /// ones. `None` if no GPU of this process has the target.
    #[must_use]
    pub fn target_arithmetic(&self) -> Option<&str> {
        self.target_arithmetic.as_deref()
    }

    /// Returns how many positions the first drafter can draft, and in how many forward passes.
    #[must_use]
    pub fn draft_pattern(&self) -> DraftPattern {
        self.lock_learned().options().pattern
    }

    /// Returns the share of the target's cache memory that answers in progress use, of the fullest
    /// replica; above 1 if they need more. Tokens that are kept for later answers do not count.
    /// `None` if the target's workers are in other processes.
    #[must_use]
    pub fn cache_usage(&self) -> Option<f64> {
        self.cache_usage.iter().map(|usage| usage.share()).max_by(f64::total_cmp)
    }

    /// Returns the number of tokens for which the target's cache memory has room, of the smallest
    /// replica. `None` if the target's workers are in other processes.
    #[must_use]
    pub fn cache_tokens(&self) -> Option<usize> {
        self.cache_usage.iter().map(|usage| usage.tokens()).min()
    }

    /// Returns the number of answers that can continue by turns without losing states of recurrent
    /// layers, of the smallest replica; `None` if the target has no such layers, or its workers are
    /// in other processes.
    #[must_use]
    pub fn cache_answers(&self) -> Option<usize> {
        self.cache_usage.iter().filter_map(|usage| usage.sequences()).min()
    }

    /// Calls `watch` with the number of a target replica and a page of its cache whenever the page
    /// is published or withdrawn: the prefixes that later answers need not compute. It is called on
    /// the thread that computes, so it should only pass the event on. An engine has one watcher:
    /// returns whether this is the first, and whether the target's workers are in this process.
    ///
    /// Pages of a target with recurrent layers ([`Engine::cache_answers`]) may be published
    /// without a state to continue from, and save nothing then.
    pub fn watch_cache(
        &self,
        watch: impl Fn(usize, &PageEvent<'_>) + Send + Sync + 'static,
    ) -> bool {
        let watch = Arc::new(watch);
        let mut watched = !self.cache_usage.is_empty();
        for (replica, usage) in self.cache_usage.iter().enumerate() {
            let watch = Arc::clone(&watch);
            watched &= usage.watch(move |event| watch(replica, event));
        }
        watched
    }

    /// Returns a handle to the workers, for your own jobs and decoders.
    ///
    /// The engine numbers its own sequences from 0 upwards. Number yours from `u64::MAX` downwards.
    #[must_use]
    pub fn cluster(&self) -> Box<dyn ClusterHandle> {
        self.workers.cluster(&Canceller::new())
    }

    /// Returns the workers.
    pub(crate) fn workers(&self) -> &dyn Workers {
        &*self.workers
    }

    /// Returns the id of a new sequence. Its caches are kept until it is released.
    pub(crate) fn new_sequence(&self) -> SequenceId {
        SequenceId(self.sequences.fetch_add(1, Ordering::Relaxed))
    }

    /// Frees the caches of a sequence.
    pub(crate) fn release(&self, sequence: SequenceId) {
        self.cluster().release(sequence);
    }

    /// Removes and returns the trace of one sequence.
    pub(crate) fn take_trace_of(&self, sequence: SequenceId) -> Trace {
        self.workers.take_trace_of(sequence)
    }

    /// Keeps the draft lengths that an answer arrived at, for the next one.
    pub(crate) fn learn(&self, method: Method, decoder: Box<dyn AnswerDecoder>) {
        self.lock_learned().learn(method, decoder);
    }
}

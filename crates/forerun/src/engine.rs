//! The engine: loaded models on their devices, which answer requests.

use crate::answer::Answer;
use crate::answer_stream::{AnswerEvent, AnswerStream, Sink};
use crate::decoding::AnswerDecoders;
use crate::drafter::{LoadedDrafter, OpenDrafter};
use crate::drafter_context::DrafterContext;
use crate::error::ForerunError;
use crate::grammar::{Grammar, GrammarCompiler, GrammarError};
use crate::loader::Loader;
use crate::memory::{self, CorePart};
use crate::open_model::{OpenModel, open_model};
use crate::placed_weights::{FirstLayers, FirstLayersPlace, PlacedWeights};
use crate::plan::{Method, Plan};
use crate::ranks::{RankError, RankPart};
use crate::request::{Request, RequestError};
use crate::text_stream::TextStream;
use crate::tokenizer::{LongText, SpecialTokens, Tokenizer};
use crate::workers::{Loaded, worker_specs};
use forerun_cache::{PageEvent, PoolUsage};
use forerun_core::trace::Trace;
use forerun_core::{Constraint, Need, Role, Sampling, SequenceId, TokenId};
use forerun_cpu::{Isa, Weights};
use forerun_decode::{AnswerDecoder, DraftPattern, Limits, Sequence};
use forerun_formats::{Config, ModelTypes};
use forerun_runtime::{ClusterHandle, DeviceGroup, Runtime, Workers};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use forerun_runtime::Canceller;

/// An engine: models loaded on their device groups, ready to answer requests.
///
/// All methods take `&self`, so threads can share an engine. Answers that run at the same time
/// share forward passes. What one answer learns about draft lengths serves the next one. Dropping
/// the engine stops its workers.
///
/// ```
/// use forerun::{Forerun, Options, Plan, RandomPair, Request, SamplingOptions};
/// use std::ops::ControlFlow;
///
/// // A pair of tiny random models. Name your own checkpoints instead.
/// let pair = RandomPair::make()?;
/// let options = Options {
///     model: pair.target().into(),
///     draft_model: Some(pair.drafter().into()),
///     ..Options::default()
/// };
/// let engine = Forerun::open(&Plan::new(options)?)?;
///
/// let request = Request {
///     sampling: SamplingOptions { temperature: 0.7, ..SamplingOptions::default() },
///     max_tokens: 32,
///     seed: Some(1),
///     ..Request::default()
/// };
/// let answer = engine.generate("Once upon a time", &request, |text| {
///     print!("{text}");
///     ControlFlow::Continue(())
/// })?;
/// println!("\n{}", answer.summary());
/// # fn check_shareable(_: &(impl Send + Sync)) {}
/// # check_shareable(&engine);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Forerun {
    plan: Plan,
    config: Config,
    tokenizer: Arc<Tokenizer>,
    grammars: Arc<GrammarCompiler>,
    translates: bool,
    drafter_context: DrafterContext,
    reads_features: bool,
    workers: Box<dyn Workers>,
    sequences: AtomicU64,
    /// The draft lengths that earlier answers arrived at. Each answer starts with them.
    learned: Mutex<AnswerDecoders>,
    cache_usage: Vec<Arc<PoolUsage>>,
}

/// A plan whose models are loaded, as far as this process runs them.
pub(crate) struct OpenedPlan {
    plan: Plan,
    config: Config,
    tokenizer: Arc<Tokenizer>,
    translates: bool,
    drafter_context: DrafterContext,
    loaded: Arc<Loaded>,
}

impl OpenedPlan {
    /// Loads the models and starts the workers of this process: those of `part`, or all.
    pub(crate) fn start(
        plan: &Plan,
        loader: &mut Loader<'_>,
        part: Option<&RankPart>,
    ) -> Result<(Self, Runtime), ForerunError> {
        Isa::from_environment()?;
        let target = open_model(plan.model(), loader)?;
        let config = config(plan, &target)?;
        let mut drafters = OpenDrafter::all(plan, &target, loader)?;
        let translates = drafters.iter().any(OpenDrafter::translates);
        let drafter_context = DrafterContext::of(&drafters, config.max_position_embeddings);
        let features = drafters.iter().find_map(OpenDrafter::features);
        let is_here = |role: Role| {
            let mut workers =
                plan.workers().into_iter().filter(|worker| worker.roles().contains(&role));
            part.is_none_or(|part| workers.any(|worker| part.has(&worker)))
        };
        for (drafter, part) in drafters.iter_mut().flat_map(|drafter| Some((drafter, part?))) {
            drafter.set_part(part.of_role(Role::Drafter(drafter.index())));
        }
        drafters.retain(|drafter| {
            drafter.part() != CorePart::Whole || is_here(Role::Drafter(drafter.index()))
        });
        let targets =
            (0..plan.placement().replicas()).map(Role::Target).filter(|&role| is_here(role));
        let gpus: Vec<Option<usize>> = targets.map(|role| plan.placement().gpu_of(role)).collect();
        let on_cores = gpus.contains(&None);
        let gpus: Vec<usize> = gpus.into_iter().flatten().collect();
        loader.check_replicas(&gpus)?;
        // What does not fit on a GPU is for the cores, so its layers are loaded first.
        let first_layers = first_layers(plan, (&gpus, &target), &drafters, loader)?;
        let of_target = part.map_or(CorePart::Whole, RankPart::of_target);
        let is_member = of_target != CorePart::Whole;
        let needs_target = on_cores || is_member || first_layers.is_some();
        let (core_part, target_types) = match &first_layers {
            Some((first, _)) => {
                let cache = Some(first.cache_type);
                (CorePart::FromLayer(first.layers), ModelTypes { cache, ..plan.types() })
            }
            None => (of_target, plan.types()),
        };
        // A drafter on cores may use the head of a target that is elsewhere.
        let drafters_on_cores = drafters.iter().filter(|drafter| drafter.gpu().is_none());
        let shared_part = drafters_on_cores.filter_map(OpenDrafter::shared_part).max();
        let shared_part = shared_part.filter(|_| !needs_target);
        if !loader.shares_weights() {
            // All at once, so that a drafter that does not fit is found before the target is
            // loaded.
            let (checkpoint, types) = (&target.checkpoint, plan.types());
            let needed = match (needs_target, shared_part) {
                (true, _) => memory::of_model(checkpoint, target_types, core_part)?,
                (false, Some(part)) => memory::of_shared(checkpoint, types, part)?,
                (false, None) => 0,
            };
            let needed = drafters.iter().try_fold(needed, |needed, drafter| {
                Ok::<_, ForerunError>(needed.saturating_add(drafter.memory(plan)?))
            })?;
            memory::check(needed)?;
        }
        let part_types = (target_types, core_part);
        let mut load = || loader.load_part(plan.model(), &target.checkpoint, part_types);
        let weights = needs_target.then(&mut load).transpose()?;
        let on_gpus = gpus.into_iter().map(|gpu| {
            let target = loader.load_on(Some(gpu), plan.model(), &target.checkpoint, plan.types());
            target.map(|target| (gpu, target))
        });
        let is_split = first_layers.is_some();
        let gpu_targets = match first_layers {
            Some((_, on_gpus)) => on_gpus,
            None => on_gpus.collect::<Result<HashMap<_, _>, _>>()?,
        };
        let load = |drafter: OpenDrafter<'_>| {
            let of_target = match drafter.gpu() {
                Some(gpu) => gpu_targets.get(&gpu).filter(|_| !is_split).cloned(),
                None => weights.clone().map(PlacedWeights::Cores),
            };
            drafter.load(plan, (&target, of_target), loader)
        };
        let drafters = drafters.into_iter().map(load);
        let drafters = drafters.collect::<Result<Vec<_>, _>>()?;
        let vocab_size = target.checkpoint.architecture().vocab_size;
        let grammars = GrammarCompiler::new(Arc::clone(&target.tokenizer), config.vocab_size);
        let loaded = Arc::new(Loaded {
            target: weights,
            gpu_targets,
            vocab_size,
            features,
            drafters,
            grammars: Arc::new(grammars),
            cache_usage: Mutex::default(),
        });
        let runtime = Runtime::start(worker_specs(plan, &loaded, part)?)?;
        let (plan, tokenizer) = (plan.clone(), target.tokenizer);
        Ok((Self { plan, config, tokenizer, translates, drafter_context, loaded }, runtime))
    }

    /// Returns the weights of a model that this rank computes together with others.
    pub(crate) fn member_weights(&self, role: Role) -> Option<&Arc<Weights>> {
        match role {
            Role::Target(_) => self.loaded.target.as_ref(),
            Role::Drafter(index) => {
                let mut drafters = self.loaded.drafters.iter();
                drafters.find(|drafter| drafter.index() == index)?.member_weights()
            }
        }
    }

    /// Returns what a drafter drafts in one job, if it has a checkpoint and is in this process.
    pub(crate) fn pattern(&self, index: usize) -> Option<DraftPattern> {
        let drafter = self.loaded.drafters.iter().find(|drafter| drafter.index() == index);
        drafter.map(LoadedDrafter::pattern)
    }

    /// Returns what each drafter drafts in one job, as far as that is known in this process.
    fn patterns(&self) -> Vec<DraftPattern> {
        let drafters = 0..=self.plan.additional_drafters().len();
        drafters.map(|index| self.pattern(index).unwrap_or_default()).collect()
    }

    /// Returns the engine, which reaches its workers through `workers`.
    /// `patterns`: what each drafter drafts in one job.
    pub(crate) fn into_engine(
        self,
        workers: Box<dyn Workers>,
        patterns: &[DraftPattern],
    ) -> Forerun {
        let Self { plan, config, tokenizer, translates, drafter_context, loaded } = self;
        Forerun {
            learned: Mutex::new(AnswerDecoders::new(&plan, patterns)),
            plan,
            config,
            tokenizer,
            grammars: Arc::clone(&loaded.grammars),
            translates,
            drafter_context,
            reads_features: loaded.features.is_some(),
            workers,
            sequences: AtomicU64::new(0),
            cache_usage: loaded.cache_usage().clone(),
        }
    }
}

/// Returns the target's configuration, with the context length of the plan.
fn config(plan: &Plan, target: &OpenModel) -> Result<Config, ForerunError> {
    let mut config = target.checkpoint.config().clone();
    let context = config.max_position_embeddings;
    match plan.context_length() {
        Some(found) if found > context => {
            let model = plan.model().clone();
            Err(ForerunError::ContextLength { found, context, model })
        }
        limit => {
            config.max_position_embeddings = limit.unwrap_or(context);
            Ok(config)
        }
    }
}

/// Loads the first layers of a target that is split between GPUs and cores: those of the first GPU,
/// and by GPU. All replicas have the same number of layers there. `None` if it is not split.
#[expect(clippy::type_complexity, reason = "a pair")]
fn first_layers(
    plan: &Plan,
    (gpus, target): (&[usize], &OpenModel),
    drafters: &[OpenDrafter<'_>],
    loader: &mut Loader<'_>,
) -> Result<Option<(FirstLayers, HashMap<usize, PlacedWeights>)>, ForerunError> {
    let Some(DeviceGroup::GpuAndCores { gpu, layers, .. }) =
        plan.placement().target(0).and_then(|groups| groups.as_slice().first())
    else {
        return Ok(None);
    };
    let (checkpoint, types) = (&target.checkpoint, plan.types());
    let on_cores = drafters.iter().try_fold(0_usize, |sum, drafter| {
        Ok::<_, ForerunError>(sum.saturating_add(drafter.memory(plan)?))
    })?;
    if let Some(layers) = *layers
        && !loader.shares_weights()
    {
        // Before anything is uploaded.
        let layers = layers.min(checkpoint.architecture().layers.len());
        let rest = memory::of_model(checkpoint, types, CorePart::FromLayer(layers))?;
        memory::check(rest.saturating_add(on_cores))?;
    }
    let mut load = |gpu: usize, layers: Option<usize>| {
        let mut reserved_bytes = OpenDrafter::memory_on_gpu(drafters, gpu, plan, target)?;
        if loader.shares_main_memory(gpu)? {
            let ends = memory::of_model_without_layers(checkpoint, types)?;
            reserved_bytes = reserved_bytes.saturating_add(ends.saturating_add(on_cores) as u64);
        }
        let replicas = gpus.iter().filter(|other| **other == gpu).count();
        let place = FirstLayersPlace { gpu, layers, replicas, reserved_bytes };
        loader.load_first_layers(place, plan.model(), checkpoint, types)
    };
    let first = load(*gpu, *layers)?;
    let mut by_gpu = HashMap::from([(*gpu, first.weights.clone())]);
    for other in gpus {
        if !by_gpu.contains_key(other) {
            by_gpu.insert(*other, load(*other, Some(first.layers))?.weights);
        }
    }
    Ok(Some((first, by_gpu)))
}

impl Forerun {
    /// Loads the plan's models and starts a worker for each device group.
    ///
    /// # Errors
    /// If a checkpoint or tokenizer cannot be loaded, drafter and target do not fit together, or a
    /// worker cannot start.
    pub fn open(plan: &Plan) -> Result<Self, ForerunError> {
        Self::open_with(plan, &mut Loader::new())
    }

    /// Opens an engine as [`Forerun::open`] does, with a [`Loader`] that can report progress, share
    /// weights between engines, and stay offline.
    ///
    /// # Errors
    /// As [`Forerun::open`], or [`ForerunError::Cancelled`] if the loader's progress callback stops
    /// the loading.
    pub fn open_with(plan: &Plan, loader: &mut Loader<'_>) -> Result<Self, ForerunError> {
        Self::open_connected(plan, loader, |runtime| Box::new(runtime))
    }

    /// Opens an engine as [`Forerun::open_with`] does, and reaches its workers through what
    /// `connect` makes of them, such as messages (`forerun_wire::Connection`) to the workers of
    /// [`Plan::workers`].
    ///
    /// # Errors
    /// As [`Forerun::open_with`].
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
    /// Pages of a target with recurrent layers ([`Forerun::cache_answers`]) may be published
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

    /// Continues a text and returns the whole answer, without streaming.
    ///
    /// # Errors
    /// As [`Forerun::generate`].
    pub fn complete(&self, prompt: &str, request: &Request) -> Result<Answer, ForerunError> {
        self.generate(prompt, request, |_| ControlFlow::Continue(()))
    }

    /// Continues a text and streams the answer.
    ///
    /// `on_text` receives whole characters as soon as they are final, and nothing of a stop string.
    /// If it returns [`ControlFlow::Break`], the answer ends with
    /// [`Finish::Stopped`](crate::Finish::Stopped).
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, an option is out of range, or a job
    /// fails.
    pub fn generate(
        &self,
        prompt: &str,
        request: &Request,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        self.generate_interruptibly(prompt, request, &Canceller::new(), on_text)
    }

    /// Continues a text as [`Forerun::generate`] does. `canceller` stops the answer from another
    /// thread, even during a forward pass; the answer then ends with
    /// [`Finish::Stopped`](crate::Finish::Stopped).
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
        self.generate_tokens(self.encode_prompt(prompt)?, request, canceller, on_text)
    }

    /// Continues the given tokens as [`Forerun::generate_interruptibly`] continues a text. Nothing
    /// is added to the prompt, not even BOS.
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
        let continuation =
            Continuation { sequence: self.new_sequence(), method: self.plan.method() };
        let answer = self.continue_with(continuation, prompt, request, canceller, on_text);
        self.release(continuation.sequence);
        answer
    }

    /// Continues a text, as an iterator of events: tokens with their origin and log-probabilities,
    /// text, and in the end the whole [`Answer`]. Dropping the iterator cancels the answer.
    ///
    /// ```
    /// use forerun::{AnswerEvent, Forerun, Options, Plan, RandomPair, Request, TokenOrigin};
    ///
    /// let pair = RandomPair::make()?;
    /// let (model, draft_model) = (pair.target().into(), Some(pair.drafter().into()));
    /// let options = Options { model, draft_model, ..Options::default() };
    /// let engine = Forerun::open(&Plan::new(options)?)?;
    /// let request = Request { max_tokens: 16, ignore_eos: true, ..Request::default() };
    /// let (mut drafted, mut tokens) = (0, 0);
    /// for event in engine.stream("Once upon a time", &request)? {
    ///     match event? {
    ///         AnswerEvent::Token(token) => {
    ///             tokens += 1;
    ///             drafted += usize::from(token.origin == TokenOrigin::Draft);
    ///         }
    ///         AnswerEvent::Text(text) => print!("{text}"),
    ///         AnswerEvent::Finished(answer) => println!("\n{}", answer.summary()),
    ///     }
    /// }
    /// assert_eq!(tokens, 16);
    /// println!("{drafted} of {tokens} tokens were drafted");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, or an option is out of range. A job that
    /// fails is an error of the iterator, and its last item.
    pub fn stream(
        &self,
        prompt: &str,
        request: &Request,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let prompt = self.encode_prompt(prompt)?;
        self.stream_tokens(prompt, request, self.plan.method(), &Canceller::new())
    }

    /// Continues the given tokens as [`Forerun::stream`] continues a text, with a method that
    /// [`Forerun::check_method`] accepts. Nothing is added to the prompt. `canceller` stops the
    /// answer from another thread.
    ///
    /// # Errors
    /// As [`Forerun::stream`].
    pub fn stream_tokens(
        &self,
        prompt: Vec<TokenId>,
        request: &Request,
        method: Method,
        canceller: &Canceller,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let continuation = Continuation { sequence: self.new_sequence(), method };
        let mut stream = self.stream_with(continuation, prompt, request, canceller)?;
        stream.releases = true;
        Ok(stream)
    }

    /// Checks what [`Forerun::stream_tokens`] refuses, without starting the answer.
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, an option is out of range, or the
    /// grammar cannot be used.
    pub fn check_request(
        &self,
        prompt: &[TokenId],
        request: &Request,
        method: Method,
    ) -> Result<(), ForerunError> {
        let method = request.decoded_by(method);
        self.sampling_of(prompt, request, method)?;
        if let Some(grammar) = &request.grammar {
            self.grammars.constraint(grammar, &self.end_tokens(request))?;
        }
        self.draft_shape(method, request)?;
        Ok(())
    }

    /// Measures how long plain decoding takes for a token after the given tokens, in nanoseconds:
    /// the median of `count` tokens. Returns `None` if the context has no room for them, if they
    /// would take more than four seconds, or if `canceller` stops the measurement before.
    ///
    /// # Errors
    /// As [`Forerun::stream`].
    pub fn plain_token_ns(
        &self,
        tokens: Vec<TokenId>,
        count: usize,
        canceller: &Canceller,
    ) -> Result<Option<f64>, ForerunError> {
        const LONGEST: Duration = Duration::from_secs(4);
        let room = self.config.max_position_embeddings.saturating_sub(tokens.len());
        if room <= count {
            return Ok(None);
        }
        let request = Request { max_tokens: count + 1, ignore_eos: true, ..Request::default() };
        let stream = self.stream_tokens(tokens, &request, Method::Autoregressive, canceller)?;
        let (mut times, mut last, mut measured) = (Vec::new(), None, Duration::ZERO);
        for event in stream {
            if !matches!(event?, AnswerEvent::Token(_)) {
                continue;
            }
            let now = Instant::now();
            if let Some(last) = last.replace(now) {
                times.push(now - last);
                measured += now - last;
            }
            if measured * count as u32 > LONGEST * times.len() as u32 {
                return Ok(None);
            }
        }
        times.sort_unstable();
        let median = times.get(count / 2).filter(|_| times.len() == count);
        Ok(median.map(|time| time.as_nanos() as f64))
    }

    /// Encodes a text as [`Forerun::generate`] does.
    ///
    /// # Errors
    /// If the text is empty or too long for the context, or cannot be encoded.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<TokenId>, ForerunError> {
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        self.encode_text(prompt, SpecialTokens { add: true, parse: true })
    }

    /// Encodes a text, which may be empty.
    ///
    /// # Errors
    /// If the text is too long for the context, or cannot be encoded.
    pub fn encode_text(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<TokenId>, ForerunError> {
        let context = self.config.max_position_embeddings;
        if let Some(LongText { bytes, tokens }) = self.tokenizer.too_long(text, context)? {
            let model = self.plan.model().clone();
            return Err(ForerunError::PromptFarTooLong { bytes, tokens, context, model });
        }
        Ok(self.tokenizer.encode_with(text, special)?)
    }

    /// Checks that a grammar can be used with this model, and keeps it for answers.
    ///
    /// # Errors
    /// If it is malformed, has no texts, needs something unsupported, or is too large.
    pub fn check_grammar(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        self.grammars.compile(grammar).map(|_| ())
    }

    /// Compiles a grammar to the constraint of an answer that ends with one of `end_tokens`, for
    /// your own jobs and decoders. Only end tokens without text count.
    ///
    /// # Errors
    /// As [`Forerun::check_grammar`], or if no end token is left.
    pub fn constraint(
        &self,
        grammar: &Grammar,
        end_tokens: &[TokenId],
    ) -> Result<Constraint, GrammarError> {
        let (specification, compiled) = self.grammars.constraint(grammar, end_tokens)?;
        Ok(Constraint::new(specification, compiled))
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

    /// Continues tokens as [`Forerun::generate_tokens`] does, within a sequence of several answers:
    /// the workers reuse the prefix of `prompt` that their caches hold, and keep the caches.
    pub(crate) fn continue_with(
        &self,
        continuation: Continuation,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let mut stream = self.stream_with(continuation, prompt, request, canceller)?;
        while let Some(event) = stream.next().transpose()? {
            match event {
                AnswerEvent::Token(_) => {}
                AnswerEvent::Text(text) => {
                    if on_text(&text).is_break() {
                        stream.stop();
                    }
                }
                AnswerEvent::Finished(answer) => return Ok(*answer),
            }
        }
        unreachable!("a stream ends with its answer or with an error")
    }

    /// Returns the sampling options of an answer, and checks them and the prompt.
    fn sampling_of(
        &self,
        prompt: &[TokenId],
        request: &Request,
        method: Method,
    ) -> Result<Sampling, ForerunError> {
        let sampling = request.keyed_sampling(request.verification_by(method)?)?;
        sampling.validate_for(self.config.vocab_size).map_err(RequestError::from)?;
        let context = self.config.max_position_embeddings;
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        if prompt.len() >= context {
            let model = self.plan.model().clone();
            return Err(ForerunError::PromptTooLong { prompt: prompt.len(), context, model });
        }
        Ok(sampling)
    }

    /// Returns the tokens that end an answer.
    fn end_tokens(&self, request: &Request) -> Vec<TokenId> {
        let mut ends = request.stop_tokens.clone();
        if !request.ignore_eos {
            ends.extend(&self.config.eos_token_ids);
        }
        ends
    }

    /// Starts an answer that continues tokens.
    fn stream_with(
        &self,
        continuation: Continuation,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let method = request.decoded_by(continuation.method);
        let mut sampling = self.sampling_of(&prompt, request, method)?;
        let score = |top| self.score(&prompt[..1], &prompt[1..], top, canceller);
        let prompt_logprobs = request.prompt_logprobs.map(score).transpose()?;
        let context = self.config.max_position_embeddings;
        let eos = self.end_tokens(request);
        let grammar = match &request.grammar {
            Some(grammar) => Some(self.grammars.constraint(grammar, &eos)?),
            None => None,
        };
        sampling.constraint = grammar.as_ref().map(|(specification, compiled)| {
            Constraint::new(specification.as_str(), Arc::clone(compiled) as _)
        });
        let grammar = grammar.map(|(_, compiled)| compiled);
        let limits = Limits { max_tokens: request.max_tokens, context_length: context, eos };
        let id = continuation.sequence;
        let seed = sampling.randomness.seed;
        // Rejection sampling and block verification draw other numbers for other draft lengths. If
        // a seed promises the same text, the length must not depend on measured times.
        let reproducible = !sampling.is_deterministic() && request.seed.is_some();
        let verification = sampling.verification;
        let mut text = TextStream::new(&self.tokenizer, &prompt);
        if request.special_tokens {
            text = text.with_special_tokens();
        }
        let sink = Sink::new(text, &request.stop);
        let prompt_tokens = prompt.len();
        let mut sequence = Sequence::new(id, prompt, sampling, limits);
        if let Some(top) = request.logprobs {
            sequence = sequence.with_logprobs(top);
        }
        if self.reads_features && method.offers(Need::Features) {
            sequence = sequence.with_features();
        }
        if self.plan.drafter().needs(Need::Feedback) && method.offers(Need::Feedback) {
            sequence = sequence.with_draft_feedback();
        }
        let shape = self.draft_shape(method, request)?;
        // A shape that was chosen for one answer says nothing about the next one.
        let learns = !reproducible && shape.is_none();
        let decoder = self.lock_learned().decoder(method, prompt_tokens, reproducible, shape);
        Ok(AnswerStream {
            engine: self,
            sequence,
            cluster: self.workers.cluster(canceller),
            decoder: Some(decoder),
            grammar,
            method,
            sink,
            canceller: canceller.clone(),
            learns,
            releases: false,
            prompt_tokens,
            prompt_logprobs,
            verification,
            seed,
            events: VecDeque::new(),
        })
    }
}

/// The sequence that an answer continues, and the decoding method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    /// The id of the caches.
    pub(crate) sequence: SequenceId,
    /// The method, which the plan's workers must support.
    pub(crate) method: Method,
}

//! The models of a server: which of them are loaded, and who uses them.
//!
//! A request borrows its model for as long as it needs it ([`Lease`]). A model that is not loaded
//! is loaded first, and others make room for it: the least recently used ones, after the answers
//! that use them have ended. Loads take turns, so requests for one model wait for one load.

mod keep_alive;
mod lease;

pub use keep_alive::{KeepAlive, UnknownKeepAlive};
pub(crate) use lease::{Entry, Lease};

use crate::admission::QueueFull;
use crate::generation::Generator;
use crate::metrics::{Metrics, Series, render_all};
use forerun::checkpoint::ModelSummary;
use forerun::text::{ChatSyntax, ChatTemplateError};
use forerun::{ChatTemplate, Engine, ForerunError, Loader, ModelSource, Plan};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout_at;

const MIB: u64 = 1 << 20;
/// How often the server looks for models that nobody has used for long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A model that a server loads when a request names it.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Its name in requests and answers.
    pub name: String,
    /// Further names in requests.
    pub aliases: Vec<String>,
    /// Its weights, drafter and devices.
    pub plan: Plan,
    /// Whether hub models come from the cache only.
    pub offline: bool,
    /// The chat template: a file, or the name of one that the checkpoint ships. `None` is the
    /// checkpoint's own.
    pub chat_template: Option<String>,
    /// How the model writes reasoning and tool calls. `None` recognises it by the chat template.
    pub chat_syntax: Option<ChatSyntax>,
    /// Whether it is loaded before the server answers.
    pub preload: bool,
    /// How long it stays loaded after its last use.
    pub keep_alive: KeepAlive,
}

/// Why a list of models cannot be served.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ModelsError {
    /// There is no model.
    #[error("there is no model: name one")]
    None,
    /// Two models have the same name or alias.
    #[error("two models have the name {0:?}: give each a name of its own")]
    SameName(String),
    /// The default is no model.
    #[error("the default is {default:?}, but there is no such model: name one of {names}")]
    Default {
        /// The name.
        default: String,
        /// The names of all models.
        names: String,
    },
}

/// The models of a server.
pub struct Models {
    entries: Vec<Arc<Entry>>,
    /// The name of the model or adapter of requests that name none, or an unknown one.
    default: Option<String>,
    /// The most bytes of the weights and full caches of all loaded models.
    memory_bytes: Option<u64>,
    /// Who has it may load and unload models.
    turn: Arc<Mutex<()>>,
    /// The number of requests that wait for a load.
    waiting: AtomicUsize,
}

/// A loaded model.
#[derive(Clone)]
pub(crate) struct Model {
    /// The name of the model, or of its adapter.
    pub(crate) name: String,
    pub(crate) adapter: Option<String>,
    pub(crate) generator: Arc<Generator>,
    pub(crate) template: Arc<ChatTemplate>,
    /// How the model writes reasoning and tool calls.
    pub(crate) syntax: ChatSyntax,
    pub(crate) metrics: Arc<Metrics>,
    /// The bytes of its weights and full caches, if they are limited.
    memory_bytes: u64,
}

/// Why a request gets no model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LendError {
    #[error("the model {name:?} does not exist; this server has {names}")]
    Unknown { name: String, names: String },
    #[error("model is required: this server has {0}")]
    Unnamed(String),
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    #[error("the request has waited for too long")]
    TimedOut,
    #[error("cannot load the model {name:?}: {cause}")]
    Load { name: String, cause: LoadFailure },
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(Box<ForerunError>),
    /// The chat template cannot be read.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// The model alone needs more than the server's models may have together.
    #[error(
        "it needs {} MiB with full caches, but the models of this server may have {} MiB together: \
         raise memory-budget, or lower the model's cache-bytes",
        needed.div_ceil(MIB), budget / MIB
    )]
    Budget {
        /// The bytes of its weights and full caches.
        needed: u64,
        /// The bytes for all models.
        budget: u64,
    },
    /// The thread that loads it has panicked.
    #[error("the load has ended without a result")]
    Ended,
}

impl From<ForerunError> for LoadFailure {
    fn from(error: ForerunError) -> Self {
        Self::Engine(Box::new(error))
    }
}

/// How long a request waits for its model, and among how many others.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) deadline: tokio::time::Instant,
    /// The most requests that wait for a load.
    pub(crate) queue: usize,
}

impl Models {
    /// Returns models of which none is loaded. Requests that name no model, or an unknown one, get
    /// the `default`. Weights and full caches of the loaded models take `memory_bytes` at most;
    /// without this limit, models are unloaded if the machine lacks memory for another one.
    ///
    /// # Errors
    /// If names do not fit together.
    pub fn new(
        models: Vec<ModelOptions>,
        default: Option<&str>,
        memory_bytes: Option<u64>,
    ) -> Result<Self, ModelsError> {
        let mut names = HashSet::new();
        let names_of = models.iter().flat_map(|model| {
            let adapters = model.plan.adapters().iter().map(|adapter| &adapter.name);
            [&model.name].into_iter().chain(&model.aliases).chain(adapters)
        });
        for name in names_of {
            if !names.insert(name) {
                return Err(ModelsError::SameName(name.clone()));
            }
        }
        let entries = models.into_iter().map(|model| Arc::new(Entry::new(model))).collect();
        let mut models = Self::of(entries);
        models.memory_bytes = memory_bytes;
        if models.entries.is_empty() {
            return Err(ModelsError::None);
        }
        if let Some(name) = default {
            let wrong = || ModelsError::Default { default: name.to_owned(), names: models.names() };
            let entry = models.named(name).map_err(|_| wrong())?;
            let own = entry.names().find(|own| *own == name).unwrap_or(entry.name());
            models.default = Some(own.to_owned());
        }
        Ok(models)
    }

    /// Returns the only model of a server, which is loaded already and stays so. `syntax` says how
    /// it writes reasoning and tool calls; `None` recognises it by the chat template.
    #[must_use]
    pub fn of_one(
        name: impl Into<String>,
        forerun: Engine,
        template: ChatTemplate,
        syntax: Option<ChatSyntax>,
    ) -> Self {
        let options = ModelOptions {
            name: name.into(),
            aliases: Vec::new(),
            plan: forerun.plan().clone(),
            offline: true,
            chat_template: None,
            chat_syntax: syntax,
            preload: true,
            keep_alive: KeepAlive::ALWAYS,
        };
        Self::of(vec![Arc::new(Entry::loaded(options, forerun, template))])
    }

    fn of(entries: Vec<Arc<Entry>>) -> Self {
        let (turn, waiting) = (Arc::default(), AtomicUsize::new(0));
        Self { entries, default: None, memory_bytes: None, turn, waiting }
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Returns the name of the default model, or of the first one.
    pub(crate) fn first(&self) -> &str {
        self.default.as_deref().unwrap_or_else(|| self.entries[0].name())
    }

    fn names(&self) -> String {
        let names = self.entries.iter().flat_map(|entry| entry.names());
        let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
        names.join(", ")
    }

    /// Returns the model with this name or alias, or with an adapter of this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Arc<Entry>, LendError> {
        let named = self.entries.iter().find(|entry| entry.has_name(name));
        named.ok_or_else(|| LendError::Unknown { name: name.to_owned(), names: self.names() })
    }

    /// Returns the name that a request means: the default for none, or for an unknown one.
    fn meant<'a>(&'a self, name: Option<&'a str>) -> Option<&'a str> {
        let Some(default) = self.default.as_deref() else { return name };
        name.filter(|name| self.named(name).is_ok()).or(Some(default))
    }

    /// Returns the model of a request.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Arc<Entry>, LendError> {
        match (self.meant(name), &self.entries[..]) {
            (Some(name), _) => self.named(name),
            (None, [entry]) => Ok(entry),
            (None, _) => Err(LendError::Unnamed(self.names())),
        }
    }

    /// Lends the model of a request, and loads it if necessary.
    pub(crate) async fn lend(
        self: &Arc<Self>,
        name: Option<&str>,
        patience: Patience,
    ) -> Result<Arc<Lease>, LendError> {
        let (asked, name) = (Instant::now(), self.meant(name));
        let entry = self.find(name)?;
        if let Some(lease) = entry.lease(asked) {
            return Ok(Arc::new(lease.named(name)));
        }
        let _waiting = Waiting::begin(&self.waiting, entry, patience.queue)?;
        let turn = timeout_at(patience.deadline, Arc::clone(&self.turn).lock_owned()).await;
        let turn = turn.map_err(|_| LendError::TimedOut)?;
        // A client that goes away does not stop a load that has begun.
        let loading = tokio::spawn(Arc::clone(self).load(Arc::clone(entry), asked, turn));
        let loaded = timeout_at(patience.deadline, loading).await;
        let loaded = loaded.map_err(|_| LendError::TimedOut)?;
        let failed = |cause| LendError::Load { name: entry.name().to_owned(), cause };
        let lease = loaded.map_err(|_| failed(LoadFailure::Ended))?.map_err(failed)?;
        Ok(Arc::new(lease.named(name)))
    }

    /// Loads a model, unless another request has.
    async fn load(
        self: Arc<Self>,
        entry: Arc<Entry>,
        asked: Instant,
        _turn: OwnedMutexGuard<()>,
    ) -> Result<Lease, LoadFailure> {
        if let Some(lease) = entry.lease(asked) {
            return Ok(lease);
        }
        let mut memory_bytes = 0;
        if let Some(budget) = self.memory_bytes {
            memory_bytes = entry.blocking(needed_memory).await?;
            if memory_bytes > budget {
                return Err(LoadFailure::Budget { needed: memory_bytes, budget });
            }
            let used = || self.entries.iter().map(|entry| entry.memory_bytes()).sum::<u64>();
            while used() > budget - memory_bytes && self.unload_oldest().await {}
        }
        loop {
            let metrics = Arc::clone(entry.metrics());
            match entry.blocking(move |options| open(options, metrics, memory_bytes)).await {
                Err(LoadFailure::Engine(error))
                    if matches!(*error, ForerunError::Memory { .. })
                        && self.unload_oldest().await => {}
                loaded => return Ok(entry.put(loaded?, asked)),
            }
        }
    }

    /// Unloads the least recently used model, one without answers in progress if there is one.
    /// Returns whether one was loaded.
    async fn unload_oldest(&self) -> bool {
        let loaded = self.entries.iter().filter_map(|entry| Some((entry.use_order()?, entry)));
        let Some((_, oldest)) = loaded.min_by_key(|(order, _)| *order) else { return false };
        oldest.unload().await;
        true
    }

    /// Loads the models that are wanted before the first request.
    ///
    /// # Errors
    /// Names the first model that cannot be loaded.
    pub(crate) async fn preload(self: &Arc<Self>) -> Result<(), (String, LoadFailure)> {
        for entry in self.entries.iter().filter(|entry| entry.options().preload) {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            let loaded = Arc::clone(self).load(Arc::clone(entry), Instant::now(), turn).await;
            loaded.map_err(|cause| (entry.name().to_owned(), cause))?;
        }
        Ok(())
    }

    /// Unloads a model when its answers have ended. Returns whether it can be unloaded.
    pub(crate) async fn unload(self: &Arc<Self>, entry: &Arc<Entry>) -> bool {
        if entry.stays() {
            return false;
        }
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let entry = Arc::clone(entry);
        let unloading = tokio::spawn(async move {
            entry.unload().await;
            drop(turn);
        });
        unloading.await.is_ok()
    }

    /// Unloads models that nobody has used for as long as they are kept.
    pub(crate) async fn unload_unused(self: Arc<Self>) {
        while !self.entries.iter().all(|entry| entry.stays()) {
            tokio::time::sleep(LOOK_EVERY).await;
            for entry in self.entries.iter().filter(|entry| entry.is_unused()) {
                let _turn = self.turn.lock().await;
                if entry.is_unused() {
                    entry.unload().await;
                }
            }
        }
    }

    /// Ends all answers in progress.
    pub(crate) fn cancel_all(&self) {
        for entry in &self.entries {
            entry.if_loaded(|model| model.generator.cancel_all());
        }
    }

    /// Writes the metrics of all models.
    pub(crate) fn render_metrics(&self) -> String {
        let usage = |entry: &Arc<Entry>| {
            entry.if_loaded(|model| model.generator.forerun().cache_usage()).flatten()
        };
        let series = self.entries.iter().map(|entry| Series {
            model: entry.name(),
            metrics: entry.metrics(),
            cache_usage: usage(entry),
        });
        render_all(&series.collect::<Vec<_>>())
    }
}

impl Model {
    fn new(
        options: &ModelOptions,
        (forerun, template): (Engine, ChatTemplate),
        metrics: Arc<Metrics>,
        memory_bytes: u64,
    ) -> Self {
        Self {
            name: options.name.clone(),
            adapter: None,
            generator: Arc::new(Generator::new(forerun, Arc::clone(&metrics))),
            syntax: options.chat_syntax.unwrap_or_else(|| ChatSyntax::of_template(&template)),
            template: Arc::new(template),
            metrics,
            memory_bytes,
        }
    }
}

/// Opens the engine of a model.
fn open(
    options: &ModelOptions,
    metrics: Arc<Metrics>,
    memory_bytes: u64,
) -> Result<Model, LoadFailure> {
    tracing::info!(model = options.name, "loading a model");
    let since = Instant::now();
    let mut loader = Loader::new().offline(options.offline);
    let forerun = Engine::open_with(&options.plan, &mut loader)?;
    let template = forerun.choose_chat_template(options.chat_template.as_deref())?;
    let model = Model::new(options, (forerun, template), metrics, memory_bytes);
    let milliseconds = since.elapsed().as_millis() as u64;
    tracing::info!(model = options.name, milliseconds, "model loaded");
    Ok(model)
}

fn needed_memory(options: &ModelOptions) -> Result<u64, LoadFailure> {
    let mut loader = Loader::new().offline(options.offline);
    Ok(Engine::most_memory(&options.plan, &mut loader)?)
}

/// A request that waits for a load.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    metrics: &'a Metrics,
}

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize, entry: &'a Entry, queue: usize) -> Result<Self, LendError> {
        let room = |waiting: usize| (waiting <= queue).then_some(waiting + 1);
        let entered = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        entered.map_err(|_| QueueFull)?;
        let metrics = entry.metrics();
        metrics.waiting.add(1);
        Ok(Self { count, metrics })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.metrics.waiting.add(-1);
    }
}

/// What is known of a model without loading it, once it has been read.
#[derive(Default)]
struct Facts(OnceLock<Option<ModelSummary>>);

impl Facts {
    /// Reads them. A hub model that is not in the cache has none.
    fn read(&self, plan: &Plan) -> Option<&ModelSummary> {
        let read = |source: &ModelSource| {
            ModelSummary::read(source, plan.weight_type(), &mut Loader::new().offline(true)).ok()
        };
        self.0.get_or_init(|| read(plan.model())).as_ref()
    }
}

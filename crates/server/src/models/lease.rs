//! One model of a server, and those who use it.

use super::{Facts, KeepAlive, LoadFailure, Model, ModelOptions};
use crate::metrics::Metrics;
use forerun::checkpoint::ModelSummary;
use forerun::{ChatTemplate, Engine};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A model that may be loaded.
pub(crate) struct Entry {
    options: ModelOptions,
    /// Whether it was loaded before the server began, and stays so.
    stays: bool,
    metrics: Arc<Metrics>,
    facts: Facts,
    slot: Mutex<Slot>,
    /// Notified when the last lease has ended.
    returned: Notify,
}

struct Slot {
    model: Option<Arc<Model>>,
    /// The number of leases.
    leases: usize,
    /// Whether the model is unloaded as soon as its leases have ended.
    is_leaving: bool,
    last_use: Instant,
    keep_alive: KeepAlive,
}

/// The use of a loaded model, which stays loaded as long as this exists.
pub(crate) struct Lease {
    model: Arc<Model>,
    entry: Arc<Entry>,
    /// When the request asked for it.
    pub(crate) asked: Instant,
    /// How long the request waited for it.
    pub(crate) waited: Duration,
}

impl Entry {
    pub(super) fn new(options: ModelOptions) -> Self {
        let slot = Mutex::new(Slot {
            model: None,
            leases: 0,
            is_leaving: false,
            last_use: Instant::now(),
            keep_alive: options.keep_alive,
        });
        let (metrics, facts, returned) = (Arc::default(), Facts::default(), Notify::new());
        Self { options, stays: false, metrics, facts, slot, returned }
    }

    /// Returns a model that is loaded and stays so.
    pub(super) fn loaded(options: ModelOptions, forerun: Engine, template: ChatTemplate) -> Self {
        let entry = Self { stays: true, ..Self::new(options) };
        let metrics = Arc::clone(&entry.metrics);
        let model = Model::new(&entry.options, (forerun, template), metrics, 0);
        entry.lock().model = Some(Arc::new(model));
        entry
    }

    pub(crate) fn name(&self) -> &str {
        &self.options.name
    }

    pub(crate) fn options(&self) -> &ModelOptions {
        &self.options
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns whether it is never unloaded.
    pub(crate) fn stays(&self) -> bool {
        self.stays
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names().chain(self.options.aliases.iter().map(String::as_str)).any(|own| own == name)
    }

    /// Returns the names of the model and of its adapters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let adapters = self.options.plan.adapters().iter().map(|adapter| &*adapter.name);
        [self.name()].into_iter().chain(adapters)
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the model, if it is loaded.
    pub(crate) fn if_loaded<T>(&self, look: impl FnOnce(&Model) -> T) -> Option<T> {
        self.lock().model.as_deref().map(look)
    }

    /// Lends the model, if it is loaded and stays so.
    pub(super) fn lease(self: &Arc<Self>, asked: Instant) -> Option<Lease> {
        let mut slot = self.lock();
        let model = slot.model.clone().filter(|_| !slot.is_leaving)?;
        slot.leases += 1;
        let entry = Arc::clone(self);
        Some(Lease { model, entry, asked, waited: asked.elapsed() })
    }

    /// Keeps a model that was loaded, and lends it.
    pub(super) fn put(self: &Arc<Self>, model: Model, asked: Instant) -> Lease {
        let model = Arc::new(model);
        let mut slot = self.lock();
        slot.model = Some(Arc::clone(&model));
        slot.leases += 1;
        slot.keep_alive = self.options.keep_alive;
        let entry = Arc::clone(self);
        Lease { model, entry, asked, waited: asked.elapsed() }
    }

    /// Unloads the model when its leases have ended.
    pub(super) async fn unload(&self) {
        self.lock().is_leaving = true;
        while self.lock().leases > 0 {
            self.returned.notified().await;
        }
        let model = self.lock().model.take();
        if model.is_some() {
            // The end of an engine waits for its threads.
            tokio::task::spawn_blocking(move || drop(model)).await.ok();
            tracing::info!(model = self.name(), "model unloaded");
        }
        self.lock().is_leaving = false;
    }

    /// Returns an order in which loaded models are unloaded: whether it is in use, and when it was
    /// used last. `None` if it is not loaded, or stays.
    pub(super) fn use_order(&self) -> Option<(bool, Instant)> {
        let slot = self.lock();
        (slot.model.is_some() && !self.stays).then_some((slot.leases > 0, slot.last_use))
    }

    /// Returns whether nobody has used the model for as long as it is kept.
    pub(super) fn is_unused(&self) -> bool {
        !self.stays && self.rest_of_life() == Some(Duration::ZERO)
    }

    /// Returns how long the model stays loaded if nobody uses it any more; `None` for ever, or if
    /// it is not loaded.
    pub(crate) fn rest_of_life(&self) -> Option<Duration> {
        let slot = self.lock();
        let kept = slot.keep_alive.duration().filter(|_| slot.model.is_some() && !self.stays)?;
        match slot.leases {
            0 => Some(kept.saturating_sub(slot.last_use.elapsed())),
            // At least a moment, because it is in use.
            _ => Some(kept.max(Duration::from_nanos(1))),
        }
    }

    /// Returns the memory that counts for the model while it is loaded.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.if_loaded(|model| model.memory_bytes).unwrap_or(0)
    }

    /// Returns the most tokens of a prompt and its answer, if they are known. It may read files.
    pub(crate) fn context_length(&self) -> Option<usize> {
        let of_engine = |model: &Model| model.generator.forerun().config().max_position_embeddings;
        self.if_loaded(of_engine).or_else(|| {
            let own = self.facts()?.config.max_position_embeddings;
            Some(self.options.plan.context_length().map_or(own, |limit| limit.min(own)))
        })
    }

    /// Returns what is known of the model without loading it. It may read files.
    pub(crate) fn facts(&self) -> Option<&ModelSummary> {
        self.facts.read(&self.options.plan)
    }

    /// Runs a task that blocks.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        run: impl FnOnce(&ModelOptions) -> Result<T, LoadFailure> + Send + 'static,
    ) -> Result<T, LoadFailure> {
        let entry = Arc::clone(self);
        let ended = tokio::task::spawn_blocking(move || run(&entry.options)).await;
        ended.map_err(|_| LoadFailure::Ended)?
    }
}

impl Lease {
    /// Returns the lease for requests with this name, which may be that of an adapter.
    pub(super) fn named(mut self, name: Option<&str>) -> Self {
        let is_it = |own: &&str| Some(*own) == name && *own != self.entry.name();
        let adapter = self.entry.names().find(is_it);
        if let Some(adapter) = adapter.map(str::to_owned) {
            let (name, adapter) = (adapter.clone(), Some(adapter));
            self.model = Arc::new(Model { name, adapter, ..(*self.model).clone() });
        }
        self
    }

    /// Sets how long the model stays loaded after its last use, until it is unloaded or another
    /// request says otherwise.
    pub(crate) fn keep(&self, keep_alive: KeepAlive) {
        self.entry.lock().keep_alive = keep_alive;
    }
}

impl Deref for Lease {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut slot = self.entry.lock();
        slot.leases -= 1;
        slot.last_use = Instant::now();
        if slot.leases == 0 {
            self.entry.returned.notify_one();
        }
    }
}

//! forerun's side of Dynamo's worker API.

use crate::cache_events::{BLOCK_TOKENS, RetainedBlocks};
use crate::error::{cannot_start, invalid, of_engine, shut_down};
use crate::output::Outputs;
use crate::request::{Policy, task_of};
use async_trait::async_trait;
use dynamo_backend_common::{
    AsyncEngineContext, ComponentSnapshot, DynamoError, EngineConfig, GenerateContext,
    KvEventPublisher, KvEventSource, LLMEngine, LLMEngineOutput, LlmRegistration, MetricsBindings,
    MetricsCtx, PreprocessedRequest, SnapshotPublisher,
};
use dynamo_llm::kv_router::protocols::KvCacheEvent;
use forerun::{Engine, Plan};
use forerun_cli::EngineArguments;
use forerun_server::{Admission, Generator, Metrics, Task};
use futures::stream::BoxStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What a worker serves, and how.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The options of the models and devices.
    pub engine: EngineArguments,
    /// The plan of these options.
    pub plan: Plan,
    /// The name of the model in requests.
    pub model_name: String,
    /// The number of answers that are generated at the same time, at least 1. Others wait.
    pub parallel: usize,
    /// How long answers may finish when the worker shuts down, before they move to another worker.
    pub drain: Duration,
    /// Whether to refuse requests with frequency or presence penalties, whose answers cannot move.
    pub refuse_penalties: bool,
}

/// The only rank: a worker has no data parallelism of its own.
const RANK: u32 = 0;
/// Requests that may wait. The router knows how many a worker has, and the front end limits them.
const QUEUE: usize = 1 << 20;
/// How often a worker that shuts down looks whether its answers have ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long answers that move may take to tell the front end.
const TELL: Duration = Duration::from_secs(1);

/// A worker that answers requests with a [`Engine`] engine.
pub struct ForerunWorker {
    options: WorkerOptions,
    metrics: Arc<Metrics>,
    /// The engine, from the start until the end.
    serving: Mutex<Option<Arc<Serving>>>,
}

/// What answers share.
struct Serving {
    generator: Arc<Generator>,
    admission: Admission,
    metrics: Arc<Metrics>,
    policy: Policy,
    total_blocks: u64,
    /// The number of streams that have not ended.
    streams: AtomicUsize,
    /// Whether answers must end now.
    ended: watch::Sender<bool>,
    load: OnceLock<Arc<SnapshotPublisher>>,
}

/// A stream that has not ended.
struct Stream(Arc<Serving>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
        self.0.report_load();
    }
}

impl ForerunWorker {
    /// Creates a worker, which loads its models when Dynamo starts it.
    #[must_use]
    pub fn new(options: WorkerOptions) -> Self {
        Self { options, metrics: Arc::default(), serving: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Serving>>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serving(&self) -> Result<Arc<Serving>, DynamoError> {
        self.lock().clone().ok_or_else(shut_down)
    }
}

impl Serving {
    fn new(forerun: Engine, options: &WorkerOptions, metrics: &Arc<Metrics>) -> Self {
        let tokens = forerun.cache_tokens().unwrap_or(0) as u64;
        Self {
            generator: Arc::new(Generator::new(forerun, Arc::clone(metrics))),
            admission: Admission::new(options.parallel, QUEUE),
            metrics: Arc::clone(metrics),
            policy: Policy { refuse_penalties: options.refuse_penalties },
            total_blocks: tokens / u64::from(BLOCK_TOKENS),
            streams: AtomicUsize::new(0),
            ended: watch::Sender::new(false),
            load: OnceLock::new(),
        }
    }

    /// Returns whether the cache's pages can be reported: prefixes that are kept can be used again
    /// as they are. Those of recurrent layers need a state as well.
    fn has_prefixes(&self) -> bool {
        let forerun = self.generator.forerun();
        forerun.cache_tokens().is_some() && forerun.cache_answers().is_none()
    }

    /// Reports to the router how full the cache is.
    fn report_load(&self) {
        let share = self.generator.forerun().cache_usage();
        if let (Some(load), Some(share)) = (self.load.get(), share) {
            let used = (share * self.total_blocks as f64).ceil() as u64;
            let snapshot = ComponentSnapshot {
                kv_used_blocks: used,
                kv_total_blocks: self.total_blocks,
                gpu_cache_usage: share as f32,
                kv_cache_hit_rate: None,
                dp_rank: RANK,
            };
            load.publish(RANK, snapshot);
        }
    }

    /// Answers a request. Dropping the stream cancels the answer.
    fn answer(
        self: Arc<Self>,
        task: Task,
        context: Arc<dyn AsyncEngineContext>,
    ) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let stream = Stream(Arc::clone(&self));
        Box::pin(async_stream::stream! {
            let _stream = stream;
            let mut ended = self.ended.subscribe();
            let mut outputs = Outputs::of(&task, self.generator.forerun().config());
            let admitted = self.admission.enter(1, &self.metrics);
            let Ok(mut admitted) = admitted else { return yield Err(shut_down()) };
            let place = tokio::select! {
                biased;
                end = interruption(&*context, &mut ended) => return yield end,
                place = admitted.place() => place,
            };
            let mut events = self.generator.start(task, place);
            self.report_load();
            loop {
                let event = tokio::select! {
                    biased;
                    end = interruption(&*context, &mut ended) => return yield end,
                    event = events.next() => event,
                };
                match event {
                    Some(Ok(event)) => {
                        let Some(output) = outputs.push(event) else { continue };
                        let is_last = output.finish_reason.is_some();
                        yield Ok(output);
                        if is_last {
                            return;
                        }
                    }
                    Some(Err(error)) => return yield Err(of_engine(&error)),
                    None => return yield Err(shut_down()),
                }
            }
        })
    }

    /// Waits until no stream is left, for some time at most.
    async fn wait(&self, longest: Duration) {
        let start = Instant::now();
        while self.streams.load(Ordering::Relaxed) > 0 && start.elapsed() < longest {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Waits until the client, the front end or the worker ends an answer. Returns its last output.
async fn interruption(
    context: &dyn AsyncEngineContext,
    ended: &mut watch::Receiver<bool>,
) -> Result<LLMEngineOutput, DynamoError> {
    tokio::select! {
        biased;
        () = context.stopped() => Ok(LLMEngineOutput::cancelled()),
        () = context.killed() => Ok(LLMEngineOutput::cancelled()),
        _ = ended.wait_for(|ended| *ended) => Err(shut_down()),
    }
}

/// Reports the pages of the target's cache to the router from now on.
fn report_pages(serving: &Serving, publisher: Arc<KvEventPublisher>) {
    let retained = Mutex::new(RetainedBlocks::default());
    serving.generator.forerun().watch_cache(move |replica, event| {
        // Events leave in the order of the changes.
        let mut retained = retained.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = retained.follow(replica, event) {
            let event_id = publisher.next_event_id();
            // It fails only when the worker has shut down.
            publisher.publish(KvCacheEvent { event_id, data, dp_rank: RANK }).ok();
        }
    });
}

#[async_trait]
impl LLMEngine for ForerunWorker {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let options = self.options.clone();
        let open = move || {
            let mut loader = options.engine.loader();
            Engine::open_with(&options.plan, &mut loader)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| cannot_start(error.to_string()))?;
        let forerun = opened.map_err(|error| cannot_start(error.to_string()))?;
        let context_length = u32::try_from(forerun.config().max_position_embeddings).ok();
        let serving = Arc::new(Serving::new(forerun, &self.options, &self.metrics));
        let total = serving.total_blocks;
        *self.lock() = Some(serving);
        Ok(EngineConfig {
            model: self.options.model_name.clone(),
            served_model_name: Some(self.options.model_name.clone()),
            llm: Some(LlmRegistration {
                context_length,
                kv_cache_block_size: Some(BLOCK_TOKENS),
                total_kv_blocks: Some(total).filter(|&total| total > 0),
                max_num_seqs: Some(self.options.parallel as u64),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let serving = self.serving()?;
        let task = task_of(&serving.generator, &request, context.metadata(), serving.policy)?;
        match task {
            Some(task) => Ok(serving.answer(task, context.inner_arc())),
            None => Ok(Box::pin(futures::stream::once(async { Ok(LLMEngineOutput::length()) }))),
        }
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let Some(serving) = self.lock().take() else { return Ok(()) };
        serving.wait(self.options.drain).await;
        serving.ended.send_replace(true);
        serving.wait(TELL).await;
        serving.generator.cancel_all();
        // It waits for the engine's threads.
        tokio::task::spawn_blocking(move || drop(serving)).await.ok();
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let serving = self.serving()?;
        if !serving.has_prefixes() {
            return Ok(Vec::new());
        }
        let on_ready = Box::new(move |publisher| {
            report_pages(&serving, publisher);
            Ok(())
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: RANK }])
    }

    async fn setup_metrics(&self, context: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let serving = self.serving()?;
        let (metrics, name) = (Arc::clone(&self.metrics), self.options.model_name.clone());
        let of_engine = Arc::downgrade(&serving);
        context.metrics.add_expfmt_callback(Arc::new(move || {
            let usage =
                of_engine.upgrade().and_then(|serving| serving.generator.forerun().cache_usage());
            Ok(metrics.render(&name, usage))
        }));
        let on_ready = Box::new(move |publisher| {
            serving.load.set(publisher).map_err(|_| invalid("the load has a publisher already"))?;
            serving.report_load();
            Ok(())
        });
        Ok(MetricsBindings { dp_ranks: vec![RANK], on_publisher_ready: Some(on_ready) })
    }
}

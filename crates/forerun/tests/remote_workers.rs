//! Engines whose workers are reached through bytes, with whole models: the same answers as with
//! local workers, cancellation in flight, and errors when a worker's process dies.
//!
//! A "process" is a thread. All that passes between it and the host are messages.

use crate::common::{self, Pair};
use forerun::placement::available_cores;
use forerun::runtime::{
    ClusterHandle, RemoteProcess, RemoteWorkers, Runtime, WorkerDescription, Workers,
};
use forerun::{
    AdditionalDrafter, Answer, AnswerEvent, Canceller, DraftTokens, DrafterKind, Engine, Finish,
    Grammar, Loader, Lookup, Method, MethodOptions, Options, Plan, Request, SamplingOptions,
    TokenId, TokenLogprob, Verification, VerificationChoice,
};
use forerun_core::{
    ClusterError, Completion, Job, JobError, Key, KeyedRandomness, Purpose, Role, Sampling,
    ScoreJob, SequenceId, Ticket, TokenTree,
};
use forerun_formats::checkpoint::random::example_families;
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use forerun_formats::{Family, MarkovKind};
use forerun_wire::{Command, Connection, WorkerEnd};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

// The worker's side.

/// How a process behaves.
#[derive(Clone, Default)]
struct Conditions {
    /// The process of this role ends when it receives its job with this number.
    dies: Option<(Role, usize)>,
    /// The processes handle nothing while the test holds this lock.
    pause: Arc<Mutex<()>>,
}

/// What happened in all processes of an engine.
#[derive(Default)]
struct Log {
    /// The number of messages from the host.
    sent: AtomicUsize,
    jobs: AtomicUsize,
    /// The number of jobs that were asked for again.
    missed: AtomicUsize,
    cancelled: AtomicUsize,
    released: AtomicUsize,
    /// The memory for tokens and features when the processes ended, in bytes.
    held_in_the_end: AtomicUsize,
}

/// What a process waits for.
enum Event {
    Message(Vec<u8>),
    Completed(Completion),
    /// The host has closed the channel.
    Closed,
}

/// Closes the channel to a process when it is dropped.
struct ToProcess(Sender<Event>);

impl ToProcess {
    fn send(&self, bytes: Vec<u8>) {
        // A process that has ended reads nothing. The thread that reads from it closes the
        // connection.
        drop(self.0.send(Event::Message(bytes)));
    }
}

impl Drop for ToProcess {
    fn drop(&mut self) {
        drop(self.0.send(Event::Closed));
    }
}

/// A worker's process. It has little memory for tokens and features, and forgets all of them before
/// one in five messages.
struct Process {
    worker: WorkerDescription,
    runtime: Arc<Runtime>,
    events: Sender<Event>,
    conditions: Conditions,
    log: Arc<Log>,
}

impl Process {
    fn serve(self, inbox: &Receiver<Event>, outbox: &Sender<Vec<u8>>) {
        let Self { worker, runtime, events, conditions, log } = self;
        let (mut end, mut running) = (WorkerEnd::new(4_000), HashMap::<Ticket, Canceller>::new());
        let (mut messages, mut jobs) = (0, 0);
        let randomness = KeyedRandomness { seed: worker.name.len() as u64, sample: 0 };
        for event in inbox {
            drop(conditions.pause.lock().unwrap());
            let bytes = match event {
                Event::Closed => break,
                Event::Completed(completion) => {
                    running.remove(&completion.ticket);
                    drop(outbox.send(end.complete(completion)));
                    continue;
                }
                Event::Message(bytes) => bytes,
            };
            messages += 1;
            let key = Key { position: messages, purpose: Purpose::Sample, candidate: 0 };
            if randomness.uniform(key) < 0.2 {
                end.forget();
            }
            let received = end.receive(&bytes).unwrap();
            for command in received.commands {
                match command {
                    Command::Run { ticket, role, job } => {
                        jobs += 1;
                        log.jobs.fetch_add(1, Relaxed);
                        if conditions
                            .dies
                            .is_some_and(|(dies, at)| worker.roles().contains(&dies) && at == jobs)
                        {
                            return;
                        }
                        let (canceller, events) = (Canceller::new(), events.clone());
                        let completed = move |completion| {
                            let completion = Completion { ticket, ..completion };
                            drop(events.send(Event::Completed(completion)));
                        };
                        runtime.submit(role, job, &canceller, completed).unwrap();
                        running.insert(ticket, canceller);
                    }
                    Command::Cancel(ticket) => {
                        log.cancelled.fetch_add(1, Relaxed);
                        running[&ticket].cancel();
                    }
                    Command::Release(sequence) => {
                        log.released.fetch_add(1, Relaxed);
                        runtime.release(sequence);
                        drop(runtime.take_trace_of(sequence));
                    }
                }
            }
            log.missed.fetch_add(usize::from(received.answer.is_some()), Relaxed);
            received.answer.into_iter().for_each(|answer| drop(outbox.send(answer)));
        }
        assert!(running.is_empty(), "the host waits for all jobs before it closes the channel");
        log.held_in_the_end.fetch_add(end.held_bytes(), Relaxed);
    }
}

// The host's side.

/// The threads of an engine's processes, which are joined when the engine is closed.
struct Threads(Vec<JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            let result = thread.join();
            assert!(thread::panicking() || result.is_ok(), "a thread panicked");
        }
    }
}

/// Starts a process for each worker.
fn start_remote(
    runtime: Runtime,
    plan: &Plan,
    conditions: &Conditions,
    log: &Arc<Log>,
) -> RemoteWorkers {
    let runtime = Arc::new(runtime);
    let (mut processes, mut threads) = (Vec::new(), Vec::new());
    for worker in plan.workers() {
        let workers = vec![(worker.name.clone(), worker.roles())];
        let ((events, inbox), (outbox, replies)) = (channel(), channel());
        let (to_process, counts) = (ToProcess(events.clone()), Arc::clone(log));
        let connection = Arc::new(Connection::new(worker.name.clone(), move |bytes| {
            to_process.send(bytes);
            counts.sent.fetch_add(1, Relaxed);
        }));
        let (runtime, conditions) = (Arc::clone(&runtime), conditions.clone());
        let process = Process { worker, runtime, events, conditions, log: Arc::clone(log) };
        threads.push(thread::spawn(move || process.serve(&inbox, &outbox)));
        threads.push(thread::spawn({
            let connection = Arc::clone(&connection);
            move || {
                for bytes in replies {
                    connection.receive(&bytes).unwrap();
                }
                connection.close("its process has ended");
            }
        }));
        processes.push(RemoteProcess { connection, workers, to_own_clock: Arc::new(|at| at) });
    }
    RemoteWorkers::new(processes, Threads(threads))
}

// The tests.

fn open_remote(plan: &Plan, conditions: &Conditions) -> (Engine, Arc<Log>) {
    let log = Arc::new(Log::default());
    let connect = |runtime: Runtime| -> Box<dyn Workers> {
        Box::new(start_remote(runtime, plan, conditions, &log))
    };
    (Engine::open_connected(plan, &mut Loader::new(), connect).unwrap(), log)
}

/// Drops an engine, and checks that its processes hold nothing of the sequences that were released.
fn close(engine: Engine, log: &Log) {
    drop(engine);
    assert_eq!(log.held_in_the_end.load(Relaxed), 0);
}

fn with_model(pair: &Pair, method: Method) -> Options {
    let cores = available_cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let shared = if first == last { ",shared" } else { "" };
    let placement = if method == Method::Pearl {
        Some(format!("drafter=cpu:{first},target=cpu:{last}{shared}"))
    } else if method == Method::Dsi {
        Some(format!("drafter=cpu:{first},target=cpu:{first},target=cpu:{last},shared"))
    } else {
        None
    };
    Options {
        model: pair.target.clone().into(),
        draft_model: method.drafts().then(|| pair.drafter.clone().into()),
        method: Some(method.into()),
        placement: placement.map(|text| text.parse().unwrap()),
        ..Options::default()
    }
}

fn speculative(pair: &Pair, draft_tokens: usize, tree: &str) -> Options {
    let draft_tokens = DraftTokens::Fixed(draft_tokens);
    let (tree, lookup) = (tree.parse().unwrap(), Lookup::None);
    let method = Some(MethodOptions::Speculative { tree, lookup });
    Options { method, draft_tokens, ..with_model(pair, Method::Speculative) }
}

/// Returns options with a drafter on the target's cores that needs no model.
fn on_tokens(pair: &Pair, method: Method, drafter: DrafterKind) -> Options {
    let core = available_cores()[0];
    Options {
        draft_model: None,
        drafter: Some(drafter.into()),
        placement: Some(format!("target=cpu:{core}").parse().unwrap()),
        ..with_model(pair, method)
    }
}

/// Returns plans of all methods, and drafters that need tokens, features, and feedback.
fn plans(pair: &Pair, speculators: &[(SpeculatorLayout, std::path::PathBuf)]) -> Vec<Plan> {
    use SpeculatorLayout as L;
    let mut all = vec![
        with_model(pair, Method::Autoregressive),
        speculative(pair, 4, "none"),
        Options { draft_tokens: DraftTokens::Auto, ..speculative(pair, 1, "none") },
        speculative(pair, 4, "top:4x4:9"),
        speculative(pair, 1, "sampled:3,2,1"),
        Options { drafter: Some(DrafterKind::Ouroboros.into()), ..speculative(pair, 4, "none") },
        on_tokens(pair, Method::Speculative, DrafterKind::Lookahead),
        with_model(pair, Method::Pearl),
        Options {
            method: Some(MethodOptions::Pearl("paper".parse().unwrap())),
            ..with_model(pair, Method::Pearl)
        },
        with_model(pair, Method::Dsi),
        Options {
            additional_drafters: vec![AdditionalDrafter::Tokens(DrafterKind::PromptLookup)],
            ..with_model(pair, Method::Dsi)
        },
    ];
    let layouts = [
        (L::Eagle, DrafterKind::Eagle),
        (L::Eagle3, DrafterKind::Eagle),
        (L::DFlash, DrafterKind::DFlash),
        (L::JetSpec, DrafterKind::DFlash),
        (L::DFlash2, DrafterKind::DFlash2),
        (L::Pard2, DrafterKind::Parallel),
        (L::DSpark(MarkovKind::Recurrent), DrafterKind::DSpark),
        (L::Medusa, DrafterKind::Medusa),
        (L::Hydra, DrafterKind::Hydra),
    ];
    for (layout, path) in speculators {
        let Some((_, drafter)) = layouts.iter().find(|(of, _)| of == layout) else { continue };
        for tree in ["none", "top:3x3"] {
            let draft_model = Some(path.clone().into());
            let drafter = Some((*drafter).into());
            all.push(Options { draft_model, drafter, ..speculative(pair, 3, tree) });
        }
    }
    all.into_iter().map(|options| Plan::new(options).unwrap()).collect()
}

/// Returns greedy, coupled and rejection sampling, the latter with and without filters.
fn requests(seed: u64) -> Vec<Request> {
    let greedy = Request {
        max_tokens: 30,
        seed: Some(seed),
        ignore_eos: true,
        logprobs: Some(2),
        ..Request::default()
    };
    let sampled = |verification, top_k| Request {
        sampling: SamplingOptions { temperature: 0.9, top_k, ..SamplingOptions::default() },
        verification: VerificationChoice::Always(verification),
        ..greedy.clone()
    };
    vec![
        sampled(Verification::Coupled, 0),
        sampled(Verification::Rejection, 20),
        sampled(Verification::Rejection, 0),
        greedy.clone(),
        Request {
            grammar: Some(Grammar::regex("[a-z]{3,9} ([A-Z]+|[0-9]{2}é)*")),
            ignore_eos: false,
            ..sampled(Verification::Rejection, 0)
        },
    ]
}

/// The parts of an answer that do not depend on timing.
#[derive(Debug, PartialEq)]
struct Content {
    tokens: Vec<TokenId>,
    text: String,
    logprobs: Option<Vec<TokenLogprob>>,
    finish: Finish,
}

impl From<Answer> for Content {
    fn from(answer: Answer) -> Self {
        let Answer { tokens, text, logprobs, finish, .. } = answer;
        Self { tokens, text, logprobs, finish }
    }
}

fn complete(engine: &Engine, prompt: &str, request: &Request) -> Content {
    engine.complete(prompt, request).unwrap().into()
}

/// All combinations of a few prompts and the requests.
fn cases(pair: &Pair) -> Vec<(&str, Request)> {
    let of_prompt = |(seed, prompt)| {
        requests(seed).into_iter().map(move |request| (String::as_str(prompt), request))
    };
    (0..).zip(&pair.prompts[..2]).flat_map(of_prompt).collect()
}

#[test]
fn answers_are_those_of_local_workers_alone_and_at_the_same_time() {
    let (pair, speculators) = Pair::with_speculators();
    let families = example_families();
    let gemma4 = families.iter().find(|config| config.family == Family::Gemma4).unwrap();
    let (with_assistant, [(_, assistant)]) = Pair::with_assistant(gemma4);
    let of_assistant = ["none", "top:3x3"].map(|tree| {
        let (draft_model, drafter) =
            (Some(assistant.clone().into()), Some(DrafterKind::Assistant.into()));
        let options = speculative(&with_assistant, 3, tree);
        let plan = Plan::new(Options { draft_model, drafter, ..options });
        (plan.unwrap(), &with_assistant)
    });
    let plans = plans(&pair, &speculators).into_iter().map(|plan| (plan, &pair));
    let (mut jobs, mut missed, mut released) = (0, 0, 0);
    for (plan, pair) in plans.chain(of_assistant) {
        let name = format!("{} {} {:?}", plan.method(), plan.drafter(), plan.shape());
        let local = Engine::open_plan(&plan).unwrap();
        let (remote, log) = open_remote(&plan, &Conditions::default());
        let cases = cases(pair);
        let expected: Vec<Content> =
            cases.iter().map(|(prompt, request)| complete(&local, prompt, request)).collect();
        for ((prompt, request), expected) in cases.iter().zip(&expected) {
            assert_eq!(complete(&remote, prompt, request), *expected, "{name}: {request:?}");
        }
        thread::scope(|scope| {
            for ((prompt, request), expected) in cases.iter().zip(&expected) {
                let (remote, name) = (&remote, &name);
                scope.spawn(move || {
                    assert_eq!(complete(remote, prompt, request), *expected, "{name}: {request:?}");
                });
            }
        });
        close(remote, &log);
        jobs += log.jobs.load(Relaxed);
        missed += log.missed.load(Relaxed);
        released += log.released.load(Relaxed);
        assert!(log.released.load(Relaxed) >= 2 * cases.len(), "{name}");
    }
    assert!(missed > 500, "{missed} of {jobs} jobs were asked for again");
    common::report(&format!(
        "remote workers: {jobs} jobs, {missed} asked for again, {released} releases"
    ));
}

#[test]
fn a_dropped_stream_leaves_the_engine_usable() {
    let pair = Pair::generated();
    for method in Method::all() {
        let plan = Plan::new(with_model(&pair, method)).unwrap();
        let (engine, log) = open_remote(&plan, &Conditions::default());
        let request = &requests(1)[0];
        let expected = complete(&Engine::open_plan(&plan).unwrap(), &pair.prompts[0], request);
        for events in [0, 1, 5] {
            let other = engine.stream(&pair.prompts[1], request).unwrap();
            let stream = engine.stream(&pair.prompts[0], request).unwrap();
            assert!(stream.take(events).all(|event| event.is_ok()));
            assert_eq!(complete(&engine, &pair.prompts[0], request), expected, "{method}");
            // An answer that began before is not disturbed.
            let answer = other.filter_map(|event| match event.unwrap() {
                AnswerEvent::Finished(answer) => Some(Content::from(*answer)),
                _ => None,
            });
            assert_eq!(answer.last().unwrap(), complete(&engine, &pair.prompts[1], request));
        }
        close(engine, &log);
    }
}

/// Waits until the host has sent messages to paused processes.
fn wait_for_messages(log: &Log, count: usize) {
    while log.sent.load(Relaxed) < count {
        thread::yield_now();
    }
}

#[test]
fn a_canceller_stops_an_answer_whose_job_is_in_flight() {
    let pair = Pair::generated();
    for method in Method::all() {
        let conditions = Conditions::default();
        let plan = Plan::new(with_model(&pair, method)).unwrap();
        let (engine, log) = open_remote(&plan, &conditions);
        let (canceller, request) = (Canceller::new(), &requests(1)[0]);
        let paused = conditions.pause.lock().unwrap();
        let answer = thread::scope(|scope| {
            let answer = scope.spawn(|| {
                let go_on = |_: &str| ControlFlow::Continue(());
                engine.generate_interruptibly(&pair.prompts[0], request, &canceller, go_on)
            });
            wait_for_messages(&log, 1);
            canceller.cancel();
            drop(paused);
            answer.join().unwrap().unwrap()
        });
        assert_eq!((answer.finish, answer.tokens.len()), (Finish::Stopped, 0), "{method}");
        assert!(log.cancelled.load(Relaxed) > 0, "{method}");
        // The canceller cancels later answers, too, and no others.
        let go_on = |_: &str| ControlFlow::Continue(());
        let later =
            engine.generate_interruptibly(&pair.prompts[0], request, &canceller, go_on).unwrap();
        assert_eq!((later.finish, later.tokens.len()), (Finish::Stopped, 0), "{method}");
        assert_eq!(complete(&engine, &pair.prompts[0], request).finish, Finish::MaxTokens);
        close(engine, &log);
    }
}

fn score(sequence: u64, tokens: &[TokenId]) -> Job {
    Job::Score(ScoreJob {
        sequence: SequenceId(sequence),
        tokens: tokens.into(),
        prompt_len: tokens.len(),
        tree: TokenTree::new(),
        sampling: Sampling::greedy(),
        logprobs: None,
        features_from: None,
    })
}

#[test]
fn a_handle_cancels_its_own_jobs_and_no_others() {
    let pair = Pair::generated();
    let conditions = Conditions::default();
    let plan = Plan::new(with_model(&pair, Method::Autoregressive)).unwrap();
    let (engine, log) = open_remote(&plan, &conditions);
    let (mut one, mut other) = (engine.cluster(), engine.cluster());
    let paused = conditions.pause.lock().unwrap();
    let mut tickets = [Vec::new(), Vec::new()];
    for number in 0..5 {
        let tokens = [1, 2, 3, number];
        tickets[0].push(one.submit(Role::Target(0), score(u64::MAX, &tokens)).unwrap());
        tickets[1].push(other.submit(Role::Target(0), score(u64::MAX - 1, &tokens)).unwrap());
    }
    assert_eq!(
        one.submit(Role::Target(7), score(u64::MAX, &[1])),
        Err(ClusterError::NoSuchRole(Role::Target(7)))
    );
    one.cancel_all();
    other.cancel(tickets[1][3]);
    drop(paused);
    let collect = |handle: &mut Box<dyn ClusterHandle>| {
        let mut ended = Vec::new();
        while let Ok(completion) = handle.next_completion() {
            ended.push((completion.ticket, completion.output.map(|_| ())));
        }
        ended.sort_by_key(|(ticket, _)| *ticket);
        ended
    };
    let expected = |tickets: &[Ticket], is_cancelled: fn(usize) -> bool| -> Vec<_> {
        let outcome = |at| if is_cancelled(at) { Err(JobError::Cancelled) } else { Ok(()) };
        tickets.iter().enumerate().map(|(at, ticket)| (*ticket, outcome(at))).collect()
    };
    assert_eq!(collect(&mut one), expected(&tickets[0], |_| true));
    assert_eq!(collect(&mut other), expected(&tickets[1], |at| at == 3));
    one.release(SequenceId(u64::MAX));
    one.release(SequenceId(u64::MAX - 1));
    // The processes live as long as a handle.
    drop((engine, other));
    one.submit(Role::Target(0), score(0, &[1, 2])).unwrap();
    assert!(one.next_completion().unwrap().output.is_ok());
    one.release(SequenceId(0));
    drop(one);
    assert_eq!(log.held_in_the_end.load(Relaxed), 0);
}

/// Runs a function on another thread, and fails if it hangs.
fn without_hanging<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (result, results) = channel();
    thread::spawn(move || drop(result.send(run())));
    results.recv_timeout(Duration::from_secs(60)).unwrap()
}

/// Returns the name of the worker with a role.
fn name_of(plan: &Plan, role: Role) -> String {
    plan.workers().into_iter().find(|worker| worker.roles().contains(&role)).unwrap().name
}

#[test]
fn a_process_that_dies_is_an_error_that_names_the_worker() {
    let pair = Pair::generated();
    let mut cases: Vec<_> = Method::all()
        .filter(|method| *method != Method::Dsi)
        .map(|method| with_model(&pair, method))
        .collect();
    // DSI needs one target.
    cases.push(on_tokens(&pair, Method::Dsi, DrafterKind::PromptLookup));
    let role = Role::Target(0);
    for options in cases {
        let plan = Plan::new(options).unwrap();
        let expected = format!("{}: the connection is closed", name_of(&plan, role));
        for at in [1, 6] {
            let (plan, expected, prompts) = (plan.clone(), expected.clone(), pair.prompts.clone());
            without_hanging(move || {
                let conditions = Conditions { dies: Some((role, at)), ..Conditions::default() };
                let (engine, _) = open_remote(&plan, &conditions);
                thread::scope(|scope| {
                    for prompt in &prompts[..3] {
                        let (engine, plan, expected) = (&engine, &plan, &expected);
                        scope.spawn(move || {
                            let error = engine.complete(prompt, &requests(1)[3]).unwrap_err();
                            let error = error.to_string();
                            assert!(error.contains(expected), "{}: {error}", plan.method());
                        });
                    }
                });
                // So do later answers.
                let error = engine.complete(&prompts[0], &requests(1)[0]).unwrap_err().to_string();
                assert!(error.contains(&expected), "{}: {error}", plan.method());
            });
        }
    }
}

#[test]
fn answers_go_on_without_a_drafter_whose_process_dies_and_report_it() {
    let pair = Pair::generated();
    let request = requests(1)[0].clone();
    let mut all = vec![
        on_tokens(&pair, Method::Pearl, DrafterKind::PromptLookup),
        on_tokens(&pair, Method::Dsi, DrafterKind::PromptLookup),
    ];
    // On the same cores, target and drafter would be in one process.
    if let [first, second, ..] = available_cores()[..] {
        let placement = format!("drafter=cpu:{first},target=cpu:{second}").parse().unwrap();
        let speculative = with_model(&pair, Method::Speculative);
        all.push(Options { placement: Some(placement), ..speculative });
    }
    for options in all {
        // An adapting draft length might not draft at all.
        let options = Options { draft_tokens: DraftTokens::Fixed(3), ..options };
        let plan = Plan::new(options).unwrap();
        let expected = complete(&Engine::open_plan(&plan).unwrap(), &pair.prompts[0], &request);
        let closed = format!("{}: the connection is closed", name_of(&plan, Role::Drafter(0)));
        let (prompt, request) = (pair.prompts[0].clone(), request.clone());
        without_hanging(move || {
            let dies = Some((Role::Drafter(0), 2));
            let (engine, _) = open_remote(&plan, &Conditions { dies, ..Conditions::default() });
            // DSI does not wait for a late drafter, which may die during a later answer.
            let (most, mut reports) = (if plan.method() == Method::Dsi { 1_000 } else { 2 }, 0);
            for _ in 0..most {
                let answer = engine.complete(&prompt, &request).unwrap();
                let failures = answer.statistics.failures.join(", ");
                assert_eq!(Content::from(answer), expected, "{}", plan.method());
                let is_reported = failures.contains(&closed);
                let is_alive = reports == 0 && failures.is_empty();
                assert!(is_reported || is_alive, "{}: {failures}", plan.method());
                reports += usize::from(is_reported);
                if reports == 2 {
                    break;
                }
            }
            assert_eq!(reports, 2, "{}", plan.method());
        });
    }
}

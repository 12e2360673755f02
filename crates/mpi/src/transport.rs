//! Messages between the ranks. One thread of a process calls MPI at a time: a thread of its own, or
//! one that waits for numbers of other ranks.

use crate::clock::Clock;
use crate::error::MpiError;
use crate::exchange::MemberMessage;
use forerun_runtime::MessageQueue;
use forerun_wire::Connection;
use mpi::Threading;
use mpi::request::Request;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Equivalence, Source};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(crate) const THREAD: &str = "forerun-mpi";

/// Longer messages are sent in parts of this size, so that heartbeats get through between them.
const PART_BYTES: usize = 1 << 20;

/// The number of messages that are sent together at most.
const BATCH: usize = 32;

/// The pauses between polls, by the time since the last message that is no heartbeat.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_micros(50), Duration::ZERO),
    (Duration::from_millis(2), Duration::from_micros(20)),
    (Duration::from_secs(1), Duration::from_micros(100)),
];

/// The pause of a rank that has been idle for longer.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// The shortest pause on a rank that computes a model together with others: it carries messages
/// itself while it waits.
const MEMBER_PAUSE: Duration = Duration::from_micros(100);

/// The number of heartbeats that follow quickly at the start, to align the clocks, and their
/// interval.
const FIRST_BEATS: u32 = 8;
const FIRST_INTERVAL: Duration = Duration::from_millis(20);

/// The kind of a message, which is its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A part of a longer message, whose last part has its kind.
    Part = 1,
    /// Bytes for the other end of a connection.
    Wire,
    /// A rank has loaded its models, or failed.
    Hello,
    /// A heartbeat of rank 0.
    Ping,
    /// The answer to a heartbeat.
    Pong,
    /// Rank 0 ends the job.
    Stop,
    /// A rank has ended its work.
    Bye,
    /// A message of the leader of ranks that compute a model together.
    Pass,
    /// Numbers that such ranks gather.
    Numbers,
    /// A rank takes no more part in computing a model together with others.
    End,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Part,
        Self::Wire,
        Self::Hello,
        Self::Ping,
        Self::Pong,
        Self::Stop,
        Self::Bye,
        Self::Pass,
        Self::Numbers,
        Self::End,
    ];

    /// Whether an answer to messages of this kind may come soon. Who waits for numbers carries
    /// messages itself.
    fn is_work(self) -> bool {
        matches!(self, Self::Wire | Self::Pass)
    }

    fn of_tag(tag: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as i32 == tag)
    }
}

/// The times of a heartbeat, in nanoseconds since the start of each process.
#[derive(Serialize, Deserialize)]
struct Beat {
    sent_ns: u64,
    /// When the other rank answered.
    answered_ns: u64,
}

pub(crate) enum Command {
    Send {
        to: usize,
        kind: Kind,
        bytes: Vec<u8>,
    },
    /// Ends the part of this process in the job.
    Finish,
    /// Looks at [`Shared::failure`].
    Wake,
}

thread_local! {
    static CARRIES: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread carries messages now, so that no other one calls MPI.
pub(crate) fn carries() -> bool {
    CARRIES.get()
}

/// What the threads of the process share.
pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The zero of the process's times.
    pub(crate) epoch: Instant,
    pub(crate) timeout: Duration,
    pub(crate) commands: Sender<Command>,
    /// What calls MPI; `None` before and after this process takes part in the job.
    pub(crate) transport: Mutex<Option<Transport>>,
    /// The thread that carries messages while no other one does.
    pub(crate) carrier: OnceLock<Thread>,
    /// Whether this rank computes a model together with others.
    pub(crate) is_member: AtomicBool,
    /// Where the jobs of rank 0 go.
    pub(crate) jobs: OnceLock<MessageQueue>,
    /// The connections of rank 0 to the other ranks.
    pub(crate) connections: OnceLock<Vec<Arc<Connection>>>,
    pub(crate) hellos: Sender<(usize, Vec<u8>)>,
    /// Where messages of the ranks go that compute a model together with this one.
    pub(crate) members: Sender<(usize, MemberMessage)>,
    /// The bytes that this rank has sent to others for computing a model together.
    pub(crate) gathered_bytes: AtomicU64,
    pub(crate) clocks: Vec<Mutex<Clock>>,
    /// What the ranks run, for errors.
    pub(crate) names: Vec<String>,
    /// Why the job must end.
    pub(crate) failure: Mutex<Option<String>>,
    /// Whether the last step, which waits for all ranks, has begun.
    pub(crate) is_finalizing: AtomicBool,
    /// The bytes for and from the other ends of connections.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) on_failure: Box<dyn Fn(&str) + Send + Sync>,
}

impl Shared {
    pub(crate) fn send(&self, to: usize, kind: Kind, bytes: Vec<u8>) {
        self.command(Command::Send { to, kind, bytes });
    }

    pub(crate) fn command(&self, command: Command) {
        self.post(command);
        if let Some(carrier) = self.carrier.get() {
            carrier.unpark();
        }
    }

    fn post(&self, command: Command) {
        // The receiver lives until the process leaves the job.
        drop(self.commands.send(command));
    }

    /// Sends messages on the calling thread.
    pub(crate) fn send_now(&self, messages: impl Iterator<Item = (usize, Kind, Vec<u8>)>) {
        let mut posted = 0_usize;
        for (to, kind, bytes) in messages {
            self.post(Command::Send { to, kind, bytes });
            posted += 1;
        }
        if let Some(transport) = lock(&self.transport).as_mut() {
            for _ in 0..posted.div_ceil(BATCH) {
                transport.step();
            }
        }
    }

    /// Sends and receives what there is, unless another thread does. Returns whether there was
    /// anything.
    pub(crate) fn carry(&self) -> bool {
        let Ok(mut transport) = self.transport.try_lock() else { return false };
        transport.as_mut().is_some_and(Transport::step)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Ends the whole job with an error, by the next thread that carries messages.
    pub(crate) fn fail(&self, error: String) {
        lock(&self.failure).get_or_insert(error);
        self.command(Command::Wake);
    }

    fn name(&self, rank: usize) -> String {
        match self.names.get(rank) {
            Some(name) if !name.is_empty() => format!("rank {rank} ({name})"),
            _ => format!("rank {rank}"),
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a process learns when it joins a job.
pub(crate) struct Joined {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The ranks on the same machine that may use the same cores, with this one.
    pub(crate) neighbours: Vec<usize>,
}

/// Starts MPI, finds the neighbours among the ranks, and calls `joined`, which returns what the
/// thread needs. Then carries messages until the process leaves the job.
pub(crate) fn run(
    cores: &[usize],
    commands: Receiver<Command>,
    joined: impl FnOnce(Result<Joined, MpiError>) -> Option<Arc<Shared>>,
) {
    let Some((universe, provided)) = mpi::initialize_with_threading(Threading::Serialized) else {
        joined(Err(MpiError::Unusable("it has been started before")));
        return;
    };
    if provided < Threading::Serialized {
        joined(Err(MpiError::Unusable("it can be called by one thread of a process only")));
        return;
    }
    let world = universe.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let neighbours = neighbours(&world, cores);
    let Some(shared) = joined(Ok(Joined { rank, size, neighbours })) else { return };
    // Otherwise, sleeping for 20 µs takes 70.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let now = Instant::now();
    let transport = Transport {
        commands,
        heard: vec![now; size],
        left: BTreeSet::new(),
        parts: vec![Vec::new(); size],
        replies: Vec::new(),
        beats: 0,
        next_beat: now,
        last_work: now,
        last_watch: now,
        is_finishing: false,
        is_not_needed: false,
        shared: Arc::clone(&shared),
    };
    *lock(&shared.transport) = Some(transport);
    // It is set once.
    let _ = shared.carrier.set(thread::current());
    carry(&shared);
    let is_not_needed = lock(&shared.transport).take().is_some_and(|it| it.is_not_needed);
    shared.is_finalizing.store(true, Ordering::SeqCst);
    // This waits for the other ranks.
    drop(universe);
    if is_not_needed {
        // The process is loading models that nobody needs, or waits after an error that rank 0 has
        // reported.
        std::process::exit(0);
    }
}

/// Returns the ranks on this machine that may use the same cores.
fn neighbours(world: &SimpleCommunicator, cores: &[usize]) -> Vec<usize> {
    let local = world.split_shared(world.rank());
    // A digest of the cores: FNV-1a.
    let mix = |digest: u64, core: &usize| (digest ^ *core as u64).wrapping_mul(0x0100_0000_01b3);
    let digest = cores.iter().fold(0xcbf2_9ce4_8422_2325_u64, mix);
    let own = [world.rank() as u64, digest];
    let mut all = vec![0; 2 * local.size() as usize];
    local.all_gather_into(&own[..], &mut all[..]);
    let same = all.chunks_exact(2).filter(|other| other[1] == digest);
    same.map(|other| other[0] as usize).collect()
}

/// Carries messages until this process may leave the job.
fn carry(shared: &Shared) {
    loop {
        let mut pause = MEMBER_PAUSE;
        // Otherwise another thread carries messages.
        if let Ok(mut transport) = shared.transport.try_lock() {
            let Some(transport) = transport.as_mut() else { return };
            if transport.step() {
                continue;
            }
            if transport.replies.is_empty() && transport.may_leave() {
                return;
            }
            pause = transport.pause();
        }
        match pause {
            Duration::ZERO => thread::yield_now(),
            pause => thread::park_timeout(pause),
        }
    }
}

pub(crate) struct Transport {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    /// When each rank was heard last.
    heard: Vec<Instant>,
    /// The ranks that have ended their work.
    left: BTreeSet<usize>,
    /// The parts of a longer message from each rank.
    parts: Vec<Vec<u8>>,
    /// Messages that the thread itself has to send.
    replies: Vec<(usize, Kind, Vec<u8>)>,
    /// The number of heartbeats sent.
    beats: u32,
    next_beat: Instant,
    /// When a message other than a heartbeat was sent or received last.
    last_work: Instant,
    last_watch: Instant,
    /// Whether this process wants to leave the job.
    is_finishing: bool,
    /// Whether rank 0 has ended the job before this process was ready.
    is_not_needed: bool,
}

impl Transport {
    /// Sends and receives what there is. Returns whether there was anything.
    fn step(&mut self) -> bool {
        CARRIES.set(true);
        // First, so that an error of this rank ends the job before the others hear that it has
        // left.
        self.watch();
        let outgoing = self.outgoing();
        self.send(&outgoing);
        let has_received = self.receive();
        self.beat();
        CARRIES.set(false);
        has_received || !outgoing.is_empty()
    }

    /// Returns how long to wait until the next look at what there is.
    fn pause(&self) -> Duration {
        if self.parts.iter().any(|parts| !parts.is_empty()) {
            return Duration::ZERO;
        }
        let idle = self.last_work.elapsed();
        let pause = PAUSES.iter().find(|(until, _)| idle < *until);
        let pause = pause.map_or(IDLE_PAUSE, |(_, pause)| *pause);
        match self.shared.is_member.load(Ordering::Relaxed) {
            true => pause.max(MEMBER_PAUSE),
            false => pause,
        }
    }

    /// Returns the messages to send now, and handles the other commands.
    fn outgoing(&mut self) -> Vec<(usize, Kind, Vec<u8>)> {
        let mut outgoing = std::mem::take(&mut self.replies);
        for command in self.commands.try_iter().take(BATCH) {
            match command {
                Command::Send { to, kind, bytes } => outgoing.push((to, kind, bytes)),
                Command::Wake => {}
                Command::Finish if self.shared.rank == 0 => {
                    self.is_finishing = true;
                    outgoing
                        .extend((1..self.shared.size).map(|rank| (rank, Kind::Stop, Vec::new())));
                }
                Command::Finish => {
                    self.is_finishing = true;
                    outgoing.push((0, Kind::Bye, Vec::new()));
                }
            }
        }
        outgoing
    }

    fn may_leave(&self) -> bool {
        match self.shared.rank {
            0 => self.is_finishing && self.left.len() + 1 == self.shared.size,
            _ => self.is_finishing,
        }
    }

    /// Sends messages, and receives others until they are on their way.
    fn send(&mut self, messages: &[(usize, Kind, Vec<u8>)]) {
        for (to, kind, bytes) in messages {
            if *kind == Kind::Wire {
                self.shared.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            if matches!(kind, Kind::Pass | Kind::Numbers) {
                self.shared.gathered_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            if kind.is_work() {
                self.last_work = Instant::now();
            }
            let mut rest = &bytes[..];
            while rest.len() > PART_BYTES {
                let (part, others) = rest.split_at(PART_BYTES);
                self.send_part(*to, Kind::Part, part);
                rest = others;
            }
            self.send_part(*to, *kind, rest);
        }
    }

    fn send_part(&mut self, to: usize, kind: Kind, bytes: &[u8]) {
        let world = SimpleCommunicator::world();
        mpi::request::scope(|scope| {
            let to = world.process_at_rank(to as i32);
            let mut request = to.immediate_send_with_tag(scope, bytes, kind as i32);
            while let Err(unfinished) = request.test() {
                request = unfinished;
                // If both ends sent without receiving, both would wait for ever.
                let has_received = self.receive();
                // The others must not take this rank for the one that keeps it waiting.
                if !matches!(kind, Kind::Ping | Kind::Pong) {
                    self.beat();
                    self.send_heartbeats();
                }
                if !has_received {
                    self.watch();
                    thread::yield_now();
                }
            }
        });
    }

    /// Sends the heartbeats, and their answers, that are due.
    fn send_heartbeats(&mut self) {
        let is_heartbeat =
            |reply: &mut (usize, Kind, Vec<u8>)| matches!(reply.1, Kind::Ping | Kind::Pong);
        let heartbeats: Vec<_> = self.replies.extract_if(.., is_heartbeat).collect();
        for (to, kind, bytes) in heartbeats {
            self.send_part(to, kind, &bytes);
        }
    }

    /// Receives the messages that have arrived. Returns whether there were any.
    fn receive(&mut self) -> bool {
        let world = SimpleCommunicator::world();
        let mut received = false;
        while let Some((message, status)) = world.any_process().immediate_matched_probe() {
            received = true;
            let from = status.source_rank() as usize;
            let mut bytes = vec![0_u8; status.count(u8::equivalent_datatype()) as usize];
            mpi::request::scope(|scope| {
                let request = message.immediate_matched_receive_into(scope, &mut bytes[..]);
                self.wait(request);
            });
            self.heard[from] = Instant::now();
            match Kind::of_tag(status.tag()) {
                Some(Kind::Part) => self.parts[from].append(&mut bytes),
                Some(kind) => {
                    // Heartbeats may arrive between the parts of a longer message.
                    if !matches!(kind, Kind::Ping | Kind::Pong) && !self.parts[from].is_empty() {
                        let mut whole = std::mem::take(&mut self.parts[from]);
                        whole.append(&mut bytes);
                        bytes = whole;
                    }
                    self.handle(from, kind, bytes);
                }
                None => self.abort(&format!(
                    "{} sent a message of an unknown kind: run the same version of forerun on all ranks",
                    self.shared.name(from)
                )),
            }
        }
        received
    }

    fn wait<'a>(&mut self, mut request: Request<'a, [u8], &mpi::request::LocalScope<'a>>) {
        while let Err(unfinished) = request.test() {
            request = unfinished;
            self.watch();
            thread::yield_now();
        }
    }

    fn handle(&mut self, from: usize, kind: Kind, bytes: Vec<u8>) {
        match kind {
            Kind::Wire => {
                self.shared.received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.last_work = Instant::now();
                self.handle_wire(from, bytes);
            }
            Kind::Pass => self.pass_to_member(from, MemberMessage::Pass(bytes)),
            Kind::Numbers => self.pass_to_member(from, MemberMessage::Numbers(bytes)),
            Kind::End => self.pass_to_member(from, MemberMessage::Ended),
            Kind::Hello => drop(self.shared.hellos.send((from, bytes))),
            Kind::Ping => {
                if let Ok(beat) = postcard::from_bytes::<Beat>(&bytes) {
                    let beat = Beat { answered_ns: self.shared.now_ns(), ..beat };
                    self.replies.push((from, Kind::Pong, to_bytes(&beat)));
                }
            }
            Kind::Pong => {
                if let Ok(Beat { sent_ns, answered_ns }) = postcard::from_bytes(&bytes) {
                    let now_ns = self.shared.now_ns();
                    lock(&self.shared.clocks[from]).add(sent_ns, now_ns, answered_ns);
                }
            }
            Kind::Stop => match self.shared.jobs.get() {
                Some(jobs) => jobs.close(),
                None => {
                    (self.is_finishing, self.is_not_needed) = (true, true);
                    let others = (0..self.shared.size).filter(|rank| *rank != self.shared.rank);
                    self.replies.extend(others.map(|rank| (rank, Kind::End, Vec::new())));
                    self.replies.push((0, Kind::Bye, Vec::new()));
                }
            },
            Kind::Bye if self.is_finishing => drop(self.left.insert(from)),
            Kind::Bye => self.abort(&format!("{} has left the job", self.shared.name(from))),
            Kind::Part => {}
        }
    }

    /// Passes a message on to the part of this process that computes a model together with other
    /// ranks.
    fn pass_to_member(&mut self, from: usize, message: MemberMessage) {
        if matches!(message, MemberMessage::Pass(_)) {
            self.last_work = Instant::now();
        }
        // If that part has ended, nobody needs the message.
        drop(self.shared.members.send((from, message)));
    }

    /// Passes bytes on to the end of their connection.
    fn handle_wire(&self, from: usize, bytes: Vec<u8>) {
        match self.shared.connections.get() {
            Some(connections) => {
                if let Some(Err(cause)) = connections.get(from).map(|to| to.receive(&bytes)) {
                    let error = MpiError::Message { rank: from, cause };
                    self.abort(&error.to_string());
                }
            }
            None => {
                if let Some(jobs) = self.shared.jobs.get() {
                    jobs.push(bytes);
                }
            }
        }
    }

    /// Sends the heartbeats of rank 0 when they are due.
    fn beat(&mut self) {
        let now = Instant::now();
        if self.shared.rank != 0 || now < self.next_beat {
            return;
        }
        let regular = (self.shared.timeout / 8).min(Duration::from_secs(1));
        let interval = if self.beats < FIRST_BEATS { FIRST_INTERVAL.min(regular) } else { regular };
        (self.beats, self.next_beat) = (self.beats.saturating_add(1), now + interval);
        for rank in (1..self.shared.size).filter(|rank| !self.left.contains(rank)) {
            let beat = Beat { sent_ns: self.shared.now_ns(), answered_ns: 0 };
            self.replies.push((rank, Kind::Ping, to_bytes(&beat)));
        }
    }

    /// Ends the job if another rank has been silent for too long, or a thread of this one has
    /// failed.
    fn watch(&mut self) {
        let failure = lock(&self.shared.failure).take();
        if let Some(failure) = failure {
            self.abort(&failure);
        }
        let (now, timeout) = (Instant::now(), self.shared.timeout);
        // This process itself was stopped, so it cannot know how the others are.
        if now.duration_since(self.last_watch) > timeout / 2 {
            self.heard.fill(now);
        }
        self.last_watch = now;
        let watched = if self.shared.rank == 0 { 1..self.shared.size } else { 0..1 };
        let is_silent = |&rank: &usize| {
            !self.left.contains(&rank) && now.duration_since(self.heard[rank]) > timeout
        };
        if let Some(rank) = watched.into_iter().find(is_silent) {
            let (name, seconds) = (self.shared.name(rank), timeout.as_secs_f64());
            self.abort(&format!(
                "{name} has not answered for {seconds} s: its process is stopped, or its machine or the network is \
                 down (`--rank-timeout` sets this time)"
            ));
        }
    }

    fn abort(&self, error: &str) -> ! {
        (self.shared.on_failure)(error);
        abort_job()
    }
}

/// Ends all processes of the job.
pub(crate) fn abort_job() -> ! {
    SimpleCommunicator::world().abort(1)
}

pub(crate) fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    // Numbers and texts can always be written.
    postcard::to_allocvec(value).unwrap_or_default()
}

//! A process's part in an MPI job.

use crate::clock::ClockReport;
use crate::error::MpiError;
use crate::exchange::{MemberMessage, RankExchange};
use crate::transport::{self, Command, Joined, Kind, Shared, THREAD, abort_job, lock, to_bytes};
use forerun_core::{Role, SequenceId, trace::Trace};
use forerun_runtime::{
    Canceller, ClusterHandle, MessageServer, RemoteProcess, RemoteWorkers, Runtime, Workers,
};
use forerun_wire::Connection;
use std::collections::BTreeMap;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest time in which all ranks must have started MPI.
const FORMATION: Duration = Duration::from_secs(60);

/// The longest time that a panicking thread waits for the end of the job.
const END_OF_JOB: Duration = Duration::from_secs(2);

/// How a process takes part in a job.
pub struct GroupOptions {
    /// After how long without a sign of life a rank counts as lost.
    pub timeout: Duration,
    /// The cores that this process may use, the preferred ones first.
    pub cores: Vec<usize>,
    /// What the placement puts on each rank, for errors. Ranks without a name have no model.
    pub names: BTreeMap<usize, String>,
    /// Reports the error that ends the whole job. The process ends after it.
    pub on_failure: Box<dyn Fn(&str) + Send + Sync>,
}

/// The membership of this process in an MPI job. There can be one in the life of a process.
///
/// Dropping it ends the job on rank 0, and leaves it on the others.
pub struct Group {
    shared: Arc<Shared>,
    cores: Vec<usize>,
    hellos: Mutex<Receiver<(usize, Vec<u8>)>>,
    finished: Mutex<Receiver<()>>,
    /// Messages of ranks that compute a model together with this one, until there is an exchange
    /// for them.
    inbox: Mutex<Option<Receiver<(usize, MemberMessage)>>>,
    /// Exchanges have a clone of the sender as long as they are in use.
    exchanges: Mutex<(Option<Sender<()>>, Receiver<()>)>,
    thread: Option<JoinHandle<()>>,
}

impl Group {
    /// Starts MPI and waits for the other ranks. From now on, a panic of any thread ends the job.
    ///
    /// # Errors
    /// [`MpiError`] if MPI cannot be used, or the placement names a rank that does not exist.
    pub fn join(options: GroupOptions) -> Result<Self, MpiError> {
        let epoch = Instant::now();
        let GroupOptions { timeout, cores, names, on_failure } = options;
        let (commands, received) = channel();
        let (hello, hellos) = channel();
        let (finish, finished) = channel();
        let (members, inbox) = channel();
        let (result, results) = channel();
        let own_cores = cores.clone();
        let body = move || {
            let joined = |joined: Result<Joined, MpiError>| {
                let start = |Joined { rank, size, neighbours }| {
                    let with_model = neighbours.iter().copied();
                    let with_model = with_model.filter(|rank| names.contains_key(rank)).collect();
                    let cores = share(&cores, with_model, rank);
                    let largest = names.keys().max().copied().unwrap_or(0);
                    if largest >= size {
                        return Err(MpiError::NoSuchRank { rank: largest, size });
                    }
                    let names = (0..size).map(|rank| names.get(&rank).cloned().unwrap_or_default());
                    let shared = Arc::new(Shared {
                        rank,
                        size,
                        epoch,
                        timeout,
                        commands,
                        transport: Mutex::default(),
                        carrier: OnceLock::new(),
                        is_member: AtomicBool::new(false),
                        jobs: OnceLock::new(),
                        connections: OnceLock::new(),
                        hellos: hello,
                        members,
                        gathered_bytes: AtomicU64::new(0),
                        clocks: (0..size).map(|_| Mutex::default()).collect(),
                        names: names.collect(),
                        failure: Mutex::default(),
                        is_finalizing: AtomicBool::new(false),
                        sent_bytes: AtomicU64::new(0),
                        received_bytes: AtomicU64::new(0),
                        on_failure,
                    });
                    Ok((shared, cores))
                };
                let started = joined.and_then(start);
                let shared = started.as_ref().ok().map(|(shared, _)| Arc::clone(shared));
                drop(result.send(started));
                shared
            };
            transport::run(&own_cores, received, joined);
            let _ = finish.send(());
        };
        let thread = thread::Builder::new().name(THREAD.into()).spawn(body);
        let thread = thread.map_err(|error| MpiError::Thread(error.to_string()))?;
        let (shared, cores) = results
            .recv_timeout(FORMATION)
            .unwrap_or_else(|_| Err(MpiError::NotFormed { seconds: FORMATION.as_secs() }))?;
        end_job_on_panic(&shared);
        let (hellos, finished) = (Mutex::new(hellos), Mutex::new(finished));
        let (alive, all_dropped) = channel();
        let (inbox, exchanges) = (Mutex::new(Some(inbox)), Mutex::new((Some(alive), all_dropped)));
        Ok(Self { shared, cores, hellos, finished, inbox, exchanges, thread: Some(thread) })
    }

    /// Returns the number of this process in the job, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Returns the number of processes in the job.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Returns the cores for the models of this rank. Ranks on a machine that may all use the same
    /// cores divide them among those with models.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Connects this rank with the others of `ranks`, which compute a target together. The first of
    /// them leads.
    ///
    /// # Panics
    /// If this rank is connected already: a rank can be in one such group.
    #[must_use]
    pub fn exchange(&self, ranks: &[usize]) -> RankExchange {
        let inbox = lock(&self.inbox).take().expect("one group of ranks for each rank");
        // The group has a sender until it is dropped.
        let alive = lock(&self.exchanges).0.clone();
        self.shared.is_member.store(true, Ordering::Relaxed);
        RankExchange::new(Arc::clone(&self.shared), ranks, inbox, alive)
    }

    /// Waits until this rank takes no more part in computing a model together with others.
    fn wait_for_exchanges(&self) {
        let mut exchanges = lock(&self.exchanges);
        exchanges.0 = None;
        // An error: all senders are gone.
        while exchanges.1.recv().is_ok() {}
    }

    /// Loads with `load`, and then runs the jobs that rank 0 sends, until that ends the job. `load`
    /// returns the workers, and what rank 0 must know of them. Its error is reported by rank 0.
    ///
    /// # Errors
    /// [`MpiError::Message`] if a message of rank 0 cannot be read.
    pub fn serve(
        self,
        load: impl FnOnce(&Self) -> Result<(Runtime, Vec<u8>), String>,
    ) -> Result<(), MpiError> {
        let (runtime, facts) = match load(&self) {
            Ok(loaded) => loaded,
            Err(message) => {
                self.shared.send(0, Kind::Hello, to_bytes(&Err::<Vec<u8>, _>(message)));
                // Rank 0 reports the error and ends the job, and this process with it.
                loop {
                    thread::park();
                }
            }
        };
        let (server, queue) = MessageServer::new();
        let _ = self.shared.jobs.set(queue);
        self.shared.send(0, Kind::Hello, to_bytes(&Ok::<_, String>(facts)));
        let send = |bytes| self.shared.send(0, Kind::Wire, bytes);
        let served = server.serve(&runtime, self.shared.epoch, send);
        drop(runtime);
        served.map_err(|cause| {
            let error = MpiError::Message { rank: 0, cause };
            // Ends the job with this error, before the others see that this rank has left.
            self.shared.fail(error.to_string());
            error
        })
    }

    /// Waits on rank 0 until all others have loaded their models. Returns what they report, from
    /// rank 1 upwards.
    ///
    /// # Errors
    /// [`MpiError::Rank`] if one could not load them.
    pub fn gather(&self) -> Result<Vec<Vec<u8>>, MpiError> {
        let mut facts = BTreeMap::new();
        while facts.len() + 1 < self.size() {
            let Ok((rank, bytes)) = lock(&self.hellos).recv() else { break };
            let hello = postcard::from_bytes::<Result<Vec<u8>, String>>(&bytes);
            let hello =
                hello.map_err(|error| MpiError::Rank { rank, message: error.to_string() })?;
            facts.insert(rank, hello.map_err(|message| MpiError::Rank { rank, message })?);
        }
        Ok(facts.into_values().collect())
    }

    /// Returns handles to the workers of all ranks, on rank 0. `runtime` has those of rank 0.
    /// `workers` names all of them, with their ranks.
    #[must_use]
    pub fn into_workers(
        self,
        runtime: Runtime,
        workers: &[(usize, String, Vec<Role>)],
    ) -> RankWorkers {
        let runtime = Arc::new(runtime);
        let of_rank = |rank: usize| {
            let of_rank = workers.iter().filter(move |(of, ..)| *of == rank);
            of_rank.map(|(_, name, roles)| (name.clone(), roles.clone())).collect()
        };
        let (connections, processes): (Vec<_>, Vec<_>) = (0..self.size())
            .map(|rank| {
                let name = format!("rank {rank}");
                let (connection, to_own_clock): (_, Arc<dyn Fn(u64) -> u64 + Send + Sync>) =
                    match rank {
                        0 => (self.own_connection(name, &runtime), Arc::new(|time_ns| time_ns)),
                        _ => {
                            let shared = Arc::clone(&self.shared);
                            let send = move |bytes| shared.send(rank, Kind::Wire, bytes);
                            let shared = Arc::clone(&self.shared);
                            let to_own = move |time_ns| lock(&shared.clocks[rank]).to_own(time_ns);
                            (Arc::new(Connection::new(name, send)), Arc::new(to_own))
                        }
                    };
                let workers = of_rank(rank);
                let process =
                    RemoteProcess { connection: Arc::clone(&connection), workers, to_own_clock };
                (connection, process)
            })
            .unzip();
        let _ = self.shared.connections.set(connections);
        let shared = Arc::clone(&self.shared);
        // A rank without workers need not hear of sequences.
        let processes =
            processes.into_iter().filter(|process: &RemoteProcess| !process.workers.is_empty());
        RankWorkers { workers: RemoteWorkers::new(processes.collect(), self), shared }
    }

    /// Returns a connection to the workers of this process, which another thread serves.
    fn own_connection(&self, name: String, runtime: &Arc<Runtime>) -> Arc<Connection> {
        let (server, queue) = MessageServer::new();
        let _ = self.shared.jobs.set(queue.clone());
        let queue = ClosesWhenDropped(queue);
        let connection = Arc::new(Connection::new(name, move |bytes| queue.0.push(bytes)));
        let (to_host, runtime, shared) =
            (Arc::downgrade(&connection), Arc::clone(runtime), Arc::clone(&self.shared));
        thread::spawn(move || {
            let send = |bytes: Vec<u8>| {
                let received = to_host.upgrade().map(|host| host.receive(&bytes));
                if let Some(Err(error)) = received {
                    shared.fail(MpiError::Message { rank: 0, cause: error }.to_string());
                }
            };
            if let Err(error) = server.serve(&runtime, shared.epoch, send) {
                shared.fail(MpiError::Message { rank: 0, cause: error }.to_string());
            }
        });
        connection
    }
}

/// Stops the server of a queue when it is dropped.
struct ClosesWhenDropped(forerun_runtime::MessageQueue);

impl Drop for ClosesWhenDropped {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The work of this process ends first. On rank 0 the others must hear of it, because its
        // target may be led by one of them.
        if self.shared.rank == 0 {
            if let Some(jobs) = self.shared.jobs.get() {
                jobs.close();
            }
            self.shared.command(Command::Finish);
            self.wait_for_exchanges();
        } else {
            self.wait_for_exchanges();
            self.shared.command(Command::Finish);
        }
        let mut waited = Duration::ZERO;
        let step = Duration::from_millis(100);
        while let Err(RecvTimeoutError::Timeout) = lock(&self.finished).recv_timeout(step) {
            if self.shared.is_finalizing.load(Ordering::SeqCst) {
                waited += step;
            }
            if waited > self.shared.timeout {
                (self.shared.on_failure)(&format!(
                    "the ranks did not end within {} s after the last answer, which is complete: one of them is stopped or gone",
                    self.shared.timeout.as_secs_f64()
                ));
                std::process::exit(1);
            }
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Lets a panic on any thread end the job, with an error that names this rank.
fn end_job_on_panic(shared: &Arc<Shared>) {
    let (shared, before) = (Arc::downgrade(shared), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        before(info);
        let Some(shared) = shared.upgrade() else { return };
        if shared.is_finalizing.load(Ordering::SeqCst) {
            return;
        }
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let error = format!("rank {} panicked: {}", shared.rank, text.unwrap_or_default());
        if transport::carries() || thread::current().name() == Some(THREAD) {
            (shared.on_failure)(&error);
            abort_job();
        }
        shared.fail(error);
        thread::sleep(END_OF_JOB);
        std::process::exit(1);
    }));
}

/// Returns this rank's share of the cores that it may use together with the ranks `with_model`.
fn share(cores: &[usize], mut with_model: Vec<usize>, rank: usize) -> Vec<usize> {
    with_model.sort_unstable();
    let Some(own) = with_model.iter().position(|&other| other == rank) else {
        return cores.to_vec();
    };
    let (count, ranks) = (cores.len(), with_model.len());
    if count < ranks {
        return cores.get(own % count.max(1)).copied().into_iter().collect();
    }
    cores[own * count / ranks..(own + 1) * count / ranks].to_vec()
}

/// The workers of all ranks, seen from rank 0. The job ends when it and all its handles have been
/// dropped.
pub struct RankWorkers {
    workers: RemoteWorkers,
    shared: Arc<Shared>,
}

impl RankWorkers {
    /// Returns an observer of the messages between the ranks.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.shared))
    }
}

/// What rank 0 can tell of the messages between the ranks, as long as the job runs.
#[derive(Clone)]
pub struct Observer(Weak<Shared>);

impl Observer {
    /// Returns how the clocks of the other ranks differ from that of rank 0.
    #[must_use]
    pub fn clocks(&self) -> Vec<ClockReport> {
        let Some(shared) = self.0.upgrade() else { return Vec::new() };
        let report = |rank: usize| lock(&shared.clocks[rank]).report(rank);
        (1..shared.size).filter_map(report).collect()
    }

    /// Returns how many bytes of jobs and completions rank 0 has sent to and received from other
    /// ranks.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        let Some(shared) = self.0.upgrade() else { return (0, 0) };
        (shared.sent_bytes.load(Ordering::Relaxed), shared.received_bytes.load(Ordering::Relaxed))
    }

    /// Returns how many bytes rank 0 has sent to ranks that compute a target together with it.
    #[must_use]
    pub fn gathered(&self) -> u64 {
        self.0.upgrade().map_or(0, |shared| shared.gathered_bytes.load(Ordering::Relaxed))
    }
}

impl Workers for RankWorkers {
    fn cluster(&self, canceller: &Canceller) -> Box<dyn ClusterHandle> {
        self.workers.cluster(canceller)
    }

    fn take_trace_of(&self, sequence: SequenceId) -> Trace {
        self.workers.take_trace_of(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn ranks_on_a_machine_divide_its_cores() {
        let shares = |cores: &[usize], ranks: &[usize]| -> Vec<Vec<usize>> {
            ranks.iter().map(|&rank| share(cores, ranks.to_vec(), rank)).collect()
        };
        assert_eq!(shares(&[4, 5, 6, 7, 8], &[0, 2]), [vec![4, 5], vec![6, 7, 8]]);
        assert_eq!(shares(&[0, 1], &[1, 2, 3]), [[0], [1], [0]]);
        assert_eq!(share(&[0, 1], vec![1, 2], 0), [0, 1]);
    }
}

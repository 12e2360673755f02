//! Several sequences in one virtual time.

use crate::{SimCluster, SimError};
use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A handle to a [`SimCluster`] for the decoder of one of several sequences.
pub struct SequenceCluster<'a, 'c> {
    turns: &'a Turns<'c>,
    index: usize,
}

/// Whose turn it is to use the cluster.
///
/// Decoders are blocking code, so each has a thread. Only one of them runs at a time: it submits
/// jobs until it waits for a completion. Then the virtual clock moves to the next completion, and
/// its decoder continues. So the order of events does not depend on the threads.
struct Turns<'c> {
    state: Mutex<TurnState<'c>>,
    changed: Condvar,
}

struct TurnState<'c> {
    cluster: &'c mut SimCluster,
    decoders: Vec<DecoderState>,
    /// The decoder that may run.
    running: Option<usize>,
    /// The decoders of the jobs in flight.
    owners: BTreeMap<Ticket, usize>,
    /// The completion for the decoder that may run.
    completion: Option<Completion>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    NotStarted,
    Started,
    Ended,
}

impl<'c> Turns<'c> {
    fn new(cluster: &'c mut SimCluster, decoders: usize) -> Self {
        let state = TurnState {
            cluster,
            decoders: vec![DecoderState::NotStarted; decoders],
            running: None,
            owners: BTreeMap::new(),
            completion: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState<'c>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of a decoder.
    fn wait_for<'a>(
        &'a self,
        state: MutexGuard<'a, TurnState<'c>>,
        index: usize,
    ) -> MutexGuard<'a, TurnState<'c>> {
        let is_other = |state: &mut TurnState<'_>| state.running != Some(index);
        self.changed.wait_while(state, is_other).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the turn of the decoder that runs, and lets the next one run.
    fn pass_on(&self, state: &mut TurnState<'c>) {
        state.choose_next();
        self.changed.notify_all();
    }
}

impl TurnState<'_> {
    /// Chooses the decoder that runs next: first every decoder once, in order; then the one whose
    /// job ends next. Completions for decoders that have ended are dropped.
    fn choose_next(&mut self) {
        let with = |wanted| self.decoders.iter().position(|&state| state == wanted);
        self.running = with(DecoderState::NotStarted);
        if let Some(index) = self.running {
            self.decoders[index] = DecoderState::Started;
            return;
        }
        let waiting = with(DecoderState::Started);
        while waiting.is_some() && self.running.is_none() {
            let Ok(completion) = self.cluster.next_completion() else {
                // A decoder that waits has a job in flight, so this does not happen.
                self.running = waiting;
                return;
            };
            let owner = self.owners.remove(&completion.ticket);
            self.running = owner.filter(|&owner| self.decoders[owner] == DecoderState::Started);
            self.completion = self.running.map(|_| completion);
        }
    }
}

/// Ends the turn of a decoder when it has ended, even if it panics.
struct EndOnDrop<'a, 'c> {
    turns: &'a Turns<'c>,
    index: usize,
}

impl Drop for EndOnDrop<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.decoders[self.index] = DecoderState::Ended;
        self.turns.pass_on(&mut state);
    }
}

impl SimCluster {
    /// Runs the decoders of several sequences at the same time, and returns their results. Each
    /// sequence needs an id of its own.
    ///
    /// Decoders take no virtual time. The results, the trace and all times are the same in every
    /// run.
    ///
    /// ```rust
    /// use forerun_core::{Role, Sampling, SequenceId};
    /// use forerun_decode::{Autoregressive, Limits, Sequence, generate};
    /// use forerun_sim::{AcceptanceModel, Cancellation, Cost, Device, Oracle, SimCluster};
    /// use std::ops::ControlFlow;
    ///
    /// // A pass takes 100 ns, and 10 ns more for each further row.
    /// let device =
    ///     Device { name: "target".into(), roles: vec![Role::Target(0)], cost: Cost::linear(100, 10) };
    /// let oracle = Oracle { seed: 1, drafters: vec![AcceptanceModel::Iid(0.8)] };
    /// let mut cluster =
    ///     SimCluster::new(vec![device], oracle.clone(), Cancellation::Layer, Vec::new())?;
    ///
    /// let decode = |id: u64| {
    ///     let text = oracle.of_sequence(SequenceId(id));
    ///     move |cluster: &mut forerun_sim::SequenceCluster<'_, '_>| {
    ///         let limits = Limits { max_tokens: 20, context_length: 512, eos: Vec::new() };
    ///         let mut sequence =
    ///             Sequence::new(SequenceId(id), text.text(1), Sampling::greedy(), limits);
    ///         let go_on = |_: &[u32]| ControlFlow::Continue(());
    ///         generate(&mut Autoregressive, &mut sequence, cluster, go_on).map(|_| cluster.now_ns())
    ///     }
    /// };
    /// let ends_ns = cluster.run_together((0..4).map(decode).collect())?;
    ///
    /// // All four sequences share 20 passes of four rows.
    /// assert_eq!(ends_ns, vec![Ok(20 * 130); 4]);
    /// # Ok::<(), forerun_sim::SimError>(())
    /// ```
    ///
    /// # Errors
    /// [`SimError::Start`] if the thread of a decoder cannot be started.
    ///
    /// # Panics
    /// If a decoder panics.
    pub fn run_together<T: Send, D>(&mut self, decoders: Vec<D>) -> Result<Vec<T>, SimError>
    where
        D: FnOnce(&mut SequenceCluster<'_, '_>) -> T + Send,
    {
        let turns = Turns::new(self, decoders.len());
        let turns = &turns;
        thread::scope(|scope| {
            let start = |(index, decode): (usize, D)| {
                let body = move || {
                    drop(turns.wait_for(turns.lock(), index));
                    let _end = EndOnDrop { turns, index };
                    decode(&mut SequenceCluster { turns, index })
                };
                let started = thread::Builder::new().spawn_scoped(scope, body);
                if started.is_err() {
                    turns.lock().decoders[index] = DecoderState::Ended;
                }
                started.map_err(|error| SimError::Start(error.to_string()))
            };
            let threads: Vec<_> = decoders.into_iter().enumerate().map(start).collect();
            turns.pass_on(&mut turns.lock());
            let join = |thread: thread::ScopedJoinHandle<'_, T>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(|thread| thread.map(join)).collect()
        })
    }
}

impl SequenceCluster<'_, '_> {
    /// Returns the virtual time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.turns.lock().cluster.now_ns()
    }
}

impl Cluster for SequenceCluster<'_, '_> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let mut state = self.turns.lock();
        let ticket = state.cluster.submit(on, job)?;
        state.owners.insert(ticket, self.index);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.turns.lock().cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let mut state = self.turns.lock();
        if !state.owners.values().any(|&owner| owner == self.index) {
            return Err(ClusterError::Idle);
        }
        self.turns.pass_on(&mut state);
        self.turns.wait_for(state, self.index).completion.take().ok_or(ClusterError::Idle)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.turns.lock().cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.turns.lock().cluster.release(sequence);
    }
}

//! The connection between ranks that compute a model together.

use crate::transport::{Kind, Shared};
use forerun_cpu::{Exchange, ExchangeError, LEADER, Recipients, Take};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// For how long a rank that waits for others carries messages itself, since it last received or
/// sent something. After that it sleeps, and messages arrive later.
const CARRYING: Duration = Duration::from_millis(5);

/// What a rank receives from another one that computes with it.
pub(crate) enum MemberMessage {
    /// A message of the leader.
    Pass(Vec<u8>),
    /// Numbers to gather.
    Numbers(Vec<u8>),
    /// The rank has ended its work.
    Ended,
}

/// A rank's connection to the others that compute a target together.
pub struct RankExchange {
    shared: Arc<Shared>,
    /// The rank of each member, the leader first.
    ranks: Vec<usize>,
    member: usize,
    inbox: Receiver<(usize, MemberMessage)>,
    /// What has arrived and is not needed yet.
    passes: VecDeque<Vec<u8>>,
    numbers: Vec<VecDeque<Vec<u8>>>,
    /// The members that have ended their work.
    ended: Vec<bool>,
    /// The numbers of one member.
    received: Vec<f32>,
    /// When this rank began to wait, if it has received and sent nothing since.
    waiting_since: Option<Instant>,
    /// Keeps the process in the job.
    _alive: Option<Sender<()>>,
}

impl RankExchange {
    /// Creates the connection of this rank, which is one of `ranks`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        ranks: &[usize],
        inbox: Receiver<(usize, MemberMessage)>,
        alive: Option<Sender<()>>,
    ) -> Self {
        let member = ranks.iter().position(|rank| *rank == shared.rank).unwrap_or(LEADER);
        Self {
            shared,
            ranks: ranks.to_vec(),
            member,
            inbox,
            passes: VecDeque::new(),
            numbers: ranks.iter().map(|_| VecDeque::new()).collect(),
            ended: vec![false; ranks.len()],
            received: Vec::new(),
            waiting_since: None,
            _alive: alive,
        }
    }

    /// Returns the other members with their ranks.
    fn others(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let members = self.ranks.iter().copied().enumerate();
        members.filter(|(member, _)| *member != self.member)
    }

    /// Waits for the next message, but not longer than until `end`, if there is one. Fails if there
    /// is no message until then, or this process has left the job.
    fn next(&mut self, end: Option<Instant>) -> Result<(usize, MemberMessage), RecvTimeoutError> {
        let message = self.carry_until(end).and_then(|message| match (message, end) {
            (Some(message), _) => Ok(message),
            (None, Some(end)) => {
                self.inbox.recv_timeout(end.saturating_duration_since(Instant::now()))
            }
            (None, None) => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        });
        if message.is_ok() {
            self.waiting_since = None;
        }
        message
    }

    /// Carries messages until there is one for this rank. Returns `None` if it has waited for too
    /// long. Fails if there is no message until `end`, or this process has left the job.
    fn carry_until(
        &mut self,
        end: Option<Instant>,
    ) -> Result<Option<(usize, MemberMessage)>, RecvTimeoutError> {
        loop {
            let since = *self.waiting_since.get_or_insert_with(Instant::now);
            match self.inbox.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if self.shared.carry() => self.waiting_since = None,
                Err(TryRecvError::Empty) if end.is_some_and(|end| end <= Instant::now()) => {
                    return Err(RecvTimeoutError::Timeout);
                }
                Err(TryRecvError::Empty) if since.elapsed() >= CARRYING => return Ok(None),
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
    }

    /// Sends messages, and ends the present wait.
    fn send_now(&mut self, messages: Vec<(usize, Kind, Vec<u8>)>) {
        self.waiting_since = None;
        self.shared.send_now(messages.into_iter());
    }

    /// Waits for the next message and keeps it. Returns false if `member` has ended its work.
    fn wait_for(&mut self, member: usize) -> bool {
        self.wait_until(None, member).is_ok()
    }

    /// Waits for the next message and keeps it, but not longer than until `end`, if there is one.
    /// Fails if there is no message until then, or `member` has ended its work.
    fn wait_until(&mut self, end: Option<Instant>, member: usize) -> Result<(), RecvTimeoutError> {
        if self.ended[member] {
            return Err(RecvTimeoutError::Disconnected);
        }
        let (rank, message) = self.next(end)?;
        let Some(from) = self.ranks.iter().position(|other| *other == rank) else { return Ok(()) };
        match message {
            MemberMessage::Pass(bytes) => self.passes.push_back(bytes),
            MemberMessage::Numbers(bytes) => self.numbers[from].push_back(bytes),
            MemberMessage::Ended => self.ended[from] = true,
        }
        Ok(())
    }
}

impl Exchange for RankExchange {
    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> usize {
        self.ranks.len()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let messages = self.others().map(|(_, rank)| (rank, Kind::Pass, message.to_vec()));
        self.send_now(messages.collect());
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        loop {
            if let Some(message) = self.passes.pop_front() {
                return Ok(Some(message));
            }
            if !self.wait_for(LEADER) {
                return Ok(None);
            }
        }
    }

    fn gather(
        &mut self,
        own: &[f32],
        to: Recipients,
        take: &mut Take<'_>,
    ) -> Result<(), ExchangeError> {
        let bytes = bytes_of(own);
        let recipients =
            self.others().filter(|(member, _)| to == Recipients::All || *member == LEADER);
        let messages = recipients.map(|(_, rank)| (rank, Kind::Numbers, bytes.clone()));
        self.send_now(messages.collect());
        if to == Recipients::Leader && self.member != LEADER {
            return Ok(());
        }
        let own = self.member;
        for member in (0..self.ranks.len()).filter(|&member| member != own) {
            let bytes = loop {
                if let Some(bytes) = self.numbers[member].pop_front() {
                    break bytes;
                }
                if !self.wait_for(member) {
                    return Err(ExchangeError::Lost { member });
                }
            };
            self.received.clear();
            self.received.extend(numbers_of(&bytes));
            take(member, &self.received)?;
        }
        Ok(())
    }

    fn send_to(&mut self, member: usize, numbers: &[f32]) -> Result<(), ExchangeError> {
        self.send_now(vec![(self.ranks[member], Kind::Numbers, bytes_of(numbers))]);
        Ok(())
    }

    fn receive_from(
        &mut self,
        member: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<f32>>, ExchangeError> {
        let end = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(bytes) = self.numbers[member].pop_front() {
                return Ok(Some(numbers_of(&bytes).collect()));
            }
            match self.wait_until(end, member) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(ExchangeError::Lost { member }),
            }
        }
    }
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers_of(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number))
}

impl Drop for RankExchange {
    fn drop(&mut self) {
        if self.member == LEADER {
            for (_, rank) in self.others() {
                self.shared.send(rank, Kind::End, Vec::new());
            }
        }
    }
}

//! Members on the threads of one process.

use super::exchange::{Exchange, ExchangeError, LEADER, Recipients, Take};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a member looks for the others before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// A member of a group of threads of one process.
///
/// A member that is dropped is gone: the others get an error from then on.
pub struct ThreadExchange {
    member: usize,
    shared: Arc<Shared>,
    /// How often this member has gathered.
    round: usize,
    /// To the other members, on the leader.
    messages_out: Vec<Sender<Vec<u8>>>,
    /// From the leader, on the others.
    messages_in: Receiver<Vec<u8>>,
    /// To each member.
    numbers_out: Vec<Sender<Vec<f32>>>,
    /// From each member.
    numbers_in: Vec<Receiver<Vec<f32>>>,
}

struct Shared {
    /// What the members pass to each other, in turn: one set is written while others read the other
    /// one.
    numbers: [Vec<RwLock<Vec<f32>>>; 2],
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// Where the members wait for each other.
#[derive(Default)]
struct Meeting {
    /// The number of members that have come to the present round.
    arrived: usize,
    /// The number of rounds to which all members have come.
    complete: usize,
    /// The first member that is gone.
    gone: Option<usize>,
}

impl ThreadExchange {
    /// Creates the connections of a group of this many members, the leader first.
    #[must_use]
    pub fn group(members: usize) -> Vec<Self> {
        let numbers = || (0..members).map(|_| RwLock::default()).collect();
        let (numbers, meeting) = ([numbers(), numbers()], Mutex::default());
        let shared = Arc::new(Shared { numbers, meeting, changed: Condvar::new() });
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..members).map(|_| channel()).unzip();
        let mut messages_out = Some(senders.into_iter().skip(1).collect());
        let (mut numbers_out, mut numbers_in): (Vec<_>, Vec<_>) =
            (0..members).map(|_| (Vec::new(), Vec::new())).unzip();
        for (out, into) in (0..members).flat_map(|out| (0..members).map(move |into| (out, into))) {
            let (sender, receiver) = channel();
            numbers_out[out].push(sender);
            numbers_in[into].push(receiver);
        }
        let member = |(member, messages_in)| Self {
            member,
            shared: Arc::clone(&shared),
            round: 0,
            messages_out: messages_out.take().unwrap_or_default(),
            messages_in,
            numbers_out: std::mem::take(&mut numbers_out[member]),
            numbers_in: std::mem::take(&mut numbers_in[member]),
        };
        receivers.into_iter().enumerate().map(member).collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error for a member that is gone. Another one may have been the first, and the
    /// reason why this one has ended, too.
    fn lost(&self, member: usize) -> ExchangeError {
        ExchangeError::Lost { member: self.lock().gone.unwrap_or(member) }
    }

    /// Waits until all members have come to a round.
    fn meet(&self, round: usize) -> Result<(), ExchangeError> {
        let members = self.numbers[0].len();
        let mut meeting = self.lock();
        meeting.arrived += 1;
        if meeting.arrived == members {
            (meeting.arrived, meeting.complete) = (0, round);
            self.changed.notify_all();
            return Ok(());
        }
        let started = Instant::now();
        loop {
            if meeting.complete >= round {
                return Ok(());
            }
            if let Some(member) = meeting.gone {
                return Err(ExchangeError::Lost { member });
            }
            if started.elapsed() < SPIN {
                drop(meeting);
                std::thread::yield_now();
                meeting = self.lock();
            } else {
                meeting = self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Exchange for ThreadExchange {
    fn member(&self) -> usize {
        self.member
    }

    fn members(&self) -> usize {
        self.shared.numbers[0].len()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        if let Some(member) = self.shared.lock().gone {
            return Err(ExchangeError::Lost { member });
        }
        for (member, other) in (1..).zip(&self.messages_out) {
            other.send(message.to_vec()).map_err(|_| self.shared.lost(member))?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        match self.messages_in.recv() {
            Ok(message) => Ok(Some(message)),
            Err(_) => Ok(None),
        }
    }

    fn gather(
        &mut self,
        own: &[f32],
        to: Recipients,
        take: &mut Take<'_>,
    ) -> Result<(), ExchangeError> {
        // A member that writes here has met the others after the round before, so all have read
        // what was here.
        let numbers = &self.shared.numbers[self.round % 2];
        self.round += 1;
        {
            let mut place = numbers[self.member].write().unwrap_or_else(PoisonError::into_inner);
            place.clear();
            place.extend_from_slice(own);
        }
        self.shared.meet(self.round)?;
        if to == Recipients::Leader && self.member != LEADER {
            return Ok(());
        }
        for (member, place) in numbers.iter().enumerate().filter(|(it, _)| *it != self.member) {
            take(member, &place.read().unwrap_or_else(PoisonError::into_inner))?;
        }
        Ok(())
    }

    fn send_to(&mut self, member: usize, numbers: &[f32]) -> Result<(), ExchangeError> {
        let sent = self.numbers_out[member].send(numbers.to_vec());
        sent.map_err(|_| self.shared.lost(member))
    }

    fn receive_from(
        &mut self,
        member: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<f32>>, ExchangeError> {
        let inbox = &self.numbers_in[member];
        match patience {
            None => inbox.recv().map(Some).map_err(|_| self.shared.lost(member)),
            Some(patience) => match inbox.recv_timeout(patience) {
                Ok(numbers) => Ok(Some(numbers)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(self.shared.lost(member)),
            },
        }
    }
}

impl Drop for ThreadExchange {
    fn drop(&mut self) {
        self.shared.lock().gone.get_or_insert(self.member);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn members_gather_in_rounds() {
        let members = ThreadExchange::group(3);
        thread::scope(|scope| {
            for mut member in members {
                scope.spawn(move || {
                    let own = member.member();
                    for round in 0..500 {
                        let mut sum = 0.0;
                        let values = vec![(10 * round + own) as f32; own + 1];
                        let to = [Recipients::All, Recipients::Leader][round % 2];
                        let mut take = |from: usize, values: &[f32]| {
                            assert_eq!(values, vec![(10 * round + from) as f32; from + 1]);
                            sum += values[0];
                            Ok(())
                        };
                        member.gather(&values, to, &mut take).unwrap();
                        let is_recipient = round % 2 == 0 || own == LEADER;
                        let expected = if is_recipient { 20 * round + 3 - own } else { 0 };
                        assert_eq!(sum, expected as f32);
                    }
                });
            }
        });
    }

    #[test]
    fn numbers_for_one_member_arrive_in_order() {
        let mut members = ThreadExchange::group(2);
        let mut second = members.pop().unwrap();
        let mut leader = members.pop().unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(second.receive_from(LEADER, now), Ok(None));
        leader.send_to(1, &[1.0, 2.0]).unwrap();
        leader.send_to(1, &[]).unwrap();
        assert_eq!(second.receive_from(LEADER, now), Ok(Some(vec![1.0, 2.0])));
        assert_eq!(second.receive_from(LEADER, None), Ok(Some(vec![])));
        second.send_to(LEADER, &[3.0]).unwrap();
        drop(second);
        assert_eq!(leader.receive_from(1, None), Ok(Some(vec![3.0])));
        let lost = ExchangeError::Lost { member: 1 };
        assert_eq!(leader.receive_from(1, now), Err(lost.clone()));
        assert_eq!(leader.receive_from(1, None), Err(lost.clone()));
        assert_eq!(leader.send_to(1, &[4.0]), Err(lost));
    }

    #[test]
    fn a_lost_member_is_named() {
        let mut members = ThreadExchange::group(3);
        let last = members.pop().unwrap();
        let mut second = members.pop().unwrap();
        let mut leader = members.pop().unwrap();
        leader.send(&[7]).unwrap();
        assert_eq!(second.receive(), Ok(Some(vec![7])));
        let waiting =
            thread::spawn(move || second.gather(&[1.0], Recipients::All, &mut |_, _| Ok(())));
        drop(last);
        let lost = ExchangeError::Lost { member: 2 };
        assert_eq!(waiting.join().unwrap(), Err(lost.clone()));
        assert_eq!(leader.gather(&[1.0], Recipients::All, &mut |_, _| Ok(())), Err(lost.clone()));
        assert_eq!(leader.send(&[8]), Err(lost));
    }

    #[test]
    fn the_first_lost_member_is_named() {
        let mut members = ThreadExchange::group(3);
        let mut last = members.pop().unwrap();
        let second = members.pop().unwrap();
        let mut leader = members.pop().unwrap();
        drop(second);
        let lost = ExchangeError::Lost { member: 1 };
        assert_eq!(last.receive_from(1, None), Err(lost.clone()));
        // The last member ends because of that, and the leader waits for it.
        drop(last);
        assert_eq!(leader.receive_from(2, None), Err(lost.clone()));
        assert_eq!(leader.receive_from(2, Some(Duration::ZERO)), Err(lost.clone()));
        assert_eq!(leader.send_to(2, &[1.0]), Err(lost));
    }
}

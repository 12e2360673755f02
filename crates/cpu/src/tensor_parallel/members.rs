//! A member's view of the others during passes.

use super::exchange::{Exchange, ExchangeError, LEADER, Recipients, Take};
use super::share::Widths;
use forerun_core::TokenId;
use forerun_formats::CacheType;
use forerun_lm::CachePart;
use forerun_model::CacheOverflow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The numbers at the start of what a member sends: pass, step, and whether the leader wants to
/// cancel.
const HEADER: usize = 3;

/// The members that compute a model together, as one of them sees them.
///
/// A failure of the exchange is a panic: the pass cannot go on, and no member may take its results.
pub(crate) struct Members(Mutex<State>);

struct State {
    exchange: Box<dyn Exchange>,
    /// The number of the pass, from 1.
    pass: u32,
    /// How often the members have gathered in this pass.
    step: u32,
    /// Whether this member would cancel the pass. Only the leader's wish counts.
    wants_to_cancel: bool,
    /// Whether the leader wanted to cancel the pass when the members gathered last.
    is_cancelled: bool,
    /// What this member sends: a header and numbers.
    sent: Vec<f32>,
    /// What the members have gathered.
    whole: Vec<f32>,
}

impl Members {
    /// Creates a member's view of the others.
    pub(crate) fn new(exchange: Box<dyn Exchange>) -> Self {
        Self(Mutex::new(State {
            exchange,
            pass: 0,
            step: 0,
            wants_to_cancel: false,
            is_cancelled: false,
            sent: Vec::new(),
            whole: Vec::new(),
        }))
    }

    pub(crate) fn start_pass(&self, pass: u32) {
        let mut state = self.lock();
        (state.pass, state.step) = (pass, 0);
        (state.wants_to_cancel, state.is_cancelled) = (false, false);
    }

    /// Sends a message from the leader to the others.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), ExchangeError> {
        self.lock().exchange.send(message)
    }

    /// Waits for the leader's next message. `None` once the leader has ended the group.
    pub(crate) fn receive(&self) -> Result<Option<Vec<u8>>, ExchangeError> {
        self.lock().exchange.receive()
    }

    /// Returns whether the leader wanted to cancel the pass when the members gathered last, which
    /// all members know. The others learn with the next gathering what this one `wants`.
    pub(crate) fn agree_to_cancel(&self, wants: bool) -> bool {
        let mut state = self.lock();
        state.wants_to_cancel = wants;
        state.is_cancelled
    }

    /// Replaces the members' shares of rows, `[rows, own width]`, by whole rows:
    /// `[rows, sum of widths]`. Does nothing if the rows are whole already.
    pub(crate) fn gather(&self, values: &mut Vec<f32>, rows: usize, widths: &Widths) {
        self.gather_rows(values, rows, widths, Recipients::All);
    }

    /// Replaces shares of rows by whole rows on the leader, as [`Self::gather`] does on all
    /// members.
    pub(crate) fn gather_for_leader(&self, values: &mut Vec<f32>, rows: usize, widths: &Widths) {
        self.gather_rows(values, rows, widths, Recipients::Leader);
    }

    fn gather_rows(&self, values: &mut Vec<f32>, rows: usize, widths: &Widths, to: Recipients) {
        let widths = widths.of_members();
        if widths.is_empty() {
            return;
        }
        let mut state = self.lock();
        let own = state.exchange.member();
        let stride: usize = widths.iter().sum();
        let mut whole = std::mem::take(&mut state.whole);
        whole.resize(rows * stride, 0.0);
        let mut place = |member: usize, share: &[f32]| {
            let (first, width) = (widths[..member].iter().sum::<usize>(), widths[member]);
            if share.len() != rows * width {
                let (expected, found) = (rows * width, share.len());
                return Err(ExchangeError::Length { member, expected, found });
            }
            if width > 0 {
                for (row, share) in whole.chunks_exact_mut(stride).zip(share.chunks_exact(width)) {
                    row[first..first + width].copy_from_slice(share);
                }
            }
            Ok(())
        };
        let gathered = place(own, values).and_then(|()| state.exchange_all(values, to, &mut place));
        let is_recipient = to == Recipients::All || own == LEADER;
        state.whole = match is_recipient {
            true => std::mem::replace(values, whole),
            false => whole,
        };
        drop(state);
        end_unless(gathered);
    }

    /// Fills in the rows of tokens, `[tokens, size]`, that other members have. `widths` are their
    /// parts of the vocabulary.
    pub(crate) fn gather_tokens(
        &self,
        rows: &mut [f32],
        size: usize,
        widths: &Widths,
        tokens: &mut dyn Iterator<Item = TokenId>,
    ) {
        if widths.of_members().is_empty() {
            return;
        }
        let mut state = self.lock();
        let owners: Vec<usize> = tokens.map(|token| widths.member_of(token as usize)).collect();
        let own = state.exchange.member();
        let mut values = Vec::new();
        for (row, _) in rows.chunks_exact(size).zip(&owners).filter(|(_, owner)| **owner == own) {
            values.extend_from_slice(row);
        }
        let gathered = state.exchange_all(&values, Recipients::All, &mut |member, share| {
            let of_member = rows.chunks_exact_mut(size).zip(&owners);
            let of_member = of_member.filter(|(_, owner)| **owner == member).map(|(row, _)| row);
            let expected = size * owners.iter().filter(|owner| **owner == member).count();
            if share.len() != expected {
                return Err(ExchangeError::Length { member, expected, found: share.len() });
            }
            for (row, values) in of_member.zip(share.chunks_exact(size)) {
                row.copy_from_slice(values);
            }
            Ok(())
        });
        drop(state);
        end_unless(gathered);
    }

    /// Adds the overflows that the other members have found to those of the leader.
    pub(crate) fn gather_overflows(
        &self,
        overflows: &mut Vec<CacheOverflow>,
        cache_type: CacheType,
    ) {
        if cache_type != CacheType::F16 {
            return;
        }
        let mut state = self.lock();
        let number = |number: usize| f32::from_bits(number as u32);
        let numbers = |overflow: &CacheOverflow| {
            let part = usize::from(overflow.part == CachePart::Value);
            [overflow.row, overflow.layer, part].map(number)
        };
        let values: Vec<f32> = overflows.iter().flat_map(numbers).collect();
        let gathered = state.exchange_all(&values, Recipients::Leader, &mut |_, share| {
            overflows.extend(share.as_chunks().0.iter().map(|numbers: &[f32; 3]| {
                let [row, layer, part] = numbers.map(|number| number.to_bits() as usize);
                let part = if part == 0 { CachePart::Key } else { CachePart::Value };
                CacheOverflow { row, layer, part }
            }));
            Ok(())
        });
        drop(state);
        end_unless(gathered);
        // One for each row and layer, as on one device: the key's first.
        overflows.sort_by_key(|it| (it.layer, it.row, it.part == CachePart::Value));
        overflows.dedup_by_key(|it| (it.layer, it.row));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Passes numbers to the recipients, each of which calls `take` with those of every other
    /// member, unless that is at another step.
    fn exchange_all(
        &mut self,
        values: &[f32],
        to: Recipients,
        take: &mut Take<'_>,
    ) -> Result<(), ExchangeError> {
        self.step += 1;
        let Self { exchange, pass, step, wants_to_cancel, is_cancelled, sent, .. } = self;
        let (pass, step) = (*pass, *step);
        sent.clear();
        sent.extend([pass, step, u32::from(*wants_to_cancel)].map(f32::from_bits));
        sent.extend_from_slice(values);
        if exchange.member() == LEADER {
            *is_cancelled = *wants_to_cancel;
        }
        exchange.gather(sent, to, &mut |member, numbers| {
            let length = |found| ExchangeError::Length { member, expected: HEADER, found };
            let header = numbers.first_chunk::<HEADER>().ok_or(length(numbers.len()))?;
            let [found_pass, found_step, wants] = header.map(f32::to_bits);
            if (found_pass, found_step) != (pass, step) {
                return Err(ExchangeError::OutOfStep {
                    member,
                    pass,
                    step,
                    found_pass,
                    found_step,
                });
            }
            if member == LEADER {
                *is_cancelled = wants != 0;
            }
            take(member, &numbers[HEADER..])
        })
    }
}

/// Ends the pass of this member if the exchange has failed.
fn end_unless(gathered: Result<(), ExchangeError>) {
    if let Err(error) = gathered {
        panic!("{error}");
    }
}

//! A member's connection to the others during a pass.

use super::message::HandOver;
use crate::tensor_parallel::{Exchange, ExchangeError};
use std::time::Duration;

/// A member's connection to the others, with the pass that it computes.
pub(super) struct Link {
    pub(super) exchange: Box<dyn Exchange>,
    pub(super) pass: u32,
}

impl Link {
    pub(super) fn new(exchange: Box<dyn Exchange>) -> Self {
        Self { exchange, pass: 0 }
    }

    /// Waits for the next numbers of this pass that `member` sends, but not longer than `patience`,
    /// if there is a limit. Drops those of earlier passes, which its sender computed before it knew
    /// that they were cancelled.
    ///
    /// # Errors
    /// [`ExchangeError`] if a member is gone, or the numbers are of a later pass or of none.
    pub(super) fn receive_from(
        &mut self,
        member: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<f32>>, ExchangeError> {
        while let Some(numbers) = self.exchange.receive_from(member, patience)? {
            let (pass, found_pass) = (self.pass, HandOver::pass_of(&numbers, member)?);
            if found_pass > pass {
                let (step, found_step) = (0, 0);
                return Err(ExchangeError::OutOfStep {
                    member,
                    pass,
                    step,
                    found_pass,
                    found_step,
                });
            }
            if found_pass == pass {
                return Ok(Some(numbers));
            }
        }
        Ok(None)
    }

    /// Sends to one other member.
    pub(super) fn send_to(
        &mut self,
        member: usize,
        hand_over: &HandOver,
    ) -> Result<(), ExchangeError> {
        self.exchange.send_to(member, &hand_over.to_numbers(self.pass))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_parallel::ThreadExchange;

    #[test]
    fn numbers_of_earlier_passes_are_dropped_and_of_later_ones_refused() {
        let mut members = ThreadExchange::group(2).into_iter();
        let mut next = |pass| Link { exchange: Box::new(members.next().unwrap()), pass };
        let (mut leader, mut second) = (next(5), next(3));
        for pass in 3..=6 {
            second.pass = pass;
            second.send_to(0, &HandOver::Cancelled).unwrap();
        }
        let numbers = HandOver::Cancelled.to_numbers(5);
        let received = leader.receive_from(1, None).unwrap().unwrap();
        assert!(received.iter().map(|it| it.to_bits()).eq(numbers.iter().map(|it| it.to_bits())));
        let error = leader.receive_from(1, None);
        let expected =
            ExchangeError::OutOfStep { member: 1, pass: 5, step: 0, found_pass: 6, found_step: 0 };
        assert_eq!(error, Err(expected));
        assert_eq!(leader.receive_from(1, Some(Duration::ZERO)), Ok(None));
        second.exchange.send_to(0, &[1.0]).unwrap();
        assert!(matches!(leader.receive_from(1, None), Err(ExchangeError::Length { .. })));
    }
}

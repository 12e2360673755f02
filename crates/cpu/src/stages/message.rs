//! What the members of a pipeline send to each other.

use crate::tensor_parallel::{ExchangeError, PassMessage};
use forerun_lm::CachePart;
use forerun_model::CacheOverflow;
use serde::{Deserialize, Serialize};

/// What the leader sends to the other members about a pass.
#[derive(Serialize, Deserialize)]
pub(super) struct StageMessage {
    pub(super) pass: PassMessage,
    /// The numbers of layers after which hidden states are features that the leader needs, in
    /// ascending order.
    pub(super) features: Vec<u32>,
}

/// What a member sends to the next one, or the leader to all. It starts with a header: the number
/// of the pass, whether the pass is cancelled, and the number of overflows.
#[derive(Debug, PartialEq)]
pub(super) enum HandOver {
    /// What the layers so far have computed.
    Rows(Box<StageRows>),
    /// The pass is cancelled.
    Cancelled,
}

const HEADER: usize = 3;

const OVERFLOW: usize = 3;

/// What the layers so far have computed of a pass.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StageRows {
    /// The hidden states after the last of these layers: `[rows, hidden]`.
    pub(super) hidden: Vec<f32>,
    /// The features of these layers: `[numbers of layers, rows, hidden]`.
    pub(super) features: Vec<f32>,
    /// The keys and values that caches cannot hold.
    pub(super) overflows: Vec<CacheOverflow>,
}

impl HandOver {
    pub(super) fn to_numbers(&self, pass: u32) -> Vec<f32> {
        let header =
            |cancelled, overflows: usize| [pass, cancelled, overflows as u32].map(f32::from_bits);
        let Self::Rows(rows) = self else { return header(1, 0).to_vec() };
        let StageRows { hidden, features, overflows } = &**rows;
        let overflow = |it: &CacheOverflow| {
            let part = usize::from(it.part == CachePart::Value);
            [it.row, it.layer, part].map(|number| f32::from_bits(number as u32))
        };
        let header = header(0, overflows.len()).into_iter();
        let rows = hidden.iter().chain(features).copied();
        header.chain(rows).chain(overflows.iter().flat_map(overflow)).collect()
    }

    /// Reads numbers that `member` has sent. `hidden` and `features` are the lengths of these
    /// numbers in the rows.
    ///
    /// # Errors
    /// [`ExchangeError::Length`] if there are more or fewer numbers.
    pub(super) fn read(
        numbers: &[f32],
        member: usize,
        [hidden, features]: [usize; 2],
    ) -> Result<Self, ExchangeError> {
        let found = numbers.len();
        let length = |expected| ExchangeError::Length { member, expected, found };
        let (header, numbers) =
            numbers.split_first_chunk::<HEADER>().ok_or(length(HEADER + hidden + features))?;
        let [_pass, cancelled, overflows] = header.map(f32::to_bits);
        if cancelled != 0 {
            return Ok(Self::Cancelled);
        }
        let expected = hidden + features + OVERFLOW * overflows as usize;
        if numbers.len() != expected {
            return Err(length(HEADER + expected));
        }
        let (hidden, rest) = numbers.split_at(hidden);
        let (features, overflows) = rest.split_at(features);
        let overflow = |numbers: &[f32; OVERFLOW]| {
            let [row, layer, part] = numbers.map(|number| number.to_bits() as usize);
            let part = if part == 0 { CachePart::Key } else { CachePart::Value };
            CacheOverflow { row, layer, part }
        };
        let overflows = overflows.as_chunks().0.iter().map(overflow).collect();
        let (hidden, features) = (hidden.to_vec(), features.to_vec());
        Ok(Self::Rows(Box::new(StageRows { hidden, features, overflows })))
    }

    /// Returns the number of the pass of numbers that `member` has sent.
    ///
    /// # Errors
    /// [`ExchangeError::Length`] if there are fewer numbers than a header.
    pub(super) fn pass_of(numbers: &[f32], member: usize) -> Result<u32, ExchangeError> {
        let length = ExchangeError::Length { member, expected: HEADER, found: numbers.len() };
        let header = numbers.first_chunk::<HEADER>().ok_or(length)?;
        Ok(header[0].to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_arrive_as_they_were_sent() {
        let overflows = [(3, 70_000, CachePart::Key), (0, 1, CachePart::Value)];
        let overflows =
            overflows.map(|(row, layer, part)| CacheOverflow { row, layer, part }).to_vec();
        let rows = StageRows { hidden: vec![1.0, -0.0], features: vec![0.5; 4], overflows };
        let numbers = HandOver::Rows(Box::new(rows)).to_numbers(7);
        let read = HandOver::read(&numbers, 2, [2, 4]).unwrap();
        assert_eq!(HandOver::pass_of(&numbers, 2), Ok(7));
        assert_eq!(read.to_numbers(7).len(), numbers.len());
        let HandOver::Rows(rows) = read else { panic!("{read:?}") };
        assert_eq!(
            rows.hidden.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            [0x3f80_0000, 1 << 31]
        );
        assert_eq!((rows.features, rows.overflows.len()), (vec![0.5; 4], 2));
        assert_eq!((rows.overflows[0].layer, rows.overflows[1].part), (70_000, CachePart::Value));
        let cancelled = HandOver::Cancelled.to_numbers(8);
        assert_eq!(HandOver::read(&cancelled, 2, [2, 4]), Ok(HandOver::Cancelled));
        assert_eq!(HandOver::pass_of(&cancelled, 2), Ok(8));
        let longer = [&numbers[..], &[0.0]].concat();
        for length in (HEADER..numbers.len()).chain([longer.len()]) {
            let error = HandOver::read(&longer[..length], 2, [2, 4]).unwrap_err();
            let expected = numbers.len();
            assert_eq!(error, ExchangeError::Length { member: 2, expected, found: length });
        }
        for short in 0..HEADER {
            assert!(HandOver::read(&numbers[..short], 2, [2, 4]).is_err());
            assert!(HandOver::pass_of(&numbers[..short], 2).is_err());
        }
    }
}

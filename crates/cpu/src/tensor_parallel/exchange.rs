//! How the members of a group reach each other.

use std::time::Duration;

/// The number of the member that leads a group: the one whose model others see.
pub const LEADER: usize = 0;

/// Who needs what the members gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// All members.
    All,
    /// The leader.
    Leader,
}

/// Receives the numbers of the members that gather: `take(member, numbers)`.
pub type Take<'a> = dyn FnMut(usize, &[f32]) -> Result<(), ExchangeError> + 'a;

/// A member's connection to the others that compute a model together.
///
/// All members call [`Exchange::gather`] equally often and in the same order.
pub trait Exchange: Send {
    /// Returns the number of this member, from 0.
    fn member(&self) -> usize;

    /// Returns the number of members.
    fn members(&self) -> usize;

    /// Sends a message from the leader to all other members.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] if a member is gone.
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError>;

    /// Waits for the leader's next message. `None` once the leader has ended the group.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] if a member is gone.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, ExchangeError>;

    /// Passes the numbers of this member to the others. If this member is a recipient, waits for
    /// theirs, and calls `take(member, numbers)` once for each of them.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] if a member is gone, or the first error of `take`.
    fn gather(
        &mut self,
        own: &[f32],
        to: Recipients,
        take: &mut Take<'_>,
    ) -> Result<(), ExchangeError>;

    /// Sends numbers to one other member, which [receives](Exchange::receive_from) them in this
    /// order.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] if that member is gone.
    fn send_to(&mut self, member: usize, numbers: &[f32]) -> Result<(), ExchangeError>;

    /// Waits for the next numbers that a member [sends](Exchange::send_to) to this one, but not
    /// longer than `patience`, if there is a limit. `None` if there are none until then.
    ///
    /// # Errors
    /// [`ExchangeError::Lost`] if that member is gone. It names the member that was lost first, if
    /// that is known.
    fn receive_from(
        &mut self,
        member: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<f32>>, ExchangeError>;
}

/// Why the members of a group cannot compute together.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ExchangeError {
    /// A member has failed, or its thread or process is gone.
    #[error("member {member} of the group that computes the model is gone")]
    Lost { member: usize },
    /// A member is in another pass, or at another place of the pass.
    #[error(
        "member {member} of the group that computes the model is at step {found_step} of pass {found_pass}, but this \
         one is at step {step} of pass {pass}"
    )]
    OutOfStep { member: usize, pass: u32, step: u32, found_pass: u32, found_step: u32 },
    /// A member has sent another number of values.
    #[error(
        "member {member} of the group that computes the model sent {found} numbers, expected {expected}: do all members \
         have the same model and types?"
    )]
    Length { member: usize, expected: usize, found: usize },
    /// A message of the leader cannot be read.
    #[error("a message of the leader of the group that computes the model cannot be read: {0}")]
    Message(String),
}

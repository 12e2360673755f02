// Where the recurrence of a row starts and ends.
struct Step {
  before: u32, // the slot of the state before the row, or ZERO or RUNNING
  after: u32, // the slot for the state after the row, or NONE
}
const ZERO: u32 = 0xffffffffu; // all numbers are zero
const RUNNING: u32 = 0xfffffffeu; // the state that the row before it has left
const NONE: u32 = 0xffffffffu;

//! Row invariance: a row's logits depend, bit for bit, only on the weights and on the row's own
//! token prefix.

forerun_suite::row_invariance!(crate::device::Cpu);

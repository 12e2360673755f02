//! Row invariance with company: whatever other sequences share a pass, a request's rows and
//! features have the bits that the request has alone.

forerun_suite::batches!(crate::device::Cpu);

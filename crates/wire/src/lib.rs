//! Jobs and completions as bytes, for workers in other processes.
//!
//! A [`Job`](forerun_core::Job) carries the whole sequence. Sent as it is, each job of a long text
//! would be large. A connection has two ends that remember the last job of each sequence, so that
//! only differences travel:
//!
//! * **Tokens**: a job names the prefix that the worker holds by its length and a digest, and adds
//!   the new tokens. The digest includes the sampling options.
//! * **Features**: likewise, in whole parts.
//! * **Rows**: greedy and coupled rows are one token. Other rows have only the tokens that the
//!   filters keep. Every row that arrives has the bits of the row that was sent.
//!
//! If the worker does not hold a prefix, because it has restarted or needed the memory, it asks for
//! the whole job. Commands keep their order: those after it wait. So the host must read the
//! worker's messages even while no completion is awaited.
//!
//! This crate does no input or output. [`HostEnd`] and [`WorkerEnd`] turn calls into messages and
//! back, for any channel that delivers complete messages in order: MPI, sockets with a length
//! before each message, or queues. Messages are for the same version on both sides; others are
//! refused. [`Connection`] is a [`HostEnd`] that the decoders of several sequences share.
//!
//! ```rust
//! use forerun_core::{
//!     Completion, Distribution, Job, JobCost, JobOutput, Role, ScoreJob, Scores, SequenceId,
//!     Ticket,
//! };
//! use forerun_wire::{Command, HostEnd, Reply, WireError, WorkerEnd};
//! use std::sync::mpsc::{Receiver, Sender, channel};
//! use std::thread;
//!
//! /// A worker process: its target continues each number with the next one.
//! fn serve(inbox: Receiver<Vec<u8>>, outbox: Sender<Vec<u8>>) -> Result<(), WireError> {
//!     let mut end = WorkerEnd::new(64 << 20);
//!     for bytes in inbox {
//!         let received = end.receive(&bytes)?;
//!         for command in received.commands {
//!             if let Command::Run { ticket, job: Job::Score(ScoreJob { tokens, .. }), .. } = command {
//!                 let rows = tokens.last().map(|token| Distribution::point(token + 1));
//!                 let scores = Scores { rows: rows.into_iter().collect(), ..Scores::default() };
//!                 let output = Ok(JobOutput::Score(scores));
//!                 let (started_ns, finished_ns, cost) = (0, 1, JobCost::default());
//!                 let completion =
//!                     Completion { ticket, output, started_ns, finished_ns, cost };
//!                 outbox.send(end.complete(completion)).ok();
//!             }
//!         }
//!         received.answer.map(|answer| outbox.send(answer));
//!     }
//!     Ok(())
//! }
//!
//! let ((to_worker, inbox), (outbox, replies)) = (channel(), channel());
//! let worker = thread::spawn(|| serve(inbox, outbox));
//!
//! let mut end = HostEnd::new();
//! let mut tokens = vec![1; 1_000];
//! let mut sizes = Vec::new();
//! for round in 0..3 {
//!     let job = ScoreJob::greedy(SequenceId(0), tokens.clone());
//!     let job = Job::Score(ScoreJob { prompt_len: 1_000, ..job });
//!     let bytes = end.submit(Ticket(round), Role::Target(0), job);
//!     sizes.push(bytes.len());
//!     to_worker.send(bytes)?;
//!     let completion = loop {
//!         match end.receive(&replies.recv()?)? {
//!             Reply::Completed(completion) => break completion,
//!             Reply::Resend(bytes) => to_worker.send(bytes)?,
//!         }
//!     };
//!     let Ok(JobOutput::Score(scores)) = completion.output else { panic!("the job failed") };
//!     tokens.extend(scores.rows[0].as_point());
//! }
//! assert_eq!(tokens[1_000..], [2, 3, 4]);
//! assert!(sizes[0] > 1_000 && sizes[1..].iter().all(|&size| size < 40));
//!
//! drop(to_worker);
//! worker.join().expect("the worker did not panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod digests;
mod error;
mod held;
mod host;
mod message;
mod rows;
mod worker;

pub use connection::Connection;
pub use error::WireError;
pub use host::{HostEnd, Reply};
pub use worker::{Command, Received, WorkerEnd};

//! A connection that several threads share.

use crate::common::Choices;
use forerun_core::{
    Completion, Distribution, Job, JobCost, JobError, JobOutput, Role, ScoreJob, Scores,
    SequenceId, Ticket,
};
use forerun_wire::{Command, Connection, WireError, WorkerEnd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

fn job(sequence: u64, tokens: &[u32]) -> Job {
    Job::Score(ScoreJob { prompt_len: 1, ..ScoreJob::greedy(SequenceId(sequence), tokens) })
}

/// The successor of all tokens: their sum, so that it depends on each of them.
fn successor(tokens: &[u32]) -> u32 {
    tokens.iter().fold(1_u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token)) >> 1
}

/// A worker that often forgets, and answers its jobs in random order.
fn serve(seed: u64, inbox: &Receiver<Vec<u8>>, outbox: &Sender<Vec<u8>>) -> usize {
    let (mut end, mut choices) = (WorkerEnd::new(1_000), Choices::new(seed));
    let (mut waiting, mut missed) = (Vec::new(), 0);
    loop {
        let bytes = if waiting.is_empty() { inbox.recv().ok() } else { inbox.try_recv().ok() };
        if bytes.is_none() && waiting.is_empty() {
            return missed;
        }
        if let Some(bytes) = bytes {
            if choices.below(3) == 0 {
                end.forget();
            }
            let received = end.receive(&bytes).unwrap();
            for command in received.commands {
                if let Command::Run { ticket, job: Job::Score(ScoreJob { tokens, .. }), .. } =
                    command
                {
                    waiting.push((ticket, tokens));
                }
            }
            missed += usize::from(received.answer.is_some());
            received.answer.into_iter().for_each(|answer| outbox.send(answer).unwrap());
        }
        if !waiting.is_empty() && choices.below(2) == 0 {
            let (ticket, tokens) = waiting.swap_remove(choices.below(waiting.len()));
            let rows = vec![Distribution::point(successor(&tokens))];
            let output = Ok(JobOutput::Score(Scores { rows, ..Scores::default() }));
            let (started_ns, finished_ns, cost) = (0, 1, JobCost::default());
            let completion = Completion { ticket, output, started_ns, finished_ns, cost };
            outbox.send(end.complete(completion)).unwrap();
        }
    }
}

#[test]
fn each_completion_reaches_the_thread_that_submitted_the_job() {
    let mut missed = 0;
    for seed in 0..20 {
        let ((to_worker, inbox), (outbox, replies)) = (channel(), channel());
        let connection = Connection::new("target", move |bytes| drop(to_worker.send(bytes)));
        thread::scope(|scope| {
            let worker = scope.spawn(move || serve(seed, &inbox, &outbox));
            let connection = &connection;
            scope.spawn(move || replies.iter().for_each(|b| connection.receive(&b).unwrap()));
            let decoders: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn(move || {
                        let (reply, completions) = channel();
                        let mut tokens = vec![number as u32; 20];
                        for round in 0..25 {
                            let (ticket, reply) = (Ticket(number * 100 + round), reply.clone());
                            let job = job(number, &tokens);
                            connection.submit(ticket, Role::Target(0), job, move |completion| {
                                reply.send(completion).unwrap();
                            });
                            let completion = completions.recv().unwrap();
                            assert_eq!(completion.ticket, ticket);
                            let Ok(JobOutput::Score(scores)) = completion.output else { panic!() };
                            assert_eq!(scores.rows[0].as_point(), Some(successor(&tokens)));
                            tokens.push(successor(&tokens));
                        }
                        connection.release(SequenceId(number));
                    })
                })
                .collect();
            decoders.into_iter().for_each(|decoder| decoder.join().unwrap());
            connection.close("the test is over");
            missed += worker.join().unwrap();
        });
    }
    assert!(missed > 100, "{missed} jobs were asked for again");
}

/// A connection whose messages arrive in the returned queue.
fn connection() -> (Connection, Receiver<Vec<u8>>) {
    let (to_worker, inbox) = channel();
    (Connection::new("target on host 7", move |bytes| drop(to_worker.send(bytes))), inbox)
}

/// Submits jobs, and returns where their completions are collected.
fn submit(connection: &Connection, tickets: &[u64]) -> Arc<Mutex<Vec<Completion>>> {
    let completions = Arc::new(Mutex::new(Vec::new()));
    for &ticket in tickets {
        let completions = Arc::clone(&completions);
        connection.submit(Ticket(ticket), Role::Target(0), job(0, &[1, 2]), move |completion| {
            completions.lock().unwrap().push(completion);
        });
    }
    completions
}

/// The errors of failed jobs, in the order of their tickets.
fn errors(completions: &Mutex<Vec<Completion>>) -> Vec<(u64, String)> {
    let error = |completion: &Completion| match &completion.output {
        Err(error @ JobError::Failed { .. }) => (completion.ticket.0, error.to_string()),
        other => panic!("{other:?}"),
    };
    let mut errors: Vec<_> = completions.lock().unwrap().iter().map(error).collect();
    errors.sort();
    errors
}

#[test]
fn a_closed_connection_fails_all_its_jobs_and_names_the_worker() {
    let (connection, inbox) = connection();
    let completions = submit(&connection, &[3, 5]);
    assert!(errors(&completions).is_empty());
    connection.close("its process has ended");
    let expected = "target on host 7: the connection is closed: its process has ended";
    let with = |ticket| (ticket, expected.to_owned());
    assert_eq!(errors(&completions), [with(3), with(5)]);
    // The worker can read what was sent before, and then the end of the channel.
    assert_eq!(inbox.iter().count(), 2);

    // Nothing can be sent any more, and the first reason counts.
    connection.close("another reason");
    connection.cancel(Ticket(3));
    connection.release(SequenceId(0));
    assert_eq!(connection.receive(&[255]), Ok(()));
    assert_eq!(errors(&submit(&connection, &[8])), [with(8)]);
    assert_eq!(errors(&completions).len(), 2);
}

#[test]
fn a_dropped_connection_fails_its_jobs() {
    let completions = submit(&connection().0, &[1]);
    assert_eq!(errors(&completions).len(), 1);
}

#[test]
fn an_invalid_message_closes_the_connection() {
    let (connection, _inbox) = connection();
    let completions = submit(&connection, &[1]);
    let error = connection.receive(&[]).unwrap_err();
    assert!(matches!(error, WireError::Malformed(_)));
    assert!(errors(&completions)[0].1.ends_with(&error.to_string()));
}

#[test]
fn only_jobs_in_flight_are_cancelled() {
    let (connection, inbox) = connection();
    let completions = submit(&connection, &[1]);
    let mut end = WorkerEnd::new(1_000);
    end.receive(&inbox.recv().unwrap()).unwrap();
    for ticket in [0, 1, 2] {
        connection.cancel(Ticket(ticket));
    }
    let received = end.receive(&inbox.recv().unwrap()).unwrap();
    assert_eq!(received.commands, [Command::Cancel(Ticket(1))]);
    assert!(inbox.try_recv().is_err());

    // A cancelled job completes, too.
    let output = Ok(JobOutput::Score(Scores::default()));
    let (started_ns, finished_ns, cost) = (0, 1, JobCost::default());
    let ticket = Ticket(1);
    let completion = Completion { ticket, output, started_ns, finished_ns, cost };
    connection.receive(&end.complete(completion)).unwrap();
    let completed = completions.lock().unwrap().pop().unwrap();
    assert_eq!((completed.ticket, completed.output), (ticket, Err(JobError::Cancelled)));
    connection.cancel(ticket);
    assert!(inbox.try_recv().is_err());
}

//! What runs on each rank of a job.

use crate::job::{Fault, FaultKind, TASK, TIMEOUT, Task, Work, requests, tokens};
use forerun::cpu::Exchange;
use forerun::placement::Topology;
use forerun::runtime::{Rank, RankFacts, RankSite};
use forerun::{AnswerEvent, Canceller, Engine, Loader, Request};
use forerun_core::testing::is_complete;
use forerun_core::{Job, Role, ScoreJob, SequenceId};
use forerun_cpu::{LEADER, Recipients};
use forerun_mpi::{Group, GroupOptions, Observer};
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeMap;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// What runs on each rank. It is no test by itself.
#[test]
fn a_rank_of_a_job() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let plan = task.plan(true);
    let workers = plan.workers().into_iter();
    let names = workers
        .flat_map(|worker| worker.ranks().into_iter().map(move |it| (it, worker.name.clone())));
    let options = GroupOptions {
        timeout: Duration::from_secs(TIMEOUT),
        cores: Topology::of_this_machine().default_cores(),
        names: names.collect::<BTreeMap<_, _>>(),
        // In one piece: `mpirun` mixes it with messages of its own.
        on_failure: Box::new(|error| {
            let line = format!("error: {error}\n");
            drop(std::io::stderr().write_all(line.as_bytes()));
        }),
    };
    let group = Group::join(options).unwrap();
    println!("process {}", std::process::id());
    if let Some(Fault { rank, kind, after_ms }) = task.fault
        && rank == group.rank()
    {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(after_ms));
            let signal = match kind {
                FaultKind::Kill => Signal::KILL,
                FaultKind::Stop => Signal::STOP,
                FaultKind::Panic => panic!("a test"),
            };
            kill_process(getpid(), signal).unwrap();
        });
    }
    match task.work {
        Work::Gather => measure_gathers(&group),
        Work::GatherMuch => gather_much(&group),
        Work::HandOver => measure_hand_overs(&group),
        _ => {}
    }
    let start = |group: &Group| {
        let connect = |ranks: &[usize]| -> Box<dyn Exchange> { Box::new(group.exchange(ranks)) };
        let site = RankSite { rank: group.rank(), cores: group.cores(), connect: &connect };
        Rank::start(&plan, &mut Loader::new(), site)
    };
    if group.rank() > 0 {
        let load = |group: &Group| {
            let rank = start(group).map_err(|error| error.to_string())?;
            let facts = serde_json::to_vec(rank.facts()).unwrap();
            Ok((rank.into_runtime(), facts))
        };
        return group.serve(load).unwrap();
    }
    let own = start(&group).unwrap();
    let facts = group.gather().unwrap();
    let facts: Vec<RankFacts> =
        facts.iter().map(|facts| serde_json::from_slice(facts).unwrap()).collect();
    let workers = plan.workers().into_iter();
    let workers: Vec<_> =
        workers.map(|worker| (worker.rank(), worker.name.clone(), worker.roles())).collect();
    let mut observer = None;
    let engine = own
        .open(&facts, |runtime| {
            let workers = group.into_workers(runtime, &workers);
            observer = Some(workers.observer());
            Box::new(workers)
        })
        .unwrap();
    match task.work {
        Work::Answer | Work::Gather | Work::GatherMuch | Work::HandOver => answer(&engine),
        Work::AnswerLong => answer_long(&engine),
        Work::AnswerForEver => loop {
            answer(&engine);
        },
        Work::Measure => measure(&engine, Some(&observer.unwrap())),
    }
}

fn answer(engine: &Engine) {
    for (number, (prompt, request)) in requests().iter().enumerate() {
        let answer = engine.complete(prompt, request).unwrap();
        let failures = &answer.statistics.failures;
        assert!(failures.is_empty(), "{failures:?}");
        println!("answer {number} {}", tokens(&answer));
        let spans = &answer.trace.spans;
        assert!(spans.iter().all(|span| span.start_ns <= span.end_ns && span.start_ns > 0));
        std::io::stdout().flush().unwrap();
    }
}

/// Prints how long a job of one token takes, and how many bytes a token takes.
pub(crate) fn measure(engine: &Engine, observer: Option<&Observer>) {
    let job = |at: usize| {
        let tokens: Vec<u32> = (0..1 + at as u32 % 100).map(|token| token % 50).collect();
        Job::Score(ScoreJob { prompt_len: 1, ..ScoreJob::greedy(SequenceId(u64::MAX), tokens) })
    };
    let mut cluster = engine.cluster();
    let mut overheads: Vec<u64> = Vec::new();
    for at in 0..200 {
        let started = Instant::now();
        cluster.submit(Role::Target(0), job(at)).unwrap();
        let completion = cluster.next_completion().unwrap();
        assert!(completion.output.is_ok());
        // What the job itself took is not part of the overhead.
        overheads
            .push((started.elapsed().as_nanos() as u64).saturating_sub(completion.duration_ns()));
    }
    cluster.release(SequenceId(u64::MAX));
    overheads.sort_unstable();
    println!("measured round trip {} ns", overheads[overheads.len() / 2]);
    let Some(observer) = observer else { return };
    for prompt_tokens in [500, 8_000] {
        let prompt: Vec<u32> = (0..prompt_tokens).map(|at| at % 50 + 3).collect();
        let request = Request { max_tokens: 65, ignore_eos: true, ..Request::default() };
        let mut bytes = None;
        let mut count = 0;
        let method = engine.plan().method();
        let stream = engine.stream_tokens(prompt, &request, method, &Canceller::new());
        for event in stream.unwrap() {
            if matches!(event.unwrap(), AnswerEvent::Token(_)) {
                bytes.get_or_insert_with(|| observer.traffic());
                count += 1;
            }
        }
        let (sent, received) = observer.traffic();
        let before = bytes.unwrap();
        let each = |after: u64, before: u64| (after - before) / (count - 1);
        println!(
            "measured bytes {prompt_tokens} {} {}",
            each(sent, before.0),
            each(received, before.1)
        );
    }
    for clock in observer.clocks() {
        println!("measured clock {clock:?}");
    }
}

/// Prints on rank 0 how long a gathering takes.
fn measure_gathers(group: &Group) {
    let ranks: Vec<usize> = (0..group.size()).collect();
    let mut exchange = group.exchange(&ranks);
    for numbers in [16, 1_024, 16_384, 262_144] {
        let own = vec![1.0; numbers];
        let mut times: Vec<u128> = Vec::new();
        for _ in 0..60 {
            let started = Instant::now();
            exchange.gather(&own, Recipients::All, &mut |_, _| Ok(())).unwrap();
            times.push(started.elapsed().as_micros());
        }
        times.sort_unstable();
        if group.rank() == 0 {
            println!("measured gathering of {} bytes: {} µs", 4 * numbers, times[times.len() / 2]);
        }
    }
}

/// Prints on rank 0 how long the two messages of a pass over two stages take: one that starts it,
/// and one with the rows.
fn measure_hand_overs(group: &Group) {
    let mut exchange = group.exchange(&[0, 1]);
    let other = 1 - exchange.member();
    // Computing may take longer if the core has other work.
    let compute = |time: Duration| {
        let started = Instant::now();
        while started.elapsed() < time {
            std::hint::spin_loop();
        }
        started.elapsed().as_secs_f32()
    };
    let repeats = if is_complete() { 40 } else { 11 };
    for (numbers, computing) in [1_024, 8_192, 262_144]
        .into_iter()
        .flat_map(|numbers| [0, 2, 20].map(|ms| (numbers, Duration::from_millis(ms))))
    {
        let mut own = vec![1.0; numbers];
        let mut times: Vec<u128> = Vec::new();
        for _ in 0..repeats {
            if exchange.member() == LEADER {
                compute(computing);
                let started = Instant::now();
                exchange.send(&[0; 100]).unwrap();
                let received = exchange.receive_from(other, None).unwrap().unwrap();
                let computed = Duration::from_secs_f32(received[0]);
                times.push(started.elapsed().saturating_sub(computed).as_micros());
            } else {
                exchange.receive().unwrap();
                own[0] = compute(computing);
                exchange.send_to(other, &own).unwrap();
            }
        }
        times.sort_unstable();
        if group.rank() == 0 {
            let (bytes, median) = (4 * numbers, times[times.len() / 2]);
            println!("measured two messages, {bytes} bytes, after {computing:?} each: {median} µs");
        }
    }
    if exchange.member() == LEADER {
        let before = core_time();
        for _ in 0..20 {
            let nothing = exchange.receive_from(other, Some(Duration::from_millis(50)));
            assert_eq!(nothing, Ok(None));
        }
        if let (Some(before), Some(after)) = (before, core_time()) {
            println!("waited {}", (after - before).as_millis());
        }
        exchange.send_to(other, &[]).unwrap();
    } else {
        exchange.receive_from(other, None).unwrap();
    }
}

/// Returns for how long this thread has used a core. Only Linux reports it there.
fn core_time() -> Option<Duration> {
    cfg!(target_os = "linux").then(|| {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    })
}

/// Gathers up to several MiB, with messages of the leader in between.
fn gather_much(group: &Group) {
    let ranks: Vec<usize> = (0..group.size()).collect();
    let mut exchange = group.exchange(&ranks);
    let own = exchange.member();
    for (round, numbers) in [3, 1 << 18, 1_300_000, 0, 2_000_001, 70_000].into_iter().enumerate() {
        // Each member's numbers are others, and as many as no other's.
        let share = |member: usize| -> Vec<f32> {
            let first = round * 100 + member * 10;
            (0..numbers + 17 * member).map(|at| (first + at % 7) as f32).collect()
        };
        let message = vec![round as u8; 4 * numbers];
        match own {
            LEADER => exchange.send(&message).unwrap(),
            _ => assert!(exchange.receive().unwrap().unwrap() == message, "round {round}"),
        }
        for to in [Recipients::All, Recipients::Leader] {
            let mut senders = Vec::new();
            let mut take = |member, numbers: &[f32]| {
                assert!(numbers == share(member), "round {round}, member {member}, {to:?}");
                senders.push(member);
                Ok(())
            };
            exchange.gather(&share(own), to, &mut take).unwrap();
            let receives = to == Recipients::All || own == LEADER;
            let expected = ranks.iter().copied().filter(|member| receives && *member != own);
            assert_eq!(senders, expected.collect::<Vec<_>>(), "round {round}, {to:?}");
        }
    }
    println!("gathered much");
}

fn long_prompt(tokens: u32, number: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * (number + 3)) % 50 + 3).collect()
}

pub(crate) fn long_answer(engine: &Engine) -> String {
    let request = Request { max_tokens: 12, ignore_eos: true, ..Request::default() };
    let (method, canceller) = (engine.plan().method(), Canceller::new());
    let stream = engine.stream_tokens(long_prompt(9_000, 9), &request, method, &canceller).unwrap();
    let tokens = stream.filter_map(|event| match event.unwrap() {
        AnswerEvent::Token(token) => Some(token.token),
        _ => None,
    });
    format!("{:?}", tokens.collect::<Vec<_>>())
}

/// Answers short prompts while long ones start and are cancelled, and then a long one.
fn answer_long(engine: &Engine) {
    thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                let canceller = Canceller::new();
                let request = Request { max_tokens: 64, ignore_eos: true, ..Request::default() };
                let method = engine.plan().method();
                let prompt = long_prompt(9_000, number);
                let stream = engine.stream_tokens(prompt, &request, method, &canceller).unwrap();
                thread::scope(|inner| {
                    inner.spawn(|| {
                        thread::sleep(Duration::from_millis(30 * u64::from(number)));
                        canceller.cancel();
                    });
                    // An error says that it was cancelled.
                    stream.for_each(drop);
                });
            });
        }
        scope.spawn(|| answer(engine));
    });
    println!("long {}", long_answer(engine));
}

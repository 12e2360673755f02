//! The program on the ranks of MPI jobs.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_formats::Config;
use forerun_formats::checkpoint::random::{example_config, write_random_pair};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Models(TempDir);

impl Models {
    fn make() -> Self {
        let models = Self(tempfile::tempdir().unwrap());
        let config: Config = example_config();
        write_random_pair(&models.path("target"), &models.path("drafter"), &config, 2, 0.3, 5)
            .unwrap();
        models
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the options that name the models.
    fn options(&self) -> Vec<String> {
        let path = |name| self.path(name).display().to_string();
        ["--model".into(), path("target"), "--draft-model".into(), path("drafter")].into()
    }
}

const FORERUN: &str = env!("CARGO_BIN_EXE_forerun");
const PROMPT: [&str; 6] = ["--prompt", "ba na", "--max-tokens", "20", "--ignore-eos", "--json"];

fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.stdin(Stdio::null());
    command
}

fn generate(ranks: usize, models: &Models, options: &[&str]) -> Output {
    let mut command = mpirun();
    command.args(["-n", &ranks.to_string(), FORERUN, "generate"]).args(models.options());
    command.args(PROMPT).args(options).output().unwrap()
}

/// Returns the text of a JSON answer.
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["text"].as_str().unwrap().to_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn generate_runs_over_ranks() {
    let models = Models::make();
    let alone = Command::new(FORERUN).arg("generate").args(models.options()).args(PROMPT).output();
    let alone = text(&alone.unwrap());
    let trace = models.path("trace.json");
    let options =
        ["--placement", "drafter=rank:0,target=rank:1", "--trace", trace.to_str().unwrap()];
    let over_ranks = generate(2, &models, &options);
    assert_eq!(text(&over_ranks), alone);
    let errors = errors(&over_ranks);
    assert!(errors.contains("clock of rank 1: ") && errors.contains("drift"), "{errors}");
    let trace = fs::read_to_string(trace).unwrap();
    assert!(trace.contains("drafter rank:0") && trace.contains("target rank:1"), "{trace}");
    let dsi = ["--method", "dsi", "--placement", "drafter=rank:0,target=rank:1,target=rank:2"];
    // A rank without a model does not matter.
    assert_eq!(text(&generate(4, &models, &dsi)), alone);
    // Ranks that compute the target together, and a drafter on a rank of its own.
    for method in ["speculative", "pearl"] {
        let together = "drafter=rank:0,target=rank:1+rank:2";
        let options = ["--method", method, "--placement", together];
        assert_eq!(text(&generate(3, &models, &options)), alone);
    }
    let both = ["--placement", "drafter=rank:0+rank:1,target=rank:2+rank:3"];
    assert_eq!(text(&generate(4, &models, &both)), alone);
}

#[test]
fn mistakes_are_named() {
    let models = Models::make();
    let placed = ["--placement", "drafter=rank:0,target=rank:1"];
    let fails = |output: &Output, words: &[&str]| {
        let errors = errors(output);
        assert!(!output.status.success(), "{errors}");
        for word in words {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    };
    let mut alone = Command::new(FORERUN);
    let alone = alone.arg("generate").args(models.options()).args(PROMPT).args(placed).output();
    fails(&alone.unwrap(), &["rank 1", "there is only this process", "mpirun -n 2 forerun"]);
    // Each rank may get its own options.
    let differing = |change: &dyn Fn(&mut Command)| {
        let mut command = mpirun();
        command
            .args(["-n", "1", FORERUN, "generate"])
            .args(models.options())
            .args(PROMPT)
            .args(placed);
        command.args([":", "-n", "1"]);
        change(&mut command);
        command.output().unwrap()
    };
    let options = differing(&|command| {
        command.args([FORERUN, "generate"]).args(models.options()).args(PROMPT).args(placed);
        command.args(["--draft-tokens", "7"]);
    });
    fails(&options, &["rank 1 has other options than rank 0", "the same command line"]);
    let missing = differing(&|command| {
        command.args([FORERUN, "generate", "--model", "/nowhere"]).args(PROMPT).args(placed);
    });
    fails(&missing, &["error: rank 1: ", "/nowhere"]);
    let mut chat = Command::new(FORERUN);
    let chat = chat.arg("chat").args(models.options()).args(placed).stdin(Stdio::null()).output();
    fails(&chat.unwrap(), &["drafter=rank:0,target=rank:1", "only `generate`, `serve`"]);
}

/// Returns the processor time that a process has used.
fn used(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    let own = Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap());
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|thread| {
        let text = fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap_or_default();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap_or(0))
    });
    own.max(threads.sum())
}

/// Returns the processes of the job, by rank.
fn processes(job: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{job}/task/{job}/children")).unwrap();
    let mut ranks: Vec<(u32, u32)> = Vec::new();
    for process in children.split_whitespace().map(|process| process.parse().unwrap()) {
        let variables = fs::read(format!("/proc/{process}/environ")).unwrap();
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let rank = variables.split('\0').find_map(|one| one.strip_prefix("OMPI_COMM_WORLD_RANK="));
        ranks.extend(rank.map(|rank| (rank.parse().unwrap(), process)));
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, process)| process).collect()
}

#[test]
fn serve_runs_over_ranks_and_idle_ranks_sleep() {
    let models = Models::make();
    let mut command = mpirun();
    command.args(["-n", "4", FORERUN, "serve", "--port", "0", "--method", "dsi"]);
    command
        .args(["--placement", "drafter=rank:0,target=rank:1,target=rank:2+rank:3"])
        .args(models.options());
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().split_once("http://").unwrap().1.to_owned();
    let complete = || {
        let body = r#"{"prompt": "ba na", "max_tokens": 8, "temperature": 0}"#;
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                    Content-Type: application/json";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(complete(), complete());
    thread::sleep(Duration::from_millis(1_500));
    let ranks = processes(job.id());
    let before: Vec<Duration> = ranks.iter().map(|&rank| used(rank)).collect();
    let since = Instant::now();
    thread::sleep(Duration::from_secs(2));
    for (rank, (&process, before)) in ranks.iter().zip(before).enumerate() {
        let share = (used(process) - before).as_secs_f64() / since.elapsed().as_secs_f64();
        eprintln!("an idle rank {rank} uses {:.1} % of a core", 100.0 * share);
        assert!(share < 0.15, "rank {rank} uses {share} of a core");
    }
    let signal = |process: u32| {
        kill_process(Pid::from_raw(process as i32).unwrap(), Signal::TERM).unwrap();
    };
    signal(ranks[0]);
    assert!(job.wait().unwrap().success());
}

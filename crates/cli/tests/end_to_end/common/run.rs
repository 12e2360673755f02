//! A run of the binary.

use super::Models;
use forerun::placement::available_cores;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{PipeReader, pipe};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time after which a run is considered stuck.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Interval at which a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Capacity of a slow reader's pipe in bytes: one page, the minimum.
#[cfg(target_os = "linux")]
const SMALL_PIPE: u64 = 4096;

/// How standard output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// All output as soon as it is written.
    Eager,
    /// All output, a few bytes at a time with pauses, through a small pipe.
    Slow,
    /// This number of bytes; then the pipe is closed.
    Closing(usize),
    /// Nothing until the process has ended, through a small pipe.
    Asleep,
}

/// A command line, its input, and the reader of its output.
pub(crate) struct Run {
    command: Command,
    input: Option<Vec<u8>>,
    reader: Reader,
}

impl Run {
    /// Creates a run of `forerun` without arguments.
    pub(crate) fn forerun() -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        Self { command, input: None, reader: Reader::Eager }
    }

    /// Creates a run of `forerun` with arguments that are separated by spaces.
    pub(crate) fn of(line: &str) -> Self {
        Self::forerun().words(line)
    }

    /// Returns a run that interrupts end even if the process that runs this test ignores them, as
    /// background jobs of a shell do.
    #[cfg(all(feature = "hub", target_os = "linux"))]
    pub(crate) fn with_default_interrupts(self) -> Self {
        self.through("env", &["--default-signal=INT"])
    }

    /// Limits the address space, in bytes, as `ulimit -v` does.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_address_space(self, bytes: u64) -> Self {
        let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes >> 10);
        self.through("sh", &["-c", &script])
    }

    /// Limits the size of written files to 512 or 1,024 bytes, as `ulimit -f` does.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_file_limit(self) -> Self {
        self.through("sh", &["-c", "ulimit -f 1 && exec \"$0\" \"$@\""])
    }

    /// Starts the binary through another program, which gets these arguments before the command
    /// line.
    #[cfg(target_os = "linux")]
    fn through(self, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).arg(self.command.get_program());
        command.args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self { command, ..self }
    }

    /// Creates a run of `forerun generate` with the target of `models`.
    pub(crate) fn generate(models: &Models) -> Self {
        Self::forerun().words("generate").with_path("--model", &models.target())
    }

    /// Creates a run of `forerun generate` with both models, on one core.
    pub(crate) fn generate_with_drafter(models: &Models) -> Self {
        Self::generate(models).with_path("--draft-model", &models.drafter()).on_one_core()
    }

    /// Places drafter and target on one core, so that the test works on any machine.
    pub(crate) fn on_one_core(self) -> Self {
        self.with(&["--placement", &Self::one_core_placement()])
    }

    /// Returns a placement on one core, which differs between tests that run at the same time.
    pub(crate) fn one_core_placement() -> String {
        let cores = available_cores();
        let core = cores[std::process::id() as usize % cores.len()];
        format!("drafter=cpu:{core},target=cpu:{core},shared")
    }

    /// Adds arguments.
    pub(crate) fn with<A: AsRef<OsStr>>(mut self, arguments: &[A]) -> Self {
        self.command.args(arguments);
        self
    }

    /// Adds arguments that are separated by spaces.
    pub(crate) fn words(self, line: &str) -> Self {
        self.with(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Adds both models of a pair.
    pub(crate) fn with_models(self, models: &Models) -> Self {
        self.with_path("--model", &models.target()).with_path("--draft-model", &models.drafter())
    }

    /// Adds an option with a path.
    pub(crate) fn with_path(mut self, option: &str, path: &Path) -> Self {
        self.command.arg(option).arg(path);
        self
    }

    /// Sets the directory of temporary files.
    pub(crate) fn temporary_folder(mut self, folder: &Path) -> Self {
        self.command.env("TMPDIR", folder).env("TMP", folder);
        self
    }

    /// Sets standard input, which is empty otherwise.
    pub(crate) fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = Some(text.into());
        self
    }

    pub(crate) fn reader(mut self, reader: Reader) -> Self {
        self.reader = reader;
        self
    }

    pub(crate) fn start(self) -> Running {
        let Self { mut command, input, reader } = self;
        let (output, output_of_child) = pipe().unwrap();
        #[cfg(target_os = "linux")]
        if matches!(reader, Reader::Slow | Reader::Asleep) {
            rustix::pipe::fcntl_setpipe_size(&output, SMALL_PIPE as usize).unwrap();
        }
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(output_of_child).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command holds a copy of the pipe's write end, with which the output would never end.
        drop(command);
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            // A process that fails early does not read its input.
            thread::spawn(move || drop(pipe.write_all(&input)));
        }
        let mut errors = child.stderr.take().unwrap();
        let errors = thread::spawn(move || {
            let mut text = Vec::new();
            errors.read_to_end(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        let (send, chunks) = mpsc::channel();
        let mut output = Some(output);
        if reader != Reader::Asleep {
            let output = output.take().unwrap();
            thread::spawn(move || read(output, reader, |chunk| drop(send.send(chunk))));
        }
        let child = KillOnDrop(child);
        Running { child, chunks, received: Vec::new(), errors: Some(errors), unread: output }
    }

    /// Runs to the end, successful or not.
    pub(crate) fn finish(self) -> Finished {
        self.start().finish()
    }

    /// Runs to the end, and checks that it succeeded.
    pub(crate) fn succeed(self) -> Finished {
        let finished = self.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        finished
    }
}

/// Settings of runs with a hub.
#[cfg(feature = "hub")]
impl Run {
    /// Sets an environment variable.
    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes environment variables.
    pub(crate) fn without_variables(mut self, names: &[&str]) -> Self {
        for name in names {
            self.command.env_remove(name);
        }
        self
    }

    /// Sets the working directory.
    pub(crate) fn in_folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }
}

fn read(mut output: PipeReader, reader: Reader, mut give: impl FnMut(Vec<u8>)) {
    let (chunk_size, mut left) = match reader {
        Reader::Slow => (500, usize::MAX),
        Reader::Closing(bytes) => (bytes, bytes),
        Reader::Eager | Reader::Asleep => (1 << 16, usize::MAX),
    };
    let mut buffer = vec![0; chunk_size];
    while left > 0 {
        if reader == Reader::Slow {
            thread::sleep(Duration::from_millis(10));
        }
        let length = output.read(&mut buffer[..chunk_size.min(left)]).unwrap();
        if length == 0 {
            break;
        }
        left -= length;
        give(buffer[..length].to_vec());
    }
}

/// A child process that does not outlive its test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Normally, it has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running process.
pub(crate) struct Running {
    child: KillOnDrop,
    chunks: Receiver<Vec<u8>>,
    received: Vec<Vec<u8>>,
    errors: Option<JoinHandle<String>>,
    /// The output that is not read before the end.
    unread: Option<PipeReader>,
}

impl Running {
    /// Waits for the first piece of output.
    pub(crate) fn wait_for_output(&mut self) {
        let chunk = self.chunks.recv_timeout(TIMEOUT).unwrap();
        self.received.push(chunk);
    }

    /// Waits for the first line of output, and returns it without its end.
    #[cfg(all(feature = "server", target_os = "linux"))]
    pub(crate) fn wait_for_line(&mut self) -> String {
        loop {
            let text = String::from_utf8(self.received.concat()).unwrap();
            if let Some((line, _)) = text.split_once('\n') {
                return line.to_owned();
            }
            self.wait_for_output();
        }
    }

    /// Waits until the process handles interrupts. Before that, an interrupt ends it at once.
    #[cfg(target_os = "linux")]
    pub(crate) fn wait_for_interrupt_handler(&mut self) {
        let threads = format!("/proc/{}/task", self.child.0.id());
        let since = Instant::now();
        loop {
            let threads = std::fs::read_dir(&threads).unwrap().flatten();
            // A thread may end in the meantime.
            let names =
                threads.flat_map(|thread| std::fs::read_to_string(thread.path().join("comm")));
            if names.into_iter().any(|name| name.trim_end() == "interrupts") {
                return;
            }
            assert!(!self.has_ended(), "it ended before it handled interrupts");
            assert!(since.elapsed() < TIMEOUT, "it never handles interrupts");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the unread pipe is completely full. A piece of text that is larger than the pipe
    /// fills it.
    #[cfg(target_os = "linux")]
    pub(crate) fn wait_for_full_pipe(&mut self) {
        let since = Instant::now();
        while rustix::io::ioctl_fionread(self.unread.as_ref().unwrap()).unwrap() < SMALL_PIPE {
            assert!(since.elapsed() < TIMEOUT, "it does not write enough");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends an interrupt, as Ctrl-C does.
    #[cfg(target_os = "linux")]
    pub(crate) fn interrupt(&mut self) {
        self.signal(rustix::process::Signal::INT);
    }

    /// Sends a signal.
    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        if !self.has_ended() {
            let process = rustix::process::Pid::from_child(&self.child.0);
            rustix::process::kill_process(process, signal).unwrap();
        }
    }

    /// Kills the process, which cannot clean up.
    #[cfg(target_os = "linux")]
    pub(crate) fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// Waits until something is true while the process runs.
    #[cfg(target_os = "linux")]
    pub(crate) fn wait_until(&mut self, is_true: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_true() {
            assert!(!self.has_ended(), "it ended early");
            assert!(since.elapsed() < TIMEOUT, "it never becomes true");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends interrupts until the process ends. Two signals in quick succession may arrive as one.
    #[cfg(target_os = "linux")]
    pub(crate) fn interrupt_until_it_ends(&mut self) {
        self.signal_until_it_ends(rustix::process::Signal::INT);
    }

    /// Sends signals until the process ends.
    #[cfg(target_os = "linux")]
    pub(crate) fn signal_until_it_ends(&mut self, signal: rustix::process::Signal) {
        let since = Instant::now();
        while !self.has_ended() {
            assert!(since.elapsed() < TIMEOUT, "signals do not end it");
            self.signal(signal);
            thread::sleep(4 * POLL_INTERVAL);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_some()
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Finished {
        let since = Instant::now();
        while !self.has_ended() {
            assert!(since.elapsed() < TIMEOUT, "it does not end; so far: {:?}", self.received);
            thread::sleep(POLL_INTERVAL);
        }
        let code = self.child.0.wait().unwrap().code();
        if let Some(output) = self.unread.take() {
            read(output, Reader::Eager, |chunk| self.received.push(chunk));
        }
        // The channel closes when the reader has read everything.
        self.received.extend(self.chunks.iter());
        let errors = self.errors.take().unwrap().join().unwrap();
        Finished { code, chunks: self.received, errors }
    }
}

/// The results of a process.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None` if a signal killed it.
    pub(crate) code: Option<i32>,
    /// Standard output in the pieces that arrived.
    pub(crate) chunks: Vec<Vec<u8>>,
    /// Standard error.
    pub(crate) errors: String,
}

impl Finished {
    /// All of standard output.
    pub(crate) fn output(&self) -> String {
        String::from_utf8(self.chunks.concat()).unwrap()
    }

    /// Standard output as a JSON object.
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.output()).unwrap();
        assert!(value.is_object(), "{value}");
        value
    }

    /// The last line of standard error.
    pub(crate) fn statistics(&self) -> &str {
        self.errors.lines().last().unwrap()
    }

    /// Checks that the run failed with an error message that contains these words, and without
    /// other output.
    pub(crate) fn assert_refused(&self, what: &str, words: &[&str]) {
        let errors = &self.errors;
        assert!(matches!(self.code, Some(1 | 2)), "{what}: exit code {:?}: {errors}", self.code);
        assert_eq!(self.output(), "", "{what}");
        assert!(errors.lines().any(|line| line.starts_with("error: ")), "{what}: {errors}");
        assert!(!errors.contains("panicked"), "{what}: {errors}");
        for word in words {
            assert!(errors.contains(word), "{what}: no {word:?} in: {errors}");
        }
    }
}

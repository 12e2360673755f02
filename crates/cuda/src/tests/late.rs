//! A device that computes late: nothing is done before somebody asks whether it is.

use super::{Opened, folder};
use crate::backend::adapters_of;
use crate::driver::{
    Context, DeviceInfo, Driver, DriverError, Event, GraphId, Kernel, Operation, Place,
};
use crate::emulator::Emulator;
use crate::translate::Translation;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wgpu::{BufferUsages, PollError, PollType};

/// Questions after which the next event has passed.
const PATIENCE: usize = 3;

#[derive(Debug)]
struct LateDriver {
    emulator: Emulator,
    has_graphs: bool,
}

#[derive(Debug)]
struct Late {
    inner: Arc<dyn Context>,
    has_graphs: bool,
    queued: Mutex<VecDeque<Work>>,
    questions: AtomicUsize,
    marks: AtomicUsize,
    sizes: Mutex<HashMap<u64, u64>>,
    graphs: Mutex<HashMap<GraphId, Vec<Operation>>>,
}

#[derive(Debug)]
enum Work {
    Write(u64, Bytes),
    Run(Operation),
    Graph(GraphId, Vec<Operation>),
    Mark(usize),
}

/// Bytes that the backend keeps until they are written.
#[derive(Debug)]
struct Bytes(*const u8, usize);
// SAFETY: they are only read, while the backend keeps them.
unsafe impl Send for Bytes {}

impl Work {
    fn uses(&self, address: u64, bytes: u64) -> bool {
        let is_in = |at: u64| (address..address + bytes.max(1)).contains(&at);
        let is_used = |operation: &Operation| match operation {
            Operation::Copy { from, to, .. } => is_in(*from) || is_in(*to),
            Operation::Clear { at, .. } => is_in(*at),
            Operation::Launch { bindings, .. } => bindings.iter().any(|span| is_in(span.address)),
        };
        match self {
            Self::Write(at, _) => is_in(*at),
            Self::Run(operation) => is_used(operation),
            Self::Graph(_, operations) => operations.iter().any(is_used),
            Self::Mark(_) => false,
        }
    }
}

impl Driver for LateDriver {
    fn devices(&self) -> Vec<DeviceInfo> {
        self.emulator.devices()
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Context>, DriverError> {
        Ok(Arc::new(Late {
            inner: self.emulator.open(index)?,
            has_graphs: self.has_graphs,
            queued: Mutex::default(),
            questions: AtomicUsize::new(0),
            marks: AtomicUsize::new(0),
            sizes: Mutex::default(),
            graphs: Mutex::default(),
        }))
    }
}

impl Late {
    /// Does the work until a mark.
    fn advance(&self, to: usize) -> Result<(), DriverError> {
        loop {
            let work = self.queued.lock().unwrap().pop_front();
            // SAFETY: the backend promises that what is used stays until it is done, which `free`
            // checks.
            unsafe {
                match work {
                    None => return Ok(()),
                    Some(Work::Mark(mark)) if mark == to => return Ok(()),
                    Some(Work::Mark(_)) => {}
                    Some(Work::Write(at, Bytes(bytes, len))) => {
                        self.inner.write(at, std::slice::from_raw_parts(bytes, len))?;
                    }
                    Some(Work::Run(operation)) => self.inner.run(&operation)?,
                    Some(Work::Graph(graph, _)) => self.inner.launch_graph(graph)?,
                }
            }
        }
    }

    fn queue(&self, work: Work) -> Result<(), DriverError> {
        self.queued.lock().unwrap().push_back(work);
        Ok(())
    }
}

impl Context for Late {
    fn allocate(&self, bytes: u64, place: Place) -> Result<u64, DriverError> {
        let address = self.inner.allocate(bytes, place)?;
        self.sizes.lock().unwrap().insert(address, bytes);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, place: Place) {
        let bytes = self.sizes.lock().unwrap().remove(&address).unwrap();
        let mut queued = self.queued.lock().unwrap();
        // CUDA waits for work that only clears what is freed.
        queued.retain(
            |work| !matches!(work, Work::Run(Operation::Clear { at, .. }) if *at == address),
        );
        let used = queued.iter().find(|work| work.uses(address, bytes));
        assert!(used.is_none(), "memory is freed that is used: {used:?}");
        drop(queued);
        // SAFETY: as above.
        unsafe { self.inner.free(address, place) };
    }

    fn load(
        &self,
        translation: &Translation,
        code: Option<&[u8]>,
    ) -> Result<(Kernel, Vec<u8>), DriverError> {
        self.inner.load(translation, code)
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(!bytes.is_empty(), "the driver may refuse that");
        self.queue(Work::Write(to, Bytes(bytes.as_ptr(), bytes.len())))
    }

    unsafe fn run(&self, operation: &Operation) -> Result<(), DriverError> {
        let is_empty = matches!(
            operation,
            Operation::Copy { bytes: 0, .. } | Operation::Clear { bytes: 0, .. }
        );
        assert!(!is_empty, "the driver may refuse that");
        self.queue(Work::Run(operation.clone()))
    }

    unsafe fn create_graph(&self, operations: &[Operation]) -> Result<GraphId, DriverError> {
        if !self.has_graphs {
            return Err(DriverError::Failed("no graphs here".into()));
        }
        // SAFETY: the backend promises the same.
        let graph = unsafe { self.inner.create_graph(operations)? };
        self.graphs.lock().unwrap().insert(graph, operations.to_vec());
        Ok(graph)
    }

    unsafe fn launch_graph(&self, graph: GraphId) -> Result<(), DriverError> {
        let operations = self.graphs.lock().unwrap()[&graph].clone();
        self.queue(Work::Graph(graph, operations))
    }

    unsafe fn destroy_graph(&self, graph: GraphId) {
        self.graphs.lock().unwrap().remove(&graph).unwrap();
        let queued = self.queued.lock().unwrap();
        let is_used = |work: &Work| matches!(work, Work::Graph(used, _) if *used == graph);
        assert!(!queued.iter().any(is_used), "a graph is destroyed that is used");
        drop(queued);
        // SAFETY: as above.
        unsafe { self.inner.destroy_graph(graph) };
    }

    fn mark(&self) -> Result<Event, DriverError> {
        let mark = self.marks.fetch_add(1, Ordering::Relaxed) + 1;
        self.queue(Work::Mark(mark))?;
        Ok(Event(mark))
    }

    fn has_passed(&self, event: Event) -> Result<bool, DriverError> {
        if self.questions.fetch_add(1, Ordering::Relaxed) % PATIENCE != PATIENCE - 1 {
            return Ok(false);
        }
        self.advance(event.0)?;
        Ok(true)
    }

    fn memory(&self) -> Result<[u64; 2], DriverError> {
        self.inner.memory()
    }
}

const DOUBLE: &str = "@group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
        y[at.x] = x[at.x] * 2u;
    }";

pub(super) fn open_late() -> Option<Opened> {
    open_with(true)
}

/// Opens a device whose driver refuses graphs.
pub(super) fn open_without_graphs() -> Option<Opened> {
    open_with(false)
}

fn open_with(has_graphs: bool) -> Option<Opened> {
    let emulator = Emulator::new(folder(), 0);
    if emulator.is_none() {
        println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64");
    }
    let driver: &'static LateDriver =
        Box::leak(Box::new(LateDriver { emulator: emulator?, has_graphs }));
    adapters_of(driver).first().map(Opened::new)
}

/// Buffers, bindings and pipelines are dropped right after they are submitted.
#[test]
fn work_keeps_what_it_uses_until_it_is_done() {
    let Some(opened) = open_late() else { return };
    let input = |k: u32| (0..64).map(|i| i + k).collect::<Vec<u32>>();
    let outputs: Vec<_> = (0..5).map(|k| opened.submit(DOUBLE, &input(k), 64, 1, &[])).collect();
    for (k, staging) in (0..).zip(&outputs) {
        let expected: Vec<u32> = input(k).iter().map(|number| number * 2).collect();
        assert_eq!(opened.read(staging), expected);
    }
    assert_eq!(opened.errors(), Vec::<String>::new());
    // Everything is dropped while work is in progress.
    opened.submit(DOUBLE, &input(7), 64, 1, &[]);
    drop(opened);
}

#[test]
fn waits_end_when_their_own_submission_is_done() {
    let Some(opened) = open_late() else { return };
    let all = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let [a, b] = [64, 64].map(|size| opened.buffer(size, all));
    let submit = || {
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&a, 0, &b, 0, 64);
        opened.queue.submit([encoder.finish()])
    };
    let (first, second) = (submit(), submit());
    let wait = |index, timeout| {
        opened.device.poll(PollType::Wait { submission_index: Some(index), timeout: Some(timeout) })
    };
    assert!(matches!(wait(second.clone(), Duration::ZERO), Err(PollError::Timeout)));
    assert!(wait(first.clone(), Duration::from_secs(60)).is_ok());
    assert!(wait(second, Duration::from_secs(60)).unwrap().is_queue_empty());
    assert!(wait(first, Duration::ZERO).is_ok(), "it was done long ago");
    // Waits of a lost device end at once, with the work that is left.
    let third = submit();
    opened.device.destroy();
    assert!(wait(third, Duration::from_secs(60)).is_ok());
}

/// A thread may find that the work of another one is done.
#[test]
fn threads_that_share_a_device_read_their_own_results() {
    let Some(opened) = open_late() else { return };
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let opened = &opened;
            scope.spawn(move || {
                for round in 0..100 {
                    let input = [thread * 1000 + round; 64];
                    let all =
                        BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
                    let from = opened.buffer(256, all);
                    let staging =
                        opened.buffer(256, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
                    let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
                    opened.queue.write_buffer(&from, 0, &bytes);
                    let mut encoder = opened.device.create_command_encoder(&Default::default());
                    encoder.copy_buffer_to_buffer(&from, 0, &staging, 0, 256);
                    let own = opened.queue.submit([encoder.finish()]);
                    // Other threads submit in between.
                    std::thread::yield_now();
                    assert_eq!(opened.read_after(&staging, Some(own)), input);
                    staging.unmap();
                }
            });
        }
    });
    assert_eq!(opened.errors(), Vec::<String>::new());
}

/// A copy of a buffer that is all `number`, and its submission.
fn copy_home(opened: &Opened, number: u32) -> (wgpu::Buffer, wgpu::SubmissionIndex) {
    let from = opened.buffer(64, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let staging = opened.buffer(64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    opened.queue.write_buffer(&from, 0, &number.to_le_bytes().repeat(16));
    let mut encoder = opened.device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(&from, 0, &staging, 0, 64);
    let submission = opened.queue.submit([encoder.finish()]);
    (staging, submission)
}

#[test]
fn a_buffer_is_mapped_when_its_own_submission_is_done() {
    let Some(opened) = open_late() else { return };
    let (first, of_first) = copy_home(&opened, 1);
    let (second, of_second) = copy_home(&opened, 2);
    assert_eq!(opened.read_after(&first, Some(of_first)), [1; 16]);
    let timeout = Some(Duration::ZERO);
    let of_second_only = PollType::Wait { submission_index: Some(of_second.clone()), timeout };
    assert!(matches!(opened.device.poll(of_second_only), Err(PollError::Timeout)), "too early");
    assert_eq!(opened.read_after(&second, Some(of_second)), [2; 16]);
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn a_map_that_is_ended_early_is_called_with_an_error() {
    let Some(opened) = open_late() else { return };
    let (staging, _) = copy_home(&opened, 3);
    let (send, outcomes) = std::sync::mpsc::channel();
    staging.slice(..).map_async(wgpu::MapMode::Read, move |outcome| send.send(outcome).unwrap());
    staging.unmap();
    assert!(outcomes.recv().unwrap().is_err());
    // The next one is its own.
    assert_eq!(opened.read(&staging), [3; 16]);
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn a_buffer_that_is_mapped_is_not_written() {
    let Some(opened) = open_late() else { return };
    let (staging, _) = copy_home(&opened, 4);
    staging.slice(..).map_async(wgpu::MapMode::Read, |_| ());
    opened.queue.write_buffer(&staging, 0, &[9; 64]);
    assert!(opened.errors().join("; ").contains("written to a mapped buffer"));
    let mut encoder = opened.device.create_command_encoder(&Default::default());
    encoder.clear_buffer(&staging, 0, None);
    opened.queue.submit([encoder.finish()]);
    assert!(opened.errors().join("; ").contains("a buffer is mapped"));
    opened.device.poll(PollType::wait_indefinitely()).unwrap();
    assert_eq!(&*staging.slice(..).get_mapped_range().unwrap(), 4_u32.to_le_bytes().repeat(16));
    staging.unmap();
    // The next submission would write it.
    opened.queue.write_buffer(&staging, 0, &[9; 64]);
    staging.slice(..).map_async(wgpu::MapMode::Read, |_| ());
    assert!(opened.errors().join("; ").contains("written by the next submission"));
}

#[test]
fn nothing_is_asked_of_the_driver_for_no_bytes() {
    let Some(opened) = open_late() else { return };
    let all = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let [empty, a, b] = [0, 64, 64].map(|size| opened.buffer(size, all));
    opened.queue.write_buffer(&empty, 0, &[]);
    let mut encoder = opened.device.create_command_encoder(&Default::default());
    encoder.clear_buffer(&empty, 0, None);
    encoder.copy_buffer_to_buffer(&a, 0, &b, 0, 0);
    opened.queue.submit([encoder.finish()]);
    opened.device.poll(PollType::wait_indefinitely()).unwrap();
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn callbacks_of_a_lost_device_are_called() {
    let Some(opened) = open_late() else { return };
    opened.device.destroy();
    let (send, calls) = std::sync::mpsc::channel();
    opened.queue.on_submitted_work_done(move || send.send(()).unwrap());
    assert_eq!(calls.recv(), Ok(()));
}

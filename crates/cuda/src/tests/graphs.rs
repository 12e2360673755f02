//! Graphs of submissions that come again.

use super::late::{open_late, open_without_graphs};
use super::{Opened, open};
use crate::{Launches, launches};
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, Buffer, BufferUsages,
    CommandBuffer, ComputePipeline, PollType,
};

/// The order of several of these matters. Each has an index of its own, which depends on the input.
const STEP: &str = "struct Parameters { factor: u32 }
    var<immediate> p: Parameters;
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
        y[at.x] = y[at.x] * 3u + x[x[at.x] % 1000u] * p.factor;
    }";

/// Numbers in each buffer.
const LEN: usize = 128;

const FACTORS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

/// A pass of several steps, and what it should compute.
struct Pass<'a> {
    opened: &'a Opened,
    layout: BindGroupLayout,
    pipeline: ComputePipeline,
    buffers: Buffers,
    expected: Vec<u32>,
}

struct Buffers {
    x: Buffer,
    y: Buffer,
    staging: Buffer,
    group: BindGroup,
}

impl Buffers {
    fn new(opened: &Opened, layout: &BindGroupLayout) -> Self {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let [x, y] = [usage; 2].map(|usage| opened.buffer(LEN * 4, usage));
        let staging = opened.buffer(LEN * 4, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        let entries = [(0, &x), (1, &y)].map(|(binding, buffer)| BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        });
        let descriptor = BindGroupDescriptor { label: None, layout, entries: &entries };
        let group = opened.device.create_bind_group(&descriptor);
        Self { x, y, staging, group }
    }
}

impl<'a> Pass<'a> {
    fn new(opened: &'a Opened) -> Self {
        let (layout, pipeline) = opened.pipeline(STEP, 4);
        let buffers = Buffers::new(opened, &layout);
        Self { opened, layout, pipeline, buffers, expected: vec![0; LEN] }
    }

    /// Frees all memory and allocates as much.
    fn replace_buffers(&mut self) {
        let Buffers { x, y, staging, .. } = &self.buffers;
        [x, y, staging].into_iter().for_each(Buffer::destroy);
        self.buffers = Buffers::new(self.opened, &self.layout);
        self.expected = vec![0; LEN];
    }

    fn write(&self, input: &[u32]) {
        let bytes: Vec<u8> = input.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.opened.queue.write_buffer(&self.buffers.x, 0, &bytes);
    }

    fn record(&self, factors: &[u32], groups: u32) -> CommandBuffer {
        let Buffers { y, staging, group, .. } = &self.buffers;
        let mut encoder = self.opened.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, group, &[]);
            for factor in factors {
                pass.set_immediates(0, &factor.to_le_bytes());
                pass.dispatch_workgroups(groups, 1, 1);
            }
        }
        encoder.copy_buffer_to_buffer(y, 0, staging, 0, (LEN * 4) as u64);
        encoder.finish()
    }

    /// Submits steps of the first groups of 64 numbers.
    fn submit(&mut self, start: u32, factors: &[u32], groups: u32) {
        let input: Vec<u32> = (0..LEN as u32).map(|at| (start + at * 7) % LEN as u32).collect();
        self.write(&input);
        self.opened.queue.submit([self.record(factors, groups)]);
        for factor in factors {
            let numbers = self.expected.iter_mut().zip(&input).take(64 * groups as usize);
            for (y, x) in numbers {
                *y = y.wrapping_mul(3).wrapping_add(input[*x as usize] * factor);
            }
        }
    }

    /// Submits steps, and compares the results.
    fn check(&mut self, start: u32, factors: &[u32], groups: u32) {
        self.submit(start, factors, groups);
        assert_eq!(self.opened.read(&self.buffers.staging), self.expected);
        self.buffers.staging.unmap();
    }

    fn launches(&self) -> Launches {
        launches(&self.opened.device).unwrap()
    }

    /// Returns the numbers of single operations, launches of graphs, and graphs.
    fn counts(&self) -> [u64; 3] {
        let launches = self.launches();
        [launches.operations, launches.graphs, launches.created_graphs]
    }
}

#[test]
fn what_is_submitted_again_is_a_graph() {
    let Some(opened) = open() else { return };
    let mut pass = Pass::new(&opened);
    for start in 0..5 {
        pass.check(start, &FACTORS, 2);
    }
    // The first is nine kernels and a copy.
    assert_eq!(pass.counts(), [10, 4, 1]);
    assert_eq!(pass.launches().no_graphs, None);
    assert_eq!(opened.errors(), Vec::<String>::new());
}

/// A graph takes the place of equal operations only.
#[test]
fn other_parameters_and_other_grids_are_other_graphs() {
    let Some(opened) = open() else { return };
    let mut pass = Pass::new(&opened);
    let mut other = FACTORS;
    other[4] = 50;
    for start in 0..4 {
        pass.check(start, &FACTORS, 2);
        pass.check(start, &other, 2);
        pass.check(start, &FACTORS, 1);
        pass.check(start, &FACTORS[..8], 2);
    }
    assert_eq!(pass.counts(), [10 + 10 + 10 + 9, 4 * 3, 4]);
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn few_operations_and_those_with_clears_are_launched_one_by_one() {
    let Some(opened) = open() else { return };
    let mut pass = Pass::new(&opened);
    for start in 0..3 {
        pass.check(start, &FACTORS[..6], 2);
    }
    assert_eq!(pass.counts(), [3 * 7, 0, 0]);
    for start in 0..3 {
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(&pass.buffers.y, 0, None);
        pass.expected.fill(0);
        let cleared = encoder.finish();
        let input: Vec<u32> = (0..LEN as u32).map(|at| (start + at) % 50).collect();
        pass.write(&input);
        opened.queue.submit([cleared, pass.record(&FACTORS, 2)]);
    }
    assert_eq!(pass.counts(), [3 * 7 + 3 * 11, 0, 0]);
    assert_eq!(opened.errors(), Vec::<String>::new());
}

/// The emulator allocates what was freed last, so the new buffers have the addresses of the old
/// ones. It fails if a graph of freed memory is launched.
#[test]
fn memory_with_an_old_address_is_not_that_of_a_graph() {
    let Some(opened) = open() else { return };
    let mut pass = Pass::new(&opened);
    for round in 1..4 {
        for start in 0..4 {
            pass.check(start, &FACTORS, 2);
        }
        assert_eq!(pass.counts(), [10 * round, 3 * round, round]);
        pass.replace_buffers();
    }
    assert_eq!(opened.errors(), Vec::<String>::new());
}

/// Nothing is waited for, and graphs and their memory are dropped while they are in use.
#[test]
fn graphs_stay_until_their_work_is_done() {
    let Some(opened) = open_late() else { return };
    let mut pass = Pass::new(&opened);
    let mut other = FACTORS;
    for round in 0..4 {
        for start in 0..4 {
            pass.submit(start, &FACTORS, 2);
        }
        assert_eq!(opened.read(&pass.buffers.staging), pass.expected);
        pass.buffers.staging.unmap();
        (0..3).for_each(|start| pass.submit(start, &FACTORS, 2));
        pass.replace_buffers();
        // Another graph takes the place of those whose memory was freed.
        other[0] = 100 + round;
        (0..3).for_each(|start| pass.submit(start, &other, 2));
    }
    assert_eq!(opened.read(&pass.buffers.staging), pass.expected);
    assert!(pass.counts()[1] > 20, "{:?}", pass.launches());
    assert_eq!(opened.errors(), Vec::<String>::new());
    // Everything is dropped while a graph is in progress.
    pass.buffers.staging.unmap();
    (0..3).for_each(|start| pass.submit(start, &other, 2));
}

/// There is room for one of two large graphs: the other one is dropped while its work is in
/// progress.
#[test]
fn graphs_without_room_stay_until_their_work_is_done() {
    let Some(opened) = open_late() else { return };
    let all = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let [from, to] = [all; 2].map(|usage| opened.buffer(256, usage));
    let submit = |offset| {
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        (0..9000).for_each(|_| encoder.copy_buffer_to_buffer(&from, 0, &to, offset, 16));
        opened.queue.submit([encoder.finish()]);
    };
    for offset in [0, 16, 32, 0] {
        submit(offset);
        submit(offset);
    }
    opened.device.poll(PollType::wait_indefinitely()).unwrap();
    let counts = launches(&opened.device).unwrap();
    assert_eq!((counts.graphs, counts.created_graphs), (4, 4));
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn a_driver_that_refuses_graphs_is_used_without() {
    let Some(opened) = open_without_graphs() else { return };
    let mut pass = Pass::new(&opened);
    for start in 0..4 {
        pass.check(start, &FACTORS, 2);
    }
    assert_eq!(pass.counts(), [40, 0, 0]);
    assert_eq!(pass.launches().no_graphs.as_deref(), Some("no graphs here"));
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn a_device_may_be_lost_in_a_graph() {
    let Some(opened) = open() else { return };
    let mut pass = Pass::new(&opened);
    for start in 0..3 {
        pass.check(start, &FACTORS, 2);
    }
    pass.write(&[999; LEN]);
    opened.queue.submit([pass.record(&FACTORS, 2)]);
    let errors = opened.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("an index of a buffer: 999 of 128"), "{errors:?}");
    // It stays lost, and nothing waits.
    let counts = pass.counts();
    opened.queue.submit([pass.record(&FACTORS, 2)]);
    opened.device.poll(PollType::wait_indefinitely()).unwrap();
    assert_eq!(pass.counts(), counts);
    let (send, outcomes) = std::sync::mpsc::channel();
    let staging = &pass.buffers.staging;
    staging.slice(..).map_async(wgpu::MapMode::Read, move |outcome| send.send(outcome).unwrap());
    assert!(outcomes.recv().unwrap().is_err());
}

/// Each thread submits its own passes to the same device.
#[test]
fn threads_share_the_graphs_of_a_device() {
    let Some(opened) = open_late() else { return };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let opened = &opened;
            scope.spawn(move || {
                let mut pass = Pass::new(opened);
                (0..30).for_each(|start| pass.check(start * 3 + thread, &FACTORS, 2));
            });
        }
    });
    let counts = launches(&opened.device).unwrap();
    assert_eq!((counts.operations, counts.graphs), (3 * 10, 3 * 29));
    assert_eq!(opened.errors(), Vec::<String>::new());
}

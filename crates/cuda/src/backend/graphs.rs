//! Graphs of operations that come again.
//!
//! Each kernel that is launched costs the processor some microseconds, and a pass has hundreds.
//! Passes with the same number of rows mostly have the same operations, because what differs
//! between them is in memory that is written before. So operations that come for the second time
//! become a graph, and from then on the graph is launched in their place.
//!
//! A graph is never changed. It is launched only in place of operations that are equal to its own
//! in everything: kernels, grids, addresses, sizes and immediates. So it does what they would do.
//! An address names the same memory only as long as that is not freed, so a graph is dropped if any
//! of its memory was freed.

use crate::driver::{Context, DriverError, Graph, Memory, Operation};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

/// The environment variable that turns graphs off: 0. All operations are launched one by one then.
pub const GRAPHS_VARIABLE: &str = "FORERUN_CUDA_GRAPHS";

/// Fewer operations are launched one by one, because launching a graph costs about as much.
const MIN_OPERATIONS: usize = 8;

/// The largest number of operations of all graphs. A driver needs memory for each.
const MAX_OPERATIONS: usize = 1 << 14;

/// Number of sequences of operations that are remembered after they came once.
const REMEMBERED: usize = 256;

/// The graphs of a device.
#[derive(Default)]
pub(super) struct Graphs {
    /// Hashes of operations that came once, the oldest first.
    seen: VecDeque<u64>,
    /// The graphs, the least recently used first.
    known: Vec<KnownGraph>,
    /// Number of graphs that were created.
    pub(super) created: u64,
    /// Why no graphs are created any more.
    pub(super) off: Option<String>,
}

struct KnownGraph {
    operations: Vec<Operation>,
    /// The memory that the operations name.
    memory: Vec<Weak<Memory>>,
    graph: Arc<Graph>,
}

impl KnownGraph {
    /// Whether all memory of the graph is still there. Then its addresses are those of the same
    /// memory, because two allocations never share an address.
    fn is_valid(&self) -> bool {
        self.memory.iter().all(|memory| memory.strong_count() > 0)
    }
}

impl Graphs {
    /// Creates the graphs of a device: none if [`GRAPHS_VARIABLE`] says so.
    pub(super) fn from_environment() -> Self {
        let is_off = std::env::var_os(GRAPHS_VARIABLE)
            .is_some_and(|value| matches!(value.to_str(), Some("0" | "off" | "false")));
        Self { off: is_off.then(|| format!("{GRAPHS_VARIABLE} is 0")), ..Self::default() }
    }

    /// Returns the graph to launch in place of operations, if they came before. `memory` is what
    /// they name, by its address.
    ///
    /// # Safety
    /// As for [`Context::create_graph`].
    pub(super) unsafe fn find(
        &mut self,
        context: &Arc<dyn Context>,
        operations: &[Operation],
        memory: &HashMap<u64, Arc<Memory>>,
    ) -> Option<Arc<Graph>> {
        let is_clear = |operation: &Operation| matches!(operation, Operation::Clear { .. });
        let is_possible = (MIN_OPERATIONS..=MAX_OPERATIONS).contains(&operations.len());
        if self.off.is_some() || !is_possible || operations.iter().any(is_clear) {
            return None;
        }
        let is_equal = |known: &KnownGraph| known.operations == operations;
        if let Some(at) = self.known.iter().rposition(is_equal) {
            let known = self.known.remove(at);
            if known.is_valid() {
                let graph = Arc::clone(&known.graph);
                self.known.push(known);
                return Some(graph);
            }
        }
        if !self.came_before(operations) {
            return None;
        }
        self.make_room(operations.len());
        // SAFETY: the caller promises the same.
        match unsafe { Graph::create(context, operations) } {
            Ok(graph) => {
                let graph = Arc::new(graph);
                self.created += 1;
                self.known.push(KnownGraph {
                    operations: operations.to_vec(),
                    memory: memory.values().map(Arc::downgrade).collect(),
                    graph: Arc::clone(&graph),
                });
                Some(graph)
            }
            // There may be memory later, and the graphs that are there are good.
            Err(DriverError::OutOfMemory) => None,
            Err(error) => {
                self.known.clear();
                self.off = Some(error.to_string());
                None
            }
        }
    }

    /// Returns whether operations came once before, and remembers them if not.
    fn came_before(&mut self, operations: &[Operation]) -> bool {
        let mut hasher = DefaultHasher::new();
        operations.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(at) = self.seen.iter().position(|seen| *seen == hash) {
            self.seen.remove(at);
            return true;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(hash);
        false
    }

    /// Drops graphs that are of no use any more, then those that were not used for the longest
    /// time, until there is room for so many operations.
    fn make_room(&mut self, operations: usize) {
        self.known.retain(KnownGraph::is_valid);
        let mut sum = operations;
        let fits = |known: &KnownGraph| {
            sum += known.operations.len();
            sum <= MAX_OPERATIONS
        };
        let kept = self.known.iter().rev().map(fits).take_while(|fits| *fits).count();
        self.known.drain(..self.known.len() - kept);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::{Driver, Place};
    use crate::emulator::Emulator;

    /// Memory of an emulated device, and graphs of copies between its parts.
    struct Copies {
        context: Arc<dyn Context>,
        graphs: Graphs,
    }

    impl Copies {
        /// Returns `None`, with a message, without a C++ compiler.
        fn new() -> Option<Self> {
            let emulator = Emulator::new(std::env::temp_dir(), 0);
            if emulator.is_none() {
                println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64");
            }
            Some(Self { context: emulator?.open(0).unwrap(), graphs: Graphs::default() })
        }

        fn memory(&self) -> Arc<Memory> {
            Arc::new(Memory::allocate(&self.context, 256, Place::Device).unwrap())
        }

        /// Submits so many copies of the first bytes of some memory. Returns whether a graph is
        /// launched.
        fn submit(&mut self, memory: &Arc<Memory>, copies: usize) -> bool {
            let at = memory.span.address;
            let operations = vec![Operation::Copy { from: at, to: at + 128, bytes: 64 }; copies];
            let memory = HashMap::from([(at, Arc::clone(memory))]);
            // SAFETY: the memory is there.
            unsafe { self.graphs.find(&self.context, &operations, &memory) }.is_some()
        }
    }

    #[test]
    fn a_graph_ends_with_its_memory() {
        let Some(mut copies) = Copies::new() else { return };
        let memory = copies.memory();
        assert_eq!([(); 4].map(|()| copies.submit(&memory, 20)), [false, true, true, true]);
        let address = memory.span.address;
        drop(memory);
        let memory = copies.memory();
        assert_eq!(memory.span.address, address, "the emulator allocates the same memory again");
        assert_eq!([(); 3].map(|()| copies.submit(&memory, 20)), [false, true, true]);
        assert_eq!((copies.graphs.created, copies.graphs.known.len()), (2, 1));
        // Others make room.
        drop(memory);
        let memory = copies.memory();
        assert_eq!([(); 2].map(|()| copies.submit(&memory, 30)), [false, true]);
        assert_eq!(copies.graphs.known.len(), 1);
    }

    #[test]
    fn graphs_that_were_not_used_for_the_longest_time_make_room() {
        let Some(mut copies) = Copies::new() else { return };
        let memory = copies.memory();
        let third = MAX_OPERATIONS / 3;
        for size in [third, third - 1, third - 2] {
            assert_eq!([(); 3].map(|()| copies.submit(&memory, size)), [false, true, true]);
        }
        // The second one was not used since.
        assert!(copies.submit(&memory, third));
        assert_eq!([(); 2].map(|()| copies.submit(&memory, third - 3)), [false, true]);
        let sizes: Vec<usize> =
            copies.graphs.known.iter().map(|known| known.operations.len()).collect();
        assert_eq!(sizes, [third - 2, third, third - 3]);
        assert!(!copies.submit(&memory, MAX_OPERATIONS + 1));
        assert!(!copies.submit(&memory, MAX_OPERATIONS + 1));
        assert_eq!((copies.graphs.created, copies.graphs.off), (4, None));
    }

    #[test]
    fn operations_that_came_once_are_forgotten_after_many_others() {
        let Some(mut copies) = Copies::new() else { return };
        let memory = copies.memory();
        for size in MIN_OPERATIONS..=MIN_OPERATIONS + REMEMBERED {
            assert!(!copies.submit(&memory, size));
        }
        assert!(!copies.submit(&memory, MIN_OPERATIONS), "forgotten");
        assert!(copies.submit(&memory, MIN_OPERATIONS + REMEMBERED));
        assert_eq!(copies.graphs.seen.len(), REMEMBERED - 1);
    }
}

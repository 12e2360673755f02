//! What the leader sends to the other members about a pass: everything but the numbers that they
//! compute.

use crate::cpu_pages::CpuPages;
use forerun_cache::{
    HeldRows, PageId, PageStorage, PageTable, RowPlace, StateBefore, StateId, StateStep,
};
use forerun_core::{Node, TokenId, TokenTree};
use forerun_lm::LayerOrder;
use forerun_model::{Pass, SequencePass};
use serde::{Deserialize, Serialize};

/// A pass, and what has happened to its storage since the pass before.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassMessage {
    /// The number of the pass, from 1.
    pub(crate) number: u32,
    /// The storages that the leader has dropped.
    pub(super) dropped: Vec<u32>,
    /// The storage of the pass, which exists from its first pass on.
    pub(super) storage: u32,
    pub(super) operations: Vec<PageOperation>,
    /// The sizes of the groups of layers; `None` for one layer after another.
    pub(super) groups: Option<Vec<u32>>,
    pub(super) sequences: Vec<SequenceMessage>,
}

/// A change of a storage's pages, which all members make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PageOperation {
    Reserve(u32),
    Release(u32),
    CopyRow {
        /// Page and row.
        from: (u32, u32),
        to: (u32, u32),
    },
    ReserveState(u32),
    ReleaseState(u32),
}

/// One sequence of a pass.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SequenceMessage {
    prefix_len: u32,
    tree_len: u32,
    first_output: u32,
    pages: Vec<u32>,
    /// The nodes of the tree: one more than the parent, or 0, and the token.
    nodes: Vec<(u32, TokenId)>,
    /// The states before and after each new row, if the model has states.
    steps: Vec<(Before, Option<u32>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Before {
    Zero,
    Kept(u32),
    Running,
}

impl PageOperation {
    pub(crate) fn copy_row(from: RowPlace, to: RowPlace) -> Self {
        let place = |place: RowPlace| (place.page.0, place.row as u32);
        Self::CopyRow { from: place(from), to: place(to) }
    }

    /// Makes the change of a storage.
    pub(super) fn apply(&self, storage: &mut CpuPages) {
        let place = |(page, row): (u32, u32)| RowPlace { page: PageId(page), row: row as usize };
        match *self {
            Self::Reserve(page) => storage.allocate(PageId(page)),
            Self::Release(page) => storage.release(PageId(page)),
            Self::CopyRow { from, to } => storage.copy_row(place(from), place(to)),
            Self::ReserveState(state) => storage.allocate_state(StateId(state)),
            Self::ReleaseState(state) => storage.release_state(StateId(state)),
        }
    }
}

/// Returns the sizes of the groups of layers of a pass.
pub(super) fn groups(order: LayerOrder<'_>, n_layers: usize) -> Option<Vec<u32>> {
    match order {
        LayerOrder::Sequential => None,
        LayerOrder::Groups(_) => {
            Some((0..order.len(n_layers)).map(|index| order.group(index).len() as u32).collect())
        }
    }
}

impl SequenceMessage {
    pub(super) fn all(pass: &Pass<'_>, has_states: bool) -> Vec<Self> {
        pass.sequences.iter().map(|sequence| Self::new(sequence, has_states)).collect()
    }

    fn new(sequence: &SequencePass<'_>, has_states: bool) -> Self {
        let SequencePass { cache, tree, first_output, .. } = *sequence;
        let mut steps = Vec::new();
        if has_states {
            cache.add_state_steps(tree, &mut steps);
        }
        let step = |StateStep { before, after }: StateStep| {
            let before = match before {
                StateBefore::Zero => Before::Zero,
                StateBefore::Kept(state) => Before::Kept(state.0),
                StateBefore::Running => Before::Running,
            };
            (before, after.map(|state| state.0))
        };
        let node = |node: Node| {
            (tree.parent(node).map_or(0, |parent| parent as u32 + 1), tree.token(node))
        };
        Self {
            prefix_len: cache.prefix_len() as u32,
            tree_len: cache.tree_len() as u32,
            first_output: first_output as u32,
            pages: cache.table().pages.iter().map(|page| page.0).collect(),
            nodes: (0..tree.len()).map(node).collect(),
            steps: steps.into_iter().map(step).collect(),
        }
    }
}

/// A sequence of a pass on a member that does not have its cache.
pub(crate) struct ReceivedSequence {
    pub(crate) tree: TokenTree,
    pub(crate) first_output: Node,
    prefix_len: usize,
    tree_len: usize,
    pages: Vec<PageId>,
    steps: Vec<StateStep>,
}

impl From<SequenceMessage> for ReceivedSequence {
    fn from(message: SequenceMessage) -> Self {
        let mut tree = TokenTree::new();
        for (parent, token) in message.nodes {
            tree.push((parent as usize).checked_sub(1), token);
        }
        let step = |(before, after): (Before, Option<u32>)| {
            let before = match before {
                Before::Zero => StateBefore::Zero,
                Before::Kept(state) => StateBefore::Kept(StateId(state)),
                Before::Running => StateBefore::Running,
            };
            StateStep { before, after: after.map(StateId) }
        };
        Self {
            tree,
            first_output: message.first_output as usize,
            prefix_len: message.prefix_len as usize,
            tree_len: message.tree_len as usize,
            pages: message.pages.into_iter().map(PageId).collect(),
            steps: message.steps.into_iter().map(step).collect(),
        }
    }
}

impl HeldRows for ReceivedSequence {
    fn prefix_len(&self) -> usize {
        self.prefix_len
    }

    fn tree_len(&self) -> usize {
        self.tree_len
    }

    fn table(&self) -> PageTable<'_> {
        PageTable { pages: &self.pages }
    }

    fn add_state_steps(&self, _tree: &TokenTree, steps: &mut Vec<StateStep>) {
        steps.extend(&self.steps);
    }
}

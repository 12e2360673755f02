//! The pages of a pool: which sequences use them, and what is published on them.

use super::sequence_cache::Root;
use super::slots::Slots;
use crate::page::PageId;
use crate::states::StateId;
use crate::store::PageName;
use crate::usage::{PageEvent, PoolUsage};
use forerun_core::TokenId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The identity of a published page's content: the tokens from the start of the sequence to its
/// end, and their root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ContentId {
    number: u64,
    has_root: bool,
}

/// What comes before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Before {
    /// Nothing but what all rows depend on (see [`CachePool::set_root`](super::CachePool::set_root)).
    Root(Root),
    Page(ContentId),
}

/// What a page's content depends on, if it is published: the content before it and its own tokens.
pub(super) type ContentKey = (Before, Vec<TokenId>);

pub(super) struct Page {
    /// Number of sequences that use the page.
    users: usize,
    /// Its content, if it is published.
    content: Option<(ContentId, ContentKey)>,
    /// When it was last used.
    pub(super) used: u64,
    /// The state after its last row, if that is kept. Only published pages have one.
    pub(super) state: Option<StateId>,
    /// The name of its content in a store. Only published pages have one.
    pub(super) name: Option<PageName>,
}

impl Page {
    pub(super) fn content(&self) -> Option<ContentId> {
        self.content.as_ref().map(|(content, _)| *content)
    }

    /// Returns when the content was published, in comparison with others.
    pub(super) fn order(&self) -> Option<u64> {
        self.content().map(|content| content.number)
    }
}

pub(super) struct Pages {
    pub(super) slots: Slots<PageId, Page>,
    published: HashMap<ContentKey, PageId>,
    next_content: u64,
    usage: Arc<PoolUsage>,
}

impl Pages {
    pub(super) fn new(usage: Arc<PoolUsage>) -> Self {
        Self { slots: Slots::default(), published: HashMap::new(), next_content: 0, usage }
    }

    /// Returns the page with this content, if it is published.
    pub(super) fn find(&self, key: &ContentKey) -> Option<PageId> {
        self.published.get(key).copied()
    }

    pub(super) fn publish(&mut self, id: PageId, key: ContentKey) {
        let (before, has_root) = match key.0 {
            Before::Root(root) => (None, root != Root::default()),
            Before::Page(before) => (Some(before.number), before.has_root),
        };
        let content = ContentId { number: self.next_content, has_root };
        self.next_content += 1;
        // Tokens alone do not say what depends on more.
        if !has_root {
            let (content, tokens) = (content.number, &key.1);
            self.usage.report(&PageEvent::Published { content, before, tokens });
        }
        self.published.insert(key.clone(), id);
        self.slots.get_mut(id).content = Some((content, key));
    }

    /// Removes the content of a page. Returns its state, which it no longer uses.
    #[must_use]
    pub(super) fn withdraw(&mut self, id: PageId) -> Option<StateId> {
        let page = self.slots.get_mut(id);
        let state = page.state.take();
        page.name = None;
        if let Some((content, key)) = page.content.take() {
            self.published.remove(&key);
            if !content.has_root {
                self.usage.report(&PageEvent::Withdrawn { content: content.number });
            }
        }
        state
    }

    /// Whether more than one sequence uses a page.
    pub(super) fn is_shared(&self, id: PageId) -> bool {
        self.slots.get(id).users > 1
    }

    /// Takes a page into use, which was free or has new memory.
    pub(super) fn put(&mut self, id: PageId, now: u64) {
        self.usage.in_use.fetch_add(1, Ordering::Relaxed);
        self.slots.put(id, Page { users: 1, content: None, used: now, state: None, name: None });
    }

    pub(super) fn use_again(&mut self, id: PageId, now: u64) {
        let page = self.slots.get_mut(id);
        page.users += 1;
        page.used = now;
        if page.users == 1 {
            self.usage.in_use.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one user less. A page that is neither used nor published becomes free.
    pub(super) fn unuse(&mut self, id: PageId, now: u64) {
        let page = self.slots.get_mut(id);
        page.users -= 1;
        page.used = now;
        if page.users > 0 {
            return;
        }
        let is_kept = page.content.is_some();
        self.usage.in_use.fetch_sub(1, Ordering::Relaxed);
        if !is_kept {
            self.slots.set_free(id);
        }
    }

    /// Returns the published page that no sequence uses and that was not used for the longest time.
    pub(super) fn oldest_unused(&self) -> Option<PageId> {
        // Among pages that were last used together, those that follow others were published later.
        let age = |page: &Page| page.order().map(|order| (page.used, u64::MAX - order));
        let unused = self.slots.iter().filter(|(_, page)| page.users == 0);
        let unused = unused.filter_map(|(id, page)| Some((age(page)?, id)));
        unused.min_by_key(|&(age, _)| age).map(|(_, id)| id)
    }
}

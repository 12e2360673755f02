//! What the target's cache holds, in the events that Dynamo's router reads.
//!
//! A block is a page of the cache. It is reported when later answers can use it, and withdrawn when
//! they cannot any more: also if a page before it is gone, since a prefix is found from its start.

use dynamo_llm::kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq, compute_next_seq_hash,
};
use forerun::runtime::{PAGE_ROWS, PageEvent};
use std::collections::HashMap;

/// The number of tokens of a block.
pub(crate) const BLOCK_TOKENS: u32 = PAGE_ROWS as u32;

/// The blocks that later answers can use, of all replicas.
#[derive(Default)]
pub(crate) struct RetainedBlocks {
    /// By replica and by the number of the content.
    blocks: HashMap<(usize, u64), Block>,
    /// The number of replicas that hold a block, by its hash.
    holders: HashMap<u64, usize>,
}

struct Block {
    /// The hash of its tokens and of all tokens before.
    hash: u64,
    /// The contents of the blocks that follow it.
    next: Vec<u64>,
}

impl RetainedBlocks {
    /// Returns what to report about a page of a replica, if anything.
    pub(crate) fn follow(
        &mut self,
        replica: usize,
        event: &PageEvent<'_>,
    ) -> Option<KvCacheEventData> {
        match *event {
            PageEvent::Published { content, before, tokens } => {
                self.publish((replica, content), before, tokens)
            }
            PageEvent::Withdrawn { content } => self.withdraw(replica, content),
        }
    }

    fn publish(
        &mut self,
        (replica, content): (usize, u64),
        before: Option<u64>,
        tokens: &[u32],
    ) -> Option<KvCacheEventData> {
        let options = BlockHashOptions::default();
        let tokens_hash = *compute_block_hash_for_seq(tokens, BLOCK_TOKENS, options).first()?;
        let (hash, parent) = match before {
            None => (tokens_hash.0, None),
            Some(before) => {
                // A page after one that is gone cannot be found.
                let before = self.blocks.get_mut(&(replica, before))?;
                before.next.push(content);
                (compute_next_seq_hash(before.hash, tokens_hash), Some(before.hash))
            }
        };
        self.blocks.insert((replica, content), Block { hash, next: Vec::new() });
        let holders = self.holders.entry(hash).or_default();
        *holders += 1;
        (*holders == 1).then(|| {
            KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(ExternalSequenceBlockHash),
                start_position: None,
                blocks: vec![KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(hash),
                    tokens_hash,
                    mm_extra_info: None,
                }],
            })
        })
    }

    fn withdraw(&mut self, replica: usize, content: u64) -> Option<KvCacheEventData> {
        let (mut gone, mut block_hashes) = (vec![content], Vec::new());
        while let Some(content) = gone.pop() {
            let Some(block) = self.blocks.remove(&(replica, content)) else { continue };
            gone.extend(block.next);
            if let Some(holders) = self.holders.get_mut(&block.hash) {
                *holders -= 1;
                if *holders == 0 {
                    self.holders.remove(&block.hash);
                    block_hashes.push(ExternalSequenceBlockHash(block.hash));
                }
            }
        }
        let removed = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes });
        Some(removed).filter(|event| {
            !matches!(event, KvCacheEventData::Removed(data) if data.block_hashes.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_llm::kv_router::protocols::compute_seq_hash_for_block;

    fn tokens(blocks: u32) -> Vec<u32> {
        (0..blocks * BLOCK_TOKENS).map(|token| token * 7 % 1000).collect()
    }

    fn published(content: u64, before: Option<u64>, tokens: &[u32]) -> PageEvent<'_> {
        PageEvent::Published { content, before, tokens }
    }

    fn removed(event: Option<KvCacheEventData>) -> Vec<u64> {
        match event {
            Some(KvCacheEventData::Removed(data)) => {
                let mut hashes: Vec<u64> = data.block_hashes.iter().map(|hash| hash.0).collect();
                hashes.sort_unstable();
                hashes
            }
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    fn stored(event: Option<KvCacheEventData>) -> (Option<u64>, u64) {
        let Some(KvCacheEventData::Stored(data)) = event else { panic!("{event:?}") };
        (data.parent_hash.map(|hash| hash.0), data.blocks[0].block_hash.0)
    }

    #[test]
    fn hashes_are_those_that_the_router_computes_for_a_prompt() {
        let prompt = tokens(3);
        let options = BlockHashOptions::default();
        let hashes = compute_block_hash_for_seq(&prompt, BLOCK_TOKENS, options);
        let hashes = compute_seq_hash_for_block(&hashes);
        let mut retained = RetainedBlocks::default();
        for (number, page) in prompt.chunks(PAGE_ROWS).enumerate() {
            let before = number.checked_sub(1).map(|before| before as u64);
            let event = retained.follow(0, &published(number as u64, before, page));
            let (parent, hash) = stored(event);
            assert_eq!((parent, hash), (before.map(|one| hashes[one as usize]), hashes[number]));
        }
    }

    #[test]
    fn blocks_after_one_that_is_gone_are_gone_and_replicas_count() {
        let prompt = tokens(2);
        let pages: Vec<&[u32]> = prompt.chunks(PAGE_ROWS).collect();
        let mut retained = RetainedBlocks::default();
        let (_, first) = stored(retained.follow(0, &published(5, None, pages[0])));
        let (_, second) = stored(retained.follow(0, &published(6, Some(5), pages[1])));
        // Another replica holds the first block as well.
        assert_eq!(retained.follow(1, &published(1, None, pages[0])), None);
        assert_eq!(removed(retained.follow(0, &PageEvent::Withdrawn { content: 5 })), [second]);
        assert_eq!(removed(retained.follow(0, &PageEvent::Withdrawn { content: 6 })), [0; 0]);
        assert_eq!(retained.follow(0, &published(7, Some(5), pages[1])), None);
        assert_eq!(removed(retained.follow(1, &PageEvent::Withdrawn { content: 1 })), [first]);
        let again = stored(retained.follow(1, &published(2, None, pages[0])));
        assert_eq!(again, (None, first));
    }
}

//! Digests of all prefixes of a growing list.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A digest of a prefix: the first 128 bits of a SHA-256 hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest([u8; 16]);

impl Digest {
    /// Returns the digest of the empty list. `context` is what the elements do not say, such as the
    /// kind of list.
    pub(crate) fn of_context(context: &[u8]) -> Self {
        Self::first_bits(Sha256::new_with_prefix(context))
    }

    /// Returns the digest of this list with one more element, given as bytes.
    fn then(self, element: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        element.into_iter().for_each(|bytes| hash.update(bytes));
        Self::first_bits(hash)
    }

    fn first_bits(hash: Sha256) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize()[..16]);
        Self(digest)
    }
}

/// The digests of all prefixes of a list. Each follows from the one before it and the next element,
/// so a list that grows costs as much as its new elements.
#[derive(Debug)]
pub(crate) struct Digests {
    /// The digest of the first `n` elements at index `n`.
    of_first: Vec<Digest>,
}

impl Digests {
    pub(crate) fn new(empty: Digest) -> Self {
        Self { of_first: vec![empty] }
    }

    /// Returns the digest of the first `count` elements; `None` if the list is shorter.
    pub(crate) fn of_first(&self, count: usize) -> Option<Digest> {
        self.of_first.get(count).copied()
    }

    /// Replaces the elements after the first `count` ones by one more element.
    pub(crate) fn set(
        &mut self,
        count: usize,
        element: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) {
        self.truncate(count);
        if let Some(&last) = self.of_first.last() {
            self.of_first.push(last.then(element));
        }
    }

    /// Removes the elements after the first `count` ones.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.of_first.truncate(count + 1);
    }

    /// Returns the memory that the digests take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.of_first[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(context: &[u8], elements: &[u8]) -> Digests {
        let mut digests = Digests::new(Digest::of_context(context));
        for (count, &element) in elements.iter().enumerate() {
            digests.set(count, [[element]]);
        }
        digests
    }

    #[test]
    fn digests_depend_on_the_context_and_all_elements_before_and_nothing_else() {
        let list = digests(b"a", &[1, 2, 3]);
        for (context, elements, common) in [
            (b"a", vec![1, 2, 3], 4),
            (b"a", vec![1, 2, 4], 3),
            (b"a", vec![2], 1),
            (b"b", vec![1], 0),
        ] {
            let other = digests(context, &elements);
            for count in 0..=elements.len() {
                let equal = list.of_first(count) == other.of_first(count);
                assert_eq!(equal, count < common, "{elements:?}, first {count}");
            }
        }
        assert_eq!(list.of_first(4), None);
    }

    #[test]
    fn a_list_can_be_shortened_and_continued() {
        let mut list = digests(b"a", &[1, 2, 3]);
        list.set(1, [[5]]);
        assert_eq!(list.of_first, digests(b"a", &[1, 5]).of_first);
        list.truncate(0);
        assert_eq!(list.of_first, digests(b"a", &[]).of_first);
    }
}

//! Pages and states outside of a pool.

use forerun_core::TokenId;
use sha2::{Digest, Sha256};

/// The name of a page's content, or of a state: a digest of the model and of all tokens that it
/// depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageName(pub [u8; 32]);

impl PageName {
    /// Returns the name of what comes before the first page of every sequence of a model. `parts`
    /// tell models apart whose rows differ for the same tokens.
    #[must_use]
    pub fn of_model(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Returns the name of the page with these tokens after the page with this name.
    #[must_use]
    pub fn after(self, tokens: &[TokenId]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Self(hash.finalize().into())
    }

    /// Returns the name of the state after the last row of the page with this name.
    #[must_use]
    pub fn of_state(self) -> Self {
        Self(Sha256::new_with_prefix(self.0).chain_update("state").finalize().into())
    }
}

/// Keeps pages and states outside of a pool, so that they outlive it. The pool calls it on the
/// thread that computes, which waits for it.
pub trait PageStore: Send + Sync {
    /// Notes that the content is in use. `number` is that of its page in the sequence: of content
    /// that is used at the same time, the store should forget the highest numbers first. Returns
    /// whether it has the content.
    fn touch(&self, name: PageName, number: usize) -> bool;

    /// Reads the content into the parts of the page or state that had it. Returns whether they are
    /// complete and unchanged since [`PageStore::save`]; otherwise they are arbitrary.
    fn load(&self, name: PageName, parts: &mut [&mut [u8]]) -> bool;

    /// Keeps a content, now or later, or not at all if it has no room. `number` is as in
    /// [`PageStore::touch`].
    fn save(&self, name: PageName, number: usize, parts: &[&mut [u8]]);
}

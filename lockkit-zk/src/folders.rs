//! What this process last saw of the folders of lists. A memory of bounded size that may be wrong:
//! it only chooses which request is tried first, so a wrong one costs a round trip and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkit_core::queue::GivenLimit;

/// Folders in one generation; there are two.
const REMEMBERED: usize = 4096;

/// How a folder was when it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderState {
    /// It is there; nobody may be in it.
    There,
    /// Somebody is in it.
    InUse,
    /// It was given this limit; nobody may be in it.
    Limited(GivenLimit),
    /// It has seen so many claims that their numbers come to an end.
    Worn,
}

/// The folders that were seen lately.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    hashes: RandomState,
    seen: Mutex<Generations>,
}

/// By hashes: two folders with the same one are taken for each other, which costs a round trip.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, FolderState>,
    old: HashMap<u64, FolderState>,
}

impl Folders {
    fn seen(&self) -> MutexGuard<'_, Generations> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the folder was, if that is remembered.
    pub(crate) fn last(&self, folder: &str) -> Option<FolderState> {
        let hash = self.hashes.hash_one(folder);
        let seen = self.seen();
        seen.young.get(&hash).or_else(|| seen.old.get(&hash)).copied()
    }

    pub(crate) fn saw(&self, folder: &str, sight: FolderState) {
        let hash = self.hashes.hash_one(folder);
        let mut seen = self.seen();
        if seen.young.len() >= REMEMBERED && !seen.young.contains_key(&hash) {
            seen.old = std::mem::take(&mut seen.young);
        }
        seen.young.insert(hash, sight);
    }

    /// The folder is not there.
    pub(crate) fn forget(&self, folder: &str) {
        let hash = self.hashes.hash_one(folder);
        let mut seen = self.seen();
        seen.young.remove(&hash);
        seen.old.remove(&hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_last_is_remembered() {
        let folders = Folders::default();
        assert_eq!(folders.last("/a"), None);
        folders.saw("/a", FolderState::There);
        folders.saw("/a", FolderState::InUse);
        assert_eq!(folders.last("/a"), Some(FolderState::InUse));
        folders.forget("/a");
        assert_eq!(folders.last("/a"), None);
    }

    #[test]
    fn no_more_than_two_generations_are_kept() {
        let folders = Folders::default();
        for n in 0..20 * REMEMBERED {
            folders.saw(&format!("/{n}"), FolderState::There);
        }
        let seen = folders.seen();
        assert!(seen.young.len() <= REMEMBERED && seen.old.len() <= REMEMBERED);
        drop(seen);
        assert_eq!(folders.last(&format!("/{}", 20 * REMEMBERED - 1)), Some(FolderState::There));
    }
}

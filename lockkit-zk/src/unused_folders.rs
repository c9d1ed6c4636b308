//! Folders of locks that this driver made and left empty, and which of them to remove. ZooKeeper
//! removes empty containers itself, 10,000 a minute unless configured otherwise; a program with
//! more names than that would leave ever more of them. So where very many were left, the driver
//! helps; and at its end it removes those that it left last.
//!
//! Others may use a folder meanwhile. The server deletes no folder that is not empty, and a claim that
//! finds its folder gone makes it again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Recent, locked};

/// As many are left to the server's own removal.
pub(crate) const MANY: usize = 1_000;
/// And those that were left longer ago.
const LONG_AGO: Duration = Duration::from_secs(60);
/// One that was used within this time is perhaps used again.
const UNUSED: Duration = Duration::from_secs(10);
/// Of so many is remembered that they were left.
const MOST: usize = 1 << 16;

/// The folders that a driver made.
pub(crate) struct UnusedFolders {
    made: Recent<String, ()>,
    pub(crate) queue: Mutex<FolderQueue>,
    pub(crate) removing: Arc<tokio::sync::Mutex<()>>,
    /// Renewals under way.
    pub(crate) renewing: AtomicUsize,
}

/// Those in which this driver has no claim any more.
#[derive(Default)]
pub(crate) struct FolderQueue {
    since: HashMap<String, Moment>,
    /// In that order. What is not so in `since` was used again.
    order: VecDeque<(Moment, String)>,
}

impl Default for UnusedFolders {
    fn default() -> Self {
        let (queue, removing) = (Mutex::default(), Arc::default());
        Self { made: Recent::new(MOST / 4), queue, removing, renewing: AtomicUsize::new(0) }
    }
}

impl UnusedFolders {
    /// This driver has made this folder.
    pub(crate) fn made(&self, folder: &str) {
        self.made.saw(folder, ());
    }

    /// A claim of this driver is about to come into this folder.
    pub(crate) fn used(&self, folder: &str) {
        locked(&self.queue).since.remove(folder);
    }

    /// A claim of this driver has left this folder.
    pub(crate) fn unused(&self, folder: &str, now: Moment) {
        if self.made.last(folder).is_some() {
            locked(&self.queue).note(folder, now);
        }
    }

    /// A renewal is under way as long as this is kept.
    pub(crate) fn renewing(&self) -> impl Drop + '_ {
        self.renewing.fetch_add(1, Ordering::Relaxed);
        Renewing(self)
    }

    /// It is to be removed, unless it was used again.
    pub(crate) fn take(&self, folder: &str) -> bool {
        locked(&self.queue).since.remove(folder).is_some()
    }
}

struct Renewing<'a>(&'a UnusedFolders);

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.renewing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FolderQueue {
    fn note(&mut self, folder: &str, now: Moment) {
        self.since.insert(folder.to_owned(), now);
        self.order.push_back((now, folder.to_owned()));
        self.forget(now);
    }

    /// Forgets those that were left long ago, or used again, and the first of too many.
    fn forget(&mut self, now: Moment) {
        while let Some((at, folder)) = self.order.front() {
            if self.since.get(folder) == Some(at) {
                if now.since(*at) <= LONG_AGO && self.order.len() <= MOST {
                    return;
                }
                self.since.remove(folder);
            }
            self.order.pop_front();
        }
    }

    /// Those that no client has used for a while, where there are very many; at most so many.
    pub(crate) fn due(&mut self, now: Moment, most: usize) -> Vec<String> {
        self.forget(now);
        let many = self.since.len().saturating_sub(MANY).min(most);
        let unused = self.order.iter().take_while(|(at, _)| now.since(*at) >= UNUSED);
        let left = unused.filter(|(at, folder)| self.since.get(folder) == Some(at));
        left.take(many).map(|(_, folder)| folder.clone()).collect()
    }

    /// All, those that were left last first.
    pub(crate) fn all(&self) -> Vec<String> {
        let left = self.order.iter().rev();
        let left = left.filter(|(at, folder)| self.since.get(folder) == Some(at));
        left.map(|(_, folder)| folder.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn only_many_that_were_made_here_and_left_a_while_ago_are_removed() {
        let unused_folders = UnusedFolders::default();
        let name = |n: usize| format!("/{n}");
        for n in 0..MANY + 3 {
            unused_folders.made(&name(n));
            unused_folders.unused(&name(n), at(100));
        }
        unused_folders.unused("/of another one", at(100));
        let due = |seconds| locked(&unused_folders.queue).due(at(seconds), 100);
        assert!(due(105).is_empty(), "they may be used again");
        assert_eq!(due(110), [name(0), name(1), name(2)]);
        unused_folders.used(&name(1));
        assert_eq!(due(110), [name(0), name(2)]);
        assert!(!unused_folders.take(&name(1)) && unused_folders.take(&name(0)));
        unused_folders.unused(&name(1), at(111));
        assert_eq!(due(112), [name(2), name(3)]);
        let all = locked(&unused_folders.queue).all();
        assert_eq!((all.len(), &all[0]), (MANY + 2, &name(1)));
        assert!(due(161).is_empty() && locked(&unused_folders.queue).all() == [name(1)]);
        assert_eq!(locked(&unused_folders.queue).order.len(), 1);
    }

    #[test]
    fn what_is_used_again_and_again_takes_no_memory() {
        let unused_folders = UnusedFolders::default();
        unused_folders.made("/a");
        for _ in 0..10_000 {
            unused_folders.used("/a");
            unused_folders.unused("/a", at(1));
        }
        assert_eq!(locked(&unused_folders.queue).since.len(), 1);
        assert!(locked(&unused_folders.queue).order.len() <= 10_000);
    }
}

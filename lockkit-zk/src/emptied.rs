//! Folders of locks that this driver made and left empty, and their removal. ZooKeeper removes empty
//! containers itself, 10,000 a minute unless it is told otherwise; a program with more names than that
//! would leave ever more of them. So where very many were left, the driver helps; and at its end it
//! removes those that it left last.
//!
//! Others may use a folder meanwhile. The server deletes no folder that is not empty, and a claim that
//! finds its folder gone makes it again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Recent, locked};
use zookeeper_client::Error as ZkError;

use crate::enter::FolderState;
use crate::locks::Locks;

/// As many are left to the server's own removal.
const MANY: usize = 1_000;
/// And those that were left longer ago.
const LONG_AGO: Duration = Duration::from_secs(60);
/// One that was used within this time is perhaps used again.
const UNUSED: Duration = Duration::from_secs(10);
/// Of so many is remembered that they were left.
const MOST: usize = 1 << 16;
/// Deletions under way at once, and the pause after these: 400 a second at most.
const AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(40);
/// How often it looks whether renewals are under way, which go first.
const TURN: Duration = Duration::from_millis(5);

/// The folders that a driver made.
pub(crate) struct Emptied {
    made: Recent<String, ()>,
    left: Mutex<LeftFolders>,
    removing: Arc<tokio::sync::Mutex<()>>,
    /// Renewals under way.
    renewing: AtomicUsize,
}

/// Those in which this driver has no claim any more.
#[derive(Default)]
struct LeftFolders {
    since: HashMap<String, Moment>,
    /// In that order. What is not so in `since` was used again.
    order: VecDeque<(Moment, String)>,
}

impl Default for Emptied {
    fn default() -> Self {
        let (left, removing) = (Mutex::default(), Arc::default());
        Self { made: Recent::new(MOST / 4), left, removing, renewing: AtomicUsize::new(0) }
    }
}

impl Emptied {
    /// This driver has made this folder.
    pub(crate) fn made(&self, folder: &str) {
        self.made.saw(folder, ());
    }

    /// A claim of this driver is about to come into this folder.
    pub(crate) fn used(&self, folder: &str) {
        locked(&self.left).since.remove(folder);
    }

    /// A claim of this driver has left this folder.
    pub(crate) fn left(&self, folder: &str, now: Moment) {
        if self.made.last(folder).is_some() {
            locked(&self.left).note(folder, now);
        }
    }

    /// A renewal is under way as long as this is kept.
    pub(crate) fn renewing(&self) -> impl Drop + '_ {
        self.renewing.fetch_add(1, Ordering::Relaxed);
        Renewing(self)
    }

    /// It is to be removed, unless it was used again.
    fn take(&self, folder: &str) -> bool {
        locked(&self.left).since.remove(folder).is_some()
    }
}

struct Renewing<'a>(&'a Emptied);

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.renewing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LeftFolders {
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

    /// Those that nobody has used for a while, where there are very many; at most so many.
    fn due(&mut self, now: Moment, most: usize) -> Vec<String> {
        self.forget(now);
        let many = self.since.len().saturating_sub(MANY).min(most);
        let unused = self.order.iter().take_while(|(at, _)| now.since(*at) >= UNUSED);
        let left = unused.filter(|(at, folder)| self.since.get(folder) == Some(at));
        left.take(many).map(|(_, folder)| folder.clone()).collect()
    }

    /// All, those that were left last first.
    fn all(&self) -> Vec<String> {
        let left = self.order.iter().rev();
        let left = left.filter(|(at, folder)| self.since.get(folder) == Some(at));
        left.map(|(_, folder)| folder.clone()).collect()
    }
}

impl Locks {
    /// Notes that a claim has left this folder, which may be removed if nothing else is in it. That of
    /// a list with a limit stays, as do those that neighbours share.
    pub(crate) fn left_folder(&self, folder: &str) {
        let limited = matches!(self.folders.last(folder), Some(FolderState::Limited(_)));
        if !limited && !self.layout.has_neighbours() {
            self.emptied.left(folder, SteadyClock.now());
        }
    }

    /// Removes some of the folders that were left, in the background, where there are very many.
    pub(crate) fn remove_many_folders(self: &Arc<Self>) {
        let Ok(alone) = self.emptied.removing.clone().try_lock_owned() else {
            return;
        };
        let due = locked(&self.emptied.left).due(SteadyClock.now(), MANY);
        if due.is_empty() {
            return;
        }
        let locks = self.clone();
        self.background.spawn(async move {
            let _alone = alone;
            for some in due.chunks(AT_ONCE) {
                while locks.emptied.renewing.load(Ordering::Relaxed) > 0 {
                    tokio::time::sleep(TURN).await;
                }
                locks.remove_folders(some).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    /// Removes all folders that were left lately.
    pub(crate) async fn remove_left_folders(&self) {
        let all = locked(&self.emptied.left).all();
        for some in all.chunks(AT_ONCE) {
            self.remove_folders(some).await;
        }
    }

    async fn remove_folders(&self, folders: &[String]) {
        let Some(session) = self.sessions.latest().filter(|session| session.is_connected()) else {
            return;
        };
        let unused: Vec<_> = folders.iter().filter(|folder| self.emptied.take(folder)).collect();
        let deleted: Vec<_> = unused.iter().map(|path| session.client.delete(path, None)).collect();
        let Ok(deleted) = session.answers(join_all(deleted)).await else {
            return;
        };
        for (folder, deleted) in unused.into_iter().zip(deleted) {
            // Others may be in it, and whoever may make folders need not be allowed to delete them.
            if matches!(deleted, Ok(()) | Err(ZkError::NoNode)) {
                self.folders.forget(folder.as_str());
            }
        }
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
        let emptied = Emptied::default();
        let name = |n: usize| format!("/{n}");
        for n in 0..MANY + 3 {
            emptied.made(&name(n));
            emptied.left(&name(n), at(100));
        }
        emptied.left("/of another one", at(100));
        let due = |seconds| locked(&emptied.left).due(at(seconds), 100);
        assert!(due(105).is_empty(), "they may be used again");
        assert_eq!(due(110), [name(0), name(1), name(2)]);
        emptied.used(&name(1));
        assert_eq!(due(110), [name(0), name(2)]);
        assert!(!emptied.take(&name(1)) && emptied.take(&name(0)));
        emptied.left(&name(1), at(111));
        assert_eq!(due(112), [name(2), name(3)]);
        let all = locked(&emptied.left).all();
        assert_eq!((all.len(), &all[0]), (MANY + 2, &name(1)));
        assert!(due(161).is_empty() && locked(&emptied.left).all() == [name(1)]);
        assert_eq!(locked(&emptied.left).order.len(), 1);
    }

    #[test]
    fn what_is_used_again_and_again_takes_no_memory() {
        let emptied = Emptied::default();
        emptied.made("/a");
        for _ in 0..10_000 {
            emptied.used("/a");
            emptied.left("/a", at(1));
        }
        assert_eq!(locked(&emptied.left).since.len(), 1);
        assert!(locked(&emptied.left).order.len() <= 10_000);
    }
}

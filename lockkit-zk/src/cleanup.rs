//! What the driver cleans up in the background: claims of this process whose own lease is over, since
//! their session lives on; sessions in which no claim lives any more; folders that this driver left
//! empty. One task for all, which ends with the driver.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::clock::{Clock, SteadyClock, sleep_until};
use lockkit_core::driver::{backoff, locked};
use lockkit_core::{Mode, Result};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::Error as ZkError;

use crate::claim_cache::CachedClaim;
use crate::locks::{FolderState, ZkLocks};
use crate::unused_folders::MANY;

/// Deletions under way at once, and the pause after these: 400 a second at most.
const AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(40);
/// At the end of a driver nothing of it has to go first: as many as this are deleted at once, until one of
/// these takes too long, and for no longer than this in all.
const LAST_AT_ONCE: usize = 256;
const LAST: Duration = Duration::from_secs(5);
/// How often it looks whether renewals are under way, which go first.
const TURN: Duration = Duration::from_millis(5);

impl ZkLocks {
    /// Starts the task unless it runs. (It ends when its runtime does.)
    pub(crate) fn start_cleanup(self: &Arc<Self>) {
        let mut task = locked(&self.leases);
        if task.as_ref().is_none_or(|task| task.is_finished()) {
            *task = Some(tokio::spawn(run(Arc::downgrade(self))));
        }
    }

    /// Takes a claim out whose lease is over, however long that takes to reach the server.
    async fn end(&self, cached: &CachedClaim) {
        let mut failures: u32 = 0;
        while !cached.session.has_ended() {
            let ended: Result<()> = match &cached.node {
                Some(node) => {
                    // Whether it was downgraded is not known here.
                    let CachedClaim { session, folder, tag, .. } = cached;
                    let taken = self.remove_node(session, folder, &node.name, tag, Mode::Shared);
                    taken.await.map(drop).map_err(|failed| failed.error)
                }
                None => self.remove_all(&cached.session, &cached.folder, &cached.tag).await,
            };
            match ended {
                Ok(()) => return,
                Err(error) if error.is_retryable() => {}
                // It ends with the session, of which this may have the last use.
                Err(_) if !self.sessions.has(&cached.session) => return,
                // The right to delete it may be given back.
                Err(error) if failures == 0 => tracing::warn!(%error, "a claim that is over stays"),
                Err(_) => {}
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

async fn run(locks: Weak<ZkLocks>) {
    loop {
        let Some(strong) = locks.upgrade() else {
            return;
        };
        // Looks up now and then, to see whether the driver is still there.
        let latest = SteadyClock.now().after(Duration::from_secs(1));
        let (over, next) = strong.claims.take_expired(latest);
        strong.sessions.close_idle();
        strong.remove_many_folders();
        for cached in over {
            let locks = strong.clone();
            strong.background.spawn(async move { locks.end(&cached).await });
        }
        let earlier = strong.claims.earlier.clone();
        drop(strong);
        tokio::select! {
            () = sleep_until(&SteadyClock, next) => {}
            () = earlier.notified() => {}
        }
    }
}

impl ZkLocks {
    /// Notes that a claim has left this folder, which may be removed if nothing else is in it. That of
    /// a list with a limit stays, as do those that neighbours share.
    pub(crate) fn folder_unused(&self, folder: &str) {
        let limited = matches!(self.folders.last(folder), Some(FolderState::Limited(_)));
        if !limited && !self.layout.has_neighbours() {
            self.unused_folders.unused(folder, SteadyClock.now());
        }
    }

    /// Removes some of the folders that were left, in the background, where there are very many.
    pub(crate) fn remove_many_folders(self: &Arc<Self>) {
        let Ok(alone) = self.unused_folders.removing.clone().try_lock_owned() else {
            return;
        };
        let due = locked(&self.unused_folders.queue).due(SteadyClock.now(), MANY);
        if due.is_empty() {
            return;
        }
        let locks = self.clone();
        self.background.spawn(async move {
            let _alone = alone;
            for some in due.chunks(AT_ONCE) {
                while locks.unused_folders.renewing.load(Ordering::Relaxed) > 0 {
                    tokio::time::sleep(TURN).await;
                }
                locks.remove_folders(some).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    /// Removes the folders that were left lately, as long as the server answers within this time.
    pub(crate) async fn remove_unused_folders(&self, patience: Duration) {
        let all = locked(&self.unused_folders.queue).all();
        let until = Instant::now() + LAST;
        for some in all.chunks(LAST_AT_ONCE) {
            let removed =
                timeout_at(until.min(Instant::now() + patience), self.remove_folders(some));
            if removed.await.is_err() {
                return;
            }
        }
    }

    async fn remove_folders(&self, folders: &[String]) {
        let Some(session) = self.sessions.latest().filter(|session| session.is_connected()) else {
            return;
        };
        let unused: Vec<_> =
            folders.iter().filter(|folder| self.unused_folders.take(folder)).collect();
        let deleted: Vec<_> = unused.iter().map(|path| session.client.delete(path, None)).collect();
        let Ok(deleted) = session.answers(join_all(deleted)).await else {
            return;
        };
        for (folder, deleted) in unused.into_iter().zip(deleted) {
            // Others may be in it, and a client that may make folders need not be allowed to delete
            // them.
            if matches!(deleted, Ok(()) | Err(ZkError::NoNode)) {
                self.folders.forget(folder.as_str());
            }
        }
    }
}

//! One session, with the moment up to which a leader with a majority is known to have been there.
//! May not know of locks.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::Result;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{locked, no_answer};
use tokio::task::JoinHandle;
use zookeeper_client::{Client, Error as ZkError, MultiWriteError, SessionState, Stat};

use crate::ZkOptions;
use crate::errors::BACKEND;
use crate::options::agreed_silence;

/// Of a check that asks only whether a node is there.
pub(crate) const ANY_VERSION: i32 = -1;

/// One session of ZooKeeper. Ephemeral nodes live exactly as long as it does.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// How long it can be trusted, from the sending of a request that took a majority.
    pub(crate) ttl: Duration,
    /// When the last request was sent whose answer took a leader and a majority.
    confirmed: AtomicU64,
    /// No request is waited for any longer than this.
    patience: Duration,
    /// A task that ends when the runtime does on which the client works, if it was made here.
    runtime: Option<JoinHandle<()>>,
    /// The paths that the client watches for us.
    watched: Arc<WatchBudget>,
}

impl Session {
    /// `connection`: for how long the client was told that a connection may be silent.
    pub(crate) fn new(
        client: Client,
        options: &ZkOptions,
        connection: Duration,
        sent: Moment,
    ) -> Self {
        let timeout = client.session_timeout();
        let patience = (timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(5));
        let ttl = options.trusted(timeout, agreed_silence(timeout, connection));
        // A new session is a write.
        let confirmed = AtomicU64::new(sent.as_nanos());
        Self { client, ttl, confirmed, patience, runtime: None, watched: Arc::default() }
    }

    /// The same, made here: over when the runtime is that this is called in.
    pub(crate) fn in_this_runtime(mut self) -> Self {
        self.runtime = Some(tokio::spawn(std::future::pending()));
        self
    }

    pub(crate) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// Whether it is connected to a server, as far as this process knows.
    pub(crate) fn is_connected(&self) -> bool {
        !self.has_ended() && self.client.state() == SessionState::SyncConnected
    }

    /// What of a lease of this length can be had in it.
    pub(crate) fn lease(&self, asked: Duration) -> Duration {
        asked.min(self.ttl)
    }

    /// A request that was sent at this moment got an answer that takes a leader and a majority.
    pub(crate) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// When the last request was sent whose answer took a leader and a majority.
    pub(crate) fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// Whether it has ended as far as this process can tell.
    ///
    /// The client says so late, or never while no server answers; so a session that is not
    /// connected and whose time is over counts as ended.
    pub(crate) fn has_ended(&self) -> bool {
        if self.runtime.as_ref().is_some_and(JoinHandle::is_finished) {
            return true; // no client works for the client any more, and its state stays what it was
        }
        let state = self.client.state();
        let over = SteadyClock.now().since(self.confirmed()) > self.timeout();
        state.is_terminated() || (state == SessionState::Disconnected && over)
    }

    /// Room to watch these paths, for as long as it is kept; none when very much is watched.
    pub(crate) fn reserve(&self, paths: &[&str]) -> Option<WatchReservation> {
        WatchReservation::for_paths(&self.watched, paths)
    }

    /// The same for a folder that many watch, where there is no room to watch each node.
    pub(crate) fn room_for_folder(&self, path: &str) -> Option<WatchReservation> {
        WatchReservation::for_folder(&self.watched, path)
    }

    /// Waits for an answer, in bounded time. (The request went out when the future was made.)
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<T, ZkError>>,
    ) -> Result<T, ZkError> {
        tokio::time::timeout(self.patience, answer).await.unwrap_or(Err(ZkError::Timeout))
    }

    /// Waits for the answers to several requests, in bounded time.
    pub(crate) async fn answers<T>(&self, answers: impl Future<Output = T>) -> Result<T> {
        tokio::time::timeout(self.patience, answers).await.map_err(|_| no_answer(BACKEND))
    }

    /// The stats of these nodes, asked for in one round trip; `None` of one that is not there.
    pub(crate) async fn stats(
        &self,
        paths: &[String],
    ) -> Result<Vec<Result<Option<Stat>, ZkError>>> {
        let asked: Vec<_> = paths.iter().map(|path| self.client.check_stat(path)).collect();
        self.answers(join_all(asked)).await
    }

    /// What these nodes contain, asked for in one round trip.
    pub(crate) async fn contents(
        &self,
        paths: &[String],
    ) -> Result<Vec<Result<(Vec<u8>, Stat), ZkError>>> {
        let asked: Vec<_> = paths.iter().map(|path| self.client.get_data(path)).collect();
        self.answers(join_all(asked)).await
    }

    /// Asks the leader and a majority for a sign of life, and has the server catch up with them
    /// before it answers what is sent later. The request goes out now, as those of the client do.
    ///
    /// It is a transaction that only looks. ZooKeeper's own `sync` would not do: a leader answers it
    /// alone, for as long as it believes in its followers, and these may have another leader
    /// meanwhile. But it commits nothing without them.
    pub(crate) fn ask_majority<'a>(
        &'a self,
        path: &str,
    ) -> impl Future<Output = Result<(), ZkError>> + Send + 'a + use<'a> {
        let sent = SteadyClock.now();
        let mut look = self.client.new_multi_writer();
        let added = look.add_check_version(path, ANY_VERSION);
        let answer = look.commit();
        async move {
            added?;
            match answer.await {
                Ok(_) | Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    self.confirm(sent);
                    Ok(())
                }
                Err(error) => Err(error.into()),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(task) = &self.runtime {
            task.abort();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:#x}, {:?})", self.id(), self.client.state())
    }
}

/// As many bytes of paths are watched at once, at most.
///
/// A client that connects again tells the server what it watches. zookeeper-client divides what is
/// longer than 128 KiB, then takes the second answer for a fault and cuts the connection; so with
/// more than that a session would end with the first cut.
const MOST: usize = 120 * 1024;
/// What of that is kept for folders, each of which serves all waiters in it.
const FOR_FOLDERS: usize = 8 * 1024;

/// How often folders are listed that cannot be watched, since very much is watched in their session.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The paths that are watched in a session.
#[derive(Debug, Default)]
pub(crate) struct WatchBudget(Mutex<Paths>);

#[derive(Debug, Default)]
struct Paths {
    /// By how many each is watched. To the server that is one watch.
    watchers: HashMap<String, u32>,
    bytes: usize,
}

/// Room for watches, for as long as it is kept.
#[derive(Debug)]
pub(crate) struct WatchReservation {
    watched: Arc<WatchBudget>,
    paths: Vec<String>,
}

impl WatchReservation {
    /// Room to watch these paths; none when that would be too much.
    pub(crate) fn for_paths(watched: &Arc<WatchBudget>, paths: &[&str]) -> Option<Self> {
        Self::below(watched, paths, MOST - FOR_FOLDERS)
    }

    /// Room to watch the children of a folder.
    pub(crate) fn for_folder(watched: &Arc<WatchBudget>, path: &str) -> Option<Self> {
        Self::below(watched, &[path], MOST)
    }

    fn below(watched: &Arc<WatchBudget>, paths: &[&str], most: usize) -> Option<Self> {
        let mut all = locked(&watched.0);
        for path in paths {
            let watchers = all.watchers.entry((*path).to_owned()).or_default();
            *watchers += 1;
            if *watchers == 1 {
                all.bytes += path.len();
            }
        }
        let fits = all.bytes <= most;
        drop(all);
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let room = Self { watched: watched.clone(), paths };
        fits.then_some(room) // dropped, it gives back what it took
    }
}

impl Drop for WatchReservation {
    fn drop(&mut self) {
        let mut all = locked(&self.watched.0);
        for path in &self.paths {
            if let Some(watchers) = all.watchers.get_mut(path) {
                *watchers -= 1;
                if *watchers == 0 {
                    all.watchers.remove(path);
                    all.bytes -= path.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_there_is_none_and_again_when_some_leave() {
        let watched = Arc::default();
        let path = |n: usize| format!("/{n:01023}");
        let mut rooms: Vec<_> = (0..112)
            .map(|n| WatchReservation::for_paths(&watched, &[&path(n)]).expect("there is room"))
            .collect();
        assert!(WatchReservation::for_paths(&watched, &[&path(120)]).is_none());
        // What is watched already takes no more room.
        drop(WatchReservation::for_paths(&watched, &[&path(7)]).expect("it is watched already"));
        assert!(WatchReservation::for_paths(&watched, &[&path(120)]).is_none());
        rooms.pop();
        assert!(WatchReservation::for_paths(&watched, &[&path(120)]).is_some());
        let folders: Vec<_> =
            (0..7).map(|n| WatchReservation::for_folder(&watched, &path(1_000 + n))).collect();
        assert!(folders.iter().all(Option::is_some), "they have room of their own");
        assert!(WatchReservation::for_folder(&watched, &path(2_000)).is_some());
        drop((rooms, folders));
        let left = locked(&watched.0);
        assert_eq!((left.bytes, left.watchers.len()), (0, 0));
    }
}

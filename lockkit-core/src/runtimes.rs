//! Renewal where one manager is used in several runtimes.
//!
//! In a single runtime the renewer is a task of it, and there is nothing else: what the program blocks
//! is not renewed, so that a program that hangs loses its locks. From the first use in a second runtime
//! on, each has a heartbeat. Where the renewer was not polled for a third of the shortest ttl, the next
//! heartbeat of another runtime takes over from it; and a claim is renewed only while the runtime that
//! asked for it has a heartbeat, so that only the locks of the one that hangs are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;

use crate::clock::Moment;
use crate::record::ClaimRecord;

/// Where the renewer runs, and the runtimes that use the manager.
#[derive(Default)]
pub(crate) struct Runtimes {
    /// The renewer, if one was started.
    pub(crate) task: Option<JoinHandle<()>>,
    /// Its runtime.
    pub(crate) home: Option<Handle>,
    /// Empty as long as there is one runtime.
    hearts: Vec<Arc<Heart>>,
}

/// The heartbeat of a runtime.
struct Heart {
    runtime: Id,
    /// When it was polled last, in nanoseconds.
    beat: AtomicU64,
    /// Whether the runtime has ended: nothing hangs there, and its guards may be in use elsewhere.
    ended: AtomicBool,
}

impl Runtimes {
    pub(crate) fn has_renewer(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }

    pub(crate) fn are_several(&self) -> bool {
        !self.hearts.is_empty()
    }

    /// Whether this runtime has no heartbeat yet; forgets those of runtimes that have ended.
    pub(crate) fn is_new(&mut self, here: &Handle) -> bool {
        self.hearts.retain(|heart| !heart.ended.load(Ordering::SeqCst));
        !self.hearts.iter().any(|heart| heart.runtime == here.id())
    }

    /// Takes a heartbeat of this runtime into account, for as long as the result lives.
    pub(crate) fn add(&mut self, runtime: &Handle, now: Moment) -> Beating {
        let (beat, ended) = (AtomicU64::new(now.as_nanos()), AtomicBool::new(false));
        let heart = Arc::new(Heart { runtime: runtime.id(), beat, ended });
        self.hearts.push(heart.clone());
        Beating(heart)
    }

    /// Whether the runtime of this claim may hang: its last heartbeat is older than a third of the ttl.
    pub(crate) fn hangs(&self, record: &ClaimRecord, now: Moment) -> bool {
        let Some(runtime) = record.runtime() else { return false };
        let heart = self.hearts.iter().find(|heart| heart.runtime == runtime.id());
        heart.is_some_and(|heart| {
            let beat = Moment::from_nanos(heart.beat.load(Ordering::SeqCst));
            !heart.ended.load(Ordering::SeqCst) && now.since(beat) > record.ttl() / 3
        })
    }
}

/// Goes with the task of a heart: dropped when its runtime ends, polled or not.
pub(crate) struct Beating(Arc<Heart>);

impl Beating {
    pub(crate) fn beat(&self, now: Moment) {
        self.0.beat.store(now.as_nanos(), Ordering::SeqCst);
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
    }
}

/// Between two heartbeats, and between two looks of the renewer.
pub(crate) fn interval(shortest_ttl: Duration) -> Duration {
    (shortest_ttl / 12).clamp(Duration::from_millis(1), Duration::from_secs(1))
}

/// After this a renewer that was not polled is taken for blocked.
pub(crate) fn patience(shortest_ttl: Duration) -> Duration {
    shortest_ttl / 3
}

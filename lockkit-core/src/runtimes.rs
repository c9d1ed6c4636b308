//! Renewal where one manager is used in several runtimes.
//!
//! In a single runtime the renewer is a task of it, and there is nothing else: what the program blocks
//! is not renewed, so that a program that hangs loses its locks. From the first use in a second runtime
//! on, each has a heartbeat. Where the renewer was not polled for a third of the shortest ttl, the next
//! heartbeat of another runtime takes over from it; and a claim is renewed only while the runtime that
//! asked for it has a heartbeat, so that only the locks of the one that hangs are lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
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
    heartbeats: Vec<(Id, Weak<Heartbeat>)>,
}

/// The heartbeat of a runtime: when its task was polled last, in nanoseconds. It goes with that task, when the
/// runtime ends: then nothing hangs there, and its guards may be in use elsewhere.
pub(crate) type Heartbeat = AtomicU64;

impl Runtimes {
    pub(crate) fn has_renewer(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }

    pub(crate) fn are_several(&self) -> bool {
        !self.heartbeats.is_empty()
    }

    /// Whether this runtime has no heartbeat yet; forgets those of runtimes that have ended.
    pub(crate) fn is_new(&mut self, here: &Handle) -> bool {
        self.heartbeats.retain(|(_, heartbeat)| heartbeat.strong_count() > 0);
        !self.heartbeats.iter().any(|(runtime, _)| *runtime == here.id())
    }

    /// Takes a heartbeat of this runtime into account, for as long as the result lives.
    pub(crate) fn add(&mut self, runtime: &Handle, now: Moment) -> Arc<Heartbeat> {
        let heartbeat = Arc::new(Heartbeat::new(now.as_nanos()));
        self.heartbeats.push((runtime.id(), Arc::downgrade(&heartbeat)));
        heartbeat
    }

    /// Whether the runtime of this claim may hang: its last heartbeat is older than a third of the ttl.
    pub(crate) fn hangs(&self, record: &ClaimRecord, now: Moment) -> bool {
        let Some(runtime) = record.runtime() else { return false };
        let heartbeat = self.heartbeats.iter().find(|(of, _)| *of == runtime.id());
        heartbeat.and_then(|(_, heartbeat)| heartbeat.upgrade()).is_some_and(|heartbeat| {
            let beat = Moment::from_nanos(heartbeat.load(Ordering::SeqCst));
            now.since(beat) > record.ttl() / 3
        })
    }
}

/// Between two heartbeats, and between two checks of the renewer.
pub(crate) fn interval(shortest_ttl: Duration) -> Duration {
    (shortest_ttl / 12).clamp(Duration::from_millis(1), Duration::from_secs(1))
}

/// After this a renewer that was not polled is taken for blocked.
pub(crate) fn patience(shortest_ttl: Duration) -> Duration {
    shortest_ttl / 3
}

//! Many who want the same lock, and a look at whether they meet inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkit_core::LockManager;
use tokio::task::JoinSet;

/// What a lock protects: a counter that is right only if no two holders meet.
#[derive(Debug, Default)]
pub(super) struct Protected {
    count: AtomicU64,
    inside: AtomicU32,
}

impl Protected {
    /// Reads, lets others run, writes back; panics when another holder is inside.
    pub(super) async fn add_one(&self) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "somebody else was inside");
        let seen = self.count.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.count.store(seen + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// Lets each of the managers lock and count `rounds` times, all at once.
pub(super) async fn count_together(managers: Vec<LockManager>, rounds: u64) {
    let protected = Arc::new(Protected::default());
    let expected = managers.len() as u64 * rounds;
    let mut tasks = JoinSet::new();
    for manager in managers {
        let protected = protected.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = manager.mutex("counter").lock().await.expect("it is locked");
                protected.add_one().await;
                guard.release().await.expect("it was held until now");
            }
        });
    }
    finish(tasks).await;
    assert_eq!(protected.count(), expected, "every round was counted");
}

/// Waits for all tasks, and panics with the first that did.
pub(super) async fn finish(mut tasks: JoinSet<()>) {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(e) = ended {
                std::panic::resume_unwind(e.into_panic());
            }
        }
    };
    let limit = Duration::from_secs(120);
    let ended = tokio::time::timeout(limit, all).await;
    assert!(ended.is_ok(), "somebody did not get through within {limit:?}");
}

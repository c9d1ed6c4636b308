//! A lock and its release, uncontended, with one task and with 64 that have a lock each.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_redis::RedisLockProvider;
use lockkit_bench::{Way, race};
use lockkit_lab::Server;

use crate::bare::Bare;

pub(crate) async fn all(server: &Server) {
    for (tasks, times) in [(1, 2_000), (64, 12_800)] {
        let ways = [
            lockkit(server, tasks).await,
            bare(server, tasks).await,
            rslock(server, tasks),
            distributed_lock(server, tasks).await,
        ];
        for way in &ways {
            way.round(times).await; // connections, scripts, caches
        }
        race(&format!("lock+release, {tasks} at a time"), times, &ways).await;
    }
}

/// For a profiler to look at.
pub(crate) async fn lockkit_alone(server: &Server) {
    lockkit(server, 64).await.round(400_000).await;
}

pub(crate) async fn lockkit(server: &Server, tasks: usize) -> Way {
    let locks = lockkit::connect(&server.url()).await.unwrap();
    let mutexes: Arc<[_]> = (0..tasks).map(|n| locks.mutex(format!("invoice/{n}"))).collect();
    Way::new("lockkit", tasks, move |task| {
        let mutexes = mutexes.clone();
        async move { mutexes[task].lock().await.unwrap().release().await.unwrap() }
    })
}

pub(crate) async fn bare(server: &Server, tasks: usize) -> Way {
    let bare = Bare::new(&server.url()).await;
    let names: Arc<[_]> = (0..tasks)
        .map(|n| (format!("lock:{{{n}}}:invoice/{n}"), format!("tokens:{{{n}}}")))
        .collect();
    Way::new("bare scripts", tasks, move |task| {
        let (bare, names) = (bare.clone(), names.clone());
        async move { bare.pair(&names[task].0, &names[task].1).await }
    })
}

/// Redlock's recipe with one member; no token.
fn rslock(server: &Server, tasks: usize) -> Way {
    let locks = rslock::LockManager::new(vec![server.url()]);
    let names: Arc<[_]> = (0..tasks).map(|n| format!("rslock:invoice/{n}")).collect();
    Way::new("rslock", tasks, move |task| {
        let (locks, names) = (locks.clone(), names.clone());
        async move {
            let lock = locks.lock(names[task].as_bytes(), Duration::from_secs(30)).await.unwrap();
            locks.unlock(&lock).await;
        }
    })
}

/// SET NX PX, compare and delete, renewed in the background; no token.
async fn distributed_lock(server: &Server, tasks: usize) -> Way {
    use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
    let provider = RedisLockProvider::new(server.url()).await.unwrap();
    let locks: Arc<[_]> =
        (0..tasks).map(|n| provider.create_lock(&format!("invoice/{n}"))).collect();
    Way::new("distributed-lock", tasks, move |task| {
        let locks = locks.clone();
        async move {
            let held = locks[task].try_acquire().await.unwrap().unwrap();
            held.release().await.unwrap();
        }
    })
}

//! What a manager promises to its users, seen with a driver whose answers get lost, come late or
//! not at all. On the memory driver under a paused clock, unless a test says otherwise.

mod acquire;
mod batcher;
mod batches;
mod crowds;
mod deadlines;
mod fake_gate;
mod gate;
mod hand_over;
mod late;
mod least_hold;
mod left_out;
mod lock_delay;
#[path = "../log/mod.rs"]
mod log;
mod moody;
mod outages;
mod primitives;
mod probe;
mod reading;
mod reentrant;
mod renewer;
mod repeats;
mod runtimes;
mod shutdown;
mod slots;
mod submissions;
mod tickets;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Key, LockManager, MemoryDriver, Name, Namespace, Settings, Space};
use moody::Moody;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn locks() -> (Moody, LockManager) {
    let driver = Moody::new(MemoryDriver::new());
    let locks = manager_of(&driver);
    (driver, locks)
}

fn manager_of(driver: &Moody) -> LockManager {
    LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap()
}

/// How many claims the store has for this name, whatever the driver's mood.
async fn claims(driver: &Moody, name: &str) -> usize {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    driver.store().inspect(&key).await.unwrap().queue.len()
}

/// Polls a future once; it is not done by then.
async fn begin<F: Future>(mut future: Pin<&mut F>) {
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "it is under way");
        Poll::Ready(())
    })
    .await;
}

/// Lets every task run that can; no time passes.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

//! What many claims of one name cost another name of the same process.

use std::time::{Duration, Instant};

use lockkit_core::{LockManager, Space};
use tokio::task::JoinSet;

use super::{NotApplicable, TrialResult, TrialSetup};

/// How many claims wait for one name; in a long storm there are more.
const WAITERS: usize = 1_000;
const MANY_WAITERS: usize = 5_000;
/// How often the other name is locked and released for one p99.
const SAMPLES: usize = 100;
/// By how much the p99 of the other name may grow.
const FACTOR: u32 = 3;
/// A p99 below this says more about the machine, which may stop for a moment, than about the backend.
const FLOOR: Duration = Duration::from_millis(30);
/// What else the machine does disturbs some rounds; what the crowd costs shows in all of them.
const ROUNDS: usize = 3;
/// How long each of the crowd holds the lock.
const HOLDS: Duration = Duration::from_millis(20);

pub async fn cost_08_many_waiters_at_one_name_delay_no_other(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    if !context.driver().await.capabilities().fifo {
        return NotApplicable::because("the driver keeps no queue in which claims wait");
    }
    let change = |settings: lockkit_core::Settings| {
        settings.ttl(Duration::from_secs(30)).wait_ttl(Duration::from_secs(10))
    };
    let locks = context.manager_with(context.driver().await, change);
    delays_no_other(&locks).await;
    Ok(())
}

/// The p99 of locking and releasing a name stays within its bounds while a crowd waits for another
/// name, of which the claims hold one after the other.
///
/// # Panics
/// When it does not.
pub async fn delays_no_other(locks: &LockManager) {
    let long = std::env::var_os("LOCKKIT_STORM_SECONDS").is_some();
    let claims = if long { MANY_WAITERS } else { WAITERS };
    p99(locks, Duration::MAX).await; // connections, scripts and statements are known
    let mut seen = Vec::new();
    for round in 0..ROUNDS {
        let alone = p99(locks, Duration::MAX).await;
        let bound = alone.max(FLOOR) * FACTOR;
        let name = format!("crowd/{round}");
        let gathering = Instant::now();
        let crowd = WaitingTasks::gathers(locks, &name, claims).await;
        let gathered = gathering.elapsed();
        let beside = p99(locks, bound).await;
        crowd.leaves(locks, &name).await;
        println!(
            "{claims} claims, queued after {gathered:?}: p99 of another name {beside:?}, alone {alone:?}"
        );
        if beside <= bound {
            return;
        }
        seen.push((alone, beside));
    }
    panic!(
        "beside {claims} claims the p99 of another name grew more than {FACTOR} times: {seen:?}"
    );
}

/// The 99th percentile of locking and releasing a name. Ends once it is known to be above the bound.
async fn p99(locks: &LockManager, bound: Duration) -> Duration {
    /// One in a hundred may take longer.
    const ABOVE: usize = SAMPLES / 100;
    let mut longest = vec![Duration::ZERO; ABOVE + 1];
    let mutex = locks.mutex("other");
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        let guard = mutex.lock().await.expect("another name is free");
        guard.release().await.expect("the guard is valid");
        longest.push(begun.elapsed());
        longest.sort_unstable();
        longest.remove(0);
        if longest[0] > bound {
            break;
        }
    }
    longest[0]
}

/// Tasks that wait for one lock.
struct WaitingTasks(JoinSet<()>);

impl WaitingTasks {
    /// Returns when all of them are queued, except for those that have left it already.
    async fn gathers(locks: &LockManager, name: &str, claims: usize) -> Self {
        let first = locks.mutex(name).lock().await.expect("nobody waits for it yet");
        let mut tasks = JoinSet::new();
        for _ in 0..claims {
            let mutex = locks.mutex(name);
            tasks.spawn(async move {
                let guard = mutex.lock().await.expect("its turn comes");
                tokio::time::sleep(HOLDS).await;
                drop(guard.release().await);
            });
        }
        loop {
            let line = locks.inspect(Space::Lock, name).await.expect("it is shown").queue;
            if line.len() > claims {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        first.release().await.expect("the guard is valid");
        Self(tasks)
    }

    /// Returns when nothing is left of them.
    async fn leaves(mut self, locks: &LockManager, name: &str) {
        let first = tokio::time::timeout(Duration::from_secs(30), self.0.join_next()).await;
        assert!(first.is_ok(), "the lock goes on from one to the next");
        self.0.abort_all();
        while self.0.join_next().await.is_some() {}
        while !locks.inspect(Space::Lock, name).await.expect("it is shown").is_free() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

//! A search for violations: random schedules of some clients, one store and its faults, on paused time. With
//! all ten rules it must find none; without one of them it must find something, and prints the history.

use std::time::Duration;

use crate::rules::{Rules, StoreRule};

mod client;
mod directed;
mod judge;
mod schedule;
mod tests;

/// The TTL of all claims.
const TTL: Duration = Duration::from_millis(600);
/// How often a waiting claim is polled for.
const PACE: Duration = Duration::from_millis(40);
/// For how long faults happen.
const DISTURBED: Duration = Duration::from_secs(4);

/// What a search came to.
struct Searched {
    schedules: u64,
    grants: u64,
    /// The seed of the first schedule with a violation, and its history.
    violation: Option<(u64, String)>,
}

/// Runs schedules of these seeds, until one has a violation or the time is over.
fn search(without: Option<StoreRule>, seeds: std::ops::Range<u64>, limit: Duration) -> Searched {
    let begun = std::time::Instant::now();
    let mut searched = Searched { schedules: 0, grants: 0, violation: None };
    for seed in seeds {
        if begun.elapsed() > limit {
            break;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime can be started");
        let judged = runtime.block_on(schedule::run(seed, Rules { without }));
        searched.schedules += 1;
        searched.grants += judged.grants;
        if let Some(violation) = judged.violation() {
            searched.violation = Some((seed, violation));
            break;
        }
    }
    searched
}

//! A worker of which many run and one leads: the leader stores each tick, and one that was deposed
//! without noticing can store no more.
//!
//! `cargo run -p lockkit-examples --bin leader -- 10.0.0.7:4000`, several times.

#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkit::{Error, HeldLock, LockManager, Precondition, RegisterEntry};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "10.0.0.7:4000".to_owned());
    let locks = lockkit::connect("sqlite:locks.db?ttl=5s").await?;
    let worked = tokio::select! {
        worked = lead(&locks, &address) => worked,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    locks.shutdown().await; // resigns: the next one leads at once
    worked
}

/// Leads whenever it is elected, until it fails or is dropped.
async fn lead(locks: &LockManager, address: &str) -> Result<(), Error> {
    let ticks = &locks.register("ticks");
    let lead = |lease: HeldLock| async move {
        let mut clock = tokio::time::interval(Duration::from_secs(1));
        loop {
            clock.tick().await;
            // Goes on where the last leader was; a later leader's store refuses this one's.
            let last = ticks.load().await?;
            let (tick, expect) = (next(&last), Precondition::from(&last));
            println!("{address} leads: tick {tick}, with token {}", lease.token()?);
            ticks.compare_and_store_with(&lease, expect, tick.to_string()).await?;
        }
    };
    // Begun again with each term, and dropped at the next await point when the term is lost.
    locks.election("scheduler").value(address).run(lead).await
}

fn next(last: &Option<RegisterEntry>) -> u64 {
    let text = last.as_ref().map(|entry| String::from_utf8_lossy(&entry.value));
    text.and_then(|text| text.parse::<u64>().ok()).map_or(0, |last| last + 1)
}

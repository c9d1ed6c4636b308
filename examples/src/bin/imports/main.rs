//! A job runner: two imports at a time in the whole fleet, and an orderly end: what runs is finished,
//! what was not begun is left to others, and no permit stays taken.
//!
//! `cargo run -p lockkit-examples --bin imports -- monday.csv tuesday.csv wednesday.csv`

#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkit::{Error, HeldLock, LockManager};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let jobs = std::env::args().skip(1).collect();
    let locks = lockkit::connect("sqlite:locks.db").await?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    for (job, result) in run(&locks, jobs, import, stop).await {
        println!("{job}: {}", result.map_or_else(|error| error.to_string(), |()| "done".into()));
    }
    locks.shutdown().await;
    Ok(())
}

async fn import(_job: String, permit: HeldLock) -> Result<(), Error> {
    tokio::time::sleep(Duration::from_secs(2)).await; // the work
    permit.verify().await.map(drop)
}

/// Runs the jobs in their order, each with a permit, until all are done, or those that were begun
/// before the stop. A job whose permit is lost is stopped, and an error.
async fn run<F: Future<Output = Result<(), Error>> + Send + 'static>(
    locks: &LockManager,
    jobs: Vec<String>,
    work: impl Fn(String, HeldLock) -> F,
    stop: impl Future,
) -> Vec<(String, Result<(), Error>)> {
    let pool = locks.semaphore("imports", 2).max_hold(Duration::from_secs(3600));
    let (mut running, mut stop) = (JoinSet::new(), std::pin::pin!(stop));
    for job in jobs {
        let permit = tokio::select! {
            biased;
            _ = &mut stop => break,
            permit = pool.acquire() => permit,
        };
        let work = permit.map(|permit| (work(job.clone(), permit.lease()), permit));
        running.spawn(async move {
            match work {
                Ok((work, permit)) => (job, permit.run(async |_| work.await).await),
                Err(error) => (job, Err(error)),
            }
        });
    }
    running.join_all().await
}

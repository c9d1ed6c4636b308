//! The forms of a lock, one after the other, on the backend that the URL names.
//!
//! `cargo run -p lockkit --features sqlite --example locks -- sqlite:/tmp/locks.db`

use std::time::Duration;

use lockkit::{Error, LockManager};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = lockkit::connect(&url).await?;
    mutex(&locks).await?;
    readers_and_writers(&locks).await?;
    permits(&locks).await?;
    re_entering(&locks).await?;
    locks.shutdown().await;
    Ok(())
}

async fn mutex(locks: &LockManager) -> Result<(), Error> {
    // The form to prefer: stopped when the lock is lost, released at the end.
    let nightly = locks.mutex("nightly").note("the nightly report");
    let token = nightly.run(async |lock| lock.token()).await?;
    println!("ran alone, with token {token}");

    // A guard to hold; `lost()` tells when it is not held any more.
    let guard = nightly.lock().await?;
    println!("a second try gets: {:?}", nightly.try_lock().await?.map(|_| "the lock"));
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(100)) => println!("the work is done"),
        reason = guard.lost() => println!("stop, {reason}"),
    }
    guard.release().await
}

async fn readers_and_writers(locks: &LockManager) -> Result<(), Error> {
    let config = locks.rwlock("config");
    let writer = config.write().await?;
    let reader = writer.downgrade().await?; // no other writer came in between
    let another = config.try_read_for(Duration::from_secs(1)).await?;
    println!("two readers: {}", another.is_some());
    reader.release().await
}

async fn permits(locks: &LockManager) -> Result<(), Error> {
    let api = locks.semaphore("partner-api", 5);
    let three = api.acquire_many(3).await?;
    println!("permits left: {}", api.available_permits().await?);
    three.release().await
}

async fn re_entering(locks: &LockManager) -> Result<(), Error> {
    let job = locks.reentrant("job-42");
    let outer = job.mutex("a").lock().await?;
    let inner = job.mutex("a").lock().await?; // no round trip
    println!("the same lock twice: {}", outer.token()? == inner.token()?);
    Ok(())
}

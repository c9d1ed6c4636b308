//! A consumer that resumes from a checkpoint: whoever takes over goes on where the last one was, and
//! one that comes back from a long pause can neither set the checkpoint back nor jump ahead.
//!
//! `cargo run -p lockkit --example checkpoint`

use lockkit::driver::BreakMode;
use lockkit::{Error, Guard, LockManager, Precondition, Space};

/// What is consumed; event 0 comes first.
const EVENTS: [&str; 6] = ["open", "credit 50", "debit 20", "credit 5", "debit 1", "close"];

/// Takes events one by one, and notes after each how far it is, until it has done so many.
async fn consume(locks: &LockManager, lock: &Guard, who: &str, many: usize) -> Result<(), Error> {
    let register = locks.register("checkpoint");
    // Where the last consumer was. Everything is stored over the version that was loaded: one that
    // stood still may yet store something between this load and the first store.
    let loaded = register.load().await?;
    let mut expect = Precondition::from(&loaded);
    let text = loaded.map_or(String::new(), |e| String::from_utf8_lossy(&e.value).into_owned());
    let next: usize = text.parse().unwrap_or(0);
    for (i, event) in EVENTS.iter().enumerate().skip(next).take(many) {
        println!("{who}: event {i}, {event}, with token {}", lock.token()?);
        // … the work goes here, with the token, in case it lands outside of the register …
        let checkpoint = (i + 1).to_string();
        let version = register.compare_and_store_with(lock, expect, checkpoint).await?;
        expect = version.into();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = lockkit::connect("memory:").await?;
    let lock = locks.mutex("consumer");

    let first = lock.lock().await?;
    consume(&locks, &first, "first", 2).await?;

    // It stands still, and somebody breaks its lock. (Its lease could have ended as well.)
    let token = first.token()?;
    locks
        .admin()
        .break_lock(Space::Lock, "consumer", token, BreakMode::Forced, Some("it hangs"))
        .await?;

    let second = lock.lock().await?;
    consume(&locks, &second, "second", 3).await?;

    // The first one goes on, whether it has noticed or not.
    match consume(&locks, &first, "first", 3).await {
        Err(error @ (Error::Stale { .. } | Error::Lost { .. })) => println!("first: {error}"),
        other => panic!("it should have been refused: {other:?}"),
    }
    consume(&locks, &second, "second", 3).await?;
    let done = locks.register("checkpoint").load().await?.expect("there is a checkpoint");
    assert_eq!(done.value, EVENTS.len().to_string().as_bytes());
    second.release().await?;
    locks.shutdown().await;
    Ok(())
}

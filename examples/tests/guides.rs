//! The code of docs/coming-from.md and docs/faq.md, compiled and run; `pages.rs` compares the two.

use std::time::Duration;

use lockkit::{Error, LockManager, LossReason, Token, testing};

async fn step() -> Result<(), Error> {
    tokio::task::yield_now().await;
    Ok(())
}

async fn write(token: Token) -> Result<(), Error> {
    assert!(token.get() > 0);
    Ok(())
}

#[rustfmt::skip]
async fn run(locks: &LockManager) -> Result<(), Error> {
    locks.mutex("invoice/42").run(async |lock| {
        step().await?;
        write(lock.token()?).await // the receiver refuses a lower token
    }).await?;
    Ok(())
}

#[rustfmt::skip]
async fn try_run(locks: &LockManager) -> Result<Option<()>, Error> {
    let done = locks.mutex("invoice/42").try_run_for(Duration::from_secs(10), async |lock| {
        step().await?;
        write(lock.token()?).await // the receiver refuses a lower token
    }).await?; // None when it was busy for ten seconds
    Ok(done)
}

#[rustfmt::skip]
async fn bound(locks: &LockManager) -> Result<(), Error> {
    locks.mutex("invoice/42").max_hold(Duration::from_secs(60)).run(async |lock| {
        step().await?;
        write(lock.token()?).await
    }).await
}

#[tokio::test(start_paused = true)]
async fn the_code_of_the_guides_runs() {
    let (locks, control) = testing::locks();
    run(&locks).await.unwrap();
    bound(&locks).await.unwrap();
    assert_eq!(try_run(&locks).await.unwrap(), Some(()));
    let taken = control.others().mutex("invoice/42").lock().await.unwrap();
    assert_eq!(try_run(&locks).await.unwrap(), None);
    taken.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bound_on_the_hold_ends_the_work() {
    let (locks, _hand) = testing::locks();
    let limit = Duration::from_secs(60);
    let endless = async |_lock| std::future::pending::<Result<(), Error>>().await;
    let lost = locks.mutex("a").max_hold(limit).run(endless).await.unwrap_err();
    assert_eq!(lost.loss(), Some(&LossReason::MaxHold));
}

//! What an operator does: see who holds what, watch a lock, break one gracefully.
//!
//! `cargo run -p lockkit --example operator`

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use lockkit::driver::BreakMode;
use lockkit::{Error, Space};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = lockkit::connect("memory:").await?;
    let stuck =
        locks.mutex("invoice/42").note("month end").ttl(Duration::from_secs(2)).lock().await?;
    let waiting = tokio::spawn({
        let invoice = locks.mutex("invoice/42");
        async move { invoice.lock().await }
    });

    let mut states = pin!(locks.watch(Space::Lock, "invoice/42"));
    while let Some(state) = states.next().await.transpose()? {
        for claim in &state.queue {
            let role = if claim.holds() { "holds" } else { "waits" };
            let note = claim.note.as_deref().unwrap_or("-");
            println!("{} {role}, token {}, note: {note}", claim.identity, claim.token);
        }
        if state.waiters().next().is_some() {
            break;
        }
    }

    let admin = locks.admin();
    let mut all = pin!(admin.list("invoice/"));
    while let Some(state) = all.next().await.transpose()? {
        println!("in use: {}", state.name());
    }

    // The holder learns of it, is renewed no longer, and the lock moves on when its lease ends.
    let why = Some("hangs since midnight");
    let token = stuck.token()?;
    admin.break_lock(Space::Lock, "invoice/42", token, BreakMode::Graceful, why).await?;
    println!("the holder learns: {}", stuck.lost().await);
    let next = waiting.await.expect("the task lives")?;
    println!("the next has token {}", next.token()?);
    next.release().await?;
    locks.shutdown().await;
    Ok(())
}

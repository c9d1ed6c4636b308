//! Why tokens: a writer that stood still beyond its lease comes back, and its write is refused at
//! the place where it would have done harm.
//!
//! `cargo run -p lockkit --example fencing`

use std::sync::Mutex;
use std::time::Duration;

use lockkit::{Error, Token};

/// What the lock protects: it remembers the greatest token that it has seen.
#[derive(Default)]
struct Ledger(Mutex<(Option<Token>, Vec<&'static str>)>);

impl Ledger {
    fn write(&self, entry: &'static str, token: Token) -> Result<(), String> {
        let (highest, entries) = &mut *self.0.lock().unwrap();
        if let Some(highest) = highest.filter(|highest| *highest > token) {
            return Err(format!("token {token} is stale, {highest} was here"));
        }
        *highest = Some(token);
        entries.push(entry);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = lockkit::connect("memory:").await?;
    let ledger = Ledger::default();
    let invoice = locks.mutex("invoice/42").ttl(Duration::from_secs(1));

    // A writer takes the lock, looks at its guard, and then stands still (here: is not renewed).
    let stalled = invoice.clone().auto_renew(false).lock().await?;
    let stale = stalled.token()?;
    let reason = stalled.lost().await;
    println!("the first writer lost its lock: {reason}");

    // Meanwhile another one gets the lock, and writes.
    let guard = invoice.lock().await?;
    println!("the second writes: {:?}", ledger.write("paid", guard.token()?));
    guard.release().await?;

    // The first goes on as if nothing had happened. The guard would have told; so does the ledger.
    println!("the first writes:  {:?}", ledger.write("cancelled", stale));
    println!("its guard says:    {}", stalled.token().unwrap_err());
    locks.shutdown().await;
    Ok(())
}

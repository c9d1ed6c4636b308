//! Waiting for a lock. A waiter is woken by what this process writes, through whichever driver; one task
//! a driver polls for what other processes did, and reads nothing while no claim waits. Its cost does not
//! depend on how many wait.

use std::error::Error as StdError;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::waiting::{PolledDriver, Waiters};
use lockkit_core::{Claim, Result};
use tokio::time::Instant;

use super::SqliteInner;
use super::transaction::{Operation, Transaction, tag};
use crate::waiters::{ClaimTag, PolledState, since};

/// The longest pause between two polls. What another process did is known within this, the time of a poll
/// and what the machine adds: 50 ms are promised.
const TICK: Duration = Duration::from_millis(15);

impl PolledDriver for SqliteInner {
    type Name = ClaimTag;

    fn waiting(&self) -> &Waiters<ClaimTag> {
        &self.waiters.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<PolledState>> {
        let sent = self.context.clock.now();
        let renewed = self.amend(claims, false, |claim| Operation::Renew(claim)).await;
        match renewed {
            Ok(renewed) => renewed.into_iter().map(|told| Ok(since(sent, told))).collect(),
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let Some(waiters) = driver.upgrade().map(|inner| inner.waiters.clone()) else {
            return Ok(());
        };
        waiters.claims.listening_started();
        let mut seen = -1;
        loop {
            waiters.claims.once_any().await;
            let Some(inner) = driver.upgrade() else { return Ok(()) };
            let begun = Instant::now();
            match inner.reader.call(false, move |transaction| Ok(transaction.changes(seen)?)).await
            {
                Ok(changes) => {
                    seen = changes.last;
                    changes.fronts.iter().for_each(|name| waiters.claims.ask_now(name));
                    if changes.missed {
                        waiters.claims.ask_about_all();
                    }
                }
                Err(error) => tracing::debug!(%error, "reading changes failed; reading again"),
            }
            drop(inner);
            let pause = waiters.claims.next_poll(TICK);
            // Polls take a tenth of one core at most.
            tokio::time::sleep(pause.max(begun.elapsed() * 9)).await;
        }
    }
}

/// What happened in queues with waiters.
struct Changes {
    /// Those who hold there, and the first who waits.
    fronts: Vec<ClaimTag>,
    last: i64,
    /// Whether some of it was removed before it was read.
    missed: bool,
}

impl Transaction<'_> {
    fn changes(&self, after: i64) -> rusqlite::Result<Changes> {
        let text =
            "SELECT (SELECT min(n) FROM lockkit_changes), (SELECT max(n) FROM lockkit_changes)";
        let ends = self.any(text, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (oldest, newest): (Option<i64>, Option<i64>) = ends.unwrap_or_default();
        let fronts = self.all(include_str!("sql/fronts.sql"), [after], |row| {
            let id = row.get_ref(0)?.as_blob()?.try_into().unwrap_or([0; 16]);
            Ok(tag(&ClaimId::from_bytes(id)))
        })?;
        let last = newest.map_or(after, |newest| newest.max(after));
        Ok(Changes { fronts, last, missed: last > after && oldest > Some(after + 1) })
    }
}

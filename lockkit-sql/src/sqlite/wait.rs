//! Waiting for a lock. A waiter is woken by what this process writes, through whichever driver; one task
//! a driver polls for what other processes did, and reads nothing while nobody waits. Its cost does not
//! depend on how many wait.

use std::error::Error as StdError;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::waiting::{Attendant, Waiters};
use lockkit_core::{Claim, Error};
use tokio::time::Instant;

use super::Shared;
use super::transaction::{Flight, Verb, tag};
use crate::wake::{Fate, Tag, since};

/// The pause between two polls. What another process did is known within this, the time of a poll
/// and what the machine adds: 50 ms are promised.
const TICK: Duration = Duration::from_millis(15);

impl Attendant for Shared {
    type Name = Tag;

    fn waiting(&self) -> &Waiters<Tag> {
        &self.wakes.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<Fate, Error>> {
        let sent = self.site.clock.now();
        let renewed = self.amend(claims, false, |claim| Verb::Renew(claim)).await;
        match renewed {
            Ok(renewed) => renewed.into_iter().map(|told| Ok(since(sent, told))).collect(),
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let Some(wakes) = driver.upgrade().map(|shared| shared.wakes.clone()) else {
            return Ok(());
        };
        wakes.claims.is_listening();
        let mut seen = -1;
        loop {
            wakes.claims.somebody().await;
            let Some(shared) = driver.upgrade() else { return Ok(()) };
            let begun = Instant::now();
            match shared.reader.call(false, move |flight| Ok(flight.news(seen)?)).await {
                Ok(news) => {
                    seen = news.last;
                    news.fronts.iter().for_each(|name| wakes.claims.ring(name));
                    if news.missed {
                        wakes.claims.ring_all();
                    }
                }
                Err(error) => tracing::debug!(%error, "reading news failed; reading again"),
            }
            drop(shared);
            // A poll that takes long takes a tenth of one core at most.
            tokio::time::sleep(TICK.max(begun.elapsed() * 9)).await;
        }
    }
}

/// What happened in lists with waiters.
struct News {
    /// Those who hold there, and the first who waits.
    fronts: Vec<Tag>,
    last: i64,
    /// Whether some of it was removed before it was read.
    missed: bool,
}

impl Flight<'_> {
    fn news(&self, after: i64) -> rusqlite::Result<News> {
        let text = "SELECT (SELECT min(n) FROM lockkit_news), (SELECT max(n) FROM lockkit_news)";
        let ends = self.any(text, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (oldest, newest): (Option<i64>, Option<i64>) = ends.unwrap_or_default();
        let fronts = self.all(include_str!("sql/fronts.sql"), [after], |row| {
            let id = row.get_ref(0)?.as_blob()?.try_into().unwrap_or([0; 16]);
            Ok(tag(&ClaimId::from_bytes(id)))
        })?;
        let last = newest.map_or(after, |newest| newest.max(after));
        Ok(News { fronts, last, missed: last > after && oldest > Some(after + 1) })
    }
}

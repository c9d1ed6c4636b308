//! Reading all pages of a listing, and breaking what was found there.

use std::sync::Arc;

use lockkit_core::driver::{Force, LockDriver};
use lockkit_core::state::{ListRequest, LockState};
use lockkit_core::{BreakRecord, Error, Identity, Key, Namespace, Space, Token};

/// Every list of the namespace whose name begins with `prefix`, read in pages of `limit`.
///
/// # Errors
/// The driver's; also when a page is longer than asked for, or the pages never end.
pub async fn whole(
    driver: &Arc<dyn LockDriver>,
    namespace: &Namespace,
    space: Option<Space>,
    prefix: &str,
    limit: usize,
) -> Result<Vec<LockState>, Error> {
    let mut request = ListRequest {
        namespace: namespace.clone(),
        space,
        prefix: prefix.to_owned(),
        after: None,
        limit,
    };
    let mut all = Vec::new();
    for _ in 0..100_000 {
        let page = driver.list(&request).await?;
        if page.states.len() > limit {
            let message = format!("a page of {} where {limit} is the most", page.states.len());
            return Err(Error::Config(message));
        }
        all.extend(page.states);
        match page.next {
            Some(cursor) => request.after = Some(cursor),
            None => return Ok(all),
        }
    }
    Err(Error::config("a listing without end"))
}

/// Takes the claim with this token out of the list.
///
/// # Errors
/// The driver's.
pub async fn break_by_force(
    driver: &Arc<dyn LockDriver>,
    key: &Key,
    token: Token,
) -> Result<bool, Error> {
    let record = record("cleaned up by the suite", true);
    let force = Force::Immediate;
    driver.break_claim(key, token, force, &record).await
}

/// A record of a break by this process.
pub fn record(reason: &str, forced: bool) -> BreakRecord {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    BreakRecord {
        by: Identity::of_this_process(),
        at_unix_ms: now.map_or(0, |d| d.as_millis() as u64),
        reason: Some(reason.to_owned()),
        forced,
    }
}

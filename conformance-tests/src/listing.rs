//! Reading all pages of a listing, and breaking what was found there.

use std::sync::Arc;

use lockkit_core::driver::{BreakMode, LockDriver, RegisterKey, Write};
use lockkit_core::state::{ListPage, ListRequest, LockState, RegisterRequest, RegisterState};
use lockkit_core::{BreakRecord, ClientIdentity, Error, Key, Namespace, Space, Token};

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

/// Every register of the namespace whose name begins with `prefix`, read in pages of `limit`.
///
/// # Errors
/// The driver's; also when a page is longer than asked for, is empty although there is more, or the
/// pages never end.
pub async fn registers(
    driver: &Arc<dyn LockDriver>,
    namespace: &Namespace,
    prefix: &str,
    limit: usize,
) -> Result<Vec<RegisterState>, Error> {
    let (namespace, prefix) = (namespace.clone(), prefix.to_owned());
    let mut request = RegisterRequest { namespace, prefix, after: None, limit };
    let registers = driver.registers().ok_or_else(|| driver.unsupported("registers"))?;
    let mut all = Vec::new();
    for _ in 0..100_000 {
        let page = registers.page(&request).await?;
        check(&page, limit)?;
        request.after = page.items.last().map(|last| last.name.clone());
        all.extend(page.items);
        if !page.more {
            return Ok(all);
        }
    }
    Err(Error::config("a listing without end"))
}

/// Every namespace in use, read in pages of `limit`.
///
/// # Errors
/// As of [`registers`].
pub async fn namespaces(
    driver: &Arc<dyn LockDriver>,
    limit: usize,
) -> Result<Vec<Namespace>, Error> {
    let mut all: Vec<Namespace> = Vec::new();
    for _ in 0..100_000 {
        let page = driver.namespaces(all.last(), limit).await?;
        check(&page, limit)?;
        all.extend(page.items);
        if !page.more {
            return Ok(all);
        }
    }
    Err(Error::config("a listing without end"))
}

fn check<T>(page: &ListPage<T>, limit: usize) -> Result<(), Error> {
    match page.items.len() {
        0 if page.more => Err(Error::config("an empty page, and more behind it")),
        many if many > limit => {
            Err(Error::Config(format!("a page of {many} where {limit} is the most")))
        }
        _ => Ok(()),
    }
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
    let force = BreakMode::Forced;
    driver.break_claim(key, token, force, &record).await
}

/// Deletes the values of all registers of the namespace.
///
/// # Errors
/// The driver's.
pub async fn delete_registers(
    driver: &Arc<dyn LockDriver>,
    namespace: &Namespace,
) -> Result<(), Error> {
    let Some(registers) = driver.registers() else { return Ok(()) };
    for RegisterState { name, .. } in self::registers(driver, namespace, "", 500).await? {
        let at = RegisterKey { namespace: namespace.clone(), name };
        registers.write(&at, &Write::of(None)).await?;
    }
    Ok(())
}

/// A record of a break by this process.
pub fn record(reason: &str, forced: bool) -> BreakRecord {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    BreakRecord::from_parts(
        ClientIdentity::of_this_process(),
        now.map_or(0, |d| d.as_millis() as u64),
        Some(reason.to_owned()),
        forced,
    )
}

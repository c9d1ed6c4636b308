//! Scans of all keys of the servers, in bounded steps. One serves all pages of a listing for a while.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkit_core::driver::locked;
use lockkit_core::state::ListPage;
use lockkit_core::{Error, Name, Namespace, Space};
use redis::Value;

use crate::decode;
use crate::server::Address;
use crate::transport::Transport;

/// How long what a scan found serves later pages.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Keys that the server looks at in one step of a scan.
const STEP: usize = 1000;
/// The largest page: what is on it is read at once, which must fit into the time limit of a call on a
/// busy machine.
const LARGEST_PAGE: usize = 500;

/// What the last scans found, of each kind.
#[derive(Default)]
pub(crate) struct ScanCache {
    pub(crate) locks: LastScan<(Space, Name)>,
    pub(crate) registers: LastScan<Name>,
    pub(crate) namespaces: LastScan<Namespace>,
}

/// What the last scan of a kind found.
pub(crate) struct LastScan<T>(Mutex<Option<Scan<T>>>);

impl<T> Default for LastScan<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

struct Scan<T> {
    patterns: Vec<String>,
    at: Instant,
    names: Arc<BTreeSet<T>>,
}

impl<T: Ord + Clone> LastScan<T> {
    /// The first of what `read` finds in the keys of these patterns, behind `after`.
    pub(crate) async fn page(
        &self,
        transport: &Transport,
        patterns: Vec<String>,
        read: impl Fn(&str) -> Option<T>,
        after: Option<&T>,
        limit: usize,
    ) -> Result<ListPage<T>, Error> {
        let known = after.and_then(|_| self.known(&patterns));
        let names = match known {
            Some(names) => names,
            None => self.scan(transport, patterns, read).await?,
        };
        let behind = names.iter().filter(|name| after.is_none_or(|a| *name > a));
        let page = ListPage::first(limit.min(LARGEST_PAGE), behind.cloned());
        if !page.more {
            *locked(&self.0) = None;
        }
        Ok(page)
    }

    fn known(&self, patterns: &[String]) -> Option<Arc<BTreeSet<T>>> {
        let scanned = locked(&self.0);
        let scanned = scanned.as_ref()?;
        (scanned.patterns == patterns && scanned.at.elapsed() < MAX_AGE)
            .then(|| scanned.names.clone())
    }

    async fn scan(
        &self,
        transport: &Transport,
        patterns: Vec<String>,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Arc<BTreeSet<T>>, Error> {
        let mut names = BTreeSet::new();
        let nodes = transport.masters().await?;
        for pattern in &patterns {
            for node in &nodes {
                scan_node(transport, node.as_ref(), pattern, |key| names.extend(read(key))).await?;
            }
        }
        let names = Arc::new(names);
        let scanned = Scan { patterns, at: Instant::now(), names: names.clone() };
        *locked(&self.0) = Some(scanned);
        Ok(names)
    }
}

/// Calls `found` with every key of this pattern, with some several times.
async fn scan_node(
    transport: &Transport,
    node: Option<&Address>,
    pattern: &str,
    mut found: impl FnMut(&str),
) -> Result<(), Error> {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let items = decode::array(transport.read(node, &scan).await?)?;
        let [next, Value::Array(keys)] = items.as_slice() else {
            return Err(decode::unexpected(&Value::Array(items)));
        };
        keys.iter().filter_map(decode::text).for_each(&mut found);
        cursor = decode::text(next).unwrap_or("0").to_owned();
        if cursor == "0" {
            return Ok(());
        }
    }
}

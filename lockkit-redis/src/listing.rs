//! Which locks are in use: `SCAN`, since an index would cost every lock a write. One scan serves
//! all pages of a listing for a while.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkit_core::state::{Cursor, ListRequest};
use lockkit_core::{Error, Key, Name, Space};
use redis::Value;

use crate::driver::Shared;
use crate::nodes;
use crate::source::Address;
use crate::{keys, reply};

/// How long the names found by a scan serve later pages.
const SERVES: Duration = Duration::from_secs(60);
/// Keys that the server looks at in one step of a scan.
const STEP: usize = 1000;
/// The largest page: its locks are looked at in one go, which must fit into the time limit of a
/// call on a busy machine.
const LARGEST_PAGE: usize = 500;

type Names = Arc<BTreeSet<(Space, Name)>>;

/// The names that the last scan found.
#[derive(Default)]
pub(crate) struct Listing(Mutex<Option<Scanned>>);

struct Scanned {
    of: (String, Option<Space>, String),
    at: Instant,
    names: Names,
}

impl Listing {
    /// The locks of the page that this request asks for, and where the next begins.
    pub(crate) async fn page(
        &self,
        shared: &Shared,
        request: &ListRequest,
    ) -> Result<(Vec<Key>, Option<Cursor>), Error> {
        let names = match request.after {
            Some(_) => self.known(request),
            None => None,
        };
        let names = match names {
            Some(names) => names,
            None => self.scan(shared, request).await?,
        };
        let after = request.after.as_ref().map(Cursor::place).transpose()?;
        let mut rest =
            names.iter().filter(|name| after.as_ref().is_none_or(|a| *name > a)).peekable();
        let key = |(space, name): &(Space, Name)| {
            Key::new(request.namespace.clone(), *space, name.clone())
        };
        let page: Vec<_> =
            rest.by_ref().take(request.limit.clamp(1, LARGEST_PAGE)).map(key).collect();
        let next = rest.peek().and(page.last()).map(Cursor::behind);
        if next.is_none() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok((page, next))
    }

    fn known(&self, request: &ListRequest) -> Option<Names> {
        let scanned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scanned = scanned.as_ref()?;
        (scanned.of == subject(request) && scanned.at.elapsed() < SERVES)
            .then(|| scanned.names.clone())
    }

    async fn scan(&self, shared: &Shared, request: &ListRequest) -> Result<Names, Error> {
        let mut names = BTreeSet::new();
        let nodes = nodes::masters(shared).await?;
        for space in [Space::Lock, Space::Semaphore] {
            if request.space.is_some_and(|asked| asked != space) {
                continue;
            }
            let pattern = keys::pattern(space, &request.namespace, &request.prefix);
            for node in &nodes {
                for key in scan_node(shared, node.as_ref(), &pattern).await? {
                    let name = keys::name_in(&key, space, &request.namespace);
                    names.extend(
                        name.filter(|name| name.as_str().starts_with(&request.prefix))
                            .map(|name| (space, name)),
                    );
                }
            }
        }
        let names: Names = Arc::new(names);
        let scanned = Scanned { of: subject(request), at: Instant::now(), names: names.clone() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(scanned);
        Ok(names)
    }
}

fn subject(request: &ListRequest) -> (String, Option<Space>, String) {
    (request.namespace.as_str().to_owned(), request.space, request.prefix.clone())
}

async fn scan_node(
    shared: &Shared,
    node: Option<&Address>,
    pattern: &str,
) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let items = reply::array(nodes::ask(shared, node, scan).await?)?;
        let [next, Value::Array(keys)] = items.as_slice() else {
            return Err(reply::unexpected(&Value::Array(items)));
        };
        found.extend(keys.iter().filter_map(reply::text).map(str::to_owned));
        cursor = reply::text(next).unwrap_or("0").to_owned();
        if cursor == "0" {
            return Ok(found);
        }
    }
}

//! What there is: `SCAN`, since an index would cost every lock a write. A scan looks at all keys of the
//! server, in bounded steps; one serves all pages of a listing for a while.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit_core::driver::{RegisterKey, Version};
use lockkit_core::state::{
    Cursor, ListRequest, Listed, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{Error, Key, Name, Namespace, Space};
use redis::Value;

use crate::driver::Shared;
use crate::failure::Foreign;
use crate::source::Address;
use crate::{keys, nodes, reply, script};

/// How long what a scan found serves later pages.
const SERVES: Duration = Duration::from_secs(60);
/// Keys that the server looks at in one step of a scan.
const STEP: usize = 1000;
/// The largest page: what is in it is looked at in one go, which must fit into the time limit of a
/// call on a busy machine.
const LARGEST_PAGE: usize = 500;

/// What the last scans found, of each kind.
#[derive(Default)]
pub(crate) struct Listing {
    locks: Found<(Space, Name)>,
    registers: Found<Name>,
    namespaces: Found<Namespace>,
}

/// What the last scan of a kind found.
struct Found<T>(Mutex<Option<Scanned<T>>>);

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

struct Scanned<T> {
    /// For which patterns.
    of: Vec<String>,
    at: Instant,
    names: Arc<BTreeSet<T>>,
}

impl Shared {
    /// The names of a page are those that a scan found. Their locks may be free by now, so a page may
    /// have less than was asked for.
    pub(crate) async fn page(&self, request: &ListRequest) -> Result<Page, Error> {
        let ListRequest { namespace, prefix, .. } = request;
        let spaces = [Space::Lock, Space::Semaphore].into_iter();
        let spaces: Vec<_> =
            spaces.filter(|space| request.space.is_none_or(|only| only == *space)).collect();
        let pattern = |space: &Space| keys::pattern(keys::word(*space), namespace, prefix);
        let patterns = spaces.iter().map(pattern).collect();
        let read = |key: &str| {
            let name = |space| Some((space, keys::name_in(key, keys::word(space), namespace)?));
            let found = spaces.iter().find_map(|space| name(*space));
            found.filter(|(_, name)| name.as_str().starts_with(prefix))
        };
        let after = request.after.as_ref().map(Cursor::place).transpose()?;
        let names = &self.listing.locks;
        let Listed { items, more } =
            names.page(self, patterns, read, after.as_ref(), request.limit).await?;
        let keys: Vec<_> = items
            .into_iter()
            .map(|(space, name)| Key::new(namespace.clone(), space, name))
            .collect();
        let next = keys.last().filter(|_| more).map(Cursor::behind);
        let states = try_join_all(keys.iter().map(|key| self.state_of(key))).await?;
        Ok(Page { states: states.into_iter().filter(|state| !state.is_free()).collect(), next })
    }

    /// One list of a page: a key that is not lockkit's costs no other its place there.
    async fn state_of(&self, key: &Key) -> Result<LockState, Error> {
        let state = self.look_at(key).await;
        state.or_else(|error| match Foreign::why(&error) {
            Some(why) => Ok(LockState::damaged(key.clone(), why)),
            None => Err(error),
        })
    }

    /// One list.
    pub(crate) async fn look_at(&self, key: &Key) -> Result<LockState, Error> {
        let none: [&str; 0] = [];
        let answer = self.run(&script::INSPECT, &[&keys::lock(key).0], &none).await?;
        let (line, last_break) = reply::line(answer)?;
        Ok(LockState::new(key.clone(), line, last_break))
    }

    pub(crate) async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<Listed<RegisterState>, Error> {
        let RegisterRequest { namespace, prefix, .. } = request;
        let read = |key: &str| {
            let name = keys::name_in(key, keys::REGISTER, namespace);
            name.filter(|name| name.as_str().starts_with(prefix))
        };
        let mut after = request.after.clone();
        loop {
            let patterns = vec![keys::pattern(keys::REGISTER, namespace, prefix)];
            let names = &self.listing.registers;
            let Listed { items, more } =
                names.page(self, patterns, read, after.as_ref(), request.limit).await?;
            let looks = items.iter().map(|name| self.glance(namespace, name));
            let states: Vec<_> = try_join_all(looks).await?.into_iter().flatten().collect();
            if !states.is_empty() || !more {
                return Ok(Listed { items: states, more });
            }
            after = items.into_iter().next_back(); // deleted or over, all of them
        }
    }

    /// A register without its value; `None` when there is none.
    async fn glance(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<RegisterState>, Error> {
        let at = RegisterKey { namespace: namespace.clone(), name: name.clone() };
        let none: [&str; 0] = [];
        let (name, version) = (name.clone(), Version(0));
        let nothing = RegisterState { name, version, token: None, bytes: 0, damaged: None };
        let answer = match self.run(&script::GLANCE, &[&keys::register(&at)], &none).await {
            Ok(Value::Int(0)) => return Ok(None),
            Err(error) => {
                let damaged = Some(Foreign::why(&error).ok_or(error)?);
                return Ok(Some(RegisterState { damaged, ..nothing }));
            }
            Ok(answer) => answer,
        };
        let items = reply::array(answer)?;
        let number = |at: usize| u64::try_from(reply::number(items.get(at)?)?).ok();
        let state = || {
            let bytes = usize::try_from(number(0)?).ok()?;
            let (version, token) = (Version(number(1)?), reply::token(items.get(2)?));
            Some(RegisterState { version, token, bytes, ..nothing })
        };
        state().map(Some).ok_or_else(|| reply::unexpected(&Value::Array(items.clone())))
    }

    pub(crate) async fn page_of_namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        let patterns = vec![keys::ANYTHING.to_owned()];
        self.listing.namespaces.page(self, patterns, keys::namespace_in, after, limit).await
    }
}

impl<T: Ord + Clone> Found<T> {
    /// The first of what `read` finds in the keys of these patterns, behind `after`.
    async fn page(
        &self,
        shared: &Shared,
        patterns: Vec<String>,
        read: impl Fn(&str) -> Option<T>,
        after: Option<&T>,
        limit: usize,
    ) -> Result<Listed<T>, Error> {
        let known = after.and_then(|_| self.known(&patterns));
        let names = match known {
            Some(names) => names,
            None => self.scan(shared, patterns, read).await?,
        };
        let behind = names.iter().filter(|name| after.is_none_or(|a| *name > a));
        let page = Listed::first(limit.min(LARGEST_PAGE), behind.cloned());
        if !page.more {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(page)
    }

    fn known(&self, patterns: &[String]) -> Option<Arc<BTreeSet<T>>> {
        let scanned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scanned = scanned.as_ref()?;
        (scanned.of == patterns && scanned.at.elapsed() < SERVES).then(|| scanned.names.clone())
    }

    async fn scan(
        &self,
        shared: &Shared,
        patterns: Vec<String>,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Arc<BTreeSet<T>>, Error> {
        let mut names = BTreeSet::new();
        let nodes = nodes::masters(shared).await?;
        for pattern in &patterns {
            for node in &nodes {
                scan_node(shared, node.as_ref(), pattern, |key| names.extend(read(key))).await?;
            }
        }
        let names = Arc::new(names);
        let scanned = Scanned { of: patterns, at: Instant::now(), names: names.clone() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(scanned);
        Ok(names)
    }
}

/// Calls `found` with every key of this pattern, with some several times.
async fn scan_node(
    shared: &Shared,
    node: Option<&Address>,
    pattern: &str,
    mut found: impl FnMut(&str),
) -> Result<(), Error> {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let items = reply::array(nodes::ask(shared, node, scan).await?)?;
        let [next, Value::Array(keys)] = items.as_slice() else {
            return Err(reply::unexpected(&Value::Array(items)));
        };
        keys.iter().filter_map(reply::text).for_each(&mut found);
        cursor = reply::text(next).unwrap_or("0").to_owned();
        if cursor == "0" {
            return Ok(());
        }
    }
}

//! Listing the locks of a quorum. Members list in orders of their own, so only the whole can be put
//! together: it is read once, and its pages are shown from that for a few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;

use super::QuorumInner;
use crate::together::all_namespaces;
use lockkit_core::clock::Moment;
use lockkit_core::driver::locked;
use lockkit_core::state::{Cursor, ListPage, ListRequest, LockState, Page};
use lockkit_core::{Error, Name, Namespace, Space};

/// How many lists are asked of a member at once.
const PAGE: usize = 1_000;
/// How old the whole may be that a page is taken from.
const FRESH: Duration = Duration::from_secs(3);

/// How long a member may take for a page of locks, or for all namespaces.
const LIMIT: Duration = Duration::from_secs(5);

type ListId = (Space, Name);

/// The whole that was read last.
#[derive(Default)]
pub(super) struct Listing(Mutex<Option<Arc<Whole>>>);

struct Whole {
    read: Moment,
    of: (Namespace, Option<Space>, String),
    states: BTreeMap<ListId, LockState>,
}

impl QuorumInner {
    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let after = request.after.as_ref().map(Cursor::decode).transpose()?;
        let known = after.is_some().then(|| self.listing.known(self.clock.now(), request));
        let whole = match known.flatten() {
            Some(whole) => whole,
            None => self.read_whole(request).await?,
        };
        let limit = request.limit.max(1);
        let from = match after {
            Some(at) => std::ops::Bound::Excluded(at),
            None => std::ops::Bound::Unbounded,
        };
        let mut states = whole.states.range((from, std::ops::Bound::Unbounded)).map(|(_, s)| s);
        let page: Vec<_> = states.by_ref().take(limit).cloned().collect();
        let next = states.next().and(page.last()).map(|last| Cursor::behind(&last.key));
        Ok(Page { states: page, next })
    }

    /// Those that any member of a majority has. A lock in use is kept by a majority, so one of them
    /// has its namespace.
    pub(super) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        let reading = (0..self.members.len()).map(|member| {
            self.ask(member, LIMIT, |driver| async move { all_namespaces(&driver).await })
        });
        let answers = self.enough(join_all(reading).await)?;
        let all: BTreeSet<_> = answers.into_iter().flat_map(|(_, some)| some).collect();
        Ok(ListPage::first(limit, all.into_iter().filter(|name| after.is_none_or(|a| name > a))))
    }

    async fn read_whole(&self, request: &ListRequest) -> Result<Arc<Whole>, Error> {
        let read = self.clock.now();
        let reading = (0..self.members.len()).map(|member| self.list_at(member, request));
        let lists = join_all(reading).await;
        let mut by_name: BTreeMap<ListId, Vec<(usize, LockState)>> = BTreeMap::new();
        for (member, states) in self.enough(lists)? {
            for state in states {
                let at = (state.key.space, state.key.name.clone());
                by_name.entry(at).or_default().push((member, state));
            }
        }
        let states = by_name.into_iter().map(|(at, states)| {
            let key = states[0].1.key.clone();
            (at, self.merge(key, states))
        });
        let states = states.filter(|(_, state)| !state.is_free()).collect();
        let whole = Arc::new(Whole { read, of: of(request), states });
        self.listing.keep(&whole);
        Ok(whole)
    }

    async fn list_at(&self, member: usize, request: &ListRequest) -> Result<Vec<LockState>, Error> {
        let mut request = ListRequest { after: None, limit: PAGE, ..request.clone() };
        let mut states = Vec::new();
        loop {
            let asked = request.clone();
            let listing =
                self.ask(member, LIMIT, |driver| async move { driver.list(&asked).await });
            let page = listing.await?;
            states.extend(page.states);
            request.after = page.next;
            if request.after.is_none() {
                return Ok(states);
            }
        }
    }
}

impl Listing {
    /// What was read for an earlier page of this listing, if it is not old.
    fn known(&self, now: Moment, request: &ListRequest) -> Option<Arc<Whole>> {
        let mut last = locked(&self.0);
        *last = last.take().filter(|whole| now.since(whole.read) < FRESH);
        last.clone().filter(|whole| whole.of == of(request))
    }

    fn keep(&self, whole: &Arc<Whole>) {
        *locked(&self.0) = Some(whole.clone());
    }
}

fn of(request: &ListRequest) -> (Namespace, Option<Space>, String) {
    (request.namespace.clone(), request.space, request.prefix.clone())
}

//! What can be seen of the lists of a memory driver. Changes nothing.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::store::{LAST_BREAK_STAYS, Lines, List};
use crate::clock::Moment;
use crate::state::{Cursor, ListRequest, LockState, Page};
use crate::{Claim, Error, Key, Name, Namespace, Space};

impl Lines {
    /// A list as it is, and when the next of its leases ends. Changes nothing.
    pub(super) fn view(&self, key: &Key, now: Moment) -> (LockState, Option<Moment>) {
        let (claims, next_end, last) = match self.by_key.get(key) {
            Some(list) => {
                let note = |claim: &Claim| claim.note.as_deref().map(str::to_owned);
                let who = |claim: &Arc<Claim>| ((*claim.identity).clone(), note(claim));
                let claims = list.line.standings(now, who);
                let live = list.line.entries().filter(|entry| entry.is_live(now));
                (claims, live.map(|entry| entry.expires).min(), list.last_break.as_ref())
            }
            None => (Vec::new(), None, self.last_breaks.get(key)),
        };
        let last = last
            .filter(|(_, at)| next_end.is_some() || now < at.after(LAST_BREAK_STAYS))
            .map(|(record, _)| (**record).clone());
        (LockState::new(key.clone(), claims, last), next_end)
    }

    /// A page in the order of space and name.
    pub(super) fn list(&self, request: &ListRequest, now: Moment) -> Result<Page, Error> {
        let limit = request.limit.max(1);
        let after = request.after.as_ref().map(Cursor::place).transpose()?;
        let mut states: Vec<LockState> = Vec::new();
        for space in [Space::Lock, Space::Semaphore] {
            if request.space.is_some_and(|only| only != space)
                || after.as_ref().is_some_and(|(s, _)| *s > space)
            {
                continue;
            }
            let key = |name| Key::new(request.namespace.clone(), space, name);
            let from = match &after {
                Some((s, name)) if *s == space => Bound::Excluded(key(name.clone())),
                _ => match least_name(&request.prefix) {
                    Some(name) => Bound::Included(key(name)),
                    None => continue,
                },
            };
            let matching = self.by_key.range((from, Bound::Unbounded)).take_while(|(key, _)| {
                key.namespace == request.namespace
                    && key.space == space
                    && key.name.as_str().starts_with(&request.prefix)
            });
            for (key, _) in matching.filter(|(_, list)| list.line.entries().any(|e| e.is_live(now)))
            {
                if states.len() == limit {
                    let next = states.last().map(|last| Cursor::behind(&last.key));
                    return Ok(Page { states, next });
                }
                states.push(self.view(key, now).0);
            }
        }
        Ok(Page { states, next: None })
    }

    /// The namespaces in which a list is in use.
    pub(super) fn namespaces(&self, now: Moment) -> BTreeSet<Namespace> {
        let live = |list: &List| list.line.entries().any(|e| e.is_live(now));
        let in_use = self.by_key.iter().filter(|(_, list)| live(list));
        in_use.map(|(key, _)| key.namespace.clone()).collect()
    }
}

/// The least name that can begin with this; `None` when no name can.
pub(super) fn least_name(prefix: &str) -> Option<Name> {
    // No name has control characters, so none is less than a space.
    let least = if prefix.is_empty() { " " } else { prefix };
    Name::new(least).ok()
}

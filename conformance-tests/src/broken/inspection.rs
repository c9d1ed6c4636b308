//! What the toy shows of its lists, and where it can be wrong.

use lockkit_core::clock::Moment;
use lockkit_core::state::{Cursor, ListPage, ListRequest, LockState, Page};
use lockkit_core::{Key, Namespace};

use super::InjectedBug;
use super::toy::{Toy, ToyQueue};

impl Toy {
    pub(super) fn inspected(&self, key: &Key) -> LockState {
        self.on_line(key, |line, now| {
            if self.is(InjectedBug::InspectingRenews) {
                let holders = line.entries.iter_mut().filter(|e| e.held_since.is_some());
                holders.for_each(|e| e.expires = now.after(e.claim.hold_ttl));
            }
            lock_state(key, line, now)
        })
    }

    pub(super) fn differs(&self, now: &LockState, seen: &LockState) -> bool {
        match self.is(InjectedBug::MissesWhoTookOver) {
            true => now.queue.len() != seen.queue.len(),
            false => !now.same_queue(seen),
        }
    }

    pub(super) fn page_of(&self, request: &ListRequest) -> Page {
        let mut keys: Vec<Key> = self.lock_lines().keys().cloned().collect();
        keys.retain(|key| {
            let wanted = request.space.is_none_or(|space| space == key.space);
            wanted && key.namespace == request.namespace && self.begins(key, &request.prefix)
        });
        keys.sort();
        let mut states: Vec<LockState> = keys
            .iter()
            .map(|key| self.on_line(key, |line, now| lock_state(key, line, now)))
            .filter(|state| !state.is_free())
            .filter(|state| request.after.as_ref().is_none_or(|c| cursor(&state.key).0 > c.0))
            .collect();
        let more = states.len() > request.limit && !self.is(InjectedBug::ListsOnlyTheFirstPage);
        states.truncate(request.limit);
        let next = states.last().filter(|_| more).map(|s| cursor(&s.key));
        Page { states, next }
    }

    pub(super) fn page_of_namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> ListPage<Namespace> {
        let mut all: Vec<_> = self
            .lock_lines()
            .iter()
            .filter(|(_, line)| !line.entries.is_empty())
            .map(|(key, _)| key.namespace.clone())
            .collect();
        if !self.is(InjectedBug::ListsNamespacesOfLocksOnly) {
            let registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
            all.extend(registers.keys().map(|at| at.namespace.clone()));
        }
        all.sort();
        if !self.is(InjectedBug::ListsANamespaceForEachLock) {
            all.dedup();
        }
        ListPage::first(limit, all.into_iter().filter(|name| after.is_none_or(|a| name > a)))
    }

    fn begins(&self, key: &Key, prefix: &str) -> bool {
        let name = key.name.as_str();
        match prefix.split_once('%') {
            Some((head, tail)) if self.is(InjectedBug::ListsByPattern) => {
                name.strip_prefix(head).is_some_and(|rest| rest.contains(tail))
            }
            _ => name.starts_with(prefix),
        }
    }
}

fn lock_state(key: &Key, line: &ToyQueue, now: Moment) -> LockState {
    let standings = line.entries.iter().map(|e| e.claim_state(now)).collect();
    LockState::new(key.clone(), standings, line.last_break.clone())
}

fn cursor(key: &Key) -> Cursor {
    let mut bytes = vec![u8::from(key.space == lockkit_core::Space::Semaphore)];
    bytes.extend_from_slice(key.name.as_str().as_bytes());
    Cursor(bytes)
}

//! A small driver in memory, sound unless it is given one bug: its lists and the rule by which
//! they move on. Not for use, and not the reference: the memory driver of core and
//! [`model`](crate::model) are written apart from it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{ClaimId, RegisterKey, WriteId};
use lockkit_core::queue::admits;
use lockkit_core::state::ClaimState;
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Mode, Name, Namespace, Space, Token, capabilities,
};
use tokio::sync::Notify;

use super::InjectedBug;

/// The toy. Clones share their lists, as connections to one server do.
#[derive(Clone, Debug)]
pub struct Toy {
    pub(super) bug: Option<InjectedBug>,
    capabilities: Capabilities,
    pub(super) store: Arc<Store>,
    /// The lock that this session took last.
    pub(super) latest: Arc<Mutex<Option<Claim>>>,
    /// Calls so far.
    calls: Arc<AtomicU32>,
}

/// One register.
#[derive(Debug, Default)]
pub(super) struct Register {
    pub(super) value: Option<Vec<u8>>,
    pub(super) version: u64,
    pub(super) token: Option<Token>,
    pub(super) last_write: Option<WriteId>,
    pub(super) expires: Option<Moment>,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) lines: Mutex<HashMap<Key, ToyQueue>>,
    pub(super) registers: Mutex<HashMap<RegisterKey, Register>>,
    pub(super) changed: Notify,
}

/// The list of one lock.
#[derive(Debug, Default)]
pub(super) struct ToyQueue {
    pub(super) entries: Vec<ToyEntry>,
    pub(super) last_token: u64,
    /// The limit that the semaphore was given.
    pub(super) given: Option<u32>,
    pub(super) last_break: Option<BreakRecord>,
    pub(super) broken: HashMap<ClaimId, BreakRecord>,
    pub(super) ended: Vec<ToyEntry>,
    pub(super) first_note: Option<Option<Arc<str>>>,
    /// Renewals of broken claims.
    pub(super) broken_renewals: u32,
}

/// One claim in a list.
#[derive(Clone, Debug)]
pub(super) struct ToyEntry {
    pub(super) claim: Claim,
    pub(super) token: Token,
    pub(super) queued_at: Moment,
    pub(super) held_since: Option<Moment>,
    pub(super) expires: Moment,
    pub(super) graceful_break: bool,
}

impl Toy {
    /// One that keeps every promise.
    pub fn sound() -> Self {
        Self::made(None)
    }

    /// One that is wrong in this way.
    pub fn with(bug: InjectedBug) -> Self {
        Self::made(Some(bug))
    }

    fn made(bug: Option<InjectedBug>) -> Self {
        let mut capabilities = Capabilities::of("toy");
        capabilities.min_ttl = Duration::from_millis(10);
        capabilities.expiry_slack = Duration::ZERO;
        capabilities.wake_up = capabilities::WakeUp::Push;
        capabilities.resize = bug != Some(InjectedBug::DeniesThatItResizes);
        capabilities.raise = true;
        capabilities.detached = true;
        capabilities.shared_between_processes = false;
        capabilities.registers = bug != Some(InjectedBug::DeniesWhatItDoes);
        capabilities.namespaces = bug != Some(InjectedBug::DeniesThatItListsNamespaces);
        Self {
            bug,
            capabilities,
            store: Arc::default(),
            latest: Arc::default(),
            calls: Arc::default(),
        }
    }

    /// Another session with the same lists.
    pub(super) fn session(&self) -> Self {
        Self { latest: Arc::default(), ..self.clone() }
    }

    pub(super) fn is(&self, bug: InjectedBug) -> bool {
        self.bug == Some(bug)
    }

    /// Fails if it is time to.
    pub(super) fn called(&self) -> Result<(), Error> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.is(InjectedBug::FailsNowAndThen) && calls % 5 == 4 {
            true => Err(Error::retryable("toy", "not now")),
            false => Ok(()),
        }
    }

    pub(super) fn facts(&self) -> &Capabilities {
        &self.capabilities
    }

    /// How many claims, live or not, the lists of a namespace hold.
    pub fn entries(&self, namespace: &Namespace) -> u64 {
        let lines = self.lock_lines();
        let own = lines.iter().filter(|(key, _)| key.namespace == *namespace);
        own.map(|(_, line)| (line.entries.len() + line.ended.len()) as u64).sum()
    }

    pub(super) fn lock_lines(&self) -> MutexGuard<'_, HashMap<Key, ToyQueue>> {
        self.store.lines.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The key under which a list is kept.
    pub(super) fn key(&self, key: &Key) -> Key {
        let name = key.name.as_str();
        let changed = match self.bug {
            Some(InjectedBug::FoldsCase) => name.to_lowercase(),
            Some(InjectedBug::TrimsSpaces) => name.trim_end().to_owned(),
            Some(InjectedBug::CutsLongNames) => name.chars().take(255).collect(),
            _ => return self.key_of_space(key.clone()),
        };
        let changed = Name::new(changed).unwrap_or_else(|_| key.name.clone());
        Key::new(key.namespace.clone(), key.space, changed)
    }

    fn key_of_space(&self, mut key: Key) -> Key {
        if self.is(InjectedBug::SpacesMeet) {
            key.space = Space::Lock;
        }
        key
    }

    /// Does something to a list after it was brought up to now, lets those begin to hold who now
    /// do, and wakes all who wait.
    pub(super) fn on_line<T>(&self, key: &Key, act: impl FnOnce(&mut ToyQueue, Moment) -> T) -> T {
        let now = TokioClock.now();
        let mut lines = self.lock_lines();
        let line = lines.entry(self.key(key)).or_default();
        self.prune(line, now);
        let result = act(line, now);
        self.promote(line, now);
        if self.is(InjectedBug::TokenRepeatsAfterCleanUp) && line.entries.is_empty() {
            line.last_token = 0;
        }
        drop(lines);
        self.store.changed.notify_waiters();
        result
    }

    fn prune(&self, line: &mut ToyQueue, now: Moment) {
        if !self.is(InjectedBug::ForgetsExpiry) {
            let late = if self.is(InjectedBug::ExpiresLate) { 10 } else { 0 };
            let live = |e: &ToyEntry| e.expires.after(Duration::from_secs(late)) > now;
            let (live, ended) = line.entries.drain(..).partition(live);
            line.entries = live;
            let kept = [
                InjectedBug::RevivesExpired,
                InjectedBug::KeepsEndedClaims,
                InjectedBug::RevivesWithOthersInLine,
            ];
            if kept.into_iter().any(|bug| self.is(bug)) {
                line.ended.extend::<Vec<_>>(ended);
            }
        }
        self.promote(line, now);
    }

    pub(super) fn promote(&self, line: &mut ToyQueue, now: Moment) {
        let holding = line.entries.iter().any(|e| e.held_since.is_some());
        if self.is(InjectedBug::WakesTheLastFirst) && !holding {
            line.entries.reverse();
        }
        let had_waiters = line.entries.iter().any(|e| e.held_since.is_none());
        let mut ahead = 0;
        let mut promoted = 0;
        for entry in &mut line.entries {
            let fits = self.fits(ahead, entry.claim.mode);
            ahead += u64::from(entry.claim.mode.weight());
            if entry.held_since.is_some() {
                continue;
            }
            let one_only = self.is(InjectedBug::WakesOneReaderOnly) && had_waiters && promoted > 0;
            if !fits || one_only {
                break;
            }
            entry.held_since = Some(now);
            let ttl = match self.is(InjectedBug::PromotesForTheWaitingTtl) {
                true => entry.claim.hold_ttl.min(entry.claim.wait_ttl),
                false => entry.claim.hold_ttl,
            };
            if !entry.graceful_break || self.is(InjectedBug::PromotesTheBroken) {
                entry.expires = now.after(self.lasts(ttl));
            }
            promoted += 1;
        }
    }

    pub(super) fn fits(&self, ahead: u64, mode: Mode) -> bool {
        match mode {
            Mode::Permits { permits, limit } if self.is(InjectedBug::SemaphoreCountsOneMore) => {
                ahead + u64::from(permits) <= u64::from(limit) + 1
            }
            Mode::Exclusive if self.is(InjectedBug::GrantsTwo) => ahead <= u64::from(mode.weight()),
            _ => admits(ahead, mode),
        }
    }

    /// How long a lease of this ttl really lasts here.
    pub(super) fn lasts(&self, ttl: Duration) -> Duration {
        match self.bug {
            Some(InjectedBug::ExpiresEarly) => ttl.mul_f64(0.75), // before any guard ends
            _ => ttl,
        }
    }

    pub(super) fn number(&self, line: &mut ToyQueue) -> Token {
        if !self.is(InjectedBug::TokenNeverGrows) {
            line.last_token += 1;
        }
        Token::new(line.last_token.max(1)).expect("a toy counts not that far")
    }
}

impl ToyQueue {
    pub(super) fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries.iter().position(|e| e.claim.id == id)
    }
}

impl ToyEntry {
    pub(super) fn claim_state(&self, now: Moment) -> ClaimState {
        let claim = &self.claim;
        let mut claim_state = ClaimState::new(self.token, claim.mode, (*claim.identity).clone());
        claim_state.note = claim.note.as_deref().map(str::to_owned);
        claim_state.ttl = claim.hold_ttl;
        claim_state.expires_in = self.expires.since(now);
        claim_state.queued_for = now.since(self.queued_at);
        claim_state.held_for = self.held_since.map(|since| now.since(since));
        claim_state.broken = self.graceful_break;
        claim_state
    }
}

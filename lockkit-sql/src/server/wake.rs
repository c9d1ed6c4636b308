//! How waiting claims learn that they hold: a bell for each claim that waits in this process, rung by
//! a message, by a release in this process, or by its own timer. No I/O.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::Grant;
use lockkit_core::{Claim, Token};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::rows::micros;

/// What stands for a claim where others can see it: from the id, and no way back.
pub(crate) type Tag = [u8; 8];

/// The tag of a claim, as the database makes it from the id.
pub(crate) fn tag(id: &ClaimId) -> Tag {
    let hash = Sha256::digest(id.as_bytes());
    std::array::from_fn(|i| hash[i])
}

/// Who waits through one driver.
#[derive(Debug)]
pub(crate) struct Wakes {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: Tag,
    waiters: Mutex<HashMap<Tag, Arc<Waiter>>>,
    /// Rung when somebody is to look, or began to wait.
    pub(crate) changed: Notify,
    /// Rung when a register was written.
    pub(crate) registers: Notify,
    /// Whether messages are known to arrive.
    pub(crate) listening: AtomicBool,
}

/// All drivers of this process: a release through one rings at the others.
fn drivers() -> MutexGuard<'static, Vec<Weak<Wakes>>> {
    static DRIVERS: OnceLock<Mutex<Vec<Weak<Wakes>>>> = OnceLock::new();
    lock(DRIVERS.get_or_init(Mutex::default))
}

impl Wakes {
    pub(crate) fn new() -> Arc<Self> {
        let wakes = Arc::new(Self {
            client: tag(&ClaimId::random()),
            waiters: Mutex::default(),
            changed: Notify::new(),
            registers: Notify::new(),
            listening: AtomicBool::new(false),
        });
        let mut drivers = drivers();
        drivers.retain(|driver| driver.strong_count() > 0);
        drivers.push(Arc::downgrade(&wakes));
        wakes
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    /// The client's id, as its channel has it.
    pub(crate) fn channel(&self) -> String {
        let hex: String = self.client.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("lockkit_{hex}")
    }

    /// The bell of a claim that is about to be put in line, from before it is: the message may be
    /// faster than the answer.
    pub(crate) fn enlist(&self, claim: &Arc<Claim>) -> Arc<Waiter> {
        let fresh = || {
            Arc::new(Waiter { claim: claim.clone(), note: Mutex::default(), bell: Notify::new() })
        };
        lock(&self.waiters).entry(tag(&claim.id)).or_insert_with(fresh).clone()
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<Arc<Waiter>> {
        lock(&self.waiters).get(&tag(id)).cloned()
    }

    /// The claim waits no more.
    pub(crate) fn strike(&self, id: &ClaimId) {
        lock(&self.waiters).remove(&tag(id));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Waiter>> {
        lock(&self.waiters).values().cloned().collect()
    }

    /// Has the waiter look after this long.
    pub(crate) fn look_in(&self, waiter: &Waiter, after: Duration) {
        waiter.look_in(after);
        self.changed.notify_one();
    }

    /// Those who are to look now, and when the next one is to.
    pub(crate) fn due(&self, now: Moment) -> (Vec<Arc<Waiter>>, Option<Moment>) {
        let mut next: Option<Moment> = None;
        let mut due = Vec::new();
        for waiter in lock(&self.waiters).values() {
            let note = waiter.note();
            match note.look.filter(|_| note.in_line) {
                Some(at) if at <= now => due.push(waiter.clone()),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        (due, next)
    }

    /// A message to this client: `g TAG TOKEN`, the claim holds; `l TAG`, it is to look; `r`, a
    /// register was written.
    pub(crate) fn heard(&self, message: &str) {
        let mut words = message.split(' ');
        let verb = words.next();
        if verb == Some("r") {
            return self.registers.notify_waiters();
        }
        let Some(waiter) =
            words.next().and_then(read_tag).and_then(|tag| lock(&self.waiters).get(&tag).cloned())
        else {
            return; // it has left meanwhile
        };
        let token = words.next().and_then(|token| token.parse().ok()).and_then(Token::new);
        match token {
            Some(token) if verb == Some("g") => waiter.grant(granted(&waiter.claim, token)),
            _ => self.look_in(&waiter, Duration::ZERO),
        }
    }

    /// A verb of this process made these hold: whoever waits here looks at once, unless a message
    /// comes anyway.
    pub(crate) fn ring(woken: &[u8]) {
        if woken.is_empty() {
            return;
        }
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        for wakes in all.iter().filter(|wakes| !wakes.is_listening()) {
            for tag in woken.chunks_exact(8) {
                let waiter = lock(&wakes.waiters).get(tag).cloned();
                if let Some(waiter) = waiter {
                    wakes.look_in(&waiter, Duration::ZERO);
                }
            }
        }
    }

    /// A register was written by this process.
    pub(crate) fn ring_registers() {
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|wakes| wakes.registers.notify_waiters());
    }
}

fn read_tag(hex: &str) -> Option<Tag> {
    let tag = u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16)?;
    Some(tag.to_be_bytes())
}

/// The lease of a claim that somebody else made a holder counts from the last request of its owner
/// that was answered: the database counts it from later.
fn granted(claim: &Claim, token: Token) -> Grant {
    Grant { token, ttl: Duration::from_micros(micros(claim.hold_ttl) as u64), since: None }
}

/// A claim that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    note: Mutex<Note>,
    bell: Notify,
}

#[derive(Clone, Debug, Default)]
struct Note {
    outcome: Option<Outcome>,
    /// When it is to be looked at.
    look: Option<Moment>,
    /// How often it was looked at in vain.
    looks: u32,
    /// Whether it is known to be in line.
    in_line: bool,
}

/// How waiting ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Holds(Grant),
    Lost(lockkit_core::LossReason),
}

impl Waiter {
    fn note(&self) -> MutexGuard<'_, Note> {
        lock(&self.note)
    }

    pub(crate) fn grant(&self, grant: Grant) {
        self.end(Outcome::Holds(grant));
    }

    pub(crate) fn end(&self, outcome: Outcome) {
        let mut note = self.note();
        note.look = None;
        note.outcome = Some(outcome);
        drop(note);
        self.bell.notify_one();
    }

    /// Somebody may have asked for an earlier look while an answer was under way: that one stands.
    fn look_in(&self, after: Duration) {
        let mut note = self.note();
        if note.outcome.is_none() {
            let at = BootClock.now().after(after);
            note.look = Some(note.look.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// It is in line, so an answer that it is not is the truth.
    pub(crate) fn is_in_line(&self) {
        self.note().in_line = true;
    }

    /// Somebody looks at it now.
    pub(crate) fn is_looked_at(&self) {
        self.note().look = None;
    }

    /// It waits with nothing that would wake it, as when nobody was listening for it yet.
    pub(crate) fn is_idle(&self) -> bool {
        let note = self.note();
        note.look.is_none() && note.outcome.is_none()
    }

    /// Returns once it holds or is lost. What it was told stays told when this is dropped.
    pub(crate) async fn wait(&self) -> Outcome {
        loop {
            if let Some(outcome) = self.note().outcome.clone() {
                return outcome;
            }
            self.bell.notified().await;
        }
    }

    /// How often it was looked at in vain, this time included.
    pub(crate) fn count_look(&self) -> u32 {
        let mut note = self.note();
        note.looks = note.looks.saturating_add(1);
        note.looks
    }
}

/// Nothing panics while it holds one of these locks, so what is poisoned is sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lockkit_core::{Identity, Key, Mode, Name, Namespace, Space};

    use super::*;

    #[test]
    fn who_is_to_look_at_once_is_not_put_off_by_an_answer_that_was_under_way() {
        const LONG: Duration = Duration::from_secs(300);
        let name = Name::new("a").unwrap();
        let key = Key::new(Namespace::default(), Space::Lock, name);
        let identity = Arc::new(Identity::of_this_process());
        let claim = Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity));
        let wakes = Wakes::new();
        let waiter = wakes.enlist(&claim);
        // Told before it is known to be in line, and then the answer: nothing for a long time.
        wakes.look_in(&waiter, Duration::ZERO);
        waiter.is_in_line();
        wakes.look_in(&waiter, LONG);
        let (due, next) = wakes.due(BootClock.now());
        assert_eq!((due.len(), next), (1, None));
        // Once it is looked at, the answer to that counts.
        waiter.is_looked_at();
        wakes.look_in(&waiter, LONG);
        let (due, next) = wakes.due(BootClock.now());
        assert!(due.is_empty() && next.is_some());
    }
}

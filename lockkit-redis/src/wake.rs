//! How waiting claims learn that they hold: one subscription a driver, to a channel of its own, and
//! a bell for each claim that waits. A message that gets lost costs a timer, never the lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::Grant;
use lockkit_core::{Claim, Token};
use redis::RedisResult;
use tokio::sync::Notify;

use crate::failure::bounded;
use crate::keys;
use crate::reply;
use crate::source::Source;

/// Who waits here, and for what.
pub(crate) struct Wakes {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: String,
    waiters: Mutex<HashMap<ClaimId, Arc<Waiter>>>,
    registers: Mutex<HashMap<String, Weak<Notify>>>,
}

impl Wakes {
    pub(crate) fn new() -> Self {
        let id = ClaimId::random().to_hex();
        Self { client: id[..16].to_owned(), waiters: Mutex::default(), registers: Mutex::default() }
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bell of a claim that is about to be put in line, from before it is: the message may be
    /// faster than the answer.
    pub(crate) fn enlist(&self, claim: &Arc<Claim>) -> Arc<Waiter> {
        let mut waiters = self.waiters();
        let fresh = || {
            Arc::new(Waiter { claim: claim.clone(), note: Mutex::default(), bell: Notify::new() })
        };
        waiters.entry(claim.id).or_insert_with(fresh).clone()
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<Arc<Waiter>> {
        self.waiters().get(id).cloned()
    }

    /// The claim waits no more.
    pub(crate) fn strike(&self, id: &ClaimId) {
        self.waiters().remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Waiter>> {
        self.waiters().values().cloned().collect()
    }

    /// A bell that rings when this register changes.
    pub(crate) fn register(&self, key: &str) -> Arc<Notify> {
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = registers.get(key).and_then(Weak::upgrade) {
            return bell;
        }
        registers.retain(|_, bell| bell.strong_count() > 0);
        let bell = Arc::new(Notify::new());
        registers.insert(key.to_owned(), Arc::downgrade(&bell));
        bell
    }

    /// Rings the bell of a register, or of all.
    pub(crate) fn ring_registers(&self, key: Option<&str>) {
        let registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, bell) in &*registers {
            if key.is_none_or(|key| key == name) {
                bell.upgrade().inspect(|bell| bell.notify_waiters());
            }
        }
    }

    fn heard(&self, message: &str) {
        let (verb, rest) = message.split_once(' ').unwrap_or((message, ""));
        if verb == "changed" {
            return self.ring_registers(Some(rest));
        }
        let (id, token) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some(waiter) = ClaimId::from_hex(id).and_then(|id| self.find(&id)) else {
            return; // it has left meanwhile
        };
        match token.parse().ok().and_then(Token::new) {
            Some(token) if verb == "granted" => waiter.grant(reply::grant(&waiter.claim, token)),
            _ => waiter.look_in(Duration::ZERO),
        }
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").field("client", &self.client).finish_non_exhaustive()
    }
}

/// A claim that waits.
pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    note: Mutex<Note>,
    bell: Notify,
}

#[derive(Clone, Copy, Default)]
struct Note {
    granted: Option<Grant>,
    /// When it is to ask the server by itself.
    look: Option<Moment>,
}

impl Waiter {
    fn note(&self) -> MutexGuard<'_, Note> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grant(&self, grant: Grant) {
        self.note().granted = Some(grant);
        self.bell.notify_one();
    }

    /// It is to ask the server after this long.
    pub(crate) fn look_in(&self, after: Duration) {
        // A millisecond more, since leases end behind their last one.
        let at = BootClock.now().after(after + Duration::from_millis(1));
        self.note().look = Some(at);
        self.bell.notify_one();
    }

    /// Returns the grant once it is told of it, or `None` when it is time to ask. What it was told
    /// stays told when this is dropped.
    pub(crate) async fn wait(&self) -> Option<Grant> {
        loop {
            let note = *self.note();
            if note.granted.is_some() {
                return note.granted;
            }
            match note.look {
                None => self.bell.notified().await,
                Some(at) if at <= BootClock.now() => return None,
                Some(at) => tokio::select! {
                    () = self.bell.notified() => {}
                    () = lockkit_core::clock::sleep_until(&BootClock, at) => {}
                },
            }
        }
    }
}

/// What the subscription needs of the driver, which it must not keep alive.
pub(crate) trait Listener: Send + Sync + 'static {
    fn wakes(&self) -> &Wakes;
    fn source(&self) -> Arc<Source>;
    fn limit(&self) -> Duration;
    /// The subscription stands, perhaps again: look what it missed.
    fn catch_up(&self) -> impl Future<Output = ()> + Send;
}

/// Keeps the subscription until the driver is gone.
pub(crate) async fn listen<L: Listener>(listener: Weak<L>) {
    let mut failures = 0;
    loop {
        let ended = subscription(&listener, &mut failures).await;
        if listener.strong_count() == 0 {
            return;
        }
        if let Err(error) = ended {
            tracing::debug!(%error, "the subscription for wake-ups broke; waiters look by themselves");
        }
        failures = (failures + 1).min(6);
        tokio::time::sleep(pause(failures)).await;
    }
}

/// Longer with each failure, and different for all the clients of a server that has gone.
fn pause(failures: u32) -> Duration {
    let random = ClaimId::random().as_bytes()[0];
    Duration::from_millis(25 << failures).mul_f64(0.5 + f64::from(random) / 256.0)
}

/// How often a subscription on which nothing came is asked whether it is alive.
const SILENCE: Duration = Duration::from_secs(5);

async fn subscription<L: Listener>(listener: &Weak<L>, failures: &mut u32) -> RedisResult<()> {
    let Some(driver) = listener.upgrade() else { return Ok(()) };
    let (source, limit) = (driver.source(), driver.limit());
    let channel = keys::channel(&driver.wakes().client);
    drop(driver);
    let client = bounded(limit, source.client()).await?;
    let (mut sink, mut stream) = bounded(limit, client.get_async_pubsub()).await?.split();
    bounded(limit, sink.subscribe(&channel)).await?;
    *failures = 0;
    if let Some(driver) = listener.upgrade() {
        driver.catch_up().await;
    }
    loop {
        tokio::select! {
            message = stream.next() => {
                let (Some(message), Some(driver)) = (message, listener.upgrade()) else {
                    return Ok(());
                };
                driver.wakes().heard(&String::from_utf8_lossy(message.get_payload_bytes()));
            }
            () = tokio::time::sleep(SILENCE) => {
                bounded(limit, sink.ping::<redis::Value>()).await?;
            }
        }
    }
}

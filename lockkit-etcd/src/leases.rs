//! Leases: which there are, since when they count, and which claims may share them.
//!
//! All renewed claims of a driver with the same ttl share one lease, so that a thousand of them are
//! renewed by one message. Two dangers come with that, and both are dealt with here:
//!
//! - **Ghosts.** A request that was given up may still reach etcd and put in a claim that no client
//!   knows. On a lease that is kept alive for others it would stay for ever. So a lease that
//!   such a request named is *retired*: new claims get another, those who live on it are moved away
//!   at their next renewal, and when the last has gone it is revoked. That takes the ghost along,
//!   and what arrives later still is refused, as it names a lease that is no more.
//! - **Old leases.** A claim that is put on a lease has only what is left of that. So a lease is
//!   kept alive along with the request when a tenth of it has passed; and what a grant says counts
//!   from the keep-alive that was answered ([`EtcdLease::since`]).
//!
//! And one limit: a renewal asks which keys are on a lease, and the client takes no answer of more
//! than 4 MB. So a lease with [`FULL`] live keys takes no more.
//!
//! Nothing here renews on its own: a driver that core forgets about lets its leases end.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use etcd_client::{GetOptions, Txn, TxnOp};
use futures_util::future::join;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::locked;
use lockkit_core::{Claim, Error, Lifetime, Margin};

use crate::client::{BACKEND, EtcdClient, EtcdError, EtcdResult};
use crate::keepalive::KeepAlive;

/// The longest lease that etcd gives, in seconds (its limit is 9·10⁹).
const LONGEST: u64 = 9_000_000_000;

/// Claims that live on a shared lease at once: as many of the longest keys, of 2 kB, fit in an answer.
pub(crate) const FULL: usize = 2_000;

/// The part of a lease that may pass before it is kept alive along with what is put on it.
pub(crate) const YOUNG: u32 = 10;

/// How long an answer may take at least, and how long at most.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);
const MOST_PATIENCE: Duration = Duration::from_secs(2);

/// How often a keep-alive, with what goes along with it, is sent where it meets changes of leaders.
pub(crate) const ATTEMPTS: usize = 3;

/// How long `close` waits for what it revokes, and for what is still under way.
const CLOSING: Duration = Duration::from_secs(1);

/// What came of one keep-alive, and the read beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptAlive {
    /// By the leader of this term, in which a majority answered.
    InTerm(u64),
    /// The two were answered in different terms, which says nothing about the lease.
    Unsure,
    Expired,
}

/// A lease at etcd.
pub(crate) struct EtcdLease {
    pub(crate) id: i64,
    /// What etcd granted, which may be more than was asked for.
    pub(crate) ttl: Duration,
    /// When the last request was sent that etcd answered by giving it its full ttl.
    since: AtomicU64,
    ended: AtomicBool,
    retired: AtomicBool,
    /// Whether it is of no use to any client once no claim here knows it.
    revoke: AtomicBool,
    client: Arc<EtcdClient>,
}

impl EtcdLease {
    pub(crate) fn new(id: i64, ttl: Duration, since: Moment, client: &Arc<EtcdClient>) -> Self {
        Self {
            id,
            ttl,
            since: AtomicU64::new(since.as_nanos()),
            ended: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            revoke: AtomicBool::new(false),
            client: client.clone(),
        }
    }

    /// From when on its ttl counts at the latest.
    pub(crate) fn since(&self) -> Moment {
        Moment::from_nanos(self.since.load(Ordering::Acquire))
    }

    /// Until when it certainly is there, unless a client revokes it.
    pub(crate) fn until(&self) -> Moment {
        self.until_from(self.since())
    }

    /// The same if its ttl counts from this moment.
    pub(crate) fn until_from(&self, since: Moment) -> Moment {
        since.after(trusted(self.ttl))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether claims are to leave it.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether as many claims live on it as may. Each claim that is known here, and each request for
    /// one, has its lease.
    fn is_full(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > FULL
    }

    /// Whether a good part of it has passed.
    pub(crate) fn is_old(&self, now: Moment) -> bool {
        now.since(self.since()) > self.ttl / YOUNG
    }

    /// Has it revoked once no claim here knows it any more.
    pub(crate) fn end(&self) {
        self.revoke.store(true, Ordering::Release);
    }
}

impl fmt::Debug for EtcdLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:x}, {:?})", self.id, self.ttl)
    }
}

impl Drop for EtcdLease {
    fn drop(&mut self) {
        if !*self.revoke.get_mut() || *self.ended.get_mut() {
            return;
        }
        // Outside a runtime it ends by itself.
        let (client, id) = (self.client.clone(), self.id);
        self.client.background.spawn(async move { revoke(&client, id).await });
    }
}

/// The leases of one driver.
#[derive(Debug)]
pub(crate) struct Leases {
    client: Arc<EtcdClient>,
    keep_alive: KeepAlive,
    /// A key that this client may read.
    root: Vec<u8>,
    /// The shared leases that new claims get, by their seconds.
    current: Mutex<HashMap<u64, Arc<EtcdLease>>>,
    /// All leases that any client here knows, by their id.
    known: Mutex<HashMap<i64, Weak<EtcdLease>>>,
    /// The one for what is to be remembered for a while.
    lasting: tokio::sync::Mutex<Option<Arc<EtcdLease>>>,
    /// Held while a shared lease is made, so that one is made and not many.
    making: tokio::sync::Mutex<()>,
}

impl Leases {
    pub(crate) fn new(client: Arc<EtcdClient>, root: Vec<u8>) -> Self {
        Self {
            root,
            keep_alive: KeepAlive::new(client.clone()),
            client,
            current: Mutex::default(),
            known: Mutex::default(),
            lasting: tokio::sync::Mutex::default(),
            making: tokio::sync::Mutex::new(()),
        }
    }

    /// The lease for a claim that waits: shared, whatever becomes of the claim when it holds.
    pub(crate) async fn waiting(&self, claim: &Claim) -> EtcdResult<Arc<EtcdLease>> {
        self.shared(seconds(claim.wait_ttl)).await
    }

    /// The lease for a claim that holds: shared, or one of its own if it is not renewed, or not by
    /// this process only.
    pub(crate) async fn holding(&self, claim: &Claim) -> EtcdResult<Arc<EtcdLease>> {
        match claim.lifetime {
            Lifetime::Renewed => self.shared(seconds(claim.hold_ttl)).await,
            _ => self.grant(seconds(claim.hold_ttl)).await,
        }
    }

    /// The shared lease of so many seconds that new claims get.
    async fn shared(&self, seconds: u64) -> EtcdResult<Arc<EtcdLease>> {
        if let Some(lease) = self.usable(seconds) {
            return Ok(lease);
        }
        let _making = self.making.lock().await;
        if let Some(lease) = self.usable(seconds) {
            return Ok(lease);
        }
        let lease = self.grant(seconds).await?;
        if let Some(full) = locked(&self.current).insert(seconds, lease.clone()) {
            // Revoked when the last claim has left it.
            full.end();
        }
        Ok(lease)
    }

    /// New claims of its ttl get this lease.
    #[cfg(test)]
    pub(crate) fn share(&self, lease: EtcdLease) {
        locked(&self.current).insert(seconds(lease.ttl), self.note(lease));
    }

    /// The present lease, if it is not over and has room.
    fn usable(&self, seconds: u64) -> Option<Arc<EtcdLease>> {
        let current = locked(&self.current);
        // One that may be over costs a refused request, so a new one is cheaper.
        let now = SteadyClock.now();
        let usable = |l: &&Arc<EtcdLease>| !l.is_gone() && l.until() > now && !l.is_full();
        current.get(&seconds).filter(usable).cloned()
    }

    /// A new lease.
    pub(crate) async fn grant(&self, seconds: u64) -> EtcdResult<Arc<EtcdLease>> {
        let seconds = i64::try_from(seconds.min(LONGEST)).unwrap_or(i64::MAX);
        let sent = SteadyClock.now();
        let granted =
            self.client.call(|mut client| async move { client.lease_grant(seconds, None).await });
        let granted = granted.await?.answer;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
        // What a repeated request gave counts from the first one: earlier, so on the safe side.
        Ok(self.note(EtcdLease::new(granted.id(), ttl, sent, &self.client)))
    }

    /// A lease that is never renewed, for keys that are to stay for so long at least: those that come
    /// one after the other share it. Where etcd says that it is gone, [`forget_lasting`](Self::forget_lasting).
    pub(crate) async fn lasting(&self, at_least: Duration) -> EtcdResult<Arc<EtcdLease>> {
        let mut lasting = self.lasting.lock().await;
        let needed = SteadyClock.now().after(at_least);
        if let Some(lease) = lasting.as_ref().filter(|lease| lease.until() >= needed) {
            return Ok(lease.clone());
        }
        let lease = self.grant(seconds(at_least.saturating_mul(2))).await?;
        *lasting = Some(lease.clone());
        Ok(lease)
    }

    /// The lasting lease has ended before its time: after a restore of older data, or revoked by hand. The next
    /// keys get another.
    pub(crate) async fn forget_lasting(&self) {
        *self.lasting.lock().await = None;
    }

    /// The lease with this id: known here, or another client's. `None` if it is gone.
    pub(crate) async fn find(&self, id: i64) -> EtcdResult<Option<Arc<EtcdLease>>> {
        if let Some(lease) = self.known(id) {
            return Ok((!lease.is_gone()).then_some(lease));
        }
        let sent = SteadyClock.now();
        let ask =
            self.client.call(|mut client| async move { client.lease_time_to_live(id, None).await });
        let answer = ask.await?.answer;
        if answer.ttl() <= 0 {
            return Ok(None);
        }
        let ttl = Duration::from_secs(u64::try_from(answer.granted_ttl()).unwrap_or(0));
        let left = Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0));
        let since = sent.before(ttl.saturating_sub(left));
        Ok(Some(self.note(EtcdLease::new(id, ttl, since, &self.client))))
    }

    /// The lease with this id; where it is not known how long it lasts, one that is over.
    pub(crate) fn known_or(&self, id: i64) -> Arc<EtcdLease> {
        let unknown = || EtcdLease::new(id, Duration::ZERO, Moment::from_nanos(0), &self.client);
        self.known(id).unwrap_or_else(|| Arc::new(unknown()))
    }

    /// Revokes a lease, as far as etcd can be reached.
    pub(crate) async fn revoke(&self, lease: &EtcdLease) {
        revoke(&self.client, lease.id).await;
        lease.ended.store(true, Ordering::Release);
    }

    /// The lease with this id, if it is one of those that are known here.
    pub(crate) fn known(&self, id: i64) -> Option<Arc<EtcdLease>> {
        locked(&self.known).get(&id).and_then(Weak::upgrade)
    }

    fn note(&self, lease: EtcdLease) -> Arc<EtcdLease> {
        let lease = Arc::new(lease);
        let mut known = locked(&self.known);
        if known.len() > 64 && known.len() == known.capacity() {
            known.retain(|_, lease| lease.strong_count() > 0);
        }
        known.insert(lease.id, Arc::downgrade(&lease));
        lease
    }

    /// Keeps a lease alive; says whether it is still there.
    pub(crate) async fn keep(&self, lease: &EtcdLease) -> EtcdResult<bool> {
        for _ in 0..ATTEMPTS {
            match self.keep_once(lease, patience(lease.ttl)).await? {
                KeptAlive::InTerm(_) => return Ok(true),
                KeptAlive::Expired => return Ok(false),
                KeptAlive::Unsure => {}
            }
        }
        Err(new_leader())
    }

    /// Asks once to keep a lease alive, where each member has so long to answer if there are several.
    ///
    /// A leader that was frozen or cut off, and does not know yet that there is another, answers
    /// keep-alives all the same, while the new one lets the lease end. So a read that needs the
    /// majority goes along. When it was answered in the term of the keep-alive, there was no newer
    /// leader when both were sent; and one that comes later gives the lease its full time again.
    pub(crate) async fn keep_once(
        &self,
        lease: &EtcdLease,
        patience: Duration,
    ) -> EtcdResult<KeptAlive> {
        let sent = SteadyClock.now();
        let kept = self.keep_alive.keep(lease.id, patience);
        let (kept, term) = join(kept, self.term(patience)).await;
        let kept = kept?;
        if !kept.alive {
            lease.ended.store(true, Ordering::Release);
            self.forget(lease);
            return Ok(KeptAlive::Expired);
        }
        if kept.term != term? {
            return Ok(KeptAlive::Unsure);
        }
        lease.since.fetch_max(sent.as_nanos(), Ordering::AcqRel);
        Ok(KeptAlive::InTerm(kept.term))
    }

    /// The term in which a majority answers.
    async fn term(&self, patience: Duration) -> EtcdResult<u64> {
        let any = GetOptions::new().with_count_only().with_limit(1);
        let read = Txn::new().and_then([TxnOp::get(&*self.root, Some(any))]);
        let answer = self.client.txn_within(patience, || read.clone()).await?.answer;
        Ok(answer.header().map_or(0, |header| header.raft_term()))
    }

    /// Keeps it alive if a good part of it has passed. Meant to be sent beside a request that puts
    /// a claim on it; what it does not achieve shows in [`EtcdLease::since`].
    pub(crate) async fn freshen(&self, lease: &EtcdLease) {
        if lease.is_old(SteadyClock.now()) {
            let _ = self.keep(lease).await;
        }
    }

    /// New claims get another lease than this one from now on, and those on it leave it.
    pub(crate) fn retire(&self, lease: &EtcdLease) {
        lease.retired.store(true, Ordering::Release);
        lease.end();
        self.forget(lease);
    }

    fn forget(&self, lease: &EtcdLease) {
        locked(&self.current).retain(|_, current| current.id != lease.id);
    }

    /// Lets go of the shared leases, and waits for the revocation of those on which no claim lives;
    /// also for whatever else goes on in the background, since the runtime may end right after. Where
    /// the last request got no answer, nothing is waited for.
    ///
    /// The lease of break records stays, as do those of claims that outlive their process.
    pub(crate) async fn close(&self) {
        let current = std::mem::take(&mut *locked(&self.current));
        for (_, lease) in current {
            // The claims that live on it keep it, and it is revoked only when the last is released.
            lease.end();
        }
        if !self.client.is_unanswered() {
            self.client.background.ended_within(CLOSING).await;
        }
    }
}

/// The error of a request that met one change of leaders after the other.
pub(crate) fn new_leader() -> EtcdError {
    Error::retryable(BACKEND, "etcd has just changed its leader").into()
}

async fn revoke(client: &EtcdClient, id: i64) {
    let _ = client.call(|mut client| async move { client.lease_revoke(id).await }).await;
}

/// What may be trusted of this ttl, as core has it by default.
pub(crate) fn trusted(ttl: Duration) -> Duration {
    ttl.saturating_sub(Margin::default().of(ttl))
}

/// How long an answer about a lease of this ttl may take where there is another member to ask: so
/// that its renewals, which begin when a third has passed, survive one that stands still.
pub(crate) fn patience(ttl: Duration) -> Duration {
    (ttl / 6).clamp(LEAST_PATIENCE, MOST_PATIENCE)
}

/// Whole seconds, rounded up.
pub(crate) fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).clamp(1, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_and_bounded() {
        for (ms, s) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2)] {
            assert_eq!(seconds(Duration::from_millis(ms)), s);
        }
        assert_eq!(seconds(Duration::MAX), LONGEST);
    }

    #[tokio::test]
    async fn a_shared_lease_is_full_of_the_claims_that_live_on_it_and_not_of_those_that_did() {
        let client = Arc::new(EtcdClient::to(Vec::new(), &etcd_client::ConnectOptions::new()));
        let leases = Leases::new(client.clone(), Vec::new());
        let (ttl, now) = (Duration::from_secs(30), SteadyClock.now());
        leases.share(EtcdLease::new(1, ttl, now, &client));
        for _ in 0..2 * FULL {
            assert!(leases.usable(30).is_some(), "the claim is gone again");
        }
        let mut live: Vec<_> =
            (0..FULL).map(|_| leases.usable(30).expect("there is room")).collect();
        assert!(leases.usable(30).is_none());
        live.pop();
        assert!(leases.usable(30).is_some());
    }
}

//! Putting claims in line.
//!
//! One transaction does all of it: it puts the key on the lease of a holder if the list is empty;
//! otherwise on the lease of one that waits, unless it is there already, and shows the list.
//! Nobody can come in between, so what stands ahead is known and can only become less.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnResponse};
use futures_util::future::BoxFuture;
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::{Acquisition, Answered, Patience};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode};

use crate::calls::{BACKEND, Failure, ranges, revision};
use crate::inner::{Inner, Place, created, delete, get_last, get_list, none_in, none_of, odd, put};
use crate::keys::{end_of, given, in_list, other_given, other_limits};
use crate::leases::Lease;
use crate::line::{Entry, Line};
use crate::moves::{Moved, Moving};
use crate::tails::Taken;
use crate::value::Value;

/// How often a try looks again when others change the list under its eyes.
const TRIES: usize = 32;
/// How often leases are made anew that were over.
const RENEWALS: usize = 4;

impl Inner {
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Answered<Acquisition>, Error> {
        let lost = Lost::default();
        for _ in 0..RENEWALS {
            let answer = match patience {
                Patience::Wait => self.stand_in_line(claim, &lost).await,
                Patience::Try => self.try_once(claim, &lost).await,
            };
            match answer {
                Err(Failure::LeaseGone) => {}
                Err(failure) => return Err(failure.into()),
                Ok(acquisition) => return Ok(Answered::after(lost.requests(), acquisition)),
            }
        }
        Err(Error::retryable(BACKEND, "the leases ended again and again"))
    }

    async fn stand_in_line(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        lost: &Lost,
    ) -> Result<Acquisition, Failure> {
        let list = self.root.list(&claim.key);
        let (key, fresh) = self.key_for(&list, claim);
        let hold = self.leases.holding(claim, &key).await?;
        let wait = self.leases.waiting(claim, &key).await?;
        let value = Value::of(claim);
        let first = value.clone().holding();
        let txn = {
            let (claim, key, wait, hold) = (claim.clone(), key.clone(), wait.id, hold.id);
            let (waits, holds) = (value.to_bytes(), first.to_bytes());
            move || {
                let at_the_end = at_the_end(&claim, &key, &list, put(&key, &*waits, wait));
                // Who wants it alone waits for all to go: the one before and their number will do.
                let show = match claim.mode {
                    Mode::Exclusive => get_last(&list, 2),
                    _ => get_list(&list),
                };
                Txn::new()
                    .when(nobody_there(&claim, &key, &list))
                    .and_then([put(&key, &*holds, hold)])
                    .or_else([TxnOp::txn(at_the_end), show])
            }
        };
        let sent = BootClock.now();
        let answer = self.put_in((claim, &key), txn, [&hold, &wait], lost).await?;
        let sure = lost.is_none();
        if answer.succeeded() {
            let entry = made(key, first, claim, hold.id, revision(&answer));
            return self.granted_at_once(claim, entry, hold, sure, sent);
        }
        abandon(claim, &hold);
        let shown = ranges(&answer).pop().ok_or_else(odd)?;
        let line = Line::of(shown.kvs(), shown.count(), revision(&answer));
        match line.entries.last() {
            // The usual case: it has just been put at the end.
            Some(own) if own.key == key && own.lease == wait.id && own.created == line.revision => {
                let own = own.clone();
                self.answer(claim, Place::seen(own, wait, Some(line), sent), sure).await
            }
            _ => self.already_there(claim, line, !fresh || !sure).await,
        }
    }

    /// Sends a request that may put in a claim, under this key. Whoever drops this does not end it:
    /// it goes on until it is answered, so that it is known what became of it. Where one may be
    /// under way all the same, the leases are retired that it names: see
    /// [`Leases`](crate::leases::Leases).
    async fn put_in(
        self: &Arc<Self>,
        (claim, key): (&Arc<Claim>, &[u8]),
        txn: impl Fn() -> Txn + Send + Sync + 'static,
        leases: [&Arc<Lease>; 2],
        lost: &Lost,
    ) -> Result<TxnResponse, Failure> {
        let fresh = futures_util::future::join(self.leases.freshen(leases[0]), async {
            if leases[1].id != leases[0].id {
                self.leases.freshen(leases[1]).await;
            }
        });
        let is_left = Arc::new(AtomicBool::new(false));
        let (inner, named, left) = (self.clone(), leases.map(Arc::clone), is_left.clone());
        let (claim, key) = (claim.clone(), key.to_vec());
        let request = GoesOn::new(is_left, async move {
            let unanswered = Unanswered { inner: &inner, named: Some(named.clone()) };
            let reply = inner.calls.txn_by(txn).await?;
            if !reply.is_repeated() {
                unanswered.disarm();
                if left.load(Ordering::Acquire) {
                    inner.note_left(&claim, key, &reply.answer, &named[0]);
                }
            }
            Ok::<_, Failure>(reply)
        });
        let (reply, _) = futures_util::future::join(request, fresh).await;
        let reply = reply?;
        lost.add(reply.unanswered);
        Ok(reply.answer)
    }

    /// Notes a claim for whose answer nobody has waited: core has it released, or forgets it, and
    /// then it is swept.
    fn note_left(&self, claim: &Claim, key: Vec<u8>, answer: &TxnResponse, hold: &Lease) {
        let shown = ranges(answer);
        let entry = match answer.succeeded() {
            true => made(key, Value::of(claim).holding(), claim, hold.id, revision(answer)),
            false => match shown.iter().flat_map(|r| r.kvs()).find(|kv| kv.key() == key) {
                Some(kv) => Entry::of(kv),
                None => return,
            },
        };
        if let Some(lease) = self.leases.known(entry.lease) {
            let place = Place::seen(entry, lease, None, BootClock.now());
            self.places().entry(claim.id).or_insert(place);
        }
    }

    fn granted_at_once(
        self: &Arc<Self>,
        claim: &Claim,
        entry: Entry,
        lease: Arc<Lease>,
        sure: bool,
        sent: Moment,
    ) -> Result<Acquisition, Failure> {
        self.note(claim.id, Place::seen(entry, lease, None, sent));
        if sure {
            self.tails.sure(claim.id);
        }
        Ok(Acquisition::Granted(self.grant_of(claim)?))
    }

    /// The answer about a claim that was put in line just now.
    async fn answer(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        place: Place,
        sure: bool,
    ) -> Result<Acquisition, Failure> {
        let created = place.entry.created;
        let line = place.line.as_ref();
        let (holds, ahead) = line.map_or((false, 0), |l| (l.holds(created), l.ahead(created)));
        self.note(claim.id, place);
        if sure {
            self.tails.sure(claim.id);
        }
        match holds {
            true => Ok(Acquisition::Granted(self.begin(claim).await?)),
            false => Ok(Acquisition::Queued { ahead }),
        }
    }

    /// The claim was there before, or was refused: an answer got lost, or a limit is another.
    /// Where nothing was ever `sent` before for the claim, what stands there is not the claim.
    async fn already_there(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        line: Line,
        sent: bool,
    ) -> Result<Acquisition, Failure> {
        let (key, _) = self.key_of(claim);
        if line.find(&key).is_none() && line.hidden == 0 {
            line.check_limit(&claim.key, claim.mode)?;
        }
        let look = self.look(claim).await?;
        if let Some(record) = look.broken {
            return Err(Failure::Other(Error::Lost { reason: LossReason::Broken(record) }));
        }
        match look.own {
            Some(_) if !sent => {
                self.tails.leave(claim.id);
                Err(Failure::LeaseGone)
            }
            Some(own) => {
                let place = self.adopt(claim, &own, look.line.clone(), look.sent).await?;
                let renewed = self.leases.keep(&place.lease).await?;
                if !renewed {
                    return Err(Failure::LeaseGone);
                }
                match look.line.holds(own.created) {
                    true => Ok(Acquisition::Granted(self.begin(claim).await?)),
                    false => Ok(Acquisition::Queued { ahead: look.line.ahead(own.created) }),
                }
            }
            None => {
                look.line.check_limit(&claim.key, claim.mode)?;
                // It ended between the two looks, or who was in its way did: begin again.
                Err(Failure::LeaseGone)
            }
        }
    }

    /// The key for a request that puts a claim in, and whether none was ever sent before for it.
    fn key_for(&self, list: &[u8], claim: &Claim) -> (Vec<u8>, bool) {
        let Taken { tail, fresh } = self.tails.take(claim);
        (in_list(list, claim, &tail), fresh)
    }

    async fn try_once(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        lost: &Lost,
    ) -> Result<Acquisition, Failure> {
        let list = self.root.list(&claim.key);
        let (key, fresh) = self.key_for(&list, claim);
        let hold = self.leases.holding(claim, &key).await?;
        let value = Value::of(claim).holding();
        let put_in = || put(&key, value.to_bytes(), hold.id);
        let mut free = nobody_there(claim, &key, &list);
        for _ in 0..TRIES {
            let show = [
                TxnOp::get(key.clone(), None),
                match claim.mode {
                    // Whoever wants it alone need not know who is there.
                    Mode::Exclusive => get_last(&list, 1),
                    _ => get_list(&list),
                },
            ];
            let txn = Txn::new().when(free).and_then([put_in()]).or_else(show);
            let sent = BootClock.now();
            let answer =
                self.put_in((claim, &key), move || txn.clone(), [&hold, &hold], lost).await?;
            let sure = lost.is_none();
            if answer.succeeded() {
                let entry = made(key, value, claim, hold.id, revision(&answer));
                return self.granted_at_once(claim, entry, hold, sure, sent);
            }
            let [own, shown] = crate::inner::pair(ranges(&answer))?;
            let line = Line::of(shown.kvs(), shown.count(), revision(&answer));
            if !own.kvs().is_empty() {
                abandon(claim, &hold);
                return self.tried_before(claim, !fresh || !sure).await;
            }
            if line.hidden == 0 {
                line.check_limit(&claim.key, claim.mode).inspect_err(|_| abandon(claim, &hold))?;
            }
            if !line.admits(claim.mode) {
                abandon(claim, &hold);
                if sure {
                    self.tails.sure(claim.id);
                    self.tails.back(claim.id);
                }
                return Ok(Acquisition::Busy);
            }
            // It would hold beside those who are there: put it in if nobody has come or changed
            // since. That somebody left does not matter.
            let unchanged = Compare::mod_revision(list.clone(), CompareOp::Less, line.revision + 1);
            free = vec![created(&key, 0), unchanged.with_range(end_of(&list))];
        }
        abandon(claim, &hold);
        Ok(Acquisition::Busy)
    }

    /// A try for a claim that is in line: it stays if it holds.
    async fn tried_before(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        sent: bool,
    ) -> Result<Acquisition, Failure> {
        let look = self.look(claim).await?;
        match look.own {
            Some(own) if sent && look.broken.is_none() && !look.line.holds(own.created) => {
                let gone =
                    Txn::new().when([created(&own.key, own.created)]).and_then([delete(&own.key)]);
                self.calls.txn(gone).await?;
                self.forget(claim.id);
                Ok(Acquisition::Busy)
            }
            _ => self.already_there(claim, look.line, sent).await,
        }
    }

    /// Notes a claim that was found in line, on a lease that this driver keeps alive.
    ///
    /// A claim may stand on a lease that is retired, and about to be revoked, or on one of another
    /// driver, which may revoke it. It is moved to one of ours then, unless it has one of its own.
    pub(crate) async fn adopt(
        self: &Arc<Self>,
        claim: &Claim,
        own: &Entry,
        line: Line,
        seen: Moment,
    ) -> Result<Place, Failure> {
        let of_its_own = claim.lifetime != Lifetime::Renewed && own.is_holding();
        let lease = match self.leases.known(own.lease) {
            Some(lease) if !lease.is_gone() && !lease.is_retired() => Some(lease),
            _ if of_its_own => self.leases.find(own.lease).await?,
            _ => None,
        };
        if let Some(lease) = lease {
            return Ok(self.settle(claim, own, lease, Some(line), seen));
        }
        self.settle(claim, own, self.leases.known_or(own.lease), Some(line), seen);
        let target = match own.is_holding() {
            true => self.leases.holding(claim, &own.key).await?,
            false => self.leases.waiting(claim, &own.key).await?,
        };
        match self.relocate_one(&target, Moving::as_it_is(claim, own.clone())).await? {
            Moved::Done(_) => self.place(claim.id).ok_or(Failure::LeaseGone),
            // Others were at it as well: it is worth another look.
            Moved::Elsewhere | Moved::Gone => Err(Failure::LeaseGone),
        }
    }
}

/// "The list is empty, and there is room for this claim."
fn nobody_there(claim: &Claim, key: &[u8], list: &[u8]) -> Vec<Compare> {
    let mut nobody = vec![none_of(list)];
    if let Mode::Permits { permits, limit } = claim.mode {
        nobody.extend(other_given(list, limit).iter().map(|(from, to)| none_in(from, to)));
        if permits > limit {
            nobody.push(created(key, -1)); // never so: it has to wait
        }
    }
    nobody
}

/// Puts a claim at the end of its list, unless it is in it, or the limit of the list is another:
/// the one that it was given, whatever the claims there once came with, or else the one of these.
fn at_the_end(claim: &Claim, key: &[u8], list: &[u8], put: TxnOp) -> Txn {
    let absent = created(key, 0);
    let Some(limit) = claim.mode.limit() else {
        return Txn::new().when([absent]).and_then([put]);
    };
    let others = other_limits(list, limit).into_iter().chain(other_given(list, limit));
    let none = others.map(|(from, to)| none_in(&from, &to));
    let same_given = Compare::create_revision(given(list, limit), CompareOp::Greater, 0);
    let counted = Txn::new().when([absent.clone(), same_given]).and_then([put.clone()]);
    Txn::new()
        .when([absent].into_iter().chain(none).collect::<Vec<_>>())
        .and_then([put])
        .or_else([TxnOp::txn(counted)])
}

/// A key as it was put just now.
fn made(key: Vec<u8>, value: Value, claim: &Claim, lease: i64, revision: i64) -> Entry {
    let (created, modified) = (revision, revision);
    Entry { key, created, modified, lease, mode: claim.mode, value: Some(value) }
}

/// A lease that was made for a claim which does not need it.
fn abandon(claim: &Claim, lease: &Lease) {
    if claim.lifetime != Lifetime::Renewed {
        lease.end();
    }
}

/// A request that may put in a claim. Dropped unanswered, it retires the leases that it names.
struct Unanswered<'a> {
    inner: &'a Inner,
    named: Option<[Arc<Lease>; 2]>,
}

impl Unanswered<'_> {
    fn disarm(mut self) {
        self.named = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.named.iter().flatten() {
            self.inner.leases.retire(lease);
        }
    }
}

/// How many requests that put the claim in were sent again before they were answered.
#[derive(Default)]
struct Lost(AtomicU32);

impl Lost {
    fn add(&self, requests: u32) {
        self.0.fetch_add(requests, Ordering::Relaxed);
    }

    fn requests(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn is_none(&self) -> bool {
        self.requests() == 0
    }
}

/// Once begun, it goes on when it is dropped.
struct GoesOn<T: Send + 'static> {
    request: Option<BoxFuture<'static, T>>,
    begun: bool,
    /// Set when it is dropped.
    is_left: Arc<AtomicBool>,
}

impl<T: Send + 'static> GoesOn<T> {
    fn new(is_left: Arc<AtomicBool>, request: impl Future<Output = T> + Send + 'static) -> Self {
        Self { request: Some(Box::pin(request)), begun: false, is_left }
    }
}

impl<T: Send + 'static> Future for GoesOn<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(request) = &mut self.request else {
            return Poll::Pending; // nobody asks again what has been answered
        };
        let answer = ready!(request.as_mut().poll(cx));
        self.request = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for GoesOn<T> {
    fn drop(&mut self) {
        let request = self.request.take().filter(|_| self.begun);
        self.is_left.store(true, Ordering::Release);
        // Outside a runtime it ends here, unanswered.
        if let (Some(request), Ok(runtime)) = (request, tokio::runtime::Handle::try_current()) {
            runtime.spawn(request);
        }
    }
}

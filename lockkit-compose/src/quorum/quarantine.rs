//! How a member that lost its data, or may have older data, is known and kept from voting until every
//! lease that it may have forgotten is over. Its tokens follow its clock, so they go on growing
//! afterwards. What tells older data is in `runs.rs`.
//!
//! The sign of a member is the counter of a namespace that quorums keep for themselves: the longest ttl in
//! milliseconds. A member without it is new or came back empty. A program that finds this takes a claim
//! there, which would be gone if the data were lost once more. When the member itself shows that this claim
//! has been held for the longest ttl, the program that sees it writes the sign: so it does not matter how
//! short the lives of programs are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use super::runs::hash;
use super::{BACKEND, NAMESPACE, QuorumInner};
use lockkit_core::driver::{ClaimId, LockDriver, Patience, ServerRun};
use lockkit_core::{Claim, ClientIdentity, Error, Key, Lifetime, Mode, Name, Namespace, Space};

/// How long until a step of a watch that failed is taken again.
const PAUSE: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// How long the watch claim stays when no program is left. It is never renewed: it is to show for
/// how long the member has had its data, also to programs that come much later.
const WATCHED_FOR: Duration = Duration::from_secs(86_400);

/// What a member that has its data says of itself.
#[derive(Clone, Copy)]
struct Sign {
    max_ttl: Duration,
}

impl Sign {
    fn decode(counter: u64) -> Option<Self> {
        (counter > 0).then_some(Self { max_ttl: Duration::from_millis(counter) })
    }

    fn encode(self) -> u64 {
        u64::try_from(self.max_ttl.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

/// The claim by which a member shows for how long it has had its data since it was lost, or since this
/// run of it began. It is the same for all programs, so that any of them can end it; and another one
/// for each run, for that of an earlier run may be in the old data.
fn watch_claim(run: Option<&ServerRun>) -> Result<Arc<Claim>, Error> {
    let (name, id) = match run {
        Some(ServerRun { identity, start, .. }) => {
            let id = hash(&format!("{identity}\n{start}"));
            (format!("quarantine/{id:032x}"), id.to_be_bytes())
        }
        None => ("quarantine".to_owned(), *b"lockkit.quorum.q"),
    };
    let key = Key::new(Namespace::new(NAMESPACE)?, Space::Lock, Name::new(name)?);
    let identity = Arc::new(ClientIdentity::of_this_process());
    let claim = Claim::new(key, Mode::Exclusive, WATCHED_FOR, WATCHED_FOR, identity)
        .with_lifetime(Lifetime::Fixed)
        .with_id(ClaimId::from_bytes(id));
    Ok(Arc::new(claim))
}

/// A step of a watch that is being taken.
struct WatchStep(tokio::sync::watch::Sender<usize>);

impl WatchStep {
    fn begin(inner: &QuorumInner) -> Self {
        inner.steps.send_modify(|steps| *steps += 1);
        Self(inner.steps.clone())
    }
}

impl Drop for WatchStep {
    fn drop(&mut self) {
        self.0.send_modify(|steps| *steps -= 1);
    }
}

impl QuorumInner {
    /// Looks at all members once. When all of them answer and none has the sign, this is a new
    /// quorum, which has nothing to forget.
    pub(super) async fn open(&self) -> Result<(), Error> {
        let opening = async {
            let members = 0..self.members.len();
            let limit = self.options.member_limit;
            let runs = join_all(members.clone().map(|member| self.run_counts(member, limit)));
            let (signs, _, keeps_no_runs) =
                tokio::join!(self.signs(members.clone()), runs, self.keeps_no_runs());
            let answered = signs.iter().flatten().count();
            if answered < self.majority() {
                return Err(Error::retryable(BACKEND, "no majority of the members answers"));
            }
            let all = answered == self.members.len();
            let with_data = signs.iter().flatten().flatten().count();
            if with_data == 0 {
                if !all {
                    let message = "a new quorum begins when all its members answer";
                    return Err(Error::retryable(BACKEND, message));
                }
                let new = Sign { max_ttl: self.options.max_ttl };
                join_all(members.map(|m| self.write_sign(m, new))).await;
            }
            if all && [0, answered].contains(&with_data) && keeps_no_runs? {
                // Until that is done, members count by their signs alone.
                let _ = self.admit_all().await;
            }
            Ok(())
        };
        self.opened.get_or_try_init(|| opening).await.copied()
    }

    /// An error when the run of the member may have forgotten what an earlier one had.
    pub(super) async fn check_run(self: &Arc<Self>, m: usize, ttl: Duration) -> Result<(), Error> {
        if self.run_counts(m, self.limit(ttl)).await? {
            return Ok(());
        }
        self.watch(m);
        let name = &self.members[m].name;
        let message = format!("{name} may have come back with old data and is in quarantine");
        Err(Error::retryable(BACKEND, message))
    }

    /// An error when the member may not vote for a lease of this ttl.
    pub(super) async fn check_sign(self: &Arc<Self>, m: usize, ttl: Duration) -> Result<(), Error> {
        let Some(sign) = self.sign(m, self.limit(ttl)).await? else {
            self.watch(m);
            let name = &self.members[m].name;
            let message = format!("{name} came back without its data and is in quarantine");
            return Err(Error::retryable(BACKEND, message));
        };
        if sign.max_ttl < ttl {
            // Another program said a shorter longest ttl: so that who watches over a member that
            // lost its data waits for ours, ours is written before anything counts.
            let max_ttl = self.options.max_ttl;
            self.write_sign(m, Sign { max_ttl }).await?;
        }
        Ok(())
    }

    /// Whether the member may vote.
    pub(super) async fn may_vote(&self, member: usize) -> Result<bool, Error> {
        let limit = self.options.member_limit;
        let (sign, run) = tokio::join!(self.sign(member, limit), self.run_counts(member, limit));
        Ok(sign?.is_some() && run?)
    }

    async fn signs(
        &self,
        members: impl Iterator<Item = usize>,
    ) -> Vec<Result<Option<Sign>, Error>> {
        join_all(members.map(|member| self.sign(member, self.options.member_limit))).await
    }

    async fn sign(&self, member: usize, limit: Duration) -> Result<Option<Sign>, Error> {
        self.base_of(member, &Namespace::new(NAMESPACE)?, limit).await.map(Sign::decode)
    }

    pub(super) async fn base_of(
        &self,
        m: usize,
        namespace: &Namespace,
        limit: Duration,
    ) -> Result<u64, Error> {
        let namespace = namespace.clone();
        self.ask(m, limit, |driver| async move { driver.namespace_counter(&namespace).await }).await
    }

    async fn write_sign(&self, member: usize, sign: Sign) -> Result<(), Error> {
        self.raise_base_of(member, &Namespace::new(NAMESPACE)?, sign.encode()).await
    }

    pub(super) async fn raise_base_of(
        &self,
        member: usize,
        namespace: &Namespace,
        to: u64,
    ) -> Result<(), Error> {
        let (limit, namespace) = (self.options.member_limit, namespace.clone());
        let raise = |driver: Arc<dyn LockDriver>| async move {
            driver.raise_namespace_counter(&namespace, to).await
        };
        self.ask(member, limit, raise).await
    }

    /// Watches over a member that came back empty, or perhaps with old data, until it may vote, once at
    /// a time. Ends when this driver is dropped; other programs then go on from where this one was,
    /// since the member says what is waited for.
    fn watch(self: &Arc<Self>, member: usize) {
        if self.members[member].watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let name = self.members[member].name.clone();
        tracing::warn!(member = name, "a member of the quorum may have lost data: quarantined");
        let mut step = WatchStep::begin(self);
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let remaining = inner.watch_once(member).await;
                drop(step);
                let pause = match remaining {
                    Ok(Some(remaining)) => remaining.max(LEAST_PAUSE),
                    Ok(None) => {
                        inner.members[member].watched.store(false, Ordering::Release);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(member = name, %error, "the quarantine goes on");
                        PAUSE
                    }
                };
                drop(inner);
                tokio::time::sleep(pause).await;
                let Some(inner) = weak.upgrade() else { return };
                step = WatchStep::begin(&inner);
            }
        });
    }

    /// Lets a step of a watch that was begun come to its end: a program may live for no longer than
    /// one such step, and so may all that follow it.
    pub(super) async fn steps_taken(&self) {
        let mut steps = self.steps.subscribe();
        let taken = steps.wait_for(|steps| *steps == 0);
        let _ = tokio::time::timeout(4 * self.options.member_limit, taken).await;
    }

    /// A step of the watch: takes the watch claim, or lets the member vote again when that has stood
    /// for long enough. Says how long it has to stand yet; `None` when the member has its sign.
    async fn watch_once(&self, member: usize) -> Result<Option<Duration>, Error> {
        if self.may_vote(member).await? {
            return Ok(None);
        }
        let limit = self.options.member_limit;
        let run = self.run_of(member, limit).await?;
        let claim = watch_claim(run.as_ref())?;
        let max_ttl = self.longest_elsewhere(member).await?;
        let wait = max_ttl + self.options.margin.of(max_ttl);
        let Some(stood) = self.stood(member, &claim).await? else {
            let take = |driver: Arc<dyn LockDriver>| async move {
                driver.acquire(&claim, Patience::Try).await
            };
            self.ask(member, limit, take).await?;
            return Ok(Some(wait));
        };
        if stood < wait {
            return Ok(Some(wait - stood));
        }
        // Once more: it may have lost its data again.
        if self.stood(member, &claim).await?.is_none_or(|stood| stood < wait) {
            return Ok(Some(LEAST_PAUSE));
        }
        if let Some(run) = &run {
            self.admit(member, run).await?;
            self.keep_runs(member).await?;
        }
        self.write_sign(member, Sign { max_ttl }).await?;
        let release = |driver: Arc<dyn LockDriver>| async move { driver.release(&claim).await };
        let _ = self.ask(member, limit, release).await; // it does no harm, and ends by itself
        Ok(None)
    }

    /// For how long the watch claim has stood at a member, by the member's clock; `None` when it is
    /// not there.
    async fn stood(&self, member: usize, claim: &Claim) -> Result<Option<Duration>, Error> {
        let key = claim.key.clone();
        let inspect = |driver: Arc<dyn LockDriver>| async move { driver.inspect(&key).await };
        let state = self.ask(member, self.options.member_limit, inspect).await?;
        Ok(state.queue.first().and_then(|claim| claim.held_for))
    }

    /// The longest ttl that this program or another member knows of.
    async fn longest_elsewhere(&self, member: usize) -> Result<Duration, Error> {
        let signs = self.signs(self.others(member)).await;
        let signs = self.with_data(signs)?;
        let known = signs.iter().map(|sign| sign.max_ttl).max().unwrap_or_default();
        Ok(self.options.max_ttl.max(known))
    }

    pub(super) fn others(&self, member: usize) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |other| *other != member)
    }

    /// What those of the other members say who have their data. A majority must, since any
    /// majority that granted something has one of them in it; unless all answered, so that it is
    /// certain that more than a minority lost their data: then this is the best that can be done.
    fn with_data<T>(&self, answers: Vec<Result<Option<T>, Error>>) -> Result<Vec<T>, Error> {
        let all = answers.iter().all(Result::is_ok);
        let some: Vec<T> = answers.into_iter().flatten().flatten().collect();
        if some.len() < self.majority() && !all {
            return Err(Error::retryable(BACKEND, "too few of the other members answer"));
        }
        Ok(some)
    }
}

//! How a member that lost its data is known, and kept from voting until every lease that it may
//! have forgotten is over; and how its tokens go on growing afterwards.
//!
//! The sign of a member is the token base of a namespace that quorums keep for themselves: the
//! longest ttl in milliseconds, and above it the member's *epoch*. A member without it is new or
//! came back empty. Whoever finds that takes a claim there, which would be gone if the data were
//! lost once more, and writes the sign when the claim has stood for the longest ttl, in a greater
//! epoch than any before. Tokens of an epoch are greater than those of all earlier ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use super::{BACKEND, Shared};
use crate::capabilities::TokenSource;
use crate::deadline::Margin;
use crate::driver::{Acquisition, Patience, Renewal};
use crate::{Claim, Error, Identity, Key, Mode, Name, Namespace, Space, Token};

/// Where a member keeps its sign.
const SIGN: &str = "lockkit.quorum";
/// Where the members keep the greatest epoch that any of them was given.
const GREATEST_EPOCH: &str = "lockkit.quorum.epoch";
/// How long between two looks at a member that somebody else watches over.
const PAUSE: Duration = Duration::from_secs(1);
const TTL_BITS: u32 = 40;
/// Members count their own tokens below 2^52: clocks in microseconds do until the year 2112.
const EPOCH_AT: u32 = 52;
const LAST_EPOCH: u64 = (1 << (63 - EPOCH_AT)) - 1;

/// What a member that has its data says of itself.
#[derive(Clone, Copy)]
struct Sign {
    epoch: u64,
    longest_ttl: Duration,
}

impl Sign {
    fn read(number: u64) -> Option<Self> {
        let longest_ttl = Duration::from_millis(number & ((1 << TTL_BITS) - 1));
        (number > 0).then_some(Self { epoch: number >> TTL_BITS, longest_ttl })
    }

    fn number(self) -> u64 {
        let millis = u64::try_from(self.longest_ttl.as_millis()).unwrap_or(u64::MAX);
        self.epoch << TTL_BITS | millis.clamp(1, (1 << TTL_BITS) - 1)
    }
}

impl Shared {
    /// Looks at all members once. When all of them answer and none has the sign, this is a new
    /// quorum, which has nothing to forget.
    pub(super) async fn open(&self) -> Result<(), Error> {
        if !self.guards.quarantine {
            return Ok(());
        }
        let opening = async {
            let members = 0..self.members.len();
            let signs = join_all(members.clone().map(|m| self.sign(m))).await;
            let answered = signs.iter().flatten().count();
            if answered < self.majority() {
                return Err(Error::retryable(BACKEND, "no majority of the members answers"));
            }
            if answered == self.members.len() && signs.iter().flatten().all(Option::is_none) {
                let new = Sign { epoch: 0, longest_ttl: self.options.longest_ttl };
                join_all(members.map(|m| self.write_sign(m, new))).await;
            }
            Ok(())
        };
        self.opened.get_or_try_init(|| opening).await.copied()
    }

    /// A member's token among those of the quorum.
    pub(super) fn outward(&self, member: usize, token: Token) -> Option<Token> {
        let epoch = self.members[member].epoch.load(Ordering::Acquire);
        Token::new(token.get().checked_add(epoch << EPOCH_AT)?)
    }

    /// The least token of the member that is this one or more among those of the quorum.
    pub(super) fn inward(&self, member: usize, token: Token) -> Token {
        let epoch = self.members[member].epoch.load(Ordering::Acquire);
        let number = token.get().saturating_sub(epoch << EPOCH_AT);
        Token::new(number.max(1)).unwrap_or(token)
    }

    /// An error when the member may not vote for a lease of this ttl.
    pub(super) async fn check_sign(self: &Arc<Self>, m: usize, ttl: Duration) -> Result<(), Error> {
        if !self.guards.quarantine {
            return Ok(());
        }
        let Some(sign) = self.sign(m).await? else {
            self.watch(m);
            let message = format!("member {m} came back without its data and is in quarantine");
            return Err(Error::retryable(BACKEND, message));
        };
        if self.members[m].epoch.swap(sign.epoch, Ordering::AcqRel) != sign.epoch {
            return Err(Error::retryable(BACKEND, "a member has begun another epoch"));
        }
        if sign.longest_ttl < ttl {
            // Another program said a shorter longest ttl: so that who watches over a member that
            // lost its data waits for ours, ours is written before anything counts.
            let longest_ttl = self.options.longest_ttl;
            self.write_sign(m, Sign { longest_ttl, ..sign }).await?;
        }
        Ok(())
    }

    /// Whether the member may vote, for people.
    pub(super) async fn has_sign(&self, member: usize) -> Result<bool, Error> {
        Ok(!self.guards.quarantine || self.sign(member).await?.is_some())
    }

    async fn sign(&self, member: usize) -> Result<Option<Sign>, Error> {
        self.base_of(member, SIGN).await.map(Sign::read)
    }

    async fn base_of(&self, member: usize, namespace: &str) -> Result<u64, Error> {
        let driver = &self.members[member].driver;
        let namespace = Namespace::new(namespace)?;
        self.within(self.options.member_limit, driver.token_base(&namespace)).await
    }

    async fn write_sign(&self, member: usize, sign: Sign) -> Result<(), Error> {
        self.raise_base_of(member, SIGN, sign.number()).await
    }

    async fn raise_base_of(&self, member: usize, namespace: &str, to: u64) -> Result<(), Error> {
        let driver = &self.members[member].driver;
        let namespace = Namespace::new(namespace)?;
        self.within(self.options.member_limit, driver.raise_token_base(&namespace, to)).await
    }

    /// Watches over a member that came back empty until it may vote, once at a time. Ends when
    /// this driver is dropped.
    fn watch(self: &Arc<Self>, member: usize) {
        if self.members[member].watched.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::warn!(member, "a member of the quorum came back without its data: quarantined");
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(shared) = weak.upgrade() else { return };
                let begun = shared.begin_watch(member).await;
                if let Ok(None) = begun {
                    shared.members[member].watched.store(false, Ordering::Release);
                    return;
                }
                drop(shared);
                let Ok(Some((claim, wait))) = begun else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                tokio::time::sleep(wait).await;
                let Some(shared) = weak.upgrade() else { return };
                if let Err(error) = shared.end_watch(member, &claim).await {
                    tracing::warn!(member, %error, "the quarantine goes on");
                }
            }
        });
    }

    /// Takes the watch claim; `None` when the member has its sign.
    async fn begin_watch(&self, member: usize) -> Result<Option<(Arc<Claim>, Duration)>, Error> {
        if self.sign(member).await?.is_some() {
            return Ok(None);
        }
        let longest = self.longest_elsewhere(member).await?;
        let wait = longest + Margin::default().of(longest);
        let key = Key::new(Namespace::new(SIGN)?, Space::Lock, Name::new("quarantine")?);
        let lease = wait + wait / 4 + 8 * self.options.member_limit;
        let identity = Arc::new(Identity::of_this_process());
        let claim = Arc::new(Claim::new(key, Mode::Exclusive, lease, lease, identity));
        let driver = &self.members[member].driver;
        let limit = self.options.member_limit;
        match self.within(limit, driver.acquire(&claim, Patience::Try)).await? {
            Acquisition::Granted(_) => Ok(Some((claim, wait))),
            _ => Err(Error::retryable(BACKEND, "somebody else watches over this member")),
        }
    }

    /// Writes the sign if the watch claim stood all the time.
    async fn end_watch(&self, member: usize, claim: &Arc<Claim>) -> Result<(), Error> {
        let driver = &self.members[member].driver;
        let limit = self.options.member_limit;
        let longest_ttl = self.longest_elsewhere(member).await?;
        let epoch = self.next_epoch(member).await?;
        let outgrown = longest_ttl + Margin::default().of(longest_ttl) * 2 > claim.hold_ttl;
        let stood = self.within(limit, driver.renew(std::slice::from_ref(claim))).await?;
        if !outgrown && matches!(stood.first(), Some(Renewal::Holds(_))) {
            self.write_sign(member, Sign { epoch, longest_ttl }).await?;
        }
        self.within(limit, driver.release(claim)).await.map(drop)
    }

    /// The longest ttl that this program or another member knows of.
    async fn longest_elsewhere(&self, member: usize) -> Result<Duration, Error> {
        let signs = self.with_data(join_all(self.others(member).map(|m| self.sign(m))).await)?;
        let known = signs.iter().map(|sign| sign.longest_ttl).max().unwrap_or_default();
        Ok(self.options.longest_ttl.max(known))
    }

    /// An epoch greater than any before, and remembered by all others as that. Members whose
    /// tokens follow their clocks need none: the clock has gone on since.
    async fn next_epoch(&self, member: usize) -> Result<u64, Error> {
        let source = |m: &super::Member| m.driver.capabilities().token_source;
        let by_clock = self.members.iter().all(|m| source(m) == TokenSource::ClockCounter);
        if by_clock || !self.guards.epochs {
            return Ok(0);
        }
        let greatest = self.others(member).map(|m| async move {
            let sign = self.sign(m).await?;
            let greatest = self.base_of(m, GREATEST_EPOCH).await?;
            Ok(sign.map(|sign| greatest.max(sign.epoch)))
        });
        let epoch = 1 + self.with_data(join_all(greatest).await)?.into_iter().max().unwrap_or(0);
        if epoch > LAST_EPOCH {
            return Err(Error::permanent(
                BACKEND,
                "members lost their data too often: a new quorum",
            ));
        }
        let all = 0..self.members.len();
        let told = join_all(all.map(|m| self.raise_base_of(m, GREATEST_EPOCH, epoch))).await;
        // The member itself is told as well, and does not count.
        if told.iter().flatten().count() <= self.majority() && told.iter().any(Result::is_err) {
            return Err(Error::retryable(BACKEND, "too few members could be told of an epoch"));
        }
        Ok(epoch)
    }

    fn others(&self, member: usize) -> impl Iterator<Item = usize> {
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

//! Operations on a claim list, and their results: plain data.

use std::time::Duration;

use crate::claim::ClaimId;
use crate::clock::Moment;
use crate::driver::{
    Acquisition, BreakMode, ClaimEnd, Grant, Patience, Released, Renewal, SetLimit,
};
use crate::{BreakRecord, Claim, Error, LossReason, Mode, Result, Token};

/// A claim of a queue, with what a driver keeps of it (`W`), such as its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedClaim<W = ()> {
    /// The secret that renews and releases it.
    pub id: ClaimId,
    /// Its sequence number, which it was given when it was queued.
    pub sequence: u64,
    /// Its token: the sequence number, unless raised.
    pub token: Token,
    /// The claim's mode, until a downgrade. The limit is that of the time when the claim came.
    pub mode: Mode,
    /// The claim's, or that of its last renewal.
    pub hold_ttl: Duration,
    /// The claim's, or that of its last renewal.
    pub wait_ttl: Duration,
    /// Since when it is in the queue.
    pub queued_at: Moment,
    /// When its owner last asked for it. Later than the `now` of a step where clients read clocks
    /// before they come to their turn.
    pub asked_at: Moment,
    /// When its lease ends.
    pub expires: Moment,
    /// Since when it holds; `None` while it waits.
    pub held_since: Option<Moment>,
    /// Whether it was broken gracefully, and is renewed no longer.
    pub broken: bool,
    /// What the driver keeps.
    pub with: W,
}

impl<W> QueuedClaim<W> {
    /// Whether it holds.
    pub fn holds(&self) -> bool {
        self.held_since.is_some()
    }

    /// A lease of `ttl` that begins now has ended when `ttl` has passed.
    pub fn is_live(&self, now: Moment) -> bool {
        now < self.expires
    }
}

/// What is to be done to a list.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::clock::Moment;
/// use lockkit_core::driver::{Patience, Released};
/// use lockkit_core::claim_list::{OperationResult, ClaimList, TokenSequence, ListOperation};
///
/// let (mut list, mut tokens) = (ClaimList::<()>::new(), TokenSequence::above(0));
/// let now = Moment::from_nanos(0);
/// let first = claim("nightly", Mode::Exclusive)?;
/// let second = claim("nightly", Mode::Exclusive)?;
/// let wait = |claim| ListOperation::Acquire { claim, with: (), patience: Patience::Wait, given: None };
///
/// let applied = list.apply(&wait(&first), now, &mut tokens).expect("tokens are left");
/// assert!(matches!(applied.answer, OperationResult::Holds(_)));
/// let applied = list.apply(&wait(&second), now, &mut tokens).expect("tokens are left");
/// assert_eq!(applied.answer, OperationResult::Waits(2));
///
/// // The release lets the second begin, and says whom to wake.
/// let applied = list.apply(&ListOperation::Release(&first), now, &mut tokens).expect("tokens are left");
/// assert_eq!(applied.answer, OperationResult::Released(Released::Removed));
/// assert!(applied.changes.iter().any(|change| change.id == second.id && change.wakes()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub enum ListOperation<'a, W = ()> {
    /// Nothing but what every step begins with: claims that have ended leave, and those that may
    /// begin to hold do.
    Advance,
    /// [`LockDriver::acquire`](crate::driver::LockDriver::acquire).
    Acquire {
        /// The claim.
        claim: &'a Claim,
        /// What to keep with it.
        with: W,
        /// What it does when it cannot hold.
        patience: Patience,
        /// The limit that the semaphore was given, if it was.
        given: Option<u32>,
    },
    /// [`LockDriver::renew`](crate::driver::LockDriver::renew), of one claim.
    Renew(&'a Claim),
    /// [`LockDriver::release`](crate::driver::LockDriver::release).
    Release(&'a Claim),
    /// [`LockDriver::shorten`](crate::driver::LockDriver::shorten).
    Shorten(&'a Claim, Duration),
    /// [`LockDriver::downgrade`](crate::driver::LockDriver::downgrade).
    Downgrade(&'a Claim),
    /// [`LockDriver::raise`](crate::driver::LockDriver::raise). Needs the whole list.
    Raise(&'a Claim, Token),
    /// [`LockDriver::break_claim`](crate::driver::LockDriver::break_claim).
    Break(Token, BreakMode),
    /// [`LockDriver::resize`](crate::driver::LockDriver::resize).
    Resize {
        /// The limit asked for.
        limit: SetLimit,
        /// The limit that the semaphore was given before.
        given: Option<u32>,
    },
}

impl<'a, W> ListOperation<'a, W> {
    /// The claim that it is about, if it is about one.
    pub fn claim(&self) -> Option<&'a Claim> {
        match self {
            Self::Acquire { claim, .. }
            | Self::Renew(claim)
            | Self::Release(claim)
            | Self::Shorten(claim, _)
            | Self::Downgrade(claim)
            | Self::Raise(claim, _) => Some(claim),
            Self::Advance | Self::Break(..) | Self::Resize { .. } => None,
        }
    }
}

/// What became of the claim of a step, or of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The claim holds.
    Holds(Grant),
    /// The claim waits, with this sequence number; [`ClaimList::ahead`](super::ClaimList::ahead) counts the claims before it.
    Waits(u64),
    /// The claim could not hold at once and is not in the list.
    Busy,
    /// The claim is not in the list.
    NotFound,
    /// The claim was broken, and stands until its lease ends.
    Broken,
    /// The claim was refused: the semaphore has this limit.
    OtherLimit(u32),
    /// Of a release.
    Released(Released),
    /// Of a break: the claims that were broken; none when no claim has that token.
    BrokenClaims(Vec<BrokenClaim>),
    /// Of a resize: the limit that the semaphore has now.
    Limit(u32),
    /// Of [`ListOperation::Advance`].
    Advanced,
}

impl OperationResult {
    /// What a driver answers to an acquire: `ahead` are the claims before one that waits, `broken` says
    /// how the claim was broken, if it was.
    ///
    /// # Errors
    /// [`Error::LimitMismatch`], and [`Error::Lost`] for a claim that is in the queue and was broken.
    pub fn acquisition<E: From<Error>>(
        self,
        claim: &Claim,
        ahead: u32,
        broken: impl FnOnce() -> Result<Option<BreakRecord>, E>,
    ) -> Result<Acquisition, E> {
        match self {
            Self::Holds(grant) => Ok(Acquisition::Granted(grant)),
            Self::Waits(_) => Ok(Acquisition::Queued { ahead }),
            Self::OtherLimit(in_use) => Err(claim.other_limit(in_use).into()),
            Self::Broken => {
                let reason = broken()?.map_or(LossReason::Expired, LossReason::Broken);
                Err(Error::Lost { reason }.into())
            }
            _ => Ok(Acquisition::Busy),
        }
    }

    /// What a driver answers to a renewal; as [`acquisition`](Self::acquisition).
    pub fn renewal<E>(
        self,
        ahead: u32,
        broken: impl FnOnce() -> Result<Option<BreakRecord>, E>,
    ) -> Result<Renewal, E> {
        Ok(match self {
            Self::Holds(grant) => Renewal::Holds(grant),
            Self::Waits(_) => Renewal::Waits { ahead },
            _ => Renewal::Ended(broken()?.map_or(ClaimEnd::NotFound, ClaimEnd::Broken)),
        })
    }
}

/// A claim that was broken, and until when its renewals have to be told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenClaim {
    /// Which one.
    pub id: ClaimId,
    /// When its owner knows at the latest.
    pub until: Moment,
}

/// A change to a claim of the list. [`ClaimList::get`](super::ClaimList::get) has the claim as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where it stands.
    pub sequence: u64,
    /// Which one.
    pub id: ClaimId,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// What happened to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new, and the last of the list.
    Queued,
    /// It waited and now holds, on the lease of a holder.
    Promoted,
    /// It is in the list no more.
    Removed,
    /// It was marked as broken.
    Broken,
    /// Its mode or its token is another.
    Changed,
    /// Its lease ends at another time.
    Renewed,
}

impl Change {
    /// Whether its owner has to be woken, if it waits for the claim.
    pub fn wakes(&self) -> bool {
        matches!(self.kind, ChangeKind::Promoted | ChangeKind::Removed | ChangeKind::Broken)
    }
}

/// What a step did.
#[derive(Clone, Debug)]
pub struct AppliedOperation {
    /// The answer to it.
    pub answer: OperationResult,
    /// What changed, in order.
    pub changes: Vec<Change>,
    /// Whether the window ended before it was clear that no other claim is promoted: extend it and
    /// apply [`ListOperation::Advance`] before anything is made known.
    pub more: bool,
}

/// Why a step could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// The window does not go far enough.
    NeedMore,
    /// No tokens are left.
    TokensUsedUp,
}

/// The sequence numbers and tokens that are given to new claims.
#[derive(Clone, Copy, Debug)]
pub struct TokenSequence {
    next: u64,
}

impl TokenSequence {
    /// Greater ones than this.
    pub fn above(last: u64) -> Self {
        Self { next: last + 1 }
    }

    /// The last one that was given or skipped.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    pub(super) fn take(&mut self) -> Result<Token, ApplyError> {
        let token = Token::new(self.next).ok_or(ApplyError::TokensUsedUp)?;
        self.next += 1;
        Ok(token)
    }

    /// Gives only greater ones than `token` from here on; an error when fewer than `needed` are
    /// left then.
    pub(super) fn go_beyond(&mut self, token: Token, needed: usize) -> Result<(), ApplyError> {
        let next = self.next.max(token.get() + 1);
        if next - 1 > i64::MAX as u64 - needed as u64 {
            return Err(ApplyError::TokensUsedUp);
        }
        self.next = next;
        Ok(())
    }
}

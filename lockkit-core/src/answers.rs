//! What a backend answers, and what it is asked with: plain data. [`driver`](crate::driver) shows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::{BreakRecord, LossReason, Token};

/// An answer of the backend, and how many attempts the driver made before it.
///
/// A driver that repeats a request by itself, because a connection broke before the answer came,
/// says so: an attempt without an answer may have been carried out, or may still be on its way
/// and be carried out later. Core then keeps releasing the claim until its ttl is over.
///
/// ```
/// use lockkit_core::driver::{Acquisition, Attempted};
///
/// let once = Attempted::from(Acquisition::Busy);
/// assert_eq!(once.ambiguous, 0);
/// // The connection broke, and the driver sent the request again.
/// let twice = Attempted::after(1, Acquisition::Busy);
/// assert_eq!(twice.ambiguous, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted<T> {
    /// The result.
    pub result: T,
    /// How many earlier attempts of this request got no answer. An attempt that certainly never
    /// left this process, or that the backend certainly refused, does not count.
    pub ambiguous: u32,
}

impl<T> Attempted<T> {
    /// The answer to a request that was sent again after this many attempts without one.
    pub const fn after(ambiguous: u32, result: T) -> Self {
        Self { result, ambiguous }
    }

    /// Another answer after as many attempts.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempted<U> {
        Attempted { result: f(self.result), ambiguous: self.ambiguous }
    }
}

impl Attempted<Released> {
    /// "Not found" after an attempt that got no answer is taken for the end of that attempt.
    pub(crate) fn released(self) -> Released {
        match self.ambiguous {
            0 => self.result,
            _ => Released::Removed,
        }
    }
}

/// The answer to a request that was sent once.
impl<T> From<T> for Attempted<T> {
    fn from(result: T) -> Self {
        Self { result, ambiguous: 0 }
    }
}

/// What a claim does when it cannot hold at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::{Acquisition, LockDriver, Patience};
///
/// let driver = MemoryDriver::new();
/// let first = claim("nightly", Mode::Exclusive)?;
/// driver.acquire(&first, Patience::Try).await?;
///
/// let second = claim("nightly", Mode::Exclusive)?;
/// assert_eq!(driver.acquire(&second, Patience::Try).await?.result, Acquisition::Busy);
/// let queued = driver.acquire(&second, Patience::Wait).await?.result;
/// assert_eq!(queued, Acquisition::Queued { ahead: 1 });
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Is refused at once.
    Try,
    /// Waits in the queue.
    Wait,
}

/// The answer to [`LockDriver::acquire`](crate::driver::LockDriver::acquire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// The claim holds.
    Granted(Grant),
    /// The claim waits behind this many live claims.
    Queued {
        /// The number of live claims ahead of it; from 64 on a driver may count no further.
        ahead: u32,
    },
    /// The claim could not hold, and is not in the list.
    Busy,
}

/// A claim holds.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::Token;
/// use lockkit_core::driver::{Acquisition, Grant, LeaseStart};
///
/// // The backend keeps whole seconds, so 1.5 s became 2 s.
/// let ttl = Duration::from_secs(2);
/// let token = Token::new(7).expect("from 1 on");
/// let answer = Acquisition::Granted(Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its fencing token.
    pub token: Token,
    /// How long its lease lasts at the backend, which may have rounded what was asked for up.
    pub ttl: Duration,
    /// When the lease began.
    pub start: LeaseStart,
    /// What a client leaves unused of the ttl at least: the greater of this and of its own
    /// [`Margin`](crate::Margin) counts. Zero where the backend names none.
    pub margin: Duration,
}

/// From which moment on the TTL of a [`Grant`] counts: one **before the request was sent** that the
/// backend answered with this lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStart {
    /// The sending of the last request about this claim that core sent itself and that was answered:
    /// right wherever that request set the lease.
    LastAnswered,
    /// This moment: for a driver that shares leases between claims, that asked on its own, or that
    /// learned of the grant from the answer to a request about another claim. Then it is the sending of the
    /// very request whose execution promoted the claim.
    Sent(Moment),
}

impl LeaseStart {
    /// The moment, where core's last answered request was sent at `asked`.
    pub fn or(self, asked: Moment) -> Moment {
        self.moment().unwrap_or(asked)
    }

    /// The moment, where the driver named one.
    pub fn moment(self) -> Option<Moment> {
        match self {
            Self::LastAnswered => None,
            Self::Sent(moment) => Some(moment),
        }
    }
}

/// What became of a renewed claim.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::{ClaimEnd, LockDriver, Patience, Renewal};
///
/// let driver = MemoryDriver::new();
/// let claim = claim("nightly", Mode::Exclusive)?;
/// driver.acquire(&claim, Patience::Try).await?;
/// assert!(matches!(driver.renew_single(&claim).await?, Renewal::Holds(_)));
///
/// driver.release(&claim).await?;
/// assert_eq!(driver.renew_single(&claim).await?, Renewal::Ended(ClaimEnd::NotFound));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It holds; its lease was renewed.
    Holds(Grant),
    /// It waits behind this many live claims.
    Waits {
        /// The number of live claims ahead of it.
        ahead: u32,
    },
    /// It is not live any more, and never will be again.
    Ended(ClaimEnd),
}

impl Renewal {
    /// The same, where core did not send the request that renewed: a grant counts from its sending at
    /// `sent`, unless the driver named another moment.
    #[must_use]
    pub fn counted_from(self, sent: Moment) -> Self {
        match self {
            Self::Holds(grant) if grant.start == LeaseStart::LastAnswered => {
                Self::Holds(Grant { start: LeaseStart::Sent(sent), ..grant })
            }
            other => other,
        }
    }
}

/// Why a claim is not live, as far as the backend can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimEnd {
    /// It is not in the list: released, expired, or lost. Core tells these apart.
    NotFound,
    /// It was broken.
    Broken(BreakRecord),
    /// The session or the lease that kept it alive ended.
    SessionEnded,
}

/// Why a claim was lost that is not in the list when its lease may have ended.
impl From<ClaimEnd> for LossReason {
    fn from(ended: ClaimEnd) -> Self {
        match ended {
            ClaimEnd::NotFound => Self::Expired,
            ClaimEnd::Broken(record) => Self::Broken(record),
            ClaimEnd::SessionEnded => Self::SessionEnded,
        }
    }
}

/// The answer to [`LockDriver::anchor`](crate::driver::LockDriver::anchor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchored {
    /// It holds, and this is where: [`Anchor::at`](crate::Anchor::at).
    At(Vec<u8>),
    /// It is not live any more, and never will be again.
    Ended(ClaimEnd),
}

/// The answer to [`LockDriver::release`](crate::driver::LockDriver::release).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::{LockDriver, Patience, Released};
///
/// let driver = MemoryDriver::new();
/// let claim = claim("nightly", Mode::Exclusive)?;
/// driver.acquire(&claim, Patience::Try).await?;
/// assert_eq!(driver.release(&claim).await?, Released::Removed);
/// assert_eq!(driver.release(&claim).await?, Released::NoSuchLock);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim was in the list, and was taken out.
    Removed,
    /// The claim was not in the list; others are. (It ended, or it is another client's.)
    NotFound,
    /// The queue was empty: the lock is free.
    NoSuchLock,
}

/// Which limit a semaphore is given.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::{LockDriver, SetLimit};
/// use lockkit_core::{Key, MemoryDriver, Name, Namespace, Space};
///
/// let driver = MemoryDriver::new();
/// let imports = Key::new(Namespace::default(), Space::Semaphore, Name::new("imports")?);
/// assert_eq!(driver.resize(&imports, SetLimit::IfUnset(4)).await?, 4);
/// assert_eq!(driver.resize(&imports, SetLimit::IfUnset(8)).await?, 4);
/// assert_eq!(driver.resize(&imports, SetLimit::To(8)).await?, 8);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetLimit {
    /// This one, unless it has one.
    IfUnset(u32),
    /// This one.
    To(u32),
}

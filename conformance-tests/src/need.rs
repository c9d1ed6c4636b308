//! What a case asks of driver and harness, and the counter-check: a driver that denies a capability
//! must really not have it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::capabilities::LeaseScope;
use lockkit_core::driver::{LockDriver, Patience, SetLimit};
use lockkit_core::{Claim, Error, Lifetime, Mode, Space, Token};

use crate::context::{CaseContext, MustSucceed};
use crate::harness::Time;

/// What must be given for a case to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Applies to every driver.
    Nothing,
    /// `Capabilities::fifo`: the case is about who comes first. (One that merely looks at those
    /// who wait asks [`CaseContext::has_line`], and leaves that part out.)
    Fifo,
    /// `Capabilities::fifo`, and leases that a claim does not have in common with the session of its
    /// connection: with one ttl for waiting and another for holding.
    Leases,
    /// `Capabilities::permits`.
    Permits,
    /// `Capabilities::permits` and `resize`.
    Resize,
    /// `Capabilities::permits` and `slots`.
    Slots,
    /// `Capabilities::raise`.
    Raise,
    /// `Capabilities::detached`.
    Detached,
    /// `Capabilities::registers`.
    Registers,
    /// `Capabilities::namespaces`.
    Namespaces,
    /// `Capabilities::shared_between_processes`, and a worker from the harness.
    Processes,
    /// A harness that counts leftovers.
    Leftovers,
    /// A harness that runs in real time.
    RealTime,
}

impl Need {
    /// Why a case with this need does not apply here; `None` when it does.
    ///
    /// # Errors
    /// When the harness cannot say.
    pub async fn missing(self, context: &CaseContext) -> Result<Option<&'static str>, Error> {
        let can = context.capabilities();
        let paused = context.harness().time() == Time::Paused;
        Ok(match self {
            Self::Fifo | Self::Leases if !can.fifo => {
                Some("the driver keeps no line of those who wait")
            }
            Self::Leases if can.lease_scope == LeaseScope::Session => {
                Some("claims last as long as their session")
            }
            Self::Permits if !can.permits => Some("the driver has no semaphores"),
            Self::Resize if !can.permits => Some("the driver has no semaphores"),
            Self::Resize if !can.resize => Some("the driver cannot resize semaphores"),
            Self::Slots if !can.permits || !can.slots => Some("the driver has no slots"),
            Self::Raise if !can.raise => Some("the driver cannot raise tokens"),
            Self::Detached if !can.detached => Some("claims end with their process"),
            Self::Registers if !can.registers => Some("the driver has no registers"),
            Self::Namespaces if !can.namespaces => Some("the driver cannot list namespaces"),
            Self::Processes if !can.shared_between_processes => {
                Some("the backend lives in one process")
            }
            Self::Processes if context.harness().worker().is_none() => {
                Some("the harness has no worker process")
            }
            Self::Leftovers if self.uncounted(context).await? => {
                Some("the harness cannot count what the backend keeps")
            }
            Self::RealTime if paused => Some("the harness runs on a paused clock"),
            _ => None,
        })
    }

    async fn uncounted(self, context: &CaseContext) -> Result<bool, Error> {
        let count = context.harness().leftovers(context.namespace()).await?;
        Ok(count.is_none())
    }

    /// Panics when the driver does what it denies.
    pub async fn check_denial(self, context: &CaseContext) {
        match self {
            Self::Permits => no_permits(context).await,
            Self::Resize => no_resize(context).await,
            Self::Slots => no_slots(context).await,
            Self::Raise => no_raise(context).await,
            Self::Detached => no_detached(context).await,
            Self::Registers => no_registers(context).await,
            Self::Namespaces => no_namespaces(context).await,
            // An order that is kept without having been promised does no harm; what the harness
            // lacks is no lie of the driver's.
            Self::Nothing | Self::Fifo | Self::Leases => {}
            Self::Processes | Self::Leftovers | Self::RealTime => {}
        }
    }
}

async fn no_permits(context: &CaseContext) {
    let driver = context.driver().await;
    let claim = context.permits("denied", 1, 2);
    refused(driver.acquire(&claim, Patience::Try).await, "semaphores");
}

async fn no_resize(context: &CaseContext) {
    let driver = context.driver().await;
    let key = context.key_in(Space::Semaphore, "denied");
    for limit in [SetLimit::IfUnset(2), SetLimit::To(3)] {
        refused(driver.resize(&key, limit).await, "resizing semaphores");
    }
}

async fn no_slots(context: &CaseContext) {
    let manager = context.manager().await;
    refused(manager.slots("denied", 2).try_acquire().await, "slots");
}

async fn no_raise(context: &CaseContext) {
    let driver = context.driver().await;
    let claim = context.exclusive("denied");
    let token = driver.grant(&claim).await.token;
    let higher = Token::new(token.get() + 1000).expect("far from the greatest token");
    refused(driver.raise(&claim, higher).await, "raising tokens");
    assert_eq!(driver.holds(&claim).await.token, token, "nothing was raised");
}

async fn no_detached(context: &CaseContext) {
    let driver = context.driver().await;
    let claim = Claim::clone(&context.exclusive("denied")).with_lifetime(Lifetime::Detached);
    let answer = driver.acquire(&Arc::new(claim), Patience::Try).await;
    refused(answer, "detached claims");
}

async fn no_registers(context: &CaseContext) {
    let driver = context.driver().await;
    let there = driver.registers().is_some();
    assert!(!there, "the driver denies registers, yet it has them");
}

async fn no_namespaces(context: &CaseContext) {
    refused(context.driver().await.namespaces(None, 1).await, "listing namespaces");
}

/// Checks that a driver that cannot shorten leases at the server says so when asked.
pub(crate) async fn no_shorten(context: &CaseContext, driver: &Arc<dyn LockDriver>) {
    let claim = context.claim("denied", Mode::Exclusive);
    driver.grant(&claim).await;
    let answer = driver.shorten(&claim, Duration::from_secs(10)).await;
    refused(answer, "shortening a lease");
    driver.let_go(&claim).await;
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Error>, what: &str) {
    assert!(
        matches!(answer, Err(Error::Unsupported { .. })),
        "the driver denies {what}, so the answer must be Unsupported, not {answer:?}"
    );
}

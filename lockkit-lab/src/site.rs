//! What the author of a driver for a server says once, so that the trials (the cases that count
//! messages or stage faults) can be run on it. It stages nothing itself.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;

use crate::proxy::Protocol;
use crate::{Layout, Server, ServerKind};

/// A kind of server that locks are kept in, and the driver that reaches it. The lab starts the
/// servers.
///
/// ```no_run
/// # use std::sync::Arc;
/// use lockkit_lab::ServerKind;
/// use lockkit_lab::{Costs, Deployment};
/// # use lockkit_core::{Error, driver::LockDriver};
///
/// struct Mine;
///
/// #[async_trait::async_trait]
/// impl Deployment for Mine {
///     fn kind(&self) -> ServerKind {
///         ServerKind::Redis
///     }
///
///     async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
/// #       let _ = url;
/// #       use lockkit_conformance::broken::Toy as MyDriver;
///         Ok(Arc::new(MyDriver::sound()))
///     }
/// }
///
/// # const _: &str = stringify! {
/// lockkit_lab::trials!(Mine);
/// # };
/// ```
#[async_trait]
pub trait Deployment: Send + Sync + 'static {
    /// The server that stands alone.
    fn kind(&self) -> ServerKind;

    /// The group of servers in which locks are kept, rather than in one that stands alone: all
    /// trials then run on such a group, and a fault of the server is one of all its members.
    fn layout(&self) -> Option<Layout> {
        None
    }

    /// A driver of its own onto the server, or group of servers, that this URL names: with a
    /// connection of its own.
    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error>;

    /// Options that all URLs get, such as `?ttl=8s`: for drivers whose leases are not those of
    /// single locks, which a trial can choose.
    fn options(&self) -> &'static str {
        ""
    }

    /// Whether the server is one of several members of the driver's service, whose loss no client is
    /// to notice. The trials about the loss of a server then demand that. It is never shared with
    /// other tests.
    fn is_member(&self) -> bool {
        false
    }

    /// How the proxy tells messages apart.
    fn protocol(&self) -> Protocol {
        self.kind().protocol()
    }

    /// What the operations cost; the budget, unless the backend cannot keep it. The driver says the
    /// same in [`Capabilities::round_trips`](lockkit_core::Capabilities::round_trips).
    fn costs(&self) -> Costs {
        Costs::BUDGET
    }

    /// The groups of servers in which a leader or master can be lost. Without any, the trials
    /// about leaders are *not applicable*.
    fn layouts(&self) -> Vec<Layout> {
        Vec::new()
    }

    /// Ways to take data away from under the driver. Without any, the trial about them is *not
    /// applicable*.
    fn deletions(&self) -> Vec<Deletion> {
        Vec::new()
    }

    /// Ways in which the server can refuse. Without any, the trial about them is *not applicable*.
    fn refusals(&self) -> Vec<RefusalMode> {
        Vec::new()
    }

    /// A program that hands its arguments after `worker` to [`worker::run`](lockkit_conformance::worker::run)
    /// and reaches this backend. Without it the trials about processes are *not applicable*.
    fn worker(&self) -> Option<PathBuf> {
        None
    }
}

/// What operations cost on a warm connection, in round trips: requests that leave
/// before any answer comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// An exclusive acquire of a free lock that has been in use before, ready to wait.
    pub acquire: u64,
    /// The same by who would not wait.
    pub granted_try: u64,
    /// The same of a shared claim, or of permits.
    pub acquire_shared: u64,
    /// An acquire of a lock that has never been in use.
    pub first_use: u64,
    /// A release when no claim waits.
    pub release: u64,
    /// A try when the lock is held.
    pub refused_try: u64,
    /// A renewal of 1,000 claims.
    pub renew_thousand: u64,
    /// How many servers that renewal asks at the same time. With each it is so many round trips,
    /// which are counted one by one and last no longer than one.
    pub renewed_side_by_side: u64,
    /// What the next one asks between being woken and knowing that it holds.
    pub look_when_woken: u64,
    /// How many messages one release sends to those who wait.
    pub wake_ups: u64,
    /// How many round trips fewer an operation may take at times: where the client leaves Nagle's
    /// algorithm on, what leaves back to back is one round trip or two.
    pub fewer_at_times: u64,
}

impl Costs {
    /// The budget of every driver.
    pub const BUDGET: Self = Self {
        acquire: 1,
        granted_try: 1,
        acquire_shared: 1,
        first_use: 1,
        release: 1,
        refused_try: 1,
        renew_thousand: 1,
        renewed_side_by_side: 1,
        look_when_woken: 0,
        wake_ups: 1,
        fewer_at_times: 0,
    };
}

/// Something done to a server, past the driver.
pub type Act = for<'a> fn(&'a Server) -> BoxFuture<'a, io::Result<()>>;

/// A way to take data away while locks are held.
#[derive(Clone, Copy)]
pub struct Deletion {
    /// As operators call it: `FLUSHALL`.
    pub what: &'static str,
    /// What it is in the table of faults; `None` when the driver must not even notice.
    pub fault: Option<Fault>,
    /// Does it.
    pub act: Act,
}

/// A way in which a server refuses to work.
#[derive(Clone, Copy)]
pub struct RefusalMode {
    /// As operators call it: `the memory is full`.
    pub what: &'static str,
    /// Whether the error is to say that trying again may help.
    pub retryable: bool,
    /// Whom it concerns.
    pub concerns: Concerns,
    /// From now on it refuses.
    pub begin: Act,
    /// From now on it works again.
    pub end: Act,
}

/// Whom a refusal concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// Claims on connections that are open.
    Claims,
    /// New connections.
    Newcomers,
}

//! What differs between backends, as data: code asks it, the docs print it, the conformance suite
//! holds drivers to it. A driver that claims what it does not do fails, and so does one that does
//! what it says it cannot.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a driver does and does not do. Public facts, cheap to copy.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use std::time::Duration;
///
/// let can = locks.capabilities();
/// assert!(can.fifo, "this program relies on first come, first served");
/// assert!(can.registers && can.min_ttl <= Duration::from_secs(5));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, lower case: `memory`, `sqlite`, `redis` …
    pub backend: &'static str,
    /// Whose clock says when a lease is over.
    pub lease_clock: LeaseClock,
    /// What one lease at the backend keeps alive.
    pub lease_scope: LeaseScope,
    /// Leases are rounded up to multiples of this.
    pub granularity: Duration,
    /// The shortest lease that the backend keeps. A shorter ttl is refused before any I/O.
    pub min_ttl: Duration,
    /// The longest lease that the backend is known to give. A claim with a longer ttl is granted this
    /// at least, which its grant says, and renewed as usual.
    pub max_ttl: Duration,
    /// How much later than its ttl a dead claim may leave, at worst, without any fault of the
    /// server: granularity, sweeps, and the grace that a new leader gives.
    pub expiry_slack: Duration,
    /// How a waiter learns that it holds.
    pub wake_up: WakeUp,
    /// Whether claims are granted in the order in which they were queued.
    pub fifo: bool,
    /// Where tokens come from.
    pub token_source: TokenSource,
    /// Whether semaphores work.
    pub permits: bool,
    /// Whether [slots](crate::sync::Slots) work: a permit and a lock of one name, and a listing that shows all
    /// that is held.
    pub slots: bool,
    /// Whether semaphores can be given a limit that stays and can be changed while permits are out
    /// ([`LockDriver::resize`]).
    ///
    /// [`LockDriver::resize`]: crate::driver::LockDriver::resize
    pub resize: bool,
    /// Whether the server itself can end a lease earlier ([`LockDriver::shorten`]).
    ///
    /// [`LockDriver::shorten`]: crate::driver::LockDriver::shorten
    pub shorten: bool,
    /// Whether tokens of a live claim can be raised ([`LockDriver::raise`]).
    ///
    /// [`LockDriver::raise`]: crate::driver::LockDriver::raise
    pub raise: bool,
    /// Whether claims can outlive the process that made them.
    pub detached: bool,
    /// Whether independent processes meet here; `false` for what lives in one process.
    pub shared_between_processes: bool,
    /// Whether there are [`Registers`](crate::driver::Registers).
    pub registers: bool,
    /// Whether the namespaces in use can be listed ([`LockDriver::namespaces`]).
    ///
    /// [`LockDriver::namespaces`]: crate::driver::LockDriver::namespaces
    pub namespaces: bool,
    /// What the usual operations cost on a warm connection; `None` where there is no network to
    /// cross.
    pub round_trips: Option<RoundTrips>,
    /// How many steps travel in one request, and how many requests at once.
    pub batches: BatchLimits,
    /// What each fault may cost where the servers are set up as the driver's documentation asks;
    /// [`Capabilities::guarantee`] reads it. [`LockDriver::promises`] says what is kept by the servers as
    /// they are.
    ///
    /// [`LockDriver::promises`]: crate::driver::LockDriver::promises
    pub faults: &'static [(Fault, Guarantee)],
}

impl Capabilities {
    /// A backend that can do the least, keeping every claim on a lease of its own; a driver's
    /// author sets what is more. Faults that the table does not name keep all promises.
    pub const fn of(backend: &'static str) -> Self {
        Self {
            backend,
            lease_clock: LeaseClock::Server,
            lease_scope: LeaseScope::Claim,
            granularity: Duration::from_millis(1),
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::MAX,
            expiry_slack: Duration::from_millis(100),
            wake_up: WakeUp::Poll { within: Duration::from_secs(1) },
            fifo: true,
            token_source: TokenSource::Counter,
            permits: true,
            slots: true,
            resize: false,
            shorten: false,
            raise: false,
            detached: false,
            shared_between_processes: true,
            registers: false,
            namespaces: false,
            round_trips: Some(RoundTrips::BUDGET),
            batches: BatchLimits::SINGLE,
            faults: &[],
        }
    }

    /// Which promises hold here while this fault happens.
    pub fn guarantee(&self, fault: Fault) -> Guarantee {
        self.faults
            .iter()
            .find(|(f, _)| *f == fault)
            .map_or(Guarantee::All, |(_, guarantee)| *guarantee)
    }
}

/// Whose clock says when a lease is over.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::capabilities::LeaseClock;
///
/// if locks.capabilities().lease_clock == LeaseClock::Server {
///     println!("do not step the server's clock");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseClock {
    /// A clock that all clients on the one machine share, and that is never stepped.
    Machine,
    /// The server's wall clock, which may be stepped.
    Server,
    /// The monotonic clock of the server, or of the leader of a cluster.
    Leader,
    /// Each member's own, of several backends.
    Members,
    /// Those of the other clients: each counts from its own reading of the owner's last sign of life, on a
    /// monotonic clock.
    Observers,
}

/// What operations cost on a warm connection, in round trips: requests of which the last leaves
/// before the first answer comes back count as one.
///
/// ```
/// use lockkit_core::capabilities::{Capabilities, RoundTrips};
///
/// // A driver whose release takes two.
/// let mut mine = RoundTrips::BUDGET;
/// mine.release = 2;
/// let mut capabilities = Capabilities::of("mine");
/// capabilities.round_trips = Some(mine);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RoundTrips {
    /// An exclusive claim on a free lock that has been in use before.
    pub acquire: u64,
    /// A release when no claim waits.
    pub release: u64,
    /// A try when the lock is held.
    pub refused_try: u64,
    /// A renewal of 1,000 claims of one process.
    pub renew: u64,
    /// What the next waiter asks between being woken and knowing that it holds.
    pub once_woken: u64,
}

impl RoundTrips {
    /// The budget of every driver.
    pub const BUDGET: Self =
        Self { acquire: 1, release: 1, refused_try: 1, renew: 1, once_woken: 0 };
}

/// What one lease at the backend keeps alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::capabilities::LeaseScope;
///
/// match locks.capabilities().lease_scope {
///     LeaseScope::Session => println!("a lost session costs all its locks"),
///     LeaseScope::Claim | LeaseScope::Shared => {}
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseScope {
    /// Each claim has its own.
    Claim,
    /// Claims of one manager with the same ttl share one (etcd). Those that are renewed are known to
    /// the driver that put them in alone.
    Shared,
    /// Claims of one driver with the same ttl live and die with one session (ZooKeeper).
    Session,
}

/// How a waiter learns that it holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use std::time::Duration;
/// use lockkit_core::capabilities::WakeUp;
///
/// let at_worst = match locks.capabilities().wake_up {
///     WakeUp::Poll { within } => within,
///     _ => Duration::ZERO, // told, as soon as the message is here
/// };
/// assert_eq!(at_worst, Duration::ZERO);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WakeUp {
    /// The backend tells it.
    Push,
    /// The client polls, often enough to know within this time when it is next in the queue.
    Poll {
        /// The time between the release and the next holder's knowing, at worst, idle machines
        /// assumed.
        within: Duration,
    },
}

/// Where tokens come from.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::capabilities::TokenSource;
///
/// // Whether tokens go on growing when the backend came back empty.
/// let survives = locks.capabilities().token_source == TokenSource::ClockCounter;
/// assert!(!survives, "memory counts from 1");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenSource {
    /// A number that the backend counts up, as durable as its data.
    Counter,
    /// A counter that begins at the server's clock, so that it grows even when data is lost.
    ClockCounter,
    /// A counter that is never behind the clock of the client that counts it up, so that with sane clocks it
    /// grows even when data is lost.
    ClientClocks,
    /// The number that the backend gives to every change of its data (etcd's revision,
    /// ZooKeeper's zxid).
    Revision,
}

/// What can go wrong around a lock, of the kinds that may cost a promise somewhere.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::capabilities::{Fault, Guarantee};
///
/// let can = locks.capabilities();
/// for fault in Fault::ALL {
///     if can.guarantee(fault) < Guarantee::All {
///         println!("{fault:?}: check tokens at the resource");
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// An answer is lost, or a connection is cut, at any message.
    ConnectionCut,
    /// Nothing passes between a client and the server for longer than the ttl.
    Partition,
    /// The server stands still for longer than the ttl.
    ServerPaused,
    /// A client's process is stopped for longer than the ttl, while its machine goes on.
    ClientPaused,
    /// A client's machine is paused from outside for longer than the ttl, so that none of its clocks
    /// counts it: a virtual machine during a live migration or a snapshot.
    ClientMachinePaused,
    /// A client dies.
    ClientDies,
    /// The server is killed and started again with its data.
    ServerRestarts,
    /// The server, or its machine, is killed at a moment when the last writes are not on disk.
    WritesLost,
    /// The server comes back without its data, or its data is deleted while it runs.
    DataLost,
    /// Older data are put back, as from a backup, while clients hold, wait and are connected.
    OlderDataRestored,
    /// A right that the documentation of the driver asks for is withdrawn while clients hold and wait.
    RightsWithdrawn,
    /// A replica that lags takes over from a leader that is gone.
    Failover,
    /// A replica takes over while the old leader lives on, and still serves those who have not
    /// heard of it.
    SplitBrain,
    /// A server whose clock differs from the old one's by more than the margin takes over, with all
    /// data.
    OtherClockTakesOver,
    /// The leader of a cluster that replicates by consensus is killed, frozen or cut off.
    LeaderLost,
    /// The server's clock is stepped.
    ServerClockSteps,
    /// The server's clock is made faster or slower by less than the margin.
    ServerClockSlewed,
    /// The server's clock is made faster by more than the margin.
    ServerClockSlewedMore,
    /// A client's wall clock is stepped.
    ClientClockSteps,
    /// A forced break: an operator removes the claim.
    BrokenByForce,
}

impl Fault {
    /// All of them, in the order of the docs' table.
    pub const ALL: [Self; 20] = [
        Self::ConnectionCut,
        Self::Partition,
        Self::ServerPaused,
        Self::ClientPaused,
        Self::ClientMachinePaused,
        Self::ClientDies,
        Self::ServerRestarts,
        Self::WritesLost,
        Self::DataLost,
        Self::OlderDataRestored,
        Self::RightsWithdrawn,
        Self::Failover,
        Self::SplitBrain,
        Self::OtherClockTakesOver,
        Self::LeaderLost,
        Self::ServerClockSteps,
        Self::ServerClockSlewed,
        Self::ServerClockSlewedMore,
        Self::ClientClockSteps,
        Self::BrokenByForce,
    ];

    /// What it is called in tables. A `²` stands for "longer than the ttl".
    pub const fn title(self) -> &'static str {
        match self {
            Self::ConnectionCut => "connection reset",
            Self::Partition => "client partitioned from the server²",
            Self::ServerPaused => "server paused²",
            Self::ClientPaused => "client paused²",
            Self::ClientMachinePaused => "client machine paused²",
            Self::ClientDies => "client crash",
            Self::ServerRestarts => "server crash and restart",
            Self::WritesLost => "crash that loses unsynced writes",
            Self::DataLost => "data loss",
            Self::OlderDataRestored => "older data restored",
            Self::RightsWithdrawn => "permission revoked",
            Self::Failover => "failover to a lagging replica",
            Self::SplitBrain => "split brain",
            Self::OtherClockTakesOver => "failover to a server with another clock³",
            Self::LeaderLost => "leader failover in a majority system",
            Self::ServerClockSteps => "server clock step",
            Self::ServerClockSlewed => "server clock slewed by less than the margin",
            Self::ServerClockSlewedMore => "server clock slewed by more than the margin",
            Self::ClientClockSteps => "client clock step",
            Self::BrokenByForce => "forced break",
        }
    }
}

/// What is left of promises 1 (exclusion) and 2 (tokens grow) under a fault.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::capabilities::{Fault, Guarantee};
///
/// let kept = locks.capabilities().guarantee(Fault::BrokenByForce);
/// assert_eq!(kept, Guarantee::Tokens);
/// assert!(Guarantee::Nothing < Guarantee::Tokens && Guarantee::Tokens < Guarantee::All);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Both may break.
    Nothing,
    /// Two may hold at once, but the later has the greater token: a resource that checks tokens is
    /// safe.
    Tokens,
    /// Both hold.
    All,
    /// The fault cannot happen here.
    Impossible,
}

impl Guarantee {
    /// What it is called in tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::All => "exclusion + fencing",
            Self::Tokens => "fencing only",
            Self::Nothing => "no guarantee",
            Self::Impossible => "–",
        }
    }
}

/// How much one request of a backend carries, and how many requests it is sent at once.
///
/// ```
/// use lockkit_core::capabilities::Capabilities;
/// use lockkit_core::driver::BatchLimits;
///
/// let mut capabilities = Capabilities::of("mine");
/// assert_eq!(capabilities.batches, BatchLimits::SINGLE);
/// // Up to 64 operations in a request, four requests in flight.
/// capabilities.batches = BatchLimits::of(64, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchLimits {
    /// Operations in a batch at most. With 1, each operation is submitted by itself.
    pub operations: usize,
    /// The sum of [`Claim::weight`](crate::Claim::weight) of the claims in a batch at most; a single
    /// operation is submitted whatever its size.
    pub bytes: usize,
    /// Requests in flight at most. Renewals come on top.
    pub at_once: usize,
    /// Whether a batch may have several acquires of one key.
    pub same_key: bool,
    /// Whether a batch of one operation may wait at the backend for what another client has locked; see
    /// [`BatchError::would_block`](crate::driver::BatchError::would_block). Such a request soon makes room
    /// for others.
    pub waits: bool,
}

impl BatchLimits {
    /// Every operation by itself, 256 in flight.
    pub const SINGLE: Self =
        Self { operations: 1, bytes: usize::MAX, at_once: 256, same_key: false, waits: false };

    /// Up to `operations` in a batch of at most 1 MiB, `at_once` requests in flight, one acquire of a key
    /// in each.
    pub const fn of(operations: usize, at_once: usize) -> Self {
        Self { operations, bytes: 1 << 20, at_once, same_key: false, waits: false }
    }
}

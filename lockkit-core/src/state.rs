//! What can be seen of a lock from outside: plain data for people and programs, without ids.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::name::Space;
use crate::{BreakRecord, ClientIdentity, Error, Key, Mode, Name, Namespace, Token};

pub use crate::claim::MARK;

/// The queue of a lock as it was when it was read.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let guard = locks.mutex("invoice/42").lock().await?;
/// let state = locks.inspect(lockkit_core::Space::Lock, "invoice/42").await?;
/// assert!(!state.is_free());
/// let holder = state.holders().next().expect("it is held");
/// assert_eq!(holder.token, guard.token()?);
/// assert_eq!(state.waiters().count(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockState {
    /// Which list.
    pub key: Key,
    /// The live claims, in order. Those who hold come first.
    pub queue: Vec<ClaimState>,
    /// The last time that a claim of this list was broken, if the backend still knows.
    pub last_break: Option<BreakRecord>,
    /// Why the list cannot be read, in a listing: the backend keeps something else in its place.
    /// Every operation on this lock is an error until an operator has removed that.
    pub damaged: Option<String>,
}

impl LockState {
    /// A state, for drivers.
    pub fn new(key: Key, queue: Vec<ClaimState>, last_break: Option<BreakRecord>) -> Self {
        Self { key, queue, last_break, damaged: None }
    }

    /// A list that cannot be read, for drivers' listings.
    pub fn damaged(key: Key, why: impl Into<String>) -> Self {
        Self { key, queue: Vec::new(), last_break: None, damaged: Some(why.into()) }
    }

    /// The claims that hold.
    pub fn holders(&self) -> impl Iterator<Item = &ClaimState> {
        self.queue.iter().filter(|s| s.holds())
    }

    /// The claims that wait, first the next.
    pub fn waiters(&self) -> impl Iterator<Item = &ClaimState> {
        self.queue.iter().filter(|s| !s.holds())
    }

    /// Whether no claim holds it or waits for it.
    pub fn is_free(&self) -> bool {
        self.queue.is_empty() && self.damaged.is_none()
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.key.name
    }

    /// The lock's space.
    pub fn space(&self) -> Space {
        self.key.space
    }

    /// The limit of a semaphore in use.
    pub fn limit(&self) -> Option<u32> {
        self.queue.first().and_then(|s| s.mode.limit())
    }

    /// Whether the same claims stand in both lists in the same roles.
    pub fn same_queue(&self, other: &Self) -> bool {
        let role = |s: &ClaimState| (s.token, s.mode, s.holds(), s.broken);
        self.queue.len() == other.queue.len()
            && self.queue.iter().map(role).eq(other.queue.iter().map(role))
    }
}

/// What a lock delay, in milliseconds, follows in a note.
const LOCK_DELAY: &str = "delay=";

/// The note of a claim with this lock delay, which is shown with the claim and stored nowhere else.
pub(crate) fn with_lock_delay(note: Option<Arc<str>>, delay: Duration) -> Option<Arc<str>> {
    match delay.is_zero() {
        true => note,
        false => {
            let text = note.as_deref().unwrap_or_default();
            Some(format!("{text}{MARK}{LOCK_DELAY}{}", delay.as_millis()).into())
        }
    }
}

/// One claim of a list, as people may see it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::Space;
///
/// let _guard = locks.mutex("nightly").note("backup of Monday").lock().await?;
/// let state = locks.inspect(Space::Lock, "nightly").await?;
/// let holder = &state.queue[0];
/// assert!(holder.holds());
/// println!("{} for {:?}: {:?}", holder.identity, holder.held_for, holder.note);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimState {
    /// Its fencing token.
    pub token: Token,
    /// How it shares.
    pub mode: Mode,
    /// The client that it belongs to.
    pub identity: ClientIdentity,
    /// Why it was claimed.
    pub note: Option<String>,
    /// The ttl it asked for; where the backend gives less, what it got.
    pub ttl: Duration,
    /// What is left of its lease, by the backend's clock. (Where the backend keeps leases of
    /// sessions: at most this.)
    pub expires_in: Duration,
    /// How long ago it was queued.
    pub queued_for: Duration,
    /// How long it has been holding; `None` while it waits.
    pub held_for: Option<Duration>,
    /// Whether it was broken gracefully and is only kept until its lease ends.
    pub broken: bool,
    /// How long the name stays closed when its holder loses it: a part of the lease behind the ttl.
    pub lock_delay: Duration,
}

impl ClaimState {
    /// A claim that waits, for drivers; the other fields are public.
    pub fn new(token: Token, mode: Mode, identity: ClientIdentity) -> Self {
        Self {
            token,
            mode,
            identity,
            note: None,
            ttl: Duration::ZERO,
            expires_in: Duration::ZERO,
            queued_for: Duration::ZERO,
            held_for: None,
            broken: false,
            lock_delay: Duration::ZERO,
        }
    }

    /// Whether it holds.
    pub fn holds(&self) -> bool {
        self.held_for.is_some()
    }

    /// Removes from the note what stands behind its first [`MARK`]: what a composed driver added to it, and
    /// the lock delay, which becomes [`lock_delay`](Self::lock_delay) and is taken off the ttl.
    pub fn unmark(&mut self) {
        if let Some(note) = &mut self.note
            && let Some((text, marks)) = note.split_once(MARK)
        {
            let delay =
                marks.split(MARK).find_map(|mark| mark.strip_prefix(LOCK_DELAY)?.parse().ok());
            if let Some(delay) = delay.map(Duration::from_millis) {
                self.lock_delay = delay;
                self.ttl = self.ttl.saturating_sub(delay);
            }
            *note = text.to_owned();
        }
        self.note.take_if(|note| note.is_empty());
    }
}

/// What to list.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::LockDriver;
/// use lockkit_core::state::ListRequest;
/// use lockkit_core::{MemoryDriver, Namespace};
///
/// let driver = MemoryDriver::new();
/// let mut request = ListRequest {
///     namespace: Namespace::default(),
///     space: None,
///     prefix: "invoice/".to_owned(),
///     after: None,
///     limit: 100,
/// };
/// loop {
///     let page = driver.list(&request).await?;
///     for state in page.states {
///         println!("{}", state.name());
///     }
///     match page.next {
///         Some(next) => request.after = Some(next),
///         None => break,
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// In which namespace.
    pub namespace: Namespace,
    /// In which space; `None` for both.
    pub space: Option<Space>,
    /// Names that begin with this, byte for byte; all when empty.
    pub prefix: String,
    /// Where the last page ended; `None` to begin.
    pub after: Option<Cursor>,
    /// At most this many locks in the page, and at least one.
    pub limit: usize,
}

/// Where a page of a listing ended. Opaque but to the driver that made it.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::state::Cursor;
/// use lockkit_core::{Key, Name, Namespace, Space};
///
/// let last = Key::new(Namespace::default(), Space::Lock, Name::new("invoice/42")?);
/// let cursor = Cursor::behind(&last);
/// assert_eq!(cursor.decode()?, (Space::Lock, last.name));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

impl Cursor {
    /// Behind this list, for drivers that list by space and name.
    pub fn behind(key: &Key) -> Self {
        let space = match key.space {
            Space::Lock => b'l',
            Space::Semaphore => b's',
        };
        Self(std::iter::once(space).chain(key.name.as_str().bytes()).collect())
    }

    /// The list that the page ended with; an error where [`behind`](Self::behind) did not make it.
    pub fn decode(&self) -> Result<(Space, Name), Error> {
        let parts = self.0.split_first().and_then(|(space, name)| {
            let space = match space {
                b'l' => Space::Lock,
                b's' => Space::Semaphore,
                _ => return None,
            };
            Some((space, Name::new(std::str::from_utf8(name).ok()?).ok()?))
        });
        parts.ok_or_else(|| Error::config("this cursor is not of a listing of this backend"))
    }
}

/// Some of the lists in use.
#[derive(Clone, Debug)]
pub struct Page {
    /// The lists.
    pub states: Vec<LockState>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// The version of a register's value. For one name, versions only grow, across deletion too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);

/// Which registers to list.
#[derive(Clone, Debug)]
pub struct RegisterRequest {
    /// In which namespace.
    pub namespace: Namespace,
    /// Names that begin with this, byte for byte; all when empty.
    pub prefix: String,
    /// The last one of the page before; `None` to begin.
    pub after: Option<Name>,
    /// At most this many in the page, and at least one.
    pub limit: usize,
}

/// A register that has a value, as it was when it was listed. The value itself is loaded by its
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterState {
    /// Its name.
    pub name: Name,
    /// The version of the value.
    pub version: Version,
    /// The highest token that any write of this register bore.
    pub token: Option<Token>,
    /// The length of the value.
    pub bytes: usize,
    /// Why it cannot be read: the backend keeps something else in its place. What else is said of it
    /// says nothing then.
    pub damaged: Option<String>,
}

impl RegisterState {
    /// A register that can be read.
    pub fn new(name: Name, version: Version, token: Option<Token>, bytes: usize) -> Self {
        Self { name, version, token, bytes, damaged: None }
    }

    /// The same, which cannot be read for this reason, if there is one.
    #[must_use]
    pub fn with_damage(self, damaged: Option<String>) -> Self {
        Self { damaged, ..self }
    }
}

/// A page of registers or of namespaces. It is empty only when nothing follows.
///
/// ```
/// use lockkit_core::state::ListPage;
///
/// let page = ListPage::first(2, ["a", "b", "c"]);
/// assert_eq!(page.items, ["a", "b"]);
/// assert!(page.more);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage<T> {
    /// What is in the page.
    pub items: Vec<T>,
    /// Whether there may be another page, which begins behind the last item of this one.
    pub more: bool,
}

impl<T> ListPage<T> {
    /// The page of the first `limit` of these, of one at least.
    pub fn first(limit: usize, all: impl IntoIterator<Item = T>) -> Self {
        let mut all = all.into_iter();
        let items = all.by_ref().take(limit.max(1)).collect();
        Self { items, more: all.next().is_some() }
    }
}

/// How a backend is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let health = locks.health().await?;
/// for finding in &health.findings {
///     println!("{}: {}; {}", health.server, finding.what, finding.advice);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The backend and its version, as it says itself.
    pub server: String,
    /// What an operator should know, worst first. Empty when all is well.
    pub findings: Vec<Finding>,
}

impl Health {
    /// A healthy backend.
    pub fn well(server: impl Into<String>) -> Self {
        Self { server: server.into(), findings: Vec::new() }
    }

    /// Adds something an operator should know.
    pub fn with(mut self, finding: Finding) -> Self {
        self.findings.push(finding);
        self.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        self
    }
}

/// Something an operator should know.
///
/// ```
/// use lockkit_core::state::{Finding, Health, Severity};
///
/// let health = Health::well("mine 1.0").with(Finding::new(
///     Severity::Warning,
///     "writes do not wait for the disk",
///     "set fsync=on",
/// ));
/// assert_eq!(health.findings[0].severity, Severity::Warning);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Finding {
    /// Puts the parts together.
    pub fn new(severity: Severity, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { severity, what: what.into(), advice: advice.into() }
    }

    /// The same, of this part of a backend.
    #[must_use]
    pub fn at(self, part: &str) -> Self {
        Self { what: format!("{part}: {}", self.what), ..self }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// A promise may break under a fault that is to be expected.
    Warning,
    /// Locks do not work, or do not hold.
    Problem,
}

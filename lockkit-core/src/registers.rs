//! Named values beside the locks: the trait that a driver implements for them, what is written and
//! found, and the rule that decides on a write.

use std::time::Duration;

use async_trait::async_trait;

use crate::answers::Attempted;
use crate::state::{ListPage, RegisterRequest, RegisterState, Version};
use crate::{Error, Name, Namespace, Token};

/// Named values beside the locks: state rather than turns. Optional; a backend says in
/// [`Capabilities::registers`](crate::Capabilities::registers) whether it has them.
///
/// A register that is written with tokens refuses older ones: it is a resource that honours
/// fencing, ready to use. Values have at most [`MAX_REGISTER_BYTES`]; core checks that before any
/// I/O.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::{Precondition, LockDriver, RegisterKey, WriteResult, Write};
/// use lockkit_core::{MemoryDriver, Name, Namespace};
///
/// let driver = MemoryDriver::new();
/// let registers = driver.registers().expect("memory has registers");
/// let at = RegisterKey { namespace: Namespace::default(), name: Name::new("cursor")? };
/// let write = Write { expect: Precondition::Absent, ..Write::of(Some(b"event 41".to_vec())) };
/// let WriteResult::Stored(version) = registers.write(&at, &write).await?.result else {
///     unreachable!("nothing was there");
/// };
/// let entry = registers.load(&at).await?.expect("it was stored");
/// assert_eq!((Some(entry.value), entry.version), (write.value, version));
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Registers: Send + Sync {
    /// The entry, or `None` when there is no value (never stored, deleted, or expired).
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error>;

    /// Stores a value, or deletes the one that is there, if what is there is as expected and the token
    /// is not stale.
    ///
    /// # Behavior
    /// In one atomic step, in this order:
    /// 1. the last write that was applied bears this `write_id`: nothing is done, the answer is
    ///    [`Stored`](WriteResult::Stored) (so a lost answer can be asked for again);
    /// 2. `token` is lower than the highest seen: [`Stale`](WriteResult::Stale);
    /// 3. the entry is not as expected: [`Conflict`](WriteResult::Conflict);
    /// 4. the write is [`repeated`](Write::repeated), and an earlier attempt of it may have been
    ///    applied and overwritten since: [`Conflict`](WriteResult::Conflict);
    /// 5. the value is stored, or deleted, under a version greater than all earlier ones, and the
    ///    highest token becomes `token`.
    ///
    /// [`WriteResult::decide`] is this rule.
    ///
    /// A write without a token leaves the highest token as it is. A ttl counts on the backend's
    /// clock; without one the value stays. Where a value is deleted, the highest token, if there is
    /// one, is remembered, and so is that versions grow.
    async fn write(&self, at: &RegisterKey, write: &Write)
    -> Result<Attempted<WriteResult>, Error>;

    /// Returns the entry once its version is not `after` (`None`: there is no value). Does not
    /// miss a change that came before it asked. May skip versions.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error>;

    /// Shows the registers that have a value, a page at a time, in any stable order; not their
    /// values.
    ///
    /// The prefix is taken literally. A register that had a value for the whole time of the listing
    /// is shown exactly once.
    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error>;
}

/// The longest value of a register, in bytes: 64 KiB.
pub const MAX_REGISTER_BYTES: usize = 64 * 1024;

/// Where a register lives.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::RegisterKey;
/// use lockkit_core::{Name, Namespace};
///
/// let at = RegisterKey { namespace: Namespace::new("shop")?, name: Name::new("cursor")? };
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct RegisterKey {
    pub namespace: Namespace,
    pub name: Name,
}

/// The id of a write: 128 random bits, by which a repeated write is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteId(pub [u8; 16]);

impl WriteId {
    /// A new random id.
    pub fn random() -> Self {
        Self(*crate::claim::ClaimId::random().as_bytes())
    }
}

/// What a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterEntry {
    /// The bytes that were stored.
    pub value: Vec<u8>,
    /// Their version.
    pub version: Version,
    /// The highest token that any write of this register bore.
    pub token: Option<Token>,
}

impl RegisterEntry {
    /// Puts the parts together.
    pub fn new(value: Vec<u8>, version: Version, token: Option<Token>) -> Self {
        Self { value, version, token }
    }
}

/// What a write expects to find.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::{Error, Precondition};
///
/// let cursor = locks.register("cursor");
/// let first = cursor.compare_and_store(Precondition::Absent, "event 41").await?;
/// cursor.compare_and_store(Precondition::Version(first), "event 42").await?;
/// let late = cursor.compare_and_store(Precondition::Version(first), "event 43").await;
/// assert!(matches!(late, Err(Error::Conflict { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Whatever is there, or nothing.
    Anything,
    /// No value.
    Absent,
    /// The value of this version.
    Version(Version),
}

/// A write to a register.
#[derive(Clone, Debug)]
pub struct Write {
    /// At most [`MAX_REGISTER_BYTES`]; `None` deletes the value.
    pub value: Option<Vec<u8>>,
    /// How long the value stays; for good when `None`, which it is for a deletion.
    pub ttl: Option<Duration>,
    /// What must be there.
    pub expect: Precondition,
    /// The token of the lock that protects this register. Tokens of permits do not fence: an older
    /// holder is legitimate.
    pub token: Option<Token>,
    /// The id of this write, the same when it is repeated.
    pub write_id: WriteId,
    /// Whether an earlier attempt of this same write may have been applied. A driver that repeats
    /// a write by itself sets it on the copy that it sends again.
    pub repeated: bool,
}

impl Write {
    /// A write of this value, or a deletion, whatever is there; for good, and without a token.
    pub fn of(value: Option<Vec<u8>>) -> Self {
        let (expect, write_id) = (Precondition::Anything, WriteId::random());
        Self { value, ttl: None, expect, token: None, write_id, repeated: false }
    }
}

/// The answer to a write.
///
/// ```
/// use lockkit_core::driver::{Precondition, FoundRegister, WriteResult, Version, Write};
///
/// let found = FoundRegister { version: Some(Version(7)), present: true, token: None, last_write: None };
/// let deletion = Write::of(None);
/// let write = Write { expect: Precondition::Version(Version(6)), ..deletion.clone() };
/// assert_eq!(WriteResult::decide(&found, &write), Some(WriteResult::Conflict));
/// let write = Write { expect: Precondition::Version(Version(7)), ..deletion };
/// assert_eq!(WriteResult::decide(&found, &write), None, "it is to be applied");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// Done. (Of a deletion: the version that the absence has.)
    Stored(Version),
    /// What was there is not what was expected. An earlier attempt of this same write may have
    /// been applied and then overwritten by another client.
    Conflict,
    /// The token is lower than one that was seen.
    Stale {
        /// The highest token that was seen.
        highest: Token,
    },
}

/// What a write finds at its register, for [`WriteResult::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRegister {
    /// The version of the value, or of its absence; `None` where nothing is remembered.
    pub version: Option<Version>,
    /// Whether there is a value.
    pub present: bool,
    /// The highest token seen.
    pub token: Option<Token>,
    /// The id of the last write that was applied.
    pub last_write: Option<WriteId>,
}

impl WriteResult {
    /// The rule of [`Registers::write`]: the outcome of a write that is not applied (again), or
    /// `None` for one that is to be applied.
    pub fn decide(found: &FoundRegister, write: &Write) -> Option<Self> {
        if let (Some(version), true) = (found.version, found.last_write == Some(write.write_id)) {
            return Some(Self::Stored(version));
        }
        if let (Some(highest), Some(token)) = (found.token, write.token)
            && token < highest
        {
            return Some(Self::Stale { highest });
        }
        let as_expected = match write.expect {
            Precondition::Anything => true,
            Precondition::Absent => !found.present,
            Precondition::Version(version) => found.present && found.version == Some(version),
        };
        match as_expected && !(write.repeated && may_have_been_applied(found, write)) {
            true => None,
            false => Some(Self::Conflict),
        }
    }
}

/// Whether an earlier attempt of this write, whose id is not that of the last write, may have been
/// applied and overwritten. A plain store that takes whatever is there does not mind.
fn may_have_been_applied(found: &FoundRegister, write: &Write) -> bool {
    let plain = write.expect == Precondition::Anything && write.token.is_none();
    // Versions only grow, so a version that is still there was not written over; and had the
    // attempt been applied, its token would have been seen.
    let same_version = matches!(write.expect, Precondition::Version(_));
    let token_is_news = write.token > found.token;
    let never_written = found.version.is_none();
    !(plain || same_version || token_is_news || never_written)
}

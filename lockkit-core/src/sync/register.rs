//! The register: a named value with a version, which a holder that lost its lock cannot overwrite. Here: what
//! users call, and when a call is repeated. What a driver has to do is in `driver.rs`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::Stream;

use crate::driver::{
    MAX_REGISTER_BYTES, Precondition, RegisterEntry, RegisterKey, Registers, Version, Write,
    WriteResult,
};
use crate::name::register_name;
use crate::settings::LONGEST_TTL;
use crate::shared::{Core, WATCH};
use crate::{Error, HeldLock, Mode, Token};

/// State that belongs to a name: at most 64 KiB, with a version, and with a fence.
///
/// - **Fenced**: [`store_with`](Self::store_with) sends the token of a lock with the write. A holder that
///   lost its lock without noticing is refused ([`Error::Stale`]) from the first write of its
///   successor on. Before that write, the old holder can still overwrite the value that the successor has
///   loaded; so store what was computed from a loaded value with
///   [`compare_and_store_with`](Self::compare_and_store_with). Plain `store` and `delete` are not fenced. Use the
///   guards of *one* lock for one register: tokens of different locks do not compare, and this is not checked.
/// - **Compared**: [`compare_and_store`](Self::compare_and_store) stores only over the version that
///   was read ([`Error::Conflict`] otherwise), also without a lock. Versions of a name only grow,
///   across deletion too.
/// - **Durable** as the backend is. It stays for good, unless given a [`ttl`](Self::ttl). Where a failover to
///   a lagging replica or a restored backup loses the successor's write, it loses its token too, and a
///   stale holder's write passes.
/// - **A lost answer** is asked for again, for half a minute at most and no longer than the guard is
///   valid; a write that was done already is then known by its id, and not done twice. An error
///   that is [retryable](Error::is_retryable) after that leaves open whether it was done. (Where
///   another client overwrote the value meanwhile, a plain [`store`](Self::store) may be applied
///   again after theirs; one that compares or is fenced never is.)
/// - **Round trips**: one for each call on memory, SQLite, PostgreSQL, MySQL and Redis. ZooKeeper and
///   etcd take one for a write by the process that wrote last, and two to four otherwise.
/// - A quorum and a mirror have no registers; see
///   [`Capabilities::registers`](crate::Capabilities::registers).
///
/// A name is 1 to 512 bytes, as a lock's; `lockkit.` at its beginning is reserved. A register has
/// nothing to do with a lock of the same name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use lockkit_core::Error;
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let cursor = locks.register("cursor");
/// let consumer = locks.mutex("consumer").lock().await?;
/// cursor.store_with(&consumer, "event 41").await?;
/// # locks.admin().break_lock(lockkit_core::Space::Lock, "consumer", consumer.token()?,
/// #     lockkit_core::driver::BreakMode::Forced, None).await?;
/// # let stale = consumer;
///
/// // Another consumer took over, and goes on from where the first one was.
/// let successor = locks.mutex("consumer").lock().await?;
/// let entry = cursor.load().await?.expect("there is a checkpoint");
/// assert_eq!(entry.value, b"event 41");
/// cursor.compare_and_store_with(&successor, entry.version, "event 42").await?;
///
/// // The first one continues, and does no harm.
/// assert!(cursor.store_with(&stale, "event 41, again").await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Register {
    core: Arc<Core>,
    name: Arc<str>,
    /// The primitive that keeps its state here, for names that only this crate makes.
    owner: Option<&'static str>,
    ttl: Option<Duration>,
}

/// For how long a call is repeated while the backend does not answer; a fenced one also ends with its guard.
const PATIENCE: Duration = Duration::from_secs(30);

impl Register {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> Self {
        Self { core: core.clone(), name: name.into(), owner: None, ttl: None }
    }

    /// The register in which a primitive keeps its state; it does not meet those of users.
    pub(crate) fn of(core: &Arc<Core>, owner: &'static str, name: &str) -> Self {
        Self { owner: Some(owner), ..Self::new(core, name) }
    }

    /// How long what is stored from here on stays; for good unless set. It counts on the backend's
    /// clock, from the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The value with its version and the highest token of its writers; `None` when there is none:
    /// never stored, deleted, or expired.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn load(&self) -> Result<Option<RegisterEntry>, Error> {
        let at = self.at()?;
        let registers = self.registers()?;
        self.core.repeat_within("load", PATIENCE, || registers.load(&at)).await
    }

    /// Stores a value over whatever is there.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the value was stored.
    pub async fn store(&self, value: impl AsRef<[u8]>) -> Result<Version, Error> {
        self.write(Some(value.as_ref()), Precondition::Anything, Fence::None).await
    }

    /// Stores a value if what is there is as expected: the version that was read, or
    /// [`Precondition::Absent`].
    ///
    /// # Cancel safety
    /// As [`store`](Self::store).
    pub async fn compare_and_store(
        &self,
        expect: impl Into<Precondition>,
        value: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.write(Some(value.as_ref()), expect.into(), Fence::None).await
    }

    /// Stores a value under the fence of this lock, or is refused: with [`Error::Lost`] when the
    /// guard knows that the lock was lost, with [`Error::Stale`] when a later holder
    /// has written already.
    ///
    /// Guards of mutexes and of writers fence. Readers and holders of permits are legitimate beside
    /// each other, whatever their tokens, and are refused ([`Error::Config`]).
    ///
    /// # Cancel safety
    /// As [`store`](Self::store).
    pub async fn store_with(
        &self,
        lock: &HeldLock,
        value: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.write(Some(value.as_ref()), Precondition::Anything, Fence::Lock(lock)).await
    }

    /// Both: fenced by this lock, and only over what is expected. A stale token is reported first.
    ///
    /// # Cancel safety
    /// As [`store`](Self::store).
    pub async fn compare_and_store_with(
        &self,
        lock: &HeldLock,
        expect: impl Into<Precondition>,
        value: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.write(Some(value.as_ref()), expect.into(), Fence::Lock(lock)).await
    }

    /// As [`compare_and_store_with`](Self::compare_and_store_with), for a caller that has the token of a lock and
    /// no guard, such as another process or a service. Whether that lock is still held, and exclusively, is not
    /// checked.
    ///
    /// # Cancel safety
    /// As [`store`](Self::store).
    pub async fn store_with_token(
        &self,
        token: Token,
        expect: impl Into<Precondition>,
        value: impl AsRef<[u8]>,
    ) -> Result<Version, Error> {
        self.write(Some(value.as_ref()), expect.into(), Fence::Token(token)).await
    }

    /// Deletes the value; that there is none is fine. The fence stays where it is, and versions go
    /// on growing.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the value was deleted.
    pub async fn delete(&self) -> Result<(), Error> {
        self.write(None, Precondition::Anything, Fence::None).await.map(drop)
    }

    /// Deletes the value if it is as expected.
    ///
    /// # Cancel safety
    /// As [`delete`](Self::delete).
    pub async fn compare_and_delete(&self, expect: impl Into<Precondition>) -> Result<(), Error> {
        self.write(None, expect.into(), Fence::None).await.map(drop)
    }

    /// Deletes the value under the fence of this lock.
    ///
    /// # Cancel safety
    /// As [`delete`](Self::delete).
    pub async fn delete_with(&self, lock: &HeldLock) -> Result<(), Error> {
        self.write(None, Precondition::Anything, Fence::Lock(lock)).await.map(drop)
    }

    /// Waits until the version is another one than `known`, and returns what is stored then: at once when it is
    /// another one already. In argument and result, `None` stands for no value. Versions in between may be
    /// skipped. While the backend is unreachable, this goes on trying.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn changed(&self, known: Option<Version>) -> Result<Option<RegisterEntry>, Error> {
        let at = self.at()?;
        let registers = self.registers()?;
        self.core.repeat(WATCH, None, || registers.changed(&at, known)).await
    }

    /// The value now, and then each time that it has changed. Values that were there for a short
    /// time only may be left out.
    pub fn watch(
        &self,
    ) -> impl Stream<Item = Result<Option<RegisterEntry>, Error>> + Send + 'static {
        let register = self.clone();
        async_stream::try_stream! {
            let mut entry = register.load().await?;
            loop {
                let known = entry.as_ref().map(|entry| entry.version);
                yield entry;
                entry = register.changed(known).await?;
            }
        }
    }

    async fn write(
        &self,
        value: Option<&[u8]>,
        expect: Precondition,
        fence: Fence<'_>,
    ) -> Result<Version, Error> {
        let at = self.at()?;
        let registers = self.registers()?;
        self.check(value)?;
        let (token, lock) = match fence {
            Fence::None => (None, None),
            Fence::Lock(lock) => (Some(self.token_of(lock)?), Some(lock)),
            Fence::Token(token) => (Some(token), None),
        };
        let value = value.map(<[u8]>::to_vec);
        let ttl = self.ttl.filter(|_| value.is_some());
        let write = Write { ttl, expect, token, ..Write::of(value) };
        let mut attempts = 0;
        let ask = || {
            attempts += 1;
            let (at, write) = (&at, Write { repeated: attempts > 1, ..write.clone() });
            async move {
                let Some(lock) = lock else { return registers.write(at, &write).await };
                lock.token()?; // nothing is sent for a lock that was lost
                lock.within(registers.write(at, &write)).await
            }
        };
        let answered = self.core.repeat_within("store", PATIENCE, ask).await?;
        let maybe_applied = attempts > 1 || answered.ambiguous > 0;
        let name = || self.name.to_string();
        match (answered.result, token) {
            (WriteResult::Stored(version), _) => Ok(version),
            (WriteResult::Stale { highest }, Some(token)) => {
                Err(Error::Stale { name: name(), token, highest, maybe_applied })
            }
            // A write without a token is never stale; a driver that says so did not store it.
            (WriteResult::Conflict | WriteResult::Stale { .. }, _) => {
                Err(Error::Conflict { name: name(), maybe_applied })
            }
        }
    }

    /// Refuses what cannot be stored, before any I/O.
    pub(super) fn check(&self, value: Option<&[u8]>) -> Result<(), Error> {
        if let Some(value) = value
            && value.len() > MAX_REGISTER_BYTES
        {
            let bytes = value.len();
            let message = format!("a register keeps {MAX_REGISTER_BYTES} bytes, not {bytes}");
            return Err(Error::Config(message));
        }
        match self.ttl {
            Some(ttl) if ttl.is_zero() || ttl > LONGEST_TTL => {
                let message =
                    format!("a value cannot stay for {ttl:?}: more than 0, 10 years at most");
                Err(Error::Config(message))
            }
            _ => Ok(()),
        }
    }

    /// The token of a lock that can fence this register.
    fn token_of(&self, lock: &HeldLock) -> Result<Token, Error> {
        let token = lock.token()?;
        if lock.mode() != Mode::Exclusive {
            return Err(Error::config(
                "only a lock that is held exclusively fences: readers, and holders of permits, may work \
                 at the same time whatever their tokens",
            ));
        }
        let same_backend = lock.registry.backend() == self.core.backend();
        if !same_backend || lock.record.claim().key.namespace != self.core.namespace {
            return Err(Error::config(
                "this lock is of another backend or namespace than the register: tokens of two \
                 backends do not compare",
            ));
        }
        Ok(token)
    }

    fn at(&self) -> Result<RegisterKey, Error> {
        self.core.check_open()?;
        let name = register_name(self.owner, &self.name)?;
        Ok(RegisterKey { namespace: self.core.namespace.clone(), name })
    }

    fn registers(&self) -> Result<&dyn Registers, Error> {
        let driver = self.core.driver();
        driver.registers().ok_or_else(|| driver.unsupported("registers"))
    }
}

/// What a write is fenced by.
enum Fence<'a> {
    None,
    Lock(&'a HeldLock),
    Token(Token),
}

impl From<Version> for Precondition {
    fn from(version: Version) -> Self {
        Self::Version(version)
    }
}

/// What was loaded: no value, or the value of that version.
impl From<&Option<RegisterEntry>> for Precondition {
    fn from(loaded: &Option<RegisterEntry>) -> Self {
        loaded.as_ref().map_or(Self::Absent, |entry| Self::Version(entry.version))
    }
}

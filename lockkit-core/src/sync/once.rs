//! Once among many: of all clients that are to do a job, one does it, and its result is kept for a time.
//! Its register stores one byte for the encoding, two for the length of a JSON head, the head, the
//! value.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::handle::Handle;
use super::{Mutex, Register};
use crate::acquire::WaitBudget;
use crate::clock::unix_ms;
use crate::driver::RegisterEntry;
use crate::shared::Core;
use crate::{
    ClientIdentity, Error, FromLock, Guard, HeldLock, MAX_REGISTER_BYTES, Mode, Precondition, Token,
};

/// A job that many start and one does: a report that every host's timer begins at the same minute.
///
/// The key says which run it is, so it has the date in it: `2026-11-21/report`.
///
/// - **One at a time**: the job runs under the lock of the same name, which `lockkit show` shows,
///   and stops when that is lost.
/// - **Not again**: when the work succeeded, what it returned is kept as the [`Decision`] for its
///   key; everybody who comes within the time that it is [kept](Self::keep) (7 days unless set) is
///   given that instead of running.
/// - **Until it succeeded**: when the work fails, or its process dies, nothing is decided. The next
///   in the queue begins from the start: at once after a failure, when the lease has ended after a
///   death. So a job that died after its work and before its decision **is done again**: no lock
///   can prevent that, only work that may be repeated, or that checks the token where it lands.
/// - **Fair**: those who stand by do so in the order in which they came.
/// - One round trip when it is decided already; who runs it takes five beside the work. It needs a
///   register, which a quorum does not have.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// for host in ["first", "second"] {
///     let report = locks.once("2026-11-21/report");
///     let decision = report.run(async |_lock| { Ok::<_, lockkit_core::Error>(host) }).await?;
///     assert_eq!(decision.value, b"first");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Once {
    handle: Handle,
    register: Register,
}

/// How long a decision is kept unless said otherwise: 7 days.
const KEEP: Duration = Duration::from_secs(7 * 86_400);

impl Once {
    pub(crate) fn new(core: &Arc<Core>, key: &str) -> Self {
        let register = Register::of(core, "once", key).ttl(KEEP);
        Self { handle: Handle::new(core, key, None), register }
    }

    /// How long the decision is kept, by the backend's clock: 7 days unless set, 10 years at most. After that
    /// the job would run again for the same key.
    pub fn keep(mut self, time: Duration) -> Self {
        self.register = self.register.ttl(time);
        self
    }

    /// How long the lock stays held when who runs the job dies; the manager's unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.handle.options.ttl = ttl;
        self
    }

    /// Says more of the job to people who look at the lock.
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.handle.options.note = Some(note.as_ref().into());
        self
    }

    /// Runs the work, unless it was done before; while another runs it, waits for what becomes of
    /// that. Returns what was decided, by whomever.
    ///
    /// The work is dropped at its next await point when the lock is lost, and so it is when it
    /// fails; then nothing was decided here.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background; the next may begin.
    pub fn run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<Decision, E>> + use<T, E, F, Fut>
    where
        T: Into<Vec<u8>>,
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { Ok(this.handle.core.waited(this.attempt(work, WaitBudget::Forever).await?)?) }
    }

    /// As [`run`](Self::run), but `None` at once when another runs it now.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub fn try_run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<Option<Decision>, E>> + use<T, E, F, Fut>
    where
        T: Into<Vec<u8>>,
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.attempt(work, WaitBudget::No).await }
    }

    /// What was decided, if anything was. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn decision(&self) -> Result<Option<Decision>, Error> {
        // Asked for before the work, which would be done in vain if what it decides could not be stored.
        self.register.check(None)?;
        let Some(entry) = self.register.load().await? else { return Ok(None) };
        let decision = Decision::from_entry(&entry).ok_or_else(|| {
            let backend = self.handle.core.backend();
            Error::permanent(backend, "this decision was not written by this version of lockkit")
        });
        decision.map(Some)
    }

    /// The lock under which the job runs, for who takes it apart: look for a
    /// [`decision`](Self::decision) once it is held, do the work if there is none, then
    /// [`decide`](Self::decide).
    pub fn lock(&self) -> Mutex {
        Mutex::of(self.handle.clone())
    }

    /// Decides, under the lock of this job; returns the decision in force: this, or what was decided
    /// who finished earlier. [`Error::Lost`] when the lock is not held any more. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether it was decided.
    pub async fn decide(
        &self,
        lock: &HeldLock,
        value: impl Into<Vec<u8>>,
    ) -> Result<Decision, Error> {
        if *lock.name() != self.handle.name()? {
            return Err(Error::config("only the lock of the same key decides"));
        }
        let by = (*self.handle.core.identity).clone();
        let decision =
            Decision { value: value.into(), by, at_unix_ms: unix_ms(), token: lock.token()? };
        decision.check()?;
        // Not fenced: a fence is remembered for good, and there are new keys every day. One who
        // decides late has done the work, and the first decision is right.
        let stored = self.register.compare_and_store(Precondition::Absent, decision.to_bytes());
        match stored.await {
            Ok(_) => Ok(decision),
            Err(conflict @ Error::Conflict { .. }) => self.decision().await?.ok_or(conflict),
            Err(error) => Err(error),
        }
    }

    /// Makes it undecided: the job would run again. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the decision was forgotten.
    pub async fn forget(&self) -> Result<(), Error> {
        self.register.delete().await
    }

    async fn attempt<T, E, F, Fut>(&self, work: F, wait: WaitBudget) -> Result<Option<Decision>, E>
    where
        T: Into<Vec<u8>>,
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        if let Some(decision) = self.decision().await? {
            return Ok(Some(decision));
        }
        let Some(guard) = self.handle.acquire(Mode::Exclusive, "once", wait).await? else {
            // Who ran it may have decided at this very moment.
            return Ok(self.decision().await?);
        };
        let decided = self.under(&guard, work).await;
        // What was decided is stored: a release that fails changes nothing about it.
        let _ = guard.release().await;
        decided.map(Some)
    }

    async fn under<T, E, F, Fut>(&self, guard: &Guard, work: F) -> Result<Decision, E>
    where
        T: Into<Vec<u8>>,
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        // The last holder may have decided.
        if let Some(decision) = self.decision().await? {
            return Ok(decision);
        }
        let value = tokio::select! {
            biased;
            reason = guard.lost() => return Err(Error::Lost { reason }.into()),
            value = work(guard.lease()) => value?,
        };
        Ok(self.decide(guard, value).await?)
    }
}

/// What was decided for a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let report = locks.once("2026-11-21/report");
/// let first = report.run(async |_lock| Ok::<_, lockkit_core::Error>("42 pages")).await?;
/// let again = report.run(async |_lock| Ok::<_, lockkit_core::Error>("done twice")).await?;
/// assert_eq!(again.value, b"42 pages");
/// assert_eq!(again.token, first.token);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// What the work returned: at most 60,000 bytes.
    pub value: Vec<u8>,
    /// Who did it.
    pub by: ClientIdentity,
    /// When, in milliseconds since 1970 by the clock of who did it: for people, not for decisions.
    pub at_unix_ms: u64,
    /// Under which token.
    pub token: Token,
}

#[derive(Serialize, Deserialize)]
struct Head {
    by: ClientIdentity,
    at: u64,
    token: u64,
}

const ENCODING: u8 = 1;
const MAX_VALUE_BYTES: usize = 60_000;

impl Decision {
    /// Refuses what does not fit, before any I/O.
    fn check(&self) -> Result<(), Error> {
        if self.value.len() > MAX_VALUE_BYTES || self.to_bytes().len() > MAX_REGISTER_BYTES {
            let bytes = self.value.len();
            let message = format!("a decision has {MAX_VALUE_BYTES} bytes at most, not {bytes}");
            return Err(Error::Config(message));
        }
        Ok(())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let head = Head { by: self.by.clone(), at: self.at_unix_ms, token: self.token.get() };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut bytes = vec![ENCODING];
        bytes.extend((head.len() as u16).to_be_bytes());
        bytes.extend(head);
        bytes.extend(&self.value);
        bytes
    }

    /// `None` when this version cannot read it.
    fn from_entry(entry: &RegisterEntry) -> Option<Self> {
        let rest = entry.value.strip_prefix(&[ENCODING])?;
        let (length, rest) = rest.split_first_chunk()?;
        let (head, value) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        let Head { by, at, token } = serde_json::from_slice(head).ok()?;
        Some(Self { value: value.to_vec(), by, at_unix_ms: at, token: Token::new(token)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    #[test]
    fn a_decision_survives_its_bytes_and_what_is_none_is_not_read_as_one() {
        let decision = Decision {
            value: b"\0\xff".to_vec(),
            by: ClientIdentity::of_this_process(),
            at_unix_ms: 7,
            token: Token::new(9).unwrap(),
        };
        let entry = |value: Vec<u8>| RegisterEntry::new(value, Version(1), None);
        let good = decision.to_bytes();
        assert_eq!(Decision::from_entry(&entry(good.clone())), Some(decision));
        let mut newer = good.clone();
        newer[0] = 2;
        for bad in [vec![], vec![1], good[..9].to_vec(), newer] {
            assert_eq!(Decision::from_entry(&entry(bad)), None);
        }
    }
}

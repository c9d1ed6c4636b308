//! The probe: whether a store really compares and swaps. Run before the layout is written for the first time,
//! and by `doctor`. A filter, not a proof: a store that fails is refused, one that passes may still be wrong.
//!
//! Only answers of the store itself convict. A write without an answer is repeated on a new key, and so is one
//! that was refused as a conflict although nothing was in its way: some stores do that now and then.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::clock::unix_ms;
use lockkit_core::driver::{ClaimId, locked};
use lockkit_core::{Cause, Error};
use tokio::time::{sleep, timeout};

use crate::store::{Document, DocumentVersion, ReadOutcome, Store, StoreError, Swap};

/// What the keys of probes begin with. The time of their making follows, so that old ones are known.
const PROBES: &str = "p/";
/// How long a probe may take.
const LIMIT: Duration = Duration::from_secs(60);
/// What an earlier probe left is removed after this.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys of earlier probes that one probe removes at most.
const MOST_REMOVED: usize = 1_000;
/// Connections among which the requests are spread.
const CONNECTIONS: usize = 3;
/// Rounds of concurrent writes, and how many there are in a round.
const ROUNDS: usize = 16;
const ROUNDS_AT_ONCE: usize = 4;
const WRITERS: usize = 6;
/// A conflict that should not have been convicts when it comes for this many keys in a row.
const UNEXPECTED_CONFLICTS: u32 = 3;
/// How often a read of an ordered store may be older than the last write.
const OLD_READS: u32 = 50;
/// The pause before an old read, or after a request without an answer.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests at a time when keys are removed.
const REMOVALS: usize = 16;

/// Tries on a store whether it compares and swaps: what no setting shows, and what some servers only pretend.
///
/// Uses random keys under `p/`, which it removes, and over at least three connections where
/// [`Store::another`] gives them. It creates, creates again, swaps, swaps at an old version, swaps a missing
/// document, removes and reads back, and then lets six writers race in 16 rounds of creates and of swaps. About
/// 300 requests. What a probe left that was interrupted is removed by one a day later.
///
/// # Errors
/// A permanent error says which check failed, or which right is missing; a retryable one that the store did
/// not answer within 60 s.
///
/// # Cancel safety
/// Dropping it leaves some keys under `p/`.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// use std::sync::Arc;
/// use lockkit_store::testing::TestStore;
///
/// lockkit_store::probe(Arc::new(TestStore::new())).await?;
/// # Ok(()) }
/// # main().unwrap();
/// # }
/// ```
pub async fn probe(store: Arc<dyn Store>) -> Result<(), Error> {
    let name = store.facts().name;
    let silence = Arc::new(Mutex::new(None));
    let Ok(result) = timeout(LIMIT, run(store, silence.clone())).await else {
        let cause = locked(&silence).take();
        let cause = cause.map(|cause: Cause| format!(": {cause}")).unwrap_or_default();
        let message = format!("the probe of the store took more than {} s{cause}", LIMIT.as_secs());
        return Err(Error::retryable(name, message));
    };
    result.map_err(|failure| failure.into_error(name))
}

async fn run(store: Arc<dyn Store>, silence: Arc<Mutex<Option<Cause>>>) -> Checked<()> {
    let mut stores = vec![store];
    while stores.len() < CONNECTIONS
        && let Some(another) = stores[0].another().await?
    {
        stores.push(another);
    }
    let probe = Probe { stores, keys: Mutex::default(), silence };
    probe.remove_old().await?;
    let checked = probe.check().await;
    // Also after a failure, as well as it can.
    let keys = std::mem::take(&mut *locked(&probe.keys));
    let removed = probe.remove(keys).await;
    checked.and(removed)
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeCheck {
    Create,
    CreateAgain,
    Swap,
    StaleSwap,
    SwapOfMissing,
    ReadBack,
    Remove,
    CreateRace,
    SwapRace,
}

impl fmt::Display for ProbeCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create of a new key",
            Self::CreateAgain => "create of a key that exists",
            Self::Swap => "swap at the stored version",
            Self::StaleSwap => "swap at an old version",
            Self::SwapOfMissing => "swap of a missing key",
            Self::ReadBack => "read after a write",
            Self::Remove => "read after a removal",
            Self::CreateRace => "concurrent creates",
            Self::SwapRace => "concurrent swaps",
        })
    }
}

/// Why a probe, or a part of it, ended.
enum ProbeFailure {
    /// The store does not do what locks need.
    Convicted(ProbeCheck, String),
    /// A conflict where there was none: said of a store only when it is repeated.
    UnexpectedConflict(ProbeCheck),
    /// The store refuses for good.
    Refused(Cause),
    /// No answer, or not now.
    NoAnswer(Cause),
}

impl ProbeFailure {
    fn into_error(self, backend: &'static str) -> Error {
        let (check, what) = match self {
            Self::Refused(cause) => return Error::permanent(backend, cause.to_string()),
            Self::NoAnswer(cause) => return Error::retryable(backend, cause.to_string()),
            Self::UnexpectedConflict(check) => (check, "is refused as a conflict".to_owned()),
            Self::Convicted(check, what) => (check, what),
        };
        let message = format!(
            "this store does not compare and swap, so two clients could hold one lock: {check}: {what}. \
             Check that this server, its version and whatever is in front of it support conditional \
             writes, or use another store"
        );
        Error::permanent(backend, message)
    }
}

impl From<StoreError> for ProbeFailure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Forbidden(cause) => Self::Refused(cause),
            StoreError::Unavailable(cause) | StoreError::Throttled { cause, .. } => {
                Self::NoAnswer(cause)
            }
        }
    }
}

type Checked<T> = Result<T, ProbeFailure>;

struct Probe {
    /// Connections to one store.
    stores: Vec<Arc<dyn Store>>,
    /// Keys that were perhaps written.
    keys: Mutex<Vec<String>>,
    /// Why a request had no answer lately.
    silence: Arc<Mutex<Option<Cause>>>,
}

impl Probe {
    async fn check(&self) -> Checked<()> {
        self.insist(|| self.check_writes()).await?;
        // Where a key may be written once in a while, rounds wait together.
        let at_once = if self.swap_pace().is_zero() { 1 } else { ROUNDS_AT_ONCE };
        for _ in 0..ROUNDS / at_once {
            let rounds = (0..at_once).map(|_| self.insist(|| self.race()));
            for ended in join_all(rounds).await {
                ended?;
            }
        }
        Ok(())
    }

    fn swap_pace(&self) -> Duration {
        self.stores[0].facts().swap_pace
    }

    /// Waits until a key may be written again.
    async fn keep_pace(&self) {
        if !self.swap_pace().is_zero() {
            sleep(self.swap_pace()).await;
        }
    }

    /// Repeats a part as a whole, on new keys: one that got no answer, and a few times one that met an
    /// unexpected conflict.
    async fn insist<F>(&self, part: impl Fn() -> F) -> Checked<()>
    where
        F: Future<Output = Checked<()>>,
    {
        let mut conflicts = 0;
        loop {
            match part().await {
                Err(ProbeFailure::NoAnswer(cause)) => *locked(&self.silence) = Some(cause),
                Err(ProbeFailure::UnexpectedConflict(_))
                    if conflicts + 1 < UNEXPECTED_CONFLICTS =>
                {
                    conflicts += 1;
                }
                ended => return ended,
            }
            sleep(PAUSE).await;
        }
    }

    /// One write after the other, each through another connection than the one before.
    async fn check_writes(&self) -> Checked<()> {
        let key = self.new_key();
        let (first, second) = (contents(), contents());
        let created = self.must_store(0, &key, &first, None, ProbeCheck::Create).await?;
        self.keep_pace().await;
        self.must_conflict(1, &key, None, ProbeCheck::CreateAgain).await?;
        self.must_read(2, &key, Some((&first, &created))).await?;
        self.keep_pace().await;
        let swapped = self.must_store(1, &key, &second, Some(&created), ProbeCheck::Swap).await?;
        is_new(&swapped, &[&created], ProbeCheck::Swap)?;
        self.keep_pace().await;
        self.must_conflict(2, &key, Some(&created), ProbeCheck::StaleSwap).await?;
        self.must_read(0, &key, Some((&second, &swapped))).await?;
        // Where versions have an order, an old read may be what it says.
        let may_be_old = created.order().is_some();
        if let ReadOutcome::Same = self.store(1).get(&key, Some(&created)).await?
            && !may_be_old
        {
            return convict(
                ProbeCheck::ReadBack,
                "a document that has changed is said to be the same",
            );
        }
        let missing = self.new_key();
        self.must_conflict(2, &missing, Some(&swapped), ProbeCheck::SwapOfMissing).await?;
        if let ReadOutcome::Document(_) = self.store(0).get(&missing, None).await? {
            let what = "the document was created, although the swap was refused";
            return convict(ProbeCheck::SwapOfMissing, what);
        }
        self.keep_pace().await;
        self.store(1).remove(&key).await?;
        self.must_read(2, &key, None).await?;
        self.keep_pace().await;
        let again = self.must_store(0, &key, &contents(), None, ProbeCheck::Create).await?;
        is_new(&again, &[&created, &swapped], ProbeCheck::Create)
    }

    /// Writers of one new key at a time: creates, then swaps.
    async fn race(&self) -> Checked<()> {
        let key = self.new_key();
        let created = self.race_once(&key, None, ProbeCheck::CreateRace).await?;
        self.keep_pace().await;
        self.race_once(&key, Some(&created), ProbeCheck::SwapRace).await.map(drop)
    }

    async fn race_once(
        &self,
        key: &str,
        expected: Option<&DocumentVersion>,
        check: ProbeCheck,
    ) -> Checked<DocumentVersion> {
        let written: Vec<_> = (0..WRITERS).map(|_| contents()).collect();
        let puts = written
            .iter()
            .enumerate()
            .map(|(writer, document)| self.store(writer).put_if(key, document, expected));
        let (mut winners, mut unanswered) = (Vec::new(), None);
        for (outcome, document) in join_all(puts).await.into_iter().zip(&written) {
            match outcome.answer().map_err(ProbeFailure::from) {
                Ok(Swap::Stored(version)) => winners.push((document, version)),
                Ok(Swap::Conflict(_)) => {}
                Err(ProbeFailure::NoAnswer(cause)) => unanswered = Some(cause),
                Err(refused) => return Err(refused),
            }
        }
        if winners.len() > 1 {
            let what = format!("{} of {WRITERS} succeeded, and at most one may", winners.len());
            return convict(check, what);
        }
        let Some((document, version)) = winners.pop() else {
            let none = ProbeFailure::UnexpectedConflict(check);
            return Err(unanswered.map_or(none, ProbeFailure::NoAnswer));
        };
        // Whatever became of the others that were not answered, they must have failed.
        self.must_read(1, key, Some((document, &version))).await?;
        Ok(version)
    }

    async fn must_store(
        &self,
        connection: usize,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
        check: ProbeCheck,
    ) -> Checked<DocumentVersion> {
        match self.store(connection).put_if(key, document, expected).await.answer()? {
            Swap::Stored(version) => Ok(version),
            Swap::Conflict(_) => Err(ProbeFailure::UnexpectedConflict(check)),
        }
    }

    async fn must_conflict(
        &self,
        connection: usize,
        key: &str,
        expected: Option<&DocumentVersion>,
        check: ProbeCheck,
    ) -> Checked<()> {
        match self.store(connection).put_if(key, &contents(), expected).await.answer()? {
            Swap::Conflict(_) => Ok(()),
            Swap::Stored(_) => convict(check, "it succeeded, and must be refused as a conflict"),
        }
    }

    /// Reads what was written last, or that there is nothing. Reads may be older where versions have an order.
    async fn must_read(
        &self,
        connection: usize,
        key: &str,
        expected: Option<(&[u8], &DocumentVersion)>,
    ) -> Checked<()> {
        let store = self.store(connection);
        let check = if expected.is_some() { ProbeCheck::ReadBack } else { ProbeCheck::Remove };
        let mut may_be_old = OLD_READS;
        loop {
            let found = store.get(key, None).await?;
            let is_expected = match (&found, expected) {
                (ReadOutcome::Document(Document { bytes, version }), Some((written, at))) => {
                    bytes == written && version == at
                }
                (ReadOutcome::Absent, None) => true,
                _ => false,
            };
            if is_expected {
                return Ok(());
            }
            let is_ordered = match (&found, expected) {
                (ReadOutcome::Document(found), None) => found.version.order().is_some(),
                (ReadOutcome::Document(found), Some((_, at))) => found.version.order() < at.order(),
                (_, Some((_, at))) => at.order().is_some(),
                (_, None) => false,
            };
            if !is_ordered || may_be_old == 0 {
                return convict(check, "it does not show what was written last");
            }
            may_be_old -= 1;
            sleep(PAUSE).await;
        }
    }

    fn store(&self, connection: usize) -> &dyn Store {
        &*self.stores[connection % self.stores.len()]
    }

    /// A key that nothing has, which is removed at the end.
    fn new_key(&self) -> String {
        let key = format!("{PROBES}{:013}-{}", unix_ms(), ClaimId::random().to_hex());
        locked(&self.keys).push(key.clone());
        key
    }

    /// Removes what probes left that were interrupted.
    async fn remove_old(&self) -> Checked<()> {
        let keys = self.store(0).list(PROBES, None, MOST_REMOVED).await?;
        let before =
            unix_ms().saturating_sub(u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX));
        self.remove(keys.into_iter().filter(|key| is_older(key, before)).collect()).await
    }

    async fn remove(&self, keys: Vec<String>) -> Checked<()> {
        for keys in keys.chunks(REMOVALS) {
            let removals = keys.iter().enumerate().map(|(at, key)| self.store(at).remove(key));
            for removed in join_all(removals).await {
                // One without an answer is left to the next probe.
                if let Err(StoreError::Forbidden(cause)) = removed {
                    return Err(ProbeFailure::Refused(cause));
                }
            }
        }
        Ok(())
    }
}

/// Whether a key was made before this time, in milliseconds since 1970.
fn is_older(key: &str, before: u64) -> bool {
    let made = key.strip_prefix(PROBES).and_then(|rest| rest.split('-').next());
    made.and_then(|made| made.parse::<u64>().ok()).is_some_and(|made| made < before)
}

/// A document that differs from all others.
fn contents() -> Vec<u8> {
    format!("{{\"probe\":\"{}\"}}", ClaimId::random().to_hex()).into_bytes()
}

fn is_new(
    version: &DocumentVersion,
    earlier: &[&DocumentVersion],
    check: ProbeCheck,
) -> Checked<()> {
    match earlier.contains(&version) {
        false => Ok(()),
        true => convict(check, "another document has the version of an earlier one"),
    }
}

fn convict<T>(check: ProbeCheck, what: impl Into<String>) -> Checked<T> {
    Err(ProbeFailure::Convicted(check, what.into()))
}

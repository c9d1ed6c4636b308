//! What a store does for lockkit: the trait that its author implements, and the data of its answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::state::Finding;
use lockkit_core::{Cause, Error};

/// A store of small documents with compare-and-swap: all that lockkit needs of a backend.
///
/// A key consists of `a` to `z`, `0` to `9`, `/` and `-`, and has at most 140 bytes; a document has at
/// most [`StoreFacts::most_bytes`]. The store may put a prefix of its own before the keys.
///
/// # Contract
/// What the locks rely on, beyond what each method says:
///
/// 1. **One request.** [`put_if`](Self::put_if) is one atomic compare-and-swap, sent *once*: a client
///    library that repeats requests by itself must not, since a repetition of a swap that succeeded
///    comes back as a conflict.
/// 2. **Only the store's own word counts.** A time-out, a cut connection and an error of a proxy are
///    [`Unknown`](PutOutcome::Unknown): the swap may have been carried out, or may be later. A refusal is
///    [`Throttled`](PutOutcome::Throttled) or [`Forbidden`](PutOutcome::Forbidden) only where the store
///    promises that nothing was done.
/// 3. **Versions never recur** for a key, also after the document was removed and created again. Where a
///    version is a hash of the document this holds because lockkit puts a new random number into every
///    document that it writes.
/// 4. **Reads are linearizable**: a read that begins after a swap was answered shows that swap or a later
///    one. A store whose reads may be older says so by the order of its
///    [versions](DocumentVersion::ordered); older documents than one already seen are then discarded.
/// 5. **A dropped future may take effect later**, at any time, or not at all.
///
/// Every method returns in bounded time, some seconds.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What is known about this store before anything is asked.
    fn facts(&self) -> &StoreFacts;

    /// Reads a document. With `unless`, a document that still has this version may be answered with
    /// [`Same`](ReadOutcome::Same), which moves no bytes.
    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError>;

    /// Writes a document if the one that is stored has this version; with `None`, if there is none. One
    /// request, sent once.
    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome;

    /// Removes a document, whatever its version; one that is missing is no error. Only sessions that have
    /// ended are removed.
    async fn remove(&self, key: &str) -> Result<(), StoreError>;

    /// The keys that begin with `prefix` and are greater than `after`, in ascending order, at most `limit`.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError>;

    /// Reports the keys of documents that change, until the connection breaks. A store without
    /// notifications keeps the default, which never returns and reports nothing: waiters then poll.
    /// Reports may be lost or repeated.
    async fn watch(&self, changes: &ChangeReporter) -> Result<(), StoreError> {
        let _ = changes;
        std::future::pending().await
    }

    /// Another connection to the same store, as another process would have: to another server of a cluster,
    /// where it has several. For the [probe](crate::probe), which then sees more. By default there is none.
    async fn another(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        Ok(None)
    }

    /// Checks the configuration of the store: an error refuses to connect, and says what to do; findings
    /// are shown by `doctor`.
    async fn examine(&self) -> Result<Vec<Finding>, Error>;
}

/// A longer pause between two reads of a session would delay what follows a dead holder for no gain.
const LONGEST_SESSION_PACE: Duration = Duration::from_secs(4);

/// What is known about a store before anything is asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreFacts {
    /// The backend's name, lower case.
    pub name: &'static str,
    /// The largest document, in bytes. Acquires are refused where a document has nine tenths of it.
    pub most_bytes: usize,
    /// How many documents the queues are spread over. Fixed when the store is first used.
    pub shards: u32,
    /// The shortest TTL that works here: several times what a swap takes.
    pub min_ttl: Duration,
    /// The pause between two polls of a queue in which a claim waits.
    pub pace: Duration,
    /// The least time between two swaps of one document by one process, where the store refuses more. What is
    /// asked for meanwhile shares the next swap.
    pub swap_pace: Duration,
    /// Whether [`watch`](Store::watch) reports changes, so that waiters poll as a precaution only.
    pub reports_changes: bool,
    /// What each fault may cost; a fault that is missing keeps all promises.
    pub faults: &'static [(Fault, Guarantee)],
}

impl StoreFacts {
    /// How often the session of a claim that is in the way is read.
    pub(crate) fn session_pace(&self) -> Duration {
        (self.pace * 4).min(LONGEST_SESSION_PACE.max(self.pace))
    }

    /// Within which time a waiting claim of another process sees a change, but for the requests.
    pub(crate) fn poll_within(&self) -> Duration {
        self.pace + self.pace.min(Duration::from_secs(1))
    }

    /// A store with documents of 350 KB, 16 shards, TTLs of at least 3 s and a poll every second.
    pub fn of(name: &'static str) -> Self {
        Self {
            name,
            most_bytes: 350_000,
            shards: 16,
            min_ttl: Duration::from_secs(3),
            pace: Duration::from_secs(1),
            swap_pace: Duration::ZERO,
            reports_changes: false,
            faults: &[
                (Fault::DataLost, Guarantee::Tokens),
                (Fault::OlderDataRestored, Guarantee::Tokens),
                (Fault::ClientMachinePaused, Guarantee::Tokens),
                (Fault::BrokenByForce, Guarantee::Tokens),
            ],
        }
    }
}

/// Which state of a document was read or written. Opaque, except on stores whose versions have an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DocumentVersion {
    text: Arc<str>,
    order: Option<u64>,
}

impl DocumentVersion {
    /// A version that can only be compared for equality, such as an ETag.
    pub fn opaque(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), order: None }
    }

    /// A version that is a number which grows with every change of the document, on a store whose reads may
    /// be older than its last answer.
    pub fn ordered(number: u64) -> Self {
        Self { text: number.to_string().into(), order: Some(number) }
    }

    /// The text of the version.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of an [ordered](Self::ordered) version.
    pub fn order(&self) -> Option<u64> {
        self.order
    }
}

/// A document as it is stored.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: DocumentVersion,
}

/// The answer to [`Store::get`].
#[derive(Clone, Debug)]
pub enum ReadOutcome {
    /// The document still has the version that was named.
    Same,
    /// The document.
    Document(Document),
    /// There is no such document.
    Absent,
}

/// The answer to [`Store::put_if`].
#[derive(Clone, Debug)]
pub enum PutOutcome {
    /// The document was written, and has this version.
    Stored(DocumentVersion),
    /// The stored document has another version, or there is one where none was expected, or none where one
    /// was; nothing was written. With the stored document, where the store says it along.
    Conflict(Option<Document>),
    /// No answer of the store itself: the document may have been written, or may be later.
    Unknown(Cause),
    /// The store is busy and certainly wrote nothing; it may be asked again after the pause.
    Throttled {
        /// The pause that the store asks for.
        pause: Duration,
        /// What it said.
        cause: Cause,
    },
    /// The store refuses, certainly wrote nothing, and will refuse again; the cause names what is missing.
    Forbidden(Cause),
}

/// What became of a swap that the store answered.
pub(crate) enum Swap {
    Stored(DocumentVersion),
    /// Nothing was written; with what is stored, where the store says it along.
    Conflict(Option<Document>),
}

impl PutOutcome {
    /// An error where the store did not carry it out, or did not answer.
    pub(crate) fn answer(self) -> Result<Swap, StoreError> {
        match self {
            Self::Stored(version) => Ok(Swap::Stored(version)),
            Self::Conflict(found) => Ok(Swap::Conflict(found)),
            Self::Unknown(cause) => Err(StoreError::Unavailable(cause)),
            Self::Throttled { pause, cause } => Err(StoreError::Throttled { pause, cause }),
            Self::Forbidden(cause) => Err(StoreError::Forbidden(cause)),
        }
    }
}

/// Why a read, a removal or a listing has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer; asking again may help.
    #[error("{0}")]
    Unavailable(Cause),
    /// The store is busy; it may be asked again after the pause.
    #[error("{cause}")]
    Throttled {
        /// The pause that the store asks for.
        pause: Duration,
        /// What it said.
        cause: Cause,
    },
    /// The store refuses, and will refuse again; the cause names what is missing.
    #[error("{0}")]
    Forbidden(Cause),
}

/// What such an error means for a swap: without an answer, it may have been carried out, or may be later.
impl From<StoreError> for PutOutcome {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(cause) => Self::Unknown(cause),
            StoreError::Throttled { pause, cause } => Self::Throttled { pause, cause },
            StoreError::Forbidden(cause) => Self::Forbidden(cause),
        }
    }
}

impl StoreError {
    /// As an error of the locks.
    pub(crate) fn into_error(self, backend: &'static str) -> Error {
        match self {
            Self::Unavailable(cause) | Self::Throttled { cause, .. } => {
                Error::retryable(backend, cause.to_string())
            }
            Self::Forbidden(cause) => Error::permanent(backend, cause.to_string()),
        }
    }
}

/// Is called with the key of a document that changed, and with `None` when reports begin.
type OnChange = dyn Fn(Option<&str>) + Send + Sync;

/// Takes the reports of [`Store::watch`].
#[derive(Clone)]
pub struct ChangeReporter {
    changed: Arc<OnChange>,
}

impl ChangeReporter {
    pub(crate) fn new(changed: impl Fn(Option<&str>) + Send + Sync + 'static) -> Self {
        Self { changed: Arc::new(changed) }
    }

    /// The document of this key has changed.
    pub fn changed(&self, key: &str) {
        (self.changed)(Some(key));
    }

    /// Reports arrive from now on; changes before this may have been missed.
    pub fn is_watching(&self) {
        (self.changed)(None);
    }
}

impl fmt::Debug for ChangeReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeReporter").finish_non_exhaustive()
    }
}

/// A sentence as a cause.
#[cfg(any(test, feature = "dynamodb", feature = "nats", feature = "objects", feature = "testing"))]
pub(crate) fn because(why: impl Into<String>) -> Cause {
    let why: Box<dyn std::error::Error + Send + Sync> = why.into().into();
    Arc::from(why)
}

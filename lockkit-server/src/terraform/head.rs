//! The head of a state: the register that names its lock and its versions.

use lockkit_core::Token;
use lockkit_core::driver::{MAX_REGISTER_BYTES, Precondition, Write, WriteResult};
use lockkit_http::wire::Code;
use serde::{Deserialize, Serialize};

use super::info::OWN_ID;
use super::{Target, conflict};
use crate::response::ErrorResponse;

/// How many ids of ended locks are remembered: a late duplicate of one's LOCK takes no lock.
const REMEMBERED: usize = 16;

/// How often a head is read again after another request wrote it first.
const ATTEMPTS: usize = 32;

/// What the head has.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) lock: Option<HeadLock>,
    /// Ids of locks that ended, the latest last.
    pub(super) ended: Vec<String>,
    pub(super) current: Option<StateVersion>,
    pub(super) previous: Option<StateVersion>,
    /// The version whose parts are being stored.
    pub(super) pending: Option<StateVersion>,
    /// Versions whose parts may be deleted, or have been.
    pub(super) garbage: Vec<StateVersion>,
}

/// The lock of a state, as Terraform made it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadLock {
    pub(super) id: String,
    /// The token of the claim.
    pub(super) token: u64,
    /// The JSON that LOCK had as its body.
    pub(super) info: String,
}

/// A version of a state.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateVersion {
    /// The id of its write, which is in the names of its parts.
    pub(super) write: String,
    pub(super) parts: usize,
    /// In bytes, before compression.
    pub(super) length: usize,
    pub(super) sha256: String,
}

impl StateVersion {
    /// Whether both have the same bytes.
    pub(super) fn has_bytes_of(&self, other: &Self) -> bool {
        self.length == other.length && self.sha256 == other.sha256
    }
}

impl Head {
    /// Whether nothing was ever written.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a lock of this id ended.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.ended.iter().any(|ended| ended == id)
    }

    /// Whether this lock is the state's.
    pub(super) fn has_lock(&self, id: &str, token: Token) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.id == id && lock.token == token.get())
    }

    /// Ends the lock, and remembers its id.
    pub(super) fn end_lock(&mut self) {
        if let Some(lock) = self.lock.take() {
            self.remember(lock.id);
        }
    }

    /// Remembers that the lock of this id ended.
    pub(super) fn remember(&mut self, id: String) {
        // No client knows an id of the service's own.
        if id.starts_with(OWN_ID) || self.has_ended(&id) {
            return;
        }
        self.ended.push(id);
        let surplus = self.ended.len().saturating_sub(REMEMBERED);
        self.ended.drain(..surplus);
    }

    /// Gives up the version that is being stored.
    pub(super) fn discard_pending(&mut self) {
        self.garbage.extend(self.pending.take());
    }

    /// Whether a reader may be sent to the version of this write.
    pub(super) fn serves(&self, write: &str) -> bool {
        [&self.current, &self.previous].into_iter().flatten().any(|it| it.write == write)
    }
}

/// Why a head was not written.
pub(super) enum NotWritten {
    /// The request may not write it, now or later.
    Refused(ErrorResponse),
    /// A later lock wrote it.
    Stale,
    /// The backend failed, and may have written it.
    Failed(ErrorResponse),
}

impl From<NotWritten> for ErrorResponse {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Refused(response) | NotWritten::Failed(response) => response,
            NotWritten::Stale => conflict("another lock of this state followed"),
        }
    }
}

impl Target {
    /// The head as it is; an empty one where there is none.
    pub(super) async fn load_head(&self) -> super::Result<Head> {
        Ok(self.versioned_head().await?.0)
    }

    async fn versioned_head(&self) -> super::Result<(Head, Precondition)> {
        let Some(entry) = self.registers()?.load(&self.head()).await? else {
            return Ok((Head::default(), Precondition::Absent));
        };
        let head = serde_json::from_slice(&entry.value).map_err(|_| {
            let detail = "the register of this name is no head of a Terraform state that this \
                          version of the service can read";
            ErrorResponse::new(Code::Backend, detail)
        })?;
        Ok((head, Precondition::Version(entry.version)))
    }

    /// Changes the head in one atomic step. `change` is called again with what is there when another
    /// request wrote first; what it leaves as it is is not written.
    pub(super) async fn update<T>(
        &self,
        token: Option<Token>,
        mut change: impl FnMut(&mut Head) -> super::Result<T> + Send,
    ) -> Result<T, NotWritten> {
        for _ in 0..ATTEMPTS {
            let (mut head, expect) = self.versioned_head().await.map_err(NotWritten::Failed)?;
            let before = head.clone();
            let result = change(&mut head).map_err(NotWritten::Refused)?;
            if head == before {
                return Ok(result);
            }
            match self.write_head(&head, expect, token).await.map_err(NotWritten::Failed)? {
                WriteResult::Stored(_) => return Ok(result),
                WriteResult::Conflict => {}
                WriteResult::Stale { .. } => return Err(NotWritten::Stale),
            }
        }
        let detail = "many requests write this state: ask again";
        Err(NotWritten::Failed(ErrorResponse::new(Code::Unavailable, detail)))
    }

    async fn write_head(
        &self,
        head: &Head,
        expect: Precondition,
        token: Option<Token>,
    ) -> super::Result<WriteResult> {
        // Plain data: it always can be written as JSON.
        let value = serde_json::to_vec(head).unwrap_or_default();
        if value.len() > MAX_REGISTER_BYTES {
            return Err(ErrorResponse::new(Code::Backend, "the head of this state is too long"));
        }
        let write = Write { expect, token, ..Write::of(Some(value)) };
        Ok(self.registers()?.write(&self.head(), &write).await?.result)
    }
}

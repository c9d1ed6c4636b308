//! What is known of a claim of the mirror: how far it got in the two queues, the tag in its note by which
//! it is found in both, and the token that it has.
//!
//! A tag is at the end of a claim's note, behind a character that no note of a user contains. Managers do
//! not show it, on whichever side they look; the backends' own tools do.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, MutexGuard};

use lockkit_core::driver::{ClaimEnd, Grant, LockDriver, Renewal, locked};
use lockkit_core::state::{ClaimState, LockState, MARK};
use lockkit_core::{Claim, Error, Namespace, Token};

use super::{BACKEND, MirrorDriver};

/// How far a claim got, as far as is known; `under` is the namespace counter in its tag at the new
/// backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MirrorState {
    InOld,
    /// In the old queue; perhaps in the new one, of which no answer told.
    AskedNew {
        under: u64,
    },
    /// Holding in the old queue, and in the new one.
    InBoth {
        under: u64,
    },
    /// Holding in both, under this token.
    Holds {
        under: u64,
        token: Token,
    },
}

impl MirrorState {
    pub(super) fn under(self) -> Option<u64> {
        match self {
            Self::InOld => None,
            Self::AskedNew { under } | Self::InBoth { under } | Self::Holds { under, .. } => {
                Some(under)
            }
        }
    }

    pub(super) fn is_in_both(self) -> bool {
        matches!(self, Self::InBoth { .. } | Self::Holds { .. })
    }
}

/// What a claim's renewal said.
pub(super) enum MirrorRenewal {
    /// In both, in the new one with this counter in its tag.
    Holds(Grant, Grant, u64),
    WaitsForOld(u32),
    WaitsForNew(u32),
    /// Holds in the old queue, and is not known to be in the new one.
    HoldsInOld(Grant),
    Ended(ClaimEnd),
}

impl MirrorRenewal {
    pub(super) fn of(
        old: Result<Renewal, Error>,
        new: Option<(u64, Result<Renewal, Error>)>,
    ) -> Result<Self, Error> {
        let old = old?;
        let new = new.map(|(under, new)| new.map(|new| (under, new))).transpose()?;
        Ok(match (old, new) {
            (Renewal::Ended(why), _) | (_, Some((_, Renewal::Ended(why)))) => Self::Ended(why),
            (Renewal::Waits { ahead }, _) => Self::WaitsForOld(ahead),
            (Renewal::Holds(old), None) => Self::HoldsInOld(old),
            (Renewal::Holds(_), Some((_, Renewal::Waits { ahead }))) => Self::WaitsForNew(ahead),
            (Renewal::Holds(old), Some((under, Renewal::Holds(new)))) => {
                Self::Holds(old, new, under)
            }
        })
    }
}

/// What a backend says of each of these; of all the same when it does not answer.
pub(super) async fn renewed(
    driver: &Arc<dyn LockDriver>,
    claims: &[Arc<Claim>],
) -> Vec<Result<Renewal, Error>> {
    if claims.is_empty() {
        return Vec::new();
    }
    match driver.renew(claims).await {
        Ok(answers) => answers,
        Err(error) => {
            let failed = |_| Err(Error::retryable(BACKEND, error.to_string()));
            claims.iter().map(failed).collect()
        }
    }
}

/// The token of a claim that holds in both.
pub(super) fn token_of_both(base: u64, old: Token, new: Token) -> Result<Token, Error> {
    if base == 0 {
        return Ok(old);
    }
    match new.get().checked_add(base).and_then(Token::new) {
        Some(token) if token > old => Ok(token),
        _ => Err(Error::Config(format!(
            "the new backend's tokens begin at {base}, and do not lie above the old one's, which \
             are at {old}: let it take them over again, or lock in another namespace"
        ))),
    }
}

pub(super) fn lost(why: ClaimEnd) -> Error {
    Error::lost(why.into())
}

/// The tag of a claim that came through a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoteTag {
    /// Of the claim's id, of which it tells nothing.
    digest: u32,
    /// In the new queue: the namespace counter when the claim entered it.
    under: Option<u64>,
}

impl NoteTag {
    pub(super) fn of(claim_state: &ClaimState) -> Option<Self> {
        let (_, tag) = claim_state.note.as_deref()?.rsplit_once(MARK)?;
        let (digest, under) = match tag.split_once('.') {
            None => (tag, None),
            Some((digest, under)) => (digest, Some(u64::from_str_radix(under, 16).ok()?)),
        };
        Some(Self { digest: u32::from_str_radix(digest, 16).ok()?, under })
    }

    fn tagged(self, claim: &Claim) -> Arc<Claim> {
        let mut note = claim.note.as_deref().unwrap_or_default().to_owned();
        let _ = write!(note, "{MARK}{:08x}", self.digest);
        if let Some(under) = self.under {
            let _ = write!(note, ".{under:x}");
        }
        Arc::new(claim.clone().with_note(Some(note.into())))
    }

    /// The same claim in this queue.
    pub(super) fn twin(self, queue: &[ClaimState]) -> Option<&ClaimState> {
        queue.iter().find(|other| Self::of(other).is_some_and(|tag| tag.digest == self.digest))
    }

    /// Whether its token is that of the old backend.
    pub(super) fn bears_old_token(self) -> bool {
        self.under == Some(0)
    }
}

/// The claim as the old backend is to see it.
pub(super) fn at_old(claim: &Claim) -> Arc<Claim> {
    NoteTag { digest: digest(claim), under: None }.tagged(claim)
}

/// The claim as the new backend is to see it, under this token base.
pub(super) fn at_new(claim: &Claim, under: u64) -> Arc<Claim> {
    NoteTag { digest: digest(claim), under: Some(under) }.tagged(claim)
}

fn digest(claim: &Claim) -> u32 {
    let mut hasher = DefaultHasher::new();
    claim.id.hash(&mut hasher);
    hasher.finish() as u32
}

/// The token of a claim in the new queue, whose twin is in this old one. (A program that uses the new
/// backend only reads the counter when it connects, which is not before it was raised.)
fn token_in_new(claim_state: &ClaimState, base: u64, old: &[ClaimState]) -> Token {
    let tag = NoteTag::of(claim_state);
    let old = tag.filter(|tag| tag.bears_old_token()).and_then(|tag| tag.twin(old));
    if let Some(twin) = old {
        return twin.token;
    }
    let under = tag.and_then(|tag| tag.under).filter(|under| *under > 0).unwrap_or(base);
    Token::new(claim_state.token.get().saturating_add(under)).unwrap_or(claim_state.token)
}

impl MirrorDriver {
    /// The token base of the new backend, as it is now.
    pub(super) async fn base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let base = self.new.namespace_counter(namespace).await?;
        self.bases().insert(namespace.clone(), base);
        Ok(base)
    }

    fn bases(&self) -> MutexGuard<'_, HashMap<Namespace, u64>> {
        locked(&self.bases)
    }

    /// The same, as last read, if it ever was.
    pub(super) async fn base_last_read(&self, namespace: &Namespace) -> Result<u64, Error> {
        let known = self.bases().get(namespace).copied();
        match known {
            Some(base) => Ok(base),
            None => self.base(namespace).await,
        }
    }

    /// The backend that gives the tokens while this is the base, and the other one.
    pub(super) fn giving(&self, base: u64) -> (&Arc<dyn LockDriver>, &Arc<dyn LockDriver>) {
        match base {
            0 => (&self.old, &self.new),
            _ => (&self.new, &self.old),
        }
    }

    /// A list as the backend shows it that gives the tokens, and under which token each claim in it
    /// holds: of those that hold since before the tokens were taken over, the old backend knows.
    pub(super) async fn tokens_in(
        &self,
        state: &LockState,
        base: u64,
    ) -> Result<Vec<Token>, Error> {
        if base == 0 {
            return Ok(state.queue.iter().map(|claim_state| claim_state.token).collect());
        }
        let tags = state.queue.iter().filter_map(NoteTag::of);
        let old = match tags.into_iter().any(NoteTag::bears_old_token) {
            true => self.old.inspect(&state.key).await?.queue,
            false => Vec::new(),
        };
        Ok(state.queue.iter().map(|claim_state| token_in_new(claim_state, base, &old)).collect())
    }

    pub(super) async fn with_tokens(
        &self,
        mut state: LockState,
        base: u64,
    ) -> Result<LockState, Error> {
        let tokens = self.tokens_in(&state, base).await?;
        for (claim_state, token) in state.queue.iter_mut().zip(tokens) {
            claim_state.token = token;
            claim_state.unmark();
        }
        Ok(state)
    }
}

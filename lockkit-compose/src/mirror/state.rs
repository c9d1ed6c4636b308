//! What is known of a claim of the mirror: how far it got in the two queues, the tag in its note by which
//! it is found in both, and the token that it has.
//!
//! A tag is at the end of a claim's note, behind a character that no note of a user contains. Managers do
//! not show it, on whichever side they look; the backends' own tools do.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, MutexGuard};

use lockkit_core::driver::{ClaimEnd, ClaimId, Grant, LockDriver, Renewal, backoff, locked};
use lockkit_core::state::{ClaimState, LockState, MARK};
use lockkit_core::{Claim, Error, Namespace, Token};
use tokio::sync::Mutex as AsyncMutex;

use super::{BACKEND, MirrorDriver};

/// How far a claim got, as far as is known; `under` is the token base in its tag at the new backend.
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

/// What is known of one claim.
#[derive(Debug)]
pub(super) struct MirrorClaim {
    pub(super) state: MirrorState,
    /// Held while a step is taken, by a wait or a renewal: one does not undo what the other is granted.
    pub(super) step: Arc<AsyncMutex<()>>,
    /// Requests to the new backend of which no answer came: each may put it in there yet.
    pub(super) unanswered: u32,
}

impl Default for MirrorClaim {
    fn default() -> Self {
        Self { state: MirrorState::InOld, step: Arc::default(), unanswered: 0 }
    }
}

/// What a claim's renewal said.
pub(super) enum MirrorRenewal {
    /// In both, in the new one with this token base in its tag.
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

/// What each backend adds to its tokens. The old one does so where it was the new one of an earlier move.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBases {
    old: u64,
    new: u64,
}

impl TokenBases {
    /// The token base that a claim which enters the new queue has in its tag: 0 while the old backend gives
    /// the tokens. Taking them over raises the base of the new one above a token of the old one, and so above
    /// its base; a base that the new one has from an earlier move is less.
    pub(super) fn under(self) -> u64 {
        if self.new > self.old { self.new } else { 0 }
    }

    /// The old backend's token as its own users know it.
    fn of_old(self, token: Token) -> Token {
        with_base(token, self.old).unwrap_or(token)
    }

    /// The token of a claim that holds in both.
    pub(super) fn of_both(self, old: Token, new: Token) -> Result<Token, Error> {
        let (base, old) = (self.under(), self.of_old(old));
        if base == 0 {
            return Ok(old);
        }
        match with_base(new, base) {
            Some(token) if token > old => Ok(token),
            _ => Err(Error::Config(format!(
                "the new backend's tokens begin at {base}, and do not lie above the old one's, which \
                 are at {old}: let it take them over again, or lock in another namespace"
            ))),
        }
    }
}

fn with_base(token: Token, base: u64) -> Option<Token> {
    token.get().checked_add(base).and_then(Token::new)
}

pub(super) fn lost(why: ClaimEnd) -> Error {
    Error::lost(why.into())
}

fn released() -> Error {
    lost(ClaimEnd::NotFound)
}

/// The tag of a claim that came through a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoteTag {
    /// Of the claim's id, of which it tells nothing.
    digest: u32,
    /// In the new queue: the token base when the claim entered it.
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
/// backend only reads the base when it connects, which is not before it was raised.)
fn token_in_new(claim_state: &ClaimState, bases: TokenBases, old: &[ClaimState]) -> Token {
    let tag = NoteTag::of(claim_state);
    let old = tag.filter(|tag| tag.bears_old_token()).and_then(|tag| tag.twin(old));
    if let Some(twin) = old {
        return bases.of_old(twin.token);
    }
    let under = tag.and_then(|tag| tag.under).filter(|under| *under > 0).unwrap_or(bases.new);
    with_base(claim_state.token, under).unwrap_or(claim_state.token)
}

impl MirrorDriver {
    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, MirrorClaim>> {
        locked(&self.claims)
    }

    pub(super) fn state_of(&self, claim: &Claim) -> Option<MirrorState> {
        self.claims().get(&claim.id).map(|known| known.state)
    }

    /// Notes a claim that is about to enter the old queue.
    pub(super) fn remember(&self, claim: &Claim) {
        self.claims().entry(claim.id).or_default();
    }

    /// Changes what is known of a claim; an error when it was released meanwhile.
    pub(super) fn change<T>(
        &self,
        claim: &Claim,
        change: impl FnOnce(&mut MirrorClaim) -> T,
    ) -> Result<T, Error> {
        self.claims().get_mut(&claim.id).map(change).ok_or_else(released)
    }

    /// Forgets a claim that is given back. Where a request may put it into the new queue yet, it is taken
    /// out again and again until its lease would be over: core knows of no such request.
    pub(super) fn forget(&self, claim: &Arc<Claim>) {
        let known = self.claims().remove(&claim.id);
        if known.is_none_or(|known| known.unanswered == 0) {
            return;
        }
        let (new, claim, clock) = (self.new.clone(), claim.clone(), self.clock.clone());
        let until = clock.now().after(claim.hold_ttl.max(claim.wait_ttl));
        tokio::spawn(async move {
            let mut rounds = 0;
            while clock.now() < until {
                rounds += 1;
                tokio::time::sleep(backoff(rounds)).await;
                let _ = new.release(&claim).await; // tried again, whatever it says
            }
        });
    }

    /// The token bases. That of the new backend is as it is now; that of the old one was raised, if ever,
    /// before a program used this mirror.
    pub(super) async fn bases(&self, namespace: &Namespace) -> Result<TokenBases, Error> {
        let known = self.bases_known(namespace);
        let old = async {
            match known {
                Some(bases) => Ok(bases.old),
                None => self.old.namespace_counter(namespace).await,
            }
        };
        let new = self.new.namespace_counter(namespace);
        let (old, new) = futures_util::future::try_join(old, new).await?;
        let bases = TokenBases { old, new };
        locked(&self.bases).insert(namespace.clone(), bases);
        Ok(bases)
    }

    fn bases_known(&self, namespace: &Namespace) -> Option<TokenBases> {
        locked(&self.bases).get(namespace).copied()
    }

    /// The same, as last read, if they ever were.
    pub(super) async fn bases_last_read(&self, namespace: &Namespace) -> Result<TokenBases, Error> {
        match self.bases_known(namespace) {
            Some(bases) => Ok(bases),
            None => self.bases(namespace).await,
        }
    }

    /// The backend that gives the tokens while these are the bases, and the other one.
    pub(super) fn giving(&self, bases: TokenBases) -> (&Arc<dyn LockDriver>, &Arc<dyn LockDriver>) {
        match bases.under() {
            0 => (&self.old, &self.new),
            _ => (&self.new, &self.old),
        }
    }

    /// A list as the backend shows it that gives the tokens, and under which token each claim in it
    /// holds: of those that hold since before the tokens were taken over, the old backend knows.
    pub(super) async fn tokens_in(
        &self,
        state: &LockState,
        bases: TokenBases,
    ) -> Result<Vec<Token>, Error> {
        let queue = state.queue.iter();
        if bases.under() == 0 {
            return Ok(queue.map(|claim_state| bases.of_old(claim_state.token)).collect());
        }
        let old = match queue.clone().filter_map(NoteTag::of).any(NoteTag::bears_old_token) {
            true => self.old.inspect(&state.key).await?.queue,
            false => Vec::new(),
        };
        Ok(queue.map(|claim_state| token_in_new(claim_state, bases, &old)).collect())
    }

    pub(super) async fn with_tokens(
        &self,
        mut state: LockState,
        bases: TokenBases,
    ) -> Result<LockState, Error> {
        let tokens = self.tokens_in(&state, bases).await?;
        for (claim_state, token) in state.queue.iter_mut().zip(tokens) {
            claim_state.token = token;
            claim_state.unmark();
        }
        Ok(state)
    }
}

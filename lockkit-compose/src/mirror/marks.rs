//! The marks by which a claim is found in both lists, and by which it is known whose token it bears.
//!
//! A mark stands at the end of a claim's note, behind a character that no note of a user contains.
//! Managers do not show it, on whichever side they look; the backends' own tools do.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use lockkit_core::state::{ClaimState, MARK};
use lockkit_core::{Claim, Token};

/// The mark of a claim that came through a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Of the claim's id, of which it tells nothing.
    digest: u32,
    /// In the new list: the token base under which the claim entered it.
    under: Option<u64>,
}

impl Mark {
    pub(super) fn of(standing: &ClaimState) -> Option<Self> {
        let (_, mark) = standing.note.as_deref()?.rsplit_once(MARK)?;
        let (digest, under) = match mark.split_once('.') {
            None => (mark, None),
            Some((digest, under)) => (digest, Some(u64::from_str_radix(under, 16).ok()?)),
        };
        Some(Self { digest: u32::from_str_radix(digest, 16).ok()?, under })
    }

    fn marks(self, claim: &Claim) -> Arc<Claim> {
        let mut note = claim.note.as_deref().unwrap_or_default().to_owned();
        let _ = write!(note, "{MARK}{:08x}", self.digest);
        if let Some(under) = self.under {
            let _ = write!(note, ".{under:x}");
        }
        Arc::new(claim.clone().with_note(Some(note.into())))
    }

    /// The same claim in this line.
    pub(super) fn twin(self, line: &[ClaimState]) -> Option<&ClaimState> {
        line.iter().find(|other| Self::of(other).is_some_and(|mark| mark.digest == self.digest))
    }

    /// Whether its token is that of the old list.
    pub(super) fn bears_old_token(self) -> bool {
        self.under == Some(0)
    }
}

/// The claim as the old backend is to see it.
pub(super) fn at_old(claim: &Claim) -> Arc<Claim> {
    Mark { digest: digest(claim), under: None }.marks(claim)
}

/// The claim as the new backend is to see it, under this token base.
pub(super) fn at_new(claim: &Claim, under: u64) -> Arc<Claim> {
    Mark { digest: digest(claim), under: Some(under) }.marks(claim)
}

fn digest(claim: &Claim) -> u32 {
    let mut hasher = DefaultHasher::new();
    claim.id.hash(&mut hasher);
    hasher.finish() as u32
}

/// The token that a claim in the new line bears, whose twin is in this old line. (Whoever uses the
/// new backend alone reads the base when it connects, which is not before it was raised.)
pub(super) fn token_of(standing: &ClaimState, base: u64, old: &[ClaimState]) -> Token {
    let mark = Mark::of(standing);
    let old = mark.filter(|mark| mark.bears_old_token()).and_then(|mark| mark.twin(old));
    if let Some(twin) = old {
        return twin.token;
    }
    let under = mark.and_then(|mark| mark.under).filter(|under| *under > 0).unwrap_or(base);
    Token::new(standing.token.get().saturating_add(under)).unwrap_or(standing.token)
}

//! Where a claim of the mirror stands in the two lines, and what a renewal says of that.

use std::sync::Arc;

use super::BACKEND;
use lockkit_core::driver::{ClaimEnd, Grant, LockDriver, Renewal};
use lockkit_core::{Claim, Error, LossReason, Token};

/// Where a claim stands, as far as answers told; in the new line with the mark of this token base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    InOld,
    /// In the old line; perhaps in the new one, where nobody has been told so.
    AskedNew {
        under: u64,
    },
    /// Holding in the old line, and standing in the new one.
    InBoth {
        under: u64,
    },
    /// Holding in both, under this token.
    Holds {
        under: u64,
        token: Token,
    },
}

impl Stand {
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
pub(super) enum Look {
    /// In both, in the new one with the mark of this base.
    Holds(Grant, Grant, u64),
    WaitsForOld(u32),
    WaitsForNew(u32),
    /// Holds in the old line, and is not known to be in the new one.
    AtTheDoor(Grant),
    Ended(ClaimEnd),
}

impl Look {
    pub(super) fn of(
        old: Result<Renewal, Error>,
        new: Option<(u64, Result<Renewal, Error>)>,
    ) -> Result<Self, Error> {
        let old = old?;
        let new = new.map(|(under, new)| new.map(|new| (under, new))).transpose()?;
        Ok(match (old, new) {
            (Renewal::Ended(why), _) | (_, Some((_, Renewal::Ended(why)))) => Self::Ended(why),
            (Renewal::Waits { ahead }, _) => Self::WaitsForOld(ahead),
            (Renewal::Holds(old), None) => Self::AtTheDoor(old),
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
pub(super) fn token_of(base: u64, old: Token, new: Token) -> Result<Token, Error> {
    if base == 0 {
        return Ok(old);
    }
    match new.get().checked_add(base).and_then(Token::new) {
        Some(token) if token > old => Ok(token),
        _ => Err(Error::Config(format!(
            "the new backend's tokens begin at {base}, and do not lie above the old one's, which \
             are at {old}: let it take them over again, or lock under another prefix"
        ))),
    }
}

pub(super) fn lost(why: ClaimEnd) -> Error {
    let reason = match why {
        ClaimEnd::Broken(record) => LossReason::Broken(record),
        ClaimEnd::SessionEnded => LossReason::SessionEnded,
        _ => LossReason::Expired,
    };
    Error::Lost { reason }
}

//! What travels between a client and the lock service: JSON, one type for each request and answer.
//!
//! Durations are whole milliseconds. Tokens, versions and ids are strings: a JSON number loses
//! digits beyond 2^53 in many languages, and a fencing token that lost digits does not fence.
//!
//! # Time
//! No answer contains a moment. `remaining_ms` of a [`Grant`] counts from the moment **before the
//! client sent** the request that this answers, so that a late answer is never trusted for too long.

mod answers;
mod backend;
mod claims;
mod inspect;
mod listing;
mod problem;
mod registers;
mod status;
mod watch;

pub use answers::{BatchOutcome, Evidence, OrProblem, ReleaseResult, Released, RenewOutcome};
pub use backend::{Capabilities, Finding, Health, Promises, SeverityName};
pub use claims::{
    AcquireBody, BatchAcquire, BatchBody, Claim, ClaimBody, ModeKind, RenewBody, ShortenBody,
    WaitBody,
};
pub use inspect::{
    BreakBody, BreakResult, Changed, ClaimState, Key, KnownClaim, Limit, ListBody, Lock, Page,
    ResizeBody, SpaceName, claim_states,
};
pub use listing::{ListNamespaces, ListRegisters, Namespaces, RegisterPage, RegisterState};
pub use problem::{Code, Problem};
pub use registers::{
    ChangedRegister, Delete, Loaded, Outcome, Register, RegisterEntry, Store, Value, Write,
};
pub use status::{ClaimEnd, ClaimStatus, EndReason, Grant};
pub use watch::{QueueState, QueuedClaim, Watch};

/// The longest wait of one request. A client that waits longer asks again.
pub const LONGEST_WAIT_MS: u64 = 25_000;

/// Numbers and ids as strings.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(it)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }

    /// The same where there may be none.
    pub(crate) mod maybe {
        use super::*;

        pub(crate) fn serialize<T: Display, S: Serializer>(
            it: &Option<T>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match it {
                Some(it) => to.collect_str(it),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
        where
            T: FromStr<Err: Display>,
            D: Deserializer<'de>,
        {
            let text = Option::<String>::deserialize(from)?;
            text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
        }
    }
}

/// Milliseconds for the wire, rounded down: of what a client may trust, never more than there is.
pub(crate) fn ms_down(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds for the wire, rounded up: of what a client asks for, never less.
pub(crate) fn ms_up(duration: std::time::Duration) -> u64 {
    let exact = duration.subsec_nanos().is_multiple_of(1_000_000);
    ms_down(duration).saturating_add(u64::from(!exact))
}

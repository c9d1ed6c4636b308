//! The state of a claim, as the service answers it.

use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd as DriverClaimEnd, Grant as DriverGrant, LeaseStart, Renewal,
};
use lockkit_core::{BreakRecord, Error, LossReason, Margin, Token};
use serde::{Deserialize, Serialize};

use super::{ms_down, ms_up, text};

/// The state of a claim.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ClaimStatus;
///
/// let json = r#"
///     {"state": "held", "token": "42", "ttl_ms": 30000, "remaining_ms": 30000, "margin_ms": 3002}
/// "#;
/// let it: ClaimStatus = serde_json::from_str(json)?;
/// let ClaimStatus::Held(grant) = it else { panic!("it holds") };
/// assert_eq!(grant.token.get(), 42);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ClaimStatus {
    /// It holds.
    Held(Grant),
    /// It is in the queue.
    Waiting {
        /// The number of live claims ahead of it.
        ahead: u32,
        /// As in [`Grant`].
        #[serde(default, skip_serializing_if = "is_zero")]
        ambiguous: u32,
    },
    /// It could not hold at once, and is not in the queue.
    Busy {
        /// As in [`Grant`].
        #[serde(default, skip_serializing_if = "is_zero")]
        ambiguous: u32,
    },
    /// It is not live any more, and never will be again.
    Ended(ClaimEnd),
}

/// A claim holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its fencing token: give it along with every write.
    #[serde(with = "text")]
    pub token: Token,
    /// How long leases of this claim last at the backend.
    pub ttl_ms: u64,
    /// What is left of this one, counted from **before the request was sent**. Trust it for less, by
    /// the greater of `margin_ms` and the client's own margin.
    pub remaining_ms: u64,
    /// What clocks that run at different rates need: the client's, and the one that ends the lease.
    #[serde(default)]
    pub margin_ms: u64,
    /// The number of earlier attempts of this request that got no answer inside of the service: each
    /// may put the claim into the queue again after a release. Release again until the ttl is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous: u32,
}

/// Why a claim ended.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ClaimEnd;
///
/// let it: ClaimEnd = serde_json::from_str(r#"{"reason": "not_found"}"#)?;
/// assert!(it.broken.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEnd {
    /// What is known.
    pub reason: EndReason,
    /// How it was broken, if it was.
    #[serde(default, rename = "break", skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakRecord>,
}

/// Why a claim is not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Not in the queue: released, expired, or lost with the backend's data.
    NotFound,
    /// It was broken.
    Broken,
    /// The backend's session or lease that kept it ended.
    SessionEnded,
}

impl Grant {
    /// What is answered for a grant of a driver, to a request that was received at `received`.
    pub fn of(grant: &DriverGrant, received: Moment, ambiguous: u32) -> Self {
        let age = grant.start.moment().map_or(Duration::ZERO, |since| received.since(since));
        Self {
            token: grant.token,
            ttl_ms: ms_down(grant.ttl),
            remaining_ms: ms_down(grant.ttl.saturating_sub(age)),
            // The client reads another clock than the backend, whatever the service does.
            margin_ms: ms_up(Margin::default().of(grant.ttl).max(grant.margin)),
            ambiguous,
        }
    }

    /// The grant for a driver whose request was sent at `sent`.
    pub fn for_driver(&self, sent: Moment) -> DriverGrant {
        let age = Duration::from_millis(self.ttl_ms.saturating_sub(self.remaining_ms));
        let start = match age.is_zero() {
            // It was this very request that set the lease.
            true => LeaseStart::LastAnswered,
            false => LeaseStart::Sent(sent.before(age)),
        };
        let ttl = Duration::from_millis(self.ttl_ms);
        DriverGrant { token: self.token, ttl, start, margin: Duration::from_millis(self.margin_ms) }
    }
}

impl ClaimStatus {
    /// The answer to an acquire that was received at `received`.
    pub fn of_acquisition(answer: Attempted<Acquisition>, received: Moment) -> Self {
        let ambiguous = answer.ambiguous;
        match answer.result {
            Acquisition::Granted(grant) => Self::Held(Grant::of(&grant, received, ambiguous)),
            Acquisition::Queued { ahead } => Self::Waiting { ahead, ambiguous },
            Acquisition::Busy => Self::Busy { ambiguous },
        }
    }

    /// The answer to a renewal that was received at `received`.
    pub fn of_renewal(renewal: Renewal, received: Moment) -> Self {
        match renewal {
            Renewal::Holds(grant) => Self::Held(Grant::of(&grant, received, 0)),
            Renewal::Waits { ahead } => Self::Waiting { ahead, ambiguous: 0 },
            Renewal::Ended(end) => Self::Ended(LossReason::from(end).into()),
        }
    }

    /// The answer to an acquire that was sent at `sent`.
    pub fn acquisition(self, sent: Moment) -> Result<Attempted<Acquisition>, Error> {
        let (ambiguous, answer) = match self {
            Self::Held(grant) => (grant.ambiguous, Acquisition::Granted(grant.for_driver(sent))),
            Self::Waiting { ahead, ambiguous } => (ambiguous, Acquisition::Queued { ahead }),
            Self::Busy { ambiguous } => (ambiguous, Acquisition::Busy),
            Self::Ended(end) => return Err(Error::lost(end.reason())),
        };
        Ok(Attempted::after(ambiguous, answer))
    }

    /// The answer to a renewal that was sent at `sent`.
    pub fn renewal(self, sent: Moment) -> Renewal {
        match self {
            Self::Held(grant) => Renewal::Holds(grant.for_driver(sent)),
            Self::Waiting { ahead, .. } => Renewal::Waits { ahead },
            Self::Busy { .. } => Renewal::Ended(DriverClaimEnd::NotFound),
            Self::Ended(end) => Renewal::Ended(end.for_driver()),
        }
    }
}

impl ClaimEnd {
    /// The end for a driver.
    fn for_driver(self) -> DriverClaimEnd {
        match self {
            Self { broken: Some(record), .. } => DriverClaimEnd::Broken(record),
            Self { reason: EndReason::SessionEnded, .. } => DriverClaimEnd::SessionEnded,
            Self { .. } => DriverClaimEnd::NotFound,
        }
    }

    /// The reason for the error of the library.
    pub fn reason(self) -> LossReason {
        self.for_driver().into()
    }
}

impl From<LossReason> for ClaimEnd {
    fn from(reason: LossReason) -> Self {
        match reason {
            LossReason::Broken(record) => Self { reason: EndReason::Broken, broken: Some(record) },
            LossReason::SessionEnded => Self { reason: EndReason::SessionEnded, broken: None },
            _ => Self { reason: EndReason::NotFound, broken: None },
        }
    }
}

/// For counts that are left out where they are zero.
pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn grant(since: Option<Moment>) -> DriverGrant {
        let start = since.map_or(LeaseStart::LastAnswered, LeaseStart::Sent);
        DriverGrant { token: Token::new(7).unwrap(), ttl: TTL, start, margin: Duration::ZERO }
    }

    /// What the client trusts, once the service has answered a request that arrived a second after it
    /// was sent: `None` stands for the whole ttl, from the sending.
    fn trusted(since: Option<Moment>, received: Moment) -> Option<Moment> {
        let sent = received.before(SECOND);
        Grant::of(&grant(since), received, 0).for_driver(sent).start.moment()
    }

    #[test]
    fn a_lease_is_never_trusted_for_longer_than_the_backend_keeps_it() {
        let received = Moment::from_nanos(1_000_000_000_000);
        let sent = received.before(SECOND);
        assert_eq!(trusted(None, received), None, "this request set it");
        // Set earlier: by a lease that claims share, say.
        let earlier = received.before(5 * SECOND);
        assert_eq!(trusted(Some(earlier), received), Some(sent.before(5 * SECOND)));
        // Set later, while the request waited: the client counts from its question all the same.
        assert_eq!(trusted(Some(received.after(20 * SECOND)), received), None);
        // Over already.
        let over = received.before(2 * TTL);
        assert_eq!(Grant::of(&grant(Some(over)), received, 0).remaining_ms, 0);
    }

    #[test]
    fn an_answer_names_the_margin_and_the_client_gets_it() {
        let received = Moment::from_nanos(1_000_000_000_000);
        let answer = Grant::of(&grant(None), received, 0);
        assert_eq!((answer.remaining_ms, answer.margin_ms), (30_000, 3_002));
        assert_eq!(answer.for_driver(received).margin, Duration::from_millis(3_002));
        // A quorum with members whose clocks are worse says so, through a service as well.
        let margin = Duration::from_millis(4_000);
        let answer = Grant::of(&DriverGrant { margin, ..grant(None) }, received, 0);
        assert_eq!(answer.margin_ms, 4_000);
        // A service that names none is an older one.
        let json = r#"{"token": "7", "ttl_ms": 30000, "remaining_ms": 30000}"#;
        let older: Grant = serde_json::from_str(json).unwrap();
        assert_eq!(older.for_driver(received).margin, Duration::ZERO);
    }

    #[test]
    fn what_is_left_is_rounded_down_and_what_is_asked_for_up() {
        let received = Moment::from_nanos(1_000_000_000_000);
        let age = Duration::from_micros(100);
        let answer = Grant::of(&grant(Some(received.before(age))), received, 0);
        assert_eq!((answer.ttl_ms, answer.remaining_ms), (30_000, 29_999));
        let broken = Duration::from_micros(1_500);
        assert_eq!((ms_down(broken), ms_up(broken)), (1, 2));
    }
}

//! What became of claims: how they stand, what a release found, and the answers to many at once.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd, Evidence as DriverEvidence, Grant as DriverGrant, LeaseStart,
    Released as Release, Renewal, Renewed, Reply as DriverReply,
};
use lockkit_core::{BreakRecord, Error, LossReason, Margin, Token};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
#[cfg(doc)]
use super::{Carry, Renew, Step};
use super::{ms_down, ms_up, text};

/// The answers to a [`Carry`], in the order of its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replies {
    /// One for each step.
    pub replies: Vec<Reply>,
}

/// The answer to one step or claim among several. Told apart by their fields: `state`, `found`,
/// `code`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Reply;
///
/// let it: Reply = serde_json::from_str(r#"{"found": "claim"}"#)?;
/// assert!(matches!(it, Reply::Released(_)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    /// To an acquire and a renewal.
    State(State),
    /// To a release.
    Released(Released),
    /// It failed.
    Failed(Problem),
}

/// The answers to a [`Renew`], in the order of its claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answers {
    /// One for each claim.
    pub answers: Vec<Reply>,
    /// What they tell of the backend's servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// What answers tell of the server of the backend that gave them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Which of the answers, by their places.
    pub answers: Vec<usize>,
    /// Which run of a server it was.
    pub run: String,
    /// Over which connection of the service.
    #[serde(with = "text")]
    pub connection: u64,
    /// How far its data had got.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::maybe")]
    pub position: Option<u64>,
    /// Its clock, in microseconds since 1970. Never that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_us: Option<u64>,
}

impl Answers {
    /// What is answered to a renewal that was received at `received`.
    pub fn of(renewed: Vec<Result<Renewed, Error>>, received: Moment) -> Self {
        let mut evidence: Vec<(Arc<DriverEvidence>, Vec<usize>)> = Vec::new();
        let mut answers = Vec::with_capacity(renewed.len());
        for (at, renewed) in renewed.into_iter().enumerate() {
            let told = renewed.as_ref().ok().and_then(|renewed| renewed.evidence.clone());
            if let Some(told) = told {
                match evidence.iter_mut().find(|(known, _)| *known == told) {
                    Some((_, answers)) => answers.push(at),
                    None => evidence.push((told, vec![at])),
                }
            }
            answers.push(Reply::of_renewal(renewed.map(|it| it.renewal), received));
        }
        Self { answers, evidence: evidence.into_iter().map(Evidence::of).collect() }
    }

    /// The answers for a driver whose request was sent at `sent`; `None` where one is none.
    pub fn renewed(self, sent: Moment) -> Option<Vec<Result<Renewed, Error>>> {
        let renewed = |answer: Reply| Some(answer.renewal(sent)?.map(Renewed::from));
        let mut all: Vec<_> = self.answers.into_iter().map(renewed).collect::<Option<_>>()?;
        for evidence in self.evidence {
            let told = evidence.for_driver();
            for at in evidence.answers {
                if let Some(Ok(renewed)) = all.get_mut(at) {
                    renewed.evidence = Some(told.clone());
                }
            }
        }
        Some(all)
    }
}

impl Evidence {
    fn of((told, answers): (Arc<DriverEvidence>, Vec<usize>)) -> Self {
        let unix_us = told.time.and_then(|time| u64::try_from(time.as_micros()).ok());
        let (run, connection, position) = (told.run.to_string(), told.connection, told.position);
        Self { answers, run, connection, position, unix_us }
    }

    fn for_driver(&self) -> Arc<DriverEvidence> {
        let mut told = DriverEvidence::new(&*self.run, self.connection);
        told.position = self.position;
        told.time = self.unix_us.map(Duration::from_micros);
        Arc::new(told)
    }
}

/// How a claim stands.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::State;
///
/// let json = r#"
///     {"state": "held", "token": "42", "ttl_ms": 30000, "remaining_ms": 30000, "margin_ms": 3002}
/// "#;
/// let it: State = serde_json::from_str(json)?;
/// let State::Held(grant) = it else { panic!("it holds") };
/// assert_eq!(grant.token.get(), 42);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It holds.
    Held(Grant),
    /// It is in line.
    Waiting {
        /// How many live claims stand ahead of it.
        ahead: u32,
        /// As in [`Grant`].
        #[serde(default, skip_serializing_if = "is_zero")]
        ambiguous: u32,
    },
    /// It could not hold at once, and is not in line.
    Busy {
        /// As in [`Grant`].
        #[serde(default, skip_serializing_if = "is_zero")]
        ambiguous: u32,
    },
    /// It is not live any more, and never will be again.
    Ended(Loss),
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
    /// How many earlier attempts of this request got no answer inside of the service: each may put
    /// the claim in line once more after a release. Release again until the ttl is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous: u32,
}

/// Why a claim ended.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Loss;
///
/// let it: Loss = serde_json::from_str(r#"{"reason": "not_in_line"}"#)?;
/// assert!(it.broken.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// What is known.
    pub reason: Reason,
    /// How it was broken, if it was.
    #[serde(default, rename = "break", skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakRecord>,
}

/// Why a claim is not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Not in line: released, expired, or lost with the backend's data.
    NotFound,
    /// Somebody broke it.
    Broken,
    /// The backend's session or lease that kept it ended.
    SessionEnded,
}

/// What became of a release.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Released;
///
/// let it: Released = serde_json::from_str(r#"{"found": "nothing"}"#)?;
/// assert_eq!(it.ambiguous, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Whether the claim was there.
    pub found: Found,
    /// As in [`Grant`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous: u32,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// The claim, which was taken out.
    Claim,
    /// Other claims only.
    OthersOnly,
    /// An empty line.
    Nothing,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
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

impl State {
    /// What is answered to an acquire that was received at `received`.
    pub fn of_acquisition(answer: Attempted<Acquisition>, received: Moment) -> Self {
        let ambiguous = answer.ambiguous;
        match answer.result {
            Acquisition::Granted(grant) => Self::Held(Grant::of(&grant, received, ambiguous)),
            Acquisition::Queued { ahead } => Self::Waiting { ahead, ambiguous },
            Acquisition::Busy => Self::Busy { ambiguous },
        }
    }

    /// What is answered to a renewal that was received at `received`.
    pub fn of_renewal(renewal: Renewal, received: Moment) -> Self {
        match renewal {
            Renewal::Holds(grant) => Self::Held(Grant::of(&grant, received, 0)),
            Renewal::Waits { ahead } => Self::Waiting { ahead, ambiguous: 0 },
            Renewal::Ended(ClaimEnd::Broken(record)) => {
                Self::Ended(Loss { reason: Reason::Broken, broken: Some(record) })
            }
            Renewal::Ended(ClaimEnd::SessionEnded) => {
                Self::Ended(Loss { reason: Reason::SessionEnded, broken: None })
            }
            Renewal::Ended(_) => Self::Ended(Loss { reason: Reason::NotFound, broken: None }),
        }
    }

    /// What is answered where a driver says that a claim was lost.
    pub fn of_loss(reason: LossReason) -> Self {
        Self::Ended(match reason {
            LossReason::Broken(record) => Loss { reason: Reason::Broken, broken: Some(record) },
            LossReason::SessionEnded => Loss { reason: Reason::SessionEnded, broken: None },
            _ => Loss { reason: Reason::NotFound, broken: None },
        })
    }

    /// The answer to an acquire that was sent at `sent`.
    pub fn acquisition(self, sent: Moment) -> Result<Attempted<Acquisition>, Error> {
        Ok(match self {
            Self::Held(grant) => {
                Attempted::after(grant.ambiguous, Acquisition::Granted(grant.for_driver(sent)))
            }
            Self::Waiting { ahead, ambiguous } => {
                Attempted::after(ambiguous, Acquisition::Queued { ahead })
            }
            Self::Busy { ambiguous } => Attempted::after(ambiguous, Acquisition::Busy),
            Self::Ended(loss) => return Err(Error::Lost { reason: loss.reason() }),
        })
    }

    /// The answer to a renewal that was sent at `sent`.
    pub fn renewal(self, sent: Moment) -> Renewal {
        match self {
            Self::Held(grant) => Renewal::Holds(grant.for_driver(sent)),
            Self::Waiting { ahead, .. } => Renewal::Waits { ahead },
            Self::Busy { .. } => Renewal::Ended(ClaimEnd::NotFound),
            Self::Ended(loss) => Renewal::Ended(match loss {
                Loss { broken: Some(record), .. } => ClaimEnd::Broken(record),
                Loss { reason: Reason::SessionEnded, .. } => ClaimEnd::SessionEnded,
                Loss { .. } => ClaimEnd::NotFound,
            }),
        }
    }
}

impl Loss {
    /// As the library says it.
    pub fn reason(self) -> LossReason {
        match self {
            Self { broken: Some(record), .. } => LossReason::Broken(record),
            Self { reason: Reason::SessionEnded, .. } => LossReason::SessionEnded,
            Self { .. } => LossReason::Expired,
        }
    }
}

impl Released {
    /// What is answered to a release.
    pub fn of(answer: Attempted<Release>) -> Self {
        let found = match answer.result {
            Release::Removed => Found::Claim,
            Release::NotFound => Found::OthersOnly,
            Release::NoSuchLock => Found::Nothing,
        };
        Self { found, ambiguous: answer.ambiguous }
    }

    /// The answer for a driver.
    pub fn for_driver(&self) -> Attempted<Release> {
        let answer = match self.found {
            Found::Claim => Release::Removed,
            Found::OthersOnly => Release::NotFound,
            Found::Nothing => Release::NoSuchLock,
        };
        Attempted::after(self.ambiguous, answer)
    }
}

impl Reply {
    /// What is answered to a step of a flight that was received at `received`.
    pub fn of(reply: Result<Attempted<DriverReply>, Error>, received: Moment) -> Self {
        match reply {
            Ok(Attempted { result: DriverReply::Acquired(answer), ambiguous }) => {
                Self::State(State::of_acquisition(Attempted::after(ambiguous, answer), received))
            }
            Ok(Attempted { result: DriverReply::Released(answer), ambiguous }) => {
                Self::Released(Released::of(Attempted::after(ambiguous, answer)))
            }
            // What a driver asks to send again, core has sent again before it answers.
            Ok(_) => {
                let error = Error::retryable("http", "the step was not carried out: send it again");
                Self::Failed(Problem::of(&error))
            }
            Err(error) => Self::Failed(Problem::of(&error)),
        }
    }

    /// What is answered to one renewal of several that were received at `received`.
    pub fn of_renewal(renewal: Result<Renewal, Error>, received: Moment) -> Self {
        match renewal {
            Ok(renewal) => Self::State(State::of_renewal(renewal, received)),
            Err(error) => Self::Failed(Problem::of(&error)),
        }
    }

    /// The answer to one renewal of several that were sent at `sent`; `None` where it is none.
    pub fn renewal(self, sent: Moment) -> Option<Result<Renewal, Error>> {
        match self {
            Self::State(state) => Some(Ok(state.renewal(sent))),
            Self::Failed(problem) => Some(Err(problem.error())),
            Self::Released(_) => None,
        }
    }

    /// The answer to a step of a flight that was sent at `sent`.
    pub fn for_driver(self, sent: Moment) -> Result<Attempted<DriverReply>, Error> {
        match self {
            Self::State(state) => Ok(state.acquisition(sent)?.map(DriverReply::Acquired)),
            Self::Released(released) => Ok(released.for_driver().map(DriverReply::Released)),
            Self::Failed(problem) => Err(problem.error()),
        }
    }
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

    #[test]
    fn many_answers_are_told_apart_by_their_fields() {
        let json = r#"{"replies":[{"state":"waiting","ahead":2},{"found":"claim"},
            {"code":"limit_mismatch","status":409,"detail":"","in_use":3,"asked":2},
            {"state":"held","token":"7","ttl_ms":1,"remaining_ms":1}]}"#;
        let Replies { replies } = serde_json::from_str(json).unwrap();
        assert!(matches!(replies[0], Reply::State(State::Waiting { ahead: 2, .. })));
        assert!(matches!(&replies[1], Reply::Released(it) if it.found == Found::Claim));
        assert!(matches!(&replies[2], Reply::Failed(it) if it.in_use == Some(3)));
        assert!(matches!(&replies[3], Reply::State(State::Held(it)) if it.token.get() == 7));
    }
}

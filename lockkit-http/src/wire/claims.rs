//! Claims, what is asked about them, and what became of them.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, Answered, ClaimId, Ended, Grant as DriverGrant, Patience, Released as Release,
    Renewal, Reply as DriverReply, Step as DriverStep,
};
use lockkit_core::{
    BreakRecord, Claim as DriverClaim, Error, Identity, Key, Lifetime, LossReason, Mode, Name,
    Namespace, Token,
};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::{ms_down, ms_up, text};

/// A claim: what a client puts into the line of a lock, and what it renews and releases. The client
/// makes it, keeps it, and sends the same with every request about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// 128 random bits as 32 lower-case hexadecimal digits, new for every claim. A secret: who has
    /// it can renew and release. A request with the same id is the same request again.
    pub id: String,
    /// Keeps the locks of one application apart from another's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The name of the lock or semaphore: 1 to 512 bytes without control characters.
    pub name: String,
    /// How it shares.
    #[serde(default)]
    pub mode: Kind,
    /// With mode `permits`: how many it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// With mode `permits`: how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long it holds without being renewed.
    #[serde(default = "Claim::default_ttl_ms")]
    pub ttl_ms: u64,
    /// How long it stays in line without being renewed.
    #[serde(default = "Claim::default_wait_ttl_ms")]
    pub wait_ttl_ms: u64,
    /// Who asks, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Identity>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How a claim shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nobody beside it.
    #[default]
    Exclusive,
    /// Other shared claims beside it.
    Shared,
    /// Some permits of a semaphore.
    Permits,
}

impl Claim {
    fn default_ttl_ms() -> u64 {
        30_000
    }

    fn default_wait_ttl_ms() -> u64 {
        10_000
    }

    /// What is sent for a claim of the driver trait.
    pub fn of(claim: &DriverClaim) -> Self {
        let (mode, permits, limit) = match claim.mode {
            Mode::Exclusive => (Kind::Exclusive, None, None),
            Mode::Shared => (Kind::Shared, None, None),
            Mode::Permits { permits, limit } => (Kind::Permits, Some(permits), Some(limit)),
        };
        Self {
            id: claim.id.to_hex(),
            prefix: claim.key.namespace.as_str().to_owned(),
            name: claim.key.name.as_str().to_owned(),
            mode,
            permits,
            limit,
            ttl_ms: ms_up(claim.hold_ttl),
            wait_ttl_ms: ms_up(claim.wait_ttl),
            holder: Some((*claim.identity).clone()),
            note: claim.note.as_deref().map(str::to_owned),
        }
    }

    /// How it shares, checked.
    pub fn mode(&self) -> Result<Mode, Error> {
        match (self.mode, self.permits, self.limit) {
            (Kind::Exclusive, None, None) => Ok(Mode::Exclusive),
            (Kind::Shared, None, None) => Ok(Mode::Shared),
            (Kind::Permits, Some(permits), Some(limit)) => Ok(Mode::Permits { permits, limit }),
            (Kind::Permits, ..) => Err(Error::config(
                "a claim of mode permits says how many (permits) of how many (limit)",
            )),
            _ => Err(Error::config("permits and limit go with the mode permits only")),
        }
    }

    /// The claim for a driver, under the id that `hidden` makes of the client's. Names are checked.
    pub fn for_driver(
        self,
        hidden: impl FnOnce(ClaimId) -> ClaimId,
    ) -> Result<Arc<DriverClaim>, Error> {
        let id = ClaimId::from_hex(&self.id).ok_or_else(|| {
            Error::config("the id of a claim is 32 lower-case hexadecimal digits, made at random")
        })?;
        let mode = self.mode()?;
        let key = Key::new(Namespace::new(&self.prefix)?, mode.space(), Name::new(&self.name)?);
        let (ttl, wait_ttl) =
            (Duration::from_millis(self.ttl_ms), Duration::from_millis(self.wait_ttl_ms));
        let nobody = || Identity { host: "unknown".into(), pid: 0, program: "unknown".into() };
        let holder = Arc::new(self.holder.unwrap_or_else(nobody));
        let claim = DriverClaim::new(key, mode, ttl, wait_ttl, holder)
            .with_id(hidden(id))
            // Other servers over the same backend answer for it, too.
            .with_lifetime(Lifetime::Detached)
            .with_note(self.note.map(Arc::from));
        Ok(Arc::new(claim))
    }
}

/// `POST /v1/acquire`: puts a claim in line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// The claim.
    pub claim: Claim,
    /// Whether it leaves at once when it cannot hold at once, without ever having been in line.
    #[serde(default)]
    pub no_wait: bool,
    /// How long the answer may wait for the claim to hold: 25 s at most.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `POST /v1/wait`: renews a claim, and answers when it holds or when the time is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// The claim, which [`Acquire`] put in line.
    pub claim: Claim,
    /// How long the answer may wait: 25 s at most.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `POST /v1/release`, `/v1/verify`, `/v1/downgrade`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimOnly {
    /// The claim.
    pub claim: Claim,
}

/// `POST /v1/renew`: renews many claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The claims; [`Answers`] has one answer for each, in the same order.
    pub claims: Vec<Claim>,
}

/// `POST /v1/shorten`: makes the lease of a claim end earlier.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shorten {
    /// The claim.
    pub claim: Claim,
    /// How long it holds from now on.
    pub ttl_ms: u64,
}

/// `POST /v1/raise`: raises the token of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raise {
    /// The claim.
    pub claim: Claim,
    /// What its token is to be at least.
    #[serde(with = "text")]
    pub token: Token,
}

/// `POST /v1/carry`: acquires and releases of different claims, each answered by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carry {
    /// The steps; releases first.
    pub steps: Vec<Step>,
}

/// One step of a [`Carry`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Step {
    /// Puts a claim in line.
    Acquire {
        /// The claim.
        claim: Claim,
        /// As in [`Acquire`].
        #[serde(default)]
        no_wait: bool,
    },
    /// Takes a claim out.
    Release {
        /// The claim.
        claim: Claim,
    },
}

impl Step {
    /// What is sent for a step of the driver trait.
    pub fn of(step: &DriverStep) -> Self {
        match step {
            DriverStep::Acquire { claim, patience } => {
                Self::Acquire { claim: Claim::of(claim), no_wait: *patience == Patience::Try }
            }
            DriverStep::Release { claim } => Self::Release { claim: Claim::of(claim) },
        }
    }
}

/// The answers to a [`Carry`], in the order of its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replies {
    /// One for each step.
    pub replies: Vec<Reply>,
}

/// The answer to one step or claim among several. Told apart by their fields: `state`, `found`,
/// `code`.
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
}

/// How a claim stands.
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
        unanswered: u32,
    },
    /// It could not hold at once, and is not in line.
    Busy {
        /// As in [`Grant`].
        #[serde(default, skip_serializing_if = "is_zero")]
        unanswered: u32,
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
    /// What is left of this one, counted from **before the request was sent**. Trust it for less,
    /// by a hundredth of the ttl and 2 ms, for clocks that run at different rates.
    pub remaining_ms: u64,
    /// How many earlier attempts of this request got no answer inside of the service: each may put
    /// the claim in line once more after a release. Release again until the ttl is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: u32,
}

/// Why a claim ended.
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
    NotInLine,
    /// Somebody broke it.
    Broken,
    /// The backend's session or lease that kept it ended.
    SessionEnded,
}

/// What became of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Whether the claim was there.
    pub found: Found,
    /// As in [`Grant`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: u32,
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
    pub fn of(grant: &DriverGrant, received: Moment, unanswered: u32) -> Self {
        let age = grant.since.map_or(Duration::ZERO, |since| received.since(since));
        Self {
            token: grant.token,
            ttl_ms: ms_down(grant.ttl),
            remaining_ms: ms_down(grant.ttl.saturating_sub(age)),
            unanswered,
        }
    }

    /// The grant for a driver whose request was sent at `sent`.
    pub fn for_driver(&self, sent: Moment) -> DriverGrant {
        let age = Duration::from_millis(self.ttl_ms.saturating_sub(self.remaining_ms));
        // The backend's own word, `None`, where it was this very request that set the lease.
        let since = (!age.is_zero()).then(|| sent.before(age));
        DriverGrant { token: self.token, ttl: Duration::from_millis(self.ttl_ms), since }
    }
}

impl State {
    /// What is answered to an acquire that was received at `received`.
    pub fn of_acquisition(answer: Answered<Acquisition>, received: Moment) -> Self {
        let unanswered = answer.unanswered;
        match answer.answer {
            Acquisition::Granted(grant) => Self::Held(Grant::of(&grant, received, unanswered)),
            Acquisition::Queued { ahead } => Self::Waiting { ahead, unanswered },
            Acquisition::Busy => Self::Busy { unanswered },
        }
    }

    /// What is answered to a renewal that was received at `received`.
    pub fn of_renewal(renewal: Renewal, received: Moment) -> Self {
        match renewal {
            Renewal::Holds(grant) => Self::Held(Grant::of(&grant, received, 0)),
            Renewal::Waits { ahead } => Self::Waiting { ahead, unanswered: 0 },
            Renewal::Ended(Ended::Broken(record)) => {
                Self::Ended(Loss { reason: Reason::Broken, broken: Some(record) })
            }
            Renewal::Ended(Ended::SessionEnded) => {
                Self::Ended(Loss { reason: Reason::SessionEnded, broken: None })
            }
            Renewal::Ended(_) => Self::Ended(Loss { reason: Reason::NotInLine, broken: None }),
        }
    }

    /// What is answered where a driver says that a claim was lost.
    pub fn of_loss(reason: LossReason) -> Self {
        Self::Ended(match reason {
            LossReason::Broken(record) => Loss { reason: Reason::Broken, broken: Some(record) },
            LossReason::SessionEnded => Loss { reason: Reason::SessionEnded, broken: None },
            _ => Loss { reason: Reason::NotInLine, broken: None },
        })
    }

    /// The answer to an acquire that was sent at `sent`.
    pub fn acquisition(self, sent: Moment) -> Result<Answered<Acquisition>, Error> {
        Ok(match self {
            Self::Held(grant) => {
                Answered::after(grant.unanswered, Acquisition::Granted(grant.for_driver(sent)))
            }
            Self::Waiting { ahead, unanswered } => {
                Answered::after(unanswered, Acquisition::Queued { ahead })
            }
            Self::Busy { unanswered } => Answered::after(unanswered, Acquisition::Busy),
            Self::Ended(loss) => return Err(Error::Lost { reason: loss.reason() }),
        })
    }

    /// The answer to a renewal that was sent at `sent`.
    pub fn renewal(self, sent: Moment) -> Renewal {
        match self {
            Self::Held(grant) => Renewal::Holds(grant.for_driver(sent)),
            Self::Waiting { ahead, .. } => Renewal::Waits { ahead },
            Self::Busy { .. } => Renewal::Ended(Ended::NotInLine),
            Self::Ended(loss) => Renewal::Ended(match loss {
                Loss { broken: Some(record), .. } => Ended::Broken(record),
                Loss { reason: Reason::SessionEnded, .. } => Ended::SessionEnded,
                Loss { .. } => Ended::NotInLine,
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
    pub fn of(answer: Answered<Release>) -> Self {
        let found = match answer.answer {
            Release::Removed => Found::Claim,
            Release::NotInLine => Found::OthersOnly,
            Release::NoSuchLock => Found::Nothing,
        };
        Self { found, unanswered: answer.unanswered }
    }

    /// The answer for a driver.
    pub fn for_driver(&self) -> Answered<Release> {
        let answer = match self.found {
            Found::Claim => Release::Removed,
            Found::OthersOnly => Release::NotInLine,
            Found::Nothing => Release::NoSuchLock,
        };
        Answered::after(self.unanswered, answer)
    }
}

impl Reply {
    /// What is answered to a step of a flight that was received at `received`.
    pub fn of(reply: Result<Answered<DriverReply>, Error>, received: Moment) -> Self {
        match reply {
            Ok(Answered { answer: DriverReply::Acquired(answer), unanswered }) => {
                Self::State(State::of_acquisition(Answered::after(unanswered, answer), received))
            }
            Ok(Answered { answer: DriverReply::Released(answer), unanswered }) => {
                Self::Released(Released::of(Answered::after(unanswered, answer)))
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
    pub fn for_driver(self, sent: Moment) -> Result<Answered<DriverReply>, Error> {
        match self {
            Self::State(state) => Ok(state.acquisition(sent)?.map(DriverReply::Acquired)),
            Self::Released(released) => Ok(released.for_driver().map(DriverReply::Released)),
            Self::Failed(problem) => Err(problem.error()),
        }
    }
}

//! What an answer tells of the server that gave it: which run of which server it was, how far that
//! server's data had got, and what its clock said; and what follows from it. No I/O, no clock of its own.
//!
//! 1. An answer *holds* never ends its guard: it proves that the claim survived there. Where the
//!    server's clock runs faster than ours by more than the margin, it sets an earlier deadline.
//! 2. Another run, or a position that went back, puts in doubt what the run that is gone answered: those
//!    claims are renewed at once, and trusted for a third of their ttl at most until their own answer.
//!    A clock that jumped: they are renewed at once, no more.
//! 3. A guard ends when its own claim is not there or its deadline passes. Evidence names the reason.

use std::sync::Arc;
use std::time::Duration;

use crate::answers::Renewal;
use crate::clock::Moment;
use crate::{Error, LossReason, Margin};

/// A claim that is renewed at a third of its ttl does not survive a clock that is faster than this: what
/// looks faster was a jump.
const FASTEST: f64 = 3.0;

/// Readings of one clock that are kept: three pairs.
const READINGS: usize = 4;

/// Clocks, and positions, that are kept: those heard of last.
const SERVERS: usize = 64;

/// Two readings closer together than this, by both clocks, tell no rate.
const LEAST_APART: Duration = Duration::from_secs(1);

/// One run of a server: which server it is, with which history of its data, and which start of it.
///
/// Both parts are opaque texts, compared for equality only. A changed identity is another server, or
/// another history: a failover, data put back. A changed start alone is a restart.
///
/// ```
/// use lockkit_core::driver::ServerRun;
///
/// let before = ServerRun::new("7341-1", "2026-11-23 20:00:01");
/// let restarted = ServerRun::new("7341-1", "2026-11-23 22:30:40");
/// assert!(before.identity == restarted.identity && before != restarted);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerRun {
    /// Which server, and which history of its data (Redis: `run_id` of the master; PostgreSQL: system
    /// identifier and timeline; MySQL: `server_uuid`).
    pub identity: Arc<str>,
    /// Which start of it: any text that changes when the server is started again.
    pub start: Arc<str>,
}

impl ServerRun {
    /// A run of this identity, begun at this start.
    pub fn new(identity: impl Into<Arc<str>>, start: impl Into<Arc<str>>) -> Self {
        Self { identity: identity.into(), start: start.into() }
    }
}

/// What an answer tells of the server that gave it, at no further request.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::driver::Evidence;
///
/// let now = Duration::from_micros(1_795_458_824_767_981);
/// let evidence = Evidence::new("7341-1", 3).with_position(0x1A2B_3C4D).with_time(now);
/// assert_eq!(evidence.time, Some(now));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// The [identity](ServerRun::identity) of the run that answered.
    pub run: Arc<str>,
    /// Which connection to that server: a number that no other has. Clocks are compared within one.
    pub connection: u64,
    /// How far the data of this run had got (a position in a log, a revision): a number that goes back
    /// only where data was lost, so not one that a follower reads which may lag.
    pub position: Option<u64>,
    /// What the clock said on which this server's leases end, since 1970.
    pub time: Option<Duration>,
}

impl Evidence {
    /// The answer came from this run, over this connection.
    pub fn new(run: impl Into<Arc<str>>, connection: u64) -> Self {
        Self { run: run.into(), connection, position: None, time: None }
    }

    /// A number for a new connection.
    pub fn new_connection() -> u64 {
        rand::random()
    }

    /// The data had got this far.
    pub fn with_position(self, position: u64) -> Self {
        Self { position: Some(position), ..self }
    }

    /// The server's clock said this.
    pub fn with_time(self, since_1970: Duration) -> Self {
        Self { time: Some(since_1970), ..self }
    }
}

/// What became of a renewed claim, and what the answer tells of its server.
///
/// ```
/// use lockkit_core::driver::{ClaimEnd, Renewal, Renewed};
///
/// let renewed = Renewed::from(Renewal::Ended(ClaimEnd::NotFound));
/// assert!(renewed.evidence.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// What became of the claim.
    pub renewal: Renewal,
    /// What the answer tells of its server, if anything.
    pub evidence: Option<Arc<Evidence>>,
}

impl Renewed {
    /// What a driver's [`renew`](crate::driver::LockDriver::renew) answers, without evidence.
    pub fn without_evidence(answers: Vec<Result<Self, Error>>) -> Vec<Result<Renewal, Error>> {
        answers.into_iter().map(|answer| answer.map(|it| it.renewal)).collect()
    }
}

impl From<Renewal> for Renewed {
    fn from(renewal: Renewal) -> Self {
        Self { renewal, evidence: None }
    }
}

/// What a client has seen of its servers, from one answer to the next. One for all claims that share
/// the fate of a server: core has one a manager, a quorum one a member.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::Moment;
/// use lockkit_core::driver::{Evidence, Servers};
/// use lockkit_core::{LossReason, Margin};
///
/// let mut servers = Servers::default();
/// let second = |n: u64| Moment::from_nanos(n * 1_000_000_000);
/// let (one, two) = (Evidence::new("one", 1), Evidence::new("two", 2));
/// let judged = servers.hear([(None, &one)], second(1), second(2), Margin::default());
/// assert_eq!(judged.doubt(Some("one")), None);
/// // The claim that "one" answered for is answered for by "two".
/// let judged = servers.hear([(Some("one"), &two)], second(11), second(12), Margin::default());
/// assert_eq!(judged.doubt(Some("one")), Some(LossReason::ServerChanged));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServerHistory {
    clocks: Vec<ServerClock>,
    positions: Vec<Position>,
}

#[derive(Clone, Debug)]
struct ServerClock {
    run: Arc<str>,
    connection: u64,
    readings: Vec<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Duration,
    sent: Moment,
    received: Moment,
}

#[derive(Clone, Debug)]
struct Position {
    run: Arc<str>,
    reached: u64,
    received: Moment,
}

/// What the answers to one request say of servers. Empty where nothing has changed.
#[derive(Clone, Debug, Default)]
pub struct ServerChanges {
    /// Runs that are gone.
    ended: Vec<Arc<str>>,
    /// Runs whose clock jumped.
    jumped: Vec<Arc<str>>,
}

impl ServerChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.jumped.is_empty()
    }

    /// The runs that are gone: others answer in their place, or their data went back.
    pub fn ended(&self) -> &[Arc<str>] {
        &self.ended
    }

    /// Why a claim is in doubt whose last answer came from this run, if it is. (`None`: it is not
    /// known from which.)
    pub fn doubt(&self, run: Option<&str>) -> Option<LossReason> {
        let among = |runs: &[Arc<str>]| match run {
            Some(run) => runs.iter().any(|it| **it == *run),
            None => !runs.is_empty(),
        };
        match among(&self.ended) {
            true => Some(LossReason::ServerChanged),
            false => among(&self.jumped).then_some(LossReason::ClockJump),
        }
    }
}

impl ServerHistory {
    /// Takes the evidence of the answers to a request that was sent and answered at these moments, each
    /// with the run that answered for its claim before.
    pub fn hear<'a>(
        &mut self,
        answers: impl IntoIterator<Item = (Option<&'a str>, &'a Evidence)>,
        sent: Moment,
        received: Moment,
        margin: Margin,
    ) -> ServerChanges {
        let (mut replaced, mut answered): (Vec<&str>, Vec<&Arc<str>>) = Default::default();
        let mut judged = ServerChanges::default();
        for (before, evidence) in answers {
            let run = &evidence.run;
            replaced
                .extend(before.filter(|before| **before != **run && !replaced.contains(before)));
            if evidence.position.is_some_and(|it| self.went_back(run, it, sent, received)) {
                judged.ended.push(run.clone());
            }
            let reading = evidence.time.map(|time| Reading { time, sent, received });
            if reading.is_some_and(|reading| self.jumped(evidence, reading, margin)) {
                judged.jumped.push(run.clone());
            }
            if !answered.contains(&run) {
                answered.push(run);
            }
        }
        // One that still answers has only handed claims over to another one.
        replaced.retain(|replaced| answered.iter().all(|answered| ***answered != **replaced));
        judged.ended.extend(replaced.into_iter().map(Arc::from));
        judged
    }

    /// How many times faster than ours this server's clock runs at least, by what was read of it: 1 while
    /// the margin covers the difference.
    pub fn rate(&self, evidence: &Evidence, margin: Margin) -> f64 {
        let clock = self.clocks.iter().find(|clock| clock.is_of(evidence));
        let pairs = clock.into_iter().flat_map(|clock| clock.readings.windows(2));
        let rates = pairs.map(|pair| rate(pair[0], pair[1], margin));
        rates.fold(1.0, f64::max).min(FASTEST)
    }

    /// Whether an answer that had come before this one was asked for knew more.
    fn went_back(&mut self, run: &Arc<str>, reached: u64, sent: Moment, received: Moment) -> bool {
        let new = Position { run: run.clone(), reached, received };
        let Some(known) = self.positions.iter().position(|it| it.run == *run) else {
            keep(&mut self.positions, new);
            return false;
        };
        let known = &mut self.positions[known];
        let back = reached < known.reached && known.received <= sent;
        if back || reached > known.reached {
            *known = new;
        }
        back
    }

    /// Whether the clock jumped since the reading before, which went with those before it.
    fn jumped(&mut self, evidence: &Evidence, new: Reading, margin: Margin) -> bool {
        let Some(known) = self.clocks.iter().position(|clock| clock.is_of(evidence)) else {
            let (run, connection) = (evidence.run.clone(), evidence.connection);
            keep(&mut self.clocks, ServerClock { run, connection, readings: vec![new] });
            return false;
        };
        let readings = &mut self.clocks[known].readings;
        let Some(last) = readings.last().copied() else { return false };
        if new.received.since(last.sent) < LEAST_APART && new.time.abs_diff(last.time) < LEAST_APART
        {
            return false;
        }
        let was_even = readings.windows(2).all(|pair| is_even(pair[0], pair[1], margin));
        if readings.len() == READINGS {
            readings.remove(0);
        }
        readings.push(new);
        was_even && !is_even(last, new, margin)
    }
}

impl ServerClock {
    fn is_of(&self, evidence: &Evidence) -> bool {
        self.connection == evidence.connection && self.run == evidence.run
    }
}

/// Keeps it instead of what was added first, where there are too many.
fn keep<T>(all: &mut Vec<T>, new: T) {
    if all.len() == SERVERS {
        all.remove(0);
    }
    all.push(new);
}

/// The least rate that these two readings allow, where it is above what the margin covers; else 1.
fn rate(first: Reading, second: Reading, margin: Margin) -> f64 {
    let most = second.received.since(first.sent);
    let theirs = second.time.saturating_sub(first.time);
    match theirs > most + margin.of(most) {
        true => theirs.as_secs_f64() / most.as_secs_f64().max(1e-9),
        false => 1.0,
    }
}

/// Whether the server's clock went with ours between these readings, within the margin.
fn is_even(first: Reading, second: Reading, margin: Margin) -> bool {
    let least = second.sent.since(first.received);
    let theirs = second.time.saturating_sub(first.time);
    let is_slow = second.time < first.time || theirs + margin.of(least) < least;
    !is_slow && rate(first, second, margin) == 1.0
}

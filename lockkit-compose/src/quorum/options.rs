//! What a user of a quorum decides, and what follows from its members for its capabilities.

use std::time::Duration;

use lockkit_core::capabilities::{
    Capabilities, Fault, Guarantee, LeaseClock, RoundTrips, TokenSource,
};
use lockkit_core::driver::backoff;
use lockkit_core::{Error, Margin, parse_duration};

use super::member::Member;
use crate::together;

pub(super) const BACKEND: &str = "quorum";

/// What a quorum is made with.
///
/// ```
/// use std::time::Duration;
/// use lockkit_compose::QuorumOptions;
///
/// let options = QuorumOptions::default().member_limit(Duration::from_millis(500));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QuorumOptions {
    pub(super) max_ttl: Duration,
    pub(super) member_limit: Duration,
    pub(super) pause: fn(u32) -> Duration,
    pub(super) margin: Margin,
}

impl QuorumOptions {
    /// The longest lease that anybody takes here, 60 s by default. Longer ones are refused.
    ///
    /// A member that lost its data grants nothing for this long, so it is a choice between long
    /// leases and a quick return. Give all programs that share the quorum the same.
    pub fn max_ttl(mut self, ttl: Duration) -> Self {
        self.max_ttl = ttl;
        self
    }

    /// How long a member may take for one answer, 500 ms by default and never more than a quarter
    /// of the lease. What a member that hangs costs at most.
    pub fn member_limit(mut self, limit: Duration) -> Self {
        self.member_limit = limit;
        self
    }

    /// How long a claim that is in no queue waits before its next try, given how many tries have failed;
    /// [`backoff`] by default.
    ///
    /// The pauses of programs that try at once must differ, or none of them gets a majority. A
    /// simulation that is to run twice in the same way gives pauses of its own.
    pub fn pause(mut self, pause: fn(u32) -> Duration) -> Self {
        self.pause = pause;
        self
    }

    /// How much earlier than its members this quorum takes a lease for ended, for clocks that run at
    /// different rates; a tenth of the ttl and 2 ms by default. Guards of its locks take no less,
    /// whatever their manager's [`drift_margin`](lockkit_core::Settings::drift_margin). Give all programs
    /// that share the quorum the same.
    pub fn drift_margin(mut self, margin: Margin) -> Self {
        self.margin = margin;
        self
    }
}

impl QuorumOptions {
    /// Takes the options of a quorum out of a URL's query: `max_ttl` and `member_limit`, both
    /// durations. Gives the options, and what is not one of them.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no duration, or is zero.
    pub fn parse<'a>(
        query: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Self, Vec<&'a str>), Error> {
        let (mut options, mut others) = (Self::default(), Vec::new());
        for option in query {
            match option.split_once('=').unwrap_or((option, "")) {
                ("max_ttl", value) => options.max_ttl = parse_duration(value)?,
                ("member_limit", value) => options.member_limit = parse_duration(value)?,
                _ => others.push(option),
            }
        }
        options.check()?;
        Ok((options, others))
    }

    fn check(&self) -> Result<(), Error> {
        if self.member_limit.is_zero() || self.max_ttl.is_zero() {
            let message = "a quorum's max_ttl and member_limit are longer than zero";
            return Err(Error::config(message));
        }
        Ok(())
    }
}

impl Default for QuorumOptions {
    fn default() -> Self {
        Self {
            max_ttl: Duration::from_secs(60),
            member_limit: Duration::from_millis(500),
            pause: backoff,
            margin: Margin::default(),
        }
    }
}

/// What may go wrong *at a minority of the members at a time*, and what it costs then.
const FAULTS: &[(Fault, Guarantee)] = &[
    // A member that tells no run comes back with old data, which nothing tells from new data.
    (Fault::WritesLost, Guarantee::Nothing),
    (Fault::OlderDataRestored, Guarantee::Nothing),
    (Fault::Failover, Guarantee::Nothing),
    (Fault::SplitBrain, Guarantee::Nothing),
    (Fault::OtherClockTakesOver, Guarantee::Tokens),
    (Fault::ServerClockSteps, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

/// Refuses members that cannot make a quorum; says what the others can do together.
pub(super) fn capabilities_of(
    members: &[Member],
    options: QuorumOptions,
) -> Result<Capabilities, Error> {
    if members.len() < 3 {
        return Err(Error::config("a quorum has three members at least, better an odd number"));
    }
    options.check()?;
    let all = || members.iter().map(|m| &m.capabilities);
    if let Some(member) = all().find(|c| !c.raise) {
        let message = format!(
            "{} cannot be in a quorum as it is used here: it cannot raise tokens (Redis Cluster and \
             `durability=needed` are refused, since they lose what they acknowledged unnoticed; and a lock \
             service, which does not tell whether the backend behind it has its data)",
            member.backend
        );
        return Err(Error::Config(message));
    }
    // Its tokens would begin again when it comes back empty. A member in this process loses its data
    // together with its users.
    let begins_again = |c: &&Capabilities| {
        c.token_source != TokenSource::ClockCounter && c.shared_between_processes
    };
    if let Some(member) = all().find(begins_again) {
        let message = format!(
            "{} cannot be in a quorum: its tokens do not follow a clock, so they would go back if it \
             lost its data",
            member.backend
        );
        return Err(Error::Config(message));
    }
    let mut c = together::capabilities(BACKEND, &Vec::from_iter(all()));
    c.expiry_slack += options.member_limit;
    c.permits = false; // majorities meet pairwise, they do not count
    // Claims queue at the first member, as long as it answers and has its data.
    c.wake_up = members[0].capabilities.wake_up;
    c.lease_clock = LeaseClock::Members;
    // Members are asked side by side. A round tries, and raises a majority to the greatest token; so does one
    // that follows a grant in a queue.
    let mut trips = RoundTrips::BUDGET;
    trips.acquire = 2;
    trips.once_woken = 2;
    c.round_trips = all().any(|m| m.round_trips.is_some()).then_some(trips);
    c.faults = FAULTS;
    Ok(c)
}

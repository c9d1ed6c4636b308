//! What this backend does and does not do, and what each fault may cost. Data only.

use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{
    Fault, Guarantee, LeaseClock, LeaseScope, RoundTrips, TokenSource, WakeUp,
};

use crate::errors::BACKEND;
use crate::options::{LEAST, ROUNDED};
use crate::sessions::Sessions;

/// The capabilities of a driver with these sessions, the main one of which is there.
pub(crate) fn capabilities(sessions: &Sessions) -> Capabilities {
    let mut c = Capabilities::of(BACKEND);
    c.lease_scope = LeaseScope::Session;
    // The driver itself ends a claim whose ttl is shorter than its session's.
    c.min_ttl = Duration::from_millis(100);
    // Longer ones get a session of that ttl, as far as the servers' bound allows.
    c.max_ttl = sessions.latest().map(|session| session.ttl).unwrap_or_default();
    c.expiry_slack = expiry_slack(sessions);
    c.wake_up = WakeUp::Push;
    c.token_source = TokenSource::Revision;
    c.batches = crate::batch::LIMITS;
    c.registers = true;
    c.namespaces = sessions.options().neighbours.is_none();
    c.resize = true;
    c.lease_clock = LeaseClock::Leader;
    c.round_trips = Some(round_trips(sessions.may_follow()));
    c.faults = &FAULTS;
    c
}

/// How much longer than its own ttl the claim of a process that died may last: as long as its
/// session, which the leader ends in operations of a tick, and of whose last sign of life it hears
/// half a tick late.
///
/// Claims of the least ttl live in a session for more than that. All others live in one for their
/// ttl, which lasts longer by what is not trusted of it.
fn expiry_slack(sessions: &Sessions) -> Duration {
    let options = sessions.options();
    let (timeout, trusted) =
        sessions.latest().map(|main| (main.timeout(), main.ttl)).unwrap_or_default();
    let as_asked = trusted <= options.ttl + ROUNDED;
    let longest = match sessions.are_several() && as_asked {
        true => options.asked(LEAST.min(options.ttl)).timeout.max(timeout - trusted),
        false => timeout,
    };
    longest + options.tick * 3 / 2
}

const fn round_trips(may_follow: bool) -> RoundTrips {
    let mut trips = RoundTrips::BUDGET;
    // A transaction that only looks, and a list behind it.
    trips.renew = 2;
    // A follower catches up before it says that a lock is held.
    trips.refused_try = if may_follow { 2 } else { 1 };
    trips
}

const FAULTS: [(Fault, Guarantee); 20] = [
    (Fault::ConnectionCut, Guarantee::All),
    (Fault::Partition, Guarantee::All),
    (Fault::ServerPaused, Guarantee::All),
    (Fault::ClientPaused, Guarantee::All),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::ClientDies, Guarantee::All),
    // Sessions are part of the data, and begin their time again.
    (Fault::ServerRestarts, Guarantee::All),
    // Every write is on the disks of a majority before it is answered (unless `forceSync=no`).
    (Fault::WritesLost, Guarantee::All),
    // A new ensemble counts its changes from the beginning.
    (Fault::DataLost, Guarantee::Nothing),
    (Fault::OlderDataRestored, Guarantee::Nothing),
    (Fault::RightsWithdrawn, Guarantee::All),
    // There are no replicas but those of the ensemble.
    (Fault::Failover, Guarantee::Impossible),
    (Fault::SplitBrain, Guarantee::Impossible),
    // A new leader gives every session its full timeout again.
    (Fault::OtherClockTakesOver, Guarantee::All),
    (Fault::LeaderLost, Guarantee::All),
    // Sessions are timed on the monotonic clock.
    (Fault::ServerClockSteps, Guarantee::All),
    (Fault::ServerClockSlewed, Guarantee::All),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::ClientClockSteps, Guarantee::All),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

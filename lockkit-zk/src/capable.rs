//! What this backend does and does not do, and what each fault may cost. Data only.

use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{
    Fault, Keeps, LeaseClock, LeaseScope, RoundTrips, TokenSource, WakeUp,
};

use crate::failure::BACKEND;

/// The capabilities of a driver whose session got this timeout, and is trusted for so long; and
/// whose server may be a follower.
pub(crate) fn capabilities(
    tick: Duration,
    timeout: Duration,
    trusted: Duration,
    may_follow: bool,
) -> Capabilities {
    let mut c = Capabilities::of(BACKEND);
    c.lease_scope = LeaseScope::Session;
    // The driver itself ends a claim whose ttl is shorter than the session's.
    c.least_ttl = Duration::from_millis(100);
    // What a guard can trust a session for, unless it is renewed.
    c.longest_ttl = trusted;
    // The claims of a process that died last as long as its session, whatever their own ttl; the
    // leader ends sessions in steps of a tick, and hears of them half a tick late.
    c.expiry_slack = timeout + tick * 3 / 2;
    c.wake_up = WakeUp::Push;
    c.token_source = TokenSource::Revision;
    c.registers = true;
    c.resize = true;
    c.lease_clock = LeaseClock::Leader;
    c.round_trips = Some(round_trips(may_follow));
    c.faults = &FAULTS;
    c
}

const fn round_trips(may_follow: bool) -> RoundTrips {
    let mut trips = RoundTrips::BUDGET;
    // A transaction that only looks, and a list behind it.
    trips.renew = 2;
    // A follower catches up before it says that a lock is held.
    trips.refused_try = if may_follow { 2 } else { 1 };
    trips
}

const FAULTS: [(Fault, Keeps); 14] = [
    (Fault::ConnectionCut, Keeps::All),
    (Fault::Partition, Keeps::All),
    (Fault::ServerStandsStill, Keeps::All),
    (Fault::ClientStandsStill, Keeps::All),
    (Fault::ClientDies, Keeps::All),
    // Sessions are part of the data, and begin their time anew.
    (Fault::ServerRestarts, Keeps::All),
    // Every write is on the disks of a majority before it is answered (unless `forceSync=no`).
    (Fault::WritesLost, Keeps::All),
    // A new ensemble counts its changes from the beginning.
    (Fault::DataLost, Keeps::Nothing),
    // There are no replicas but those of the ensemble.
    (Fault::Failover, Keeps::Impossible),
    (Fault::SplitBrain, Keeps::Impossible),
    (Fault::LeaderLost, Keeps::All),
    // Sessions are timed on the monotonic clock.
    (Fault::ServerClockSteps, Keeps::All),
    (Fault::ClientClockSteps, Keeps::All),
    (Fault::BrokenByForce, Keeps::Tokens),
];

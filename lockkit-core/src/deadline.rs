//! The rules of time: how an answer of the backend becomes a deadline of the client. They stand
//! here and nowhere else.
//!
//! 1. A deadline counts from the moment **before the request was sent** that the backend answered,
//!    never from the arrival of the answer. A grant that was pushed counts from the sending of the
//!    last *answered* acquire or renewal of its claim.
//! 2. It lies a *margin* before the end of the lease at the backend, so that clocks may run at
//!    rates that differ by less than the margin.
//! 3. Renewing never shortens it; only [`HeldLock::shorten`](crate::HeldLock::shorten) does, before it
//!    asks the backend.
//! 4. A lease is renewed after a third of its ttl, so two renewals may fail.

use std::time::Duration;

use crate::Error;
use crate::answers::Grant;
use crate::capabilities::LeaseClock;
use crate::clock::Moment;

/// What a client's deadline lies before the end of the lease at the backend: a part of the ttl,
/// for clocks that run at different rates, plus a fixed time, for their granularity.
///
/// A tenth and 2 ms by default: a server whose clock is slewed as fast as chrony does by default
/// (8.33 %) ends a lease after 92.3 % of its ttl. A hundredth and 2 ms where the backend counts leases
/// on the very clock that its clients read ([`LeaseClock::Machine`]).
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::Margin;
///
/// # fn main() -> Result<(), lockkit_core::Error> {
/// // A fiftieth of the ttl, for clocks whose rates differ by up to 2 %, and 5 ms.
/// let margin = Margin::new(50, Duration::from_millis(5))?;
/// assert_eq!(margin.of(Duration::from_secs(10)), Duration::from_millis(205));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    part: u32,
    fixed: Duration,
}

impl Margin {
    /// A margin of `ttl / part + fixed`; `part` is 3 or more, or 0 for a fixed margin only.
    pub fn new(part: u32, fixed: Duration) -> Result<Self, Error> {
        if part == 1 || part == 2 {
            let message =
                "a drift margin takes a third of the ttl at most: use a part of 3 or more";
            return Err(Error::config(message));
        }
        Ok(Self { part, fixed })
    }

    /// The margin that leases on such a clock need.
    pub fn for_clock(clock: LeaseClock) -> Self {
        match clock {
            LeaseClock::Machine => Self { part: 100, ..Self::default() },
            _ => Self::default(),
        }
    }

    /// How much of this ttl is not used.
    pub fn of(&self, ttl: Duration) -> Duration {
        ttl.checked_div(self.part).unwrap_or_default() + self.fixed
    }
}

impl Default for Margin {
    fn default() -> Self {
        Self { part: 10, fixed: Duration::from_millis(2) }
    }
}

/// Until when a lease of this ttl may be trusted whose request was sent at `sent`.
pub fn trusted_until(sent: Moment, ttl: Duration, margin: Margin) -> Moment {
    ends(sent, ttl, margin.of(ttl))
}

fn ends(start: Moment, ttl: Duration, margin: Duration) -> Moment {
    start.after(ttl.saturating_sub(margin))
}

/// Until when a grant may be trusted. `asked` is when the last request about its claim was sent
/// that the backend answered.
pub(crate) fn grant_until(grant: &Grant, asked: Moment, margin: Margin) -> Moment {
    let margin = margin.of(grant.ttl).max(grant.margin);
    ends(grant.start.or(asked), grant.ttl, margin)
}

/// When a lease that counts from `sent` is to be renewed.
pub(crate) fn renewal_due(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl / 3)
}

/// How long a renewal may take before it counts as failed, when the nearest deadline among its
/// claims is `left` away: short enough for another try, long enough for a slow server.
pub(crate) fn renewal_limit(remaining: Duration) -> Duration {
    // With 100 ms at least, ttls below 250 ms had no second try.
    (remaining / 2).min(Duration::from_secs(5))
}

/// How long to wait after the `failures`-th failure in a row (1 is the first): from 25 ms, doubled
/// up to a second, of which a random half is taken off so that clients do not march in step.
pub fn backoff(failures: u32) -> Duration {
    Jitter::random().backoff(failures)
}

/// How much is taken off the pauses of one who repeats. Steps of one manager that fail together have
/// one in common, so that they are repeated together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jitter(f64);

impl Jitter {
    pub(crate) fn random() -> Self {
        Self(0.5 + rand::random::<f64>() / 2.0)
    }

    /// As [`backoff`].
    pub(crate) fn backoff(self, failures: u32) -> Duration {
        let full = Duration::from_millis(25 << failures.clamp(1, 6));
        full.min(Duration::from_secs(1)).mul_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;
    use crate::answers::LeaseStart;

    const SENT: Moment = Moment::from_nanos(1_000_000_000_000);

    #[test]
    fn a_deadline_counts_from_the_sending_less_the_margin() {
        let ttl = Duration::from_secs(30);
        let until = trusted_until(SENT, ttl, Margin::default());
        assert_eq!(until.since(SENT), ttl - Duration::from_millis(3_002));
    }

    #[test]
    fn a_guard_ends_before_a_lease_that_a_slewed_server_counts() {
        // chrony's default, `maxslewrate 83333.333`: both clocks of the server gain a twelfth.
        let ttl = Duration::from_secs(30);
        let ends = SENT.after(ttl * 12 / 13);
        assert!(trusted_until(SENT, ttl, Margin::for_clock(LeaseClock::Server)) < ends);
        // One clock on both sides: nothing is slewed against anything.
        let same = trusted_until(SENT, ttl, Margin::for_clock(LeaseClock::Machine));
        assert_eq!(same.since(SENT), ttl - Duration::from_millis(302));
    }

    #[test]
    fn the_greater_of_the_margin_here_and_of_the_one_that_an_answer_names_counts() {
        let (token, ttl) = (Token::new(1).unwrap(), Duration::from_secs(10));
        let named = |margin| Grant { token, ttl, start: LeaseStart::LastAnswered, margin };
        let until = |margin| grant_until(&named(margin), SENT, Margin::default()).since(SENT);
        assert_eq!(until(Duration::ZERO), Duration::from_millis(8_998));
        assert_eq!(until(Duration::from_secs(1)), Duration::from_millis(8_998));
        assert_eq!(until(Duration::from_secs(2)), Duration::from_secs(8));
        assert_eq!(until(Duration::from_secs(11)), Duration::ZERO);
    }

    #[test]
    fn a_renewal_that_fails_leaves_time_for_another() {
        for remaining in [1, 30, 55, 100, 199, 200, 5_000].map(Duration::from_millis) {
            assert_eq!(renewal_limit(remaining), remaining / 2);
        }
        assert_eq!(renewal_limit(Duration::from_secs(60)), Duration::from_secs(5));
    }

    #[test]
    fn a_driver_that_shares_leases_moves_the_beginning_back() {
        let token = Token::new(1).unwrap();
        let ttl = Duration::from_secs(10);
        let earlier = SENT.before(Duration::from_secs(3));
        let own = Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO };
        let shared = Grant { start: LeaseStart::Sent(earlier), ..own };
        let margin = Margin::default();
        let apart = grant_until(&own, SENT, margin).since(grant_until(&shared, SENT, margin));
        assert_eq!(apart, Duration::from_secs(3));
    }

    #[test]
    fn a_margin_larger_than_the_ttl_leaves_nothing_to_trust() {
        let margin = Margin::new(0, Duration::from_secs(1)).unwrap();
        assert_eq!(trusted_until(SENT, Duration::from_millis(500), margin), SENT);
        assert!(Margin::new(2, Duration::ZERO).is_err());
    }

    #[test]
    fn a_backoff_grows_to_a_second_and_stays_there() {
        for failures in [0, 1, 2, 5, 6, 7, 1000, u32::MAX] {
            let pause = backoff(failures);
            assert!(pause >= Duration::from_millis(25) && pause <= Duration::from_secs(1));
        }
        assert!(backoff(1) <= Duration::from_millis(50));
        assert!(backoff(9) >= Duration::from_millis(500));
    }
}

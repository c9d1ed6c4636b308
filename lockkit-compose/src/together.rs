//! What several drivers are together, whatever is made of them.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::capabilities::{Capabilities, LeaseClock};
use lockkit_core::clock::Clock;
use lockkit_core::driver::{Gate, GateAttempt, GateRenewal, LockDriver};
use lockkit_core::{Claim, Error, Name, Namespace};

/// What all of these drivers can do, without an order.
pub(crate) fn capabilities(backend: &'static str, all: &[&Capabilities]) -> Capabilities {
    let longest = |time: fn(&Capabilities) -> _| all.iter().map(|c| time(c)).max();
    let every = |can: fn(&Capabilities) -> bool| all.iter().all(|c| can(c));
    let mut c = Capabilities::of(backend);
    c.granularity = longest(|c| c.granularity).unwrap_or_default();
    c.min_ttl = longest(|c| c.min_ttl).unwrap_or_default();
    c.max_ttl = all.iter().map(|c| c.max_ttl).min().unwrap_or_default();
    c.expiry_slack = longest(|c| c.expiry_slack).unwrap_or_default();
    c.fifo = false;
    c.permits = every(|c| c.permits);
    c.slots = false;
    c.shorten = every(|c| c.shorten);
    c.namespaces = every(|c| c.namespaces);
    c.shared_between_processes = every(|c| c.shared_between_processes);
    c
}

/// The clock on which deadlines of several drivers are read: that of a driver whose clients are on
/// other machines than its leases. The clock of a file on this machine may be slewed.
pub(crate) fn clock<'a>(
    mut all: impl Iterator<Item = (&'a Capabilities, &'a Arc<dyn Clock>)> + Clone,
) -> Arc<dyn Clock> {
    let remote = all.clone().find(|(c, _)| c.lease_clock != LeaseClock::Machine);
    let (_, clock) = remote.or_else(|| all.next()).expect("several have a first");
    clock.clone()
}

/// The gate of drivers one of which has neighbours: it refuses every lock, since claims of several backends
/// have no single gate.
#[derive(Debug)]
pub(crate) struct NoNeighbours;

impl NoNeighbours {
    fn refusal() -> Error {
        Error::config(
            "a backend with ?neighbours= cannot be a part of a quorum or a mirror: use it by itself, or leave \
             out the option",
        )
    }
}

#[async_trait]
impl Gate for NoNeighbours {
    fn check_name(&self, _: &Name) -> Result<(), Error> {
        Err(Self::refusal())
    }

    async fn take(&self, _: &Arc<Claim>) -> Result<GateAttempt, Error> {
        Err(Self::refusal())
    }

    async fn keep(&self, _: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal, Error>>, Error> {
        Err(Self::refusal())
    }

    async fn give(&self, _: &Arc<Claim>) -> Result<(), Error> {
        Ok(())
    }
}

/// How many namespaces are asked for at once.
const PAGE: usize = 1_000;

/// All namespaces of a driver. Drivers list in orders of their own, so only the whole of several can
/// be put together.
pub(crate) async fn all_namespaces(driver: &Arc<dyn LockDriver>) -> Result<Vec<Namespace>, Error> {
    let mut all: Vec<Namespace> = Vec::new();
    loop {
        let page = driver.namespaces(all.last(), PAGE).await?;
        let more = page.more && !page.items.is_empty();
        all.extend(page.items);
        if !more {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ttl_must_suit_all_and_all_must_be_able_to_do_a_thing() {
        let secs = Duration::from_secs;
        let (mut a, mut b) = (Capabilities::of("a"), Capabilities::of("b"));
        (a.min_ttl, a.max_ttl, a.expiry_slack) = (secs(1), secs(60), secs(4));
        (b.min_ttl, b.max_ttl, b.expiry_slack) = (secs(2), secs(90), secs(3));
        (a.shorten, b.shorten) = (true, false);
        (a.permits, b.permits) = (true, true);
        let both = capabilities("both", &[&a, &b]);
        assert_eq!((both.min_ttl, both.max_ttl), (secs(2), secs(60)));
        assert_eq!(both.expiry_slack, secs(4));
        assert!(both.permits && !both.shorten && !both.fifo);
    }
}

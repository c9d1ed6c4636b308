//! No guard is handed out with a lease that is nearly over: the claim is renewed before that.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::clock::{Moment, sleep_until};
use crate::deadline::{backoff, renewal_limit};
use crate::driver::Renewal;
use crate::error::in_time;
use crate::record::{ClaimRecord, NEVER};
use crate::shared::Core;
use crate::{Error, LossReason};

/// Renews a claim that holds and has no guard, and is renewed by this alone, until a renewal
/// succeeds; `false` when the claim has ended, or its lease has, before one did.
///
/// A renewal that gets no answer does not delay the next. None leaves after the deadline, but one that
/// left before it still counts when it is answered: where every answer takes more than half a lease,
/// the claim is saved all the same.
///
/// # Cancel safety
/// Dropping it leaves the claim to its lease; it may have been renewed.
pub(crate) async fn renewed(core: &Core, record: &Arc<ClaimRecord>) -> Result<bool, Error> {
    let (claim, clock) = (record.claim(), core.clock());
    let mut in_flight = FuturesUnordered::new();
    let (mut next, mut failures) = (clock.now(), 0);
    loop {
        core.check_open()?;
        let sent = clock.now();
        let remaining = record.remaining();
        if remaining.is_zero() {
            next = NEVER;
            if in_flight.is_empty() {
                return Ok(false);
            }
        } else if next <= sent {
            let ask = core.driver().renew_single(&claim);
            let ask = in_time(core.backend(), record.trusted(), ask);
            in_flight.push(ask.map(move |answer| (answer, sent)));
            next = sent.after(renewal_limit(remaining));
        }
        let wakes = if remaining.is_zero() { NEVER } else { next.min(sent.after(remaining)) };
        let answer = tokio::select! {
            biased;
            Some(answer) = in_flight.next() => Some(answer),
            () = sleep_until(&**clock, wakes) => None,
            // Looks whether the manager was shut down.
            () = tokio::time::sleep(Duration::from_secs(1)) => None,
        };
        match answer {
            None => {}
            Some((Ok(answer), sent)) => {
                core.registry.outages.answered();
                if record.renewed(&answer, sent) {
                    return Ok(false);
                }
                if is_saved(&answer, record) {
                    return Ok(true);
                }
                next = pause(clock.now(), &mut failures);
            }
            Some((Err(error), sent)) => {
                core.registry.note("renew", sent, &error);
                record.renewal_failed(&LossReason::of_renewals(&error));
                next = pause(clock.now(), &mut failures);
            }
        }
    }
}

fn is_saved(answer: &Renewal, record: &ClaimRecord) -> bool {
    matches!(answer, Renewal::Holds(_)) && !record.remaining().is_zero()
}

fn pause(now: Moment, failures: &mut u32) -> Moment {
    *failures += 1;
    now.after(backoff(*failures))
}

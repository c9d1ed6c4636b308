//! A claim that holds takes the gate before it becomes a guard. The gate is the lock of the same name that
//! programs take with another library, such as a key of redis-py's `Lock`: see [`gate`](crate::gate). It is taken
//! after the claim was granted, by tries with back-off, and given back before the claim.

use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, AttemptResult, Options, Request, again_unless_final};
use crate::driver::{Gate, GateAttempt, Patience};
use crate::error::in_time;
use crate::gate::not_with_neighbours;
use crate::record::{ClaimRecord, LeaseLeft};
use crate::{Error, Mode};

/// How long to wait before the gate is tried again: from 20 ms, doubled up to half a second, of which up to
/// a half is taken off at random. Not longer than until the end of a neighbour's lease, but 20 ms at least.
fn pause(attempts: u32, remaining: Option<Duration>) -> Duration {
    const LEAST: Duration = Duration::from_millis(20);
    let full = Duration::from_millis(20 << attempts.min(5)).min(Duration::from_millis(500));
    let jittered = full.mul_f64(0.5 + rand::random::<f64>() / 2.0);
    jittered.min(remaining.unwrap_or(jittered)).max(LEAST)
}

/// Refuses what neighbours' locks do not have, before any I/O.
pub(super) fn check(gate: &dyn Gate, request: &Request<'_>) -> Result<(), Error> {
    let Options { auto_renew, detached, at_least, lock_delay, .. } = request.options;
    match request.mode {
        Mode::Exclusive => {}
        Mode::Shared => return Err(not_with_neighbours("a read lock")),
        Mode::Permits { .. } => return Err(not_with_neighbours("a semaphore, and slots,")),
    }
    let refused = [
        (*detached, "a lock that outlives its process"),
        (!auto_renew, "a lock that is not renewed"),
        (at_least.is_some(), "a least hold"),
        (!lock_delay.is_zero(), "a lock delay"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is_asked, _)| *is_asked) {
        return Err(not_with_neighbours(what));
    }
    gate.check_name(&request.key.name)
}

impl Attempt<'_> {
    /// Takes the gate for a claim that holds and is in the registry, and makes it a guard. With
    /// [`Patience::Try`] the gate is tried once.
    pub(super) async fn pass_gate(
        mut self,
        gate: &dyn Gate,
        record: Arc<ClaimRecord>,
        patience: Patience,
    ) -> Result<AttemptResult, Error> {
        let registry = &self.core.registry;
        let mut attempts = 0;
        loop {
            let sent = registry.clock.now();
            // A request without an answer may still take the gate.
            let was_ambiguous = std::mem::replace(&mut self.is_gate_ambiguous, true);
            let taking = in_time(self.core.backend(), record.trusted(), gate.take(&self.claim));
            let answer = tokio::select! {
                biased;
                reason = record.lost() => return again_unless_final(&reason),
                answer = registry.watched(taking) => answer,
            };
            let remaining = match answer {
                Ok(attempt) => {
                    registry.outages.answered();
                    self.is_gate_ambiguous = was_ambiguous;
                    match attempt {
                        GateAttempt::Taken { ttl } => {
                            match record.pass_gate(ttl, sent, self.how.max_hold) {
                                LeaseLeft::Enough => {
                                    registry.sooner(record.next_event());
                                    return Ok(AttemptResult::Granted(self.into_guard(record)));
                                }
                                _ if patience == Patience::Try => {
                                    return self.withdraw(record).await;
                                }
                                // Too little of the lease is left: taking the gate again renews it.
                                _ => None,
                            }
                        }
                        GateAttempt::Busy { .. } if patience == Patience::Try => {
                            self.withdraw(record).await?;
                            return Ok(AttemptResult::Busy);
                        }
                        GateAttempt::Busy { remaining } => {
                            record.blocked_at_gate(remaining);
                            remaining
                        }
                    }
                }
                Err(error) if patience == Patience::Try || !error.is_retryable() => {
                    return Err(error);
                }
                Err(error) => {
                    registry.note("acquire", sent, &error);
                    None
                }
            };
            let waits = tokio::time::sleep(pause(attempts, remaining));
            attempts += 1;
            tokio::select! {
                biased;
                reason = record.lost() => return again_unless_final(&reason),
                () = waits => {}
            }
        }
    }

    /// Gives gate and claim back. Where that fails, dropping the attempt goes on with it in the background.
    async fn withdraw(mut self, record: Arc<ClaimRecord>) -> Result<AttemptResult, Error> {
        let registry = &self.core.registry;
        self.pending = Some(registry.releasing());
        registry.remove(self.claim.id, &record);
        record.give_back();
        if registry.give_back(&self.claim).await.is_ok() {
            self.is_settled = self.ambiguous == 0 && !self.is_gate_ambiguous;
        }
        Ok(AttemptResult::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::pause;
    use std::time::Duration;

    #[test]
    fn the_pause_grows_from_20_to_500_ms_and_ends_with_the_neighbours_lease() {
        for attempts in 0..40 {
            let pause = pause(attempts, None).as_millis();
            assert!((20..=500).contains(&pause), "{attempts}: {pause}");
        }
        assert!(pause(9, None) >= Duration::from_millis(250));
        let soon = Duration::from_millis(70);
        assert_eq!(pause(9, Some(soon)), soon);
        assert_eq!(pause(9, Some(Duration::ZERO)), Duration::from_millis(20));
    }
}

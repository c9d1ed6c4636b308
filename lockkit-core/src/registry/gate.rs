//! Gates of claims that are held: renewed along with them, and given back before them.

use std::sync::Arc;
use std::time::Duration;

use super::{RELEASE, Registry};
use crate::clock::Moment;
use crate::concurrency::locked;
use crate::driver::{Gate, GateRenewal};
use crate::error::in_time;
use crate::gate::NeighbourWait;
use crate::record::ClaimRecord;
use crate::{Claim, Error, LossReason, Mode, observe};

impl Registry {
    /// The gate that this claim has to take, if it has to take one.
    pub(crate) fn gate_of(&self, claim: &Claim) -> Option<&dyn Gate> {
        self.driver.gate().filter(|_| claim.mode == Mode::Exclusive)
    }

    /// Gives the gate of this claim back, in bounded time, where there are gates.
    pub(super) async fn give_gate(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        let Some(gate) = self.gate_of(claim) else { return Ok(()) };
        in_time(self.backend(), RELEASE, gate.give(claim)).await
    }

    /// Renews the gates of these claims, of those that have taken one, in one request. The error is the first;
    /// what it means for the claims was noted.
    pub(crate) async fn keep_gates(
        &self,
        batch: &[Arc<ClaimRecord>],
        limit: Duration,
    ) -> Result<(), Error> {
        let Some(gate) = self.driver.gate() else { return Ok(()) };
        let records: Vec<_> = batch.iter().filter(|record| record.has_gate()).collect();
        if records.is_empty() {
            return Ok(());
        }
        let claims: Vec<_> = records.iter().map(|record| record.claim()).collect();
        let sent = self.clock.now();
        let asked = in_time(self.backend(), limit, gate.keep(&claims));
        match self.watched(asked).await {
            Ok(answers) if answers.len() == records.len() => {
                let mut first = Ok(());
                for (record, answer) in records.into_iter().zip(answers) {
                    first = first.and(self.gate_renewed(record, answer, sent));
                }
                first
            }
            answer => {
                let error = answer.map_or_else(|error| error, |_| self.driver.no_reply());
                self.note("renew", sent, &error);
                let failing = LossReason::of_renewals(&error);
                records.iter().for_each(|record| record.gate_failed(&failing));
                Err(error)
            }
        }
    }

    /// Takes the answer to a renewal of a gate that was sent at `sent`.
    fn gate_renewed(
        &self,
        record: &Arc<ClaimRecord>,
        answer: Result<GateRenewal, Error>,
        sent: Moment,
    ) -> Result<(), Error> {
        match answer {
            Ok(GateRenewal::Kept { ttl }) => record.gate_kept(ttl, sent),
            Ok(GateRenewal::NotFound) => {
                let lease_end = record.lease_end();
                if record.lose(LossReason::Neighbour) {
                    let claim = record.claim();
                    self.remove(claim.id, record);
                    observe::lost(record.labels, &claim, &LossReason::Neighbour);
                    // Until then its holder may wind up, and releases it when it has.
                    self.release_at(claim, lease_end.unwrap_or(sent));
                }
            }
            Err(error) => {
                self.note("renew", sent, &error);
                record.gate_failed(&LossReason::of_renewals(&error));
                return Err(error);
            }
        }
        Ok(())
    }

    /// The wait of a lock of this name for a neighbour.
    pub(crate) fn neighbour_wait(&self, name: &str) -> Option<NeighbourWait> {
        let records = locked(&self.records);
        let mut of_name = records.values().filter(|it| it.claim().key.name.as_str() == name);
        let remaining = of_name.find_map(|record| record.waits_for_neighbour())?;
        Some(NeighbourWait { remaining })
    }
}

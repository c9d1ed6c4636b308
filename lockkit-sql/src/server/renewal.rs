//! Renewing many claims, and asking how they stand: one request for all. A claim whose row another transaction has
//! locked is left out of it and renewed by itself, so that it costs the others nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{BatchError, Evidence};
use lockkit_core::{Claim, Error, Result};
use tokio::time::{Instant, timeout_at};

use super::SqlServerInner;
use super::batch::LEFT_OUT;
use super::dialect::{Arguments, Dialect, Row, StatementId};
use super::driver::{renewal, unexpected};
use crate::rows::{columns, from_micros};
use crate::waiters::PolledState;

/// For so long at most, and for an eighth of the shortest TTL, the answer about the other claims waits for those that
/// were left out: core gives up a renewal as a whole after a bit more than twice that. The server lets a statement
/// wait for a second.
const LOCKED_ROWS: Duration = Duration::from_millis(1_250);

impl<D: Dialect> SqlServerInner<D> {
    /// Renews claims; and what the answer tells of its server.
    pub(super) async fn renew(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<(Vec<Result<PolledState>>, Option<Arc<Evidence>>)> {
        let (states, evidence) = match self.claim_states(StatementId::Renew, claims).await {
            // A row that none of them owns is locked: each finds out whether it is concerned.
            Err(error) if error.would_block && claims.len() > 1 => (vec![None; claims.len()], None),
            answer => answer.map_err(|failed| failed.error)?,
        };
        let shortest = claims.iter().map(|claim| claim.hold_ttl.min(claim.wait_ttl)).min();
        let until = Instant::now() + LOCKED_ROWS.min(shortest.unwrap_or_default() / 8);
        let each = claims.iter().zip(states).map(async |(claim, state)| match state {
            Some(state) => Ok(state),
            None => self.renew_blocked(claim, until).await,
        });
        Ok((join_all(each).await, evidence))
    }

    /// One claim, which may wait for its rows.
    async fn renew_blocked(&self, claim: &Arc<Claim>, until: Instant) -> Result<PolledState> {
        let locked = || Error::retryable(D::BACKEND, "another transaction has locked its rows");
        let renewed = async {
            let _may_wait = self.permit_to_wait(until).await?;
            let _place = self.others.acquire().await;
            let answer = self.claim_states(StatementId::Renew, std::slice::from_ref(claim)).await;
            let (mut states, _) = answer.map_err(|failed| failed.error)?;
            states.pop().flatten().ok_or_else(locked)
        };
        timeout_at(until, renewed).await.unwrap_or_else(|_| Err(locked()))
    }

    /// How claims stand. Changes nothing.
    pub(super) async fn states(&self, claims: &[Arc<Claim>]) -> Result<Vec<PolledState>> {
        let answer = self.claim_states(StatementId::Poll, claims).await;
        let (states, _) = answer.map_err(|failed| failed.error)?;
        states.into_iter().collect::<Option<_>>().ok_or_else(unexpected::<D>)
    }

    /// The states of many claims, renewed or only read, `None` of those that were left out; and what the answer tells
    /// of its server.
    async fn claim_states(
        &self,
        id: StatementId,
        claims: &[Arc<Claim>],
    ) -> Result<(Vec<Option<PolledState>>, Option<Arc<Evidence>>), BatchError> {
        // In the order of their keys, so that two who lock several queues never wait for each other.
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by_key(|i| columns(&claims[*i].key));
        let sorted: Vec<_> = order.iter().map(|i| &*claims[*i]).collect();
        let answer = self.request(id, Arguments::Claims(&sorted, &self.client)).await?;
        let wrong = |error| BatchError::unknown(error).after(answer.ambiguous);
        let mut answers = vec![None; claims.len()];
        let (mut told, mut evidence) = (0, None);
        for row in &answer.rows {
            self.report_holders(row.bytes(7).unwrap_or_default(), answer.sent, &[]);
            let n = row.int(0).and_then(|n| usize::try_from(n).ok());
            let at = n.and_then(|n| order.get(n)).ok_or_else(|| wrong(unexpected::<D>()))?;
            answers[*at] = match row.int(1) {
                Some(LEFT_OUT) => None,
                _ => Some(renewal::<D>(row).map_err(wrong)?),
            };
            evidence = evidence_of(row).or(evidence);
            told += 1;
        }
        match told == claims.len() {
            true => Ok((answers, evidence.map(Arc::new))),
            false => Err(wrong(unexpected::<D>())),
        }
    }
}

/// The columns behind those of the claim.
fn evidence_of(row: &Row) -> Option<Evidence> {
    let run = String::from_utf8_lossy(row.bytes(9)?);
    let evidence = Evidence::new(&*run, row.int(11)? as u64);
    let evidence = evidence.with_time(from_micros(row.int(8)?));
    Some(match row.int(10).and_then(|position| u64::try_from(position).ok()) {
        Some(position) => evidence.with_position(position),
        None => evidence,
    })
}

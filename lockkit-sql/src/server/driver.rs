//! The operations of the lock: each is one statement, one round trip. No SQL here: it is the dialect's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Anchored, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, Gate, Grant, LeaseStart,
    LockDriver, Registers, Renewal, Renewed, ServerRun, SetLimit, check_neighbours, names_in_use,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Finding, Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Namespace, Result, Space, Token};

use super::dialect::{Arg, Dialect, Row, StatementId, key_args};
use super::{GateOf, ServerDriver, SqlServerInner};
use crate::rows::{break_record, check_raise, from_micros, micros, token_of};
use crate::waiters::PolledState;

/// For how long a record of a break is kept at least: its claim's owner asks for it within its ttl.
const KEEP_BREAKS: Duration = Duration::from_secs(600);

#[async_trait]
impl<D: Dialect> LockDriver for ServerDriver<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn gate(&self) -> Option<&dyn Gate> {
        self.inner.neighbours.as_ref().map(|(_, gate)| match gate {
            GateOf::Session(gate) => &**gate as &dyn Gate,
            GateOf::Rows => self,
        })
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.inner.submit(batch).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        self.inner.waiters.granted(&self.inner, claim).await
    }

    async fn notified(&self, claim: &Arc<Claim>) -> Result<()> {
        if !D::PUSHES {
            return self.granted(claim).await.map(drop);
        }
        let claims = &self.inner.waiters.claims;
        claims.start_polling(&self.inner);
        claims.notified(claim).await;
        Ok(())
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal>>> {
        Ok(Renewed::without_evidence(self.renew_with_evidence(claims).await?))
    }

    async fn renew_with_evidence(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewed>>> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let (told, evidence) = self.inner.renew(claims).await?;
        let renewed = self.inner.waiters.renewed(claims, told).into_iter();
        let with = |renewal| Renewed { renewal, evidence: evidence.clone() };
        Ok(renewed.map(|answer| answer.map(with)).collect())
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal> {
        let renewal = self.inner.amend(claim, 0, micros(ttl)).await?;
        Ok(match renewal {
            Renewal::Holds(grant) => Renewal::Holds(Grant { ttl, ..grant }),
            other => other,
        })
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal> {
        self.inner.amend(claim, 1, 0).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        let [namespace, space, name] = key_args(key);
        let record = record.to_json();
        let args = [
            namespace,
            space,
            name,
            Arg::Int(token.as_i64()),
            Arg::Int(i64::from(force == BreakMode::Forced)),
            Arg::Bytes(record.as_bytes()),
            Arg::Int(micros(KEEP_BREAKS)),
        ];
        let answer = self.inner.call(StatementId::Break, &args).await?;
        let row = answer.row::<D>()?;
        self.inner.report_holders(row.bytes(1).unwrap_or_default(), answer.sent, &[]);
        Ok(row.int(0) == Some(1))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page> {
        self.inner.page(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        self.inner.namespaces(after, limit).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal> {
        if !self.inner.capabilities.raise {
            return Err(self.unsupported("raising tokens with `durability=needed`"));
        }
        check_raise(token.get())?;
        self.inner.amend(claim, 2, token.as_i64()).await
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored> {
        Ok(match self.inner.amend(claim, 3, 0).await? {
            Renewal::Holds(_) => Anchored::At(self.inner.dialect.tables().into()),
            Renewal::Waits { .. } => Anchored::Ended(ClaimEnd::NotFound),
            Renewal::Ended(why) => Anchored::Ended(why),
        })
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32> {
        if key.space != Space::Semaphore || !self.inner.capabilities.resize {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let [namespace, space, name] = key_args(key);
        let (always, limit) = match limit {
            SetLimit::IfUnset(limit) => (0, limit),
            SetLimit::To(limit) => (1, limit),
        };
        let args = [namespace, space, name, Arg::Int(always), Arg::Int(limit.into())];
        let answer = self.inner.call(StatementId::Resize, &args).await?;
        let row = answer.row::<D>()?;
        self.inner.report_holders(row.bytes(1).unwrap_or_default(), answer.sent, &[]);
        let limit = row.int(0).and_then(|limit| limit.try_into().ok());
        limit.ok_or_else(unexpected::<D>)
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        let own = self.inner.neighbours.as_ref().map(|(setting, _)| setting.as_str());
        let neighbours = own.map_or(Arg::Null, |own| Arg::Bytes(own.as_bytes()));
        let args = [Arg::Bytes(namespace.as_str().as_bytes()), neighbours];
        let row = self.inner.call(StatementId::Counter, &args).await?.rows.into_iter().next();
        let row = row.unwrap_or_default();
        let stored = row.bytes(1).map(String::from_utf8_lossy);
        let place = format!(
            "it: UPDATE {} SET neighbours = NULL WHERE namespace = '{}'",
            self.inner.dialect.counters(),
            namespace.as_str().replace('\'', "''")
        );
        check_neighbours(namespace, own, stored.as_deref(), &place)?;
        let base = row.int(0).unwrap_or(0);
        self.inner.bases.saw(D::BACKEND, namespace, u64::try_from(base).unwrap_or(0))
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<()> {
        check_raise(base)?;
        let args = [Arg::Bytes(namespace.as_str().as_bytes()), Arg::Int(base as i64)];
        self.inner.call(StatementId::RaiseCounter, &args).await?;
        Ok(())
    }

    async fn promises(&self) -> Result<Promises> {
        self.inner.promises().await
    }

    async fn run_of(&self, _: &Key) -> Result<Option<ServerRun>> {
        let answer = self.inner.call(StatementId::Run, &[]).await?;
        let row = answer.row::<D>()?;
        let text = |column| row.bytes(column).map(String::from_utf8_lossy);
        let both = text(0).zip(text(1));
        Ok(both.map(|(identity, start)| ServerRun::new(&*identity, &*start)))
    }

    async fn keeps_writes(&self) -> Result<bool> {
        let answer = self.inner.call(StatementId::Run, &[]).await?;
        Ok(answer.row::<D>()?.int(2) == Some(1))
    }

    async fn health(&self) -> Result<Health> {
        self.inner.health().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        match &self.inner.neighbours {
            None => Ok(Vec::new()),
            Some((_, GateOf::Session(gate))) => {
                gate.examine(&names_in_use(self, 1000).await?).await
            }
            Some((_, GateOf::Rows)) => self.inner.examine_shedlock().await,
        }
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl<D: Dialect> SqlServerInner<D> {
    async fn amend(&self, claim: &Claim, what: i64, value: i64) -> Result<Renewal> {
        let [namespace, space, name] = key_args(&claim.key);
        let id = Arg::Bytes(claim.id.as_bytes());
        let args = [namespace, space, name, id, Arg::Int(what), Arg::Int(value)];
        let answer = self.call(StatementId::Amend, &args).await?;
        let row = answer.row::<D>()?;
        self.report_holders(row.bytes(7).unwrap_or_default(), answer.sent, &[]);
        Ok(renewal::<D>(row)?.0)
    }
}

/// One row of [`StatementId::Renew`].
pub(super) fn renewal<D: Dialect>(row: &Row) -> Result<PolledState> {
    Ok(match row.int(1) {
        Some(0) => (Renewal::Ended(ClaimEnd::NotFound), None),
        Some(1) => (Renewal::Holds(grant::<D>(row, 2)?), None),
        Some(2) => (Renewal::Waits { ahead: count(row.int(4)) }, row.int(5).map(from_micros)),
        Some(3) => {
            let record = break_record(row.bytes(6));
            (Renewal::Ended(record.map_or(ClaimEnd::NotFound, ClaimEnd::Broken)), None)
        }
        _ => return Err(unexpected::<D>()),
    })
}

/// Token and ttl from this column on. A grant counts from the last request that core sent.
pub(super) fn grant<D: Dialect>(row: &Row, column: usize) -> Result<Grant> {
    match (row.int(column), row.int(column + 1)) {
        (Some(token), Some(ttl)) => Ok(Grant {
            token: token_of(token),
            ttl: from_micros(ttl),
            start: LeaseStart::LastAnswered,
            margin: Duration::ZERO,
        }),
        _ => Err(unexpected::<D>()),
    }
}

pub(super) fn count(number: Option<i64>) -> u32 {
    u32::try_from(number.unwrap_or(0)).unwrap_or(u32::MAX)
}

pub(super) fn unexpected<D: Dialect>() -> Error {
    Error::permanent(D::BACKEND, "the database's answer is not one of lockkit's functions")
}

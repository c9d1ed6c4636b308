//! Named values with versions and tokens, in a table of their own. The rules are in the dialect's
//! statement; a change that another process made is found by looking.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempted, Precondition, RegisterEntry, RegisterKey, Registers, Version, Write, WriteResult,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use lockkit_core::{Result, Token};

use super::ServerDriver;
use super::dialect::{Arg, Dialect, StatementId};
use super::driver::unexpected;
use crate::rows::{micros, token_of};
use crate::waiters::WaiterRegistry;

/// How often a change that another process made is looked for: at first, and at last.
const TICKS: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));

#[async_trait]
impl<D: Dialect> Registers for ServerDriver<D> {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        let rows = self.inner.call(StatementId::Load, &arguments(at)).await?.rows;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(RegisterEntry::new(
            row.bytes(0).ok_or_else(unexpected::<D>)?.to_vec(),
            version(row.int(1).ok_or_else(unexpected::<D>)?),
            row.int(2).map(token_of),
        )))
    }

    async fn write(&self, at: &RegisterKey, write: &Write) -> Result<Attempted<WriteResult>> {
        let (expect, expected) = match write.expect {
            Precondition::Anything => (0, 0),
            Precondition::Absent => (1, 0),
            // What no version can be is simply not there.
            Precondition::Version(Version(v)) => (2, i64::try_from(v).unwrap_or(-1)),
        };
        let [namespace, name] = arguments(at);
        let args = [
            namespace,
            name,
            write.value.as_deref().map_or(Arg::Null, Arg::Bytes),
            Arg::Int(expect),
            Arg::Int(expected),
            Arg::Int(write.token.map_or(0, Token::as_i64)),
            Arg::Bytes(&write.write_id.0),
            Arg::Int(write.ttl.map_or(0, |ttl| micros(ttl).max(1))),
            Arg::Int(write.repeated.into()),
        ];
        let answer = self.inner.call(StatementId::Write, &args).await?;
        let row = answer.row::<D>()?;
        let outcome = match (row.int(0), row.int(1)) {
            (Some(0), _) => WriteResult::Conflict,
            (Some(1), Some(number)) => {
                WaiterRegistry::wake_registers();
                WriteResult::Stored(version(number))
            }
            (Some(2), Some(number)) => WriteResult::Stale { highest: token_of(number) },
            _ => return Err(unexpected::<D>()),
        };
        Ok(Attempted::after(answer.ambiguous, outcome))
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        let (mut tick, most) = TICKS;
        let bells = &self.inner.waiters.registers;
        let load = || {
            let pause = tick;
            tick = most.min(tick * 5 / 4);
            async move { Ok((self.load(at).await?, pause)) }
        };
        bells.changed(at.name.as_str(), after, load).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>> {
        self.inner.registers(request).await
    }
}

fn arguments(at: &RegisterKey) -> [Arg<'_>; 2] {
    [Arg::Bytes(at.namespace.as_str().as_bytes()), Arg::Bytes(at.name.as_str().as_bytes())]
}

fn version(number: i64) -> Version {
    Version(number.max(0) as u64)
}

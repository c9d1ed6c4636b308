//! `neighbours=shedlock`: the gate of a name is the row that ShedLock has of it, in a table that its users made.
//! Statements are the dialect's, in `sql/shedlock`.
//!
//! Whether a program writes by the server's clock (`usingDbTime()`) cannot be seen when it writes. One that does not
//! may be told by a row that begins in the future.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Gate, GateAttempt, GateRenewal, answered_once, keep_in_groups, refuse_twins,
};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Claim, Error, Name, Result};

use super::dialect::{Arg, Arguments, Dialect, Row, StatementId};
use super::{ServerDriver, SqlServerInner};
use crate::rows::{from_micros, micros};

/// Rows that one request renews.
const ROWS_PER_REQUEST: usize = 100;

/// Who has a row, as ShedLock writes its host's name.
fn owner(claim: &Claim) -> Vec<u8> {
    format!("lockkit:{}", claim.gate_owner()).into_bytes()
}

/// What is written as the lease, in microseconds. A column of milliseconds, and the server's time in such, are up to
/// one of them early.
fn written(ttl: Duration) -> i64 {
    (micros(ttl) + 1_999) / 1_000 * 1_000
}

#[async_trait]
impl<D: Dialect> Gate for ServerDriver<D> {
    fn check_name(&self, name: &Name) -> Result<()> {
        let name = name.as_str();
        match name.len() <= 64 && name.is_ascii() {
            true => Ok(()),
            false => Err(Error::config(
                "with neighbours=shedlock, a name has 64 ASCII characters at most: use another name",
            )),
        }
    }

    async fn check_distinct(&self, names: &[Name]) -> Result<()> {
        let rows = names.iter().map(|name| D::shedlock_name(name.as_str()));
        refuse_twins(names, rows, "row of ShedLock")
    }

    async fn take(&self, claim: &Arc<Claim>) -> Result<GateAttempt> {
        let (name, owner) = (claim.key.name.as_str().as_bytes(), owner(claim));
        let args = [Arg::Bytes(name), Arg::Bytes(&owner), Arg::Int(written(claim.hold_ttl))];
        let answer = match self.inner.request(StatementId::GateTake, Arguments::List(&args)).await {
            // Another transaction has locked the row, so it is not free.
            Err(failed) if failed.would_block && failed.ambiguous == 0 => {
                return Ok(GateAttempt::Busy { remaining: None });
            }
            answer => answer.map_err(|failed| failed.error)?,
        };
        answered_once(D::BACKEND, answer.ambiguous)?;
        let row = answer.rows.first();
        Ok(match row.and_then(|row| row.int(0)) {
            Some(1) => GateAttempt::Taken { ttl: claim.hold_ttl },
            _ => {
                let remaining = row.and_then(|row| row.int(1)).map(from_micros);
                GateAttempt::Busy { remaining }
            }
        })
    }

    async fn keep(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal>>> {
        let all = |group| self.inner.keep_rows(group);
        Ok(keep_in_groups(claims, ROWS_PER_REQUEST, all).await)
    }

    async fn give(&self, claim: &Arc<Claim>) -> Result<()> {
        let owner = owner(claim);
        let args = [Arg::Bytes(claim.key.name.as_str().as_bytes()), Arg::Bytes(&owner)];
        self.inner.call(StatementId::GateGive, &args).await.map(drop)
    }
}

impl<D: Dialect> SqlServerInner<D> {
    /// Where another transaction has locked one of the rows, each is kept by itself.
    async fn keep_rows(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal>>> {
        match self.keep_at_once(claims).await {
            Err((_, true)) if claims.len() > 1 => {
                let each = async |one| self.keep_at_once(one).await.map_err(|(error, _)| error);
                Ok(keep_in_groups(claims, 1, each).await)
            }
            answer => answer.map_err(|(error, _)| error),
        }
    }

    /// An error, and whether another transaction has locked a row.
    async fn keep_at_once(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<GateRenewal>>, (Error, bool)> {
        let names = claims.iter().map(|claim| claim.key.name.as_str().as_bytes()).collect();
        let owners: Vec<_> = claims.iter().map(|claim| owner(claim)).collect();
        let leases = claims.iter().map(|claim| written(claim.hold_ttl)).collect();
        let owners = owners.iter().map(Vec::as_slice).collect();
        let args = [Arg::Many(names), Arg::Many(owners), Arg::Ints(leases)];
        let answer = self.request(StatementId::GateKeep, Arguments::List(&args)).await;
        let rows = answer.map_err(|failed| (failed.error, failed.would_block))?.rows;
        let kept = |(n, claim): (usize, &Arc<Claim>)| {
            let is_there = rows.iter().any(|row| row.int(0) == i64::try_from(n).ok());
            Ok(match is_there {
                true => GateRenewal::Kept { ttl: claim.hold_ttl },
                false => GateRenewal::NotFound,
            })
        };
        Ok(claims.iter().enumerate().map(kept).collect())
    }

    /// Refuses a table that is not there, or has other columns.
    pub(super) async fn check_shedlock(&self) -> Result<()> {
        let rows = self.call(StatementId::GateExamine, &[]).await?.rows;
        let wrong = rows.iter().filter(|row| row.int(0) == Some(0)).map(name_in);
        let wrong: Vec<_> = wrong.collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Error::Config(format!(
                "neighbours=shedlock needs the columns of its documentation, with milliseconds and in UTC, and a \
                 session with the server's time zone: {}",
                wrong.join("; ")
            ))),
        }
    }

    /// Rows by which an operator sees that neighbours do not keep the rules.
    pub(super) async fn examine_shedlock(&self) -> Result<Vec<Finding>> {
        let rows = self.call(StatementId::GateExamine, &[]).await?.rows;
        Ok(rows.iter().filter_map(finding).collect())
    }
}

fn name_in(row: &Row) -> String {
    String::from_utf8_lossy(row.bytes(1).unwrap_or_default()).into_owned()
}

fn finding(row: &Row) -> Option<Finding> {
    let (name, seconds) = (name_in(row), row.int(2)?);
    let (severity, what, advice) = match row.int(0)? {
        1 => (
            Severity::Problem,
            format!(
                "ShedLock's row {name:?} begins {seconds} s in the future: a program writes it by its own clock or \
                 time zone, so two may hold"
            ),
            "give each of ShedLock's lock providers usingDbTime()",
        ),
        2 => (
            Severity::Warning,
            format!(
                "ShedLock's row {name:?} has a lease of {seconds} s yet: if its holder died, it blocks for so long"
            ),
            "use a shorter lockAtMostFor; set the end of the row's lease to now once its holder is gone",
        ),
        _ => return None,
    };
    Some(Finding::new(severity, what, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_written_in_whole_milliseconds_and_one_more() {
        for (micros, written_micros) in [(1_000_000, 1_001_000), (1_000_001, 1_002_000)] {
            assert_eq!(written(Duration::from_micros(micros)), written_micros);
        }
    }
}

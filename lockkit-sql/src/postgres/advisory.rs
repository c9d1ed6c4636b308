//! `neighbours=advisory`: the gate of a name is the advisory lock that programs take with
//! `pg_advisory_lock(hashtext(name))`, or with a number. One session of a process has them all, and loses them
//! with it.
//!
//! Advisory locks have no owner but the session, which counts how often it took them. So this remembers which
//! claim has which, takes none twice, and does one operation after the other. An operation whose caller gives
//! up goes on: the session must not be left in the middle of an answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{ClaimId, Gate, GateAttempt, GateRenewal, refuse_twins};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Claim, Error, Name, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{Connection, Row};
use tokio::sync::Mutex;

use super::{BACKEND, judge, listen};
use crate::server::dialect::{ErrorClass, NeighbourGate};

/// An operation that takes longer costs the session: the server may have ended it, which was not noticed.
const LONGEST: Duration = Duration::from_secs(30);
/// `idle_session_timeout` came with this one.
const OLDEST_VERSION: i32 = 140_000;

const OPEN: &str = include_str!("sql/advisory/open.sql");
const TAKE: &str = include_str!("sql/advisory/take.sql");
const KEEP: &str = include_str!("sql/advisory/keep.sql");
const GIVE: &str = include_str!("sql/advisory/give.sql");
const KEYS: &str = include_str!("sql/advisory/keys.sql");
const HOLDERS: &str = include_str!("sql/advisory/holders.sql");

/// The advisory locks that this process has for its claims.
#[derive(Debug)]
pub(super) struct AdvisoryGate {
    inner: Arc<AdvisoryInner>,
    timeout: Duration,
}

#[derive(Debug)]
struct AdvisoryInner {
    options: PgConnectOptions,
    /// `None` while there is none.
    session: Mutex<Option<AdvisorySession>>,
}

#[derive(Debug)]
struct AdvisorySession {
    connection: PgConnection,
    /// The claim that has an advisory lock, by the key of that.
    owners: HashMap<i64, ClaimId>,
    /// After how long without a request the server ends the session.
    idle_timeout: Duration,
    /// What the server has set for that, in its own words.
    default_timeout: String,
}

/// What an advisory lock is called: a number, or a text of which the server makes one.
fn key_of(name: &Name) -> (Option<i64>, &str) {
    let text = name.as_str();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    (text.parse().ok().filter(|_| is_number), text)
}

impl AdvisoryGate {
    /// Opens the session, so that what this cannot work with is refused at once.
    pub(super) async fn connect(options: &PgConnectOptions, timeout: Duration) -> Result<Self> {
        // A pool's program may have called itself otherwise: `examine` knows lockkit's sessions by this.
        let options = options.clone().application_name("lockkit");
        let inner = AdvisoryInner { options, session: Mutex::default() };
        let gate = Self { inner: Arc::new(inner), timeout };
        gate.finish(gate.inner.clone().ask(KEYS, Vec::new())).await?;
        Ok(gate)
    }

    /// The answer of an operation, which ends also where this is dropped.
    async fn finish<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match tokio::time::timeout(self.timeout, tokio::spawn(operation)).await {
            Ok(Ok(answer)) => answer,
            // Its runtime ends.
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => {
                Err(Error::retryable(BACKEND, "the session of the advisory locks gave no answer"))
            }
        }
    }
}

#[async_trait]
impl NeighbourGate for AdvisoryGate {
    async fn examine(&self, names: &[Name]) -> Result<Vec<Finding>> {
        let rows = self.finish(self.inner.clone().ask(HOLDERS, names.to_vec())).await?;
        let findings = rows.iter().map(|row| held_without_lease(names, row).map_err(into_error));
        findings.collect()
    }

    async fn close(&self) {
        let _ = self.finish(self.inner.clone().close()).await;
    }
}

#[async_trait]
impl Gate for AdvisoryGate {
    async fn check_distinct(&self, names: &[Name]) -> Result<()> {
        let rows = self.finish(self.inner.clone().ask(KEYS, names.to_vec())).await?;
        let keys = rows.iter().map(|row| row.try_get::<i64, _>(0).map_err(into_error));
        refuse_twins(names, keys.collect::<Result<Vec<_>>>()?, "advisory lock")
    }

    async fn take(&self, claim: &Arc<Claim>) -> Result<GateAttempt> {
        self.finish(self.inner.clone().take(claim.clone())).await
    }

    async fn keep(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal>>> {
        let ids = claims.iter().map(|claim| claim.id).collect();
        let kept = self.finish(self.inner.clone().keep(ids)).await?;
        Ok(kept.into_iter().map(Ok).collect())
    }

    async fn give(&self, claim: &Arc<Claim>) -> Result<()> {
        self.finish(self.inner.clone().give(claim.id)).await
    }
}

impl AdvisoryInner {
    /// The session that there is, or a new one.
    async fn session<'a>(
        &self,
        slot: &'a mut Option<AdvisorySession>,
    ) -> Result<&'a mut AdvisorySession> {
        if slot.is_none() {
            *slot = Some(self.new_session().await?);
        }
        slot.as_mut().ok_or(Error::Closed)
    }

    /// One that the server has ended meanwhile is replaced: all that it had is gone.
    async fn take(self: Arc<Self>, claim: Arc<Claim>) -> Result<GateAttempt> {
        let mut slot = self.session.lock().await;
        if let Some(session) = &mut *slot {
            match in_time(session.take(&claim)).await {
                Err(error) if is_lost(&error) => *slot = None,
                answer => return answer.map_err(into_error),
            }
        }
        let answer = in_time(self.session(&mut slot).await?.take(&claim)).await;
        answered(&mut slot, answer)
    }

    /// Without a session, there is nothing any more; none is opened for that.
    async fn keep(self: Arc<Self>, ids: Vec<ClaimId>) -> Result<Vec<GateRenewal>> {
        let mut slot = self.session.lock().await;
        let lost = vec![GateRenewal::NotFound; ids.len()];
        let Some(session) = &mut *slot else { return Ok(lost) };
        match in_time(session.keep(&ids)).await {
            Err(error) if is_lost(&error) => {
                tracing::warn!(%error, "the session of the advisory locks has ended");
                *slot = None;
                Ok(lost)
            }
            answer => answer.map_err(into_error),
        }
    }

    async fn give(self: Arc<Self>, id: ClaimId) -> Result<()> {
        let mut slot = self.session.lock().await;
        let Some(session) = &mut *slot else { return Ok(()) };
        match in_time(session.give(id)).await {
            // The server gives back what an ended session had.
            Err(error) if is_lost(&error) => {
                *slot = None;
                Ok(())
            }
            answer => answer.map_err(into_error),
        }
    }

    async fn ask(self: Arc<Self>, about: &'static str, names: Vec<Name>) -> Result<Vec<PgRow>> {
        let mut slot = self.session.lock().await;
        let answer = in_time(self.session(&mut slot).await?.ask(about, &names)).await;
        answered(&mut slot, answer)
    }

    async fn close(self: Arc<Self>) -> Result<()> {
        if let Some(session) = self.session.lock().await.take() {
            let _ = session.connection.close().await;
        }
        Ok(())
    }

    async fn new_session(&self) -> Result<AdvisorySession> {
        let (mut connection, is_server) =
            in_time(listen::open(&self.options)).await.map_err(into_error)?;
        let asked = async { sqlx::query(OPEN).fetch_one(&mut connection).await };
        let row = in_time(asked).await.map_err(into_error)?;
        let version: i32 = row.try_get(0).map_err(into_error)?;
        if version < OLDEST_VERSION {
            return Err(Error::Config(format!(
                "neighbours=advisory needs PostgreSQL 14 or later, whose idle_session_timeout ends the session of \
                 a client that is cut off; this server is {}",
                version / 10_000
            )));
        }
        if !is_server {
            return Err(Error::config(
                "neighbours=advisory needs a session of its own, and there is a pooler before this server: \
                 connect to the server itself",
            ));
        }
        Ok(AdvisorySession {
            connection,
            owners: HashMap::new(),
            idle_timeout: Duration::ZERO,
            default_timeout: row.try_get(1).map_err(into_error)?,
        })
    }
}

type QueryResult<T> = std::result::Result<T, sqlx::Error>;

impl AdvisorySession {
    async fn take(&mut self, claim: &Claim) -> QueryResult<GateAttempt> {
        // The session is as long-lived as its claim with the longest lease.
        let longest = match self.owners.is_empty() {
            true => claim.hold_ttl,
            false => self.idle_timeout.max(claim.hold_ttl),
        };
        let millis = longest.as_nanos().div_ceil(1_000_000);
        self.idle_timeout = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let (number, text) = key_of(&claim.key.name);
        let take = sqlx::query(TAKE).bind(number).bind(text).bind(millis.to_string());
        let row = take.fetch_one(&mut self.connection).await?;
        let (key, is_taken): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
        if !is_taken {
            self.owners.remove(&key);
            return Ok(GateAttempt::Busy { remaining: None });
        }
        match *self.owners.entry(key).or_insert(claim.id) == claim.id {
            true => Ok(GateAttempt::Taken { ttl: self.idle_timeout }),
            // Of a claim of this process whose gate is still to be given back, or of a name with this key.
            false => Ok(GateAttempt::Busy { remaining: None }),
        }
    }

    async fn keep(&mut self, ids: &[ClaimId]) -> QueryResult<Vec<GateRenewal>> {
        let rows = sqlx::query(KEEP).fetch_all(&mut self.connection).await?;
        let keys: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<QueryResult<_>>()?;
        self.owners.retain(|key, _| keys.contains(key));
        let ttl = self.idle_timeout;
        let state = |id: &ClaimId| match self.owners.values().any(|owner| owner == id) {
            true => GateRenewal::Kept { ttl },
            false => GateRenewal::NotFound,
        };
        Ok(ids.iter().map(state).collect())
    }

    async fn give(&mut self, id: ClaimId) -> QueryResult<()> {
        let Some(key) = self.owners.iter().find(|it| *it.1 == id).map(|it| *it.0) else {
            return Ok(());
        };
        // A session without gates may be idle for as long as the server lets it.
        let default = (self.owners.len() == 1).then_some(&self.default_timeout);
        sqlx::query(GIVE).bind(key).bind(default).execute(&mut self.connection).await?;
        self.owners.remove(&key);
        Ok(())
    }

    async fn ask(&mut self, about: &'static str, names: &[Name]) -> QueryResult<Vec<PgRow>> {
        let (numbers, texts): (Vec<_>, Vec<_>) = names.iter().map(key_of).unzip();
        sqlx::query(about).bind(numbers).bind(texts).fetch_all(&mut self.connection).await
    }
}

/// A row of [`HOLDERS`].
fn held_without_lease(names: &[Name], row: &PgRow) -> QueryResult<Finding> {
    let at = usize::try_from(row.try_get::<i64, _>(0)? - 1).ok();
    let name = at.and_then(|at| names.get(at)).map_or("", Name::as_str);
    let (pid, program): (i32, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
    let (program, since) = (program.unwrap_or_default(), row.try_get::<Option<i64>, _>(3)?);
    let idle = since.map_or(String::new(), |seconds| format!(", unchanged for {seconds} s"));
    Ok(Finding::new(
        Severity::Warning,
        format!(
            "the advisory lock of {name:?} has no lease: session {pid} ({program:?}{idle}) has it until it ends, and \
             where its program is cut off, until TCP gives up"
        ),
        format!(
            "let the server notice sooner (tcp_keepalives_idle); SELECT pg_terminate_backend({pid}) once the program \
             is gone"
        ),
    ))
}

/// The answer of a request; none within its time means that the session is lost.
async fn in_time<T>(request: impl Future<Output = QueryResult<T>>) -> QueryResult<T> {
    match tokio::time::timeout(LONGEST, request).await {
        Ok(answer) => answer,
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// Forgets a session that was lost.
fn answered<T>(slot: &mut Option<AdvisorySession>, answer: QueryResult<T>) -> Result<T> {
    if answer.as_ref().is_err_and(is_lost) {
        *slot = None;
    }
    answer.map_err(into_error)
}

fn is_lost(error: &sqlx::Error) -> bool {
    matches!(judge(error), ErrorClass::ConnectionLost | ErrorClass::Closed)
}

fn into_error(error: sqlx::Error) -> Error {
    judge(&error).into_error(BACKEND, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_digits_is_the_number_itself() {
        let key = |name: &str| key_of(&Name::new(name).unwrap()).0;
        assert_eq!(key("42"), Some(42));
        assert_eq!(key("9223372036854775807"), Some(i64::MAX));
        for text in ["9223372036854775808", "-1", "+1", "4 2", "nightly", "٤"] {
            assert_eq!(key(text), None, "{text}");
        }
    }
}

//! The lock: every verb of [`LockDriver`] as one execute of one statement. The rule stands in
//! `sql/verbs/`; here are parameters in and answers out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquisition, Ended, Force, Grant, LockDriver, Patience, Registers, Released, Renewal, SetLimit,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, LossReason, Mode, Namespace, Space,
    Token,
};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::link::{Link, Statement, explain, refusal};
use super::{BACKEND, CAPABILITIES, Inner, SqliteDriver, wants_tokens};
use crate::rows::{break_record, duration, nanos, space_number, to_json, token_of};

/// For how long the record of a break is shown at least.
const KEEP_BREAKS: Duration = Duration::from_secs(60);
/// A raise beyond this would leave too few numbers.
const HIGHEST_RAISE: i64 = i64::MAX / 2;

#[async_trait]
impl LockDriver for SqliteDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn acquire(&self, claim: &Arc<Claim>, patience: Patience) -> Result<Acquisition, Error> {
        loop {
            match self.inner.acquire(claim, patience).await {
                Err(error) if wants_tokens(&error) => self.inner.reserve_tokens().await?,
                // It may have another limit by now, or none.
                Err(error) if refusal(&error) == Some("limit") => self.inner.limit(claim).await?,
                other => return other,
            }
        }
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let seat = self.inner.hub.sit(claim.id);
        let _watched = super::poller::watch(&self.inner, &claim.key);
        loop {
            if let Some(grant) = self.inner.look(claim).await? {
                return Ok(grant);
            }
            seat.woken().await;
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>, Error> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        let released = self.inner.release(claim).await?;
        self.inner.sweep_in_passing().await;
        Ok(released)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.inner.amend("shorten", claim, nanos(ttl)).await.map(|renewal| match renewal {
            Renewal::Holds(grant) => Renewal::Holds(Grant { ttl, ..grant }),
            other => other,
        })
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.inner.amend("downgrade", claim, 0).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.inner.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.list(request).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        if token.as_i64() > HIGHEST_RAISE {
            return Err(Error::config(
                "a token beyond half of the range cannot be raised to: it would leave too few",
            ));
        }
        self.inner.amend("raise", claim, token.as_i64()).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        self.inner.resize(key, limit).await
    }

    async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let base = self
            .inner
            .reader
            .row(&*self.inner.clock, |_| {
                sqlx::query("SELECT base FROM lockkit_bases WHERE namespace = ?1")
                    .bind(namespace.as_str())
            })
            .await?;
        match base {
            Some(row) => Ok(row.try_get::<i64, _>(0).map_err(explain)?.max(0) as u64),
            None => Ok(0),
        }
    }

    async fn raise_token_base(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let base = i64::try_from(base)
            .ok()
            .filter(|base| *base <= HIGHEST_RAISE)
            .ok_or_else(|| Error::config("this token base would leave too few tokens"))?;
        self.inner
            .durable
            .row(&*self.inner.clock, |_| {
                sqlx::query(include_str!("sql/raise_base.sql")).bind(namespace.as_str()).bind(base)
            })
            .await
            .map(drop)
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl Inner {
    /// The connection for what concerns this claim. One that outlives its process outlives a power
    /// failure as well.
    fn link(&self, claim: &Claim) -> &Link {
        match claim.lifetime {
            Lifetime::Detached => &self.durable,
            _ => &self.fast,
        }
    }

    async fn acquire(&self, claim: &Claim, patience: Patience) -> Result<Acquisition, Error> {
        let identity = to_json(&*claim.identity);
        let link = self.link(claim);
        let filled = |statement: Statement<'static>, now: i64| -> Statement<'static> {
            statement
                .bind(claim.id.as_bytes().to_vec())
                .bind(claim.key.namespace.as_str().to_owned())
                .bind(space_number(claim.key.space))
                .bind(claim.key.name.as_str().to_owned())
                .bind(i64::from(claim.mode.weight()))
                .bind(i64::from(claim.mode.capacity()))
                .bind(nanos(claim.hold_ttl))
                .bind(nanos(claim.wait_ttl))
                .bind(identity.clone())
                .bind(claim.note.as_deref().map(str::to_owned))
                .bind(i64::from(patience == Patience::Try))
                .bind(now)
                .bind(self.epoch)
        };
        if !self.is_crowded(&claim.key) {
            let swift = |now| filled(sqlx::query(include_str!("sql/swift_acquire.sql")), now);
            let done = link.change(&*self.clock, swift).await?;
            if done.rows_affected() == 1 {
                let ttl = nanos(claim.hold_ttl);
                return Ok(Acquisition::Granted(grant(done.last_insert_rowid(), ttl)));
            }
        }
        let full = concat!(
            "INSERT INTO lockkit_acquire VALUES ",
            "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13); ",
            include_str!("sql/answer.sql")
        );
        let row = link.row(&*self.clock, |now| filled(sqlx::query(full), now)).await?;
        let row = answered(row)?;
        self.wake_promoted(&row)?;
        let answer = Answer::read(&row)?;
        let standing = answer.standing();
        let free = matches!(standing, Some(Renewal::Holds(_))) && claim.mode == Mode::Exclusive;
        self.set_crowded(&claim.key, !free);
        Ok(match standing {
            Some(Renewal::Waits { ahead }) => Acquisition::Queued { ahead },
            Some(Renewal::Holds(grant)) => Acquisition::Granted(grant),
            Some(Renewal::Ended(_)) | None => Acquisition::Busy,
        })
    }

    /// Fails when the semaphore has another limit than this claim.
    async fn limit(&self, claim: &Claim) -> Result<(), Error> {
        let row = self
            .reader
            .row(&*self.clock, |now| {
                sqlx::query(include_str!("sql/limit.sql"))
                    .bind(claim.key.namespace.as_str())
                    .bind(claim.key.name.as_str())
                    .bind(now)
            })
            .await?;
        let limit: Option<u32> = answered(row)?.try_get(0).map_err(explain)?;
        let asked = claim.mode.capacity();
        match limit.filter(|limit| *limit != asked) {
            Some(in_use) => {
                let name = claim.key.name.as_str().to_owned();
                Err(Error::LimitMismatch { name, in_use, asked })
            }
            None => Ok(()),
        }
    }

    /// Whether a queued claim holds by now.
    async fn look(&self, claim: &Claim) -> Result<Option<Grant>, Error> {
        let row = self.read_claim(claim).await?;
        let standing: Option<(i64, Option<i64>, i64)> = match row.try_get(0).map_err(explain)? {
            Some(token) => {
                Some((token, row.try_get(1).map_err(explain)?, row.try_get(2).map_err(explain)?))
            }
            None => None,
        };
        match standing {
            Some((token, Some(_), hold_ttl)) => Ok(Some(grant(token, hold_ttl))),
            Some(_) => Ok(None),
            None => {
                let record = break_record(row.try_get(3).map_err(explain)?);
                let reason = record.map_or(LossReason::Expired, LossReason::Broken);
                Err(Error::Lost { reason })
            }
        }
    }

    /// The row of `claim.sql`.
    async fn read_claim(&self, claim: &Claim) -> Result<SqliteRow, Error> {
        let row = self
            .reader
            .row(&*self.clock, |_| {
                sqlx::query(include_str!("sql/claim.sql"))
                    .bind(claim.id.as_bytes().as_slice())
                    .bind(claim.key.namespace.as_str())
                    .bind(space_number(claim.key.space))
                    .bind(claim.key.name.as_str())
            })
            .await?;
        answered(row)
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>, Error> {
        let batch: Vec<_> = claims
            .iter()
            .map(|c| {
                let space = space_number(c.key.space);
                let (namespace, name) = (c.key.namespace.as_str(), c.key.name.as_str());
                let (hold, wait) = (nanos(c.hold_ttl), nanos(c.wait_ttl));
                (c.id.to_hex(), hold, wait, namespace, space, name)
            })
            .collect();
        let batch = to_json(&batch);
        let durable = claims.iter().any(|c| c.lifetime == Lifetime::Detached);
        let link = if durable { &self.durable } else { &self.fast };
        let rows = link
            .rows(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_renew VALUES (?1, ?2, ?3); ",
                    include_str!("sql/renewed.sql")
                ))
                .bind(batch.as_str())
                .bind(now)
                .bind(self.epoch)
            })
            .await?;
        if rows.len() != claims.len() {
            let told = "SQLite answered for another number of claims than were asked for";
            return Err(Error::permanent(BACKEND, told));
        }
        if let Some(first) = rows.first() {
            self.wake_promoted(first)?;
        }
        rows.iter().map(renewal).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released, Error> {
        let link = self.link(claim);
        let filled = |statement: Statement<'static>, now: i64| -> Statement<'static> {
            statement
                .bind(claim.id.as_bytes().to_vec())
                .bind(claim.key.namespace.as_str().to_owned())
                .bind(space_number(claim.key.space))
                .bind(claim.key.name.as_str().to_owned())
                .bind(now)
                .bind(self.epoch)
        };
        if !self.is_crowded(&claim.key) {
            let swift = |now| filled(sqlx::query(include_str!("sql/swift_release.sql")), now);
            if link.change(&*self.clock, swift).await?.rows_affected() == 1 {
                return Ok(Released::Removed);
            }
        }
        let full = concat!(
            "INSERT INTO lockkit_release VALUES (?1, ?2, ?3, ?4, ?5, ?6); ",
            include_str!("sql/answer.sql")
        );
        let row = link.row(&*self.clock, |now| filled(sqlx::query(full), now)).await?;
        let row = answered(row)?;
        self.wake_promoted(&row)?;
        let answer = Answer::read(&row)?;
        self.set_crowded(&claim.key, answer.ahead == Some(1));
        Ok(match answer.outcome {
            Some(1) => Released::Removed,
            Some(_) => Released::NotInLine,
            None => Released::NoSuchLock,
        })
    }

    async fn amend(&self, what: &str, claim: &Claim, value: i64) -> Result<Renewal, Error> {
        // A raised token must not go back, so a raise waits for the disk.
        let link = match what {
            "raise" => &self.durable,
            _ => self.link(claim),
        };
        let row = link
            .row(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_amend VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8); ",
                    include_str!("sql/answer.sql")
                ))
                .bind(what)
                .bind(claim.id.as_bytes().as_slice())
                .bind(claim.key.namespace.as_str())
                .bind(space_number(claim.key.space))
                .bind(claim.key.name.as_str())
                .bind(value)
                .bind(now)
                .bind(self.epoch)
            })
            .await?;
        let row = answered(row)?;
        self.wake_promoted(&row)?;
        let answer = Answer::read(&row)?;
        match answer.standing() {
            Some(standing) if answer.outcome == Some(1) => Ok(standing),
            _ => {
                let row = self.read_claim(claim).await?;
                let record = break_record(row.try_get(3).map_err(explain)?);
                Ok(Renewal::Ended(ended(record)))
            }
        }
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (always, limit) = match limit {
            SetLimit::IfUnset(limit) => (0, limit),
            SetLimit::To(limit) => (1, limit),
        };
        let row = self
            .durable
            .row(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_resize VALUES (?1, ?2, ?3, ?4, ?5, ?6); ",
                    include_str!("sql/answer.sql")
                ))
                .bind(key.namespace.as_str())
                .bind(key.name.as_str())
                .bind(always)
                .bind(i64::from(limit))
                .bind(now)
                .bind(self.epoch)
            })
            .await?;
        let row = answered(row)?;
        self.wake_promoted(&row)?;
        let limit = Answer::read(&row)?.token.and_then(|limit| limit.try_into().ok());
        limit.ok_or_else(|| Error::permanent(BACKEND, "SQLite did not say which limit there is"))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let record = to_json(record);
        let row = self
            .durable
            .row(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_break VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9); ",
                    include_str!("sql/answer.sql")
                ))
                .bind(key.namespace.as_str())
                .bind(space_number(key.space))
                .bind(key.name.as_str())
                .bind(token.as_i64())
                .bind(i64::from(force == Force::Immediate))
                .bind(record.as_str())
                .bind(nanos(KEEP_BREAKS))
                .bind(now)
                .bind(self.epoch)
            })
            .await?;
        let row = answered(row)?;
        self.wake_promoted(&row)?;
        Ok(Answer::read(&row)?.outcome.is_some())
    }
}

/// The columns of `answer.sql`.
struct Answer {
    outcome: Option<i64>,
    token: Option<i64>,
    held: Option<i64>,
    ahead: Option<i64>,
    ttl: Option<i64>,
}

impl Answer {
    fn read(row: &SqliteRow) -> Result<Self, Error> {
        let column = |index: usize| row.try_get::<Option<i64>, _>(index).map_err(explain);
        Ok(Self {
            outcome: column(0)?,
            token: column(1)?,
            held: column(2)?,
            ahead: column(3)?,
            ttl: column(4)?,
        })
    }

    /// How the claim stands; `None` when it is not in line.
    fn standing(&self) -> Option<Renewal> {
        self.outcome?;
        let token = self.token?;
        Some(match self.held {
            Some(_) => Renewal::Holds(grant(token, self.ttl.unwrap_or(0))),
            None => Renewal::Waits { ahead: count(self.ahead) },
        })
    }
}

/// A grant counts from the last request that core sent: `settle.sql` says why that is safe.
fn grant(token: i64, hold_ttl: i64) -> Grant {
    Grant { token: token_of(token), ttl: duration(hold_ttl), since: None }
}

fn count(number: Option<i64>) -> u32 {
    u32::try_from(number.unwrap_or(0)).unwrap_or(u32::MAX)
}

fn ended(record: Option<BreakRecord>) -> Ended {
    record.map_or(Ended::NotInLine, Ended::Broken)
}

/// One row of `renewed.sql`.
fn renewal(row: &SqliteRow) -> Result<Renewal, Error> {
    let column = |name: &str| row.try_get::<Option<i64>, _>(name).map_err(explain);
    let broken = column("broken")?.unwrap_or(0) != 0;
    let Some(token) = column("token")?.filter(|_| !broken) else {
        let record: Option<String> = row.try_get("record").map_err(explain)?;
        return Ok(Renewal::Ended(ended(break_record(record))));
    };
    Ok(match column("held")? {
        Some(_) => Renewal::Holds(grant(token, column("hold_ttl")?.unwrap_or(0))),
        None => Renewal::Waits { ahead: count(column("ahead")?) },
    })
}

/// A statement that always gives a row gave it.
pub(super) fn answered(row: Option<SqliteRow>) -> Result<SqliteRow, Error> {
    row.ok_or_else(|| Error::permanent(BACKEND, "SQLite gave no answer to a statement"))
}

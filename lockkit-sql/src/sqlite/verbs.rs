//! The lock: every verb of [`LockDriver`] as a job of one transaction. The rule is core's; here are
//! steps in and answers out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquisition, Answered, Ended, Force, Grant, LockDriver, Patience, Registers, Released, Renewal,
    SetLimit,
};
use lockkit_core::line::{Answer, Broke, Step};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, LossReason, Namespace, Space, Token,
};
use rusqlite::params;

use super::claims::place_of;
use super::flight::Flight;
use super::worker::Failure;
use super::{BACKEND, CAPABILITIES, Inner, SqliteDriver};
use crate::rows::{break_record, duration, to_json, token_of};

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
        self.inner.site.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Answered<Acquisition>, Error> {
        let (durable, claim) = (outlives(claim), claim.clone());
        let acquire = move |flight: &mut Flight<'_>| acquire(flight, &claim, patience);
        self.inner.writer.call(durable, acquire).await.map(Answered::from)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let seat = self.inner.site.hub.sit(claim.id);
        let _watched = super::poller::watch(&self.inner, &claim.key);
        loop {
            if let Some(grant) = self.inner.look(claim).await? {
                return Ok(grant);
            }
            seat.woken().await;
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let durable = claims.iter().any(|claim| outlives(claim));
        let claims = claims.to_vec();
        let renew = move |flight: &mut Flight<'_>| renew(flight, &claims).map(Ok);
        let renewals = self.inner.writer.call(durable, renew).await?;
        Ok(renewals.into_iter().map(Ok).collect())
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        let (durable, claim) = (outlives(claim), claim.clone());
        let release = move |flight: &mut Flight<'_>| match flight.step(
            &claim.key,
            &Step::Release(&claim),
            Some(&claim),
        )? {
            Answer::Released(released) => Ok(Ok(released)),
            other => Ok(Err(unexpected(&other))),
        };
        let released = self.inner.writer.call(durable, release).await?;
        self.inner.sweep_in_passing().await;
        Ok(released)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let (durable, claim) = (outlives(claim), claim.clone());
        let shorten = move |flight: &mut Flight<'_>| {
            amend(flight, &claim, &Step::Shorten(&claim, ttl)).map(Ok)
        };
        self.inner.writer.call(durable, shorten).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let (durable, claim) = (outlives(claim), claim.clone());
        let downgrade =
            move |flight: &mut Flight<'_>| amend(flight, &claim, &Step::Downgrade(&claim)).map(Ok);
        self.inner.writer.call(durable, downgrade).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (key, record) = (key.clone(), to_json(record));
        let break_it = move |flight: &mut Flight<'_>| match flight.step(
            &key,
            &Step::Break(token, force),
            None,
        )? {
            Answer::Broke(broke) => {
                broke.iter().try_for_each(|one| keep_record(flight, &key, one, &record))?;
                Ok(Ok(!broke.is_empty()))
            }
            other => Ok(Err(unexpected(&other))),
        };
        self.inner.writer.call(true, break_it).await
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
        let claim = claim.clone();
        let raise = move |flight: &mut Flight<'_>| {
            amend(flight, &claim, &Step::Raise(&claim, token)).map(Ok)
        };
        // A raised token must not go back, so this waits for the disk.
        self.inner.writer.call(true, raise).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let key = key.clone();
        self.inner.writer.call(true, move |flight| resize(flight, &key, limit)).await
    }

    async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let namespace = namespace.clone();
        let base = move |flight: &mut Flight<'_>| {
            let text = "SELECT base FROM lockkit_bases WHERE namespace = ?1";
            let base: Option<i64> = flight.any(text, [namespace.as_str()], |row| row.get(0))?;
            Ok(Ok(base.unwrap_or(0).max(0).unsigned_abs()))
        };
        self.inner.reader.call(false, base).await
    }

    async fn raise_token_base(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let base = i64::try_from(base)
            .ok()
            .filter(|base| *base <= HIGHEST_RAISE)
            .ok_or_else(|| Error::config("this token base would leave too few tokens"))?;
        let namespace = namespace.clone();
        let raise = move |flight: &mut Flight<'_>| {
            let text = "INSERT INTO lockkit_bases (namespace, base) VALUES (?1, ?2)
                ON CONFLICT (namespace) DO UPDATE SET base = max(base, excluded.base)";
            flight.run(text, params![namespace.as_str(), base])?;
            Ok(Ok(()))
        };
        self.inner.writer.call(true, raise).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl Inner {
    /// Whether a queued claim holds by now.
    async fn look(&self, claim: &Arc<Claim>) -> Result<Option<Grant>, Error> {
        let claim = claim.clone();
        let look = move |flight: &mut Flight<'_>| {
            let list = place_of(&claim.key);
            let found: Option<(i64, Option<i64>, i64)> = flight.any(
                include_str!("sql/claim.sql"),
                params![claim.id.as_bytes(), list.0, list.1, list.2],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )?;
            Ok(match found {
                Some((token, Some(_), ttl)) => Ok(Some(Grant {
                    token: token_of(token),
                    ttl: duration(ttl),
                    // Its lease began with a request that was answered, or later.
                    since: None,
                })),
                Some(_) => Ok(None),
                None => Err(lost(flight, &claim.id)?),
            })
        };
        self.reader.call(false, look).await
    }
}

/// Whether what concerns a claim waits for the disk: one that outlives its process outlives a power
/// failure as well.
fn outlives(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Detached
}

fn acquire(
    flight: &mut Flight<'_>,
    claim: &Claim,
    patience: Patience,
) -> Result<Result<Acquisition, Error>, Failure> {
    let given = flight.given(&claim.key)?;
    let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
    if weight == 0 || (weight > capacity && given.is_none()) {
        let message = format!("{weight} permits of {capacity}: ask for 1 to {capacity}");
        return Ok(Err(Error::config(message)));
    }
    let step = Step::Acquire { claim, with: (), patience, given };
    Ok(match flight.step(&claim.key, &step, Some(claim))? {
        Answer::Holds(grant) => Ok(Acquisition::Granted(grant)),
        Answer::Waits(place) => Ok(Acquisition::Queued { ahead: flight.ahead(&claim.key, place)? }),
        Answer::Busy => Ok(Acquisition::Busy),
        Answer::OtherLimit(in_use) => {
            let name = claim.key.name.as_str().to_owned();
            Err(Error::LimitMismatch { name, in_use, asked: capacity })
        }
        Answer::Broken => Err(lost(flight, &claim.id)?),
        other => Err(unexpected(&other)),
    })
}

fn renew(flight: &mut Flight<'_>, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>, Failure> {
    let mut answers = Vec::with_capacity(claims.len());
    for claim in claims {
        answers.push(flight.step(&claim.key, &Step::Renew(claim), Some(claim))?);
    }
    // The places of a list are read once, however many of its claims wait.
    let mut lists: HashMap<&Key, Vec<u64>> = HashMap::new();
    let renewals = claims.iter().zip(answers).map(|(claim, answer)| {
        if let Answer::Waits(place) = answer {
            let places = match lists.get(&claim.key) {
                Some(places) => places,
                None => lists.entry(&claim.key).or_insert(flight.live_places(&claim.key)?),
            };
            let ahead = places.partition_point(|other| *other < place);
            return Ok(Renewal::Waits { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
        renewal(flight, claim, answer)
    });
    renewals.collect()
}

fn amend(flight: &mut Flight<'_>, claim: &Claim, step: &Step<'_>) -> Result<Renewal, Failure> {
    let answer = flight.step(&claim.key, step, Some(claim))?;
    match answer {
        Answer::Waits(place) => Ok(Renewal::Waits { ahead: flight.ahead(&claim.key, place)? }),
        other => renewal(flight, claim, other),
    }
}

/// Of a claim that does not wait.
fn renewal(flight: &Flight<'_>, claim: &Claim, answer: Answer) -> Result<Renewal, Failure> {
    Ok(match answer {
        Answer::Holds(grant) => Renewal::Holds(grant),
        _ => Renewal::Ended(record(flight, &claim.id)?.map_or(Ended::NotInLine, Ended::Broken)),
    })
}

fn resize(
    flight: &mut Flight<'_>,
    key: &Key,
    limit: SetLimit,
) -> Result<Result<u32, Error>, Failure> {
    let given = flight.given(key)?;
    let limit = match flight.step(key, &Step::Resize { limit, given }, None)? {
        Answer::Limit(limit) => limit,
        other => return Ok(Err(unexpected(&other))),
    };
    if given != Some(limit) {
        flight.run(
            "INSERT INTO lockkit_limits (namespace, name, capacity) VALUES (?1, ?2, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET capacity = excluded.capacity",
            params![key.namespace.as_str(), key.name.as_str(), limit],
        )?;
        // The claims are shown with it.
        flight.run(
            "UPDATE lockkit_claims SET capacity = ?3
             WHERE namespace = ?1 AND space = 1 AND name = ?2 AND capacity <> ?3",
            params![key.namespace.as_str(), key.name.as_str(), limit],
        )?;
    }
    Ok(Ok(limit))
}

/// Remembers how a claim was broken.
fn keep_record(flight: &Flight<'_>, key: &Key, broke: &Broke, record: &str) -> Result<(), Failure> {
    let list = place_of(key);
    let until = broke.until.after(KEEP_BREAKS).as_nanos() as i64;
    flight.run(
        "INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![list.0, list.1, list.2, broke.id.as_bytes(), record, until],
    )?;
    Ok(())
}

/// How a claim was broken, if it was.
fn record(flight: &Flight<'_>, id: &ClaimId) -> Result<Option<BreakRecord>, Failure> {
    let text = "SELECT record FROM lockkit_breaks WHERE id = ?1 ORDER BY n DESC LIMIT 1";
    let json: Option<String> = flight.any(text, [id.as_bytes()], |row| row.get(0))?;
    Ok(break_record(json))
}

fn lost(flight: &Flight<'_>, id: &ClaimId) -> Result<Error, Failure> {
    let reason = record(flight, id)?.map_or(LossReason::Expired, LossReason::Broken);
    Ok(Error::Lost { reason })
}

fn unexpected(answer: &Answer) -> Error {
    Error::permanent(BACKEND, format!("{answer:?} is no answer to this step"))
}

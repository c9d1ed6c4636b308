//! The lock: every verb of [`LockDriver`] as one transaction. The rule is core's; here are steps in
//! and answers out.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquisition, Anchored, BreakMode, ClaimEnd, ClaimId, Grant, LockDriver, Registers, Renewal,
    Replies, Reply, SetLimit, Step,
};
use lockkit_core::line::Answer;
use lockkit_core::state::{Health, ListRequest, Listed, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, LossReason, Namespace, Space, Token,
};
use rusqlite::params;

use super::flight::{Flight, Verb, Wait, unsigned};
use super::worker::Failure;
use super::{BACKEND, CAPABILITIES, Shared, SqliteDriver};
use crate::rows::{break_record, check_raise, columns, to_json};
use crate::wake::Fate;

/// For how long the record of a break is shown at least.
const KEEP_BREAKS: Duration = Duration::from_secs(60);

#[async_trait]
impl LockDriver for SqliteDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.site.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        let claims = &self.shared.wakes.claims;
        claims.departs(steps);
        let durable = steps.iter().any(|step| outlives(step.claim()));
        let carried = steps.to_vec();
        let carry = move |flight: &mut Flight<'_>| -> Result<Vec<_>, Failure> {
            carried.iter().map(|step| reply(flight, step)).collect()
        };
        let answers = self.shared.writer.call(durable, carry).await?;
        let each = steps.iter().zip(answers).map(|(step, answer)| {
            let (reply, lease) =
                answer.map_or_else(|e| (Err(e), None), |(r, lease)| (Ok(r), lease));
            claims.answered(&step.claim().id, reply.as_ref(), lease);
            reply.map(Into::into)
        });
        Ok(each.collect())
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.shared.wakes.granted(&self.shared, claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let told = self.shared.amend(claims, false, |claim| Verb::Renew(claim)).await?;
        Ok(self.shared.wakes.renewed(claims, told))
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.shared.amend_one(claim, false, move |claim| Verb::Shorten(claim, ttl)).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.shared.amend_one(claim, false, |claim| Verb::Downgrade(claim)).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        check_raise(token.get())?;
        // A raised token must not go back, so this waits for the disk.
        self.shared.amend_one(claim, true, move |claim| Verb::Raise(claim, token)).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (key, record) = (key.clone(), to_json(record));
        let break_it = move |flight: &mut Flight<'_>| {
            let (answer, _) = flight.step(&key, &Verb::Break(token, force))?;
            let Answer::Broke(broke) = answer else {
                return Err(unexpected(&answer));
            };
            let (namespace, space, name) = columns(&key);
            for one in &broke {
                let until = one.until.after(KEEP_BREAKS).as_nanos() as i64;
                flight.run(
                    "INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![namespace, space, name, one.id.as_bytes(), record, until],
                )?;
            }
            Ok(!broke.is_empty())
        };
        self.shared.writer.call(true, break_it).await
    }

    async fn anchor(&self, _: &Arc<Claim>) -> Result<Anchored, Error> {
        // A fence asks the file itself: here a transaction of the program may have it locked.
        Ok(Anchored::At(self.path().as_os_str().as_encoded_bytes().to_vec()))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let key = key.clone();
        self.shared.writer.call(true, move |flight| resize(flight, &key, limit)).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let key = key.clone();
        self.shared.reader.call(false, move |flight| Ok(flight.inspect(&key)?)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let request = request.clone();
        self.shared.reader.call(false, move |flight| flight.list(&request)).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        let after = after.cloned();
        self.shared.reader.call(false, move |flight| flight.namespaces(after.as_ref(), limit)).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let (of, namespace) = (namespace.clone(), namespace.clone());
        let base = move |flight: &mut Flight<'_>| {
            let text = "SELECT base FROM lockkit_bases WHERE namespace = ?1";
            let base = flight.any(text, [namespace.as_str()], |row| row.get(0).map(unsigned))?;
            Ok(base.unwrap_or(0))
        };
        let seen = self.shared.reader.call(false, base).await?;
        self.shared.bases.saw(BACKEND, &of, seen)
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        check_raise(base)?;
        let namespace = namespace.clone();
        let raise = move |flight: &mut Flight<'_>| {
            let text = "INSERT INTO lockkit_bases (namespace, base) VALUES (?1, ?2)
                ON CONFLICT (namespace) DO UPDATE SET base = max(base, excluded.base)";
            Ok(flight.run(text, params![namespace.as_str(), base as i64])?)
        };
        self.shared.writer.call(true, raise).await
    }

    async fn health(&self) -> Result<Health, Error> {
        let epoch = self.shared.site.epoch;
        self.shared.reader.call(false, move |flight| flight.health(epoch)).await
    }

    async fn close(&self) {
        self.shared.wakes.claims.close();
        self.shared.writer.close().await;
        self.shared.reader.close().await;
    }
}

impl Shared {
    /// Does a step to each of these claims.
    pub(super) async fn amend(
        &self,
        claims: &[Arc<Claim>],
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Verb<'a> + Send + 'static,
    ) -> Result<Vec<Fate>, Error> {
        let durable = durable || claims.iter().any(|claim| outlives(claim));
        let claims = claims.to_vec();
        let amend = move |flight: &mut Flight<'_>| {
            let amend = |claim: &Arc<Claim>| {
                let (answer, Wait { ahead, lease }) = flight.step(&claim.key, &step(claim))?;
                let renewal = match answer {
                    Answer::Holds(grant) => Renewal::Holds(grant),
                    Answer::Waits(_) => Renewal::Waits { ahead },
                    _ => match broken(flight, &claim.id)? {
                        Some(record) => Renewal::Ended(ClaimEnd::Broken(record)),
                        None => Renewal::Ended(ClaimEnd::NotFound),
                    },
                };
                Ok((renewal, lease))
            };
            claims.iter().map(amend).collect()
        };
        self.writer.call(durable, amend).await
    }

    async fn amend_one(
        &self,
        claim: &Arc<Claim>,
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Verb<'a> + Send + 'static,
    ) -> Result<Renewal, Error> {
        let told = self.amend(from_ref(claim), durable, step).await?.into_iter().next();
        Ok(told.map_or(Renewal::Ended(ClaimEnd::NotFound), |(renewal, _)| renewal))
    }
}

/// Whether what concerns a claim waits for the disk: one that outlives its process outlives a power
/// failure as well.
fn outlives(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Detached
}

/// The reply to a step, with a lease as in [`Fate`].
type Replied = Result<(Reply, Option<Duration>), Error>;

fn reply(flight: &mut Flight<'_>, step: &Step) -> Result<Replied, Failure> {
    let claim = step.claim();
    let (answer, Wait { ahead, lease }) = match step {
        Step::Acquire { patience, .. } => {
            let given = flight.given(&claim.key)?;
            let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
            if weight == 0 || (weight > capacity && given.is_none()) {
                let message = format!("{weight} permits of {capacity}: ask for 1 to {capacity}");
                return Ok(Err(Error::config(message)));
            }
            let note = claim.note.as_deref().map(str::to_owned);
            let with = Arc::new((to_json(&*claim.identity), note));
            let acquire = Verb::Acquire { claim, with, patience: *patience, given };
            flight.step(&claim.key, &acquire)?
        }
        _ => flight.step(&claim.key, &Verb::Release(claim))?,
    };
    let reply = match answer {
        Answer::Released(released) => Reply::Released(released),
        Answer::Holds(grant) => Reply::Acquired(Acquisition::Granted(grant)),
        Answer::Waits(_) => Reply::Acquired(Acquisition::Queued { ahead }),
        Answer::Busy => Reply::Acquired(Acquisition::Busy),
        Answer::OtherLimit(in_use) => return Ok(Err(claim.other_limit(in_use))),
        Answer::Broken => {
            let reason = broken(flight, &claim.id)?.map_or(LossReason::Expired, LossReason::Broken);
            return Ok(Err(Error::Lost { reason }));
        }
        other => return Err(unexpected(&other)),
    };
    Ok(Ok((reply, lease)))
}

fn resize(flight: &mut Flight<'_>, key: &Key, limit: SetLimit) -> Result<u32, Failure> {
    let given = flight.given(key)?;
    let limit = match flight.step(key, &Verb::Resize { limit, given })? {
        (Answer::Limit(limit), _) => limit,
        (other, _) => return Err(unexpected(&other)),
    };
    if given != Some(limit) {
        let values = params![key.namespace.as_str(), key.name.as_str(), limit];
        flight.run(
            "INSERT INTO lockkit_limits (namespace, name, capacity) VALUES (?1, ?2, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET capacity = excluded.capacity",
            values,
        )?;
        // The claims are shown with it, also by programs that do not look at limits.
        flight.run(
            "UPDATE lockkit_claims SET capacity = ?3
             WHERE namespace = ?1 AND space = 1 AND name = ?2 AND capacity <> ?3",
            values,
        )?;
        flight.forget_list(key);
    }
    Ok(limit)
}

/// How a claim was broken, if it was.
fn broken(flight: &Flight<'_>, id: &ClaimId) -> rusqlite::Result<Option<BreakRecord>> {
    let text = "SELECT record FROM lockkit_breaks WHERE id = ?1 ORDER BY n DESC LIMIT 1";
    flight.any(text, [id.as_bytes()], |row| row.get(0)).map(break_record)
}

fn unexpected(answer: &Answer) -> Failure {
    Error::permanent(BACKEND, format!("{answer:?} is no answer to this step")).into()
}

//! Flights: the releases of many claims in one call of a script, their acquires in another, both sent
//! before either is answered. In calls of their own, since a server whose memory is full refuses a
//! script unless it has begun to write: acquires must not get in behind releases.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use lockkit_core::driver::{Acquisition, Flights, Patience, Released, Replies, Reply, Step};
use lockkit_core::{Claim, Error};
use redis::Value;

use crate::driver::Shared;
use crate::link::Link;
use crate::{keys, reply, script};

/// What one call carries. The server does nothing else meanwhile: 0.1 ms for claims that are alone in
/// their lists, some 2 ms when all of them are in lists where others wait.
pub(crate) const FLIGHTS: Flights = {
    let mut flights = Flights::of(32, 8);
    flights.same_key = true;
    flights
};

type Asked<'a> = (&'a Arc<Claim>, Patience);

impl Shared {
    pub(crate) async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        self.wakes.claims.departs(steps);
        if matches!(self.link, Link::Cluster(_)) && steps.len() > 1 {
            // The keys of a call have to be in one slot, and no claim waits for another's node.
            let alone = steps.iter().map(|step| self.carry_all(std::slice::from_ref(step)));
            let replies = join_all(alone).await.into_iter().map(|replies| replies?.remove(0));
            return Ok(replies.collect());
        }
        self.carry_all(steps).await
    }

    async fn carry_all(&self, steps: &[Step]) -> Result<Replies, Error> {
        let (mut releases, mut acquires) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Release { claim } => releases.push(claim),
                Step::Acquire { claim, patience } => acquires.push((claim, *patience)),
            }
        }
        match (releases.is_empty(), acquires.is_empty()) {
            (true, true) => return Ok(Vec::new()),
            (false, true) => return self.release(&releases).await,
            (true, false) => return self.acquire(&acquires).await,
            (false, false) => {}
        }
        let both = Box::pin(join(self.release(&releases), self.acquire(&acquires)));
        let (released, acquired) = both.await;
        let mut replies = each(released, releases.len())?;
        replies.extend(each(acquired, acquires.len())?);
        Ok(replies)
    }

    pub(crate) async fn release(&self, claims: &[&Arc<Claim>]) -> Result<Replies, Error> {
        let (mut locks, mut ids) = (Vec::new(), Vec::new());
        for claim in claims {
            locks.push(keys::lock(&claim.key).0);
            ids.push(claim.id.to_hex());
        }
        let sent = self.run_counting(&script::RELEASE, &locks, &ids, None).await?;
        reply::to_each(sent, claims.len(), |_, answer| match answer {
            Value::Int(1) => Ok(Reply::Released(Released::Removed)),
            Value::Int(2) => Ok(Reply::Released(Released::NotFound)),
            Value::Int(3) => Ok(Reply::Released(Released::NoSuchLock)),
            other => Err(reply::unexpected(other)),
        })
    }

    async fn acquire(&self, asked: &[Asked<'_>]) -> Result<Replies, Error> {
        let (mut locks, mut args, mut hows) = (Vec::new(), Vec::new(), Vec::new());
        let mut buckets = Vec::with_capacity(asked.len());
        let client = self.wakes.voice.mark();
        for (claim, patience) in asked {
            let (lock, bucket) = keys::lock(&claim.key);
            buckets.push(bucket);
            locks.extend([lock, keys::counter(bucket)]);
            args.push(keys::claim(claim, &client));
            args.push(keys::millis(claim.hold_ttl).to_string());
            args.push(keys::token(self.tokens.least(bucket)));
            hows.push(keys::how(claim, *patience));
        }
        if hows.iter().any(|how| !how.is_empty()) {
            args.append(&mut hows);
        }
        let sent = self.run_counting(&script::ACQUIRE, &locks, &args, None).await;
        let sent = sent.map_err(|error| self.writes.judge(error))?;
        let mut replies = reply::to_each(sent, asked.len(), |i, answer| {
            let (claim, _) = asked[i];
            let mut lease = None;
            let reply = reply::acquisition(claim, answer).map(|(acquired, ends)| {
                lease = ends;
                Reply::Acquired(acquired)
            });
            self.wakes.claims.answered(&claim.id, reply.as_ref(), lease);
            if let Ok(Reply::Acquired(Acquisition::Granted(grant))) = &reply {
                self.tokens.saw(buckets[i], grant.token.get());
            }
            reply
        })?;
        for reply in &mut replies {
            match reply.as_ref().map(|reply| reply.result) {
                Ok(Reply::Acquired(Acquisition::Granted(_) | Acquisition::Queued { .. })) => {
                    self.writes.done();
                }
                Ok(_) => {}
                Err(error) => *reply = Err(self.writes.judge(error.clone())),
            }
        }
        if self.replicas.is_some() {
            Box::pin(self.confirm_grants(asked, &mut replies)).await;
        }
        Ok(replies)
    }

    async fn confirm_grants(&self, asked: &[Asked<'_>], replies: &mut Replies) {
        let (claims, grants): (Vec<_>, Vec<_>) = asked
            .iter()
            .zip(replies)
            .filter(|(_, reply)| {
                let answer = reply.as_ref().map(|reply| reply.result);
                matches!(answer, Ok(Reply::Acquired(Acquisition::Granted(_))))
            })
            .map(|((claim, _), reply)| (*claim, reply))
            .unzip();
        for (reply, confirmed) in grants.into_iter().zip(self.confirm(&claims).await) {
            if let Err(error) = confirmed {
                *reply = Err(error);
            }
        }
    }
}

/// What failed for all, when it is known what became of others, as the answer to each. For good only
/// as a whole: it may be that one of them is what the server does not take.
fn each(replies: Result<Replies, Error>, count: usize) -> Result<Replies, Error> {
    match replies {
        Err(error) if error.is_retryable() => Ok((0..count).map(|_| Err(error.clone())).collect()),
        replies => replies,
    }
}

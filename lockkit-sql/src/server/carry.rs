//! Flights: acquires and releases that travel together, in one statement of the database.
//!
//! A flight never waits for somebody else's transaction, since it would do so with other lists in its
//! hands. A step whose list is locked by another is left out of it, and goes by itself: it waits with
//! nothing in hand, and the rest of what was left out goes together again behind it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{
    Acquisition, Answered, Ended, Patience, Released, Renewal, Replies, Reply, Step, backoff,
};
use lockkit_core::{Claim, Error};
use tokio::time::Instant;

use super::Shared;
use super::call::{Answer, is_held_up, is_read_only};
use super::dialect::{Arg, Cell, Dialect, Row, Verb};
use super::verbs::{count, grant, key, ring, unexpected};
use crate::rows::{columns, from_micros, micros, space_number, to_json};

/// A step that was left out and waits in vain holds up the others no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// The outcome of a step that was left out.
const LEFT_OUT: i64 = 9;

/// The row of a step, and how many attempts before it got no answer.
type Told = Result<(Row, u32), Error>;

impl<D: Dialect> Shared<D> {
    pub(super) async fn take_off(self: &Arc<Self>, steps: &[Step]) -> Result<Replies, Error> {
        self.wakes.claims.departs(steps);
        let told = match self.fly(steps).await {
            Err(error) if is_read_only(&error) => {
                join_all(steps.iter().map(|step| self.alone(step))).await
            }
            told => told?,
        };
        self.sweep_in_passing(steps.len() as u64);
        let each = steps.iter().zip(told);
        Ok(each.map(|(step, told)| self.answered(step, told)).collect())
    }

    /// What the steps are told, in their order.
    async fn fly(&self, steps: &[Step]) -> Result<Vec<Told>, Error> {
        let begun = Instant::now();
        let mut told: Vec<Option<Told>> = steps.iter().map(|_| None).collect();
        // In the order of their keys, those of one key as they came.
        let mut left: Vec<usize> = (0..steps.len()).collect();
        left.sort_by_key(|at| columns(&steps[*at].claim().key));
        let mut unanswered = 0;
        loop {
            if left.len() > 1 {
                let Answer { rows, unanswered: more } = match self.together(steps, &left).await {
                    // More than rows is locked, as by who reads a range to change it: each step finds
                    // out by itself whether it is concerned.
                    Err(error) if is_held_up(&error) => {
                        let alone = join_all(left.iter().map(|at| self.alone(&steps[*at]))).await;
                        for (at, alone) in left.iter().zip(alone) {
                            told[*at] = Some(alone.map(|(row, more)| (row, unanswered + more)));
                        }
                        break;
                    }
                    answer => answer?,
                };
                unanswered += more;
                for Row(mut cells) in rows {
                    let at = match cells.first() {
                        Some(Cell::Int(n)) => usize::try_from(*n).ok().and_then(|n| left.get(n)),
                        _ => None,
                    };
                    let at = at.ok_or_else(unexpected::<D>)?;
                    cells.remove(0);
                    if cells.first() != Some(&Cell::Int(LEFT_OUT)) {
                        told[*at] = Some(Ok((Row(cells), unanswered)));
                    }
                }
                left.retain(|at| told[*at].is_none());
            }
            let Some(first) = left.first().copied() else { break };
            let mut alone = self.alone(&steps[first]).await;
            // Who releases has nothing better to do than to ask again, and here nobody waits for it. A
            // pool of the user's may refuse at once.
            let mut failures = 0;
            while let ([Step::Release { .. }], Err(error)) = (steps, &alone)
                && is_held_up(error)
                && begun.elapsed() < self.timeout
            {
                failures += 1;
                tokio::time::sleep(backoff(failures)).await;
                alone = self.alone(&steps[first]).await;
            }
            let patience = if alone.is_ok() { self.timeout } else { PATIENCE };
            told[first] = Some(alone.map(|(row, more)| (row, unanswered + more)));
            left.remove(0);
            if begun.elapsed() >= patience {
                break;
            }
        }
        let held_up = || Error::retryable(D::BACKEND, "other transactions have locked its list");
        Ok(told.into_iter().map(|told| told.unwrap_or_else(|| Err(held_up()))).collect())
    }

    /// One statement for all of these.
    async fn together(&self, steps: &[Step], which: &[usize]) -> Result<Answer, Error> {
        let claims = || which.iter().map(|at| &**steps[*at].claim());
        let ints = |of: fn(&Claim) -> i64| Arg::Ints(claims().map(of).collect());
        let identities: Vec<_> = claims().map(|claim| to_json(&*claim.identity)).collect();
        let args = [
            Arg::Many(claims().map(|c| c.key.namespace.as_str().as_bytes()).collect()),
            ints(|c| space_number(c.key.space)),
            Arg::Many(claims().map(|c| c.key.name.as_str().as_bytes()).collect()),
            Arg::Many(claims().map(|c| c.id.as_bytes().as_slice()).collect()),
            Arg::Ints(which.iter().map(|at| what(&steps[*at])).collect()),
            ints(|c| c.mode.weight().into()),
            ints(|c| c.mode.capacity().into()),
            ints(|c| micros(c.hold_ttl)),
            ints(|c| micros(c.wait_ttl)),
            Arg::Many(identities.iter().map(String::as_bytes).collect()),
            Arg::Maybe(claims().map(|c| c.note.as_deref().map(str::as_bytes)).collect()),
            Arg::Bytes(&self.client),
        ];
        let answer = self.call(Verb::Carry, &args).await?;
        match answer.rows.len() == which.len() {
            true => Ok(answer),
            false => Err(unexpected::<D>()),
        }
    }

    /// A statement for this one, which waits for whoever has locked its list.
    async fn alone(&self, step: &Step) -> Told {
        let claim = step.claim();
        let [namespace, space, name] = key(&claim.key);
        let id = Arg::Bytes(claim.id.as_bytes());
        let answer = match step {
            Step::Release { .. } => {
                let asked = self.call(Verb::Release, &[namespace, space, name, id]).await;
                match asked {
                    Err(error) if is_read_only(&error) => return self.absent(claim, error).await,
                    answer => answer?,
                }
            }
            _ => {
                let identity = to_json(&*claim.identity);
                let note = claim.note.as_deref().map(str::as_bytes);
                let args = [
                    namespace,
                    space,
                    name,
                    id,
                    Arg::Int(claim.mode.weight().into()),
                    Arg::Int(claim.mode.capacity().into()),
                    Arg::Int(micros(claim.hold_ttl)),
                    Arg::Int(micros(claim.wait_ttl)),
                    Arg::Bytes(&self.client),
                    Arg::Bytes(identity.as_bytes()),
                    note.map_or(Arg::Null, Arg::Bytes),
                    Arg::Int(i64::from(what(step) == TRY)),
                ];
                self.call(Verb::Acquire, &args).await?
            }
        };
        Ok((answer.row::<D>()?.clone(), answer.unanswered))
    }

    /// A server that takes no writes cannot take a claim out, but says whether there is one.
    async fn absent(&self, claim: &Arc<Claim>, refusal: Error) -> Told {
        let answers = self.about(Verb::Look, std::slice::from_ref(claim)).await?;
        match answers.first() {
            Some((Renewal::Ended(Ended::NotInLine | Ended::Broken(_)), _)) => {
                Ok((Row(vec![Cell::Int(2), Cell::Null]), 0))
            }
            _ => Err(refusal),
        }
    }

    /// The answer of one step.
    fn answered(&self, step: &Step, told: Told) -> Result<Answered<Reply>, Error> {
        let (mut lease, mut unanswered) = (None, 0);
        let reply = told.and_then(|(row, attempts)| {
            // Whom it made holders stands last.
            ring(&row, row.0.len().saturating_sub(1));
            (lease, unanswered) = (row.int(4).map(from_micros), attempts);
            self.reply(step, &row)
        });
        self.wakes.claims.answered(&step.claim().id, reply.as_ref(), lease);
        reply.map(|reply| Answered::after(unanswered, reply))
    }

    fn reply(&self, step: &Step, row: &Row) -> Result<Reply, Error> {
        let Step::Acquire { claim, .. } = step else {
            return match row.int(0) {
                Some(1) => Ok(Reply::Released(Released::Removed)),
                Some(2) => Ok(Reply::Released(Released::NotInLine)),
                Some(3) => Ok(Reply::Released(Released::NoSuchLock)),
                _ => Err(unexpected::<D>()),
            };
        };
        match row.int(0) {
            Some(0) => Ok(Reply::Acquired(Acquisition::Busy)),
            Some(1) => Ok(Reply::Acquired(Acquisition::Granted(grant::<D>(row, 1)?))),
            Some(2) => Ok(Reply::Acquired(Acquisition::Queued { ahead: count(row.int(3)) })),
            Some(3) => Err(claim.other_limit(count(row.int(1)))),
            _ => Err(unexpected::<D>()),
        }
    }
}

const TRY: i64 = 2;

/// What a step is to the database: 0 a release, 1 an acquire that may wait, 2 a try.
fn what(step: &Step) -> i64 {
    match step {
        Step::Acquire { patience: Patience::Wait, .. } => 1,
        Step::Acquire { patience: Patience::Try, .. } => TRY,
        _ => 0,
    }
}

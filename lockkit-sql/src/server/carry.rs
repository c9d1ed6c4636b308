//! Flights: acquires and releases that travel together, in one statement of the database.
//!
//! A flight never waits for another client's transaction, since it would do so with other lists locked.
//! A step whose list is locked is left out of it, and core sends it again by itself. A single step may
//! wait for its row, for a second at a time and on half of the connections at most: the rows that
//! somebody has locked cost the others nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd, Patience, Released, Renewal, Replies, Reply, Step, backoff,
};
use lockkit_core::{Claim, Error};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::call::{Answer, held_up};
use super::dialect::{Arg, Cell, Dialect, Row, Verb};
use super::verbs::{count, grant, key, ring, unexpected};
use crate::rows::{columns, from_micros, micros, space_number, to_json};

/// For so long after a flight was held up as a whole, single steps are not sent as flights.
const HELD_UP: Duration = Duration::from_secs(1);
/// The outcome of a step that was left out.
const LEFT_OUT: i64 = 9;

/// The row of a step, and how many attempts before it got no answer. Its outcome may be [`LEFT_OUT`].
type Told = Result<(Row, u32), Error>;

impl<D: Dialect> Shared<D> {
    pub(super) async fn take_off(self: &Arc<Self>, steps: &[Step]) -> Result<Replies, Error> {
        self.wakes.claims.departs(steps);
        let told = match steps {
            [step] => vec![self.single(step).await],
            steps => match self.fly(steps).await {
                Err(error) if error.is_read_only() => {
                    join_all(steps.iter().map(|step| self.alone(step))).await
                }
                told => told?,
            },
        };
        self.sweep_in_passing(steps.len() as u64);
        let each = steps.iter().zip(told);
        Ok(each.map(|(step, told)| self.answered(step, told)).collect())
    }

    /// What the steps are told, in their order. Waits for no row.
    async fn fly(&self, steps: &[Step]) -> Result<Vec<Told>, Error> {
        // In the order of their keys, those of one key as they came.
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by_key(|at| columns(&steps[*at].claim().key));
        let Answer { rows, ambiguous } = match self.together(steps, &order).await {
            // More than rows is locked, as by who reads a range to change it: each step finds out by
            // itself whether it is concerned.
            Err(error) => {
                let ambiguous = held_up(&error).ok_or(error)?;
                *locked(&self.held_up) = Some(Instant::now());
                let left_out = || Ok((Row(vec![Cell::Int(LEFT_OUT)]), ambiguous));
                return Ok(steps.iter().map(|_| left_out()).collect());
            }
            Ok(answer) => answer,
        };
        let mut told: Vec<Option<Told>> = steps.iter().map(|_| None).collect();
        for Row(mut cells) in rows {
            let at = match cells.first() {
                Some(Cell::Int(n)) => usize::try_from(*n).ok().and_then(|n| order.get(n)),
                _ => None,
            };
            let at = at.ok_or_else(unexpected::<D>)?;
            cells.remove(0);
            told[*at] = Some(Ok((Row(cells), ambiguous)));
        }
        told.into_iter().map(|told| told.ok_or_else(unexpected::<D>)).collect()
    }

    /// One step, which may wait for its row: a release until the driver's time limit is over, an acquire
    /// for as long as the server lets a statement wait. It asks for no longer than that at a time, so
    /// that one whose caller gave up does not act later; in between others have their turns.
    async fn single(&self, step: &Step) -> Told {
        let until = Instant::now() + self.timeout;
        let is_release = matches!(step, Step::Release { .. });
        let mut failures = 0;
        loop {
            let turn = match self.may_wait.try_acquire() {
                Ok(turn) => turn,
                Err(_) => match self.without_waiting(step).await {
                    Some(told) => return told,
                    None => self.turn(until).await?,
                },
            };
            let told = self.alone(step).await;
            drop(turn);
            // Who releases has nothing better to do than to ask again.
            match &told {
                Err(error) if held_up(error).is_some() && is_release => {}
                _ => return told,
            }
            failures += 1;
            // A pool of the user's may refuse at once.
            let pause = backoff(failures);
            if Instant::now() + pause >= until {
                return told;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One of the connections on which steps may wait for rows.
    async fn turn(&self, until: Instant) -> Result<SemaphorePermit<'_>, Error> {
        match timeout_at(until, self.may_wait.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Error::retryable(D::BACKEND, "other transactions have locked many lists")),
        }
    }

    /// One step, where others wait for rows on all connections that may be used so. `None` where it would
    /// have to wait, too.
    async fn without_waiting(&self, step: &Step) -> Option<Told> {
        // Where more than rows is locked, a flight waits as well.
        if locked(&self.held_up).is_some_and(|at| at.elapsed() < HELD_UP) {
            return None;
        }
        match self.fly(std::slice::from_ref(step)).await {
            Ok(mut told) => told.pop().filter(|told| !is_left_out(told)),
            Err(error) if error.is_read_only() => None,
            Err(error) => Some(Err(error)),
        }
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
                    Err(error) if error.is_read_only() => return self.absent(claim, error).await,
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
        Ok((answer.row::<D>()?.clone(), answer.ambiguous))
    }

    /// A server that takes no writes cannot take a claim out, but says whether there is one.
    async fn absent(&self, claim: &Arc<Claim>, refusal: Error) -> Told {
        let (answers, _) = self.about(Verb::Look, std::slice::from_ref(claim)).await?;
        match answers.first() {
            Some((Renewal::Ended(ClaimEnd::NotFound | ClaimEnd::Broken(_)), _)) => {
                Ok((Row(vec![Cell::Int(2), Cell::Null]), 0))
            }
            _ => Err(refusal),
        }
    }

    /// The answer of one step.
    fn answered(&self, step: &Step, told: Told) -> Result<Attempted<Reply>, Error> {
        let (mut lease, mut ambiguous) = (None, 0);
        let reply = told.and_then(|(row, attempts)| {
            // Whom it made holders stands last.
            ring(&row, row.0.len().saturating_sub(1));
            (lease, ambiguous) = (row.int(4).map(from_micros), attempts);
            self.reply(step, &row)
        });
        self.wakes.claims.answered(&step.claim().id, reply.as_ref(), lease);
        reply.map(|reply| Attempted::after(ambiguous, reply))
    }

    fn reply(&self, step: &Step, row: &Row) -> Result<Reply, Error> {
        if row.int(0) == Some(LEFT_OUT) {
            return Ok(Reply::SendAlone);
        }
        let Step::Acquire { claim, .. } = step else {
            return match row.int(0) {
                Some(1) => Ok(Reply::Released(Released::Removed)),
                Some(2) => Ok(Reply::Released(Released::NotFound)),
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_left_out(told: &Told) -> bool {
    matches!(told, Ok((row, _)) if row.int(0) == Some(LEFT_OUT))
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

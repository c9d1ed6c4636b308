//! Carrying many acquires and releases in one transaction, each as a transaction within it.
//!
//! etcd judges the conditions of all of them by the state before the whole, and then carries them
//! out one after the other. So two acquires of one empty list must not travel together (both would
//! hold, at one place in the line). An acquire behind a release of its list finds the list as it was
//! and takes its place at the end; what it is shown is how the list is then.
//!
//! All keys that a flight creates have its revision as their place and token. No two of them stand
//! in one list.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::{join, join_all};
use lockkit_core::Error;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Attempted, Flights, Replies, Reply, Step};
use tokio::sync::oneshot;

use crate::acquire::Entering;
use crate::calls::{self, ATTEMPT, BACKEND, Failure, revision};
use crate::leases::Lease;
use crate::locks::Locks;
use crate::release::Leaving;
use crate::requests::{delete, odd};

/// etcd takes 128 operations in a transaction unless it is told otherwise, those within others
/// counted along by their depth, of which a step has up to 11; and 1.5 MiB, of which the longest
/// names take 26 times their weight.
pub(crate) const FLIGHTS: Flights = {
    let mut flights = Flights::of(64, 4);
    flights.bytes = 48 << 10;
    flights
};
/// How often a step is sent anew because its lease had ended, or others changed its list.
const ROUNDS: usize = 32;

/// Who is told.
type Waiting = oneshot::Sender<Result<Replies, Error>>;

/// What a step sends, and what is known for reading the answer.
pub(crate) enum Plan {
    Enter(Entering),
    Leave(Leaving),
}

/// What an answer leads to.
pub(crate) enum Next {
    Done(Reply),
    /// A request that follows from it.
    Again(Plan),
}

/// What the answer to a flight says of one step.
pub(crate) struct Said {
    pub(crate) txn: TxnResponse,
    /// That of the flight.
    pub(crate) revision: i64,
    /// When it was sent.
    pub(crate) sent: Moment,
    /// Whether no request for the step got no answer.
    pub(crate) sure: bool,
}

impl Plan {
    fn txn(&self) -> Txn {
        match self {
            Self::Enter(entering) => entering.txn(),
            Self::Leave(leaving) => leaving.txn(),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Enter(entering) => &entering.key,
            Self::Leave(leaving) => &leaving.key,
        }
    }

    fn abandon(&self) {
        if let Self::Enter(entering) = self {
            entering.abandon();
        }
    }
}

impl Locks {
    /// Whoever drops this does not end what was sent: that goes on until it is answered, so that it
    /// is known what became of it. Nothing else is sent then.
    pub(crate) async fn carry(self: &Arc<Self>, steps: &[Step]) -> Result<Replies, Error> {
        let (to, replies) = oneshot::channel();
        let (locks, steps) = (self.clone(), steps.to_vec());
        self.calls.background.spawn(async move {
            let replies = locks.fly(&steps, &to).await;
            let _ = to.send(replies);
        });
        let ended = |_| Err(Error::retryable(BACKEND, "the runtime of a flight has ended"));
        replies.await.unwrap_or_else(ended)
    }

    async fn fly(self: &Arc<Self>, steps: &[Step], to: &Waiting) -> Result<Replies, Error> {
        let changing = || Err(Error::retryable(BACKEND, "others keep changing this list"));
        let mut replies: Replies = steps.iter().map(|_| changing()).collect();
        let mut due: Vec<_> = (0..steps.len()).map(|at| (at, None)).collect();
        let mut ambiguous = 0;
        for round in 0..ROUNDS {
            let mut plans = Vec::with_capacity(due.len());
            let planned = due.drain(..).map(|(at, plan)| self.plan(&steps[at], at, plan));
            for (at, plan) in join_all(planned).await {
                match plan {
                    Ok(plan) => plans.push((at, plan)),
                    Err(failure) => replies[at] = Err(failure.into()),
                }
            }
            if plans.is_empty() || to.is_closed() {
                plans.iter().for_each(|(_, plan)| plan.abandon());
                break;
            }
            let sent = SteadyClock.now();
            let answer = match self.send(&plans).await {
                Ok(answer) => answer,
                Err(Failure::LeaseGone) => {
                    for (at, plan) in plans {
                        plan.abandon();
                        due.push((at, None));
                    }
                    continue;
                }
                Err(failure) if round == 0 => return Err(failure.into()),
                Err(failure) => {
                    plans.iter().for_each(|(at, _)| replies[*at] = Err(failure.clone().into()));
                    break;
                }
            };
            ambiguous += answer.ambiguous;
            let (sure, revision) = (ambiguous == 0, revision(&answer.answer));
            let parts = parts(answer.answer, plans.len())?;
            let read = plans.into_iter().zip(parts).map(|((at, plan), txn)| {
                let said = Said { txn, revision, sent, sure };
                async move { (at, self.read(plan, said, to).await) }
            });
            for (at, next) in join_all(read).await {
                match next {
                    Ok(Next::Done(reply)) => replies[at] = Ok(Attempted::after(ambiguous, reply)),
                    Ok(Next::Again(plan)) => due.push((at, Some(plan))),
                    Err(Failure::LeaseGone) => due.push((at, None)),
                    Err(failure) => replies[at] = Err(failure.into()),
                }
            }
        }
        Ok(replies)
    }

    async fn plan(
        &self,
        step: &Step,
        at: usize,
        plan: Option<Plan>,
    ) -> (usize, Result<Plan, Failure>) {
        let plan = match (plan, step) {
            (Some(plan), _) => Ok(plan),
            (None, Step::Release { claim }) => Ok(Plan::Leave(self.leaving_of(claim))),
            (None, Step::Acquire { claim, patience }) => {
                self.entering(claim, *patience).await.map(Plan::Enter)
            }
        };
        (at, plan)
    }

    /// Sends what is planned in one request. Where it may be under way afterwards, the leases are
    /// retired that it names: see [`Leases`](crate::leases::Leases).
    async fn send(&self, plans: &[(usize, Plan)]) -> Result<calls::Reply<TxnResponse>, Failure> {
        let mut named = HashMap::new();
        for (_, plan) in plans {
            if let Plan::Enter(entering) = plan {
                named.extend(entering.leases().map(|lease| (lease.id, lease.clone())));
            }
        }
        let mut ambiguous = Unanswered { locks: self, named };
        let fresh = join_all(ambiguous.named.values().map(|lease| self.leases.freshen(lease)));
        let together = || match plans {
            [(_, one)] => one.txn(),
            many => {
                let steps: Vec<_> = many.iter().map(|(_, plan)| TxnOp::txn(plan.txn())).collect();
                // Always so. An etcd that checks nobody's rights inside a nested transaction (before
                // 3.6.9, GHSA-rfx7-8w68-q57q) checks those to read what is compared outside of it,
                // and those to write what would be deleted otherwise.
                let never = many.iter().map(|(_, plan)| delete(plan.key()));
                let there = |(_, plan): &(_, Plan)| {
                    Compare::create_revision(plan.key(), CompareOp::Greater, -1)
                };
                let there = many.iter().map(there).collect::<Vec<_>>();
                Txn::new().when(there).and_then(steps).or_else(never.collect::<Vec<_>>())
            }
        };
        let (reply, _) = join(self.calls.txn_within(ATTEMPT, together), fresh).await;
        match &reply {
            Ok(reply) if !reply.is_repeated() => ambiguous.named.clear(),
            // Refused as a whole. One of them has ended, which etcd does not tell.
            Err(Failure::LeaseGone) => {
                let named = std::mem::take(&mut ambiguous.named);
                join_all(named.values().map(|lease| self.leases.keep(lease))).await;
            }
            _ => {}
        }
        reply
    }

    async fn read(self: &Arc<Self>, plan: Plan, said: Said, to: &Waiting) -> Result<Next, Failure> {
        match plan {
            Plan::Enter(entering) if to.is_closed() => {
                self.note_left(&entering, &said);
                Err(Failure::LeaseGone) // nobody hears of it
            }
            Plan::Enter(entering) => self.entered(entering, said).await,
            Plan::Leave(leaving) => self.left_line(leaving, said).await,
        }
    }
}

/// The answers to so many steps.
fn parts(answer: TxnResponse, steps: usize) -> Result<Vec<TxnResponse>, Failure> {
    if steps == 1 {
        return Ok(vec![answer]);
    }
    let part = |op| match op {
        TxnOpResponse::Txn(part) => Some(part),
        _ => None,
    };
    let parts: Vec<_> = answer.op_responses().into_iter().filter_map(part).collect();
    if parts.len() == steps { Ok(parts) } else { Err(odd()) }
}

/// A request that may put in claims. Dropped ambiguous, it retires the leases that it names.
struct Unanswered<'a> {
    locks: &'a Locks,
    named: HashMap<i64, Arc<Lease>>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.named.values() {
            self.locks.leases.retire(lease);
        }
    }
}

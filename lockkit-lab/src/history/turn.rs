//! Lock operations, put together from their events. Judges nothing, except that answers belong to
//! questions.

use std::collections::BTreeMap;

use lockkit_core::Mode;

use super::violation::{Invariant, Violation};
use super::{Event, EventKind, History};

/// A lock operation.
#[derive(Clone, Debug)]
pub(super) struct ClaimSpan {
    pub(super) client: u32,
    pub(super) op: u64,
    pub(super) lock: String,
    pub(super) mode: Mode,
    pub(super) asked: u64,
    /// Since when its latest claim is in the queue.
    pub(super) queued_since: Option<QueuedSince>,
    pub(super) held: Option<Held>,
    /// When it was refused, failed, ended, or its client died.
    pub(super) over: Option<u64>,
    /// Whether it failed, or its guard was lost.
    pub(super) failed: bool,
}

/// Since when a claim is in the queue, as far as the client knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedSince {
    claim: u64,
    /// When the client was told of it.
    pub(super) from: u64,
    /// When the latest request was sent that was answered with "waits".
    pub(super) until: u64,
}

/// A guard that was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// When the client was told.
    pub(super) returned_at: u64,
    pub(super) token: u64,
    /// When its lease was given, at the earliest.
    pub(super) since: u64,
    /// Until when it was valid.
    pub(super) until: u64,
}

impl ClaimSpan {
    /// When it had its answer.
    pub(super) fn answered(&self) -> Option<u64> {
        self.held.map(|held| held.returned_at).or(self.over)
    }

    fn placed(&mut self, at: u64, claim: u64, sent: u64) {
        match &mut self.queued_since {
            Some(place) if place.claim == claim => place.until = place.until.max(sent),
            place => *place = Some(QueuedSince { claim, from: at, until: sent }),
        }
    }

    fn end(&mut self, at: u64) {
        self.over.get_or_insert(at);
        if let Some(held) = &mut self.held {
            held.until = held.until.min(at);
        }
    }
}

/// Puts the lock operations together.
pub(super) fn turns(history: &History, found: &mut Vec<Violation>) -> Vec<ClaimSpan> {
    let mut turns: Vec<ClaimSpan> = Vec::new();
    let mut index: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for Event { at, client, what } in &history.events {
        let op = match what {
            EventKind::Asked { op, lock, how } => {
                index.insert((*client, *op), turns.len());
                turns.push(ClaimSpan {
                    client: *client,
                    op: *op,
                    lock: lock.clone(),
                    mode: Mode::from(*how),
                    asked: *at,
                    queued_since: None,
                    held: None,
                    over: None,
                    failed: false,
                });
                continue;
            }
            EventKind::ClientCrashed => {
                turns.iter_mut().filter(|t| t.client == *client).for_each(|t| t.end(*at));
                continue;
            }
            EventKind::Placed { op, .. }
            | EventKind::Granted { op, .. }
            | EventKind::Valid { op, .. }
            | EventKind::Refused { op }
            | EventKind::Failed { op, .. }
            | EventKind::Ended { op, .. } => *op,
            _ => continue,
        };
        match index.get(&(*client, op)) {
            Some(i) => turns[*i].hear(*at, what),
            None => found.push(answer_without_question(*at, *client, op)),
        }
    }
    turns
}

impl ClaimSpan {
    /// Takes in an event of this operation.
    fn hear(&mut self, at: u64, what: &EventKind) {
        match what {
            EventKind::Placed { claim, sent, .. } => self.placed(at, *claim, *sent),
            EventKind::Granted { token, since, valid_until, .. } => {
                let (token, since, until) = (*token, *since, *valid_until);
                self.held.get_or_insert(Held { returned_at: at, token, since, until });
            }
            EventKind::Valid { valid_until, .. } => {
                if let Some(held) = &mut self.held {
                    held.until = held.until.max(*valid_until);
                }
            }
            EventKind::Ended { lost, .. } => {
                self.failed = lost.is_some();
                self.end(at);
            }
            EventKind::Failed { .. } => {
                self.failed = true;
                self.over = Some(at);
            }
            _ => self.over = Some(at),
        }
    }
}

fn answer_without_question(at: u64, client: u32, op: u64) -> Violation {
    let text = format!("client {client} was answered operation {op}, which it never asked");
    let (of, by) = (String::new(), vec![(client, op)]);
    Violation { invariant: Invariant::Sound, of, since: at, at, by, text }
}

/// The operations on each lock, in the order in which they were asked.
pub(super) fn by_lock(turns: &[ClaimSpan]) -> BTreeMap<String, Vec<&ClaimSpan>> {
    let mut locks: BTreeMap<String, Vec<&ClaimSpan>> = BTreeMap::new();
    for turn in turns {
        locks.entry(turn.lock.clone()).or_default().push(turn);
    }
    locks
}

/// A violation in which these operations took part.
pub(super) fn violation(
    invariant: Invariant,
    of: &str,
    since: u64,
    at: u64,
    by: &[&ClaimSpan],
    text: String,
) -> Violation {
    let by = by.iter().map(|t| (t.client, t.op)).collect();
    Violation { invariant, of: of.to_owned(), since, at, by, text }
}

//! The judge: reads a history and says which promise was broken, by whom, and when. It does not
//! know what ran; [`RecordedPromises`] say what was promised under the faults that happened.
//!
//! This file has the invariants of exclusion, tokens and order; the others have files of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkit_core::{Mode, queue};

use super::excuse::{Excused, FaultWindow, asks, fault_windows};
use super::liveness::{progress, success};
use super::turn::{ClaimSpan, by_lock, turns, violation};
use super::updates::updates;
use super::violation::{Invariant, RecordedPromises, Violation, nanos};
use super::{EventKind, History};

/// What a history shows.
#[derive(Clone, Debug, Default)]
pub struct HistoryJudgement {
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What happened although it was not promised that it would not, and the faults that excuse it.
    pub excused: Vec<Excused>,
    /// Promises that a fault could have cost, and did not.
    pub better: Vec<Invariant>,
    /// How many of each event there were.
    pub counts: BTreeMap<&'static str, usize>,
    /// For each lock, the longest time without a grant while an operation waited and no client held it.
    pub longest_waits: BTreeMap<String, Duration>,
}

impl HistoryJudgement {
    /// Whether every promise was kept.
    pub fn acquitted(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Judges a history.
pub fn judge(history: &History, promises: &RecordedPromises) -> HistoryJudgement {
    let mut found = Vec::new();
    let turns = turns(history, &mut found);
    let fault_windows = fault_windows(history);
    let mut longest_waits = BTreeMap::new();
    for (lock, turns) in by_lock(&turns) {
        tokens(&lock, &turns, &mut found);
        exclusion(&lock, &turns, &mut found);
        if promises.fifo {
            order(&lock, &turns, &mut found);
        }
        let limits = (promises.idle, history.events.last().map_or(0, |event| event.at));
        let longest = progress(&lock, &turns, &fault_windows, limits, &mut found);
        longest_waits.insert(lock, longest);
    }
    updates(history, &mut found);
    free_at_end(history, &mut found);
    let calm = success(&turns, &fault_windows, nanos(promises.patience), &mut found);
    found.sort_by_key(|violation| (violation.invariant, violation.at));
    let mut judgement = sentence(&fault_windows, promises, found);
    judgement.counts = counts(history);
    judgement.counts.insert("calm", calm);
    judgement.longest_waits = longest_waits;
    judgement
}

/// Sorts what was found into what was promised and what a fault excuses.
fn sentence(
    fault_windows: &[FaultWindow],
    promises: &RecordedPromises,
    found: Vec<Violation>,
) -> HistoryJudgement {
    let at_risk = |invariant: &Invariant| {
        let costs = |asked| fault_windows.iter().any(|s| promises.guarantee(s.fault) < asked);
        asks(*invariant).is_some_and(costs)
    };
    let better = [Invariant::Exclusion, Invariant::TokensGrow].into_iter().filter(at_risk);
    let better =
        better.filter(|invariant| found.iter().all(|v| v.invariant != *invariant)).collect();
    let mut judgement = HistoryJudgement { better, ..HistoryJudgement::default() };
    for violation in found {
        match fault_windows.iter().find_map(|window| window.excuse(&violation, promises)) {
            Some(by) => judgement.excused.push(Excused { violation, by }),
            None => judgement.violations.push(violation),
        }
    }
    judgement
}

fn counts(history: &History) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for event in &history.events {
        *counts.entry(kind(&event.what)).or_default() += 1;
    }
    counts
}

fn kind(what: &EventKind) -> &'static str {
    match what {
        EventKind::Asked { .. } => "asked",
        EventKind::Placed { .. } => "placed",
        EventKind::Granted { .. } => "granted",
        EventKind::Valid { .. } => "valid",
        EventKind::Refused { .. } => "refused",
        EventKind::Failed { .. } => "failed",
        EventKind::Ended { lost: None, .. } => "released",
        EventKind::Ended { lost: Some(_), .. } => "lost",
        EventKind::RegisterAsked { .. } => "register asked",
        EventKind::RegisterDone { .. } => "register done",
        EventKind::RegisterStale { .. } => "register stale",
        EventKind::ClientCrashed => "clients gone",
        EventKind::FaultBegins { .. } => "faults",
        EventKind::FaultEnds { .. } => "faults over",
        EventKind::Inspected { .. } => "inspected",
    }
}

/// The greatest token that was known at each time, and whose it is.
type Greatest<'a> = Vec<(u64, u64, &'a ClaimSpan)>;

/// Tokens are given once, and grow along conflicting grants. After one that went back, or came again,
/// only later grants are compared: a lost counter is found once, when it shows.
fn tokens(lock: &str, turns: &[&ClaimSpan], found: &mut Vec<Violation>) {
    let mut granted: Vec<_> = turns
        .iter()
        .filter_map(|t| t.held.map(|held| (held.returned_at, held.token, *t)))
        .collect();
    granted.sort_by_key(|(at, ..)| *at);
    let mut owners: BTreeMap<u64, &ClaimSpan> = BTreeMap::new();
    let mut greatest: Vec<(Mode, Greatest<'_>)> = Vec::new();
    for (at, token, turn) in granted {
        let mut wrong = Vec::new();
        if let Some(first) = owners.get(&token) {
            let text = format!(
                "token {token} was given to client {} and to client {}",
                first.client, turn.client
            );
            let since = given(&[first, turn]);
            wrong.push(violation(Invariant::TokenOnce, lock, since, at, &[first, turn], text));
        }
        for (_, known) in greatest.iter().filter(|(mode, _)| queue::conflict(*mode, turn.mode)) {
            // What its client knew of when it asked.
            let before = known.partition_point(|(at, ..)| *at < turn.asked);
            let Some((_, before, first)) = known[..before].last() else { continue };
            if token < *before {
                let text = format!(
                    "client {} got token {token} after client {} had got {before}",
                    turn.client, first.client
                );
                let since = given(&[first, turn]);
                wrong.push(violation(Invariant::TokensGrow, lock, since, at, &[first, turn], text));
            }
        }
        if !wrong.is_empty() {
            owners.clear();
            greatest.clear();
            found.append(&mut wrong);
        }
        owners.insert(token, turn);
        match greatest.iter_mut().find(|(mode, _)| *mode == turn.mode) {
            Some((_, known)) if known.last().is_some_and(|(_, most, _)| *most >= token) => {}
            Some((_, known)) => known.push((at, token, turn)),
            None => greatest.push((turn.mode, vec![(at, token, turn)])),
        }
    }
}

/// At no time are more guards valid than the lock carries.
fn exclusion(lock: &str, turns: &[&ClaimSpan], found: &mut Vec<Violation>) {
    let mut edges = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        if let Some(held) = turn.held.filter(|held| held.returned_at < held.until) {
            edges.push((held.returned_at, 1, i));
            edges.push((held.until, 0, i)); // ends come before beginnings of the same instant
        }
    }
    edges.sort_unstable();
    let mut valid: BTreeSet<usize> = BTreeSet::new();
    for (at, begins, i) in edges {
        if begins == 0 {
            valid.remove(&i);
            continue;
        }
        let turn = turns[i];
        let weight: u64 = valid.iter().map(|v| u64::from(turns[*v].mode.weight())).sum();
        if weight + u64::from(turn.mode.weight()) > u64::from(turn.mode.capacity()) {
            let others: Vec<_> = valid.iter().map(|v| turns[*v]).collect();
            let names: Vec<_> = others.iter().map(|t| t.client.to_string()).collect();
            let names = names.join(", ");
            let text = format!("client {} got it while valid with client {names}", turn.client);
            let by: Vec<_> = others.into_iter().chain([turn]).collect();
            found.push(violation(Invariant::Exclusion, lock, given(&by), at, &by, text));
        }
        valid.insert(i);
    }
}

fn free_at_end(history: &History, found: &mut Vec<Violation>) {
    for event in &history.events {
        if let EventKind::Inspected { lock, free: false } = &event.what {
            let text =
                "it was still held, or waited for, when all clients were long gone".to_owned();
            found.push(violation(Invariant::FreeAtEnd, lock, event.at, event.at, &[], text));
        }
    }
}

/// When the first of these was given its lease, at the earliest.
fn given(turns: &[&ClaimSpan]) -> u64 {
    turns.iter().filter_map(|turn| turn.held.map(|held| held.since)).min().unwrap_or(0)
}

/// Finds operations that were overtaken. A claim that waits, or gets its turn, after another one
/// was granted has been in the queue all the time, since an ended claim never comes back: so only what
/// was seen counts, and neither a late message nor a lost place looks like overtaking.
fn order(lock: &str, turns: &[&ClaimSpan], found: &mut Vec<Violation>) {
    let mut granted: Vec<_> =
        turns.iter().filter_map(|t| Some((t.held?.returned_at, *t))).collect();
    granted.sort_by_key(|(told, _)| *told);
    for turn in turns {
        let Some(place) = turn.queued_since else { continue };
        let until = turn.held.map_or(place.until, |held| held.returned_at);
        let first = granted.partition_point(|(told, _)| *told <= place.from);
        let meanwhile = granted[first..].iter().take_while(|(told, _)| *told < until);
        let overtakers: Vec<_> = meanwhile
            .filter(|(_, other)| other.asked > place.from)
            .filter(|(_, other)| queue::conflict(turn.mode, other.mode))
            .collect();
        let Some((at, other)) = overtakers.first() else { continue };
        let text = format!(
            "client {} was in line when client {} asked, which got it first; it was overtaken {} \
             times",
            turn.client,
            other.client,
            overtakers.len()
        );
        let by = [*turn, *other];
        found.push(violation(Invariant::Order, lock, place.from, *at, &by, text));
    }
}

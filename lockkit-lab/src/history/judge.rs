//! The judge: reads a history and says which promise was broken, by whom, and when. It does not
//! know what ran; [`Promises`] say what was promised under the faults that happened.
//!
//! This page has the list of rules, and those of exclusion and tokens; the others have pages of their
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lockkit_core::capabilities::{Capabilities, Fault, Guarantee};
use lockkit_core::{Mode, queue};
use serde::{Deserialize, Serialize};

use super::excuse::{Excused, Strike, asks, strikes};
use super::order::order;
use super::progress::progress;
use super::success::success;
use super::turn::{Turn, by_lock, turns};
use super::updates::updates;
use super::{History, What};

/// What a set-up promises.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Promises {
    /// Which faults cost what. Those that are not named cost nothing.
    pub faults: Vec<(Fault, Guarantee)>,
    /// Whether claims are granted in the order in which they were queued.
    pub fifo: bool,
    /// How long after the last client's end a lock may still be held, how long a waiter may wait at
    /// a free lock, and how long after a fault not everything need work: ttl plus slack.
    pub patience: Duration,
    /// The longest ttl that a client had, plus the slack with which the backend ends leases: for so
    /// long after its end, a fault may explain a violation.
    pub lease: Duration,
}

impl Promises {
    /// Those of a driver.
    pub fn of(capabilities: &Capabilities, patience: Duration, lease: Duration) -> Self {
        let faults = capabilities.faults.to_vec();
        Self { faults, fifo: capabilities.fifo, patience, lease }
    }

    /// Which promises hold while this fault happens.
    pub fn keeps(&self, fault: Fault) -> Guarantee {
        self.faults.iter().find(|(f, _)| *f == fault).map_or(Guarantee::All, |(_, keeps)| *keeps)
    }
}

/// What a history shows.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What happened although it was not promised that it would not, and the faults that excuse it.
    pub excused: Vec<Excused>,
    /// Promises that a fault could have cost, and did not.
    pub better: Vec<Rule>,
    /// How many of each event there were.
    pub counts: BTreeMap<&'static str, usize>,
    /// For each lock, the longest time without a grant while an operation waited and nobody held it.
    pub longest_waits: BTreeMap<String, Duration>,
}

impl Judgement {
    /// Whether every promise was kept.
    pub fn acquitted(&self) -> bool {
        self.violations.is_empty()
    }
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// No guard is valid while a conflicting claim holds.
    Exclusion,
    /// A later conflicting holder has a greater token.
    TokensGrow,
    /// A token is given once.
    TokenOnce,
    /// Where it is promised, nobody gets a lock before those who are in line.
    Order,
    /// The guarded register never goes back.
    Register,
    /// No acknowledged write is done over another that had the same ground.
    LostUpdate,
    /// After the last client is gone, every lock is free in time.
    FreeAtEnd,
    /// While somebody waits and nobody holds, the lock is granted in time.
    Progress,
    /// Away from all faults, what is asked for succeeds; and some of it always.
    Success,
    /// The history makes sense: answers belong to questions.
    Sound,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// Of which lock or register.
    pub of: String,
    /// When what it came of began, at the earliest: a fault that was over by then is not its cause.
    pub since: u64,
    /// When it shows.
    pub at: u64,
    /// Who took part: clients and their operations.
    pub by: Vec<(u32, u64)>,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}: {}", self.rule, self.of, self.text)
    }
}

/// Judges a history.
pub fn judge(history: &History, promises: &Promises) -> Judgement {
    let mut found = Vec::new();
    let turns = turns(history, &mut found);
    let strikes = strikes(history);
    let mut longest_waits = BTreeMap::new();
    for (lock, turns) in by_lock(&turns) {
        tokens(&lock, &turns, &mut found);
        exclusion(&lock, &turns, &mut found);
        if promises.fifo {
            order(&lock, &turns, &mut found);
        }
        let limits = (promises.patience, history.events.last().map_or(0, |event| event.at));
        let longest = progress(&lock, &turns, &strikes, limits, &mut found);
        longest_waits.insert(lock, longest);
    }
    updates(history, &mut found);
    free_at_end(history, &mut found);
    let calm = success(&turns, &strikes, nanos(promises.patience), &mut found);
    found.sort_by_key(|violation| (violation.rule, violation.at));
    let mut judgement = sentence(&strikes, promises, found);
    judgement.counts = counts(history);
    judgement.counts.insert("calm", calm);
    judgement.longest_waits = longest_waits;
    judgement
}

/// Sorts what was found into what was promised and what a fault excuses.
fn sentence(strikes: &[Strike], promises: &Promises, found: Vec<Violation>) -> Judgement {
    let at_risk = |rule: &Rule| {
        let costs = |asked| strikes.iter().any(|s| promises.keeps(s.fault) < asked);
        asks(*rule).is_some_and(costs)
    };
    let better = [Rule::Exclusion, Rule::TokensGrow].into_iter().filter(at_risk);
    let better = better.filter(|rule| found.iter().all(|v| v.rule != *rule)).collect();
    let mut judgement = Judgement { better, ..Judgement::default() };
    for violation in found {
        match strikes.iter().find_map(|strike| strike.excuse(&violation, promises)) {
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

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Asked { .. } => "asked",
        What::Placed { .. } => "placed",
        What::Granted { .. } => "granted",
        What::Valid { .. } => "valid",
        What::Refused { .. } => "refused",
        What::Failed { .. } => "failed",
        What::Ended { lost: None, .. } => "released",
        What::Ended { lost: Some(_), .. } => "lost",
        What::RegisterAsked { .. } => "register asked",
        What::RegisterDone { .. } => "register done",
        What::RegisterStale { .. } => "register stale",
        What::Gone => "clients gone",
        What::FaultBegins { .. } => "faults",
        What::FaultEnds { .. } => "faults over",
        What::Looked { .. } => "looked",
    }
}

/// The greatest token that was known at each time, and whose it is.
type Greatest<'a> = Vec<(u64, u64, &'a Turn)>;

/// Tokens are given once, and grow along conflicting grants. After one that went back, or came again,
/// only later grants are compared: a lost counter is found once, when it shows.
fn tokens(lock: &str, turns: &[&Turn], found: &mut Vec<Violation>) {
    let mut granted: Vec<_> =
        turns.iter().filter_map(|t| t.held.map(|held| (held.told, held.token, *t))).collect();
    granted.sort_by_key(|(at, ..)| *at);
    let mut owners: BTreeMap<u64, &Turn> = BTreeMap::new();
    let mut greatest: Vec<(Mode, Greatest<'_>)> = Vec::new();
    for (at, token, turn) in granted {
        let mut wrong = Vec::new();
        if let Some(first) = owners.get(&token) {
            let text = format!(
                "token {token} was given to client {} and to client {}",
                first.client, turn.client
            );
            let since = given(&[first, turn]);
            wrong.push(violation(Rule::TokenOnce, lock, since, at, &[first, turn], text));
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
                wrong.push(violation(Rule::TokensGrow, lock, since, at, &[first, turn], text));
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
fn exclusion(lock: &str, turns: &[&Turn], found: &mut Vec<Violation>) {
    let mut edges = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        if let Some(held) = turn.held.filter(|held| held.told < held.until) {
            edges.push((held.told, 1, i));
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
            found.push(violation(Rule::Exclusion, lock, given(&by), at, &by, text));
        }
        valid.insert(i);
    }
}

fn free_at_end(history: &History, found: &mut Vec<Violation>) {
    for event in &history.events {
        if let What::Looked { lock, free: false } = &event.what {
            let text =
                "it was still held, or waited for, when all clients were long gone".to_owned();
            found.push(violation(Rule::FreeAtEnd, lock, event.at, event.at, &[], text));
        }
    }
}

/// When the first of these was given its lease, at the earliest.
fn given(turns: &[&Turn]) -> u64 {
    turns.iter().filter_map(|turn| turn.held.map(|held| held.since)).min().unwrap_or(0)
}

pub(super) fn violation(
    rule: Rule,
    of: &str,
    since: u64,
    at: u64,
    by: &[&Turn],
    text: String,
) -> Violation {
    let by = by.iter().map(|t| (t.client, t.op)).collect();
    Violation { rule, of: of.to_owned(), since, at, by, text }
}

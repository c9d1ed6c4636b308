//! The judge: reads a history and says which promise was broken, by whom, and when. It does not
//! know what ran; [`Promises`] say what was promised under the faults that happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lockkit_core::capabilities::{Capabilities, Fault, Keeps};
use lockkit_core::{Mode, queue};

use super::linear::{Operation, Order, search};
use super::register::Answer;
use super::{Event, History, What};

/// What a set-up promises.
#[derive(Clone, Copy, Debug)]
pub struct Promises<'a> {
    /// Which faults cost what.
    pub capabilities: &'a Capabilities,
    /// How long after the last client's end a lock may still be held, and how long a waiter may
    /// wait at a free lock: ttl plus slack.
    pub patience: Duration,
}

/// What a history shows.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What happened although it was not promised that it would not: excused by a fault.
    pub excused: Vec<Violation>,
    /// Promises that a fault could have cost, and did not.
    pub better: Vec<Rule>,
    /// How many of each event there were.
    pub counts: BTreeMap<&'static str, usize>,
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
    /// The guarded register never goes back, and loses no acknowledged write.
    Register,
    /// After the last client is gone, every lock is free in time.
    FreeAtEnd,
    /// Nobody waits for ever while the lock is free.
    Progress,
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

/// A lock operation, put together from its events.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) client: u32,
    pub(super) op: u64,
    pub(super) lock: String,
    pub(super) mode: Mode,
    pub(super) asked: u64,
    /// When it was told, the token, and until when its guard was valid.
    pub(super) granted: Option<(u64, u64, u64)>,
    /// When it was refused, failed, or its client died.
    pub(super) over: Option<u64>,
}

/// Judges a history.
pub fn judge(history: &History, promises: Promises<'_>) -> Judgement {
    let mut found = Vec::new();
    let turns = turns(history, &mut found);
    for (lock, turns) in by_lock(&turns) {
        tokens(&lock, &turns, &mut found);
        exclusion(&lock, &turns, &mut found);
        progress(&lock, &turns, history, promises.patience, &mut found);
    }
    registers(history, &mut found);
    free_at_end(history, &mut found);
    found.sort_by_key(|violation| (violation.rule, violation.at));
    sentence(history, promises, found)
}

/// Sorts what was found into what was promised and what a fault excuses.
fn sentence(history: &History, promises: Promises<'_>, found: Vec<Violation>) -> Judgement {
    let faults: BTreeSet<Fault> = history
        .events
        .iter()
        .filter_map(|e| match e.what {
            What::FaultBegins { fault, .. } => Some(fault),
            _ => None,
        })
        .collect();
    let keeps = faults.iter().map(|f| promises.capabilities.keeps(*f)).min();
    let keeps = keeps.unwrap_or(Keeps::All);
    let promised = |rule: Rule| match rule {
        Rule::Exclusion => keeps >= Keeps::All,
        Rule::TokensGrow | Rule::TokenOnce | Rule::Register => keeps >= Keeps::Tokens,
        Rule::FreeAtEnd | Rule::Progress | Rule::Sound => true,
    };
    let at_risk = [Rule::Exclusion, Rule::TokensGrow].into_iter().filter(|rule| !promised(*rule));
    let better = at_risk.filter(|rule| found.iter().all(|v| v.rule != *rule)).collect();
    let (violations, excused) = found.into_iter().partition(|v| promised(v.rule));
    let mut counts = BTreeMap::new();
    for event in &history.events {
        *counts.entry(kind(&event.what)).or_default() += 1;
    }
    Judgement { violations, excused, better, counts }
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Asked { .. } => "asked",
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

/// Puts the lock operations together.
pub(super) fn turns(history: &History, found: &mut Vec<Violation>) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut index: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for Event { at, client, what } in &history.events {
        let op = match what {
            What::Asked { op, lock, how } => {
                index.insert((*client, *op), turns.len());
                let (lock, mode) = (lock.clone(), Mode::from(*how));
                let (client, op, asked) = (*client, *op, *at);
                turns.push(Turn { client, op, lock, mode, asked, granted: None, over: None });
                continue;
            }
            What::Gone => {
                for turn in turns.iter_mut().filter(|t| t.client == *client) {
                    turn.over.get_or_insert(*at);
                    if let Some((_, _, valid)) = &mut turn.granted {
                        *valid = (*valid).min(*at);
                    }
                }
                continue;
            }
            What::Granted { op, .. }
            | What::Valid { op, .. }
            | What::Refused { op }
            | What::Failed { op, .. }
            | What::Ended { op, .. } => *op,
            _ => continue,
        };
        let Some(turn) = index.get(&(*client, op)).map(|i| &mut turns[*i]) else {
            let text = format!("client {client} was answered operation {op}, which it never asked");
            let by = vec![(*client, op)];
            found.push(Violation { rule: Rule::Sound, of: String::new(), at: *at, by, text });
            continue;
        };
        match what {
            What::Granted { token, valid_until, .. } => {
                turn.granted.get_or_insert((*at, *token, *valid_until));
            }
            What::Valid { valid_until, .. } => {
                if let Some((_, _, valid)) = &mut turn.granted {
                    *valid = (*valid).max(*valid_until);
                }
            }
            What::Ended { .. } => {
                turn.over = Some(*at);
                if let Some((_, _, valid)) = &mut turn.granted {
                    *valid = (*valid).min(*at);
                }
            }
            _ => turn.over = Some(*at),
        }
    }
    turns
}

fn by_lock(turns: &[Turn]) -> BTreeMap<String, Vec<&Turn>> {
    let mut locks: BTreeMap<String, Vec<&Turn>> = BTreeMap::new();
    for turn in turns {
        locks.entry(turn.lock.clone()).or_default().push(turn);
    }
    locks
}

/// Tokens are given once, and grow along conflicting grants.
fn tokens(lock: &str, turns: &[&Turn], found: &mut Vec<Violation>) {
    let mut granted: Vec<_> =
        turns.iter().filter_map(|t| t.granted.map(|(at, token, _)| (at, token, *t))).collect();
    granted.sort_by_key(|(at, ..)| *at);
    let mut owners: BTreeMap<u64, &Turn> = BTreeMap::new();
    for (at, token, turn) in &granted {
        if let Some(first) = owners.insert(*token, turn) {
            let text = format!(
                "token {token} was given to client {} and to client {}",
                first.client, turn.client
            );
            found.push(violation(Rule::TokenOnce, lock, *at, &[first, turn], text));
        }
    }
    // By mode, the greatest token of those who knew that they held before this one asked.
    let mut begun: Vec<_> = granted.clone();
    begun.sort_by_key(|(_, _, turn)| turn.asked);
    let mut earlier = granted.iter().peekable();
    let mut greatest: Vec<(Mode, u64, &Turn)> = Vec::new();
    for (at, token, turn) in begun {
        while let Some((_, token, first)) = earlier.next_if(|(at, ..)| *at < turn.asked) {
            match greatest.iter_mut().find(|(mode, ..)| *mode == first.mode) {
                Some(of_mode) if of_mode.1 >= *token => {}
                Some(of_mode) => *of_mode = (first.mode, *token, first),
                None => greatest.push((first.mode, *token, first)),
            }
        }
        for (mode, before, first) in &greatest {
            if queue::conflict(*mode, turn.mode) && token < *before {
                let text = format!(
                    "client {} got token {token} after client {} had got {before}",
                    turn.client, first.client
                );
                found.push(violation(Rule::TokensGrow, lock, at, &[first, turn], text));
            }
        }
    }
}

/// At no time are more guards valid than the lock carries.
fn exclusion(lock: &str, turns: &[&Turn], found: &mut Vec<Violation>) {
    let mut edges = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        if let Some((from, _, until)) = turn.granted.filter(|(from, _, until)| from < until) {
            edges.push((from, 1, i));
            edges.push((until, 0, i)); // ends come before beginnings of the same instant
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
            found.push(violation(Rule::Exclusion, lock, at, &by, text));
        }
        valid.insert(i);
    }
}

/// Nobody is left waiting at a lock that has long been free.
fn progress(
    lock: &str,
    turns: &[&Turn],
    history: &History,
    patience: Duration,
    found: &mut Vec<Violation>,
) {
    let Some(end) = history.events.last().map(|e| e.at) else { return };
    let patience = patience.as_nanos() as u64;
    for turn in turns.iter().filter(|t| t.granted.is_none() && t.over.is_none()) {
        let busy_until = turns.iter().filter_map(|t| t.granted.map(|(_, _, until)| until)).max();
        let free_since = busy_until.unwrap_or(0).max(turn.asked);
        if free_since.saturating_add(patience) < end {
            let waited = Duration::from_nanos(end - free_since);
            let text = format!("client {} waited {waited:?} at a free lock", turn.client);
            found.push(violation(Rule::Progress, lock, end, &[turn], text));
        }
    }
}

/// The guarded registers: some order explains all answers, and no acknowledged write was done
/// over another that had the same ground.
fn registers(history: &History, found: &mut Vec<Violation>) {
    for (register, operations) in register_operations(history) {
        let at = operations.values().map(|op| op.asked).max().unwrap_or(0);
        let all: Vec<_> = operations.values().cloned().collect();
        let wrong = match search(&all) {
            Order::Found => None,
            Order::Unknown => Some("no order of its operations was found in time".to_owned()),
            Order::Impossible { explained } => {
                let of = all.iter().filter(|op| op.answered.is_some()).count();
                Some(format!("no order explains its answers, only {explained} of {of}"))
            }
        };
        if let Some(text) = wrong {
            let of = register.clone();
            found.push(Violation { rule: Rule::Register, of, at, by: Vec::new(), text });
        }
        lost_updates(&register, &operations, found);
    }
}

/// Writers add one to what they read, so two acknowledged writes of one value mean that one of
/// them was lost.
fn lost_updates(
    register: &str,
    operations: &BTreeMap<(u32, u64), Operation>,
    found: &mut Vec<Violation>,
) {
    let mut writers: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
    for (by, op) in operations {
        let (Some(value), Some((at, Answer::Done { .. }))) = (op.write, op.answered) else {
            continue;
        };
        if let Some(other) = writers.insert(value, *by) {
            let text = format!("clients {} and {} both wrote {value}", other.0, by.0);
            let (rule, of, by) = (Rule::Register, register.to_owned(), vec![other, *by]);
            found.push(Violation { rule, of, at, by, text });
        }
    }
}

type Operations = BTreeMap<(u32, u64), Operation>;

fn register_operations(history: &History) -> BTreeMap<String, Operations> {
    let mut all: BTreeMap<String, Operations> = BTreeMap::new();
    let mut of: BTreeMap<(u32, u64), String> = BTreeMap::new();
    for Event { at, client, what } in &history.events {
        let (op, answer) = match what {
            What::RegisterAsked { op, register, token, write } => {
                let operation =
                    Operation { asked: *at, answered: None, token: *token, write: *write };
                of.insert((*client, *op), register.clone());
                all.entry(register.clone()).or_default().insert((*client, *op), operation);
                continue;
            }
            What::RegisterDone { op, value } => (*op, Answer::Done { value: *value }),
            What::RegisterStale { op, highest } => (*op, Answer::Stale { highest: *highest }),
            _ => continue,
        };
        let id = (*client, op);
        let operation = of.get(&id).and_then(|r| all.get_mut(r)).and_then(|ops| ops.get_mut(&id));
        if let Some(operation) = operation {
            operation.answered = Some((*at, answer));
        }
    }
    all
}

fn free_at_end(history: &History, found: &mut Vec<Violation>) {
    for event in &history.events {
        if let What::Looked { lock, free: false } = &event.what {
            let text =
                "it was still held, or waited for, when all clients were long gone".to_owned();
            found.push(violation(Rule::FreeAtEnd, lock, event.at, &[], text));
        }
    }
}

fn violation(rule: Rule, of: &str, at: u64, by: &[&Turn], text: String) -> Violation {
    let by = by.iter().map(|t| (t.client, t.op)).collect();
    Violation { rule, of: of.to_owned(), at, by, text }
}

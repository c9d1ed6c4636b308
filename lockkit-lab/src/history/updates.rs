//! The rules of the guarded registers: some order explains all answers, and no acknowledged write
//! was done over another that had the same ground.

use std::collections::BTreeMap;

use super::linear::{Operation, Order, search};
use super::register::RegisterResult;
use super::violation::{Invariant, Violation};
use super::{Event, EventKind, History};

/// Judges all registers.
pub(super) fn updates(history: &History, found: &mut Vec<Violation>) {
    for (register, operations) in operations_of(history) {
        let at = operations.values().map(|op| op.asked).max().unwrap_or(0);
        let all: Vec<_> = operations.values().cloned().collect();
        let wrong = match search(&all) {
            Order::Exists => None,
            Order::Unknown => Some("no order of its operations was found in time".to_owned()),
            Order::Impossible { explained } => {
                let of = all.iter().filter(|op| op.answered.is_some()).count();
                Some(format!("no order explains its answers, only {explained} of {of}"))
            }
        };
        if let Some(text) = wrong {
            let (invariant, of, by) = (Invariant::Register, register.clone(), Vec::new());
            found.push(Violation { invariant, of, since: at, at, by, text });
        }
        lost_updates(&register, &operations, found);
    }
}

/// Writers add one to what they read, so two acknowledged writes of one value mean that one of
/// them was lost. That takes two holders with one token, however far apart they got it.
fn lost_updates(
    register: &str,
    operations: &BTreeMap<(u32, u64), Operation>,
    found: &mut Vec<Violation>,
) {
    let mut writers: BTreeMap<u64, (u64, (u32, u64))> = BTreeMap::new();
    for (by, op) in operations {
        let (Some(value), Some((at, RegisterResult::Done { .. }))) = (op.write, op.answered) else {
            continue;
        };
        if let Some((before, other)) = writers.insert(value, (at, *by)) {
            let text = format!("clients {} and {} both wrote {value}", other.0, by.0);
            let (invariant, of, by) =
                (Invariant::LostUpdate, register.to_owned(), vec![other, *by]);
            found.push(Violation { invariant, of, since: 0, at: at.max(before), by, text });
        }
    }
}

type Operations = BTreeMap<(u32, u64), Operation>;

fn operations_of(history: &History) -> BTreeMap<String, Operations> {
    let mut all: BTreeMap<String, Operations> = BTreeMap::new();
    let mut of: BTreeMap<(u32, u64), String> = BTreeMap::new();
    for Event { at, client, what } in &history.events {
        let (op, answer) = match what {
            EventKind::RegisterAsked { op, register, token, write } => {
                let operation =
                    Operation { asked: *at, answered: None, token: *token, write: *write };
                of.insert((*client, *op), register.clone());
                all.entry(register.clone()).or_default().insert((*client, *op), operation);
                continue;
            }
            EventKind::RegisterDone { op, value } => (*op, RegisterResult::Done { value: *value }),
            EventKind::RegisterStale { op, highest } => {
                (*op, RegisterResult::Stale { highest: *highest })
            }
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

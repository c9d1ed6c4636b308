//! The rule of success: away from all faults, what is asked for succeeds; and whatever strikes, some of
//! it does.

use super::excuse::Strike;
use super::judge::{Rule, Violation};
use super::turn::Turn;

/// Of a hundred operations away from all faults, so many may fail, or lose what they got: a machine
/// that stands still for longer than a lease is no fault that anybody wrote down.
const FAIL: usize = 5;

/// Of a hundred, so many are granted at least. (A try of a lock that is held is refused.)
const GRANTED: usize = 5;

/// Fewer than these say nothing.
const ENOUGH: usize = 20;

/// Judges how much succeeded, and says how many operations no fault touched. A fault touches what
/// happens until `patience`, in nanoseconds, after its end.
pub(super) fn success(
    turns: &[Turn],
    strikes: &[Strike],
    patience: u64,
    found: &mut Vec<Violation>,
) -> usize {
    let calm: Vec<_> = turns.iter().filter(|turn| is_calm(turn, strikes, patience)).collect();
    let failed: Vec<_> = calm.iter().copied().filter(|turn| turn.failed).collect();
    if calm.len() >= ENOUGH && failed.len() * 100 > calm.len() * FAIL {
        let text = format!("away from all faults, {} of {} failed", failed.len(), calm.len());
        found.push(too_few(&failed, text));
    }
    let answered: Vec<_> = turns.iter().filter(|turn| turn.answered().is_some()).collect();
    let refused: Vec<_> = answered.iter().copied().filter(|turn| turn.held.is_none()).collect();
    let granted = answered.len() - refused.len();
    if answered.len() >= ENOUGH && granted * 100 < answered.len() * GRANTED {
        let text = format!("only {granted} of {} were granted", answered.len());
        found.push(too_few(&refused, text));
    }
    calm.len()
}

fn is_calm(turn: &Turn, strikes: &[Strike], patience: u64) -> bool {
    let Some(over) = turn.over.or(turn.answered()) else { return false };
    strikes.iter().all(|s| s.begins > over || s.ends.saturating_add(patience) < turn.asked)
}

fn too_few(unlucky: &[&Turn], text: String) -> Violation {
    let since = unlucky.first().map_or(0, |turn| turn.asked);
    let at = unlucky.last().and_then(|turn| turn.over).unwrap_or(since);
    let by = unlucky.iter().map(|turn| (turn.client, turn.op)).take(10).collect();
    Violation { rule: Rule::Success, of: "all locks".to_owned(), since, at, by, text }
}

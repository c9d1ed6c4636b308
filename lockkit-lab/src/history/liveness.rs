//! Progress: while operations wait for a free lock, one of them is granted it in time, judged for each
//! lock by itself. Success: without a fault operations succeed, and under any fault some of them do.

use std::time::Duration;

use lockkit_core::capabilities::Fault;

use super::excuse::FaultWindow;
use super::turn::{ClaimSpan, violation};
use super::violation::{Invariant, Violation, nanos};

/// Finds locks that were not granted although operations waited for them; returns the longest such time.
/// It may last for `idle`, a lease and the backend's slack, and for as long as the faults meanwhile; each of
/// them may have had a lease begin again, which takes as long once more.
///
/// Not so a connection that is reset, or an answer that is lost: what it granted is asked about, or given
/// back, as soon as the server answers. It excuses no longer time, so that a waiter is found that was not
/// woken after the answer to a release was lost.
pub(super) fn progress(
    lock: &str,
    turns: &[&ClaimSpan],
    fault_windows: &[FaultWindow],
    (idle, end): (Duration, u64),
    found: &mut Vec<Violation>,
) -> Duration {
    let mut longest = Duration::ZERO;
    for (from, to) in idle_times(turns, end) {
        let waited = Duration::from_nanos(to - from);
        longest = longest.max(waited);
        let (faults, lasted) = faults_within(fault_windows, from, to);
        let allowed = nanos(idle).saturating_mul(faults + 1).saturating_add(lasted);
        if to - from <= allowed {
            continue;
        }
        let waits = |turn: &&ClaimSpan| turn.asked < to && turn.answered().unwrap_or(end) > from;
        let waiting: Vec<_> = turns.iter().copied().filter(waits).take(10).collect();
        let allowed = Duration::from_nanos(allowed);
        let text = format!(
            "client {} waited at a free lock that nobody was granted for {waited:?}; {allowed:?} are \
             allowed",
            waiting.first().map_or(0, |turn| turn.client)
        );
        found.push(violation(Invariant::Progress, lock, from, to, &waiting, text));
    }
    longest
}

/// The times in which operations waited, no guard was valid, and no client was granted the lock.
fn idle_times(turns: &[&ClaimSpan], end: u64) -> Vec<(u64, u64)> {
    // By how much each moment changes how many wait and hold, and whether one is granted.
    let mut changes: Vec<(u64, i64, i64, bool)> = Vec::new();
    for turn in turns {
        changes.push((turn.asked, 1, 0, false));
        changes.push((turn.answered().unwrap_or(end), -1, 0, turn.held.is_some()));
        if let Some(held) = turn.held.filter(|held| held.returned_at < held.until) {
            changes.push((held.returned_at, 0, 1, false));
            changes.push((held.until, 0, -1, false));
        }
    }
    changes.sort_unstable_by_key(|(at, ..)| *at);
    let (mut waiting, mut holding) = (0, 0);
    let mut since = None;
    let mut idle = Vec::new();
    for moment in changes.chunk_by(|a, b| a.0 == b.0) {
        let at = moment[0].0;
        waiting += moment.iter().map(|change| change.1).sum::<i64>();
        holding += moment.iter().map(|change| change.2).sum::<i64>();
        let is_idle = waiting > 0 && holding == 0;
        if !is_idle || moment.iter().any(|change| change.3) {
            idle.extend(since.take().map(|since| (since, at)));
        }
        if is_idle && at < end {
            since.get_or_insert(at);
        }
    }
    idle
}

/// How many faults other than resets struck in this time, and for how long of it.
fn faults_within(fault_windows: &[FaultWindow], from: u64, to: u64) -> (u64, u64) {
    let (mut count, mut lasted, mut counted_to) = (0, 0_u64, from);
    let costs_time = |window: &&FaultWindow| {
        window.fault != Fault::ConnectionCut && window.begins < to && window.ends > from
    };
    // In the order in which they began.
    for window in fault_windows.iter().filter(costs_time) {
        let (begins, ends) = (window.begins.max(counted_to), window.ends.min(to));
        lasted += ends.saturating_sub(begins);
        counted_to = counted_to.max(ends);
        count += 1;
    }
    (count, lasted)
}

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
    turns: &[ClaimSpan],
    fault_windows: &[FaultWindow],
    patience: u64,
    found: &mut Vec<Violation>,
) -> usize {
    let calm: Vec<_> = turns.iter().filter(|turn| is_calm(turn, fault_windows, patience)).collect();
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

fn is_calm(turn: &ClaimSpan, fault_windows: &[FaultWindow], patience: u64) -> bool {
    let Some(over) = turn.over.or(turn.answered()) else { return false };
    fault_windows.iter().all(|s| s.begins > over || s.ends.saturating_add(patience) < turn.asked)
}

fn too_few(unlucky: &[&ClaimSpan], text: String) -> Violation {
    let since = unlucky.first().map_or(0, |turn| turn.asked);
    let at = unlucky.last().and_then(|turn| turn.over).unwrap_or(since);
    let by = unlucky.iter().map(|turn| (turn.client, turn.op)).take(10).collect();
    Violation { invariant: Invariant::Success, of: "all locks".to_owned(), since, at, by, text }
}

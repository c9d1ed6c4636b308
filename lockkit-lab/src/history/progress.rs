//! The rule of progress: while operations wait for a lock that nobody holds, one of them is granted it
//! in time. It is judged for each lock by itself, since others may be granted all the while.

use std::time::Duration;

use super::excuse::Strike;
use super::judge::{Rule, Violation, nanos, violation};
use super::turn::Turn;

/// Finds locks that were not granted although operations waited for them; returns the longest such time.
/// It may last for `patience`, and for as long as the faults meanwhile; each of several faults may have
/// had a lease begin again, which takes as long once more.
pub(super) fn progress(
    lock: &str,
    turns: &[&Turn],
    strikes: &[Strike],
    (patience, end): (Duration, u64),
    found: &mut Vec<Violation>,
) -> Duration {
    let mut longest = Duration::ZERO;
    for (from, to) in idle_times(turns, end) {
        let waited = Duration::from_nanos(to - from);
        longest = longest.max(waited);
        let (faults, lasted) = faults_within(strikes, from, to);
        let allowed = nanos(patience).saturating_mul(faults.max(1)).saturating_add(lasted);
        if to - from <= allowed {
            continue;
        }
        let waits = |turn: &&Turn| turn.asked < to && turn.answered().unwrap_or(end) > from;
        let waiting: Vec<_> = turns.iter().copied().filter(waits).take(10).collect();
        let allowed = Duration::from_nanos(allowed);
        let text = format!(
            "client {} waited at a free lock that nobody was granted for {waited:?}; {allowed:?} are \
             allowed",
            waiting.first().map_or(0, |turn| turn.client)
        );
        found.push(violation(Rule::Progress, lock, from, to, &waiting, text));
    }
    longest
}

/// The times in which operations waited, no guard was valid, and nobody was granted the lock.
fn idle_times(turns: &[&Turn], end: u64) -> Vec<(u64, u64)> {
    // By how much each moment changes how many wait and hold, and whether one is granted.
    let mut changes: Vec<(u64, i64, i64, bool)> = Vec::new();
    for turn in turns {
        changes.push((turn.asked, 1, 0, false));
        changes.push((turn.answered().unwrap_or(end), -1, 0, turn.held.is_some()));
        if let Some(held) = turn.held.filter(|held| held.told < held.until) {
            changes.push((held.told, 0, 1, false));
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

/// How many faults struck in this time, and for how long of it.
fn faults_within(strikes: &[Strike], from: u64, to: u64) -> (u64, u64) {
    let (mut count, mut lasted, mut counted_to) = (0, 0_u64, from);
    // In the order in which they began.
    for strike in strikes.iter().filter(|strike| strike.begins < to && strike.ends > from) {
        let (begins, ends) = (strike.begins.max(counted_to), strike.ends.min(to));
        lasted += ends.saturating_sub(begins);
        counted_to = counted_to.max(ends);
        count += 1;
    }
    (count, lasted)
}

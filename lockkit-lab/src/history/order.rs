//! The rule of order: nobody gets a lock before a claim that was known to be in line when it asked.

use lockkit_core::queue;

use super::judge::{Rule, Violation, violation};
use super::turn::Turn;

/// Finds operations that were overtaken. A claim that waits, or gets its turn, after another one
/// was granted has been in line all the time, since an ended claim never comes back: so only what
/// was seen counts, and neither a late message nor a lost place looks like overtaking.
pub(super) fn order(lock: &str, turns: &[&Turn], found: &mut Vec<Violation>) {
    let mut granted: Vec<_> = turns.iter().filter_map(|t| Some((t.held?.told, *t))).collect();
    granted.sort_by_key(|(told, _)| *told);
    for turn in turns {
        let Some(place) = turn.place else { continue };
        let until = turn.held.map_or(place.until, |held| held.told);
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
        found.push(violation(Rule::Order, lock, place.from, *at, &by, text));
    }
}

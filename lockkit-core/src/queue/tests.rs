//! Exhaustive in a small scope, by property in a large one.

use proptest::prelude::*;

use super::*;

const MOST_CLAIMS: usize = 5;

/// The modes that meet in one list: those of a lock, and those of semaphores with small limits and
/// every number of permits.
fn families() -> Vec<Vec<Mode>> {
    let permits = |limit| (1..=limit).map(move |permits| Mode::Permits { permits, limit });
    let mut families = vec![vec![Mode::Exclusive, Mode::Shared]];
    families.extend((1..=3).map(|limit| permits(limit).collect()));
    families
}

/// All lists of up to `most` claims of these modes.
fn lists(modes: &[Mode], most: usize) -> Vec<Vec<Mode>> {
    let mut lists = vec![Vec::new()];
    let mut begin = 0;
    for _ in 0..most {
        let end = lists.len();
        for shorter in begin..end {
            for mode in modes {
                let mut longer = lists[shorter].clone();
                longer.push(*mode);
                lists.push(longer);
            }
        }
        begin = end;
    }
    lists
}

/// The rule as the module's docs state it in words.
fn textbook_holds(ahead: &[Mode], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => ahead.is_empty(),
        Mode::Shared => !ahead.contains(&Mode::Exclusive),
        Mode::Permits { permits, limit } => {
            let taken: u64 = ahead.iter().map(|m| permits_of(*m)).sum();
            taken + u64::from(permits) <= u64::from(limit)
        }
    }
}

fn permits_of(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { permits, .. } => permits.into(),
        _ => 0,
    }
}

/// Which claims of a list hold, each judged by the textbook.
fn textbook(queue: &[Mode]) -> Vec<bool> {
    (0..queue.len()).map(|at| textbook_holds(&queue[..at], queue[at])).collect()
}

/// Whether these may hold together, by the textbook.
fn compatible(together: &[Mode]) -> bool {
    let exclusive = together.iter().filter(|m| **m == Mode::Exclusive).count();
    let limit = together.iter().find_map(|m| m.limit());
    let taken: u64 = together.iter().map(|m| permits_of(*m)).sum();
    (exclusive == 0 || together.len() == 1) && limit.is_none_or(|limit| taken <= limit.into())
}

/// What is true of every list.
fn check_list(queue: &[Mode]) {
    let held = holders(queue.iter().copied());
    let judged = textbook(queue);
    let prefix: Vec<bool> = (0..queue.len()).map(|at| at < held).collect();
    assert_eq!(judged, prefix, "the sum says what the words say: {queue:?}");
    assert!(compatible(&queue[..held]), "holders may be together: {queue:?}");
    assert!(queue.is_empty() || held > 0, "the head holds: {queue:?}");
    for (at, a) in queue[..held].iter().enumerate() {
        for b in &queue[..at] {
            assert!(!conflict(*a, *b), "no two holders conflict: {queue:?}");
        }
    }
}

/// Lets claims leave in every order; no holder stops holding by it.
fn check_every_order_of_leaving(queue: &[(usize, Mode)]) {
    let modes = |queue: &[(usize, Mode)]| queue.iter().map(|(_, m)| *m).collect::<Vec<_>>();
    check_list(&modes(queue));
    let held = holders(modes(queue));
    for leaver in 0..queue.len() {
        let mut remaining = queue.to_vec();
        remaining.remove(leaver);
        let now_held = holders(modes(&remaining));
        for (id, _) in queue[..held].iter().filter(|(id, _)| *id != queue[leaver].0) {
            let still = remaining[..now_held].iter().any(|(other, _)| other == id);
            assert!(still, "{id} of {queue:?} stopped holding as {leaver} left");
        }
        check_every_order_of_leaving(&remaining);
    }
}

#[test]
fn in_every_short_list_with_any_claims_dead_the_rule_holds_in_every_order_of_leaving() {
    for modes in families() {
        for queue in lists(&modes, MOST_CLAIMS) {
            for live in 0..1_u32 << queue.len() {
                let is_live = |at: &usize| live >> at & 1 == 1;
                let queue: Vec<Mode> =
                    (0..queue.len()).filter(is_live).map(|at| queue[at]).collect();
                check_list(&queue);
            }
            let queue: Vec<(usize, Mode)> = queue.into_iter().enumerate().collect();
            check_every_order_of_leaving(&queue);
        }
    }
}

/// A list with its past: who ever held, by token.
#[derive(Clone, Default)]
struct Run {
    queue: Vec<(u64, Mode)>,
    ever_held: Vec<(u64, Mode)>,
    last_token: u64,
}

impl Run {
    fn arrive(&mut self, mode: Mode) {
        self.last_token += 1;
        self.queue.push((self.last_token, mode));
        self.begin_to_hold();
    }

    fn leave(&mut self, at: usize) {
        self.queue.remove(at);
        self.begin_to_hold();
    }

    fn begin_to_hold(&mut self) {
        let held = holders(self.queue.iter().map(|(_, m)| *m));
        for (token, mode) in &self.queue[..held] {
            if self.ever_held.iter().any(|(t, _)| t == token) {
                continue;
            }
            for (earlier, other) in &self.ever_held {
                let in_order = earlier < token || !conflict(*other, *mode);
                assert!(in_order, "{token} came after {earlier}: {:?}", self.queue);
            }
            self.ever_held.push((*token, *mode));
        }
    }

    /// Every way in which this can go on with this many claims more.
    fn explore(&self, modes: &[Mode], more: usize) {
        for at in 0..self.queue.len() {
            let mut next = self.clone();
            next.leave(at);
            next.explore(modes, more);
        }
        for mode in modes.iter().filter(|_| more > 0) {
            let mut next = self.clone();
            next.arrive(*mode);
            next.explore(modes, more - 1);
        }
    }
}

#[test]
fn in_every_short_run_tokens_grow_along_conflicting_holders() {
    for modes in families() {
        Run::default().explore(&modes, MOST_CLAIMS);
    }
}

#[test]
fn a_waiting_writer_keeps_later_readers_out_and_a_large_request_is_not_overtaken() {
    use Mode::{Exclusive, Shared};
    assert_eq!(holders([Shared, Shared, Exclusive, Shared]), 2);
    let permits = |permits| Mode::Permits { permits, limit: 3 };
    assert_eq!(holders([permits(2), permits(2), permits(1)]), 1);
    assert!(conflict(permits(2), permits(2)) && !conflict(permits(1), permits(2)));
}

#[test]
fn as_many_readers_hold_as_a_lock_can_carry_and_sums_do_not_overflow() {
    let all = u64::from(LOCK_CAPACITY);
    assert!(admits(all - 1, Mode::Shared) && !admits(all, Mode::Shared));
    assert!(!admits(u64::from(u32::MAX) * u64::from(u32::MAX), Mode::Exclusive));
    let most = Mode::Permits { permits: u32::MAX, limit: u32::MAX };
    assert!(admits(0, most) && conflict(most, most));
}

fn any_family() -> impl Strategy<Value = Vec<Mode>> {
    let lock = prop_oneof![1 => Just(Mode::Exclusive), 4 => Just(Mode::Shared)];
    let locks = proptest::collection::vec(lock, 0..400);
    let semaphores = (1_u32..=2000).prop_flat_map(|limit| {
        let one = (1..=limit).prop_map(move |permits| Mode::Permits { permits, limit });
        let small =
            (1..=limit.div_ceil(100)).prop_map(move |permits| Mode::Permits { permits, limit });
        proptest::collection::vec(prop_oneof![one, small], 0..400)
    });
    prop_oneof![locks, semaphores]
}

proptest! {
    #[test]
    fn in_a_long_list_the_rule_holds_while_claims_leave_anywhere(
        queue in any_family(),
        leavers in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let mut queue: Vec<(usize, Mode)> = queue.into_iter().enumerate().collect();
        let mut held_before: Vec<usize> = Vec::new();
        for leaver in leavers {
            let modes: Vec<Mode> = queue.iter().map(|(_, m)| *m).collect();
            check_list(&modes);
            let held = holders(modes);
            let held_now: Vec<usize> = queue[..held].iter().map(|(id, _)| *id).collect();
            prop_assert!(held_before.iter().all(|id| held_now.contains(id)));
            held_before = held_now;
            if queue.is_empty() {
                break;
            }
            let (removed, _) = queue.remove(leaver.index(queue.len()));
            held_before.retain(|id| *id != removed);
        }
    }

    #[test]
    fn in_a_long_run_tokens_grow_along_conflicting_holders(
        modes in any_family(),
        leavers in proptest::collection::vec(any::<Option<prop::sample::Index>>(), 400),
    ) {
        let mut run = Run::default();
        for (mode, leaver) in modes.into_iter().take(120).zip(leavers) {
            run.arrive(mode);
            if let Some(leaver) = leaver {
                run.leave(leaver.index(run.queue.len()));
            }
        }
    }
}

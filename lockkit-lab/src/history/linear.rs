//! Whether the operations on one register can be put into an order that explains every answer and
//! in which nothing happens before it was asked or after it was answered: the search of Wing and
//! Gong with the memory of Lowe, as porcupine and knossos have it.
//! <https://www.cs.ox.ac.uk/people/gavin.lowe/LinearizabiltyTesting/paper.pdf>

use std::collections::HashSet;

use super::register::{RegisterContent, RegisterResult};

/// One operation. Without an answer it may have taken effect at any time after it was asked, or
/// never.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) asked: u64,
    pub(super) answered: Option<(u64, RegisterResult)>,
    pub(super) token: u64,
    pub(super) write: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Exists,
    /// There is none; at most so many operations can be explained together.
    Impossible {
        explained: usize,
    },
    /// The search was given up.
    Unknown,
}

/// More steps than any history needs that is right.
const STEPS: usize = 2_000_000;

/// Searches an order. `operations` need not be sorted.
pub(super) fn search(operations: &[Operation]) -> Order {
    let (mut answered, ambiguous): (Vec<_>, Vec<_>) =
        operations.iter().partition(|op| op.answered.is_some());
    answered.sort_by_key(|op| op.asked);
    let search = Search { answered, ambiguous };
    let mut seen = HashSet::new();
    let (mut steps, mut best) = (0, 0);
    // Depth first, without recursion: histories are longer than stacks.
    let mut path = vec![(search.choices(&Point::default()), Point::default())];
    while let Some((choices, point)) = path.last_mut() {
        if point.explained(&search) {
            return Order::Exists;
        }
        steps += 1;
        if steps > STEPS {
            return Order::Unknown;
        }
        let Some(next) = choices.pop() else {
            path.pop();
            continue;
        };
        if seen.insert(next.clone()) {
            best = best.max(next.first + next.beyond.len());
            path.push((search.choices(&next), next));
        }
    }
    Order::Impossible { explained: best }
}

struct Search<'a> {
    /// In the order in which they were asked.
    answered: Vec<&'a Operation>,
    ambiguous: Vec<&'a Operation>,
}

/// Which operations were put in order so far, and the state after them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Point {
    /// All answered ones below this index.
    first: usize,
    /// And these above it.
    beyond: Vec<usize>,
    /// And these ambiguous ones.
    guessed: Vec<usize>,
    state: RegisterContent,
}

impl Point {
    fn explained(&self, search: &Search<'_>) -> bool {
        self.first == search.answered.len()
    }

    fn after_answered(&self, i: usize, state: RegisterContent) -> Self {
        let mut next = self.clone();
        next.state = state;
        next.beyond.push(i);
        next.beyond.sort_unstable();
        while next.beyond.first() == Some(&next.first) {
            next.beyond.remove(0);
            next.first += 1;
        }
        next
    }

    fn after_unanswered(&self, i: usize, state: RegisterContent) -> Self {
        let mut next = self.clone();
        next.state = state;
        next.guessed.push(i);
        next.guessed.sort_unstable();
        next
    }
}

impl Search<'_> {
    /// What may come next, the best guess last.
    fn choices(&self, point: &Point) -> Vec<Point> {
        // Nothing may come before an operation that was answered before it was asked.
        let mut first_answer = u64::MAX;
        let mut open = Vec::new();
        for (i, op) in self.answered.iter().enumerate().skip(point.first) {
            if op.asked > first_answer {
                break;
            }
            if point.beyond.binary_search(&i).is_err() {
                first_answer = first_answer.min(op.answered.map_or(u64::MAX, |(at, _)| at));
                open.push(i);
            }
        }
        let mut choices = Vec::new();
        for (i, op) in self.ambiguous.iter().enumerate() {
            let mut state = point.state;
            state.apply(op.token, op.write);
            // One that changes nothing need not have happened.
            let useful = state != point.state && op.asked <= first_answer;
            if useful && point.guessed.binary_search(&i).is_err() {
                choices.push(point.after_unanswered(i, state));
            }
        }
        for i in open.into_iter().rev() {
            let op = self.answered[i];
            let mut state = point.state;
            let answer = state.apply(op.token, op.write);
            if op.asked <= first_answer && op.answered.is_some_and(|(_, given)| given == answer) {
                choices.push(point.after_answered(i, state));
            }
        }
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(
        asked: u64,
        answered: u64,
        token: u64,
        write: Option<u64>,
        answer: RegisterResult,
    ) -> Operation {
        Operation { asked, answered: Some((answered, answer)), token, write }
    }

    fn done(value: u64) -> RegisterResult {
        RegisterResult::Done { value }
    }

    #[test]
    fn operations_one_after_the_other_have_their_order() {
        let ops = [op(0, 1, 1, Some(5), done(5)), op(2, 3, 2, None, done(5))];
        assert_eq!(search(&ops), Order::Exists);
    }

    #[test]
    fn a_value_from_nowhere_has_none() {
        let ops = [op(0, 1, 1, Some(5), done(5)), op(2, 3, 2, None, done(6))];
        assert_eq!(search(&ops), Order::Impossible { explained: 1 });
    }

    #[test]
    fn concurrent_operations_may_go_either_way() {
        let both = |seen| [op(0, 9, 1, Some(5), done(5)), op(1, 8, 1, None, done(seen))];
        assert_eq!(search(&both(5)), Order::Exists);
        assert_eq!(search(&both(0)), Order::Exists);
    }

    #[test]
    fn an_unanswered_write_may_have_happened_late_or_never() {
        let lost = Operation { asked: 0, answered: None, token: 1, write: Some(5) };
        let late = [lost.clone(), op(1, 2, 1, None, done(0)), op(3, 4, 1, None, done(5))];
        let never = [lost.clone(), op(1, 2, 2, None, done(0)), op(3, 4, 2, None, done(0))];
        assert_eq!(search(&late), Order::Exists);
        assert_eq!(search(&never), Order::Exists);
        let back = [lost, op(1, 2, 1, None, done(5)), op(3, 4, 1, None, done(0))];
        assert!(matches!(search(&back), Order::Impossible { .. }));
    }

    #[test]
    fn a_token_below_the_highest_must_be_refused() {
        let stale = RegisterResult::Stale { highest: 2 };
        let right = [op(0, 1, 2, Some(1), done(1)), op(2, 3, 1, Some(9), stale)];
        let wrong = [op(0, 1, 2, Some(1), done(1)), op(2, 3, 1, Some(9), done(9))];
        assert_eq!(search(&right), Order::Exists);
        assert!(matches!(search(&wrong), Order::Impossible { .. }));
    }

    #[test]
    fn ten_thousand_operations_are_no_trouble() {
        let ops: Vec<_> = (0..10_000).map(|i| op(2 * i, 2 * i + 3, i, Some(i), done(i))).collect();
        assert_eq!(search(&ops), Order::Exists);
    }
}

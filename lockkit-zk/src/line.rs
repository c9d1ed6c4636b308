//! A list of claims as one look at its folder shows it, and what the rule says about one of them.
//! No I/O.

use std::collections::{HashMap, HashSet};

use lockkit_core::queue;
use lockkit_core::{Mode, Token};

use crate::given::Given;
use crate::paths::{Child, Kind, Tag};

/// The claims of a folder, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    claims: Vec<Child>,
    /// The limit that it was given, if it was.
    given: Option<Given>,
}

/// What a claim's place means for it.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Holds,
    Waits(Ahead),
    /// The semaphore is in use with this limit.
    OtherLimit(u32),
}

/// What stands ahead of a claim that must wait.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    /// How many claims.
    pub(crate) count: u32,
    /// The node whose leaving is to be watched: the last one ahead that conflicts. None for
    /// permits, where any holder may make room.
    pub(crate) blocker: Option<String>,
    /// Whether nothing else ahead conflicts, so that the claim holds as soon as it is gone.
    pub(crate) sole: bool,
}

impl Line {
    /// Reads the names of the children. What is not ours is left out.
    pub(crate) fn of(names: Vec<String>) -> Self {
        let mut claims = Vec::with_capacity(names.len());
        let mut downgraded = HashSet::new();
        let mut given = None;
        for name in names {
            match Kind::of(name) {
                Kind::Claim(child) => claims.push(child),
                Kind::Downgraded(tag) => drop(downgraded.insert(tag)),
                Kind::Given(limit) => given = Some(limit),
                Kind::Foreign => {}
            }
        }
        for child in claims.iter_mut().filter(|c| downgraded.contains(&c.tag)) {
            child.mode = Mode::Shared;
        }
        if let Some(given) = given {
            claims.iter_mut().for_each(|c| c.mode = given.counted(c.mode));
        }
        claims.sort_by(Child::order);
        Self { claims, given }
    }

    /// Whether names do not tell the order: some are near the end of the numbers.
    pub(crate) fn is_unsure(&self) -> bool {
        self.claims.iter().any(Child::is_near_the_end)
    }

    /// Puts those in order of which this tells, by name, by which change they were made; or that
    /// they have left.
    pub(crate) fn settle(&mut self, made: &HashMap<String, Option<i64>>) {
        self.claims.retain_mut(|child| match made.get(&child.name) {
            Some(Some(change)) => {
                child.made = *change;
                true
            }
            Some(None) => false,
            None => true,
        });
        self.claims.sort_by(Child::order);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    pub(crate) fn claims(&self) -> &[Child] {
        &self.claims
    }

    /// The limit that it was given, if it was.
    pub(crate) fn given(&self) -> Option<Given> {
        self.given
    }

    /// The limit that it has: the one that it was given, or is in use with.
    pub(crate) fn limit(&self) -> Option<u32> {
        let in_use = || self.claims.first().and_then(|c| c.mode.limit());
        self.given.map(|given| given.limit).or_else(in_use)
    }

    /// How many claims hold, but for those that hold on under a limit that was lowered.
    pub(crate) fn holders(&self) -> usize {
        queue::holders(self.claims.iter().map(|c| c.mode))
    }

    /// The nodes of a claim, first the one that counts. More than one there are only when a create
    /// was repeated whose first attempt came late.
    pub(crate) fn find(&self, tag: &Tag) -> Vec<&Child> {
        self.claims.iter().filter(|c| c.tag == *tag).collect()
    }

    /// The verdict on the claim whose node has this name, and the claim this token; `None` when it
    /// is not there.
    pub(crate) fn verdict(&self, name: &str, token: Token) -> Option<Verdict> {
        let place = self.claims.iter().position(|c| c.name == name)?;
        if self.given.is_some_and(|given| given.holds_on(token)) {
            return Some(Verdict::Holds);
        }
        Some(self.verdict_at(place, self.claims[place].mode))
    }

    /// The verdict on a claim that would come now.
    pub(crate) fn verdict_at_end(&self, mode: Mode) -> Verdict {
        self.verdict_at(self.claims.len(), mode)
    }

    fn verdict_at(&self, place: usize, mode: Mode) -> Verdict {
        let ahead = &self.claims[..place];
        let in_use = || ahead.first().and_then(|c| c.mode.limit());
        let limit = self.given.map(|given| given.limit).or_else(in_use);
        if let (Some(asked), Some(limit)) = (mode.limit(), limit)
            && asked != limit
        {
            return Verdict::OtherLimit(limit);
        }
        let weight = ahead.iter().map(|c| u64::from(c.mode.weight())).sum();
        if queue::admits(weight, mode) {
            return Verdict::Holds;
        }
        let count = place as u32;
        if mode.limit().is_some() {
            return Verdict::Waits(Ahead { count, blocker: None, sole: false });
        }
        let mut conflicting = ahead.iter().rev().filter(|c| queue::conflict(c.mode, mode));
        let blocker = conflicting.next().map(|c| c.name.clone());
        Verdict::Waits(Ahead { count, blocker, sole: conflicting.next().is_none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkit_core::driver::ClaimId;

    fn token() -> Token {
        Token::new(1 << 40).unwrap()
    }

    fn line(modes: &[Mode]) -> (Line, Vec<String>) {
        let names: Vec<_> = (0..)
            .zip(modes)
            .map(|(n, mode)| format!("{}{n:010}", Tag::of(ClaimId::random()).prefix_of(*mode)))
            .collect();
        (Line::of(names.iter().rev().cloned().collect()), names)
    }

    #[test]
    fn a_writer_watches_the_last_ahead_and_a_reader_the_last_writer() {
        use Mode::{Exclusive as X, Shared as S};
        let (line, names) = line(&[S, X, S, X]);
        assert_eq!(line.holders(), 1);
        assert!(matches!(line.verdict(&names[0], token()), Some(Verdict::Holds)));
        for (claim, blocker, sole) in [(1, 0, true), (2, 1, true), (3, 2, false)] {
            let Some(Verdict::Waits(ahead)) = line.verdict(&names[claim], token()) else {
                panic!("{claim} holds");
            };
            assert_eq!((ahead.blocker.as_ref(), ahead.sole), (Some(&names[blocker]), sole));
            assert_eq!(ahead.count as usize, claim);
        }
        assert!(line.verdict("x-gone", token()).is_none());
    }

    #[test]
    fn a_marker_makes_a_writer_a_reader_in_its_place() {
        let tag = Tag::of(ClaimId::random());
        let writer = format!("{}0000000001", tag.prefix_of(Mode::Exclusive));
        let reader = format!("{}0000000002", Tag::of(ClaimId::random()).prefix_of(Mode::Shared));
        let names = vec![reader.clone(), writer, tag.marker(), "somebody's".to_owned()];
        let line = Line::of(names);
        assert_eq!((line.claims().len(), line.holders()), (2, 2));
        assert!(matches!(line.verdict(&reader, token()), Some(Verdict::Holds)));
    }

    #[test]
    fn near_the_end_of_the_numbers_the_changes_tell_the_order() {
        let name = |sequence: i64| {
            format!("{}{sequence:010}", Tag::of(ClaimId::random()).prefix_of(Mode::Exclusive))
        };
        let last = i64::from(i32::MAX);
        let (a, b, c, d) = (name(last - 1), name(last), name(last), name(last));
        let e = name(i64::from(i32::MIN)); // came at once with another, before `b`
        let mut line = Line::of([&d, &b, &e, &a, &c].map(String::clone).to_vec());
        assert!(line.is_unsure() && !Line::of(vec![name(1), name(2)]).is_unsure());
        let made = [(&a, Some(5)), (&b, Some(7)), (&c, None), (&d, Some(9)), (&e, Some(6))];
        line.settle(&made.into_iter().map(|(name, made)| (name.clone(), made)).collect());
        let order: Vec<_> = line.claims().iter().map(|child| &child.name).collect();
        assert_eq!(order, [&a, &e, &b, &d]);
    }

    #[test]
    fn permits_add_up_and_another_limit_is_told() {
        let two = Mode::Permits { permits: 2, limit: 3 };
        let (line, names) = line(&[two, two]);
        assert!(
            matches!(line.verdict(&names[1], token()), Some(Verdict::Waits(a)) if a.blocker.is_none())
        );
        let other = Mode::Permits { permits: 1, limit: 4 };
        assert!(matches!(line.verdict_at_end(other), Verdict::OtherLimit(3)));
    }

    #[test]
    fn who_held_when_the_limit_was_lowered_holds_on_and_others_by_the_sum() {
        let holders = |permits: &[u32], limit, until| {
            let modes = permits.iter().map(|permits| Mode::Permits { permits: *permits, limit: 9 });
            let names = (0..)
                .zip(modes)
                .map(|(n, mode)| format!("{}{n:010}", Tag::of(ClaimId::random()).prefix_of(mode)));
            let names: Vec<_> = names.collect();
            let given = Given { limit, until };
            let line = Line::of([names.clone(), vec![given.name()]].concat());
            let holds = |(name, token): (&String, u64)| {
                matches!(line.verdict(name, Token::new(token).unwrap()), Some(Verdict::Holds))
            };
            names.iter().zip(11..).map(holds).collect::<Vec<_>>()
        };
        assert_eq!(holders(&[1, 1, 1], 2, 0), [true, true, false]);
        assert_eq!(holders(&[1, 1, 1, 1], 2, 13), [true, true, true, false]);
        assert_eq!(holders(&[2, 1], 0, 11), [true, false]);
        // Those that held have left: their place means nothing for who came later.
        assert_eq!(holders(&[1, 1, 1], 2, 10), [true, true, false]);
        assert_eq!(holders(&[3, 1], 2, 0), [false, false]);
    }

    #[test]
    fn a_list_that_was_given_a_limit_takes_no_other_one_and_knows_those_in_it() {
        let old = Mode::Permits { permits: 1, limit: 9 };
        let name = format!("{}0000000001", Tag::of(ClaimId::random()).prefix_of(old));
        let given = Given { limit: 4, until: 0 };
        let line = Line::of(vec![given.name(), name.clone()]);
        assert!(matches!(line.verdict(&name, token()), Some(Verdict::Holds)));
        assert_eq!((line.limit(), line.claims()[0].mode.limit()), (Some(4), Some(4)));
        for line in [line, Line::of(vec![given.name()])] {
            assert!(matches!(line.verdict_at_end(old), Verdict::OtherLimit(4)));
        }
    }
}

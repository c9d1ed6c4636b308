//! A list as it was read, for drivers whose server keeps the order and whose client applies the
//! rule.

use crate::Mode;
use crate::answers::SetLimit;
use crate::queue::{admits, conflict, holders};

/// The attempts of a resize that insist on the claims that were read.
pub const EXACT_ATTEMPTS: usize = 16;

/// A claim of a list, as a server showed it.
pub trait QueueMember {
    /// How it counts.
    fn mode(&self) -> Mode;
    /// Lets it count as this.
    fn count_as(&mut self, mode: Mode);
}

/// The limit that a semaphore was given, and which claims hold whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenLimit {
    /// How many permits there are.
    pub limit: u32,
    /// Claims whose token is not greater than this held when the limit was lowered, and hold on.
    /// (Holders are the front of the list, and tokens grow along it: so one number is enough.)
    pub until: u64,
}

impl GivenLimit {
    /// How a claim counts in a list of this limit, whatever limit it was made with.
    pub const fn counted(self, mode: Mode) -> Mode {
        match mode {
            Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.limit },
            other => other,
        }
    }
}

/// The live claims of a list, in order, as one look showed them: what the [rule](super) says about
/// each.
///
/// ```
/// use lockkit_core::Mode;
/// use lockkit_core::queue::{Member, Queue, Verdict};
///
/// /// What a driver reads of a claim.
/// struct Read { mode: Mode, token: u64 }
///
/// impl Member for Read {
///     fn mode(&self) -> Mode { self.mode }
///     fn count_as(&mut self, mode: Mode) { self.mode = mode }
/// }
///
/// let read = |mode, token| Read { mode, token };
/// let members = vec![read(Mode::Shared, 3), read(Mode::Shared, 5), read(Mode::Exclusive, 8)];
/// let queue = Queue::new(members, None, 0);
/// assert!(matches!(queue.verdict(1, 5), Verdict::Holds));
/// match queue.verdict(2, 8) {
///     Verdict::Waits(ahead) => assert_eq!(ahead.blocker.map(|claim| claim.token), Some(5)),
///     _ => unreachable!("the writer waits for both readers"),
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Queue<C> {
    members: Vec<C>,
    given: Option<GivenLimit>,
    hidden: usize,
}

impl<C> Default for Queue<C> {
    fn default() -> Self {
        Self { members: Vec::new(), given: None, hidden: 0 }
    }
}

/// What the rule says about a claim.
#[derive(Debug)]
pub enum RuleResult<'a, C> {
    /// It holds.
    Holds,
    /// It waits.
    Waits(Ahead<'a, C>),
    /// The semaphore has another limit than the claim: this one.
    OtherLimit(u32),
}

/// What is ahead of a claim that waits.
#[derive(Debug)]
pub struct Ahead<'a, C> {
    /// How many claims.
    pub count: u32,
    /// The last one that conflicts with it, whose leaving is worth a look; `None` for permits, where
    /// any holder may make room.
    pub blocker: Option<&'a C>,
    /// Whether nothing else that was shown conflicts, so that it holds as soon as this one is gone.
    pub sole: bool,
}

/// What a request for a limit asks to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitWrite {
    /// Nothing: the semaphore has this limit.
    None(u32),
    /// This limit, in place of the one that the queue was given, if it was.
    To(u32),
}

/// How a list gets another limit, and no claim in it is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// What is to be written.
    pub given: GivenLimit,
    /// So many claims at the front must still be there when it is written: where one of them has
    /// left, another may have begun to hold.
    pub rests_on: usize,
}

impl<C: QueueMember> Queue<C> {
    /// A list of these claims, in order, with the limit that it was given, if it was. Of its front
    /// so many claims were not shown.
    pub fn new(mut members: Vec<C>, given: Option<GivenLimit>, hidden: usize) -> Self {
        if let Some(given) = given {
            members.iter_mut().for_each(|member| member.count_as(given.counted(member.mode())));
        }
        Self { members, given, hidden }
    }

    /// The claims, in order.
    pub fn members(&self) -> &[C] {
        &self.members
    }

    /// The limit that the list was given, if it was.
    pub fn given(&self) -> Option<GivenLimit> {
        self.given
    }

    /// The limit that the list has: the one that it was given, or is in use with.
    pub fn limit(&self) -> Option<u32> {
        self.limit_before(self.members.len())
    }

    fn limit_before(&self, position: usize) -> Option<u32> {
        let in_use = || self.members[..position].iter().find_map(|member| member.mode().limit());
        self.given.map(|given| given.limit).or_else(in_use)
    }

    /// How many claims are ahead of this place, those that were not shown among them.
    pub fn ahead(&self, position: usize) -> u32 {
        u32::try_from(position + self.hidden).unwrap_or(u32::MAX)
    }

    /// The verdict on the claim at this place of [`members`](Self::members), which has this token.
    pub fn rule_for(&self, position: usize, token: u64) -> RuleResult<'_, C> {
        match self.given {
            Some(given) if token <= given.until => RuleResult::Holds,
            _ => self.rule_before(position, self.members[position].mode()),
        }
    }

    /// The verdict on a claim that would come now.
    pub fn rule_at_end(&self, mode: Mode) -> RuleResult<'_, C> {
        self.rule_before(self.members.len(), mode)
    }

    fn rule_before(&self, position: usize, mode: Mode) -> RuleResult<'_, C> {
        if let (Some(asked), Some(limit)) = (mode.limit(), self.limit_before(position))
            && asked != limit
        {
            return RuleResult::OtherLimit(limit);
        }
        let ahead = &self.members[..position];
        let weight = ahead.iter().map(|member| u64::from(member.mode().weight())).sum();
        if self.hidden == 0 && admits(weight, mode) {
            return RuleResult::Holds;
        }
        let in_pairs = mode.limit().is_none();
        let mut conflicting =
            ahead.iter().rev().filter(|member| in_pairs && conflict(member.mode(), mode));
        let blocker = conflicting.next();
        let sole = self.hidden == 0 && blocker.is_some() && conflicting.next().is_none();
        RuleResult::Waits(Ahead { count: self.ahead(position), blocker, sole })
    }

    /// How many claims hold, given the tokens of all in order. They are the first ones.
    pub fn holders(&self, tokens: impl IntoIterator<Item = u64>) -> usize {
        let by_the_sum = match self.hidden {
            0 => holders(self.members.iter().map(QueueMember::mode)),
            _ => 0,
        };
        let holds_on = |token: u64| self.given.is_some_and(|given| token <= given.until);
        let holds = |(position, token): &(usize, u64)| *position < by_the_sum || holds_on(*token);
        tokens.into_iter().enumerate().take_while(holds).count()
    }

    /// What a request for a limit asks to be written, as the queue is now. A driver writes it under the
    /// condition that the queue is still so (with [`resizing`](Self::resizing)), and otherwise reads it
    /// again: exactly in the first [`EXACT_ATTEMPTS`] of
    /// [`retry_conflicts`](crate::driver::retry_conflicts); afterwards only the limit must be the same,
    /// since claims that come and go must not keep the limit from changing.
    pub fn limit_write(&self, asked: SetLimit) -> LimitWrite {
        match (asked, self.given) {
            (SetLimit::IfUnset(_), Some(given)) => LimitWrite::None(given.limit),
            (SetLimit::To(limit), Some(given)) if given.limit == limit => LimitWrite::None(limit),
            (SetLimit::To(limit), _) => LimitWrite::To(limit),
            (SetLimit::IfUnset(limit), None) => LimitWrite::To(self.limit().unwrap_or(limit)),
        }
    }

    /// What gives this list another limit, given the tokens of all claims in order.
    pub fn resizing(&self, limit: u32, tokens: &[u64]) -> Resizing {
        let until = self.given.map_or(0, |given| given.until);
        if self.limit().is_none_or(|now| now <= limit) {
            return Resizing { given: GivenLimit { limit, until }, rests_on: 0 };
        }
        let holders = self.holders(tokens.iter().copied());
        let last = tokens[..holders].last().copied().unwrap_or(0);
        let given = GivenLimit { limit, until: until.max(last) };
        // Without waiters it does not matter which claim leaves; otherwise that of any holder does, and
        // that of the first that waits, which is in the way of others.
        let rests_on = if holders < tokens.len() { holders + 1 } else { 0 };
        Resizing { given, rests_on }
    }

    /// Takes out the claims that have left.
    pub fn retain(&mut self, stays: impl FnMut(&C) -> bool) {
        self.members.retain(stays);
    }

    /// Notes what became of a claim that is still there.
    pub fn update(&mut self, position: usize, mut member: C) {
        if let Some(given) = self.given {
            member.count_as(given.counted(member.mode()));
        }
        self.members[position] = member;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueueMember for Mode {
        fn mode(&self) -> Mode {
            *self
        }

        fn count_as(&mut self, mode: Mode) {
            *self = mode;
        }
    }

    fn permits(permits: &[u32], limit: u32) -> Vec<Mode> {
        permits.iter().map(|permits| Mode::Permits { permits: *permits, limit }).collect()
    }

    /// A list that was given a limit, whose claims came with another one and have tokens from 11 on.
    fn given(of: &[u32], limit: u32, until: u64) -> Queue<Mode> {
        Queue::new(permits(of, 9), Some(GivenLimit { limit, until }), 0)
    }

    fn tokens(queue: &Queue<Mode>) -> Vec<u64> {
        (11..).take(queue.members().len()).collect()
    }

    #[test]
    fn a_writer_waits_for_the_last_ahead_and_a_reader_for_the_last_writer() {
        use Mode::{Exclusive as X, Shared as S};
        // Claims with an identity, to tell them apart.
        #[derive(Debug)]
        struct One(usize, Mode);
        impl QueueMember for One {
            fn mode(&self) -> Mode {
                self.1
            }
            fn count_as(&mut self, mode: Mode) {
                self.1 = mode;
            }
        }
        let claims =
            || [S, X, S, X].into_iter().enumerate().map(|(n, mode)| One(n, mode)).collect();
        let queue = Queue::new(claims(), None, 0);
        assert!(matches!(queue.rule_for(0, 11), RuleResult::Holds));
        for (position, blocker, sole) in [(1, 0, true), (2, 1, true), (3, 2, false)] {
            let RuleResult::Waits(ahead) = queue.rule_for(position, 11) else {
                panic!("{position} holds");
            };
            let blocked_by = ahead.blocker.map(|one| one.0);
            assert_eq!((blocked_by, ahead.sole), (Some(blocker), sole));
            assert_eq!(ahead.count as usize, position);
        }
        // Of a queue whose front was not read no claim holds, and what else is ahead is unknown.
        let queue = Queue::new(claims(), None, 5);
        let RuleResult::Waits(ahead) = queue.rule_for(0, 11) else { panic!("it holds") };
        assert_eq!((ahead.count, ahead.sole, queue.holders(11..15)), (5, false, 0));
        let RuleResult::Waits(ahead) = queue.rule_for(1, 12) else { panic!("it holds") };
        assert_eq!((ahead.count, ahead.sole), (6, false));
    }

    #[test]
    fn permits_add_up_and_another_limit_is_told() {
        let queue = Queue::new(permits(&[2, 2], 3), None, 0);
        let RuleResult::Waits(ahead) = queue.rule_for(1, 12) else { panic!("it holds") };
        assert!(ahead.blocker.is_none() && !ahead.sole);
        let other = Mode::Permits { permits: 1, limit: 4 };
        assert!(matches!(queue.rule_at_end(other), RuleResult::OtherLimit(3)));
        assert!(matches!(
            given(&[], 4, 0).rule_at_end(permits(&[1], 9)[0]),
            RuleResult::OtherLimit(4)
        ));
    }

    #[test]
    fn who_held_when_the_limit_was_lowered_holds_on_and_others_by_the_sum() {
        let cases: [(&[u32], _, _, &[bool]); 5] = [
            (&[1, 1, 1], 2, 0, &[true, true, false]),
            (&[1, 1, 1, 1], 2, 13, &[true, true, true, false]),
            (&[2, 1], 0, 11, &[true, false]),
            // Those that held have left: their place means nothing for who came later.
            (&[1, 1, 1], 2, 10, &[true, true, false]),
            (&[3, 1], 2, 0, &[false, false]),
        ];
        for (of, limit, until, expected) in cases {
            let queue = given(of, limit, until);
            let holds =
                |(position, token)| matches!(queue.rule_for(position, token), RuleResult::Holds);
            let held: Vec<_> = tokens(&queue).into_iter().enumerate().map(holds).collect();
            assert_eq!(held, expected, "{of:?} of {limit}");
            let holders = expected.iter().filter(|holds| **holds).count();
            assert_eq!(queue.holders(tokens(&queue)), holders, "{of:?} of {limit}");
        }
    }

    #[test]
    fn a_lower_limit_names_the_last_that_holds_and_rests_on_all_who_do() {
        let lowered = |queue: &Queue<Mode>, limit| {
            let resizing = queue.resizing(limit, &tokens(queue));
            assert_eq!(resizing.given.limit, limit);
            (resizing.given.until, resizing.rests_on)
        };
        let four = Queue::new(permits(&[1, 1, 1, 1], 3), None, 0);
        assert_eq!(lowered(&four, 2), (13, 4));
        assert_eq!(lowered(&four, 0), (13, 4));
        assert_eq!(lowered(&four, 5), (0, 0), "it is raised");
        let two = Queue::new(permits(&[1, 1], 3), None, 0);
        assert_eq!(lowered(&two, 1), (12, 0), "nobody waits");
        // A limit that was lowered before, below what is out.
        assert_eq!(lowered(&given(&[1, 1, 1, 1], 1, 12), 0), (12, 3));
        // The second wants more than there is, and another is behind it.
        let large = Queue::new(permits(&[1, 3, 1], 3), None, 0);
        assert_eq!(lowered(&large, 0), (11, 2));
        assert_eq!(lowered(&Queue::new(Vec::new(), None, 0), 7), (0, 0));
    }

    #[test]
    fn a_limit_is_written_unless_the_semaphore_has_it() {
        let unset = Queue::new(permits(&[1], 3), None, 0);
        assert_eq!(unset.limit_write(SetLimit::IfUnset(7)), LimitWrite::To(3));
        assert_eq!(unset.limit_write(SetLimit::To(3)), LimitWrite::To(3));
        let empty = Queue::<Mode>::default();
        assert_eq!(empty.limit_write(SetLimit::IfUnset(7)), LimitWrite::To(7));
        let set = given(&[1], 4, 0);
        assert_eq!(set.limit_write(SetLimit::IfUnset(7)), LimitWrite::None(4));
        assert_eq!(set.limit_write(SetLimit::To(4)), LimitWrite::None(4));
        assert_eq!(set.limit_write(SetLimit::To(7)), LimitWrite::To(7));
    }

    #[test]
    fn a_claim_that_changes_counts_by_the_limit_of_the_list() {
        let mut queue = given(&[1, 1], 4, 0);
        queue.update(1, Mode::Permits { permits: 2, limit: 9 });
        assert_eq!(queue.members()[1], Mode::Permits { permits: 2, limit: 4 });
        queue.retain(|member| member.weight() == 2);
        assert_eq!(queue.members().len(), 1);
    }
}

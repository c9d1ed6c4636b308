//! A queue of claims as one list of its folder shows it. The rule itself is core's. No I/O.

use std::collections::{HashMap, HashSet};

use lockkit_core::queue::{Queue, QueueMember, RuleResult};
use lockkit_core::{Mode, Token};

use crate::paths::{Child, NodeKind, NodeTag};

/// The claims of a folder, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSnapshot {
    queue: Queue<Child>,
}

impl QueueMember for Child {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn count_as(&mut self, mode: Mode) {
        self.mode = mode;
    }
}

impl QueueSnapshot {
    /// Reads the names of the children. What is not ours is left out.
    pub(crate) fn of(names: Vec<String>) -> Self {
        let mut claims = Vec::with_capacity(names.len());
        let mut downgraded = HashSet::new();
        let mut given = None;
        for name in names {
            match NodeKind::of(name) {
                NodeKind::Claim(child) => claims.push(child),
                NodeKind::Downgraded(tag) => drop(downgraded.insert(tag)),
                NodeKind::Limit(limit) => given = Some(limit),
                NodeKind::Foreign => {}
            }
        }
        for child in claims.iter_mut().filter(|c| downgraded.contains(&c.tag)) {
            child.mode = Mode::Shared;
        }
        claims.sort_by(Child::order);
        Self { queue: Queue::new(claims, given, 0) }
    }

    pub(crate) fn queue(&self) -> &Queue<Child> {
        &self.queue
    }

    /// Whether names do not tell the order: some are near the end of the numbers.
    pub(crate) fn is_unsure(&self) -> bool {
        self.claims().iter().any(Child::is_near_the_end)
    }

    /// Puts those in order of which this tells, by name, by which change they were made; or that
    /// they have left.
    pub(crate) fn put_in_order(&mut self, made: &HashMap<String, Option<i64>>) {
        let there = |mut child: Child| match made.get(&child.name) {
            Some(change) => change.map(|change| {
                child.made = change;
                child
            }),
            None => Some(child),
        };
        let mut claims: Vec<_> = self.claims().iter().cloned().filter_map(there).collect();
        claims.sort_by(Child::order);
        self.queue = Queue::new(claims, self.queue.given(), 0);
    }

    pub(crate) fn claims(&self) -> &[Child] {
        self.queue.members()
    }

    /// The paths of their nodes in this folder.
    pub(crate) fn paths(&self, folder: &str) -> Vec<String> {
        self.claims().iter().map(|child| format!("{folder}/{}", child.name)).collect()
    }

    /// The nodes of a claim, first the one that counts. More than one there are only when a create
    /// was repeated whose first attempt came late.
    pub(crate) fn find(&self, tag: &NodeTag) -> Vec<&Child> {
        self.claims().iter().filter(|c| c.tag == *tag).collect()
    }

    /// The rule_result on the claim whose node has this name, and the claim this token; `None` when it
    /// is not there.
    pub(crate) fn rule_result(&self, name: &str, token: Token) -> Option<RuleResult<'_, Child>> {
        let position = self.claims().iter().position(|c| c.name == name)?;
        Some(self.queue.rule_for(position, token.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed_limit::node_name;
    use lockkit_core::driver::ClaimId;
    use lockkit_core::queue::GivenLimit;

    fn token() -> Token {
        Token::new(1 << 40).unwrap()
    }

    #[test]
    fn a_marker_makes_a_writer_a_reader_in_its_place() {
        let tag = NodeTag::of(ClaimId::random());
        let writer = format!("{}0000000001", tag.prefix_of(Mode::Exclusive));
        let reader =
            format!("{}0000000002", NodeTag::of(ClaimId::random()).prefix_of(Mode::Shared));
        let names = vec![reader.clone(), writer, tag.marker(), "somebody's".to_owned()];
        let snapshot = QueueSnapshot::of(names);
        assert_eq!((snapshot.claims().len(), snapshot.queue().holders([1, 2])), (2, 2));
        assert!(matches!(snapshot.rule_result(&reader, token()), Some(RuleResult::Holds)));
    }

    #[test]
    fn near_the_end_of_the_numbers_the_changes_tell_the_order() {
        let name = |sequence: i64| {
            format!("{}{sequence:010}", NodeTag::of(ClaimId::random()).prefix_of(Mode::Exclusive))
        };
        let last = i64::from(i32::MAX);
        let (a, b, c, d) = (name(last - 1), name(last), name(last), name(last));
        let e = name(i64::from(i32::MIN)); // came at once with another, before `b`
        let mut snapshot = QueueSnapshot::of([&d, &b, &e, &a, &c].map(String::clone).to_vec());
        assert!(snapshot.is_unsure() && !QueueSnapshot::of(vec![name(1), name(2)]).is_unsure());
        let made = [(&a, Some(5)), (&b, Some(7)), (&c, None), (&d, Some(9)), (&e, Some(6))];
        snapshot.put_in_order(&made.into_iter().map(|(name, made)| (name.clone(), made)).collect());
        let order: Vec<_> = snapshot.claims().iter().map(|child| &child.name).collect();
        assert_eq!(order, [&a, &e, &b, &d]);
    }

    #[test]
    fn a_list_that_was_given_a_limit_takes_no_other_one_and_knows_those_in_it() {
        let old = Mode::Permits { permits: 1, limit: 9 };
        let name = format!("{}0000000001", NodeTag::of(ClaimId::random()).prefix_of(old));
        let given = node_name(GivenLimit { limit: 4, until: 0 });
        let snapshot = QueueSnapshot::of(vec![given.clone(), name.clone()]);
        assert!(matches!(snapshot.rule_result(&name, token()), Some(RuleResult::Holds)));
        assert_eq!(
            (snapshot.queue().limit(), snapshot.claims()[0].mode.limit()),
            (Some(4), Some(4))
        );
        for snapshot in [snapshot, QueueSnapshot::of(vec![given])] {
            assert!(matches!(snapshot.queue().rule_at_end(old), RuleResult::OtherLimit(4)));
        }
    }
}

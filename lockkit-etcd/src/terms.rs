//! Since when which member answers in which raft term. No I/O.
//!
//! etcd fills the header of some answers only after the leader gave its part: a follower that had
//! forwarded a question to a leader that lost its majority, and heard of the election meanwhile, shows
//! the new term with the old leader's answer. (The source: `LeaseTimeToLive` in etcd's
//! `v3rpc/lease.go`.) A member that had answered in the term before it was asked forwards to no older
//! leader.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use etcd_client::ResponseHeader;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Evidence, locked};

/// The last term of each member, and when the first answer in it arrived.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    members: Mutex<HashMap<u64, (u64, Moment)>>,
    /// Of which cluster the last answer was; 0 before there was one.
    cluster: AtomicU64,
}

impl Terms {
    /// Notes an answer that has just arrived.
    pub(crate) fn record(&self, header: Option<&ResponseHeader>) {
        let Some(header) = header else {
            return;
        };
        self.cluster.store(header.cluster_id(), Ordering::Relaxed);
        self.note(header.member_id(), header.raft_term(), SteadyClock.now());
    }

    /// What the last answer tells of its cluster, in which any member may have answered.
    pub(crate) fn evidence(&self) -> Option<Arc<Evidence>> {
        let cluster = self.cluster.load(Ordering::Relaxed);
        (cluster > 0).then(|| Arc::new(Evidence::new(format!("{cluster:x}"), 0)))
    }

    fn note(&self, member: u64, term: u64, now: Moment) {
        let mut members = locked(&self.members);
        match members.get(&member) {
            Some((known, _)) if *known == term => {}
            _ => drop(members.insert(member, (term, now))),
        }
    }

    /// Whether an answer of this term from this member arrived before that moment, and none of another
    /// term since.
    pub(crate) fn known_before(&self, member: u64, term: u64, moment: Moment) -> bool {
        locked(&self.members)
            .get(&member)
            .is_some_and(|(known, since)| *known == term && *since < moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_counts_for_the_member_that_said_it_and_from_when_it_did() {
        let (terms, at) = (Terms::default(), Moment::from_nanos);
        terms.note(1, 7, at(10));
        terms.note(1, 7, at(20));
        assert!(terms.known_before(1, 7, at(11)));
        assert!(!terms.known_before(1, 7, at(10)), "it was sent before the answer came");
        assert!(!terms.known_before(2, 7, at(11)), "another member");
        assert!(!terms.known_before(1, 6, at(11)));
        terms.note(1, 8, at(30));
        assert!(!terms.known_before(1, 7, at(40)), "there is a newer term");
        assert!(!terms.known_before(1, 8, at(30)) && terms.known_before(1, 8, at(31)));
        // A cluster that was restored from a backup begins with low terms again.
        terms.note(1, 2, at(50));
        assert!(terms.known_before(1, 2, at(51)));
    }
}

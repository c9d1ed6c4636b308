//! What the members' answers tell of their servers, judged for each member by itself: a clock that is
//! faster than the margin covers shortens what its answers are trusted for, and another server in a
//! member's place is said to core, which has all claims renewed then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Evidence, Grant, Renewal, Renewed, ServerHistory, locked};
use lockkit_core::{Error, Margin};

pub(super) struct Watched {
    margin: Margin,
    members: Vec<Mutex<Member>>,
    /// How many times a member was another one than before.
    changes: AtomicU64,
}

#[derive(Default)]
struct Member {
    servers: ServerHistory,
    /// The runs that answer for it.
    runs: Vec<Arc<str>>,
}

impl Watched {
    pub(super) fn new(members: usize, margin: Margin) -> Self {
        let members = (0..members).map(|_| Mutex::default()).collect();
        Self { margin, members, changes: AtomicU64::new(0) }
    }

    /// What this quorum tells of itself: it is another run whenever a member is.
    pub(super) fn evidence(&self) -> Arc<Evidence> {
        Arc::new(Evidence::new(self.changes.load(Ordering::SeqCst).to_string(), 0))
    }

    /// Takes a member's answers to a request that was sent and answered at these moments of its clock; what
    /// they grant is as long as it lasts by ours.
    pub(super) fn hear(
        &self,
        member: usize,
        answers: Vec<Result<Renewed, Error>>,
        sent: Moment,
        received: Moment,
    ) -> Vec<Result<Renewal, Error>> {
        let margin = self.margin;
        let mut member = locked(&self.members[member]);
        let Member { servers, runs } = &mut *member;
        let carried = answers.iter().filter_map(|it| it.as_ref().ok()?.evidence.as_deref());
        let mut carried: Vec<_> = carried.collect();
        carried.dedup_by(|a, b| std::ptr::eq(*a, *b));
        let known = runs.as_slice();
        let evidence = carried.iter().map(|it| (before(known, it), *it));
        let judged = servers.hear(evidence, sent, received, margin);
        if !judged.ended().is_empty() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        runs.retain(|run| !judged.ended().contains(run));
        for it in carried {
            if !runs.contains(&it.run) {
                runs.push(it.run.clone());
            }
        }
        let ours = |renewed: Renewed| match (renewed.renewal, renewed.evidence) {
            (Renewal::Holds(grant), Some(evidence)) => {
                let ttl = grant.ttl.div_f64(servers.rate(&evidence, margin));
                Renewal::Holds(Grant { ttl, ..grant })
            }
            (renewal, _) => renewal,
        };
        answers.into_iter().map(|answer| answer.map(&ours)).collect()
    }
}

/// The run that answered for the member before this one did.
fn before<'a>(runs: &'a [Arc<str>], now: &'a Evidence) -> Option<&'a str> {
    let known = runs.iter().find(|run| **run == now.run);
    known.or(runs.last()).map(|run| &**run)
}

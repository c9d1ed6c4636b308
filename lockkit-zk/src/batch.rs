//! Submitting a batch: many releases and acquires in one transaction. What it takes are the usual
//! operations: claims whose nodes are known leave, and others come to folders that are there. All else goes
//! by itself, and so does everything after a transaction that the server refused.
//!
//! # A hand-over
//! The transaction that deletes the node of an exclusive holder also checks that the waiter directly after it
//! is there, where that is a claim of this driver. Nothing was ahead of the holder, and nothing comes between
//! two sequence numbers: so the answer says that the waiter holds. And how many children of the folder have
//! come and gone says what is ahead of the claim that came (`queue_ends.rs`). One request, no event, no list.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::{join, join_all};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchLimits, BatchOutcome, ClaimData,
    Patience, Released,
};
use lockkit_core::{Claim, Error, Lifetime, Mode, Result};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriteResult, Stat};

use crate::claim_cache::Node;
use crate::errors::{BACKEND, failed, not_done};
use crate::locks::{FolderState, ZkLocks};
use crate::paths::{NodeTag, is_downgraded};
use crate::queue_ends::FolderChange;
use crate::session::Session;

/// With 64 tasks on locks of their own, 32 operations in a transaction and two of them in flight were 2.5
/// times as fast as bare creates and deletes; with more in one, only the latency grew. ZooKeeper takes 1 MiB
/// in a request.
pub(crate) const LIMITS: BatchLimits = {
    let mut limits = BatchLimits::of(32, 2);
    limits.bytes = 256 << 10;
    limits
};

type ReleaseResult = Result<Attempted<Released>, BatchError>;
type AcquireResult = Result<Attempted<Acquisition>, BatchError>;

/// A claim whose node is to be deleted.
struct PlannedRelease {
    /// Its index in the batch.
    at: usize,
    claim: Arc<Claim>,
    folder: String,
    node: Node,
    /// The waiter that holds then, and the path of its node.
    heir: Option<(Arc<Claim>, String)>,
}

/// A claim whose node is to be created in a folder that is there.
struct PlannedAcquire {
    at: usize,
    claim: Arc<Claim>,
    folder: String,
}

/// What of a batch goes in one transaction.
struct BatchPlan {
    session: Arc<Session>,
    releases: Vec<PlannedRelease>,
    acquires: Vec<PlannedAcquire>,
}

impl BatchPlan {
    /// Folders that an heir is in and no claim comes to: of these the state is asked for.
    fn folders_left(&self) -> Vec<&str> {
        let entered: HashSet<_> = self.acquires.iter().map(|one| &*one.folder).collect();
        let with_heirs = self.releases.iter().filter(|one| one.heir.is_some());
        with_heirs.map(|one| &*one.folder).filter(|folder| !entered.contains(folder)).collect()
    }

    /// The names of the claims that leave a folder.
    fn leaving<'a>(&'a self, folder: &str) -> Vec<&'a str> {
        let leaving = self.releases.iter().filter(|one| one.folder == folder);
        leaving.map(|one| &*one.node.name).collect()
    }
}

/// What the server answered: the path of each node that was created with the state of its folder, and the
/// state of each folder that was only left.
struct Committed {
    created: Vec<(String, Stat)>,
    folders: Vec<Stat>,
}

/// Why a transaction has no answer that can be used.
enum NotCommitted {
    /// Nothing of it was done.
    Refused,
    /// Perhaps all of it was done.
    Unknown(Error),
}

impl ZkLocks {
    /// Carries out a batch. Dropping this does not end what was sent.
    pub(crate) async fn submit(&self, batch: Batch<'_>) -> BatchOutcome {
        let mut outcome = batch.all_failed(&BatchError::refused(no_outcome()));
        let plan = self.plan(batch);
        let (mut releases, mut acquires) = (Vec::new(), Vec::new());
        if let Some(plan) = &plan {
            releases.extend(plan.releases.iter().map(|one| one.at));
            acquires.extend(plan.acquires.iter().map(|one| one.at));
        }
        let rest = |planned: &[usize], all: usize| -> Vec<_> {
            (0..all).filter(|at| !planned.contains(at)).collect()
        };
        let (other_releases, other_acquires) =
            (rest(&releases, batch.releases.len()), rest(&acquires, batch.acquires.len()));
        let together = async {
            match &plan {
                Some(plan) => self.submit_together(batch, plan).await,
                None => (Vec::new(), Vec::new()),
            }
        };
        let singly = self.submit_singly(batch, other_releases, other_acquires);
        let (together, singly) = join(together, singly).await;
        for (released, acquired) in [together, singly] {
            released.into_iter().for_each(|(at, result)| outcome.released[at] = result);
            acquired.into_iter().for_each(|(at, result)| outcome.acquired[at] = result);
        }
        outcome
    }

    /// What goes in one transaction; `None` where that is no more than one operation. An acquire whose session
    /// is yet to be made goes by itself, since the others would wait for that.
    fn plan(&self, batch: Batch<'_>) -> Option<BatchPlan> {
        let mut session = None;
        let mut releases = Vec::new();
        for (at, claim) in batch.releases.iter().enumerate() {
            let Some(cached) = self.claims.get(claim.id) else { continue };
            let Some(node) = cached.node.filter(|node| !is_downgraded(&node.name, claim.mode))
            else {
                continue;
            };
            if is_other(&mut session, &cached.session) {
                continue;
            }
            let heir = self.heir_of(claim, &node, &cached.session, batch);
            let (claim, folder) = (claim.clone(), cached.folder);
            releases.push(PlannedRelease { at, claim, folder, node, heir });
        }
        let mut acquires = Vec::new();
        for (at, Acquire { claim, patience }) in batch.acquires.iter().enumerate() {
            let folder = self.layout.list(&claim.key);
            let is_there =
                matches!(self.folders.last(&folder), Some(FolderState::There | FolderState::InUse));
            let is_new = self.claims.get(claim.id).is_none();
            let is_usual = *patience == Patience::Wait && claim.lifetime != Lifetime::Detached;
            if !is_there || !is_new || !is_usual {
                continue;
            }
            let its_own = self.sessions.live_for_ttl(claim.hold_ttl);
            if its_own.is_some_and(|its_own| !is_other(&mut session, &its_own)) {
                acquires.push(PlannedAcquire { at, claim: claim.clone(), folder });
            }
        }
        let has_heir = releases.iter().any(|one| one.heir.is_some());
        let is_worth_it = has_heir || releases.len() + acquires.len() > 1;
        session.filter(|_| is_worth_it).map(|session| BatchPlan { session, releases, acquires })
    }

    /// The waiter that holds once this claim has left, where that is one of this driver's that no operation
    /// of the batch is about.
    fn heir_of(
        &self,
        claim: &Claim,
        node: &Node,
        session: &Arc<Session>,
        batch: Batch<'_>,
    ) -> Option<(Arc<Claim>, String)> {
        if !node.holds || claim.mode != Mode::Exclusive {
            return None;
        }
        let heir = self.claims.successors.next(&node.path)?;
        if heir.mode != Mode::Exclusive || batch.claims().any(|other| other.id == heir.id) {
            return None;
        }
        let cached = self.claims.get(heir.id).filter(|cached| !cached.is_over())?;
        let path = cached.node.filter(|_| cached.session.id() == session.id())?.path;
        Some((heir, path))
    }

    async fn submit_singly(
        &self,
        batch: Batch<'_>,
        releases: Vec<usize>,
        acquires: Vec<usize>,
    ) -> (Vec<(usize, ReleaseResult)>, Vec<(usize, AcquireResult)>) {
        let release = |at: usize| async move {
            let released = self.release(&batch.releases[at]).await;
            (at, released.map(Attempted::from))
        };
        let acquire = |at: usize| async move {
            let Acquire { claim, patience } = &batch.acquires[at];
            if claim.lifetime == Lifetime::Detached {
                let error = Error::unsupported("claims that outlive their process", BACKEND);
                return (at, Err(BatchError::refused(error)));
            }
            (at, self.acquire(claim, *patience).await.map(Attempted::from))
        };
        let released = join_all(releases.into_iter().map(release));
        join(released, join_all(acquires.into_iter().map(acquire))).await
    }

    async fn submit_together(
        &self,
        batch: Batch<'_>,
        plan: &BatchPlan,
    ) -> (Vec<(usize, ReleaseResult)>, Vec<(usize, AcquireResult)>) {
        let sent = SteadyClock.now();
        match self.commit(plan).await {
            Ok(committed) => self.committed(plan, committed, sent).await,
            Err(NotCommitted::Refused) => {
                plan.acquires.iter().for_each(|one| self.claims.forget(one.claim.id));
                let releases = plan.releases.iter().map(|one| one.at).collect();
                let acquires = plan.acquires.iter().map(|one| one.at).collect();
                self.submit_singly(batch, releases, acquires).await
            }
            Err(NotCommitted::Unknown(error)) => {
                // The waiters after these claims may hold, and no answer will say so.
                for one in &plan.releases {
                    self.claims.successors.wake(&one.node.path);
                }
                let unknown = BatchError::unknown(error);
                let released = plan.releases.iter().map(|one| (one.at, Err(unknown.clone())));
                let acquired = plan.acquires.iter().map(|one| (one.at, Err(unknown.clone())));
                (released.collect(), acquired.collect())
            }
        }
    }

    /// Sends the transaction: first what leaves, then what comes.
    async fn commit(&self, plan: &BatchPlan) -> Result<Committed, NotCommitted> {
        let BatchPlan { session, releases, acquires } = plan;
        let ephemeral = CreateMode::EphemeralSequential.with_acls(self.sessions.options().acls());
        let left = plan.folders_left();
        let mut multi = session.client.new_multi_writer();
        let mut build = || {
            for one in releases {
                multi.add_delete(&one.node.path, None)?;
            }
            for (_, path) in releases.iter().flat_map(|one| &one.heir) {
                multi.add_check_version(path, crate::session::ANY_VERSION)?;
            }
            for PlannedAcquire { claim, folder, .. } in acquires {
                let name = self.layout.prefix(&NodeTag::of(claim.id), claim);
                let data = ClaimData::of(claim).with_ttl(session.lease(claim.hold_ttl)).to_json();
                multi.add_create(&format!("{folder}/{name}"), &data, &ephemeral)?;
                multi.add_set_data(folder, b"", None)?;
            }
            left.iter().try_for_each(|folder| multi.add_set_data(folder, b"", None))
        };
        build().map_err(|_| NotCommitted::Refused)?;
        for PlannedAcquire { claim, folder, .. } in acquires {
            self.claims.note_sent(claim, folder, session);
            self.unused_folders.used(folder);
        }
        let done = session.answers(multi.commit()).await.map_err(NotCommitted::Unknown)?;
        let results = match done {
            Ok(results) => results,
            Err(MultiWriteError::OperationFailed { source, .. }) if not_done(&source) => {
                return Err(NotCommitted::Refused);
            }
            Err(error) => return Err(NotCommitted::Unknown(failed(ZkError::from(error)))),
        };
        let (mut created, mut states) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                MultiWriteResult::Create { path, .. } => created.push(path),
                MultiWriteResult::SetData { stat } => states.push(stat),
                _ => {}
            }
        }
        if created.len() != acquires.len() || states.len() != created.len() + left.len() {
            let error = Error::retryable(BACKEND, "an answer of another form");
            return Err(NotCommitted::Unknown(error));
        }
        let folders = states.split_off(created.len());
        Ok(Committed { created: created.into_iter().zip(states).collect(), folders })
    }

    /// Notes what a transaction did that was sent then.
    async fn committed(
        &self,
        plan: &BatchPlan,
        Committed { created, folders }: Committed,
        sent: Moment,
    ) -> (Vec<(usize, ReleaseResult)>, Vec<(usize, AcquireResult)>) {
        plan.session.confirm(sent);
        let known: HashMap<_, _> = plan.folders_left().into_iter().zip(folders).collect();
        let mut entered = Vec::with_capacity(plan.acquires.len());
        for (one, (path, stat)) in plan.acquires.iter().zip(created) {
            let deleted = plan.leaving(&one.folder);
            entered.push(self.entered(&one.claim, &one.folder, path, stat, &deleted));
        }
        for (folder, stat) in &known {
            let deleted = plan.leaving(folder);
            let change = FolderChange { stat: *stat, deleted: &deleted, created: None };
            self.ends.changed(folder, &change);
        }
        let comes: HashSet<_> = plan.acquires.iter().map(|one| &*one.folder).collect();
        let mut released = Vec::with_capacity(plan.releases.len());
        for one in &plan.releases {
            if let Some((heir, _)) = &one.heir {
                // Before it is woken. (None if its own lease has ended meanwhile: then it finds out.)
                self.claims.renew(heir, true);
            }
            self.claims.forget(one.claim.id);
            let folder = &*one.folder;
            if !known.contains_key(folder) && !comes.contains(folder) {
                self.left_folder(folder);
            }
            released.push((one.at, Ok(Attempted::from(Released::Removed))));
        }
        let acquired = plan.acquires.iter().zip(entered).map(|(one, entered)| async move {
            (one.at, self.answered(&plan.session, &one.claim, entered).await)
        });
        (released, join_all(acquired).await)
    }
}

/// Whether this is another session than the one of the transaction, or has ended.
fn is_other(chosen: &mut Option<Arc<Session>>, session: &Arc<Session>) -> bool {
    session.has_ended() || chosen.get_or_insert_with(|| session.clone()).id() != session.id()
}

fn no_outcome() -> Error {
    Error::retryable(BACKEND, "an operation of a batch was left out")
}

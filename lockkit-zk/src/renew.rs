//! Renewing: one round trip for all claims of a session, whatever their number. The session is what
//! lives; of the claims one only asks whether their nodes are still there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimData, ClaimEnd, Renewal, no_answer};
use lockkit_core::queue::RuleResult;
use lockkit_core::{Claim, Error, Mode, Result};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

use crate::claim_cache::CachedClaim;
use crate::errors::{BACKEND, failed, if_there};
use crate::lists::snapshot_of;
use crate::locks::ZkLocks;
use crate::paths::{NodeKind, NodeTag, broken_tag};
use crate::queue_snapshot::QueueSnapshot;
use crate::session::Session;

/// How long one of several sessions may take at least, and how long at most.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);
const MOST_PATIENCE: Duration = Duration::from_secs(2);

/// A claim that is to be renewed.
struct ClaimToRenew<'a> {
    /// Its place in what was asked.
    at: usize,
    claim: &'a Claim,
    cached: Option<CachedClaim>,
}

impl ClaimToRenew<'_> {
    /// The shorter one of its leases.
    fn ttl(&self) -> Duration {
        let ttl = self.claim.hold_ttl.min(self.claim.wait_ttl);
        self.cached.as_ref().map_or(ttl, |cached| cached.session.lease(ttl))
    }
}

/// What one round trip brought back.
struct RenewalReads {
    /// All ephemeral nodes of the session under the root.
    nodes: HashSet<String>,
    /// The records of breaks, by their folder and the claim's tag.
    breaks: HashMap<String, Result<HashMap<NodeTag, String>>>,
    /// The lists in which claims wait, by their folder.
    snapshots: HashMap<String, Result<QueueSnapshot>>,
}

impl ZkLocks {
    /// One round trip for each session that claims live in, all at once. What fails in one says nothing
    /// of the others, and one that hangs does not hold up their answers for longer than they can wait.
    pub(crate) async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal>> {
        let _renewing = self.unused_folders.renewing();
        let mut by_session: HashMap<Option<i64>, Vec<ClaimToRenew<'_>>> = HashMap::new();
        for (at, claim) in claims.iter().enumerate() {
            let cached = self.claims.get(claim.id);
            let lives = cached.as_ref().map(|cached| &cached.session).filter(|s| !s.has_ended());
            let id = lives.map(|session| session.id());
            by_session.entry(id).or_default().push(ClaimToRenew { at, claim, cached });
        }
        let limit = match by_session.len() {
            0 | 1 => Duration::MAX, // core has a limit
            _ => patience(by_session.values().flatten().map(ClaimToRenew::ttl)),
        };
        let by_session = by_session.into_iter().map(|(id, asked)| async move {
            let places: Vec<_> = asked.iter().map(|asked| asked.at).collect();
            let answers = tokio::time::timeout(limit, self.renew_in_session(id, asked)).await;
            let late = |at| (at, Err(no_answer(BACKEND)));
            answers.unwrap_or_else(|_| places.into_iter().map(late).collect())
        });
        let mut answers: Vec<_> = join_all(by_session).await.into_iter().flatten().collect();
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Renews claims that live in the session of this id, or in none that lasts.
    async fn renew_in_session(
        &self,
        id: Option<i64>,
        asked: Vec<ClaimToRenew<'_>>,
    ) -> Vec<(usize, Result<Renewal>)> {
        let session = match asked.iter().find_map(|asked| asked.cached.as_ref()) {
            Some(cached) if id.is_some() => Ok(cached.session.clone()),
            _ => self.sessions.get().await,
        };
        let reads = match &session {
            Ok(session) => self.reads(session, &asked).await,
            Err(error) => Err(error.clone()),
        };
        let (session, reads) = match (session, reads) {
            (Ok(session), Ok(reads)) => (session, reads),
            (_, Err(error)) | (Err(error), _) => {
                return asked.iter().map(|asked| (asked.at, Err(error.clone()))).collect();
            }
        };
        let mut answers = Vec::with_capacity(asked.len());
        for ClaimToRenew { at, claim, cached } in asked {
            let answer = self.renewal(&session, claim, cached, &reads).await;
            if matches!(answer, Ok(Renewal::Ended(ClaimEnd::NotFound | ClaimEnd::SessionEnded))) {
                self.claims.forget(claim.id);
            }
            answers.push((at, answer));
        }
        self.sweep(&session, &reads.nodes);
        answers
    }

    async fn reads(&self, session: &Session, asked: &[ClaimToRenew<'_>]) -> Result<RenewalReads> {
        let breaks: BTreeSet<_> =
            asked.iter().map(|asked| self.layout.breaks(&asked.claim.key.namespace)).collect();
        let cached_claims = asked.iter().flat_map(|asked| &asked.cached);
        let waiting = cached_claims.filter(|cached| !cached.holds());
        let snapshots: BTreeSet<_> = waiting.map(|cached| cached.folder.clone()).collect();
        // All of these go out now, in this order: what is read is at least as new as the sync.
        let synced = session.ask_majority(self.layout.root());
        let nodes = session.client.list_ephemerals(self.layout.claims());
        let breaks_listed: Vec<_> =
            breaks.iter().map(|path| session.client.list_children(path)).collect();
        let snapshots_listed: Vec<_> =
            snapshots.iter().map(|path| session.client.list_children(path)).collect();
        let all = async {
            tokio::join!(synced, nodes, join_all(breaks_listed), join_all(snapshots_listed))
        };
        let (synced, nodes, breaks_listed, snapshots_listed) = session.answers(all).await?;
        synced.map_err(failed)?;
        let mut reads = RenewalReads {
            nodes: nodes.map_err(failed)?.into_iter().collect(),
            breaks: HashMap::new(),
            snapshots: HashMap::new(),
        };
        for (folder, listed) in breaks.into_iter().zip(breaks_listed) {
            let by_tag = if_there(listed).map(|records| {
                let tagged = |name: String| broken_tag(&name).map(|tag| (tag, name));
                records.into_iter().flatten().filter_map(tagged).collect()
            });
            reads.breaks.insert(folder, by_tag);
        }
        for (folder, listed) in snapshots.into_iter().zip(snapshots_listed) {
            let snapshot = match if_there(listed) {
                Ok(names) => snapshot_of(session, &folder, names.unwrap_or_default()).await,
                Err(error) => Err(error),
            };
            reads.snapshots.insert(folder, snapshot);
        }
        Ok(reads)
    }

    async fn renewal(
        &self,
        session: &Session,
        claim: &Claim,
        cached: Option<CachedClaim>,
        reads: &RenewalReads,
    ) -> Result<Renewal> {
        let records = read_of(&reads.breaks, &self.layout.breaks(&claim.key.namespace))?;
        if let Some(name) = records.and_then(|records| records.get(&NodeTag::of(claim.id)))
            && let Some(record) = self.break_record(session, &claim.key, name).await?
        {
            // Gracefully broken, it is not renewed, and leaves when its own lease is over.
            return Ok(Renewal::Ended(ClaimEnd::Broken(record)));
        }
        let gone = Renewal::Ended(ClaimEnd::NotFound);
        let Some(cached) = cached else {
            return Ok(gone);
        };
        if cached.session.id() != session.id() {
            return Ok(Renewal::Ended(ClaimEnd::SessionEnded));
        }
        let Some(node) = &cached.node else {
            return Ok(gone);
        };
        if !reads.nodes.contains(&node.path) {
            return Ok(gone);
        }
        let rule_result = match node.holds {
            true => Some(RuleResult::Holds),
            false => read_of(&reads.snapshots, &cached.folder)?
                .and_then(|line| line.rule_result(&node.name, node.token)),
        };
        let holds = matches!(rule_result, Some(RuleResult::Holds));
        // Its own lease may have ended while the answer was under way.
        let Some(cached) = self.claims.renew(claim, holds) else {
            return Ok(gone);
        };
        Ok(match rule_result {
            // The answer to a release may have said since the read that it holds.
            Some(RuleResult::Waits(ahead)) if !cached.holds() => {
                Renewal::Waits { ahead: ahead.count }
            }
            Some(RuleResult::Holds | RuleResult::Waits(_)) => {
                Renewal::Holds(cached.grant(node.token, claim))
            }
            _ => gone,
        })
    }

    /// Deletes nodes of this session that no claim here owns: what an acquire left behind whose
    /// answer was lost and whose release came too early to find it.
    fn sweep(&self, session: &Session, nodes: &HashSet<String>) {
        if !self.sessions.are_own() {
            return; // the nodes may be those of another driver on the same client
        }
        let owned = self.claims.tags();
        for path in nodes {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let tag = match NodeKind::of(name) {
                NodeKind::Claim(child) => child.tag,
                NodeKind::Downgraded(tag) => tag,
                NodeKind::Limit(_) | NodeKind::Foreign => continue,
            };
            if !owned.contains(&tag) {
                // It goes out when it is called; nothing waits for the answer.
                drop(session.client.delete(path, None));
            }
        }
    }

    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<Renewal> {
        let Some(cached) = self.claims.get(claim.id) else {
            return Ok(Renewal::Ended(ClaimEnd::NotFound));
        };
        let session = &cached.session;
        let node = match &cached.node {
            Some(node) if !session.has_ended() => node,
            _ => return Ok(Renewal::Ended(ClaimEnd::SessionEnded)),
        };
        if claim.mode == Mode::Shared && !node.name.starts_with("x-") {
            return self.renew_one(claim).await;
        }
        let acls = self.sessions.options().acls();
        let marker = format!("{}/{}", cached.folder, cached.tag.marker());
        let sent = SteadyClock.now();
        let data = ClaimData::of(claim).with_ttl(session.lease(claim.hold_ttl)).downgraded();
        let mut multi = session.client.new_multi_writer();
        // The own node's data changes along, so that its watchers read again.
        let marked = multi
            .add_set_data(&node.path, &data.to_json(), None)
            .and_then(|()| multi.add_create(&marker, b"", &CreateMode::Ephemeral.with_acls(acls)));
        marked.map_err(failed)?;
        let done = session.answers(multi.commit()).await?;
        match done {
            Ok(_) => {
                session.confirm(sent);
                let cached = self.claims.renew(claim, true);
                let gone = Renewal::Ended(ClaimEnd::NotFound);
                Ok(cached.map_or(gone, |p| Renewal::Holds(p.grant(node.token, claim))))
            }
            Err(MultiWriteError::OperationFailed {
                source: ZkError::NoNode | ZkError::NodeExists,
                ..
            }) => self.renew_one(claim).await,
            Err(error) => Err(failed(error.into())),
        }
    }

    async fn renew_one(&self, claim: &Claim) -> Result<Renewal> {
        let answers = self.renew(&[Arc::new(claim.clone())]).await;
        answers.into_iter().next().unwrap_or(Ok(Renewal::Ended(ClaimEnd::NotFound)))
    }
}

/// How long each of several sessions may take, with claims of these ttls. Core waits for the answers of all,
/// and drops them when half of what is left of the shortest lease has passed; a third has when it asks.
fn patience(ttls: impl Iterator<Item = Duration>) -> Duration {
    (ttls.min().unwrap_or_default() / 6).clamp(LEAST_PATIENCE, MOST_PATIENCE)
}

/// What was read of one thing, if it was asked for.
fn read_of<'a, T>(all: &'a HashMap<String, Result<T>>, of: &str) -> Result<Option<&'a T>> {
    all.get(of).map(|told| told.as_ref().map_err(Error::clone)).transpose()
}

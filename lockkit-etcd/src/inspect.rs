//! Reading queues: for one of their claims, and for people and programs. Changes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, KeyValue, Txn, TxnOp};
use futures_util::future::join_all;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::ClaimData;
use lockkit_core::state::{ClaimState, Cursor, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Key, Mode, Result, Space};
use tokio::sync::mpsc;

use crate::client::{EtcdResult, ranges, revision};
use crate::keys::{after, end_of, fixed_limit_of};
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{QueueSnapshot, StoredClaim};
use crate::requests::{get_last_before, get_list, pair, token_of, unexpected_response};
use crate::watchers::{WatchRange, digest};

/// Keys that are fetched at once.
const KEYS: i64 = 500;

/// Records of breaks by their key, and when each was left.
type BreakRecords = HashMap<Vec<u8>, (BreakRecord, i64)>;
/// What is left of leases.
type RemainingTtls = HashMap<i64, Duration>;

/// A queue and one of its claims, as one request read them.
pub(crate) struct ClaimInspection {
    pub(crate) own: Option<StoredClaim>,
    pub(crate) snapshot: QueueSnapshot,
    pub(crate) broken: Option<BreakRecord>,
    /// When it was asked for.
    pub(crate) sent: Moment,
}

impl EtcdLocks {
    /// Reads the queue of a claim, the claim's own key in it, and the record of its break.
    pub(crate) async fn inspect_claim(&self, claim: &Claim) -> EtcdResult<ClaimInspection> {
        // What was known when it was asked: the key may be another claim's when the answer comes.
        let (key, created) = self.key_of(claim);
        let list = get_list(&self.root.list(&claim.key));
        self.inspect_ranges(claim, &key, created, vec![list]).await
    }

    /// The same for one that waits, where no more of the list is shown than matters to it:
    /// an exclusive claim needs no more than the last one ahead.
    pub(crate) async fn inspect_ahead(&self, claim: &Claim) -> EtcdResult<ClaimInspection> {
        let (Mode::Exclusive, (key, Some(created))) = (claim.mode, self.key_of(claim)) else {
            return self.inspect_claim(claim).await;
        };
        let ahead = get_last_before(&self.root.list(&claim.key), created);
        self.inspect_ranges(claim, &key, Some(created), vec![ahead, TxnOp::get(&*key, None)]).await
    }

    /// Reads the record of a claim's break, and these ranges of its queue.
    async fn inspect_ranges(
        &self,
        claim: &Claim,
        key: &[u8],
        created: Option<i64>,
        mut steps: Vec<TxnOp>,
    ) -> EtcdResult<ClaimInspection> {
        let sent = SteadyClock.now();
        steps.push(TxnOp::get(self.root.broken(&claim.key, key), None));
        let answer = self.client.txn(Txn::new().and_then(steps)).await?.answer;
        let mut shown = ranges(&answer);
        let broken = shown.pop().ok_or_else(unexpected_response)?;
        let kvs: Vec<_> = shown.iter().flat_map(GetResponse::kvs).cloned().collect();
        let hidden = i64::from(shown.iter().any(GetResponse::more));
        let snapshot = QueueSnapshot::of(&kvs, kvs.len() as i64 + hidden, revision(&answer));
        Ok(ClaimInspection {
            own: snapshot.own(key, created).cloned(),
            snapshot,
            broken: broken.kvs().first().and_then(|kv| BreakRecord::from_json(kv.value())),
            sent,
        })
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockState> {
        Ok(self.state(key).await?.0)
    }

    /// A list, and a watch of what becomes of it.
    async fn state(&self, key: &Key) -> EtcdResult<(LockState, WatchRange)> {
        let breaks = get_list(&self.root.breaks(key));
        let txn = Txn::new().and_then([breaks, get_list(&self.root.list(key))]);
        let answer = self.client.txn(txn).await?.answer;
        let [breaks, list] = pair(ranges(&answer))?;
        let snapshot = QueueSnapshot::of(list.kvs(), list.count(), revision(&answer));
        let left = self.remaining_ttls(snapshot.entries()).await;
        let shown = self.lock_state(key, &snapshot, &break_records(&breaks), &left)?;
        let (key, content) = (self.root.list(key), Some(digest(list.kvs())));
        let (end, from) = (end_of(&key), snapshot.revision + 1);
        Ok((shown, WatchRange { key, end, from, changes: true, content }))
    }

    /// Returns a state that differs from the one that was seen.
    pub(crate) async fn changed(
        self: &Arc<Self>,
        key: &Key,
        seen: &LockState,
    ) -> Result<LockState> {
        loop {
            let (state, range) = self.state(key).await?;
            if !state.same_queue(seen) {
                return Ok(state);
            }
            let (to, mut events) = mpsc::unbounded_channel();
            let _watch = self.watches.watch(range, to);
            events.recv().await;
        }
    }

    pub(crate) async fn list(&self, request: &ListRequest) -> Result<Page> {
        let behind = request.after.as_ref().map(Cursor::decode).transpose()?;
        let limit = request.limit.max(1);
        let mut states = Vec::new();
        for space in [Space::Lock, Space::Semaphore] {
            if request.space.is_some_and(|only| only != space)
                || behind.as_ref().is_some_and(|(last, _)| *last > space)
            {
                continue;
            }
            let begin = self.root.lists(space, &request.namespace, &request.prefix);
            let end = end_of(&begin);
            // A list that is in use all the time keeps its place between the keys, so it is neither
            // missed nor shown twice.
            let mut key = match &behind {
                Some((last, name)) if *last == space => {
                    let last = Key::new(request.namespace.clone(), space, name.clone());
                    begin.max(end_of(&self.root.list(&last)))
                }
                _ => begin,
            };
            loop {
                let (kvs, more) = self.keys(&key, &end).await?;
                let mut lists = self.group(space, request, &kvs);
                if more && lists.len() > 1 {
                    lists.pop(); // perhaps not all of it is here
                } else if more && let Some((list, all)) = lists.first_mut() {
                    *all = self.whole(list).await?;
                }
                // A queue with a fixed limit and no claims is not in use.
                let mut seen = lists.last().map(|(list, _)| list.clone());
                lists.retain(|(_, kvs)| kvs.iter().any(|kv| fixed_limit_of(kv.key()).is_none()));
                let room = limit - states.len();
                let (full, rest) = (lists.len() >= room, more || lists.len() > room);
                if lists.len() > room {
                    lists.truncate(room);
                    seen = lists.last().map(|(list, _)| list.clone());
                }
                key = match (seen, kvs.last()) {
                    (Some(list), _) => end_of(&self.root.list(&list)),
                    (None, Some(other)) => after(other.key()),
                    (None, None) => key,
                };
                states.extend(self.show_all(&lists).await?);
                if full && (rest || space == Space::Lock) {
                    let next = states.last().map(|last| Cursor::behind(&last.key));
                    return Ok(Page { states, next });
                }
                if !more || full {
                    break;
                }
            }
        }
        Ok(Page { states, next: None })
    }

    /// Some keys of a range, and whether there are more.
    async fn keys(&self, from: &[u8], end: &[u8]) -> EtcdResult<(Vec<KeyValue>, bool)> {
        if from >= end {
            return Ok((Vec::new(), false));
        }
        let mut shown =
            self.range(from, GetOptions::new().with_range(end).with_limit(KEYS)).await?;
        let more = shown.more();
        Ok((shown.take_kvs(), more))
    }

    /// All of one list that is longer than what is fetched at once.
    async fn whole(&self, list: &Key) -> EtcdResult<Vec<KeyValue>> {
        Ok(self.range(&self.root.list(list), GetOptions::new().with_prefix()).await?.take_kvs())
    }

    /// A range. By a transaction, whose answers may be long.
    pub(crate) async fn range(&self, from: &[u8], range: GetOptions) -> EtcdResult<GetResponse> {
        let txn = Txn::new().and_then([TxnOp::get(from, Some(range))]);
        ranges(&self.client.txn(txn).await?.answer).pop().ok_or_else(unexpected_response)
    }

    fn group(
        &self,
        space: Space,
        request: &ListRequest,
        kvs: &[KeyValue],
    ) -> Vec<(Key, Vec<KeyValue>)> {
        let mut lists: Vec<(Key, Vec<KeyValue>)> = Vec::new();
        for kv in kvs {
            let Some(key) = self.root.list_of(space, &request.namespace, kv.key()) else {
                continue;
            };
            match lists.last_mut() {
                Some((last, all)) if *last == key => all.push(kv.clone()),
                _ => lists.push((key, vec![kv.clone()])),
            }
        }
        lists
    }

    async fn show_all(&self, lists: &[(Key, Vec<KeyValue>)]) -> EtcdResult<Vec<LockState>> {
        let (Some((first, _)), Some((last, _))) = (lists.first(), lists.last()) else {
            return Ok(Vec::new());
        };
        let (from, to) = (self.root.breaks(first), end_of(&self.root.breaks(last)));
        let records = break_records(&self.range(&from, GetOptions::new().with_range(to)).await?);
        let snapshots: Vec<_> = lists
            .iter()
            .map(|(key, kvs)| (key, QueueSnapshot::of(kvs, kvs.len() as i64, 0)))
            .collect();
        let entries: Vec<_> =
            snapshots.iter().flat_map(|(_, snapshot)| snapshot.entries().to_vec()).collect();
        let left = self.remaining_ttls(&entries).await;
        snapshots
            .iter()
            .map(|(key, snapshot)| Ok(self.lock_state(key, snapshot, &records, &left)?))
            .collect()
    }

    /// The remaining TTLs of the leases of these claims. Leases that etcd does not answer for are
    /// missing.
    async fn remaining_ttls(&self, entries: &[StoredClaim]) -> RemainingTtls {
        let mut leases: Vec<_> = entries.iter().map(|stored| stored.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let asked = leases.into_iter().filter(|id| *id != 0).map(|id| async move {
            let ask = |mut client: etcd_client::Client| async move {
                client.lease_time_to_live(id, None).await
            };
            let answer = self.client.call(ask).await.ok()?.answer;
            Some((id, Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0))))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    fn lock_state(
        &self,
        key: &Key,
        snapshot: &QueueSnapshot,
        records: &BreakRecords,
        left: &RemainingTtls,
    ) -> Result<LockState> {
        let prefix = self.root.breaks(key);
        let here = records.iter().filter(|(at, _)| at.starts_with(&prefix));
        let last = here.max_by_key(|(_, (_, when))| *when).map(|(_, (record, _))| record.clone());
        let holders = snapshot.queue().holders(snapshot.entries().iter().map(StoredClaim::token));
        let state = |(at, stored): (usize, &StoredClaim)| -> Result<ClaimState> {
            let token = token_of(stored.created)?;
            let mut state =
                ClaimData::state(stored.value.as_ref(), token, stored.mode, at < holders);
            if stored.value.is_none() {
                state.identity.program = String::from_utf8_lossy(&stored.key).into_owned();
            }
            state.broken = records.contains_key(&self.root.broken(key, &stored.key));
            state.expires_in = left.get(&stored.lease).copied().unwrap_or_default();
            Ok(state)
        };
        let states: Result<_> = snapshot.entries().iter().enumerate().map(state).collect();
        Ok(LockState::new(key.clone(), states?, last))
    }
}

fn break_records(breaks: &GetResponse) -> BreakRecords {
    let word = |kv: &KeyValue| {
        Some((kv.key().to_vec(), (BreakRecord::from_json(kv.value())?, kv.mod_revision())))
    };
    breaks.kvs().iter().filter_map(word).collect()
}

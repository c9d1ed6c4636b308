//! What operators see, and what they change: the state of queues, listings, marks of a graceful break,
//! token offsets. Reads go to the store directly; nothing here changes a queue.

use std::collections::BTreeSet;

use lockkit_core::driver::ClaimId;
use lockkit_core::state::{Cursor, ListPage, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Namespace, Result, Token};
use serde::Serialize;

use crate::document::{
    Mark, OffsetDocument, REGISTERS, RegisterDocument, SessionDocument, SessionId, ShardDocument,
    StoredEntry, StoredQueue, encode, offset_key, session_key, shard_key, shard_of,
};
use crate::driver::DriverInner;
use crate::queues::{claim_states, has_ended};
use crate::store::{DocumentVersion, StoreError, Swap};

/// What errors call the document of a token offset.
const OFFSET: &str = "a token offset";
/// Attempts of a swap that others may disturb.
const ATTEMPTS: u32 = 64;

impl DriverInner {
    async fn shard(&self, shard: u32) -> Result<ShardDocument> {
        match self.context.read(&shard_key(shard)).await? {
            Some(document) => ShardDocument::decode(self.context.backend(), &document.bytes),
            None => Ok(ShardDocument::default()),
        }
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockState> {
        let shard = shard_of(key, self.context.shards);
        let document = self.shard(shard).await?;
        let queue = document.queues.get(key).cloned().unwrap_or_default();
        self.watch_sessions(shard, queue.entries.iter());
        Ok(self.state(key, &queue))
    }

    /// The state of a queue. What is left of a lease is what this process knows of it at most.
    fn state(&self, key: &Key, queue: &StoredQueue) -> LockState {
        let (now, observed) = (self.context.now(), self.context.observed_now());
        let left = |entry: &StoredEntry| match self.own.get(&entry.id) {
            Some(own) => own.due.since(now),
            None => self
                .context
                .sights
                .remaining(&entry.details.session, observed)
                .unwrap_or(entry.hold_ttl),
        };
        let line = claim_states(&self.context, queue, left);
        let last_break = queue.breaks.last().map(|it| it.record.clone());
        LockState::new(key.clone(), line, last_break)
    }

    /// What is listed is watched too: what has ended is known sooner.
    /// What is found to have ended is pruned, so that it does not stay in a shard that no claim enters.
    fn watch_sessions<'a>(&self, shard: u32, entries: impl Iterator<Item = &'a StoredEntry>) {
        let observed = self.context.observed_now();
        let mut sessions: BTreeSet<SessionId> = BTreeSet::new();
        for entry in entries {
            match has_ended(&self.context, entry, observed) {
                true => self.poll(shard),
                false => {
                    sessions.insert(entry.details.session.clone());
                }
            }
        }
        let others = sessions.into_iter().filter(|it| !self.waiters.is_own_session(it));
        self.context.observe_due(others, self.polls(shard));
    }

    /// Reads the shards one by one, no further than the page needs. A cursor is a shard and a queue of it.
    pub(crate) async fn list(&self, request: &ListRequest) -> Result<Page> {
        let (first, after) = match &request.after {
            Some(cursor) => parse(cursor, &request.namespace)?,
            None => (0, None),
        };
        let mut states = Vec::new();
        for shard in first..self.context.shards {
            let document = self.shard(shard).await?;
            let after = after.as_ref().filter(|_| shard == first);
            for (key, queue) in &document.queues {
                let is_asked = key.namespace == request.namespace
                    && request.space.is_none_or(|space| space == key.space)
                    && key.name.as_str().starts_with(&request.prefix)
                    && after.is_none_or(|after| key > after);
                if !is_asked {
                    continue;
                }
                self.watch_sessions(shard, queue.entries.iter());
                let state = self.state(key, queue);
                if state.is_free() {
                    continue;
                }
                states.push(state);
                if states.len() >= request.limit.max(1) {
                    return Ok(Page { states, next: Some(cursor(shard, key)) });
                }
            }
        }
        Ok(Page { states, next: None })
    }

    /// Reads all shards, and one register of each namespace that has any.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        let mut all = BTreeSet::new();
        for shard in 0..self.context.shards {
            let document = self.shard(shard).await?;
            all.extend(document.queues.into_keys().map(|key| key.namespace));
        }
        let mut last: Option<String> = None;
        loop {
            let listed = self.context.list(REGISTERS, last.as_deref(), 1).await?;
            let Some(key) = listed.into_iter().next() else { break };
            let register = self.context.load::<RegisterDocument>(&key, "a register").await?;
            if let Some((register, _)) = register {
                all.insert(Namespace::new(register.namespace)?);
            }
            // `~` is greater than all characters of a key.
            last = key.rsplit_once('/').map(|(namespace, _)| format!("{namespace}/~"));
        }
        let behind = all.into_iter().filter(|namespace| after.is_none_or(|it| namespace > it));
        Ok(ListPage::first(limit, behind))
    }

    /// How a claim was broken that is not one of this driver any more, if it was.
    pub(crate) async fn break_of(&self, claim: &Claim) -> Result<Option<BreakRecord>> {
        let document = self.shard(shard_of(&claim.key, self.context.shards)).await?;
        let queue = document.queues.get(&claim.key);
        Ok(queue.and_then(|queue| queue.break_of(&claim.id)).cloned())
    }

    /// The claims of a queue with this token, and their sessions.
    pub(crate) async fn claims_of(
        &self,
        key: &Key,
        token: Token,
    ) -> Result<Vec<(SessionId, ClaimId)>> {
        let document = self.shard(shard_of(key, self.context.shards)).await?;
        let entries = document.queues.get(key).into_iter().flat_map(|queue| &queue.entries);
        let named = entries.filter(|entry| entry.token == token);
        Ok(named.map(|entry| (entry.details.session.clone(), entry.id)).collect())
    }

    /// Marks a claim as broken in its session, unless that has ended.
    pub(crate) async fn mark(
        &self,
        session: &str,
        claim: &ClaimId,
        record: &BreakRecord,
    ) -> Result<()> {
        let (context, key, claim) = (&self.context, session_key(session), claim.to_hex());
        self.swap_until(|| async {
            let found = context.load::<SessionDocument>(&key, "a session").await?;
            let Some((mut session, version)) = found else { return Ok(true) };
            if session.dead || session.mark(&claim).is_some() {
                return Ok(true);
            }
            session.write = context.id();
            session.broken.push(Mark { claim: claim.clone(), record: record.clone() });
            self.is_stored(&key, &session, Some(&version)).await
        })
        .await
    }

    pub(crate) async fn offset(&self, namespace: &Namespace) -> Result<u64> {
        let found = self.context.load::<OffsetDocument>(&offset_key(namespace), OFFSET).await?;
        Ok(found.map_or(0, |(found, _)| found.offset))
    }

    pub(crate) async fn raise_offset(&self, namespace: &Namespace, offset: u64) -> Result<()> {
        if offset > i64::MAX as u64 {
            return Err(Error::config("a token offset is at most 2^63 - 1"));
        }
        let (context, key) = (&self.context, offset_key(namespace));
        self.swap_until(|| async {
            let found = context.load::<OffsetDocument>(&key, OFFSET).await?;
            if found.as_ref().is_some_and(|(now, _)| now.offset >= offset) {
                return Ok(true);
            }
            let namespace = namespace.as_str().to_owned();
            let raised = OffsetDocument { write: context.id(), namespace, offset };
            self.is_stored(&key, &raised, found.as_ref().map(|(_, version)| version)).await
        })
        .await
    }

    /// Repeats an idempotent swap until it, or one like it, is found done.
    async fn swap_until<F: Future<Output = Result<bool>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<()> {
        for number in 1..=ATTEMPTS {
            if attempt().await? {
                return Ok(());
            }
            let pause = lockkit_core::driver::backoff(1) * number.min(8);
            tokio::time::sleep(self.context.part_of(pause)).await;
        }
        Err(self.context.unavailable("other clients keep writing the same document"))
    }

    /// Whether a swap was carried out; `false` where what is stored is to be looked at again.
    async fn is_stored(
        &self,
        key: &str,
        document: &impl Serialize,
        expected: Option<&DocumentVersion>,
    ) -> Result<bool> {
        match self.context.swap(key, &encode(document), expected).await {
            Ok(Swap::Stored(_)) => Ok(true),
            Err(error @ StoreError::Forbidden(_)) => Err(self.context.failed(error)),
            Ok(Swap::Conflict(_)) | Err(_) => Ok(false),
        }
    }
}

fn cursor(shard: u32, key: &Key) -> Cursor {
    let Cursor(behind) = Cursor::behind(key);
    Cursor(shard.to_be_bytes().into_iter().chain(behind).collect())
}

fn parse(cursor: &Cursor, namespace: &Namespace) -> Result<(u32, Option<Key>)> {
    let wrong = || Error::config("this cursor is not of a listing of this backend");
    let (shard, behind) = cursor.0.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (space, name) = Cursor(behind.to_vec()).decode()?;
    Ok((u32::from_be_bytes(*shard), Some(Key::new(namespace.clone(), space, name))))
}

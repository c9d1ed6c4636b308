//! Showing lists to people and programs. Changes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, KeyValue, Txn, TxnOp};
use futures_util::future::join_all;
use lockkit_core::state::{Cursor, ListRequest, LockState, Page, Standing};
use lockkit_core::{BreakRecord, Error, Identity, Key, Space};
use tokio::sync::mpsc;

use crate::calls::{BACKEND, Failure, ranges, revision};
use crate::inner::{Inner, get_list, odd, pair, record, token_of};
use crate::keys::{end_of, given_limit};
use crate::line::{Entry, Line};
use crate::watches::WatchRange;

/// Keys that are fetched at once.
const KEYS: i64 = 500;
/// How often a page is begun anew because its revision was compacted away meanwhile.
const ATTEMPTS: usize = 3;
const SPACES: [Space; 2] = [Space::Lock, Space::Semaphore];

/// Words of breaks by their key, and when each was left.
type Words = HashMap<Vec<u8>, (BreakRecord, i64)>;
/// What is left of leases.
type Left = HashMap<i64, Duration>;

/// Where a page ended: in which space, at which revision, before which key.
struct Position {
    space: usize,
    revision: i64,
    key: Vec<u8>,
}

impl Inner {
    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        Ok(self.state(key).await?.0)
    }

    /// A list, and the revision at which it was so.
    async fn state(&self, key: &Key) -> Result<(LockState, i64), Failure> {
        let breaks = get_list(&self.root.breaks(key));
        let txn = Txn::new().and_then([breaks, get_list(&self.root.list(key))]);
        let answer = self.calls.txn(txn).await?.answer;
        let [breaks, list] = pair(ranges(&answer))?;
        let line = Line::of(list.kvs(), list.count(), revision(&answer));
        let left = self.left(line.entries()).await;
        Ok((self.show(key, &line, &words(&breaks), &left)?, line.revision))
    }

    /// Returns a state that differs from the one that was seen.
    pub(crate) async fn changed(
        self: &Arc<Self>,
        key: &Key,
        seen: &LockState,
    ) -> Result<LockState, Error> {
        loop {
            let (state, revision) = self.state(key).await?;
            if !state.same_line(seen) {
                return Ok(state);
            }
            let list = self.root.list(key);
            let end = end_of(&list);
            let (to, mut news) = mpsc::unbounded_channel();
            let sight = WatchRange { key: list, end, from: revision + 1, changes: true };
            let _watching = self.watches.watch(sight, to);
            news.recv().await;
        }
    }

    pub(crate) async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let mut place = match &request.after {
            Some(cursor) => Position::parse(cursor)?,
            None => Position { space: 0, revision: 0, key: Vec::new() },
        };
        for _ in 0..ATTEMPTS {
            match self.page(request, &place).await {
                // From here on at a newer revision. A list that is in use all the time keeps its
                // place between the keys, so it is neither missed nor shown twice.
                Err(Failure::Compacted) => place.revision = 0,
                page => return Ok(page?),
            }
        }
        Err(Error::retryable(BACKEND, "etcd compacts its revisions faster than they are listed"))
    }

    async fn page(&self, request: &ListRequest, from: &Position) -> Result<Page, Failure> {
        let limit = request.limit.max(1);
        let mut states = Vec::new();
        let mut revision = from.revision;
        for (number, space) in SPACES.into_iter().enumerate().skip(from.space) {
            if request.space.is_some_and(|only| only != space) {
                continue;
            }
            let begin = self.root.lists(space, &request.namespace, &request.prefix);
            let end = end_of(&begin);
            let mut key = if number == from.space { from.key.clone() } else { Vec::new() };
            key = key.max(begin);
            loop {
                let (kvs, more, at) = self.keys(&key, &end, revision).await?;
                revision = at;
                let mut lists = self.group(space, request, &kvs);
                if more && lists.len() > 1 {
                    lists.pop(); // perhaps not all of it is here
                } else if more && let Some((list, all)) = lists.first_mut() {
                    *all = self.whole(list, revision).await?;
                }
                // Where nobody is but a limit that was given, nobody is.
                let mut seen = lists.last().map(|(list, _)| list.clone());
                lists.retain(|(_, kvs)| kvs.iter().any(|kv| given_limit(kv.key()).is_none()));
                let room = limit - states.len();
                let (full, rest) = (lists.len() >= room, more || lists.len() > room);
                if lists.len() > room {
                    lists.truncate(room);
                    seen = lists.last().map(|(list, _)| list.clone());
                }
                if let Some(list) = seen {
                    key = end_of(&self.root.list(&list));
                }
                states.extend(self.show_all(&lists, revision).await?);
                if full && (rest || number + 1 < SPACES.len()) {
                    let next = Position { space: number, revision, key }.to_cursor();
                    return Ok(Page { states, next: Some(next) });
                }
                if !more || full {
                    break;
                }
            }
        }
        Ok(Page { states, next: None })
    }

    /// Some keys of a range at a revision (0: the present one, which is then told).
    async fn keys(
        &self,
        from: &[u8],
        end: &[u8],
        at: i64,
    ) -> Result<(Vec<KeyValue>, bool, i64), Failure> {
        if from >= end {
            return Ok((Vec::new(), false, at));
        }
        let range = GetOptions::new().with_range(end).with_limit(KEYS).with_revision(at);
        let (mut shown, now) = self.range(from, range).await?;
        let more = shown.more();
        Ok((shown.take_kvs(), more, if at == 0 { now } else { at }))
    }

    /// All of one list that is longer than what is fetched at once.
    async fn whole(&self, list: &Key, at: i64) -> Result<Vec<KeyValue>, Failure> {
        let range = GetOptions::new().with_prefix().with_revision(at);
        let (mut shown, _) = self.range(&self.root.list(list), range).await?;
        Ok(shown.take_kvs())
    }

    /// A range, and the revision of the answer. By a transaction, whose answers may be long.
    async fn range(&self, from: &[u8], range: GetOptions) -> Result<(GetResponse, i64), Failure> {
        let txn = Txn::new().and_then([TxnOp::get(from, Some(range))]);
        let answer = self.calls.txn(txn).await?.answer;
        Ok((ranges(&answer).pop().ok_or_else(odd)?, revision(&answer)))
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

    async fn show_all(
        &self,
        lists: &[(Key, Vec<KeyValue>)],
        revision: i64,
    ) -> Result<Vec<LockState>, Failure> {
        let (Some((first, _)), Some((last, _))) = (lists.first(), lists.last()) else {
            return Ok(Vec::new());
        };
        let (from, to) = (self.root.breaks(first), end_of(&self.root.breaks(last)));
        let range = GetOptions::new().with_range(to);
        let txn = Txn::new().and_then([TxnOp::get(from, Some(range))]);
        let answer = self.calls.txn(txn).await?.answer;
        let words = ranges(&answer).first().map(words).unwrap_or_default();
        let lines: Vec<_> = lists
            .iter()
            .map(|(key, kvs)| (key, Line::of(kvs, kvs.len() as i64, revision)))
            .collect();
        let entries: Vec<_> = lines.iter().flat_map(|(_, line)| line.entries().to_vec()).collect();
        let left = self.left(&entries).await;
        lines.iter().map(|(key, line)| Ok(self.show(key, line, &words, &left)?)).collect()
    }

    /// What is left of the leases of these entries. What etcd does not tell is left out.
    async fn left(&self, entries: &[Entry]) -> Left {
        let mut leases: Vec<_> = entries.iter().map(|entry| entry.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let asked = leases.into_iter().filter(|id| *id != 0).map(|id| async move {
            let ask = |mut client: etcd_client::Client| async move {
                client.lease_time_to_live(id, None).await
            };
            let answer = self.calls.call(ask).await.ok()?.answer;
            Some((id, Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0))))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    fn show(&self, key: &Key, line: &Line, words: &Words, left: &Left) -> Result<LockState, Error> {
        let prefix = self.root.breaks(key);
        let here = words.iter().filter(|(at, _)| at.starts_with(&prefix));
        let last = here.max_by_key(|(_, (_, when))| *when).map(|(_, (record, _))| record.clone());
        let holders = line.queue().holders(line.entries().iter().map(Entry::token));
        let standing = |(place, entry): (usize, &Entry)| -> Result<Standing, Error> {
            let broken = words.contains_key(&self.root.broken(key, &entry.key));
            let expires_in = left.get(&entry.lease).copied().unwrap_or_default();
            let mut shown = standing(entry, place < holders)?;
            (shown.broken, shown.expires_in) = (broken, expires_in);
            Ok(shown)
        };
        let standings: Result<_, Error> = line.entries().iter().enumerate().map(standing).collect();
        Ok(LockState::new(key.clone(), standings?, last))
    }
}

fn standing(entry: &Entry, holds: bool) -> Result<Standing, Error> {
    let unknown = || Identity {
        host: "unknown".to_owned(),
        pid: 0,
        program: String::from_utf8_lossy(&entry.key).into_owned(),
    };
    let identity = entry.value.as_ref().map_or_else(unknown, |value| value.identity.clone());
    let mut standing = Standing::new(token_of(entry.created)?, entry.mode, identity);
    if let Some(value) = &entry.value {
        standing.note = value.note.clone();
        standing.ttl = value.ttl();
        standing.queued_for = value.queued_for();
        standing.held_for = value.held_for().filter(|_| holds);
    }
    if holds {
        standing.held_for = Some(standing.held_for.unwrap_or_default());
    }
    Ok(standing)
}

fn words(breaks: &GetResponse) -> Words {
    let word = |kv: &KeyValue| Some((kv.key().to_vec(), (record(kv)?, kv.mod_revision())));
    breaks.kvs().iter().filter_map(word).collect()
}

impl Position {
    fn to_cursor(&self) -> Cursor {
        let mut bytes = vec![u8::try_from(self.space).unwrap_or(0)];
        bytes.extend(self.revision.to_be_bytes());
        bytes.extend(&self.key);
        Cursor(bytes)
    }

    fn parse(cursor: &Cursor) -> Result<Self, Error> {
        let parsed = cursor.0.split_first().and_then(|(space, rest)| {
            let (revision, key) = rest.split_first_chunk::<8>()?;
            let (space, revision) = (usize::from(*space), i64::from_be_bytes(*revision));
            Some(Self { space, revision, key: key.to_vec() })
        });
        parsed.ok_or_else(|| Error::config("this cursor is not one of an etcd listing"))
    }
}

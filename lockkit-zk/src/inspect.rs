//! Reading: one queue, all queues, a change of a queue, token offsets, the ensemble's health.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkit_core::driver::{ClaimData, KnownBases, retry_conflicts, unix_ms};
use lockkit_core::state::{
    Cursor, Finding, Health, ListPage, ListRequest, LockState, Page, Severity,
};
use lockkit_core::{Key, Name, Namespace, Result, Space, Token};
use zookeeper_client::Error as ZkError;

use crate::errors::{BACKEND, failed, if_there};
use crate::lists::event;
use crate::locks::{AT_ONCE, ZkLocks};
use crate::options::ROUNDED;
use crate::paths::{NAMESPACE, break_name, decode_name};
use crate::session::Session;
use crate::versions::{KNOWN_DEFECTS, server_versions};

/// How long a change may go unnoticed that moves no child: a graceful break.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl ZkLocks {
    /// One list, as the leader has it.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockState> {
        let session = self.synced().await?;
        self.state(&session, key).await
    }

    async fn state(&self, session: &Session, key: &Key) -> Result<LockState> {
        let folder = self.layout.list(key);
        let snapshot = self.snapshot(session, &folder).await?;
        let read = session.contents(&snapshot.paths(&folder)).await?;
        let (broken, last_break) = self.records_of(session, key).await?;
        // A claim that left during the read has a greater token than the one before it.
        let tokens = read.iter().scan(0, |last, read| {
            *last = read.as_ref().map_or(*last, |(_, stat)| stat.czxid as u64);
            Some(*last)
        });
        let holders = snapshot.queue().holders(tokens);
        let mut states = Vec::with_capacity(read.len());
        for (position, (child, read)) in snapshot.claims().iter().zip(read).enumerate() {
            let Some((data, stat)) = if_there(read)? else { continue };
            let Some(token) = Token::new(stat.czxid as u64) else {
                continue;
            };
            let (data, holds) = (ClaimData::from_json(&data), position < holders);
            let mut state = ClaimData::state(data.as_ref(), token, child.mode, holds);
            state.expires_in = state.ttl;
            // The leader's clock, read with ours: for people, who forgive some milliseconds.
            let queued_at = u64::try_from(stat.ctime).unwrap_or(0);
            state.queued_for = Duration::from_millis(unix_ms().saturating_sub(queued_at));
            state.held_for = holds.then_some(state.queued_for);
            state.broken = broken.contains(&break_name(key, token, &child.tag));
            states.push(state);
        }
        Ok(LockState::new(key.clone(), states, last_break))
    }

    pub(crate) async fn list(&self, request: &ListRequest) -> Result<Page> {
        let (session, namespace) = (self.synced().await?, &request.namespace);
        let mut keys = Vec::new();
        for space in [Space::Lock, Space::Semaphore] {
            if request.space.is_none_or(|asked| asked == space) {
                let folder = self.layout.space(namespace, space);
                let names = self.names(&session, &folder, &request.prefix).await?;
                keys.extend(names.into_iter().map(|name| Key::new(namespace.clone(), space, name)));
            }
        }
        keys.sort();
        keys.dedup(); // of several folders that are decoded to one name, one is the lock's
        if let Some((space, name)) = request.after.as_ref().map(Cursor::decode).transpose()? {
            keys.retain(|key| (key.space, &key.name) > (space, &name));
        }
        let mut page = Page { states: Vec::new(), next: None };
        let limit = request.limit.max(1);
        for some in keys.chunks(AT_ONCE.min(limit)) {
            let looks = some.iter().map(|key| self.state(&session, key));
            for state in try_join_all(looks).await? {
                if state.is_free() {
                    continue; // a folder outlives its last claim by some time
                }
                if page.states.len() == limit {
                    page.next =
                        page.states.last().map(|last: &LockState| Cursor::behind(&last.key));
                    return Ok(page);
                }
                page.states.push(state);
            }
        }
        Ok(page)
    }

    /// The names of this folder that begin with a prefix.
    pub(crate) async fn names(
        &self,
        session: &Session,
        folder: &str,
        prefix: &str,
    ) -> Result<Vec<Name>> {
        let nodes = self.children(session, folder).await?;
        let names = nodes.iter().filter_map(|node| decode_name(node));
        let names = names.filter(|name| name.starts_with(prefix));
        Ok(names.filter_map(|name| Name::new(name).ok()).collect())
    }

    /// The namespaces that have a folder. ZooKeeper removes those of locks alone some time after their
    /// last one.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        let session = self.synced().await?;
        let folders = self.children(&session, self.layout.root()).await?;
        let names = folders.iter().filter_map(|f| decode_name(f.strip_prefix(NAMESPACE)?));
        let all: BTreeSet<_> = names.filter_map(|name| Namespace::new(name).ok()).collect();
        Ok(ListPage::first(limit, all.into_iter().filter(|name| after.is_none_or(|a| name > a))))
    }

    pub(crate) async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState> {
        let folder = self.layout.list(key);
        loop {
            let session = self.sessions.get().await?;
            let room = session.reserve(&[&folder]);
            // The watch is set before the read, so that no change falls between them.
            let watcher = match room.is_some() {
                true => {
                    let watched = session.client.list_and_watch_children(&folder);
                    if_there(session.answer(watched).await)?.map(|(_, watcher)| watcher)
                }
                false => None,
            };
            let now = self.state(&session, key).await?;
            if !now.same_queue(seen) {
                return Ok(now);
            }
            match watcher {
                Some(watcher) => {
                    let _ = tokio::time::timeout(LOOK_EVERY, event(watcher)).await;
                }
                None => tokio::time::sleep(LOOK_EVERY / 5).await,
            }
        }
    }

    pub(crate) async fn health(&self) -> Result<Health> {
        let session = self.synced().await?;
        let servers = match session.answer(session.client.get_config()).await {
            Ok((config, _)) => {
                let config = String::from_utf8_lossy(&config).into_owned();
                config.lines().filter(|line| line.starts_with("server.")).count()
            }
            Err(_) => 0, // it may be hidden from us
        };
        let (got, ttl) = (session.timeout(), session.ttl);
        let mut health = Health::well(match servers {
            0 => format!("ZooKeeper (a session of {got:?})"),
            n => format!("ZooKeeper (an ensemble of {n}, a session of {got:?})"),
        });
        let options = self.sessions.options();
        if servers > 1 {
            health = KNOWN_DEFECTS.check(health, server_versions(options).await);
        }
        // A server gives no shorter session than its least, two of its ticks unless configured
        // otherwise.
        let least_tick = got / 2;
        if got > options.asked(options.ttl).timeout + ROUNDED && least_tick > options.tick {
            health = health.with(Finding::new(Severity::Note, format!(
                    "the servers' least session timeout is {got:?}, two ticks unless they are told \
                     otherwise; the option tick says {:?}",
                    options.tick
                ), format!(
                    "if their tickTime is {least_tick:?}, set tick to it: guards then trust a session \
                     for less"
                )));
        }
        let asked = options.ttl;
        if options.session_timeout.is_none() && ttl + ROUNDED < asked {
            health = health.with(Finding::new(
                Severity::Warning,
                format!("locks last {ttl:?} without reads, not the {asked:?} asked for"),
                "raise maxSessionTimeout on the servers, or ask for less",
            ));
        }
        Ok(health)
    }

    pub(crate) async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        // An old base would make tokens that are lower than those of others.
        let session = self.synced().await?;
        let base = self.read_base(&session, namespace).await?.map_or(0, |(base, _)| base);
        self.bases.saw(BACKEND, namespace, base)
    }

    async fn read_base(
        &self,
        session: &Session,
        namespace: &Namespace,
    ) -> Result<Option<(u64, i32)>> {
        let read = session.answer(session.client.get_data(&self.layout.base(namespace))).await;
        let Some((data, stat)) = if_there(read)? else { return Ok(None) };
        Ok(Some((KnownBases::parse(BACKEND, &data)?, stat.version)))
    }

    pub(crate) async fn raise_namespace_counter(
        &self,
        namespace: &Namespace,
        base: u64,
    ) -> Result<()> {
        let session = &*self.sessions.get().await?;
        let (path, data) = (&*self.layout.base(namespace), &*base.to_string());
        retry_conflicts(BACKEND, "others keep raising the token offset", |_| async move {
            let written = match self.read_base(session, namespace).await? {
                Some((now, _)) if now >= base => return Ok(Some(())),
                Some((_, version)) => {
                    let set = session.client.set_data(path, data.as_bytes(), Some(version));
                    session.answer(set).await.map(drop)
                }
                None => self.create_kept(session, path, data.as_bytes()).await,
            };
            match written {
                Err(ZkError::BadVersion | ZkError::NodeExists | ZkError::NoNode) => Ok(None),
                other => other.map(Some).map_err(failed),
            }
        })
        .await
    }
}

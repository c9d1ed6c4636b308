//! Registers: one persistent node each, which stays when its value is deleted, so that versions
//! grow and the highest token is remembered.
//!
//! A write is a `set` under the version of the node that was judged, so that of two writers that
//! judged the same one, one is refused and judges again. The driver never repeats a write by itself
//! whose answer was lost. What this process saw of a register last it remembers, and judges by that
//! first: a write that would be refused by it looks, and what is refused is judged by what the
//! leader has.

use std::time::Duration;

use lockkit_core::driver::{
    RegisterEntry, RegisterKey, Version, Write, WriteResult, retry_conflicts,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use lockkit_core::{Error, Name, Namespace, Result};
use zookeeper_client::Error as ZkError;

use crate::errors::{BACKEND, failed, if_there};
use crate::lists::event;
use crate::locks::AT_ONCE;
use crate::locks::ZkLocks;
use crate::register_record::RegisterRecord;
use crate::session::LOOK_EVERY;
use crate::session::Session;

/// A register as it was read.
#[derive(Clone, Debug)]
struct ReadRegister {
    record: RegisterRecord,
    /// The node's version; none when there is no node.
    node: Option<i32>,
    /// What is left of the value's time.
    remaining: Option<Duration>,
}

impl ZkLocks {
    pub(crate) async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        let session = self.sessions.get().await?;
        let path = self.layout.register(&at.namespace, at.name.as_str());
        Ok(self.read_register(&session, &path).await?.record.entry())
    }

    /// Returns the register once its version is another one than this.
    pub(crate) async fn register_changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        let path = self.layout.register(&at.namespace, at.name.as_str());
        loop {
            let session = self.sessions.get().await?;
            let room = session.reserve(&[&path]);
            // The watch is set before the read, so that no change falls between them. It also
            // waits for a node that is not there yet.
            let watcher = match room.is_some() {
                true => {
                    let watched = session.client.check_and_watch_stat(&path);
                    Some(session.answer(watched).await.map_err(failed)?.1)
                }
                false => None,
            };
            let ReadRegister { record, remaining, .. } =
                self.read_register(&session, &path).await?;
            let entry = record.entry();
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            // No event comes when a value's time is over.
            let remaining =
                remaining.unwrap_or(Duration::MAX).saturating_add(Duration::from_millis(1));
            match watcher {
                Some(watcher) => {
                    let _ = tokio::time::timeout(remaining.min(FAR), event(watcher)).await;
                }
                // Very much is watched in this session: poll.
                None => tokio::time::sleep(remaining.min(LOOK_EVERY)).await,
            }
        }
    }

    /// The register as the leader has it, in one round trip.
    async fn read_register(&self, session: &Session, path: &str) -> Result<ReadRegister> {
        let synced = session.ask_majority(path);
        let read = session.client.get_data(path);
        let (synced, read) = session.answers(async { tokio::join!(synced, read) }).await?;
        let read = if_there(read)?;
        synced.map_err(failed)?;
        let Some((data, stat)) = read else {
            return Ok(ReadRegister {
                record: RegisterRecord::empty(),
                node: None,
                remaining: None,
            });
        };
        let what = "the node of this register was not written by lockkit";
        let mut record =
            RegisterRecord::read(&data).ok_or_else(|| Error::permanent(BACKEND, what))?;
        self.remember(path, stat.version, record.clone());
        let mut remaining = None;
        if record.ends() {
            remaining = Some(record.lapse(self.server_ms(session).await? - stat.mtime));
        }
        Ok(ReadRegister { record, node: Some(stat.version), remaining })
    }

    /// Whether a value's time is over only the server can say, so one with an end is not remembered.
    fn remember(&self, path: &str, version: i32, record: RegisterRecord) {
        match record.ttl_ms > 0 {
            true => self.registers.forget(path),
            false => self.registers.saw(path, (version, record.without_value())),
        }
    }

    /// The leader's clock: ZooKeeper shows it only in the time of a change, so one is made.
    async fn server_ms(&self, session: &Session) -> Result<i64> {
        let path = &*self.layout.clock();
        let conflict = "the node that tells the time comes and goes";
        retry_conflicts(BACKEND, conflict, |_| async move {
            let set = session.answer(session.client.set_data(path, b"", None)).await;
            if let Some(stat) = if_there(set)? {
                return Ok(Some(stat.mtime));
            }
            match self.create_kept(session, path, b"").await {
                Ok(()) | Err(ZkError::NodeExists) => Ok(None),
                Err(error) => Err(failed(error)),
            }
        })
        .await
    }

    /// Some registers that have a value, in the order of their names.
    pub(crate) async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>> {
        let session = self.synced().await?;
        let folder = self.layout.registers(&request.namespace);
        let mut names = self.names(&session, &folder, &request.prefix).await?;
        names.retain(|name| request.after.as_ref().is_none_or(|after| name > after));
        names.sort();
        let limit = request.limit.max(1);
        let mut items = Vec::new();
        for some in names.chunks(AT_ONCE.min(limit)) {
            for (name, record) in self.records(&session, &request.namespace, some).await? {
                let Some(entry) = record.entry() else { continue };
                if items.len() == limit {
                    return Ok(ListPage { items, more: true });
                }
                let (version, token, bytes) = (entry.version, entry.token, entry.value.len());
                items.push(RegisterState::new(name, version, token, bytes));
            }
        }
        Ok(ListPage { items, more: false })
    }

    /// These registers, those that are there, as they are now.
    async fn records(
        &self,
        session: &Session,
        namespace: &Namespace,
        names: &[Name],
    ) -> Result<Vec<(Name, RegisterRecord)>> {
        let path = |name: &Name| self.layout.register(namespace, name.as_str());
        let paths: Vec<_> = names.iter().map(path).collect();
        let (mut records, mut now) = (Vec::new(), None);
        for (name, read) in names.iter().zip(session.contents(&paths).await?) {
            let Some((data, stat)) = if_there(read)? else { continue };
            let Some(mut record) = RegisterRecord::read(&data) else { continue };
            if record.ends() {
                let now = match now {
                    Some(now) => now,
                    None => *now.insert(self.server_ms(session).await?),
                };
                record.lapse(now - stat.mtime);
            }
            records.push((name.clone(), record));
        }
        Ok(records)
    }

    pub(crate) async fn change(&self, at: &RegisterKey, write: &Write) -> Result<WriteResult> {
        let session = &*self.sessions.get().await?;
        let path = &*self.layout.register(&at.namespace, at.name.as_str());
        let conflict = "others keep writing to this register";
        retry_conflicts(BACKEND, conflict, |attempt| async move {
            let remembered = self.registers.last(path).filter(|_| attempt == 0);
            let judged = remembered.and_then(|(version, record)| {
                record.after(write).ok().map(|next| (Some(version), next))
            });
            let (node, next) = match judged {
                Some(judged) => judged,
                None => {
                    let ReadRegister { record, node, .. } =
                        self.read_register(session, path).await?;
                    match record.after(write) {
                        Ok(next) => (node, next),
                        Err(outcome) => return Ok(Some(outcome)),
                    }
                }
            };
            match self.write(session, path, node, &next).await {
                Ok(version) => {
                    let stored = WriteResult::Stored(Version(next.version));
                    self.remember(path, version, next);
                    Ok(Some(stored))
                }
                // Another client was faster: judge again.
                Err(ZkError::BadVersion | ZkError::NodeExists | ZkError::NoNode) => Ok(None),
                Err(error) => {
                    self.registers.forget(path);
                    Err(failed(error))
                }
            }
        })
        .await
    }

    /// Writes a cell over that of this version of the node; the version that it has then.
    async fn write(
        &self,
        session: &Session,
        path: &str,
        node: Option<i32>,
        record: &RegisterRecord,
    ) -> Result<i32, ZkError> {
        let data = record.write();
        match node {
            Some(_) => {
                let set = session.client.set_data(path, &data, node);
                session.answer(set).await.map(|stat| stat.version)
            }
            None => self.create_kept(session, path, &data).await.map(|()| 0),
        }
    }
}

/// As far as timers go.
const FAR: Duration = Duration::from_secs(86_400);

//! Registers: one persistent node each, which stays when its value is deleted, so that versions
//! grow and the highest token is remembered.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Answered, Delete, Entry, Expect, RegisterKey, Registers, Store, StoreOutcome, Version, WriteId,
};
use lockkit_core::{Error, Token};
use zookeeper_client::Error as ZkError;

use crate::ZkDriver;
use crate::driver::Inner;
use crate::failure::{BACKEND, failed};
use crate::session::Session;

/// What a register's node contains.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    version: u64,
    /// 0 for none.
    highest: u64,
    write_id: [u8; 16],
    /// By the server's clock, in milliseconds since 1970 from the node's last change; 0 for never.
    ttl_ms: u64,
    value: Option<Vec<u8>>,
}

const MARK: u8 = 1;
const HEAD: usize = 1 + 8 + 8 + 16 + 8 + 1;

impl Cell {
    fn empty() -> Self {
        Self { version: 0, highest: 0, write_id: [0; 16], ttl_ms: 0, value: None }
    }

    fn write(&self) -> Vec<u8> {
        let value = self.value.as_deref();
        let mut bytes = Vec::with_capacity(HEAD + value.map_or(0, <[u8]>::len));
        bytes.push(MARK);
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(&self.highest.to_be_bytes());
        bytes.extend_from_slice(&self.write_id);
        bytes.extend_from_slice(&self.ttl_ms.to_be_bytes());
        bytes.push(u8::from(value.is_some()));
        bytes.extend_from_slice(value.unwrap_or_default());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        (*bytes.first()? == MARK).then_some(())?;
        Some(Self {
            version: number(1)?,
            highest: number(9)?,
            write_id: bytes.get(17..33)?.try_into().ok()?,
            ttl_ms: number(33)?,
            value: match bytes.get(41)? {
                0 => None,
                _ => Some(bytes[HEAD..].to_vec()),
            },
        })
    }

    fn entry(self) -> Option<Entry> {
        let token = Token::new(self.highest);
        self.value.map(|value| Entry { value, version: Version(self.version), token })
    }
}

/// A change of a register.
struct Change<'a> {
    value: Option<&'a [u8]>,
    expect: Expect,
    token: Option<Token>,
    write_id: WriteId,
    ttl: Option<Duration>,
}

/// A register as it was read.
struct Seen {
    cell: Cell,
    /// The node's version; none when there is no node.
    node: Option<i32>,
    /// What is left of the value's time.
    left: Option<Duration>,
}

impl Inner {
    async fn seen(&self, session: &Session, path: &str) -> Result<Seen, Error> {
        let (data, stat) = match session.answer(session.client.get_data(path)).await {
            Ok(read) => read,
            Err(ZkError::NoNode) => {
                return Ok(Seen { cell: Cell::empty(), node: None, left: None });
            }
            Err(error) => return Err(failed(error)),
        };
        let what = "a node in the place of a register is not one";
        let mut cell = Cell::read(&data).ok_or_else(|| Error::permanent(BACKEND, what))?;
        let mut left = None;
        if cell.ttl_ms > 0 && cell.value.is_some() {
            let age = self.server_ms(session).await?.saturating_sub(stat.mtime);
            let age = u64::try_from(age).unwrap_or(0);
            left = Some(Duration::from_millis(cell.ttl_ms.saturating_sub(age)));
            if age >= cell.ttl_ms {
                cell.value = None;
            }
        }
        Ok(Seen { cell, node: Some(stat.version), left })
    }

    /// The leader's clock: ZooKeeper shows it only in the time of a change, so one is made.
    async fn server_ms(&self, session: &Session) -> Result<i64, Error> {
        let path = self.layout.clock();
        loop {
            match session.answer(session.client.set_data(&path, b"", None)).await {
                Ok(stat) => return Ok(stat.mtime),
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
            match self.create_kept(session, &path, b"").await {
                Ok(()) | Err(ZkError::NodeExists) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn change(&self, at: &RegisterKey, change: Change<'_>) -> Result<StoreOutcome, Error> {
        let session = self.sessions.get().await?;
        let path = self.layout.register(&at.namespace, at.name.as_str());
        loop {
            session.answer(session.ask_majority(&path)).await.map_err(failed)?;
            let Seen { cell, node, .. } = self.seen(&session, &path).await?;
            if cell.version > 0 && cell.write_id == change.write_id.0 {
                return Ok(StoreOutcome::Stored(Version(cell.version)));
            }
            if let (Some(token), Some(highest)) = (change.token, Token::new(cell.highest))
                && token < highest
            {
                return Ok(StoreOutcome::Stale { highest });
            }
            let as_expected = match change.expect {
                Expect::Anything => true,
                Expect::Absent => cell.value.is_none(),
                Expect::Version(Version(version)) => {
                    cell.value.is_some() && cell.version == version
                }
            };
            if !as_expected {
                return Ok(StoreOutcome::Conflict);
            }
            let next = Cell {
                version: cell.version + 1,
                highest: change.token.map_or(cell.highest, Token::get),
                write_id: change.write_id.0,
                ttl_ms: change.ttl.map_or(0, whole_ms),
                value: change.value.map(<[u8]>::to_vec),
            };
            let written = match node {
                Some(version) => {
                    let set = session.client.set_data(&path, &next.write(), Some(version));
                    session.answer(set).await.map(drop)
                }
                None => self.create_kept(&session, &path, &next.write()).await,
            };
            match written {
                Ok(()) => return Ok(StoreOutcome::Stored(Version(next.version))),
                // Somebody else was faster: judge anew.
                Err(ZkError::BadVersion | ZkError::NodeExists | ZkError::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

fn whole_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

#[async_trait]
impl Registers for ZkDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        let session = self.inner.sessions.get().await?;
        let path = self.inner.layout.register(&at.namespace, at.name.as_str());
        session.answer(session.ask_majority(&path)).await.map_err(failed)?;
        Ok(self.inner.seen(&session, &path).await?.cell.entry())
    }

    async fn store(
        &self,
        at: &RegisterKey,
        store: &Store,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let Store { expect, token, write_id, ttl, .. } = *store;
        let change = Change { value: Some(&store.value), expect, token, write_id, ttl };
        self.inner.change(at, change).await.map(Answered::from)
    }

    async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let Delete { expect, token, write_id, .. } = *delete;
        let change = Change { value: None, expect, token, write_id, ttl: None };
        self.inner.change(at, change).await.map(Answered::from)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        let path = self.inner.layout.register(&at.namespace, at.name.as_str());
        loop {
            let session = self.inner.sessions.get().await?;
            session.answer(session.ask_majority(&path)).await.map_err(failed)?;
            let room = session.room(&[&path]);
            // The watch is set before the look, so that no change falls between them. It also
            // waits for a node that is not there yet.
            let watcher = match room.is_some() {
                true => {
                    let watched = session.client.check_and_watch_stat(&path);
                    Some(session.answer(watched).await.map_err(failed)?.1)
                }
                false => None,
            };
            let Seen { cell, left, .. } = self.inner.seen(&session, &path).await?;
            let entry = cell.entry();
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            // Nobody tells when a value's time is over.
            let left = left.unwrap_or(Duration::MAX).saturating_add(Duration::from_millis(1));
            match watcher {
                Some(watcher) => {
                    let _ = tokio::time::timeout(left.min(FAR), watcher.changed()).await;
                }
                // Very much is watched in this session: look now and then.
                None => tokio::time::sleep(left.min(LOOK_EVERY)).await,
            }
        }
    }
}

/// As far as timers go.
const FAR: Duration = Duration::from_secs(86_400);

/// How often those look who cannot watch.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_survives_writing_and_reading() {
        let full = Cell {
            version: 7,
            highest: u64::MAX,
            write_id: [9; 16],
            ttl_ms: 5,
            value: Some(vec![0, 255]),
        };
        for cell in [Cell::empty(), full.clone(), Cell { value: Some(Vec::new()), ..full }] {
            assert_eq!(Cell::read(&cell.write()), Some(cell));
        }
        assert_eq!(Cell::read(b""), None);
        assert_eq!(Cell::read(b"somebody's data, long enough to be a cell of ours...."), None);
    }
}

//! Giving a semaphore a limit.
//!
//! The limit is a node among those of the claims, so a client that lists these sees it as it was with
//! them. It is changed in one transaction: the old one goes, the new one comes, and the folder's
//! data is written, by which attempts that rest on an earlier read are refused.
//!
//! # Which claims keep holding
//! Which claims hold follows from the list and its limit. Below a limit that was lowered some hold
//! that would not be let in: so with the limit it is written up to which claim they hold, as it was
//! under the old one. That is read before it is written, and the write is refused when a client
//! came in between (which the folder's version tells), or left in whose place another may have
//! begun to hold. Where that happens again and again the limit is written all the same: it is in
//! force then for all later claims, and no claim is evicted; but one that began to hold in that
//! moment, by the old limit, may be shown as waiting until there is room.

use lockkit_core::driver::{SetLimit, retry_conflicts};
use lockkit_core::queue::{EXACT_ATTEMPTS, GivenLimit, LimitWrite, Resizing};
use lockkit_core::{Key, Result};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriter};

use crate::errors::{BACKEND, failed};
use crate::fixed_limit::{MARK, limit_at};
use crate::locks::FolderState;
use crate::locks::{ReadList, ZkLocks};
use crate::queue_snapshot::QueueSnapshot;
use crate::session::Session;

/// Of how many claims it is asked whether they are still there. (A request has a megabyte at most,
/// and the path of a claim up to three kilobytes.)
const ASKED_FOR: usize = 200;

/// What is to be written, and on what it rests.
struct Change {
    given: GivenLimit,
    /// Nodes that must still be there, with their versions.
    rests_on: Vec<(String, i32)>,
}

impl ZkLocks {
    pub(crate) async fn resize(&self, key: &Key, to: SetLimit) -> Result<u32> {
        let session = &*self.sessions.get().await?;
        let folder = &*self.layout.list(key);
        let conflict = "others keep resizing this semaphore";
        retry_conflicts(BACKEND, conflict, |attempt| async move {
            let seen = self.read_list(session, folder).await?;
            let limit = match seen.snapshot.queue().limit_write(to) {
                LimitWrite::None(limit) => return Ok(Some(limit)),
                LimitWrite::To(limit) => limit,
            };
            let Some(change) = self.change_to(session, folder, &seen.snapshot, limit).await? else {
                return Ok(None);
            };
            let exact = attempt < EXACT_ATTEMPTS;
            let written = self.give(session, folder, &seen, &change, exact).await?;
            Ok(written.then_some(limit))
        })
        .await
    }

    /// What has to be written so that this list has this limit and no claim is evicted; `None` when
    /// a client has left while that was asked for.
    async fn change_to(
        &self,
        session: &Session,
        folder: &str,
        snapshot: &QueueSnapshot,
        limit: u32,
    ) -> Result<Option<Change>> {
        if snapshot.queue().limit().is_none_or(|old| old <= limit) {
            let Resizing { given, .. } = snapshot.queue().resizing(limit, &[]);
            return Ok(Some(Change { given, rests_on: Vec::new() }));
        }
        let paths = snapshot.paths(folder);
        let stats = session.stats(&paths).await?;
        let mut tokens = Vec::with_capacity(paths.len());
        let mut nodes = Vec::with_capacity(paths.len());
        for (path, stat) in paths.into_iter().zip(stats) {
            let Some(stat) = stat.map_err(failed)? else {
                return Ok(None);
            };
            tokens.push(stat.czxid as u64);
            nodes.push((path, stat.version));
        }
        let Resizing { given, rests_on } = snapshot.queue().resizing(limit, &tokens);
        nodes.truncate(rests_on);
        Ok(Some(Change { given, rests_on: nodes }))
    }

    /// Writes a limit, if the one that was seen is still there. Says whether it was written.
    async fn give(
        &self,
        session: &Session,
        folder: &str,
        seen: &ReadList,
        change: &Change,
        exact: bool,
    ) -> Result<bool> {
        let acls = self.sessions.options().acls();
        let stays = CreateMode::Persistent.with_acls(acls);
        let mut multi = session.client.new_multi_writer();
        let prepared = match seen.version {
            None => {
                let container = self.layout.folder_mode().with_acls(acls);
                multi.add_create(folder, b"", &container)
            }
            Some(version) => multi.add_set_data(folder, b"", exact.then_some(version)),
        };
        let begun = prepared.and_then(|()| match seen.snapshot.queue().given() {
            Some(old) => multi.add_delete(&limit_at(folder, old), None),
            // Of two that give it its first limit at once, one fails here.
            None => multi.add_create(&format!("{folder}/{MARK}"), b"", &stays),
        });
        begun
            .and_then(|()| multi.add_create(&limit_at(folder, change.given), b"", &stays))
            .and_then(|()| match exact && change.rests_on.len() <= ASKED_FOR {
                true => check_all(&mut multi, &change.rests_on),
                false => Ok(()),
            })
            .map_err(failed)?;
        match session.answers(multi.commit()).await? {
            Ok(_) => {
                self.folders.saw(folder, FolderState::Limited(change.given));
                Ok(true)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => match source {
                ZkError::NoNode if seen.version.is_none() => {
                    self.make_above(session, folder).await.map_err(failed)?;
                    Ok(false)
                }
                ZkError::NoNode | ZkError::NodeExists | ZkError::BadVersion => Ok(false),
                other => Err(failed(other)),
            },
            Err(error) => Err(failed(error.into())),
        }
    }
}

fn check_all(multi: &mut MultiWriter<'_>, nodes: &[(String, i32)]) -> Result<(), ZkError> {
    nodes.iter().try_for_each(|(path, version)| multi.add_check_version(path, *version))
}

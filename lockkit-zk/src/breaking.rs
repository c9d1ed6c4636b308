//! Breaking claims: a record of the operator, time and reason, named after the claim's token; with force,
//! the claim's node goes in the same step.

use futures_util::future::join_all;
use lockkit_core::driver::BreakMode;
use lockkit_core::{BreakRecord, Key, Result, Token};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::errors::{failed, if_there};
use crate::locks::ZkLocks;
use crate::paths::{Child, break_name, breaks_of};
use crate::session::Session;

/// How long a record is kept at least.
const KEPT_MS: i64 = 15 * 60 * 1000;

impl ZkLocks {
    pub(crate) async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        let session = self.synced().await?;
        let Some(child) = self.child_of(&session, key, token).await? else {
            return Ok(false);
        };
        let breaks = self.layout.breaks(&key.namespace);
        let path = format!("{breaks}/{}", break_name(key, token, &child.tag));
        self.make_folder(&session, &breaks).await.map_err(failed)?;
        self.write_record(&session, &path, record).await?;
        if force == BreakMode::Graceful {
            self.drop_old_records(&session, &breaks, &path).await?;
            return Ok(true);
        }
        let folder = self.layout.list(key);
        // The node goes after its record is there: a client that misses it then learns why.
        let Child { name, tag, mode, .. } = &child;
        let broken = self
            .remove_node(&session, &folder, name, tag, *mode)
            .await
            .map_err(|failed| failed.error)?;
        self.drop_old_records(&session, &breaks, &path).await?;
        Ok(broken)
    }

    /// The claim of this list that has this token.
    async fn child_of(&self, session: &Session, key: &Key, token: Token) -> Result<Option<Child>> {
        let folder = self.layout.list(key);
        let snapshot = self.snapshot(session, &folder).await?;
        let stats = session.stats(&snapshot.paths(&folder)).await?;
        for (child, stat) in snapshot.claims().iter().zip(stats) {
            let stat = stat.map_err(failed)?;
            if stat.is_some_and(|stat| stat.czxid as u64 == token.get()) {
                return Ok(Some(child.clone()));
            }
        }
        Ok(None)
    }

    async fn write_record(
        &self,
        session: &Session,
        path: &str,
        record: &BreakRecord,
    ) -> Result<()> {
        let data = record.to_json();
        let options = CreateMode::Persistent.with_acls(self.sessions.options().acls());
        match session.answer(session.client.create(path, data.as_bytes(), &options)).await {
            Ok(_) => Ok(()),
            Err(ZkError::NodeExists) => {
                let written =
                    session.answer(session.client.set_data(path, data.as_bytes(), None)).await;
                written.map(drop).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Deletes the records that are much older than the newest, by the server's clock.
    async fn drop_old_records(&self, session: &Session, breaks: &str, newest: &str) -> Result<()> {
        let Some(now) = session.answer(session.client.check_stat(newest)).await.map_err(failed)?
        else {
            return Ok(());
        };
        let names = self.children(session, breaks).await?;
        let paths: Vec<_> = names.iter().map(|name| format!("{breaks}/{name}")).collect();
        let stats = session.stats(&paths).await?;
        let old = paths.iter().zip(stats).filter(|(_, stat)| {
            let stat = stat.as_ref().ok().and_then(Option::as_ref);
            stat.is_some_and(|stat| now.mtime - stat.mtime > KEPT_MS)
        });
        // Those that cannot be deleted now are found by the next break.
        let gone: Vec<_> = old.map(|(path, _)| session.client.delete(path, None)).collect();
        session.answers(join_all(gone)).await.map(drop)
    }

    /// What the record of this name says.
    pub(crate) async fn break_record(
        &self,
        session: &Session,
        key: &Key,
        name: &str,
    ) -> Result<Option<BreakRecord>> {
        let path = format!("{}/{name}", self.layout.breaks(&key.namespace));
        let read = if_there(session.answer(session.client.get_data(&path)).await)?;
        Ok(read.and_then(|(data, _)| BreakRecord::from_json(&data)))
    }

    /// The records about one list: by their names, and the last that was written.
    pub(crate) async fn records_of(
        &self,
        session: &Session,
        key: &Key,
    ) -> Result<(Vec<String>, Option<BreakRecord>)> {
        let folder = self.layout.breaks(&key.namespace);
        let mut names = self.children(session, &folder).await?;
        names.retain(|name| name.starts_with(&breaks_of(key)));
        let paths: Vec<_> = names.iter().map(|name| format!("{folder}/{name}")).collect();
        let read = session.contents(&paths).await?;
        let last = read.into_iter().flatten().max_by_key(|(_, stat)| stat.mzxid);
        Ok((names, last.and_then(|(data, _)| BreakRecord::from_json(&data))))
    }
}

//! Giving a semaphore a limit.
//!
//! The limit is a node among those of the claims, so whoever lists these sees it as it was with
//! them. It is changed in one transaction: the old one goes, the new one comes, and the folder's
//! data is written, by which those are refused who try with what they saw before.
//!
//! # Who holds on
//! Which claims hold follows from the list and its limit. Below a limit that was lowered some hold
//! that would not be let in: so with the limit it is written up to which claim they hold, as it was
//! under the old one. That is read before it is written, and the write is refused when somebody
//! came in between (which the folder's version tells), or left in whose place another may have
//! begun to hold. Where that happens again and again the limit is written all the same: it is in
//! force then for all who come, and nobody is evicted; but one who began to hold in that moment, by
//! the old limit, may be shown as waiting until there is room.

use futures_util::future::join_all;
use lockkit_core::driver::SetLimit;
use lockkit_core::{Error, Key, Mode, Token, queue};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriter};

use crate::driver::Inner;
use crate::enter::limit_at;
use crate::failure::{BACKEND, failed};
use crate::folders::Sight;
use crate::given::{Given, MARK};
use crate::line::Line;
use crate::session::Session;

/// How often it begins anew because others changed the limit, or the list.
const ATTEMPTS: usize = 256;
/// How often it does so because others came and went.
const EXACT_ATTEMPTS: usize = 16;
/// Of how many claims it is asked whether they are still there. (A request has a megabyte at most,
/// and the path of a claim up to three kilobytes.)
const ASKED_FOR: usize = 200;

/// A list as it was read.
struct Seen {
    line: Line,
    /// The version of its folder; none when there is no folder.
    version: Option<i32>,
}

/// What is to be written, and on what it rests.
struct Change {
    given: Given,
    /// Nodes that must still be there, with their versions.
    rests_on: Vec<(String, i32)>,
}

impl Inner {
    pub(crate) async fn resize(&self, key: &Key, to: SetLimit) -> Result<u32, Error> {
        let session = self.sessions.get().await?;
        let folder = self.layout.list(key);
        for attempt in 0..ATTEMPTS {
            let seen = self.seen_list(&session, &folder).await?;
            let limit = match (to, seen.line.given()) {
                (SetLimit::IfUnset(_), Some(given)) => return Ok(given.limit),
                (SetLimit::To(limit), Some(given)) if given.limit == limit => return Ok(limit),
                (SetLimit::To(limit), _) => limit,
                (SetLimit::IfUnset(limit), None) => seen.line.limit().unwrap_or(limit),
            };
            let Some(change) = self.change_to(&session, &folder, &seen.line, limit).await? else {
                continue;
            };
            let exact = attempt < EXACT_ATTEMPTS;
            if self.give(&session, &folder, &seen, &change, exact).await? {
                return Ok(limit);
            }
        }
        Err(Error::retryable(BACKEND, "others keep resizing this semaphore"))
    }

    /// The list as the leader has it.
    async fn seen_list(&self, session: &Session, folder: &str) -> Result<Seen, Error> {
        let synced = session.ask_majority(self.layout.root());
        let listed = session.client.get_children(folder);
        let (synced, listed) = session.answers(async { tokio::join!(synced, listed) }).await?;
        match listed {
            // There may be no root to be synchronized, but then nor are there folders.
            Err(ZkError::NoNode) => Ok(Seen { line: Line::default(), version: None }),
            Ok((names, stat)) => {
                synced.map_err(failed)?;
                let line = self.line_of(session, folder, names).await?;
                Ok(Seen { line, version: Some(stat.version) })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// What has to be written so that this list has this limit and nobody is evicted; `None` when
    /// somebody has left while that was asked for.
    async fn change_to(
        &self,
        session: &Session,
        folder: &str,
        line: &Line,
        limit: u32,
    ) -> Result<Option<Change>, Error> {
        let until = line.given().map_or(0, |given| given.until);
        let given = Given { limit, until };
        if line.limit().is_none_or(|old| old <= limit) || line.is_empty() {
            return Ok(Some(Change { given, rests_on: Vec::new() }));
        }
        let paths: Vec<_> = line.claims().iter().map(|c| format!("{folder}/{}", c.name)).collect();
        let stats: Vec<_> = paths.iter().map(|path| session.client.check_stat(path)).collect();
        let stats = session.answers(join_all(stats)).await?;
        let mut made = Vec::with_capacity(paths.len());
        for (path, stat) in paths.into_iter().zip(stats) {
            let Some(stat) = stat.map_err(failed)? else {
                return Ok(None);
            };
            let token = Token::new(stat.czxid as u64);
            let token = token.ok_or_else(|| Error::permanent(BACKEND, "a node of no change"))?;
            made.push((token, path, stat.version));
        }
        let tokens: Vec<_> = made.iter().map(|(token, ..)| *token).collect();
        let (holders, until) = who_holds_on(line, &tokens, limit);
        // Where nobody waits it does not matter who leaves; otherwise that of any holder does, and
        // that of the first who waits, who stands in the way of others.
        let matter = if holders < made.len() { holders + 1 } else { 0 };
        let rests_on = made.into_iter().take(matter).map(|(_, path, version)| (path, version));
        Ok(Some(Change { given: Given { limit, until }, rests_on: rests_on.collect() }))
    }

    /// Writes a limit, if the one that was seen is still there. Says whether it was written.
    async fn give(
        &self,
        session: &Session,
        folder: &str,
        seen: &Seen,
        change: &Change,
        exact: bool,
    ) -> Result<bool, Error> {
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
        let begun = prepared.and_then(|()| match seen.line.given() {
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
                self.folders.saw(folder, Sight::Limited(change.given));
                Ok(true)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => match source {
                ZkError::NoNode if seen.version.is_none() => {
                    let above = folder.rsplit_once('/').map_or("", |(above, _)| above);
                    self.make_folder(session, above).await.map_err(failed)?;
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

/// How many claims of a line hold, given their tokens; and the greatest token among them, or 0 when
/// under this limit they all hold anyway.
fn who_holds_on(line: &Line, tokens: &[Token], limit: u32) -> (usize, u64) {
    let by_the_sum = line.holders();
    let held = |token: &Token| line.given().is_some_and(|given| given.holds_on(*token));
    let holds = |(place, token): &(usize, &Token)| *place < by_the_sum || held(token);
    let holders = tokens.iter().enumerate().take_while(holds).count();
    let fit = queue::holders(line.claims().iter().map(|c| match c.mode {
        Mode::Permits { permits, .. } => Mode::Permits { permits, limit },
        other => other,
    }));
    let last = tokens[..holders].last().filter(|_| fit < holders);
    (holders, last.map_or(0, |token| token.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Tag;
    use lockkit_core::driver::ClaimId;

    #[test]
    fn it_is_written_who_holds_on_and_only_where_some_do() {
        let names = |permits: &[u32]| -> Vec<_> {
            let modes = permits.iter().map(|permits| Mode::Permits { permits: *permits, limit: 3 });
            let tag = || Tag::of(ClaimId::random());
            (0..).zip(modes).map(|(n, mode)| format!("{}{n:010}", tag().prefix_of(mode))).collect()
        };
        let tokens: Vec<_> = (11..15).map(|n| Token::new(n).unwrap()).collect();
        let line = Line::of(names(&[1, 1, 1, 1]));
        assert_eq!(who_holds_on(&line, &tokens, 2), (3, 13));
        assert_eq!(who_holds_on(&line, &tokens, 0), (3, 13));
        let two = Line::of(names(&[1, 1]));
        assert_eq!(who_holds_on(&two, &tokens[..2], 2), (2, 0), "they fit");
        // A limit that was lowered before, below what is out.
        let given = Given { limit: 1, until: 12 };
        let line = Line::of([names(&[1, 1, 1, 1]), vec![given.name()]].concat());
        assert_eq!(who_holds_on(&line, &tokens, 0), (2, 12));
        // Somebody wants more than there is, and another behind.
        let line = Line::of(names(&[1, 3, 1]));
        assert_eq!(who_holds_on(&line, &tokens[..3], 0), (1, 11));
    }
}

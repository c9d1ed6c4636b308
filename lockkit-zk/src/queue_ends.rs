//! The end of a queue, as far as the answers to this driver's own requests tell it: the last claim of a
//! folder after so many changes of its children. The answer to the next request has the number of changes
//! too. If it grew by what that request itself did, no other client came or went, so the claim that was last
//! is the one ahead of the new one, and nothing has to be read. No I/O.

use lockkit_core::driver::Recent;
use zookeeper_client::Stat;

use crate::queue_snapshot::QueueSnapshot;

/// Of how many folders it is remembered.
const REMEMBERED: usize = 4096;

/// The end of a queue in whose folder there are claims only.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QueueEnd {
    /// By which change the folder was made: numbers begin again in one that was made again.
    made: i64,
    /// How many children have come and gone.
    changes: i32,
    /// The name of the last claim.
    last: String,
}

/// The ends of queues, by their folders.
pub(crate) struct QueueEnds(Recent<String, QueueEnd>);

impl Default for QueueEnds {
    fn default() -> Self {
        Self(Recent::new(REMEMBERED))
    }
}

/// What one request of this driver did in a folder.
pub(crate) struct FolderChange<'a> {
    /// The state of the folder after it.
    pub(crate) stat: Stat,
    /// The names of the claims that it deleted.
    pub(crate) deleted: &'a [&'a str],
    /// The name of the claim that it created.
    pub(crate) created: Option<&'a str>,
}

impl QueueEnds {
    /// A list showed all children of a folder in this state.
    pub(crate) fn listed(&self, folder: &str, stat: &Stat, names: usize, snapshot: &QueueSnapshot) {
        let claims = snapshot.claims();
        match claims.last() {
            Some(last) if claims.len() == names && !snapshot.is_unsure() => {
                self.saw(folder, stat, last.name.clone());
            }
            _ => self.forget(folder),
        }
    }

    /// Notes a change; returns the claim that is directly ahead of the one that was created, if that is
    /// known.
    pub(crate) fn changed(&self, folder: &str, change: &FolderChange<'_>) -> Option<String> {
        let FolderChange { stat, deleted, created } = change;
        let own = i32::try_from(deleted.len() + usize::from(created.is_some())).ok()?;
        let nothing_else = |end: &QueueEnd| {
            end.made == stat.czxid && end.changes.checked_add(own) == Some(stat.cversion)
        };
        let before = self.0.last(folder).filter(nothing_else).map(|end| end.last);
        let ahead = before.filter(|last| deleted.iter().all(|name| name != last));
        match (created, &ahead) {
            (Some(created), Some(_)) => self.saw(folder, stat, (*created).to_owned()),
            (Some(created), None) if stat.num_children == 1 => {
                self.saw(folder, stat, (*created).to_owned());
            }
            (None, Some(last)) => self.saw(folder, stat, last.clone()),
            _ => self.forget(folder),
        }
        ahead.filter(|_| created.is_some())
    }

    /// Its end is not known.
    pub(crate) fn forget(&self, folder: &str) {
        self.0.forget(folder);
    }

    fn saw(&self, folder: &str, stat: &Stat, last: String) {
        let end = QueueEnd { made: stat.czxid, changes: stat.cversion, last };
        self.0.saw(folder, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(changes: i32, num_children: i32) -> Stat {
        Stat {
            czxid: 7,
            mzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: changes,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children,
            pzxid: 0,
        }
    }

    fn comes(ends: &QueueEnds, name: &str, stat: Stat, deleted: &[&str]) -> Option<String> {
        ends.changed("f", &FolderChange { stat, deleted, created: Some(name) })
    }

    #[test]
    fn the_one_ahead_is_known_as_long_as_nobody_else_came_or_went() {
        let ends = QueueEnds::default();
        assert_eq!(comes(&ends, "a", stat(1, 1), &[]), None, "nobody is ahead");
        assert_eq!(comes(&ends, "b", stat(2, 2), &[]).as_deref(), Some("a"));
        assert_eq!(comes(&ends, "c", stat(4, 2), &["a"]).as_deref(), Some("b"));
        let gone = FolderChange { stat: stat(5, 1), deleted: &["b"], created: None };
        assert_eq!(ends.changed("f", &gone), None);
        assert_eq!(comes(&ends, "d", stat(6, 2), &[]).as_deref(), Some("c"), "a release counted");
        // Another client came: or came and left.
        for changes in [8, 9] {
            assert_eq!(comes(&ends, "e", stat(changes, 4), &[]), None);
            assert_eq!(comes(&ends, "g", stat(changes + 1, 5), &[]), None, "still not known");
            ends.saw("f", &stat(6, 2), "d".to_owned());
        }
    }

    #[test]
    fn nothing_is_known_after_the_last_one_left_or_in_a_folder_that_was_made_again() {
        let ends = QueueEnds::default();
        ends.saw("f", &stat(6, 3), "d".to_owned());
        assert_eq!(comes(&ends, "e", stat(8, 3), &["d"]), None);
        ends.saw("f", &stat(6, 3), "d".to_owned());
        let again = Stat { czxid: 8, ..stat(7, 3) };
        assert_eq!(comes(&ends, "e", again, &[]), None);
    }
}

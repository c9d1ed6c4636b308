//! How much is watched in a session, which has a bound. It watches nothing itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::driver::locked;

/// As many bytes of paths are watched at once, at most.
///
/// A client that connects again tells the server what it watches. zookeeper-client divides what is
/// longer than 128 KiB, then takes the second answer for a fault and cuts the connection; so with
/// more than that a session would end with the first cut.
const MOST: usize = 120 * 1024;
/// What of that is kept for folders, each of which stands for all who wait in it.
const FOR_FOLDERS: usize = 8 * 1024;

/// How often folders are listed that cannot be watched, since very much is watched in their session.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The paths that are watched in a session.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<Paths>);

#[derive(Debug, Default)]
struct Paths {
    /// By how many each is watched. To the server that is one watch.
    watchers: HashMap<String, u32>,
    bytes: usize,
}

impl Watched {
    fn paths(&self) -> MutexGuard<'_, Paths> {
        locked(&self.0)
    }
}

/// Room for watches, for as long as it is kept.
#[derive(Debug)]
pub(crate) struct Room {
    watched: Arc<Watched>,
    paths: Vec<String>,
}

impl Room {
    /// Room to watch these paths; none when that would be too much.
    pub(crate) fn for_paths(watched: &Arc<Watched>, paths: &[&str]) -> Option<Self> {
        Self::below(watched, paths, MOST - FOR_FOLDERS)
    }

    /// Room to watch the children of a folder.
    pub(crate) fn for_folder(watched: &Arc<Watched>, path: &str) -> Option<Self> {
        Self::below(watched, &[path], MOST)
    }

    fn below(watched: &Arc<Watched>, paths: &[&str], most: usize) -> Option<Self> {
        let mut all = watched.paths();
        for path in paths {
            let watchers = all.watchers.entry((*path).to_owned()).or_default();
            *watchers += 1;
            if *watchers == 1 {
                all.bytes += path.len();
            }
        }
        let fits = all.bytes <= most;
        drop(all);
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let room = Self { watched: watched.clone(), paths };
        fits.then_some(room) // dropped, it gives back what it took
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut all = self.watched.paths();
        for path in &self.paths {
            if let Some(watchers) = all.watchers.get_mut(path) {
                *watchers -= 1;
                if *watchers == 0 {
                    all.watchers.remove(path);
                    all.bytes -= path.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_there_is_none_and_again_when_some_leave() {
        let watched = Arc::default();
        let path = |n: usize| format!("/{n:01023}");
        let mut rooms: Vec<_> = (0..112)
            .map(|n| Room::for_paths(&watched, &[&path(n)]).expect("there is room"))
            .collect();
        assert!(Room::for_paths(&watched, &[&path(120)]).is_none());
        // What is watched already takes no more room.
        drop(Room::for_paths(&watched, &[&path(7)]).expect("it is watched already"));
        assert!(Room::for_paths(&watched, &[&path(120)]).is_none());
        rooms.pop();
        assert!(Room::for_paths(&watched, &[&path(120)]).is_some());
        let folders: Vec<_> =
            (0..7).map(|n| Room::for_folder(&watched, &path(1_000 + n))).collect();
        assert!(folders.iter().all(Option::is_some), "they have room of their own");
        assert!(Room::for_folder(&watched, &path(2_000)).is_some());
        drop((rooms, folders));
        let left = watched.paths();
        assert_eq!((left.bytes, left.watchers.len()), (0, 0));
    }
}

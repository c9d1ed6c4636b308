//! First sights of sessions that outlive their process, in a file of this host: without them, programs that
//! each try once and end find a dead holder's lock busy for ever.
//!
//! A sight that is wrong ends a living lock, so the file must be one that only this user can have written, and
//! a sight counts only on the very clocks on which it was taken: of the same boot, in a namespace with the
//! same offsets, and not in the future.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lockkit_core::clock::{ClockPair, Moment};
use lockkit_core::driver::ClaimId;
use serde::{Deserialize, Serialize};

use crate::document::SessionId;

const NAME: &str = "sessions.json";
/// Sights in a file at most, the latest ones.
const MOST_KEPT: usize = 1_000;
/// A longer file is none of ours.
const MOST_BYTES: u64 = 1_000_000;

/// When a beat of a session was first seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSight {
    /// The random id of the store.
    pub(crate) store: String,
    pub(crate) session: SessionId,
    pub(crate) beat: String,
    pub(crate) ttl_us: u64,
    boot_ns: u64,
    raw_ns: u64,
}

impl KeptSight {
    pub(crate) fn new(
        store: &str,
        session: &str,
        (beat, ttl_us): (&str, u64),
        first_seen: ClockPair,
    ) -> Self {
        Self {
            store: store.to_owned(),
            session: session.to_owned(),
            beat: beat.to_owned(),
            ttl_us,
            boot_ns: first_seen.boot.as_nanos(),
            raw_ns: first_seen.raw.as_nanos(),
        }
    }

    pub(crate) fn first_seen(&self) -> ClockPair {
        ClockPair { boot: Moment::from_nanos(self.boot_ns), raw: Moment::from_nanos(self.raw_ns) }
    }

    fn is_in_the_future(&self, now: ClockPair) -> bool {
        let first_seen = self.first_seen();
        first_seen.boot > now.boot || first_seen.raw > now.raw
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct SightsDocument {
    /// The boot of this machine, and the offsets of its time namespace.
    boot: String,
    sights: Vec<KeptSight>,
}

/// The file of a folder, as one boot of this machine reads it.
#[derive(Debug)]
pub(crate) struct SightsFile {
    folder: PathBuf,
    boot: String,
}

impl SightsFile {
    /// `None` where the system does not tell one boot from another.
    pub(crate) fn of_this_boot(folder: &Path) -> Option<Self> {
        Some(Self { folder: folder.to_owned(), boot: boot()? })
    }

    /// What is kept of all stores.
    ///
    /// # Errors
    /// A file that this user alone cannot have written.
    pub(crate) fn read(&self, now: ClockPair) -> io::Result<Vec<KeptSight>> {
        let Some(text) = read_own(&self.folder)? else { return Ok(Vec::new()) };
        let found: SightsDocument = serde_json::from_str(&text).unwrap_or_default();
        if found.boot != self.boot {
            return Ok(Vec::new());
        }
        let mut sights = found.sights;
        sights.retain(|sight| !sight.is_in_the_future(now));
        Ok(sights)
    }

    /// Adds the sights of a process to those that are kept. Of two of one session the later one counts, and of
    /// two of one beat the earlier one. What another process writes meanwhile may be lost.
    pub(crate) fn add(&self, now: ClockPair, sights: Vec<KeptSight>) -> io::Result<()> {
        let mut kept: BTreeMap<(String, SessionId), KeptSight> = BTreeMap::new();
        // One that may not be read is replaced.
        for sight in self.read(now).unwrap_or_default().into_iter().chain(sights) {
            let key = (sight.store.clone(), sight.session.clone());
            let replaces = kept.get(&key).is_none_or(|known| match known.beat == sight.beat {
                true => sight.boot_ns < known.boot_ns,
                false => sight.boot_ns >= known.boot_ns,
            });
            if replaces {
                kept.insert(key, sight);
            }
        }
        let mut sights: Vec<_> = kept.into_values().collect();
        sights.sort_by_key(|sight| std::cmp::Reverse(sight.boot_ns));
        sights.truncate(MOST_KEPT);
        let document = SightsDocument { boot: self.boot.clone(), sights };
        let bytes = serde_json::to_vec(&document).map_err(io::Error::other)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let new = self.folder.join(format!("{NAME}.{}", ClaimId::random().to_hex()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| file.write_all(&bytes));
        let renamed = written.and_then(|()| fs::rename(&new, self.folder.join(NAME)));
        if renamed.is_err() {
            let _ = fs::remove_file(&new);
        }
        renamed
    }
}

/// Why the file that [`StoreOptions::state`](crate::StoreOptions::state) keeps in this folder is ignored, if it
/// is: it belongs to another user, or others can read or write it.
pub fn ignored_state(folder: &Path) -> Option<String> {
    let error = read_own(folder).err()?;
    let file = folder.join(NAME).display().to_string();
    Some(format!("{file} is ignored: {error}; remove it"))
}

/// The file's text, if there is one.
fn read_own(folder: &Path) -> io::Result<Option<String>> {
    let path = folder.join(NAME);
    // Before it is opened, which waits at a pipe.
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is no file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let file = File::open(&path)?;
    let found = file.metadata()?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.mode() & 0o7777 != 0o600 {
        return Err(io::Error::other("others can read or write it (its mode is not 0600)"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Which boot of this machine it is, and which clocks this process reads.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Some(with_offsets(id.trim(), &offsets))
}

/// A time namespace of its own reads other clocks under the same id.
fn with_offsets(id: &str, offsets: &str) -> String {
    std::iter::once(id).chain(offsets.split_whitespace()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> ClockPair {
        let boot = Moment::from_nanos(seconds * 1_000_000_000);
        ClockPair { boot, raw: boot }
    }

    fn sight(session: &str, beat: &str, seconds: u64) -> KeptSight {
        KeptSight::new("store", session, (beat, 30_000_000), at(seconds))
    }

    fn file(folder: &Path, boot: &str) -> SightsFile {
        SightsFile { folder: folder.join("new"), boot: boot.to_owned() }
    }

    #[test]
    fn what_was_seen_first_is_kept_until_another_beat_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path(), "this boot");
        assert_eq!(file.read(at(100)).unwrap(), []);
        file.add(at(100), vec![sight("a", "1", 50), sight("b", "1", 50)]).unwrap();
        file.add(at(100), vec![sight("a", "1", 60), sight("b", "2", 60)]).unwrap();
        file.add(at(100), vec![sight("b", "1", 55)]).unwrap();
        assert_eq!(file.read(at(100)).unwrap(), [sight("b", "2", 60), sight("a", "1", 50)]);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&file.folder), 0o700);
        assert_eq!(mode(&file.folder.join(NAME)), 0o600);
        assert_eq!(fs::read_dir(&file.folder).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_sight_of_another_boot_or_of_the_future_counts_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let this = file(folder.path(), "this boot");
        this.add(at(100), vec![sight("a", "1", 50), sight("b", "1", 101)]).unwrap();
        assert_eq!(this.read(at(100)).unwrap(), [sight("a", "1", 50)]);
        assert_eq!(this.read(at(49)).unwrap(), []);
        // On one of the two clocks.
        let slower = ClockPair { boot: at(100).boot, raw: at(49).raw };
        assert_eq!(this.read(slower).unwrap(), []);
        let next = file(folder.path(), "next boot");
        assert_eq!(next.read(at(100)).unwrap(), []);
        next.add(at(100), vec![sight("c", "1", 7)]).unwrap();
        assert_eq!(next.read(at(100)).unwrap(), [sight("c", "1", 7)]);
        assert_eq!(this.read(at(100)).unwrap(), []);
    }

    #[test]
    fn only_a_file_that_this_user_alone_can_write_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path(), "this boot");
        file.add(at(100), vec![sight("a", "1", 50)]).unwrap();
        assert_eq!(ignored_state(&file.folder), None);
        let path = file.folder.join(NAME);
        for mode in [0o644, 0o620, 0o660, 0o4600] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let why = ignored_state(&file.folder).expect("it is ignored");
            assert!(why.contains("is not 0600") && file.read(at(100)).is_err(), "{mode:o}: {why}");
        }
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(ignored_state(&file.folder).expect("it is ignored").contains("no file"));
        // What is ignored is replaced.
        file.add(at(100), vec![sight("b", "1", 50)]).unwrap();
        assert_eq!(file.read(at(100)).unwrap(), [sight("b", "1", 50)]);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(ignored_state(&file.folder).expect("it is ignored").contains("another user"));
        }
    }

    #[test]
    fn another_time_namespace_is_another_clock() {
        assert_eq!(with_offsets("id", ""), "id");
        let (plain, shifted) = ("monotonic 0 0\nboottime 0 0\n", "monotonic 0 0\nboottime 60 5\n");
        assert_eq!(with_offsets("id", plain), with_offsets("id", plain));
        assert_ne!(with_offsets("id", plain), with_offsets("id", shifted));
    }

    #[test]
    fn this_boot_has_an_id_and_its_clocks_go_on() {
        assert_eq!(boot().unwrap(), boot().unwrap());
        let now = ClockPair::now();
        let seen = KeptSight::new("store", "a", ("1", 1), now);
        assert!(!seen.is_in_the_future(ClockPair::now()));
        assert!(seen.is_in_the_future(now.before(Duration::from_secs(1))));
    }
}

//! The count-down latch: closed until so many participants have counted down, then open. Its register
//! stores the encoding's version, a generation, the count, and the participants that have counted:
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | 1: this encoding |
//! | 4 | the generation, big-endian: 0 at first, more after each reset |
//! | 2 | the count, big-endian |
//! | 1 + n, each | the length of a participant's id, and the id; in the order of bytes |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Register;
use crate::Error;
use crate::deadline::backoff;
use crate::driver::RegisterEntry;
use crate::name::check_participant;
use crate::shared::Core;

/// A gate that opens when `count` participants have counted down, for those who wait and for those
/// who come later.
///
/// - **A participant counts once**, however often it says so: after a lost answer, after a restart.
///   It is known by its id. The default is the manager's [identity](crate::Settings::identity),
///   which has the process id in it: a participant that may be restarted, or two in one process,
///   [give ids of their own](Self::count_down_as).
/// - **Below zero is an error** ([`Error::BelowZero`]): a participant counted that was not expected.
/// - **The count** is that of the first use of the latch; another one is
///   [`Error::CountMismatch`]. Once it was [reset](Self::reset), explicitly and for everybody, the
///   count of the reset is what counts.
/// - **Nothing is held**: a participant that dies after it counted has counted; one that dies
///   before keeps the latch closed (wait with a [limit](Self::wait_timeout)). Use a
///   [`Barrier`](super::Barrier) where the dead must not count.
/// - It is kept in one register, for good unless given a [`ttl`](Self::ttl): at most 800
///   participants, with ids of 1 to 80 bytes, so that it always fits. A quorum has no registers,
///   and so no latches.
/// - Counting takes two round trips, and two more for each time that another participant counted in
///   between. Waiting takes one, and word of each change.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let boot = locks.latch("boot", 2);
/// assert_eq!(boot.count_down_as("host-1").await?, 1);
/// assert_eq!(boot.count_down_as("host-1").await?, 1); // said twice, counted once
/// assert_eq!(boot.count_down_as("host-2").await?, 0);
/// boot.wait().await?; // it is open
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    core: Arc<Core>,
    register: Register,
    name: Arc<str>,
    count: u32,
}

impl Latch {
    /// The highest count.
    pub const MAX_COUNT: u32 = 800;

    /// The longest id of a participant, in bytes.
    pub const MAX_PARTICIPANT_BYTES: usize = 80;

    pub(crate) fn new(core: &Arc<Core>, name: &str, count: u32) -> Self {
        let register = Register::of(core, "latch", name);
        Self { core: core.clone(), register, name: name.into(), count }
    }

    /// Forgets the latch so long after it was last counted down or reset; it is closed again, and
    /// new, from then on. It stays for good unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.register = self.register.ttl(ttl);
        self
    }

    /// Counts down as the manager's identity; says how many are still missing.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether this participant has counted; it can count again.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.count_down_as(self.core.identity.to_string()).await
    }

    /// Counts down as this participant; says how many are still missing.
    ///
    /// [`Error::Conflict`] when the latch was reset meanwhile: the count was for the old one.
    ///
    /// # Cancel safety
    /// As [`count_down`](Self::count_down).
    pub async fn count_down_as(&self, participant: impl AsRef<str>) -> Result<u32, Error> {
        let participant = participant.as_ref();
        check_participant(participant, Self::MAX_PARTICIPANT_BYTES)?;
        let mut generation = None;
        let mut conflicts = 0;
        loop {
            let loaded = self.load().await?;
            let mut content = self.read(&loaded)?;
            if *generation.get_or_insert(content.generation) != content.generation {
                return Err(Error::Conflict { name: self.name.to_string(), maybe_applied: true });
            }
            if content.participants.contains(participant) {
                return Ok(content.missing());
            }
            if content.missing() == 0 {
                return Err(Error::BelowZero { name: self.name.to_string() });
            }
            content.participants.insert(participant.to_owned());
            match self.register.compare_and_store(&loaded, content.to_bytes()).await {
                Ok(_) => return Ok(content.missing()),
                Err(Error::Conflict { .. }) => conflicts += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(backoff(conflicts)).await;
        }
    }

    /// Waits until the latch is open. While the backend is out of reach, this goes on trying.
    ///
    /// A waiter that has not heard of the opening when the latch is reset waits for the new count.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn wait(&self) -> Result<(), Error> {
        self.check_count(self.count)?;
        let mut known = None;
        loop {
            let entry = self.register.changed(known).await?;
            if self.read(&entry)?.missing() == 0 {
                return Ok(());
            }
            known = entry.map(|entry| entry.version);
        }
    }

    /// Waits until the latch is open, but not longer than this; says whether it is.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<bool, Error> {
        match tokio::time::timeout(limit, self.wait()).await {
            Ok(opened) => opened.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// How many are still missing; 0 when it is open. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn count(&self) -> Result<u32, Error> {
        Ok(self.read(&self.load().await?)?.missing())
    }

    /// Who has counted down, in alphabetical order. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn arrived(&self) -> Result<Vec<String>, Error> {
        Ok(self.read(&self.load().await?)?.participants.into_iter().collect())
    }

    /// Closes the latch, for everybody, until so many have counted down from now on. The count of
    /// this and of every other handle is of no account any more. Two round trips, or more when
    /// another participant counts at the same time.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the latch was reset.
    pub async fn reset(&self, count: u32) -> Result<(), Error> {
        self.check_count(count)?;
        let mut generation = None;
        loop {
            let loaded = self.load().await?;
            let old = self.content(&loaded)?;
            let first = *generation.get_or_insert(old.generation);
            let new = Content::new(first.wrapping_add(1).max(1), count);
            match self.register.compare_and_store(&loaded, new.to_bytes()).await {
                Ok(_) => return Ok(()),
                // It may be this reset that was seen: to do it again would take back what was
                // counted since.
                Err(Error::Conflict { maybe_applied: true, .. }) => {
                    let now = self.content(&self.load().await?)?;
                    if (now.generation, now.count) == (new.generation, new.count) {
                        return Ok(());
                    }
                    generation = Some(now.generation);
                }
                Err(Error::Conflict { .. }) => generation = None,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(backoff(1)).await;
        }
    }

    /// Forgets the latch: it is closed, and new. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the latch was forgotten.
    pub async fn delete(&self) -> Result<(), Error> {
        self.register.delete().await
    }

    async fn load(&self) -> Result<Option<RegisterEntry>, Error> {
        self.check_count(self.count)?;
        self.register.load().await
    }

    /// What is there, if this handle agrees with it.
    fn read(&self, loaded: &Option<RegisterEntry>) -> Result<Content, Error> {
        let content = self.content(loaded)?;
        if content.generation == 0 && content.count != self.count {
            let (name, in_use, asked) = (self.name.to_string(), content.count, self.count);
            return Err(Error::CountMismatch { name, in_use, asked });
        }
        Ok(content)
    }

    fn content(&self, loaded: &Option<RegisterEntry>) -> Result<Content, Error> {
        let Some(entry) = loaded else {
            return Ok(Content::new(0, self.count));
        };
        Content::from_bytes(&entry.value).ok_or_else(|| {
            let backend = self.core.backend();
            let name = &self.name;
            let what = format!(
                "the register of the latch {name:?} has not been written by a latch of this version"
            );
            Error::permanent(backend, what)
        })
    }

    fn check_count(&self, count: u32) -> Result<(), Error> {
        match count {
            1..=Self::MAX_COUNT => Ok(()),
            _ => {
                let most = Self::MAX_COUNT;
                let message = format!("a latch counts down from 1 to {most}, not from {count}");
                Err(Error::Config(message))
            }
        }
    }
}

/// The state of a latch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    generation: u32,
    count: u32,
    participants: BTreeSet<String>,
}

const ENCODING: u8 = 1;

impl Content {
    fn new(generation: u32, count: u32) -> Self {
        Self { generation, count, participants: BTreeSet::new() }
    }

    /// How many have not counted.
    fn missing(&self) -> u32 {
        self.count.saturating_sub(self.participants.len() as u32)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![ENCODING];
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend((self.count as u16).to_be_bytes());
        for participant in &self.participants {
            bytes.push(participant.len() as u8);
            bytes.extend(participant.as_bytes());
        }
        bytes
    }

    /// `None` when this is no latch that this version can read.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[ENCODING])?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let count = u16::from_be_bytes(*count).into();
        let mut content = Self::new(u32::from_be_bytes(*generation), count);
        while let Some((length, tail)) = rest.split_first() {
            let (id, tail) = tail.split_at_checked((*length).into())?;
            let id = String::from_utf8(id.to_vec()).ok()?;
            if content.participants.last() >= Some(&id) {
                return None; // not sorted, or counted twice
            }
            content.participants.insert(id);
            rest = tail;
        }
        let fits = content.participants.len() as u32 <= count;
        (fits && count > 0).then_some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_REGISTER_BYTES;
    use crate::sync::Latch;

    #[test]
    fn a_latch_survives_its_bytes_and_counts_each_participant_once() {
        let mut content = Content::new(7, 3);
        assert_eq!(Content::from_bytes(&content.to_bytes()), Some(content.clone()));
        for id in ["b", "ä", "b", "a", "ä"] {
            content.participants.insert(id.to_owned());
        }
        assert!(content.participants.iter().eq(["a", "b", "ä"]));
        assert_eq!(content.missing(), 0);
        assert_eq!(Content::from_bytes(&content.to_bytes()), Some(content));
    }

    #[test]
    fn the_fullest_latch_fits_into_a_register() {
        let mut content = Content::new(u32::MAX, Latch::MAX_COUNT);
        let width = Latch::MAX_PARTICIPANT_BYTES;
        for i in 0..Latch::MAX_COUNT {
            content.participants.insert(format!("{i:0width$}"));
        }
        assert_eq!(content.missing(), 0);
        assert!(content.to_bytes().len() <= MAX_REGISTER_BYTES);
        assert_eq!(Content::from_bytes(&content.to_bytes()), Some(content));
    }

    #[test]
    fn what_is_no_latch_is_not_read_as_one() {
        let mut content = Content::new(1, 2);
        content.participants.extend(["a".to_owned(), "b".to_owned()]);
        let good = content.to_bytes();
        let mut newer = good.clone();
        newer[0] = 2;
        let mut unsorted = good.clone();
        unsorted[8] = b'c';
        let mut overfull = good.clone();
        overfull[6] = 1;
        for bad in [&[][..], &[1], &good[..good.len() - 1], &newer, &unsorted, &overfull] {
            assert_eq!(Content::from_bytes(bad), None, "{bad:?}");
        }
    }
}

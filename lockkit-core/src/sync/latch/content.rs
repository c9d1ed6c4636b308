//! What a latch's register holds: a version of this encoding, a generation, the count, and the
//! participants that have counted. Plain data.
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | 1: this encoding |
//! | 4 | the generation, big-endian: 0 as made, more after each reset |
//! | 2 | the count, big-endian |
//! | 1 + n, each | a participant's id, behind its length; in the order of bytes |

/// The state of a latch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) generation: u32,
    pub(super) count: u32,
    /// Sorted.
    pub(super) participants: Vec<String>,
}

const ENCODING: u8 = 1;

impl Content {
    pub(super) fn new(generation: u32, count: u32) -> Self {
        Self { generation, count, participants: Vec::new() }
    }

    /// How many have not counted.
    pub(super) fn missing(&self) -> u32 {
        self.count.saturating_sub(self.participants.len() as u32)
    }

    pub(super) fn has(&self, participant: &str) -> bool {
        self.find(participant).is_ok()
    }

    pub(super) fn add(&mut self, participant: &str) {
        if let Err(at) = self.find(participant) {
            self.participants.insert(at, participant.to_owned());
        }
    }

    fn find(&self, participant: &str) -> Result<usize, usize> {
        self.participants.binary_search_by(|one| one.as_str().cmp(participant))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
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
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[ENCODING])?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let count = u16::from_be_bytes(*count).into();
        let mut content = Self::new(u32::from_be_bytes(*generation), count);
        while let Some((length, tail)) = rest.split_first() {
            let (id, tail) = tail.split_at_checked((*length).into())?;
            content.participants.push(String::from_utf8(id.to_vec()).ok()?);
            rest = tail;
        }
        let sorted = content.participants.is_sorted_by(|a, b| a < b);
        let fits = content.participants.len() as u32 <= count;
        (sorted && fits && count > 0).then_some(content)
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
            content.add(id);
        }
        assert_eq!(content.participants, ["a", "b", "ä"]);
        assert_eq!(content.missing(), 0);
        assert_eq!(Content::from_bytes(&content.to_bytes()), Some(content));
    }

    #[test]
    fn the_fullest_latch_fits_into_a_register() {
        let mut content = Content::new(u32::MAX, Latch::MAX_COUNT);
        let width = Latch::MAX_PARTICIPANT_BYTES;
        for i in 0..Latch::MAX_COUNT {
            content.add(&format!("{i:0width$}"));
        }
        assert_eq!(content.missing(), 0);
        assert!(content.to_bytes().len() <= MAX_REGISTER_BYTES);
        assert_eq!(Content::from_bytes(&content.to_bytes()), Some(content));
    }

    #[test]
    fn what_is_no_latch_is_not_read_as_one() {
        let mut content = Content::new(1, 2);
        content.add("a");
        content.add("b");
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

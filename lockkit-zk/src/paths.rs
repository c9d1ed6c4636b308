//! Where things lie in ZooKeeper, and how a claim's node is named. Text only, no I/O.
//!
//! ```text
//! ROOT/n-NAMESPACE/lock/NAME/x-TAG-0000000007        an exclusive claim
//!                           /s-TAG-0000000008        a shared claim
//!                           /d-TAG                   the exclusive claim TAG was downgraded
//! ROOT/n-NAMESPACE/semaphore/NAME/p3of10-TAG-…       three permits of ten
//! ROOT/n-NAMESPACE/breaks/LIST-CZXID-TAG             who broke this claim, and why
//! ROOT/n-NAMESPACE/register/NAME                     a register
//! ROOT/n-NAMESPACE/base                              what core adds to the tokens
//! ```
//!
//! # What a node's name tells
//! A list of children is names and nothing else, so a name carries what the rule needs: the mode.
//! It must also be found again after a lost answer, so it has to follow from the claim's id. But
//! names are seen by everybody who may list the folder, and the id is the secret by which a claim
//! is released. So the name carries a **tag**: the first 128 bits of a SHA-256 of the id. Whoever
//! has the id finds the node; whoever sees the node does not get the id (it is 128 random bits, so
//! there is nothing to try out).

use std::cmp::Ordering;
use std::fmt::Write;

use lockkit_core::{ClaimId, Key, Mode, Namespace, Space, Token};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// Everything that is not a letter, a digit, `-` or `_` is encoded: that covers `/`, `.` and `..`,
/// and all the characters that ZooKeeper refuses.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The paths under one root.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
}

impl Layout {
    /// `root` begins with a slash, ends without one, and is not `/`.
    pub(crate) fn new(root: String) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    fn namespace(&self, namespace: &Namespace) -> String {
        format!("{}/n-{}", self.root, utf8_percent_encode(namespace.as_str(), ENCODED))
    }

    pub(crate) fn space(&self, namespace: &Namespace, space: Space) -> String {
        format!("{}/{space}", self.namespace(namespace))
    }

    /// The folder of one list.
    pub(crate) fn list(&self, key: &Key) -> String {
        let name = utf8_percent_encode(key.name.as_str(), ENCODED);
        format!("{}/{name}", self.space(&key.namespace, key.space))
    }

    pub(crate) fn breaks(&self, namespace: &Namespace) -> String {
        format!("{}/breaks", self.namespace(namespace))
    }

    pub(crate) fn base(&self, namespace: &Namespace) -> String {
        format!("{}/base", self.namespace(namespace))
    }

    pub(crate) fn register(&self, namespace: &Namespace, name: &str) -> String {
        let name = utf8_percent_encode(name, ENCODED);
        format!("{}/register/{name}", self.namespace(namespace))
    }

    /// A node that is written only to learn the server's time.
    pub(crate) fn clock(&self) -> String {
        format!("{}/clock", self.root)
    }
}

/// The name of a lock whose folder is named so; `None` for what is no name of ours.
pub(crate) fn decode_name(folder: &str) -> Option<String> {
    Some(percent_decode_str(folder).decode_utf8().ok()?.into_owned())
}

/// By what a claim's node is found: see the page's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag(String);

impl Tag {
    pub(crate) fn of(id: ClaimId) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"lockkit node name\0");
        hash.update(id.as_bytes());
        Self(hex(&hash.finalize()[..16]))
    }

    /// What ZooKeeper puts the sequence behind.
    pub(crate) fn prefix(&self, mode: Mode) -> String {
        match mode {
            Mode::Exclusive => format!("x-{}-", self.0),
            Mode::Shared => format!("s-{}-", self.0),
            Mode::Permits { permits, limit } => format!("p{permits}of{limit}-{}-", self.0),
        }
    }

    /// The name of the node that says that this claim was downgraded.
    pub(crate) fn marker(&self) -> String {
        format!("d-{}", self.0)
    }
}

/// A child of a list's folder, read from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) tag: Tag,
    pub(crate) mode: Mode,
    sequence: i64,
}

/// What a name in a list's folder can be.
pub(crate) enum Kind {
    Claim(Child),
    Downgraded(Tag),
    Foreign,
}

impl Kind {
    pub(crate) fn of(name: String) -> Self {
        match parse(&name) {
            Some((mode, tag, sequence)) => Self::Claim(Child { tag, mode, sequence, name }),
            None => match name.strip_prefix("d-").filter(|tag| is_tag(tag)) {
                Some(tag) => Self::Downgraded(Tag(tag.to_owned())),
                None => Self::Foreign,
            },
        }
    }
}

impl Child {
    /// The order of the list. The sequence is a signed 32-bit counter that wraps to its least
    /// value, so it is compared as serial numbers are: by the sign of the difference. (A list would
    /// need 2^31 living claims to confuse that.) Servers that count in 64 bits do not wrap.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (i32::try_from(self.sequence), i32::try_from(other.sequence)) {
            (Ok(a), Ok(b)) => a.wrapping_sub(b).cmp(&0),
            _ => self.sequence.cmp(&other.sequence),
        }
    }
}

fn parse(name: &str) -> Option<(Mode, Tag, i64)> {
    let (mode, rest) = name.split_once('-')?;
    let (tag, sequence) = rest.split_at_checked(32)?;
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => {
            let (permits, limit) = mode.strip_prefix('p')?.split_once("of")?;
            Mode::Permits { permits: permits.parse().ok()?, limit: limit.parse().ok()? }
        }
    };
    let sequence = sequence.strip_prefix('-')?.parse().ok()?;
    is_tag(tag).then(|| (mode, Tag(tag.to_owned()), sequence))
}

fn is_tag(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of the record that says who broke this claim. It tells the list, for whoever looks at
/// that; the token, for people; and the tag, for the claim's owner.
pub(crate) fn break_name(key: &Key, token: Token, tag: &Tag) -> String {
    format!("{}{:016x}-{}", breaks_of(key), token.get(), tag.0)
}

/// Whose break a record of this name tells of.
pub(crate) fn broken_tag(record: &str) -> Option<Tag> {
    let (_, tag) = record.rsplit_once('-')?;
    is_tag(tag).then(|| Tag(tag.to_owned()))
}

/// What the names of all records about one list begin with.
pub(crate) fn breaks_of(key: &Key) -> String {
    let mut hash = Sha256::new();
    hash.update(key.space.as_str().as_bytes());
    hash.update([0]);
    hash.update(key.name.as_str().as_bytes());
    format!("{}-", hex(&hash.finalize()[..16]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkit_core::Name;

    fn child(mode: Mode, sequence: i64) -> Child {
        let tag = Tag::of(ClaimId::random());
        // As the server formats it, negative numbers included.
        match Kind::of(format!("{}{sequence:010}", tag.prefix(mode))) {
            Kind::Claim(child) => {
                assert_eq!((child.mode, &child.tag, child.sequence), (mode, &tag, sequence));
                child
            }
            _ => panic!("not understood"),
        }
    }

    #[test]
    fn a_childs_name_tells_its_mode_tag_and_place() {
        child(Mode::Exclusive, 7);
        child(Mode::Shared, i64::from(i32::MIN));
        child(Mode::Permits { permits: 3, limit: 10 }, -5);
        for foreign in ["x-1-2", "lock-0000000001", "d-zz", "p3-", "ü-ä", ""] {
            assert!(matches!(Kind::of(foreign.to_owned()), Kind::Foreign), "{foreign}");
        }
    }

    #[test]
    fn the_order_survives_the_wrap_of_the_sequence() {
        let last = child(Mode::Exclusive, i64::from(i32::MAX));
        let next = child(Mode::Exclusive, i64::from(i32::MIN));
        assert_eq!(last.order(&next), Ordering::Less);
        assert_eq!(next.order(&last), Ordering::Greater);
        let beyond = child(Mode::Exclusive, i64::from(i32::MAX) + 1);
        assert_eq!(last.order(&beyond), Ordering::Less);
    }

    #[test]
    fn the_tag_is_not_the_id() {
        let id = ClaimId::random();
        assert_eq!(Tag::of(id), Tag::of(id));
        assert!(!Tag::of(id).marker().contains(&id.to_hex()[..8]));
    }

    #[test]
    fn every_name_has_a_folder_of_its_own_and_comes_back() {
        let layout = Layout::new("/lockkit".to_owned());
        let mut seen = std::collections::HashSet::new();
        for name in ["a", "A", "a ", "a/b", "a%2Fb", ".", "..", "á", "a\u{301}", "zookeeper", "*"]
        {
            let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
            let path = layout.list(&key);
            let folder = path.strip_prefix("/lockkit/n-/lock/").unwrap();
            assert!(!folder.contains(['/', '.']));
            assert_eq!(decode_name(folder).as_deref(), Some(name));
            assert!(seen.insert(path));
        }
    }
}

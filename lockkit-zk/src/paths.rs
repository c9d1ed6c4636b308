//! Where things lie in ZooKeeper, and how a claim's node is named. Text only, no I/O.
//!
//! ```text
//! ROOT/n-NAMESPACE/lock/NAME/x-TAG-0000000007        an exclusive claim
//!                           /s-TAG-0000000008        a shared claim
//!                           /d-TAG                   the exclusive claim TAG was downgraded
//! ROOT/n-NAMESPACE/semaphore/NAME/p3of10-TAG-…       three permits of ten
//!                               /limited, limit-10-0  the limit that it is fixed to
//! ROOT/n-NAMESPACE/breaks/LIST-CZXID-TAG             who broke this claim, and why
//! ROOT/n-NAMESPACE/register/NAME                     a register
//! ROOT/n-NAMESPACE/base                              what core adds to the tokens
//! ROOT/format                                        the version of this format
//! ```
//! where `ROOT` is `/CHROOT/lockkit`. Locks that are shared with neighbours lie at
//! `/CHROOT/NAMESPACE/NAME`, and their claims are `x-TAG-lock-0000000007` for Curator's eyes, and
//! `x-TAG__lock__0000000007` for kazoo's. None of them lies in the root: see [`beside_root`].
//!
//! # What a node's name contains
//! A list of children is names and nothing else, so a name carries what the rule needs: the mode.
//! It must also be found again after a lost answer, so it has to follow from the claim's id. But
//! names are seen by every client that may list the folder, and the id is the secret by which a
//! claim is released. So the name carries a **tag**: the first 128 bits of a SHA-256 of the id. A
//! client that has the id finds the node; a client that sees the node does not get the id (it is
//! 128 random bits, so there is nothing to try out).

use std::borrow::Cow;
use std::cmp::Ordering;

use lockkit_core::driver::ClaimId;
use lockkit_core::queue::GivenLimit;
use lockkit_core::{Claim, Key, Mode, Namespace, Space, Token};
use percent_encoding::{
    AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode,
};
use sha2::{Digest, Sha256};
use zookeeper_client::CreateMode;

use crate::fixed_limit::limit_of;

/// Everything that is not a letter, a digit, `-` or `_` is encoded: that covers `/`, `.` and `..`,
/// and all the characters that ZooKeeper refuses.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
/// What cannot stand in a path of ZooKeeper, or means something there; and, always, what is not
/// ASCII.
const IMPOSSIBLE: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

/// A library whose locks are shared; see [`ZkOptions::neighbours`](crate::ZkOptions::neighbours).
///
/// ```
/// use lockkit_zk::{Neighbours, ZkOptions};
///
/// let options = ZkOptions::new("127.0.0.1:2181").neighbours(Neighbours::Curator);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Neighbours {
    /// Apache Curator, in Java: `InterProcessMutex`.
    Curator,
    /// kazoo, in Python: `Lock`.
    Kazoo,
}

/// What the folders of namespaces begin with.
pub(crate) const NAMESPACE: &str = "n-";

/// The separator of tag and sequence.
const OURS: &str = "-";
const CURATOR: &str = "-lock-";
const KAZOO: &str = "__lock__";
/// What kazoo's read locks have there.
const KAZOO_READER: &str = "__rlock__";

/// A name as others would write it in a path: encoded is only what cannot is stored there.
fn plainly(name: &str) -> Cow<'_, str> {
    match name {
        "." | ".." => Cow::Owned(name.replace('.', "%2E")),
        _ => utf8_percent_encode(name, IMPOSSIBLE).into(),
    }
}

/// The same of what lies in the folder of the root, which it must not be taken for: a lock `format` of a
/// namespace `lockkit` would be the node of the format.
fn beside_root(name: &str) -> Cow<'_, str> {
    match name {
        "lockkit" => Cow::Borrowed("%6Cockkit"),
        _ => plainly(name),
    }
}

/// The paths under one chroot.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    chroot: String,
    root: String,
    neighbours: Option<Neighbours>,
}

impl Layout {
    /// `chroot` begins with a slash and ends without one, or is empty.
    pub(crate) fn new(chroot: &str, neighbours: Option<Neighbours>) -> Self {
        Self { chroot: chroot.to_owned(), root: format!("{chroot}/lockkit"), neighbours }
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    pub(crate) fn has_neighbours(&self) -> bool {
        self.neighbours.is_some()
    }

    /// What all claims lie under.
    pub(crate) fn claims(&self) -> &str {
        match self.neighbours {
            None => &self.root,
            Some(_) if self.chroot.is_empty() => "/",
            Some(_) => &self.chroot,
        }
    }

    /// As what folders are made. ZooKeeper removes containers when they are empty; kazoo does not
    /// expect that of a folder that it has made sure of.
    pub(crate) fn folder_mode(&self) -> CreateMode {
        match self.neighbours {
            Some(Neighbours::Kazoo) => CreateMode::Persistent,
            _ => CreateMode::Container,
        }
    }

    /// What ZooKeeper puts the sequence behind in the name of a claim's node.
    pub(crate) fn prefix(&self, tag: &NodeTag, claim: &Claim) -> String {
        let before = match (claim.key.space, self.neighbours) {
            (Space::Lock, Some(Neighbours::Curator)) => CURATOR,
            (Space::Lock, Some(Neighbours::Kazoo)) => KAZOO,
            _ => OURS,
        };
        tag.prefix(claim.mode, before)
    }

    fn namespace(&self, namespace: &Namespace) -> String {
        format!("{}/{NAMESPACE}{}", self.root, utf8_percent_encode(namespace.as_str(), ENCODED))
    }

    /// The folder of all lists of a space; `/` if that is the root.
    pub(crate) fn space(&self, namespace: &Namespace, space: Space) -> String {
        let folder = self.above_lists(namespace, space);
        if folder.is_empty() { "/".to_owned() } else { folder }
    }

    fn above_lists(&self, namespace: &Namespace, space: Space) -> String {
        match (space, namespace.as_str()) {
            (Space::Lock, "") if self.neighbours.is_some() => self.chroot.clone(),
            (Space::Lock, name) if self.neighbours.is_some() => {
                format!("{}/{}", self.chroot, beside_root(name))
            }
            _ => format!("{}/{space}", self.namespace(namespace)),
        }
    }

    /// The folder of one list.
    pub(crate) fn list(&self, key: &Key) -> String {
        let folder = self.above_lists(&key.namespace, key.space);
        let name = key.name.as_str();
        match (key.space, key.namespace.as_str()) {
            (Space::Lock, "") if self.neighbours.is_some() => {
                format!("{folder}/{}", beside_root(name))
            }
            (Space::Lock, _) if self.neighbours.is_some() => format!("{folder}/{}", plainly(name)),
            _ => format!("{folder}/{}", utf8_percent_encode(name, ENCODED)),
        }
    }

    pub(crate) fn breaks(&self, namespace: &Namespace) -> String {
        format!("{}/breaks", self.namespace(namespace))
    }

    pub(crate) fn base(&self, namespace: &Namespace) -> String {
        format!("{}/base", self.namespace(namespace))
    }

    /// The folder of all registers.
    pub(crate) fn registers(&self, namespace: &Namespace) -> String {
        format!("{}/register", self.namespace(namespace))
    }

    pub(crate) fn register(&self, namespace: &Namespace, name: &str) -> String {
        format!("{}/{}", self.registers(namespace), utf8_percent_encode(name, ENCODED))
    }

    /// The node with the format's version.
    pub(crate) fn format(&self) -> String {
        format!("{}/format", self.root)
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
pub(crate) struct NodeTag(String);

impl NodeTag {
    pub(crate) fn of(id: ClaimId) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"lockkit node name\0");
        hash.update(id.as_bytes());
        Self(half(hash))
    }

    fn prefix(&self, mode: Mode, before: &str) -> String {
        match mode {
            Mode::Exclusive => format!("x-{}{before}", self.0),
            Mode::Shared => format!("s-{}{before}", self.0),
            Mode::Permits { permits, limit } => format!("p{permits}of{limit}-{}{before}", self.0),
        }
    }

    #[cfg(test)]
    pub(crate) fn prefix_of(&self, mode: Mode) -> String {
        self.prefix(mode, OURS)
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
    pub(crate) tag: NodeTag,
    pub(crate) mode: Mode,
    sequence: i64,
    /// By which change it was made, where that had to be asked for.
    pub(crate) made: i64,
}

/// What a name in a list's folder can be.
pub(crate) enum NodeKind {
    Claim(Child),
    Downgraded(NodeTag),
    /// The fixed limit of the queue.
    Limit(GivenLimit),
    Foreign,
}

impl NodeKind {
    pub(crate) fn of(name: String) -> Self {
        match parse(&name).or_else(|| parse_neighbour(&name)) {
            Some((mode, tag, sequence)) => {
                Self::Claim(Child { tag, mode, sequence, name, made: 0 })
            }
            None => match name.strip_prefix("d-").filter(|tag| is_tag(tag)) {
                Some(tag) => Self::Downgraded(NodeTag(tag.to_owned())),
                None => limit_of(&name).map_or(Self::Foreign, Self::Limit),
            },
        }
    }
}

impl Child {
    /// The order of the list. The sequence is a signed 32-bit counter that wraps to its least
    /// value, so it is compared as serial numbers are: by the sign of the difference. (A list would
    /// need 2^31 living claims to confuse that.) Servers that count in 64 bits do not wrap.
    ///
    /// Near the end of the numbers this is not enough, see [`is_near_the_end`](Self::is_near_the_end);
    /// then the numbers of the changes tell.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        if self.made != 0 && other.made != 0 {
            return self.made.cmp(&other.made);
        }
        match (i32::try_from(self.sequence), i32::try_from(other.sequence)) {
            (Ok(a), Ok(b)) => a.wrapping_sub(b).cmp(&0),
            _ => self.sequence.cmp(&other.sequence),
        }
    }

    /// Whether its number is so close to where 32 bits end that it does not determine its position.
    ///
    /// There servers of version 3.8 do not go on with the least number, as documented: the counter
    /// stays what it is, and they give the greatest number again and again, and at times, when
    /// several come at once, the least.
    pub(crate) fn is_near_the_end(&self) -> bool {
        i32::try_from(self.sequence).is_ok_and(|n| n.wrapping_add(NEAR) < i32::MIN + 2 * NEAR)
    }
}

/// How many numbers on each side of the end are near it.
const NEAR: i32 = 1 << 20;

fn parse(name: &str) -> Option<(Mode, NodeTag, i64)> {
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
    let mut after = [CURATOR, KAZOO, OURS].into_iter().filter_map(|s| sequence.strip_prefix(s));
    let sequence = after.next()?.parse().ok()?;
    is_tag(tag).then(|| (mode, NodeTag(tag.to_owned()), sequence))
}

/// The claim of a client that uses another library: `_c_UUID-lock-0000000007`, Curator's, or
/// `HEX__lock__0000000007`, kazoo's, whose readers are `HEX__rlock__0000000007`. It has a tag, as
/// every claim has, that no client's id leads to.
fn parse_neighbour(name: &str) -> Option<(Mode, NodeTag, i64)> {
    let (mode, sequence) = match name.strip_prefix("_c_") {
        Some(rest) => (Mode::Exclusive, rest.rsplit_once(CURATOR)?.1),
        None => match (name.rsplit_once(KAZOO), name.rsplit_once(KAZOO_READER)) {
            (Some((id, sequence)), _) if is_tag(id) => (Mode::Exclusive, sequence),
            (_, Some((id, sequence))) if is_tag(id) => (Mode::Shared, sequence),
            _ => return None,
        },
    };
    let tag = NodeTag(half(Sha256::new().chain_update(name)));
    Some((mode, tag, sequence.parse().ok()?))
}

fn is_tag(text: &str) -> bool {
    ClaimId::from_hex(text).is_some()
}

/// Whether the node of this name has a marker, if its claim is of this mode now: a writer that became
/// a reader.
pub(crate) fn is_downgraded(name: &str, mode: Mode) -> bool {
    mode == Mode::Shared && name.starts_with("x-")
}

/// The name of the record of the break of this claim. It names the queue, for a client that reads
/// that; the token, for people; and the tag, for the claim's owner.
pub(crate) fn break_name(key: &Key, token: Token, tag: &NodeTag) -> String {
    format!("{}{:016x}-{}", breaks_of(key), token.get(), tag.0)
}

/// The claim whose break a record of this name is about.
pub(crate) fn broken_tag(record: &str) -> Option<NodeTag> {
    let (_, tag) = record.rsplit_once('-')?;
    is_tag(tag).then(|| NodeTag(tag.to_owned()))
}

/// What the names of all records about one list begin with.
pub(crate) fn breaks_of(key: &Key) -> String {
    let mut hash = Sha256::new();
    hash.update(key.space.as_str().as_bytes());
    hash.update([0]);
    hash.update(key.name.as_str().as_bytes());
    format!("{}-", half(hash))
}

/// The first 128 bits, in hexadecimal.
fn half(hash: Sha256) -> String {
    let digest = hash.finalize();
    ClaimId::from_bytes(std::array::from_fn(|at| digest[at])).to_hex()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkit_core::Name;

    fn child(mode: Mode, sequence: i64) -> Child {
        let tag = NodeTag::of(ClaimId::random());
        for before in [CURATOR, KAZOO] {
            read(&tag, mode, before, sequence);
        }
        read(&tag, mode, OURS, sequence)
    }

    fn read(tag: &NodeTag, mode: Mode, before: &str, sequence: i64) -> Child {
        // As the server formats it, negative numbers included.
        match NodeKind::of(format!("{}{sequence:010}", tag.prefix(mode, before))) {
            NodeKind::Claim(child) => {
                assert_eq!((child.mode, &child.tag, child.sequence), (mode, tag, sequence));
                child
            }
            _ => panic!("not understood"),
        }
    }

    #[test]
    fn neighbours_are_claims_too() {
        let curator = "_c_9fd3cb41-5b8d-4a5a-9ab3-3f1f1b0d3ad2-lock-0000000003";
        let kazoo = "c1bdf4e9b0d04dfb9b9a4b2c3f1a7a55__lock__0000000004";
        let reader = "c1bdf4e9b0d04dfb9b9a4b2c3f1a7a55__rlock__-2147483648";
        let ours = (Mode::Exclusive, Mode::Shared);
        for (name, mode, sequence) in
            [(curator, ours.0, 3), (kazoo, ours.0, 4), (reader, ours.1, i64::from(i32::MIN))]
        {
            let NodeKind::Claim(child) = NodeKind::of(name.to_owned()) else { panic!("{name}") };
            assert_eq!((child.mode, child.sequence), (mode, sequence), "{name}");
        }
    }

    #[test]
    fn shared_with_neighbours_a_lock_lies_at_the_path_of_its_name() {
        let layout = Layout::new("/locks", Some(Neighbours::Kazoo));
        let list = |namespace: &str, space, name: &str| {
            let namespace = Namespace::new(namespace).unwrap();
            layout.list(&Key::new(namespace, space, Name::new(name).unwrap()))
        };
        assert_eq!(list("", Space::Lock, "daily.report"), "/locks/daily.report");
        assert_eq!(list("shop", Space::Lock, "a/b %"), "/locks/shop/a%2Fb %25");
        assert_eq!(list("", Space::Lock, ".."), "/locks/%2E%2E");
        assert_eq!(list("", Space::Semaphore, "a"), "/locks/lockkit/n-/semaphore/a");
        assert_eq!(list("shop", Space::Lock, "lockkit"), "/locks/shop/lockkit");
        let apart = [("", "lockkit", "/locks/%6Cockkit"), ("lockkit", "b", "/locks/%6Cockkit/b")];
        for (namespace, name, path) in apart {
            assert_eq!(list(namespace, Space::Lock, name), path, "it is not in the root");
        }
        assert_eq!(decode_name("%6Cockkit").as_deref(), Some("lockkit"));
        assert_eq!(Layout::new("", Some(Neighbours::Curator)).claims(), "/");
    }

    #[test]
    fn a_childs_name_tells_its_mode_tag_and_place() {
        child(Mode::Exclusive, 7);
        child(Mode::Shared, i64::from(i32::MIN));
        child(Mode::Permits { permits: 3, limit: 10 }, -5);
        for foreign in ["x-1-2", "lock-0000000001", "d-zz", "p3-", "ü-ä", ""] {
            assert!(matches!(NodeKind::of(foreign.to_owned()), NodeKind::Foreign), "{foreign}");
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
    fn numbers_near_the_end_are_known() {
        let (least, greatest) = (i64::from(i32::MIN), i64::from(i32::MAX));
        for near in [least, least + 1000, greatest, greatest - 1000] {
            assert!(child(Mode::Exclusive, near).is_near_the_end(), "{near}");
        }
        for far in [0, 7, -7, 2_000_000_000, -2_000_000_000, greatest + 1] {
            assert!(!child(Mode::Exclusive, far).is_near_the_end(), "{far}");
        }
    }

    #[test]
    fn the_tag_is_not_the_id() {
        let id = ClaimId::random();
        assert_eq!(NodeTag::of(id), NodeTag::of(id));
        assert!(!NodeTag::of(id).marker().contains(&id.to_hex()[..8]));
    }

    #[test]
    fn every_name_has_a_folder_of_its_own_and_comes_back() {
        let layout = Layout::new("", None);
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

//! Where things are kept in etcd: from names to keys and back. No I/O.
//!
//! | what | key |
//! | --- | --- |
//! | a claim on a lock | `R lock/NAMESPACE/NAME/SUFFIX` |
//! | a claim on a semaphore | `R semaphore/NAMESPACE/NAME/LIMIT-SUFFIX` |
//! | the fixed limit of a semaphore | `R semaphore/NAMESPACE/NAME/~LIMIT` |
//! | record of a break | `R broken/SPACE/NAMESPACE/NAME/` + the last part of the claim's key |
//! | a register | `R register/NAMESPACE/NAME/value` and `…/meta` |
//! | the token base | `R base/NAMESPACE` |
//! | the version of this format | `R format` |
//!
//! `R` is the root, `lockkit/` unless the URL says otherwise. Namespaces and names are encoded so
//! that they contain no slash: otherwise the keys of `a/b` would begin with the prefix of `a`.
//! The encoding goes byte by byte, so a prefix of a name becomes a prefix of its encoding.
//!
//! `SUFFIX` is 32 hexadecimal digits, usually random ones that a driver uses for one claim after
//! the other: see `key_suffixes.rs`. For a claim that is not renewed by one process alone it is a
//! digest of the claim's id. A client that may read the keys learns from neither anything that
//! renews or releases a claim: the id is 128 random bits, so the digest cannot be undone by
//! guessing. (A client that may *write* the keys needs no id; that is for etcd's own access
//! rights.)
//!
//! A semaphore's limit is part of its keys, so that one comparison over two ranges can ask "is
//! there a claim with another limit?" in the very transaction that puts a claim in. The limit that
//! a semaphore was given stands among its claims, behind them all, so that a client that reads or
//! watches the queue sees it along, in the right order; and in its key, for the same question.

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::RegisterKey;
use lockkit_core::{Claim, Key, Name, Namespace, Space};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// Characters that one part of a key must not contain.
const PART: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

/// The first part of every key.
#[derive(Clone, Debug)]
pub(crate) struct Root(String);

impl Root {
    /// A root that ends with a slash.
    pub(crate) fn new(root: &str) -> Self {
        let root = root.trim_matches('/');
        Self(if root.is_empty() { "lockkit/".to_owned() } else { format!("{root}/") })
    }

    /// The root itself.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }

    /// What all claims of a queue begin with.
    pub(crate) fn list(&self, key: &Key) -> Vec<u8> {
        let (space, namespace) = (key.space, part(key.namespace.as_str()));
        format!("{}{space}/{namespace}/{}/", self.0, part(key.name.as_str())).into_bytes()
    }

    /// What all records of breaks of a queue begin with.
    pub(crate) fn breaks(&self, key: &Key) -> Vec<u8> {
        let namespace = part(key.namespace.as_str());
        let name = part(key.name.as_str());
        format!("{}broken/{}/{namespace}/{name}/", self.0, key.space).into_bytes()
    }

    /// The record of the break of a claim, given the claim's key.
    pub(crate) fn broken(&self, key: &Key, claim: &[u8]) -> Vec<u8> {
        let suffix = claim.get(self.list(key).len()..).unwrap_or_default();
        [self.breaks(key), suffix.to_vec()].concat()
    }

    /// What all queues begin with whose names begin with `prefix`.
    pub(crate) fn lists(&self, space: Space, namespace: &Namespace, prefix: &str) -> Vec<u8> {
        let namespace = part(namespace.as_str());
        format!("{}{space}/{namespace}/{}", self.0, part(prefix)).into_bytes()
    }

    /// The queue that a claim's key belongs to; `None` for what is no such key.
    pub(crate) fn list_of(&self, space: Space, namespace: &Namespace, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(&*self.lists(space, namespace, ""))?;
        let end = rest.iter().position(|b| *b == b'/')?;
        let name = percent_decode(&rest[..end]).decode_utf8().ok()?;
        Some(Key::new(namespace.clone(), space, Name::new(&*name).ok()?))
    }

    /// The keys of a register: its value, and what is remembered about its writes.
    pub(crate) fn register(&self, at: &RegisterKey) -> (Vec<u8>, Vec<u8>) {
        let (namespace, name) = (part(at.namespace.as_str()), part(at.name.as_str()));
        let base = format!("{}register/{namespace}/{name}/", self.0);
        (format!("{base}value").into_bytes(), format!("{base}meta").into_bytes())
    }

    /// What the keys of all registers begin with whose names begin with `prefix`.
    pub(crate) fn registers(&self, namespace: &Namespace, prefix: &str) -> Vec<u8> {
        format!("{}register/{}/{}", self.0, part(namespace.as_str()), part(prefix)).into_bytes()
    }

    /// The register that a key is of, and whether the key is that of its value.
    pub(crate) fn register_of(&self, namespace: &Namespace, key: &[u8]) -> Option<(Name, bool)> {
        let rest = key.strip_prefix(&*self.registers(namespace, ""))?;
        let end = rest.iter().position(|b| *b == b'/')?;
        let name = percent_decode(&rest[..end]).decode_utf8().ok()?;
        Some((Name::new(&*name).ok()?, &rest[end..] == b"/value"))
    }

    /// What the keys begin with that show that a namespace is in use: of claims, and of registers.
    pub(crate) fn kinds(&self) -> [Vec<u8>; 3] {
        ["lock", "semaphore", "register"].map(|kind| format!("{}{kind}/", self.0).into_bytes())
    }

    /// The key of the format's version.
    pub(crate) fn format(&self) -> Vec<u8> {
        format!("{}format", self.0).into_bytes()
    }

    /// The key of a namespace's token base.
    pub(crate) fn base(&self, namespace: &Namespace) -> Vec<u8> {
        format!("{}base/{}", self.0, part(namespace.as_str())).into_bytes()
    }
}

/// The key of a claim with this suffix in its queue.
pub(crate) fn in_list(list: &[u8], claim: &Claim, suffix: &str) -> Vec<u8> {
    match claim.mode.limit() {
        Some(limit) => [list, format!("{limit:08x}-").as_bytes(), suffix.as_bytes()].concat(),
        None => [list, suffix.as_bytes()].concat(),
    }
}

/// The suffix of the key of a claim.
pub(crate) fn suffix_of(key: &[u8]) -> String {
    let suffix = key.rsplit(|b| matches!(b, b'/' | b'-')).next().unwrap_or_default();
    String::from_utf8_lossy(suffix).into_owned()
}

/// The first key after this one.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The end of the range of all keys that begin with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// The end of the range of all claims of a queue. After it is the key of its fixed limit.
pub(crate) fn end_of_claims(list: &[u8]) -> Vec<u8> {
    [list, b"~"].concat()
}

/// The key of this fixed limit of a semaphore.
pub(crate) fn fixed_limit_key(list: &[u8], limit: u32) -> Vec<u8> {
    [list, format!("~{limit:08x}").as_bytes()].concat()
}

/// The fixed limit that this key of a queue stores; `None` for the key of a claim.
pub(crate) fn fixed_limit_of(key: &[u8]) -> Option<u32> {
    let suffix = key.rsplit(|b| *b == b'/').next()?.strip_prefix(b"~")?;
    u32::from_str_radix(std::str::from_utf8(suffix).ok()?, 16).ok()
}

/// The range of the keys of all fixed limits of a queue.
pub(crate) fn fixed_limits(list: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (end_of_claims(list), end_of(list))
}

/// The ranges of the keys of all other fixed limits of a semaphore.
pub(crate) fn other_fixed_limits(list: &[u8], limit: u32) -> [(Vec<u8>, Vec<u8>); 2] {
    let mine = fixed_limit_key(list, limit);
    let (start, end) = fixed_limits(list);
    [(start, mine.clone()), (end_of(&mine), end)]
}

/// The ranges of a semaphore's queue with the claims of other limits.
pub(crate) fn other_limits(list: &[u8], limit: u32) -> [(Vec<u8>, Vec<u8>); 2] {
    let mine = [list, format!("{limit:08x}-").as_bytes()].concat();
    [(list.to_vec(), mine.clone()), (end_of(&mine), end_of_claims(list))]
}

/// The suffix of a claim that is found by its id.
pub(crate) fn digest(id: ClaimId) -> String {
    let digest = Sha256::new().chain_update(b"lockkit claim ").chain_update(id.as_bytes());
    let digits = digest.finalize();
    // Written as an id is, which does not take longer than the digest.
    let half = std::array::from_fn(|n| digits[n]);
    ClaimId::from_bytes(half).to_hex()
}

/// A namespace as it is written in keys, with the slash after it.
pub(crate) fn folder(namespace: &Namespace) -> Vec<u8> {
    format!("{}/", part(namespace.as_str())).into_bytes()
}

/// The namespace of such a folder.
pub(crate) fn namespace_of(folder: &[u8]) -> Option<Namespace> {
    let part = folder.strip_suffix(b"/")?;
    Namespace::new(&*percent_decode(part).decode_utf8().ok()?).ok()
}

fn part(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use lockkit_core::{ClientIdentity, Mode};

    fn key(name: &str) -> Key {
        Key::new(Namespace::new("n/s").unwrap(), Space::Lock, Name::new(name).unwrap())
    }

    #[test]
    fn no_list_is_the_prefix_of_another() {
        let root = Root::new("");
        let names = ["a", "a/b", "a%2Fb", "a ", "..", "é", "a/", "%"];
        for a in names {
            for b in names {
                let begins = root.list(&key(b)).starts_with(&root.list(&key(a)));
                assert_eq!(begins, a == b, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn the_limit_that_was_given_stands_behind_all_claims_of_its_list() {
        let root = Root::new("");
        let me = Arc::new(ClientIdentity::of_this_process());
        let second = Duration::from_secs(1);
        let pool = Key::new(Namespace::default(), Space::Semaphore, Name::new("~pool").unwrap());
        let list = root.list(&pool);
        for limit in [0, 3, u32::MAX] {
            let mode = Mode::Permits { permits: 1, limit };
            let claim = Claim::new(pool.clone(), mode, second, second, me.clone());
            let suffix = digest(claim.id);
            let claim = in_list(&list, &claim, &suffix);
            assert_eq!(suffix_of(&claim), suffix);
            assert!(claim < end_of_claims(&list) && fixed_limit_of(&claim).is_none());
            let at = fixed_limit_key(&list, limit);
            assert!(at > end_of_claims(&list) && at < end_of(&list));
            assert_eq!(fixed_limit_of(&at), Some(limit));
            let [below, above] = other_fixed_limits(&list, limit);
            assert!(below.1 <= at && at < above.0, "it is not another one");
            let other = fixed_limit_key(&list, limit ^ 1);
            assert!((below.0 <= other && other < below.1) || (above.0 <= other));
        }
    }

    #[test]
    fn a_name_comes_back_from_its_keys() {
        let root = Root::new("/x/");
        for name in ["a", "a/b", "a%2Fb", "é*?[", "..", " "] {
            let at = [root.list(&key(name)), b"abc".to_vec()].concat();
            let found = root.list_of(Space::Lock, &key(name).namespace, &at);
            assert_eq!(found, Some(key(name)), "{name:?}");
        }
    }

    #[test]
    fn a_prefix_of_a_name_is_a_prefix_of_its_keys() {
        let root = Root::new("");
        let of = |prefix: &str| root.lists(Space::Lock, &key("x").namespace, prefix);
        assert!(root.list(&key("a/b")).starts_with(&of("a/")));
        assert!(!root.list(&key("a")).starts_with(&of("a/")));
        assert!(!root.list(&key("a%2Fb")).starts_with(&of("a/")));
    }

    #[test]
    fn no_key_shows_the_id_of_a_claim() {
        let me = Arc::new(ClientIdentity::of_this_process());
        let second = Duration::from_secs(1);
        let claim = Claim::new(key("a"), Mode::Exclusive, second, second, me);
        let key = in_list(&Root::new("").list(&claim.key), &claim, &digest(claim.id));
        let shown = String::from_utf8(key).unwrap();
        assert!(!shown.contains(&claim.id.to_hex()[..8]), "{shown}");
    }
}

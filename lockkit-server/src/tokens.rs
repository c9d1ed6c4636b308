//! Bearer tokens: who may do what. The file has their hashes, not the tokens.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use lockkit_core::Error;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The tokens of a file, one on each line:
///
/// ```text
/// # name      SHA-256 of the token                                              rights
/// billing     9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  read,lock@billing
/// operator    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752  read,break@*
/// ```
///
/// A right is `VERBS@NAMESPACE` or `VERBS@NAMESPACE:NAMES`: the verbs, separated by commas; the
/// namespace of the locks (exactly this one, `*` for all, nothing for locks without one); and what the
/// names begin with. `%20` and the like stand for bytes that would be read otherwise: spaces, `:`,
/// `*`, `%`.
///
/// | verb | allows |
/// | --- | --- |
/// | `read` | inspect, list, wait for a change, load and list registers; see the namespace in a listing |
/// | `lock` | everything about claims of one's own, resize semaphores, write registers |
/// | `break` | break claims of others |
/// | `terraform` | read, write and lock states of Terraform; the names are those of the states |
///
/// A claim belongs to the **name** of the token that acquired it. So a token is replaced without
/// losing a lock by a second line of the same name, and all servers over one backend need the same
/// names.
#[derive(Debug)]
pub struct AccessTokens {
    path: PathBuf,
    now: RwLock<Arc<[TokenEntry]>>,
}

#[derive(Debug)]
struct TokenEntry {
    hash: [u8; 32],
    grants: Arc<Grants>,
}

/// What one line allows.
#[derive(Debug)]
pub(crate) struct Grants {
    pub(crate) name: Arc<str>,
    rights: Vec<Right>,
}

/// What a right is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Read,
    Lock,
    Break,
    Terraform,
}

#[derive(Debug, PartialEq, Eq)]
struct Right {
    permissions: Vec<Permission>,
    /// `None` for all.
    namespace: Option<String>,
    names: String,
}

impl AccessTokens {
    /// Reads the file.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let now = RwLock::new(read(&path)?);
        Ok(Self { path, now })
    }

    /// Reads the file again. One that cannot be read, or has an error in any line, changes nothing.
    pub fn reload(&self) -> Result<(), Error> {
        let new = read(&self.path)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries().len()
    }

    /// What this token allows. All are compared, each in constant time.
    pub(crate) fn find(&self, token: &[u8]) -> Option<Arc<Grants>> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        for entry in self.entries().iter() {
            if bool::from(entry.hash.ct_eq(&hash)) {
                found = Some(entry.grants.clone());
            }
        }
        found
    }

    fn entries(&self) -> Arc<[TokenEntry]> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Grants {
    /// Whether this may be done with every name of this namespace that begins with `names`.
    pub(crate) fn allow(&self, verb: Permission, namespace: &str, names: &str) -> bool {
        self.rights.iter().any(|right| {
            right.is_for(verb, namespace) && names.as_bytes().starts_with(right.names.as_bytes())
        })
    }

    /// Whether this may be done with any name of this namespace.
    pub(crate) fn allow_some(&self, verb: Permission, namespace: &str) -> bool {
        self.rights.iter().any(|right| right.is_for(verb, namespace))
    }
}

impl Right {
    fn is_for(&self, verb: Permission, namespace: &str) -> bool {
        self.permissions.contains(&verb)
            && self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

impl Permission {
    const ALL: [Self; 4] = [Self::Read, Self::Lock, Self::Break, Self::Terraform];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.to_string() == text)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Lock => "lock",
            Self::Break => "break",
            Self::Terraform => "terraform",
        })
    }
}

fn read(path: &Path) -> Result<Arc<[TokenEntry]>, Error> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Config(format!("cannot read the tokens in {shown}: {e}")))?;
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|(at, line)| {
        // Never the line itself: an operator may have written a token into it.
        entry(line).map_err(|what| Error::Config(format!("{shown}, line {}: {what}", at + 1)))
    });
    let entries: Arc<[TokenEntry]> = entries.collect::<Result<_, _>>()?;
    let mut hashes: Vec<_> = entries.iter().map(|entry| entry.hash).collect();
    hashes.sort_unstable();
    if hashes.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::Config(format!("{shown}: two lines have the same token")));
    }
    Ok(entries)
}

/// Whether a line can stand in a file of tokens.
pub(crate) fn check(line: &str) -> Result<(), &'static str> {
    entry(line).map(drop)
}

fn entry(line: &str) -> Result<TokenEntry, &'static str> {
    let mut words = line.split_whitespace();
    let name = decoded(words.next().unwrap_or_default())?;
    let plain = name.len() <= 128 && !name.chars().any(char::is_control);
    if !plain {
        return Err("a name has at most 128 bytes and no control characters");
    }
    let hash = words.next().and_then(hash);
    let hash = hash.ok_or("the second word is the SHA-256 of the token, 64 hexadecimal digits")?;
    let rights = words.map(right).collect::<Result<Vec<_>, _>>()?;
    if rights.is_empty() {
        return Err("there is no right: add one, for example read,lock@*");
    }
    let grants = Arc::new(Grants { name: name.into(), rights });
    Ok(TokenEntry { hash, grants })
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

fn right(text: &str) -> Result<Right, &'static str> {
    let (permissions, place) =
        text.split_once('@').ok_or("a right is VERBS@NAMESPACE, as read,lock@*")?;
    let permissions = permissions.split(',').map(Permission::parse).collect::<Option<Vec<_>>>();
    let permissions =
        permissions.ok_or("the verbs are read, lock, break and terraform, separated by commas")?;
    let (namespace, names) = place.split_once(':').unwrap_or((place, ""));
    let namespace = if namespace == "*" { None } else { Some(decoded(namespace)?) };
    Ok(Right { permissions, namespace, names: decoded(names)? })
}

fn decoded(text: &str) -> Result<String, &'static str> {
    if text.contains('*') {
        return Err("* stands alone, for all namespaces; write %2A for the character");
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "this is not UTF-8")?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // printf test | sha256sum
    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn grants(rights: &str) -> Arc<Grants> {
        entry(&format!("a {HASH} {rights}")).unwrap().grants
    }

    #[test]
    fn rights_are_those_of_the_namespace_and_of_the_beginning_of_names_byte_for_byte() {
        use Permission::{Break, Lock, Read};
        let a = grants("read,lock@billing:invoice/ read@*");
        assert!(a.allow(Lock, "billing", "invoice/1"));
        for (namespace, name) in [
            ("billing", "invoice"),
            ("billing", "Invoice/1"),
            ("billing", "invoice%2F1"),
            ("billing2", "invoice/1"),
            ("billin", "ginvoice/1"),
            ("", "billing:invoice/1"),
        ] {
            assert!(!a.allow(Lock, namespace, name), "{namespace} {name}");
            assert!(a.allow(Read, namespace, name), "{namespace} {name}");
        }
        assert!(!a.allow(Break, "billing", "invoice/1"));
        let b = grants("lock@ break@a%3Ab:x%20y");
        assert!(b.allow(Lock, "", "anything") && !b.allow(Lock, "b", "anything"));
        assert!(b.allow(Break, "a:b", "x yz") && !b.allow(Break, "a", "b:x y"));
    }

    #[test]
    fn a_file_with_an_error_is_refused_whole_and_the_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, format!("# who\n\n  a {HASH} lock@*\n")).unwrap();
        let tokens = AccessTokens::load(&path).unwrap();
        assert_eq!(&*tokens.find(b"test").unwrap().name, "a");
        assert!(tokens.find(b"tesT").is_none() && tokens.find(b"").is_none());
        assert!(tokens.find(HASH.as_bytes()).is_none(), "the hash is no token");
        let zeros = "0".repeat(64);
        for bad in [
            "a".to_owned(),
            "a hunter2 lock@*".to_owned(),
            format!("a {HASH}"),
            format!("a {HASH} lock"),
            format!("a {HASH} Lock@*"),
            format!("a {HASH} lock@b*"),
            format!("a {HASH} lock@%FF"),
            format!("a {HASH} @b"),
            format!("a {HASH}0 lock@*"),
            format!("a +{} lock@*", &HASH[1..]),
            format!("a {HASH} lock@*\nb {HASH} read@*"),
        ] {
            std::fs::write(&path, format!("b {zeros} lock@*\n{bad}\n")).unwrap();
            let error = tokens.reload().expect_err(&bad).to_string();
            assert!(!error.contains("hunter2"), "{error}");
            assert!(tokens.find(b"test").is_some(), "{bad}");
        }
        std::fs::remove_file(&path).unwrap();
        tokens.reload().unwrap_err();
        assert!(tokens.find(b"test").is_some());
        std::fs::write(&path, format!("b {zeros} lock@*\n")).unwrap();
        tokens.reload().unwrap();
        assert!(tokens.find(b"test").is_none());
    }
}

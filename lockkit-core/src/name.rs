//! Names of locks, and the places that they live in. The check of a name stands here and nowhere
//! else; drivers receive only names that passed it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::Error;

/// The name of a lock, semaphore or register: 1 to 512 bytes of UTF-8 without control characters.
///
/// Names are compared byte for byte: `a`, `A`, `a ` and the two Unicode forms of `á` are different
/// names, and `a/b`, `a%2Fb`, `{a}`, `*` and `..` are just names.
///
/// ```
/// use lockkit_core::Name;
///
/// assert!(Name::new("invoice/42").is_ok());
/// assert!(Name::new("").is_err());
/// assert!(Name::new("two\nlines").is_err());
/// assert_ne!(Name::new("a").unwrap(), Name::new("A").unwrap());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks `name`; an error says what is wrong with it. No I/O.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(invalid(name, "a name has at least one byte"));
        }
        check_text(name, Self::MAX_BYTES, "a name")?;
        Ok(Self(name.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// What keeps the names of one application apart from another's on the same backend: at most 128
/// bytes of UTF-8 without control characters, empty by default.
///
/// Two namespaces never meet, whatever the names in them: driver authors keep the two parts of a
/// [`Key`] apart rather than gluing them together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use lockkit_core::{LockManager, MemoryDriver, Settings};
/// # use std::sync::Arc;
/// let driver = Arc::new(MemoryDriver::new());
/// let shop = LockManager::with(driver.clone(), Settings::default().namespace("shop"))?;
/// let blog = LockManager::with(driver, Settings::default().namespace("blog"))?;
/// let _ours = shop.mutex("nightly").lock().await?;
/// assert!(blog.mutex("nightly").try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks `namespace`; an error says what is wrong with it. No I/O.
    pub fn new(namespace: impl AsRef<str>) -> Result<Self, Error> {
        let namespace = namespace.as_ref();
        check_text(namespace, Self::MAX_BYTES, "a namespace")?;
        Ok(Self(namespace.into()))
    }

    /// The namespace as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The two spaces of names, which never meet: a lock `a` and a semaphore `a` are two things.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::Space;
///
/// let _lock = locks.mutex("imports").lock().await?;
/// let semaphore = locks.inspect(Space::Semaphore, "imports").await?;
/// assert!(semaphore.is_free(), "the semaphore of that name is another thing");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Exclusive and shared claims: mutexes and read-write locks.
    Lock,
    /// Claims for permits: semaphores.
    Semaphore,
}

impl Space {
    /// `lock` or `semaphore`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a list of claims is kept under: namespace, space and name, all three compared byte for
/// byte.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::{Key, Name, Namespace, Space};
///
/// let key = Key::new(Namespace::new("shop")?, Space::Lock, Name::new("invoice/42")?);
/// assert_eq!(key.name.as_str(), "invoice/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Key {
    pub namespace: Namespace,
    pub space: Space,
    pub name: Name,
}

impl Key {
    /// Puts the parts together.
    pub fn new(namespace: Namespace, space: Space, name: Name) -> Self {
        Self { namespace, space, name }
    }
}

/// What the names of registers begin with in which lockkit's own primitives keep their state.
const RESERVED: &str = "lockkit.";

/// What the names of the locks of [slots](crate::sync::Slots) begin with.
pub(crate) const SLOTS: &str = "lockkit.slot/";

/// Whether a register of this name is one in which a primitive keeps its state.
pub(crate) fn is_reserved(name: &Name) -> bool {
    name.as_str().starts_with(RESERVED)
}

/// The name of a user's register, or of that in which a primitive keeps the state of `name`.
pub(crate) fn register_name(owner: Option<&str>, name: &str) -> Result<Name, Error> {
    let plain = Name::new(name)?;
    match owner {
        Some(owner) => Name::new(format!("{RESERVED}{owner}/{name}")),
        None if name.starts_with(RESERVED) => {
            Err(invalid(name, "register names that begin with \"lockkit.\" are lockkit's own"))
        }
        None => Ok(plain),
    }
}

/// Refuses a note that people could not read in one line: more than 1,000 bytes, or with control
/// characters.
pub(crate) fn check_note(note: &str) -> Result<(), Error> {
    check_text(note, 1000, "a note")
}

/// Refuses the host or program of a holder that people could not read in one line.
pub(crate) fn check_holder(text: &str) -> Result<(), Error> {
    check_text(text, 255, "the host or program of a holder")
}

/// Refuses the id of a participant that does not fit.
pub(crate) fn check_participant(id: &str, most: usize) -> Result<(), Error> {
    match id {
        "" => Err(invalid(id, "a participant's id has at least one byte")),
        id => check_text(id, most, "a participant's id"),
    }
}

/// The check that names, namespaces and notes share.
fn check_text(text: &str, max: usize, what: &str) -> Result<(), Error> {
    if text.len() > max {
        let reason = format!("{what} has at most {max} bytes, this one has {}", text.len());
        return Err(invalid(text, &reason));
    }
    if let Some(at) = text.find(char::is_control) {
        let reason = format!("{what} has no control characters, this one has one at byte {at}");
        return Err(invalid(text, &reason));
    }
    Ok(())
}

fn invalid(text: &str, reason: &str) -> Error {
    let mut excerpt: String = text.chars().take(40).collect();
    if excerpt.len() < text.len() {
        excerpt.push('…');
    }
    Error::InvalidName { name: excerpt, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_to_512_bytes_and_no_control_characters() {
        assert!(Name::new("").is_err());
        assert!(Name::new("x".repeat(512)).is_ok());
        assert!(Name::new("x".repeat(513)).is_err());
        assert!(Name::new("é".repeat(257)).is_err(), "bytes count, not characters");
        for bad in ["a\0", "a\nb", "\u{7f}", "\u{85}"] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a/b", "a%2Fb", "{a}", "..", " ", "*?[\\'\"`;$"] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn the_error_for_a_bad_name_shows_only_its_beginning() {
        let message = Name::new("x".repeat(10_000)).unwrap_err().to_string();
        assert!(message.len() < 200, "{message}");
        assert!(message.contains("at most 512 bytes, this one has 10000"), "{message}");
    }

    #[test]
    fn the_registers_of_primitives_do_not_meet_those_of_users() {
        assert_eq!(register_name(None, "latch/a").unwrap().as_str(), "latch/a");
        assert_eq!(register_name(Some("latch"), "a").unwrap().as_str(), "lockkit.latch/a");
        assert!(register_name(None, "lockkit.latch/a").is_err());
        assert!(register_name(Some("latch"), "").is_err());
        assert!(register_name(Some("latch"), &"x".repeat(500)).is_err());
    }

    #[test]
    fn an_empty_namespace_is_the_default_one() {
        assert_eq!(Namespace::new("").unwrap(), Namespace::default());
        assert!(Namespace::new("x".repeat(129)).is_err());
    }
}

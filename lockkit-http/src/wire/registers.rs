//! Registers: named values beside the locks.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lockkit_core::driver::{
    self, Attempted, Precondition, RegisterKey, Version, WriteId, WriteResult,
};
use lockkit_core::{Error, Name, Namespace, Token};
use serde::{Deserialize, Serialize};

use super::{ms_up, text};

/// Which register; `POST /v1/registers/load`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Register;
///
/// let it: Register = serde_json::from_str(r#"{"namespace": "shop", "name": "cursor"}"#)?;
/// assert!(it.for_driver().is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// As in [`Claim`](super::Claim).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Register {
    /// What is sent.
    pub fn of(at: &RegisterKey) -> Self {
        Self { namespace: at.namespace.as_str().to_owned(), name: at.name.as_str().to_owned() }
    }

    /// For a driver, checked.
    pub fn for_driver(&self) -> Result<RegisterKey, Error> {
        Ok(RegisterKey {
            namespace: Namespace::new(&self.namespace)?,
            name: Name::new(&self.name)?,
        })
    }
}

/// A value: text where it is UTF-8, base64 otherwise.
///
/// ```
/// use lockkit_http::wire::Value;
///
/// assert_eq!(Value::of(b"event 41"), Value::Text("event 41".to_owned()));
/// assert_eq!(Value::of(&[255, 0]), Value::Base64("/wA=".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// Text.
    Text(String),
    /// Bytes, in base64 with padding.
    Base64(String),
}

impl Value {
    /// What is sent.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    /// The bytes.
    pub fn bytes(self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => {
                STANDARD.decode(text).map_err(|_| Error::config("the value is not base64"))
            }
        }
    }
}

/// What a register holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterEntry {
    /// The value.
    pub value: Value,
    /// Its version, which only grows.
    #[serde(with = "text")]
    pub version: u64,
    /// The highest token of any write.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
}

/// The answer to a load and to [`ChangedRegister`]: absent when there is no value.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Loaded;
///
/// let json = r#"
///     {"entry": {"value": {"text": "event 41"}, "version": "7", "token": "42"}}
/// "#;
/// let it: Loaded = serde_json::from_str(json)?;
/// assert_eq!(it.entry.map(|entry| entry.version), Some(7));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// What is there.
    pub entry: Option<RegisterEntry>,
}

impl Loaded {
    /// What is answered.
    pub fn of(entry: Option<driver::RegisterEntry>) -> Self {
        let entry = entry.map(|it| RegisterEntry {
            value: Value::of(&it.value),
            version: it.version.0,
            token: it.token,
        });
        Self { entry }
    }

    /// For a driver.
    pub fn for_driver(self) -> Result<Option<driver::RegisterEntry>, Error> {
        let entry = |it: RegisterEntry| {
            let (version, token) = (Version(it.version), it.token);
            Ok(driver::RegisterEntry::new(it.value.bytes()?, version, token))
        };
        self.entry.map(entry).transpose()
    }
}

/// What all writes have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// 128 random bits in hexadecimal, the same when the write is repeated.
    pub write_id: String,
    /// The version that must be there; with `absent`, no value.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// No value may be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// The token of the lock that protects the register.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Whether an earlier attempt of this write got no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

impl Write {
    fn of(it: &driver::Write) -> Self {
        let (version, absent) = match it.expect {
            Precondition::Anything => (None, false),
            Precondition::Absent => (None, true),
            Precondition::Version(version) => (Some(version.0), false),
        };
        let write_id = driver::ClaimId::from_bytes(it.write_id.0).to_hex();
        Self { write_id, version, absent, token: it.token, repeated: it.repeated }
    }

    fn for_driver(
        &self,
        value: Option<Vec<u8>>,
        ttl: Option<Duration>,
    ) -> Result<driver::Write, Error> {
        let (expect, write_id) = (self.expect()?, self.id()?);
        let Self { token, repeated, .. } = *self;
        Ok(driver::Write { value, ttl, expect, token, write_id, repeated })
    }

    fn expect(&self) -> Result<Precondition, Error> {
        match (self.absent, self.version) {
            (false, None) => Ok(Precondition::Anything),
            (true, None) => Ok(Precondition::Absent),
            (false, Some(version)) => Ok(Precondition::Version(Version(version))),
            (true, Some(_)) => Err(Error::config("a write expects a version or absent, not both")),
        }
    }

    fn id(&self) -> Result<WriteId, Error> {
        let id = driver::ClaimId::from_hex(&self.write_id);
        let id = id.ok_or_else(|| {
            Error::config("the write_id is 32 lower-case hexadecimal digits, made at random")
        })?;
        Ok(WriteId(*id.as_bytes()))
    }
}

/// `POST /v1/registers/store`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Store;
///
/// let json = r#"
///     {"register": {"name": "cursor"}, "value": {"text": "event 42"},
///      "write": {"write_id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "version": "7", "token": "42"}}
/// "#;
/// let it: Store = serde_json::from_str(json)?;
/// assert!(it.for_driver().is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// Which one.
    pub register: Register,
    /// At most 64 KiB.
    pub value: Value,
    /// How long it stays; for good when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The conditions.
    pub write: Write,
}

impl Store {
    /// What is sent for a write that stores a value.
    pub fn of(at: &RegisterKey, it: &driver::Write) -> Option<Self> {
        Some(Self {
            register: Register::of(at),
            value: Value::of(it.value.as_ref()?),
            ttl_ms: it.ttl.map(ms_up),
            write: Write::of(it),
        })
    }

    /// For a driver, checked.
    pub fn for_driver(self) -> Result<(RegisterKey, driver::Write), Error> {
        let value = self.value.bytes()?;
        if value.len() > driver::MAX_REGISTER_BYTES {
            return Err(Error::config("a register holds 64 KiB at most"));
        }
        let ttl = self.ttl_ms.map(Duration::from_millis);
        Ok((self.register.for_driver()?, self.write.for_driver(Some(value), ttl)?))
    }
}

/// `POST /v1/registers/delete`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Delete;
///
/// let json = r#"
///     {"register": {"name": "cursor"}, "write": {"write_id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19"}}
/// "#;
/// let it: Delete = serde_json::from_str(json)?;
/// assert!(it.for_driver().is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Which one.
    pub register: Register,
    /// The conditions.
    pub write: Write,
}

impl Delete {
    /// What is sent for a write that deletes the value.
    pub fn of(at: &RegisterKey, it: &driver::Write) -> Self {
        Self { register: Register::of(at), write: Write::of(it) }
    }

    /// For a driver, checked.
    pub fn for_driver(self) -> Result<(RegisterKey, driver::Write), Error> {
        Ok((self.register.for_driver()?, self.write.for_driver(None, None)?))
    }
}

/// The answer to a write.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Outcome;
///
/// let it: Outcome = serde_json::from_str(r#"{"outcome": "stale", "highest": "43"}"#)?;
/// assert!(matches!(it, Outcome::Stale { .. }));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Stored {
        /// The version that it has now.
        #[serde(with = "text")]
        version: u64,
        /// As in [`Grant`](super::Grant).
        #[serde(default)]
        ambiguous: u32,
    },
    /// Not as expected.
    Conflict {
        /// As in [`Grant`](super::Grant).
        #[serde(default)]
        ambiguous: u32,
    },
    /// The token is lower than one that was seen.
    Stale {
        /// The highest that was seen.
        #[serde(with = "text")]
        highest: Token,
        /// As in [`Grant`](super::Grant).
        #[serde(default)]
        ambiguous: u32,
    },
}

impl Outcome {
    /// What is answered.
    pub fn of(answer: Attempted<WriteResult>) -> Self {
        let ambiguous = answer.ambiguous;
        match answer.result {
            WriteResult::Stored(version) => Self::Stored { version: version.0, ambiguous },
            WriteResult::Conflict => Self::Conflict { ambiguous },
            WriteResult::Stale { highest } => Self::Stale { highest, ambiguous },
        }
    }

    /// For a driver.
    pub fn for_driver(self) -> Attempted<WriteResult> {
        match self {
            Self::Stored { version, ambiguous } => {
                Attempted::after(ambiguous, WriteResult::Stored(Version(version)))
            }
            Self::Conflict { ambiguous } => Attempted::after(ambiguous, WriteResult::Conflict),
            Self::Stale { highest, ambiguous } => {
                Attempted::after(ambiguous, WriteResult::Stale { highest })
            }
        }
    }
}

/// `POST /v1/registers/changed`: answers once the version is not `after`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ChangedRegister;
///
/// let it: ChangedRegister = serde_json::from_str(r#"{"register": {"name": "cursor"}, "after": "7", "wait_ms": 25000}"#)?;
/// assert_eq!(it.after, Some(7));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedRegister {
    /// Which one.
    pub register: Register,
    /// The version that the client has seen; absent: there was no value.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long the answer may wait: 25 s at most. It then has the entry that was seen.
    #[serde(default)]
    pub wait_ms: u64,
}

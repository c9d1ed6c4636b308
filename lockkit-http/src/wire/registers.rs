//! Registers: named values beside the locks.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lockkit_core::driver::{self, Answered, Expect, RegisterKey, StoreOutcome, Version, WriteId};
use lockkit_core::{Error, Name, Namespace, Token};
use serde::{Deserialize, Serialize};

use super::{ms_up, text};

/// Which register; `POST /v1/registers/load`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// As in [`Claim`](super::Claim).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The name.
    pub name: String,
}

impl Register {
    /// What is sent.
    pub fn of(at: &RegisterKey) -> Self {
        Self { prefix: at.namespace.as_str().to_owned(), name: at.name.as_str().to_owned() }
    }

    /// For a driver, checked.
    pub fn for_driver(&self) -> Result<RegisterKey, Error> {
        Ok(RegisterKey { namespace: Namespace::new(&self.prefix)?, name: Name::new(&self.name)? })
    }
}

/// A value: text where it is UTF-8, base64 otherwise.
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
pub struct Entry {
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// What is there.
    pub entry: Option<Entry>,
}

impl Loaded {
    /// What is answered.
    pub fn of(entry: Option<driver::Entry>) -> Self {
        let entry = entry.map(|it| Entry {
            value: Value::of(&it.value),
            version: it.version.0,
            token: it.token,
        });
        Self { entry }
    }

    /// For a driver.
    pub fn for_driver(self) -> Result<Option<driver::Entry>, Error> {
        let entry = |it: Entry| {
            let (version, token) = (Version(it.version), it.token);
            Ok(driver::Entry { value: it.value.bytes()?, version, token })
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
    fn of(expect: Expect, token: Option<Token>, id: WriteId, repeated: bool) -> Self {
        let (version, absent) = match expect {
            Expect::Anything => (None, false),
            Expect::Absent => (None, true),
            Expect::Version(version) => (Some(version.0), false),
        };
        let write_id = driver::ClaimId::from_bytes(id.0).to_hex();
        Self { write_id, version, absent, token, repeated }
    }

    fn expect(&self) -> Result<Expect, Error> {
        match (self.absent, self.version) {
            (false, None) => Ok(Expect::Anything),
            (true, None) => Ok(Expect::Absent),
            (false, Some(version)) => Ok(Expect::Version(Version(version))),
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
    /// What is sent.
    pub fn of(at: &RegisterKey, it: &driver::Store) -> Self {
        Self {
            register: Register::of(at),
            value: Value::of(&it.value),
            ttl_ms: it.ttl.map(ms_up),
            write: Write::of(it.expect, it.token, it.write_id, it.repeated),
        }
    }

    /// For a driver, checked.
    pub fn for_driver(self) -> Result<(RegisterKey, driver::Store), Error> {
        let store = driver::Store {
            value: self.value.bytes()?,
            expect: self.write.expect()?,
            token: self.write.token,
            write_id: self.write.id()?,
            repeated: self.write.repeated,
            ttl: self.ttl_ms.map(Duration::from_millis),
        };
        if store.value.len() > driver::MAX_REGISTER_BYTES {
            return Err(Error::config("a register holds 64 KiB at most"));
        }
        Ok((self.register.for_driver()?, store))
    }
}

/// `POST /v1/registers/delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Which one.
    pub register: Register,
    /// The conditions.
    pub write: Write,
}

impl Delete {
    /// What is sent.
    pub fn of(at: &RegisterKey, it: &driver::Delete) -> Self {
        let write = Write::of(it.expect, it.token, it.write_id, it.repeated);
        Self { register: Register::of(at), write }
    }

    /// For a driver, checked.
    pub fn for_driver(self) -> Result<(RegisterKey, driver::Delete), Error> {
        let delete = driver::Delete {
            expect: self.write.expect()?,
            token: self.write.token,
            write_id: self.write.id()?,
            repeated: self.write.repeated,
        };
        Ok((self.register.for_driver()?, delete))
    }
}

/// The answer to a write.
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
        unanswered: u32,
    },
    /// Not as expected.
    Conflict {
        /// As in [`Grant`](super::Grant).
        #[serde(default)]
        unanswered: u32,
    },
    /// The token is lower than one that was seen.
    Stale {
        /// The highest that was seen.
        #[serde(with = "text")]
        highest: Token,
        /// As in [`Grant`](super::Grant).
        #[serde(default)]
        unanswered: u32,
    },
}

impl Outcome {
    /// What is answered.
    pub fn of(answer: Answered<StoreOutcome>) -> Self {
        let unanswered = answer.unanswered;
        match answer.answer {
            StoreOutcome::Stored(version) => Self::Stored { version: version.0, unanswered },
            StoreOutcome::Conflict => Self::Conflict { unanswered },
            StoreOutcome::Stale { highest } => Self::Stale { highest, unanswered },
        }
    }

    /// For a driver.
    pub fn for_driver(self) -> Answered<StoreOutcome> {
        match self {
            Self::Stored { version, unanswered } => {
                Answered::after(unanswered, StoreOutcome::Stored(Version(version)))
            }
            Self::Conflict { unanswered } => Answered::after(unanswered, StoreOutcome::Conflict),
            Self::Stale { highest, unanswered } => {
                Answered::after(unanswered, StoreOutcome::Stale { highest })
            }
        }
    }
}

/// `POST /v1/registers/changed`: answers once the version is not `after`.
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

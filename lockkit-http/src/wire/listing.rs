//! Listing what is not a lock: registers, and the namespaces in use.

use lockkit_core::driver::Version;
use lockkit_core::state::{self, ListPage, RegisterRequest};
use lockkit_core::{Error, Name, Namespace, Token};
use serde::{Deserialize, Serialize};

use super::text;

/// The longest page.
fn most() -> usize {
    1_000
}

/// `POST /v1/registers/list`: the registers that have a value, a page at a time.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ListRegisters;
///
/// let it: ListRegisters = serde_json::from_str(r#"{"namespace": "shop", "names": "cursor/"}"#)?;
/// assert_eq!(it.limit, 1_000);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRegisters {
    /// As in [`Claim`](super::Claim).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Names that begin with this, byte for byte.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub names: String,
    /// The last name of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many: 1,000 at most, and by default.
    #[serde(default = "most")]
    pub limit: usize,
}

impl ListRegisters {
    /// What is sent for a request.
    pub fn of(request: &RegisterRequest) -> Self {
        Self {
            namespace: request.namespace.as_str().to_owned(),
            names: request.prefix.clone(),
            after: request.after.as_ref().map(|name| name.as_str().to_owned()),
            limit: request.limit.clamp(1, most()),
        }
    }

    /// The request for a driver, checked.
    pub fn for_driver(self) -> Result<RegisterRequest, Error> {
        Ok(RegisterRequest {
            namespace: Namespace::new(&self.namespace)?,
            prefix: self.names,
            after: self.after.map(Name::new).transpose()?,
            limit: self.limit.clamp(1, most()),
        })
    }
}

/// Some of the registers.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::RegisterPage;
///
/// let json = r#"
///     {"registers": [{"name": "cursor/a", "version": "7", "bytes": 8}], "more": false}
/// "#;
/// let it: RegisterPage = serde_json::from_str(json)?;
/// assert_eq!(it.registers[0].version, 7);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterPage {
    /// The registers, without their values.
    pub registers: Vec<RegisterState>,
    /// Whether there may be another page, which begins behind the last name of this one.
    pub more: bool,
}

/// A register that has a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterState {
    /// Its name.
    pub name: String,
    /// The version of the value.
    #[serde(with = "text")]
    pub version: u64,
    /// The highest token of its writes.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// The length of the value.
    pub bytes: usize,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

impl RegisterPage {
    /// What is answered for a page.
    pub fn of(page: ListPage<state::RegisterState>) -> Self {
        let registers = page.items.into_iter().map(|it| RegisterState {
            name: it.name.as_str().to_owned(),
            version: it.version.0,
            token: it.token,
            bytes: it.bytes,
            damaged: it.damaged,
        });
        Self { registers: registers.collect(), more: page.more }
    }

    /// The page for a driver.
    pub fn for_driver(self) -> Result<ListPage<state::RegisterState>, Error> {
        let state = |it: RegisterState| {
            let (name, version) = (Name::new(it.name)?, Version(it.version));
            let (token, bytes, damaged) = (it.token, it.bytes, it.damaged);
            Ok(state::RegisterState::new(name, version, token, bytes).with_damage(damaged))
        };
        let items = self.registers.into_iter().map(state).collect::<Result<_, Error>>()?;
        Ok(ListPage { items, more: self.more })
    }
}

/// `POST /v1/namespaces`: the namespaces in use that the caller may read, a page at a time.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ListNamespaces;
///
/// let it: ListNamespaces = serde_json::from_str(r#"{"after": "blog", "limit": 100}"#)?;
/// assert_eq!(it.after.as_deref(), Some("blog"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListNamespaces {
    /// The last namespace of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many: 1,000 at most, and by default.
    #[serde(default = "most")]
    pub limit: usize,
}

impl ListNamespaces {
    /// What is sent.
    pub fn of(after: Option<&Namespace>, limit: usize) -> Self {
        let after = after.map(|namespace| namespace.as_str().to_owned());
        Self { after, limit: limit.clamp(1, most()) }
    }

    /// After which namespace, and how many: for a driver, checked.
    pub fn for_driver(self) -> Result<(Option<Namespace>, usize), Error> {
        Ok((self.after.map(Namespace::new).transpose()?, self.limit.clamp(1, most())))
    }
}

/// Some of the namespaces.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Namespaces;
///
/// let it: Namespaces = serde_json::from_str(r#"{"namespaces": ["", "shop"], "more": false}"#)?;
/// assert_eq!(it.namespaces.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// The namespaces; the empty one is that of locks without a namespace.
    pub namespaces: Vec<String>,
    /// Whether there may be another page, which begins after the last namespace of this one.
    pub more: bool,
}

impl Namespaces {
    /// What is answered for a page.
    pub fn of(page: ListPage<Namespace>) -> Self {
        let namespaces = page.items.iter().map(|namespace| namespace.as_str().to_owned());
        Self { namespaces: namespaces.collect(), more: page.more }
    }

    /// The page for a driver.
    pub fn for_driver(self) -> Result<ListPage<Namespace>, Error> {
        let items = self.namespaces.iter().map(Namespace::new).collect::<Result<_, _>>()?;
        Ok(ListPage { items, more: self.more })
    }
}

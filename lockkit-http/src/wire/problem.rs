//! What went wrong, as `application/problem+json` (RFC 9457).

use lockkit_core::driver::BatchError;
use lockkit_core::{Error, LossReason, Token};
use serde::{Deserialize, Serialize};

use super::status::{ClaimEnd, is_zero};
use super::text;

/// An error of the service.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Problem;
///
/// let json = r#"
///     {"code": "stale", "status": 409, "detail": "a greater token was seen", "highest": "43"}
/// "#;
/// let it: Problem = serde_json::from_str(json)?;
/// assert_eq!(it.highest.map(|token| token.get()), Some(43));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind of error, for programs.
    pub code: Code,
    /// The HTTP status that goes with it.
    pub status: u16,
    /// One sentence that says what to do. Contains no secret.
    pub detail: String,
    /// The number of attempts that got no answer, and may have been carried out or still be on their
    /// way: release a claim until its ttl is over. 0: certainly nothing was done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous: u32,
    /// With code `ended`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<ClaimEnd>,
    /// With code `limit_mismatch`: the limit that the semaphore has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u32>,
    /// With code `limit_mismatch`: the limit that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// With code `stale`: the highest token that the register has seen.
    #[serde(default, with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub highest: Option<Token>,
    /// With code `unsupported`: what was asked for, in the library's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// With code `unsupported`: the kind of backend that cannot do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A name, a duration or a body that cannot work. Nothing was done.
    Invalid,
    /// The caller did not say who it is, or is not known.
    Unauthorized,
    /// The caller may not do this, or not from there.
    Forbidden,
    /// There is no such path.
    NotFound,
    /// The lock is held, and the request was not to wait.
    Busy,
    /// The semaphore is in use with another limit.
    LimitMismatch,
    /// The claim is not live any more.
    Ended,
    /// A register was not as expected.
    Conflict,
    /// A register has been written with a greater token.
    Stale,
    /// The body is too long.
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    /// The backend of this service cannot do this.
    Unsupported,
    /// The service has as many waiting requests as it takes: ask again later.
    TooMany,
    /// The backend does not answer, or the service is stopping: ask again. The request may have been
    /// carried out.
    Unavailable,
    /// The backend refuses, until an operator corrects it.
    Backend,
}

impl Code {
    /// The HTTP status of this kind.
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::TooSlow => 408,
            Self::Busy | Self::LimitMismatch => 409,
            Self::Ended => 410,
            Self::Conflict | Self::Stale => 412,
            Self::TooLarge => 413,
            Self::TooMany => 429,
            Self::Unsupported => 501,
            Self::Backend => 502,
            Self::Unavailable => 503,
        }
    }
}

impl Problem {
    /// A problem of this kind.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (status, detail) = (code.status(), detail.into());
        Self {
            code,
            status,
            detail,
            ambiguous: 0,
            loss: None,
            in_use: None,
            asked: None,
            highest: None,
            operation: None,
            backend: None,
        }
    }

    /// The problem for an error of a driver, which may have acted. Where the backend is, is left out:
    /// every caller of the service would read the inside of its network.
    pub fn of(error: &Error) -> Self {
        let ambiguous = u32::from(matches!(error, Error::Backend { .. }));
        Self { ambiguous, ..Self::of_error(error) }
    }

    /// The problem for a batch, or for one operation of it.
    pub fn of_batch(error: &BatchError) -> Self {
        Self { ambiguous: error.ambiguous, ..Self::of_error(&error.error) }
    }

    fn of_error(error: &Error) -> Self {
        let detail = match error {
            Error::Backend { .. } => without_places(&error.to_string()),
            _ => error.to_string(),
        };
        let with = |code| Self::new(code, detail);
        match error {
            Error::Lost { reason, .. } => {
                Self { loss: Some(reason.clone().into()), ..with(Code::Ended) }
            }
            Error::LimitMismatch { in_use, asked, .. } => {
                Self { in_use: Some(*in_use), asked: Some(*asked), ..with(Code::LimitMismatch) }
            }
            Error::Conflict { .. } => with(Code::Conflict),
            Error::Stale { highest, .. } => Self { highest: Some(*highest), ..with(Code::Stale) },
            Error::Unsupported { operation, backend, .. } => Self {
                operation: Some((*operation).to_owned()),
                backend: Some((*backend).to_owned()),
                ..with(Code::Unsupported)
            },
            Error::Backend { retryable: true, .. } | Error::Closed => with(Code::Unavailable),
            Error::Backend { .. } => with(Code::Backend),
            _ => with(Code::Invalid),
        }
    }

    /// The error of a batch, or of one operation of it.
    pub fn batch_error(self) -> BatchError {
        let ambiguous = self.ambiguous;
        BatchError::refused(self.error()).after(ambiguous)
    }

    /// The error of the library that this is.
    pub fn error(self) -> Error {
        match self.code {
            Code::Ended => Error::lost(self.loss.map_or(LossReason::Expired, |loss| loss.reason())),
            Code::LimitMismatch => Error::limit_mismatch(
                String::new(),
                self.in_use.unwrap_or(0),
                self.asked.unwrap_or(0),
            ),
            Code::Invalid | Code::TooLarge => Error::Config(self.detail),
            Code::Unsupported => Error::unsupported(
                known(&OPERATIONS, self.operation).unwrap_or("this"),
                known(&BACKENDS, self.backend).unwrap_or(crate::BACKEND),
            ),
            Code::Unavailable | Code::TooMany | Code::TooSlow => {
                Error::retryable(crate::BACKEND, self.detail)
            }
            _ => Error::permanent(crate::BACKEND, self.detail),
        }
    }
}

/// The operations that a backend may not support. Errors hold words of this program only: what comes
/// from outside is looked up here.
const OPERATIONS: [&str; 11] = [
    "claims that outlive their process",
    "fencing a transaction",
    "listing namespaces",
    "raising the token base",
    "raising the tokens of permits",
    "raising tokens",
    "registers",
    "resizing a semaphore",
    "semaphores",
    "shortening a lease at the server",
    "waiting in line",
];

const BACKENDS: [&str; 10] = [
    "etcd",
    "http",
    "memory",
    "mirror",
    "mysql",
    "postgres",
    "quorum",
    "redis",
    "sqlite",
    "zookeeper",
];

fn known(words: &[&'static str], word: Option<String>) -> Option<&'static str> {
    words.iter().copied().find(|known| Some(*known) == word.as_deref())
}

/// A text with `…` in place of each word that is a URL, a login, or an address of a host.
fn without_places(text: &str) -> String {
    let words = text.split(' ').map(|word| if is_place(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn is_place(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && !"[]:".contains(c));
    let bare = bare.trim_end_matches(':');
    let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let has_port = bare
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    word.contains("://")
        || word.contains(":/")
        || word.contains('@')
        || is_address(bare)
        || has_port
}

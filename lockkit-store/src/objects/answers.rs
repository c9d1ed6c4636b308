//! What the error of a server means: its status and its code are read here, and the service says what they
//! mean.
//!
//! | | a write | else |
//! | --- | --- | --- |
//! | the condition does not hold (412, 409 with the service's own code), no such object | conflict | missing |
//! | no such bucket, no such right, unknown credentials: other 4xx with a code | forbidden | forbidden |
//! | 429, where the service says that nothing was done | throttled | throttled |
//! | 5xx, 408, 429; anything without a code, or no answer at all | unknown | no answer |
//!
//! The client crate tells a 409 to an update as `AlreadyExists` and a 404 to it as `Precondition`, also that of
//! a bucket which is gone; and its errors show statuses in their texts only. So the texts are read, and what is
//! not understood is unknown.

use std::error::Error as StdError;
use std::time::Duration;

use object_store::Error;

use super::BucketService;
use crate::store::{PutOutcome, StoreError, because};

/// The pause after a refusal that asks for a lower rate.
const THROTTLED: Duration = Duration::from_secs(1);

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Get,
    Create,
    Update,
    Delete,
    List,
}

impl RequestKind {
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Update)
    }

    /// What it means that there is no such object.
    pub(crate) fn missing(self) -> ServerAnswer {
        if self.is_write() { ServerAnswer::Conflict } else { ServerAnswer::Missing }
    }
}

/// An error of the server, taken apart.
#[derive(Debug)]
pub struct ServerError<'a> {
    pub request: RequestKind,
    pub bucket: &'a str,
    pub status: Option<u16>,
    /// The service's word for what is wrong; empty where the answer has none.
    pub code: &'a str,
    pub message: &'a str,
    /// All that is known.
    pub text: &'a str,
}

/// What the server, or nothing, answered.
#[derive(Debug)]
pub enum ServerAnswer {
    Conflict,
    Missing,
    Same,
    /// Certainly not carried out; it may be asked again later.
    #[cfg_attr(not(feature = "gcs"), expect(dead_code, reason = "others promise nothing"))]
    Throttled(String),
    Forbidden(String),
    None(String),
}

impl ServerAnswer {
    pub(crate) fn of<S: BucketService>(error: &Error, request: RequestKind, bucket: &str) -> Self {
        if let Error::NotModified { .. } = error {
            return Self::Same;
        }
        let text = full_text(error);
        let error = ServerError {
            request,
            bucket,
            status: status(&text),
            code: element(&text, "Code"),
            message: element(&text, "Message").lines().next().unwrap_or_default(),
            text: &text,
        };
        S::explain(&error).unwrap_or_else(|| error.usual::<S>())
    }

    pub(crate) fn into_outcome(self) -> PutOutcome {
        match self {
            Self::Conflict => PutOutcome::Conflict(None),
            failed => failed.into_error().into(),
        }
    }

    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::Throttled(message) => {
                StoreError::Throttled { pause: THROTTLED, cause: because(message) }
            }
            Self::Forbidden(message) => StoreError::Forbidden(because(message)),
            Self::None(message) => StoreError::Unavailable(because(message)),
            Self::Conflict | Self::Missing | Self::Same => {
                StoreError::Unavailable(because("an answer to another request"))
            }
        }
    }
}

impl ServerError<'_> {
    /// What it means where the service has no word of its own for it.
    fn usual<S: BucketService>(&self) -> ServerAnswer {
        let Self { bucket, code, message, .. } = self;
        match (self.status, *code) {
            (Some(408 | 429 | 500..), _) | (_, "") => ServerAnswer::None(self.text.to_owned()),
            (Some(401 | 403), code) => ServerAnswer::Forbidden(format!(
                "a right is missing in {bucket}: {} ({code}: {message})",
                S::rights(self.request)
            )),
            (Some(400..500), code) => {
                ServerAnswer::Forbidden(format!("the server refuses ({code}: {message})"))
            }
            _ => ServerAnswer::None(self.text.to_owned()),
        }
    }
}

/// The text of an error: the longest of its chain, since each may repeat those below it or not.
fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// The status in the text of an error.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The text inside an element of the answer's body; empty where there is no such element.
fn element<'a>(text: &'a str, name: &str) -> &'a str {
    let inner = text.split_once(&format!("<{name}>")).map(|(_, rest)| rest);
    inner.and_then(|rest| rest.split_once("</")).map_or("", |(inner, _)| inner)
}

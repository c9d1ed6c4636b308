//! What each answer of the server means: the one place that knows statuses and codes.
//!
//! | status | a write | else |
//! | --- | --- | --- |
//! | 412, 409 | conflict | no answer |
//! | 404 with `NoSuchKey` | conflict | missing |
//! | 404 with `NoSuchBucket`, 301, other 4xx with a code of S3's | forbidden | forbidden |
//! | 5xx, also 503 `SlowDown`; 408, 429; anything without a code, or none at all | unknown | no answer |
//!
//! The client crate tells a 409 to an update as `AlreadyExists` and a 404 to it as `Precondition`; and its
//! errors show statuses in their texts only. So the texts are read, and what is not understood is unknown.

use std::error::Error as StdError;
use std::sync::Arc;

use lockkit_core::Cause;
use object_store::Error;

use crate::store::{PutOutcome, StoreError};

/// What was asked, with the rights that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Get,
    Create,
    Update,
    Delete,
    List,
}

impl RequestKind {
    fn rights(self) -> &'static str {
        match self {
            // Without the right to list, a missing object is answered with 403.
            Self::Get => "s3:GetObject on its objects, and s3:ListBucket on the bucket",
            Self::Create => "s3:PutObject on its objects",
            Self::Update => "s3:PutObject and s3:GetObject on its objects",
            Self::Delete => "s3:DeleteObject on its objects",
            Self::List => "s3:ListBucket on the bucket",
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Update)
    }
}

/// What the server, or nothing, answered.
#[derive(Debug)]
pub(crate) enum ServerAnswer {
    Conflict,
    Missing,
    Same,
    Forbidden(String),
    None(String),
}

impl ServerAnswer {
    pub(crate) fn of(error: &Error, kind: RequestKind, bucket: &str) -> Self {
        if let Error::NotModified { .. } = error {
            return Self::Same;
        }
        let text = full_text(error);
        if text.contains("without LOCATION") {
            return Self::Forbidden(other_region(bucket));
        }
        let code = element(&text, "Code");
        match (status(&text), code) {
            (Some(404), "NoSuchBucket") => Self::Forbidden(format!(
                "there is no bucket {bucket}: create it, or correct the bucket, region or endpoint of the URL"
            )),
            (Some(404), "NoSuchKey") if kind.is_write() => Self::Conflict,
            (Some(404), "NoSuchKey") => Self::Missing,
            (Some(409 | 412), _) if kind.is_write() => Self::Conflict,
            (Some(400 | 403), code @ ("ExpiredToken" | "TokenRefreshRequired")) => {
                Self::Forbidden(format!(
                    "the credentials have expired ({code}): start this process with new ones, or give it a \
                     role whose credentials are renewed"
                ))
            }
            (
                Some(400 | 401 | 403),
                code @ ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken"),
            ) => Self::Forbidden(format!(
                "the server does not know these credentials ({code}): check AWS_ACCESS_KEY_ID, \
                 AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            )),
            (Some(403), "RequestTimeTooSkewed") => Self::Forbidden(
                "the clock of this machine differs too much from the server's: set it".to_owned(),
            ),
            (Some(400), "AuthorizationHeaderMalformed") | (Some(301), _) => {
                Self::Forbidden(other_region(bucket))
            }
            (Some(401 | 403), code) if !code.is_empty() => Self::Forbidden(format!(
                "a right is missing in bucket {bucket}: {} ({code}: {})",
                kind.rights(),
                element(&text, "Message")
            )),
            (Some(408 | 429 | 500..), _) | (_, "" | "RequestTimeout") => Self::None(text),
            (Some(400..500), code) => Self::Forbidden(format!(
                "the server refuses ({code}: {})",
                element(&text, "Message")
            )),
            _ => Self::None(text),
        }
    }

    pub(crate) fn into_outcome(self) -> PutOutcome {
        match self {
            Self::Conflict => PutOutcome::Conflict(None),
            Self::Forbidden(message) => PutOutcome::Forbidden(because(message)),
            Self::None(message) => PutOutcome::Unknown(because(message)),
            Self::Missing | Self::Same => {
                PutOutcome::Unknown(because("an answer to another request"))
            }
        }
    }

    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::Forbidden(message) => StoreError::Forbidden(because(message)),
            Self::None(message) => StoreError::Unavailable(because(message)),
            Self::Conflict | Self::Missing | Self::Same => {
                StoreError::Unavailable(because("an answer to another request"))
            }
        }
    }
}

pub(crate) fn because(message: impl Into<String>) -> Cause {
    let message: Box<dyn StdError + Send + Sync> = message.into().into();
    Arc::from(message)
}

fn other_region(bucket: &str) -> String {
    format!("the bucket {bucket} is in another region: name that as region= in the URL")
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

//! What each answer of DynamoDB means: the one place that knows statuses and codes.
//!
//! | answer | a write | else |
//! | --- | --- | --- |
//! | 400 `ConditionalCheckFailedException` | conflict | – |
//! | 400 throttled, or refused because of another write at this moment | certainly not carried out, later again | later again |
//! | other 4xx with a code of DynamoDB's | forbidden | forbidden |
//! | 5xx; 408, 429; anything without a code, or none at all | unknown | no answer |
//! | no credentials, so nothing was sent | forbidden; later again where asking for them failed | the same |

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use lockkit_core::Cause;

use crate::store::{PutOutcome, StoreError};

/// The pause after a request that was throttled.
const PAUSE: Duration = Duration::from_millis(200);

/// The client crate's error.
pub(super) type CallError<E> = SdkError<E, HttpResponse>;

/// What DynamoDB, or nothing, answered.
#[derive(Debug)]
pub(super) enum ServerAnswer {
    /// Certainly not carried out; the same may be asked again.
    Later(String),
    Forbidden(String),
    None(String),
}

impl ServerAnswer {
    pub(super) fn of<E>(error: &CallError<E>, action: &str, table: &str) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let text = || DisplayErrorContext(error).to_string();
        match error {
            SdkError::ServiceError(_) => {}
            SdkError::ConstructionFailure(_) => return Self::Forbidden(text()),
            // Before it was sent; what fails afterwards is an error of the connection.
            SdkError::DispatchFailure(failure) if failure.is_other() || failure.is_user() => {
                return without_credentials(error, text());
            }
            _ => return Self::None(text()),
        }
        let status = error.raw_response().map_or(0, |answer| answer.status().as_u16());
        let (code, message) = (error.code().unwrap_or(""), error.message().unwrap_or(""));
        if !(400..500).contains(&status) || matches!(status, 408 | 429) || code.is_empty() {
            return Self::None(text());
        }
        match code {
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "LimitExceededException"
            | "ReplicatedWriteConflictException"
            | "TransactionConflictException" => Self::Later(format!("{code}: {message}")),
            "ResourceNotFoundException" => Self::Forbidden(format!(
                "there is no table {table} in this region: `lockkit schema` prints the command that creates \
                 it, or correct the table, region or endpoint of the URL"
            )),
            "AccessDeniedException" => Self::Forbidden(format!(
                "a right is missing: dynamodb:{action} on the table {table} ({message})"
            )),
            "ExpiredTokenException" | "ExpiredToken" | "RequestExpired" => {
                Self::Forbidden(format!(
                    "the credentials have expired ({code}): start this process with new ones, or give it a role \
                 whose credentials are renewed"
                ))
            }
            "InvalidSignatureException" if message.contains("ignature expired") => Self::Forbidden(
                "the clock of this machine differs too much from the server's: set it".to_owned(),
            ),
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "InvalidClientTokenId"
            | "MissingAuthenticationTokenException" => Self::Forbidden(format!(
                "the server does not know these credentials ({code}): check AWS_ACCESS_KEY_ID, \
                 AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile"
            )),
            _ => Self::Forbidden(format!("the server refuses ({code}: {message})")),
        }
    }

    pub(super) fn into_outcome(self) -> PutOutcome {
        match self {
            Self::Later(message) => PutOutcome::Throttled { pause: PAUSE, cause: because(message) },
            Self::Forbidden(message) => PutOutcome::Forbidden(because(message)),
            Self::None(message) => PutOutcome::Unknown(because(message)),
        }
    }

    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Later(message) => StoreError::Throttled { pause: PAUSE, cause: because(message) },
            Self::Forbidden(message) => StoreError::Forbidden(because(message)),
            Self::None(message) => StoreError::Unavailable(because(message)),
        }
    }
}

/// Nothing was sent, since there are no credentials, or since those who give them do not answer.
fn without_credentials(error: &(dyn StdError + 'static), text: String) -> ServerAnswer {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<CredentialsError>());
    match cause {
        Some(CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_)) => {
            ServerAnswer::Later(format!("no credentials now: {text}"))
        }
        _ => ServerAnswer::Forbidden(format!(
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile as \
             AWS_PROFILE, or run with a role ({text})"
        )),
    }
}

pub(super) fn because(message: impl Into<String>) -> Cause {
    let message: Box<dyn StdError + Send + Sync> = message.into().into();
    Arc::from(message)
}

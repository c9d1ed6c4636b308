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
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use crate::store::{StoreError, because};

/// The pause after a request that was throttled.
const PAUSE: Duration = Duration::from_millis(200);

/// The client crate's error.
pub(super) type CallError<E> = SdkError<E, HttpResponse>;

/// Certainly not carried out; the same may be asked again.
fn later(message: String) -> StoreError {
    StoreError::Throttled { pause: PAUSE, cause: because(message) }
}

fn forbidden(message: impl Into<String>) -> StoreError {
    StoreError::Forbidden(because(message))
}

/// What DynamoDB, or nothing, answered.
pub(super) fn error_of<E>(error: &CallError<E>, action: &str, table: &str) -> StoreError
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let text = || DisplayErrorContext(error).to_string();
    let no_answer = || StoreError::Unavailable(because(text()));
    match error {
        SdkError::ServiceError(_) => {}
        SdkError::ConstructionFailure(_) => return forbidden(text()),
        // Before it was sent; what fails afterwards is an error of the connection.
        SdkError::DispatchFailure(failure) if failure.is_other() || failure.is_user() => {
            return without_credentials(error, text());
        }
        _ => return no_answer(),
    }
    let status = error.raw_response().map_or(0, |answer| answer.status().as_u16());
    let (code, message) = (error.code().unwrap_or(""), error.message().unwrap_or(""));
    if !(400..500).contains(&status) || matches!(status, 408 | 429) || code.is_empty() {
        return no_answer();
    }
    match code {
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "LimitExceededException"
        | "ReplicatedWriteConflictException"
        | "TransactionConflictException" => later(format!("{code}: {message}")),
        "ResourceNotFoundException" => forbidden(format!(
            "there is no table {table} in this region: `lockkit schema` prints the command that creates it, or \
             correct the table, region or endpoint of the URL"
        )),
        "AccessDeniedException" => forbidden(format!(
            "a right is missing: dynamodb:{action} on the table {table} ({message})"
        )),
        "ExpiredTokenException" | "ExpiredToken" | "RequestExpired" => forbidden(format!(
            "the credentials have expired ({code}): start this process with new ones, or give it a role whose \
             credentials are renewed"
        )),
        "InvalidSignatureException" if message.contains("ignature expired") => {
            forbidden("the clock of this machine differs too much from the server's: set it")
        }
        "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "IncompleteSignatureException"
        | "InvalidClientTokenId"
        | "MissingAuthenticationTokenException" => forbidden(format!(
            "the server does not know these credentials ({code}): check AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile"
        )),
        _ => forbidden(format!("the server refuses ({code}: {message})")),
    }
}

/// Nothing was sent, since there are no credentials, or since those who give them do not answer.
fn without_credentials(error: &(dyn StdError + 'static), text: String) -> StoreError {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<CredentialsError>());
    match cause {
        Some(CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_)) => {
            later(format!("no credentials now: {text}"))
        }
        _ => forbidden(format!(
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile as \
             AWS_PROFILE, or run with a role ({text})"
        )),
    }
}

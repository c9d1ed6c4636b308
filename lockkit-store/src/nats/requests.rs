//! One request to NATS, sent once, and what its answer says.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event, HeaderMap, Request, RequestErrorKind, ServerError};
use lockkit_core::Cause;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::store::{PutOutcome, StoreError, because};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a request that no server took: a new leader is elected, or the connection is made again.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(super) enum RequestFailure {
    /// It was certainly not carried out, and may be sent again.
    NotSent(Cause),
    /// It may have been carried out, or may be later.
    NoAnswer(Cause),
    /// A right is missing.
    Forbidden(Cause),
    /// The server's own refusal.
    Refused(ServerRefusal),
}

/// The error of an answer: an HTTP-like code, NATS' own code, and a sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("NATS answers: {description} (error {error})")]
pub(super) struct ServerRefusal {
    pub(super) code: u64,
    pub(super) error: u64,
    pub(super) description: String,
}

/// Violations of permissions, which arrive apart from answers: the request itself is never answered.
#[derive(Clone)]
pub(super) struct Violations(broadcast::Sender<Arc<str>>);

impl Violations {
    pub(super) fn new() -> Self {
        Self(broadcast::channel(64).0)
    }

    pub(super) fn take(&self, event: Event) {
        if let Event::ServerError(ServerError::Other(text)) = event
            && text.to_lowercase().contains("permissions violation")
        {
            let _ = self.0.send(text.into());
        }
    }
}

/// Returns once a violation names the subject, or the inbox of the answers.
async fn violation(violations: &mut broadcast::Receiver<Arc<str>>, subject: &str) -> Cause {
    loop {
        match violations.recv().await {
            Ok(text) if text.contains(&format!("{subject:?}")) => {
                return because(format!("{text}: the user of this connection needs that right"));
            }
            Ok(text) if text.contains("Subscription to \"_INBOX.") => {
                return because(format!(
                    "{text}: the user needs the right to subscribe to _INBOX.>"
                ));
            }
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Sends a request once; the answer as JSON.
pub(super) async fn ask(
    client: &Client,
    violations: &Violations,
    subject: String,
    headers: Option<HeaderMap>,
    payload: Vec<u8>,
) -> Result<Value, RequestFailure> {
    // A request without a connection would be sent whenever there is one again.
    if client.connection_state() != State::Connected {
        return Err(RequestFailure::NotSent(because("there is no connection to NATS")));
    }
    let mut violations = violations.0.subscribe();
    let mut request = Request::new().payload(payload.into()).timeout(Some(PATIENCE));
    if let Some(headers) = headers {
        request = request.headers(headers);
    }
    let answer = tokio::select! {
        biased;
        answer = client.send_request(subject.clone(), request) => answer,
        cause = violation(&mut violations, &subject) => return Err(RequestFailure::Forbidden(cause)),
    };
    let message = answer.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => RequestFailure::NotSent(because(
            "no server of NATS takes the request: no leader now, no JetStream, or no such bucket",
        )),
        RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
            RequestFailure::Forbidden(Arc::new(error))
        }
        _ => RequestFailure::NoAnswer(Arc::new(error)),
    })?;
    let answer: Value = serde_json::from_slice(&message.payload)
        .map_err(|error| RequestFailure::NoAnswer(Arc::new(error)))?;
    match answer.get("error") {
        None => Ok(answer),
        Some(error) => Err(RequestFailure::Refused(ServerRefusal {
            code: error["code"].as_u64().unwrap_or_default(),
            error: error["err_code"].as_u64().unwrap_or_default(),
            description: error["description"].as_str().unwrap_or_default().to_owned(),
        })),
    }
}

impl ServerRefusal {
    /// Whether asking again may help: 5xx are for what the server lacks now.
    pub(super) fn is_for_now(&self) -> bool {
        self.code >= 500
    }
}

impl From<RequestFailure> for StoreError {
    fn from(failure: RequestFailure) -> Self {
        match failure {
            RequestFailure::NotSent(cause) | RequestFailure::NoAnswer(cause) => {
                Self::Unavailable(cause)
            }
            RequestFailure::Refused(refusal) if refusal.is_for_now() => {
                Self::Unavailable(Arc::new(refusal))
            }
            RequestFailure::Refused(refusal) => Self::Forbidden(Arc::new(refusal)),
            RequestFailure::Forbidden(cause) => Self::Forbidden(cause),
        }
    }
}

/// The last sequence of the subject is another one; the second code is for one that is being written.
const CONFLICTS: [u64; 2] = [10_071, 10_164];

impl From<RequestFailure> for PutOutcome {
    fn from(failure: RequestFailure) -> Self {
        match failure {
            RequestFailure::NotSent(cause) => Self::Throttled { pause: PAUSE, cause },
            RequestFailure::Refused(refusal) if CONFLICTS.contains(&refusal.error) => {
                Self::Conflict(None)
            }
            // Also what is refused for now: mostly a cluster between two leaders, and what that did with the
            // request is not said.
            failure => StoreError::from(failure).into(),
        }
    }
}

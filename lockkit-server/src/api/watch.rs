//! `POST /v1/watch`: a stream of states, one in each line. No line has a deadline in it: it may be
//! read late.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State as Shared;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use lockkit_core::driver::{RegisterEntry, RegisterKey};
use lockkit_core::state::LockState;
use lockkit_core::{Error, Key};
use lockkit_http::wire;
use serde::Serialize;
use tokio::time::Instant;

use super::inspect::state_with_offset;
use crate::body::Body;
use crate::caller::{Caller, CallerId};
use crate::quota::QuotaPermit;
use crate::response::ErrorResponse;
use crate::service::Service;
use crate::tokens::Permission;

/// When a stream says that it goes on: proxies close connections on which nothing comes for long.
const KEEP_ALIVE_MS: u64 = 15_000;

/// How long a stream goes on: who may read is judged at its beginning, and rights change.
const LONGEST: Duration = Duration::from_secs(600);

pub(crate) async fn watch(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Watch>,
) -> Result<Response, ErrorResponse> {
    let subject = match request {
        wire::Watch::Lock(key) => {
            let key = key.for_driver()?;
            caller.check(Permission::Read, &key.namespace, &key.name)?;
            let offset = service.token_offset(&key.namespace).await?;
            let now = service.driver().inspect(&key).await?;
            Subject::Lock { key, offset, now }
        }
        wire::Watch::Register(register) => {
            let at = register.for_driver()?;
            caller.check_read(&at)?;
            let now = service.registers()?.load(&at).await?;
            Subject::Register { at, now }
        }
    };
    let place = service.wait_permit(&caller)?;
    let first = subject.to_json_line();
    let watching = Watching { service, subject, permit: place, until: Instant::now() + LONGEST };
    let later = stream::unfold(Some(watching), |watching| async move { watching?.next().await });
    let lines = stream::iter([first]).chain(later).map(Ok::<_, Infallible>);
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, HttpBody::from_stream(lines)).into_response())
}

struct Watching {
    service: Service,
    subject: Subject,
    permit: QuotaPermit<CallerId>,
    until: Instant,
}

/// What is watched, as it was when it was last looked at.
enum Subject {
    Lock { key: Key, offset: u64, now: LockState },
    Register { at: RegisterKey, now: Option<RegisterEntry> },
}

impl Watching {
    /// The next line, and what comes after it, if anything does.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        let Self { service, subject, permit: place, until } = &mut self;
        match service.wait(place, KEEP_ALIVE_MS, subject.change(service)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Some((json_line(&wire::Problem::of(&error)), None)),
            None if service.is_stopping() || Instant::now() >= *until => return None,
            None => return Some((Bytes::from_static(b"\n"), Some(self))),
        }
        Some((subject.to_json_line(), Some(self)))
    }
}

impl Subject {
    /// Returns once it is another than it was.
    async fn change(&mut self, service: &Service) -> Result<(), Error> {
        match self {
            Self::Lock { key, now, .. } => *now = service.driver().changed(key, now).await?,
            Self::Register { at, now } => {
                let registers = service.driver().registers();
                let registers = registers.ok_or(service.driver().unsupported("registers"))?;
                *now = registers.changed(at, now.as_ref().map(|entry| entry.version)).await?;
            }
        }
        Ok(())
    }

    fn to_json_line(&self) -> Bytes {
        match self {
            Self::Lock { now, offset, .. } => {
                json_line(&wire::QueueState::of(&state_with_offset(now.clone(), *offset)))
            }
            Self::Register { now, .. } => json_line(&wire::Loaded::of(now.clone())),
        }
    }
}

fn json_line(it: &impl Serialize) -> Bytes {
    // Plain data: it always can be written as JSON.
    let mut line = serde_json::to_vec(it).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

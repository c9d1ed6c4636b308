//! LOCK and UNLOCK.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkit_core::Token;
use lockkit_core::driver::ClaimId;
use lockkit_http::wire::Code;

use super::head::{HeadLock, NotWritten};
use super::info::{LockInfo, OWN_ID};
use super::{Result, Target, conflict, request};
use crate::response::ErrorResponse;
use crate::tokens::Permission;

/// How long the service's own locks live, should it end with one.
const OWN_TTL: Duration = Duration::from_secs(60);

/// How often a lock is tried that was busy, and had no holder a moment later.
const ATTEMPTS: usize = 8;

/// What became of a LOCK.
enum Locked {
    /// It holds, and the head says so.
    Held,
    /// The lock of this id ended before.
    Ended,
    /// The lock of another id holds: its info.
    Busy(String),
}

pub(super) async fn lock(target: &Target, request: Request) -> Result<Response> {
    let body = request::read_info(request).await?;
    let info = LockInfo::parse(&body)?;
    let ttl = target.service.terraform().claim_ttl();
    match target.lock(&info, ttl).await? {
        Locked::Held => Ok(StatusCode::OK.into_response()),
        Locked::Ended => Err(conflict("the lock of this ID has ended: take one with another ID")),
        Locked::Busy(info) => Ok(busy(info)),
    }
}

/// 423, with the JSON that the present holder sent.
fn busy(info: String) -> Response {
    let mut response = Response::new(Body::from(info));
    *response.status_mut() = StatusCode::LOCKED;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

pub(super) async fn unlock(target: &Target, request: Request) -> Result<Response> {
    let body = request::read_info(request).await?;
    match body.is_empty() {
        true => target.force_unlock().await?,
        false => target.unlock(&LockInfo::parse(&body)?.id).await?,
    }
    Ok(StatusCode::OK.into_response())
}

impl Target {
    /// Takes the lock, and writes its id and token to the head: from then on no write of an earlier
    /// holder is applied.
    async fn lock(&self, info: &LockInfo, ttl: Duration) -> Result<Locked> {
        for _ in 0..ATTEMPTS {
            if self.load_head().await?.has_ended(&info.id) {
                return Ok(Locked::Ended);
            }
            if let Some(token) = self.take(info, ttl).await? {
                return self.enter(info, token).await;
            }
            if let Some(holder) = self.holder(&self.load_head().await?).await? {
                return Ok(Locked::Busy(holder.info));
            }
        }
        let detail = "the lock of this state changes hands quickly: ask again";
        Err(ErrorResponse::new(Code::Unavailable, detail))
    }

    /// Writes the lock that was taken to the head. A lock that ended before is released again: this
    /// LOCK is a late duplicate.
    async fn enter(&self, info: &LockInfo, token: Token) -> Result<Locked> {
        let entered = self.update(Some(token), |head| {
            if head.has_lock(&info.id, token) {
                return Ok(true);
            }
            let same_id = head.lock.as_ref().is_some_and(|lock| lock.id == info.id);
            if same_id || head.has_ended(&info.id) {
                // The claim of the lock in the head was broken, or its time was over.
                if same_id {
                    head.end_lock();
                }
                return Ok(false);
            }
            head.end_lock();
            head.discard_pending();
            let (id, info) = (info.id.clone(), info.text.clone());
            head.lock = Some(HeadLock { id, token: token.get(), info });
            Ok(true)
        });
        match entered.await {
            Ok(true) => Ok(Locked::Held),
            Ok(false) => {
                self.release(&info.id).await?;
                Ok(Locked::Ended)
            }
            Err(NotWritten::Stale) => {
                let detail = "the lock was broken while it was taken: ask again";
                Err(ErrorResponse::new(Code::Unavailable, detail))
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Ends the lock of this id; refused while another one holds. Nothing to do where none holds.
    ///
    /// The head remembers the id before the claim is released, so that a late duplicate of its LOCK
    /// takes nothing.
    pub(super) async fn unlock(&self, id: &str) -> Result<()> {
        let head = self.load_head().await?;
        let holder = self.holder(&head).await?;
        let holds = holder.as_ref().is_some_and(|holder| holder.id.as_deref() == Some(id));
        if holder.is_some() && !holds {
            return Err(conflict("the lock of another ID holds: nothing was done"));
        }
        let token = holder.map(|holder| holder.token);
        self.update(token, |head| {
            match &head.lock {
                Some(lock) if lock.id == id => head.end_lock(),
                // Of a state that was never locked or written, nothing is remembered.
                None if !holds && head.is_empty() => {}
                _ => head.remember(id.to_owned()),
            }
            Ok(())
        })
        .await?;
        if holds {
            self.release(id).await?;
        }
        Ok(())
    }

    /// Ends whatever holds: Terraform 0.15 and OpenTofu do not say which lock they mean.
    async fn force_unlock(&self) -> Result<()> {
        self.check_break()?;
        let head = self.load_head().await?;
        let Some(holder) = self.holder(&head).await? else {
            return Ok(());
        };
        self.break_holder(&holder).await?;
        // A write of the broken holder that is under way finds another version of the head.
        self.update(None, |head| {
            if head.lock.as_ref().is_some_and(|lock| lock.token == holder.token.get()) {
                head.end_lock();
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Takes a lock of the service's own, which lives for one request; its id.
    pub(super) async fn lock_for_request(&self, operation: &str) -> Result<String> {
        let info = LockInfo::own(format!("{OWN_ID}{}", ClaimId::random().to_hex()), operation);
        match self.lock(&info, OWN_TTL).await? {
            Locked::Held => Ok(info.id),
            Locked::Busy(_) | Locked::Ended => Err(conflict("the state is locked")),
        }
    }

    /// Refuses callers that may not break the lock.
    fn check_break(&self) -> Result<()> {
        let may = |name| self.caller.check(Permission::Break, &self.namespace, name);
        may(&self.full_name).or_else(|_| may(&self.name))
    }
}

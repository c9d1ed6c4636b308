//! Requests about claims.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BatchError, BatchOutcome, Patience, Renewal, Renewed,
};
use lockkit_core::{Claim, Error};
use lockkit_http::wire;

use crate::body::Body;
use crate::caller::{Caller, CallerId};
use crate::quota::QuotaPermit;
use crate::response::{ApiResponse, ErrorResponse, log};
use crate::service::{Service, no_result, with_offset};

type Result<T> = std::result::Result<ApiResponse<T>, ErrorResponse>;

pub(crate) async fn acquire(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::AcquireBody>,
) -> Result<wire::ClaimStatus> {
    let received = service.driver().clock().now();
    let claim = to_acquire(service.claim(&caller, request.claim)?, request.resizable)?;
    let about = ClaimRequest::of(&service, received, claim).await?;
    let place = wait_permit(&service, &caller, request.wait_ms)?;
    let acquire = Acquire { claim: about.claim.clone(), patience: patience(request.no_wait) };
    let answer = service.acquire(acquire).await?;
    let queued = matches!(answer.result, Acquisition::Queued { .. });
    let answer = answer.map(|answer| acquired(answer, about.offset));
    let state = wire::ClaimStatus::of_acquisition(answer, about.received);
    match place {
        Some(place) if queued => {
            wait_for_grant(&service, &about, place, request.wait_ms, state).await
        }
        _ => Ok(with_status(state)),
    }
}

pub(crate) async fn wait(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::WaitBody>,
) -> Result<wire::ClaimStatus> {
    let about = ClaimRequest::new(&service, &caller, request.claim).await?;
    let place = wait_permit(&service, &caller, request.wait_ms)?;
    let renewal = service.driver().renew_single(&about.claim).await?;
    let queued = matches!(renewal, Renewal::Waits { .. });
    let state = wire::ClaimStatus::of_renewal(renewed(renewal, about.offset), about.received);
    match place {
        Some(place) if queued => {
            wait_for_grant(&service, &about, place, request.wait_ms, state).await
        }
        _ => Ok(with_status(state)),
    }
}

/// A place to wait at, for a request that may wait: taken before the claim is put into the queue, so that
/// a refusal has done nothing.
fn wait_permit(
    service: &Service,
    caller: &Caller,
    wait_ms: u64,
) -> std::result::Result<Option<QuotaPermit<CallerId>>, ErrorResponse> {
    (wait_ms > 0).then(|| service.wait_permit(caller)).transpose()
}

/// Waits for the turn of a claim that is in the queue: `state`.
///
/// The backend put it there, or renewed it, after the request was received. So a lease that it was
/// given with its turn counts from later than that, and may be said to count from there.
async fn wait_for_grant(
    service: &Service,
    about: &ClaimRequest,
    place: QuotaPermit<CallerId>,
    wait_ms: u64,
    state: wire::ClaimStatus,
) -> Result<wire::ClaimStatus> {
    let ClaimRequest { received, claim, offset } = about;
    // Nothing renews it meanwhile: the client does, with its next request.
    let half = u64::try_from(claim.wait_ttl.as_millis() / 2).unwrap_or(u64::MAX);
    let heard = service.wait(&place, wait_ms.min(half), service.driver().granted(claim)).await;
    Ok(with_status(match heard {
        Some(Ok(grant)) => {
            wire::ClaimStatus::Held(wire::Grant::of(&with_offset(grant, *offset), *received, 0))
        }
        Some(Err(Error::Lost { reason, .. })) => wire::ClaimStatus::Ended(reason.into()),
        // The claim is in the queue.
        Some(Err(error)) => return Err(BatchError::unknown(error).into()),
        None => state,
    }))
}

pub(crate) async fn release(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimBody>,
) -> Result<wire::Released> {
    let claim = service.claim(&caller, request.claim)?;
    Ok(ApiResponse::ok(wire::Released::of(service.release(claim).await?)))
}

pub(crate) async fn batch(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::BatchBody>,
) -> Result<wire::BatchOutcome> {
    let received = service.driver().clock().now();
    let most = service.driver().capabilities().batches.operations.max(1);
    if request.releases.len() + request.acquires.len() > most {
        let message = format!("a batch has {most} operations at most here: send several");
        return Err(Error::Config(message).into());
    }
    let mut releases = Vec::with_capacity(request.releases.len());
    for claim in request.releases {
        releases.push(service.claim(&caller, claim)?);
    }
    let mut acquires = Vec::with_capacity(request.acquires.len());
    // Of each acquire, the namespace's token offset, or why it is refused: the others are submitted
    // without it.
    let mut offsets = Vec::with_capacity(request.acquires.len());
    for wire::BatchAcquire { claim, no_wait, resizable } in request.acquires {
        let offset = match to_acquire(service.claim(&caller, claim)?, resizable) {
            Ok(claim) => {
                let offset = service.token_offset(&claim.key.namespace).await;
                acquires.push(Acquire { claim, patience: patience(no_wait) });
                Ok(offset.map_err(BatchError::refused)?)
            }
            Err(error) => Err(BatchError::refused(error)),
        };
        offsets.push(offset);
    }
    let outcome = service.submit(Batch { releases: &releases, acquires: &acquires }).await;
    let failures = outcome.released.iter().filter_map(|it| it.as_ref().err());
    let failures = failures.chain(outcome.acquired.iter().filter_map(|it| it.as_ref().err()));
    failures.for_each(|failure| log(&failure.error));
    let mut answers = outcome.acquired.into_iter();
    let answer = |offset: std::result::Result<u64, BatchError>| {
        offset.and_then(|offset| {
            let answer = answers.next().unwrap_or_else(|| Err(no_result()))?;
            Ok(answer.map(|answer| acquired(answer, offset)))
        })
    };
    let acquired = offsets.into_iter().map(answer).collect();
    let outcome = BatchOutcome { released: outcome.released, acquired };
    Ok(ApiResponse::ok(wire::BatchOutcome::of(outcome, received)))
}

/// The claim of an acquire; refused where it could never hold.
fn to_acquire(claim: Arc<Claim>, resizable: bool) -> std::result::Result<Arc<Claim>, Error> {
    let claim = Arc::unwrap_or_clone(claim).with_resizable(resizable);
    claim.check_acquire()?;
    Ok(Arc::new(claim))
}

fn patience(no_wait: bool) -> Patience {
    if no_wait { Patience::Try } else { Patience::Wait }
}

pub(crate) async fn renew(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::RenewBody>,
) -> Result<wire::RenewOutcome> {
    let received = service.driver().clock().now();
    let mut claims = Vec::with_capacity(request.claims.len());
    let mut offsets = Vec::with_capacity(request.claims.len());
    for claim in request.claims {
        let claim = service.claim(&caller, claim)?;
        offsets.push(service.token_offset(&claim.key.namespace).await?);
        claims.push(claim);
    }
    let answers = service.driver().renew_with_evidence(&claims).await?;
    let answer = |(answer, offset): (std::result::Result<Renewed, Error>, u64)| {
        let with_offset = |it: Renewed| Renewed { renewal: renewed(it.renewal, offset), ..it };
        answer.inspect_err(log).map(with_offset)
    };
    let answers = answers.into_iter().zip(offsets).map(answer).collect();
    Ok(ApiResponse::ok(wire::RenewOutcome::of(answers, received)))
}

/// Asks the backend whether the claim holds. (It renews, which never shortens.)
pub(crate) async fn verify(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimBody>,
) -> Result<wire::ClaimStatus> {
    let about = ClaimRequest::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().renew_single(&about.claim).await?))
}

pub(crate) async fn downgrade(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimBody>,
) -> Result<wire::ClaimStatus> {
    let about = ClaimRequest::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().downgrade(&about.claim).await?))
}

pub(crate) async fn shorten(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ShortenBody>,
) -> Result<wire::ClaimStatus> {
    let ttl = Duration::from_millis(request.ttl_ms);
    let about = ClaimRequest::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().shorten(&about.claim, ttl).await?))
}

/// A request about one claim.
struct ClaimRequest {
    /// When it was received: before anything was sent to the backend.
    received: Moment,
    claim: Arc<Claim>,
    /// What is added to the backend's tokens.
    offset: u64,
}

impl ClaimRequest {
    async fn new(
        service: &Service,
        caller: &Caller,
        claim: wire::Claim,
    ) -> std::result::Result<Self, ErrorResponse> {
        let received = service.driver().clock().now();
        Self::of(service, received, service.claim(caller, claim)?).await
    }

    async fn of(
        service: &Service,
        received: Moment,
        claim: Arc<Claim>,
    ) -> std::result::Result<Self, ErrorResponse> {
        // Nothing was done for the claim yet.
        let offset =
            service.token_offset(&claim.key.namespace).await.map_err(BatchError::refused)?;
        Ok(Self { received, claim, offset })
    }

    /// The answer, where the driver answers as it does to a renewal.
    fn became(&self, renewal: Renewal) -> ApiResponse<wire::ClaimStatus> {
        with_status(wire::ClaimStatus::of_renewal(renewed(renewal, self.offset), self.received))
    }
}

fn acquired(answer: Acquisition, offset: u64) -> Acquisition {
    match answer {
        Acquisition::Granted(grant) => Acquisition::Granted(with_offset(grant, offset)),
        other => other,
    }
}

fn renewed(answer: Renewal, offset: u64) -> Renewal {
    match answer {
        Renewal::Holds(grant) => Renewal::Holds(with_offset(grant, offset)),
        other => other,
    }
}

/// The state with its status.
fn with_status(state: wire::ClaimStatus) -> ApiResponse<wire::ClaimStatus> {
    let status = match &state {
        wire::ClaimStatus::Held(_) => StatusCode::OK,
        wire::ClaimStatus::Waiting { .. } => StatusCode::ACCEPTED,
        wire::ClaimStatus::Busy { .. } => StatusCode::CONFLICT,
        wire::ClaimStatus::Ended(_) => StatusCode::GONE,
    };
    ApiResponse(status, state)
}

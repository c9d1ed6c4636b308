//! Requests about claims.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, Attempted, Patience, Renewal, Renewed, Reply as DriverReply, Step,
};
use lockkit_core::{Claim, Error};
use lockkit_http::wire::{self, Code};

use crate::body::{Answer, Body, Refusal, log};
use crate::caller::{Caller, Who};
use crate::places::Place;
use crate::service::{Service, based, unbased};

type Result<T> = std::result::Result<Answer<T>, Refusal>;

pub(crate) async fn acquire(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Acquire>,
) -> Result<wire::State> {
    let received = service.driver().clock().now();
    let claim = to_acquire(service.claim(&caller, request.claim)?, request.resizable)?;
    let about = About::of(&service, received, claim).await?;
    let patience = patience(request.no_wait);
    let place = place(&service, &caller, request.wait_ms)?;
    let step = Step::Acquire { claim: about.claim.clone(), patience };
    let Attempted { result: DriverReply::Acquired(answer), ambiguous } =
        service.carry_one(step).await?
    else {
        return Err(service.driver().no_reply().into());
    };
    let queued = matches!(answer, Acquisition::Queued { .. });
    let answer = Attempted::after(ambiguous, acquired(answer, about.base));
    let state = wire::State::of_acquisition(answer, about.received);
    match place {
        Some(place) if queued => turn(&service, &about, place, request.wait_ms, state).await,
        _ => Ok(stands(state)),
    }
}

pub(crate) async fn wait(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Wait>,
) -> Result<wire::State> {
    let about = About::new(&service, &caller, request.claim).await?;
    let place = place(&service, &caller, request.wait_ms)?;
    let renewal = service.driver().renew_single(&about.claim).await?;
    let queued = matches!(renewal, Renewal::Waits { .. });
    let state = wire::State::of_renewal(renewed(renewal, about.base), about.received);
    match place {
        Some(place) if queued => turn(&service, &about, place, request.wait_ms, state).await,
        _ => Ok(stands(state)),
    }
}

/// A place to wait at, for a request that may wait: taken before the claim is put in line, so that
/// a refusal has done nothing.
fn place(
    service: &Service,
    caller: &Caller,
    wait_ms: u64,
) -> std::result::Result<Option<Place<Who>>, Refusal> {
    (wait_ms > 0).then(|| service.place(caller)).transpose()
}

/// Waits for the turn of a claim that is in line: `state`.
///
/// The backend put it there, or renewed it, after the request was received. So a lease that it was
/// given with its turn counts from later than that, and may be said to count from there.
async fn turn(
    service: &Service,
    about: &About,
    place: Place<Who>,
    wait_ms: u64,
    state: wire::State,
) -> Result<wire::State> {
    let About { received, claim, base } = about;
    // Nothing renews it meanwhile: the client does, with its next request.
    let half = u64::try_from(claim.wait_ttl.as_millis() / 2).unwrap_or(u64::MAX);
    let heard = service.wait(&place, wait_ms.min(half), service.driver().granted(claim)).await;
    Ok(stands(match heard {
        Some(Ok(grant)) => wire::State::Held(wire::Grant::of(&based(grant, *base), *received, 0)),
        Some(Err(Error::Lost { reason })) => wire::State::of_loss(reason),
        Some(Err(error)) => return Err(error.into()),
        None => state,
    }))
}

pub(crate) async fn release(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimOnly>,
) -> Result<wire::Released> {
    let claim = service.claim(&caller, request.claim)?;
    match service.carry_one(Step::Release { claim }).await? {
        Attempted { result: DriverReply::Released(answer), ambiguous } => {
            Ok(Answer::ok(wire::Released::of(Attempted::after(ambiguous, answer))))
        }
        _ => Err(service.driver().no_reply().into()),
    }
}

pub(crate) async fn carry(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Carry>,
) -> Result<wire::Replies> {
    let received = service.driver().clock().now();
    let most = service.driver().capabilities().flights.steps.max(1);
    if request.steps.len() > most {
        let message = format!("a request carries {most} steps at most here: send several");
        return Err(Error::Config(message).into());
    }
    let mut steps = Vec::with_capacity(request.steps.len());
    let mut bases = Vec::with_capacity(request.steps.len());
    // Of each step that is refused: the others are carried without it.
    let mut refused = Vec::with_capacity(request.steps.len());
    for step in request.steps {
        let step = match step {
            wire::Step::Acquire { claim, no_wait, resizable } => {
                let patience = patience(no_wait);
                to_acquire(service.claim(&caller, claim)?, resizable)
                    .map(|claim| Step::Acquire { claim, patience })
            }
            wire::Step::Release { claim } => {
                Ok(Step::Release { claim: service.claim(&caller, claim)? })
            }
        };
        refused.push(step.map(|step| steps.push(step)).err());
    }
    for step in &steps {
        bases.push(service.base(&step.claim().key.namespace).await?);
    }
    let replies = service.carry(&steps).await;
    let with_base = |(reply, base): (std::result::Result<Attempted<DriverReply>, Error>, u64)| {
        let reply = reply.inspect_err(log).map(|answered| {
            answered.map(|reply| match reply {
                DriverReply::Acquired(it) => DriverReply::Acquired(acquired(it, base)),
                released => released,
            })
        });
        wire::Reply::of(reply, received)
    };
    let mut carried = replies.into_iter().zip(bases).map(with_base);
    let reply = |refused: Option<Error>| match refused {
        Some(error) => Some(wire::Reply::of(Err(error), received)),
        None => carried.next(),
    };
    let replies = refused.into_iter().filter_map(reply).collect();
    Ok(Answer::ok(wire::Replies { replies }))
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
    Body(request): Body<wire::Renew>,
) -> Result<wire::Answers> {
    let received = service.driver().clock().now();
    let mut claims = Vec::with_capacity(request.claims.len());
    let mut bases = Vec::with_capacity(request.claims.len());
    for claim in request.claims {
        let claim = service.claim(&caller, claim)?;
        bases.push(service.base(&claim.key.namespace).await?);
        claims.push(claim);
    }
    let answers = service.driver().renew_with_evidence(&claims).await?;
    let answer = |(answer, base): (std::result::Result<Renewed, Error>, u64)| {
        let based = |it: Renewed| Renewed { renewal: renewed(it.renewal, base), ..it };
        answer.inspect_err(log).map(based)
    };
    let answers = answers.into_iter().zip(bases).map(answer).collect();
    Ok(Answer::ok(wire::Answers::of(answers, received)))
}

/// Asks the backend whether the claim holds. (It renews, which never shortens.)
pub(crate) async fn verify(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimOnly>,
) -> Result<wire::State> {
    let about = About::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().renew_single(&about.claim).await?))
}

pub(crate) async fn downgrade(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ClaimOnly>,
) -> Result<wire::State> {
    let about = About::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().downgrade(&about.claim).await?))
}

pub(crate) async fn shorten(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Shorten>,
) -> Result<wire::State> {
    let ttl = Duration::from_millis(request.ttl_ms);
    let about = About::new(&service, &caller, request.claim).await?;
    Ok(about.became(service.driver().shorten(&about.claim, ttl).await?))
}

pub(crate) async fn raise(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Raise>,
) -> Result<wire::State> {
    let about = About::new(&service, &caller, request.claim).await?;
    let token = unbased(request.token, about.base);
    if token.is_some_and(|token| token.get() > HIGHEST_RAISE) {
        let detail = format!("a token is raised to {HIGHEST_RAISE} at most");
        return Err(Refusal::new(Code::Invalid, detail));
    }
    // One below the base is no more than any token here.
    Ok(about.became(match token {
        Some(token) => service.driver().raise(&about.claim, token).await?,
        None => service.driver().renew_single(&about.claim).await?,
    }))
}

/// The highest token of the backend that a caller can ask for: the tokens of a whole backend may
/// come from one counter, and one caller must not use them up for all. As many follow below 2^63.
const HIGHEST_RAISE: u64 = 1 << 62;

/// A request about one claim.
struct About {
    /// When it was received: before anything was sent to the backend.
    received: Moment,
    claim: Arc<Claim>,
    /// What is added to the backend's tokens.
    base: u64,
}

impl About {
    async fn new(
        service: &Service,
        caller: &Caller,
        claim: wire::Claim,
    ) -> std::result::Result<Self, Refusal> {
        let received = service.driver().clock().now();
        Self::of(service, received, service.claim(caller, claim)?).await
    }

    async fn of(
        service: &Service,
        received: Moment,
        claim: Arc<Claim>,
    ) -> std::result::Result<Self, Refusal> {
        let base = service.base(&claim.key.namespace).await?;
        Ok(Self { received, claim, base })
    }

    /// The answer, where the driver answers as it does to a renewal.
    fn became(&self, renewal: Renewal) -> Answer<wire::State> {
        stands(wire::State::of_renewal(renewed(renewal, self.base), self.received))
    }
}

fn acquired(answer: Acquisition, base: u64) -> Acquisition {
    match answer {
        Acquisition::Granted(grant) => Acquisition::Granted(based(grant, base)),
        other => other,
    }
}

fn renewed(answer: Renewal, base: u64) -> Renewal {
    match answer {
        Renewal::Holds(grant) => Renewal::Holds(based(grant, base)),
        other => other,
    }
}

/// The state with its status.
fn stands(state: wire::State) -> Answer<wire::State> {
    let status = match &state {
        wire::State::Held(_) => StatusCode::OK,
        wire::State::Waiting { .. } => StatusCode::ACCEPTED,
        wire::State::Busy { .. } => StatusCode::CONFLICT,
        wire::State::Ended(_) => StatusCode::GONE,
    };
    Answer(status, state)
}

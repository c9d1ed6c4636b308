//! A tower layer that runs each request under a distributed lock.
//!
//! ```
//! use http::{Request, Response};
//! use lockkit_core::{HeldLock, LockManager, MemoryDriver};
//! use lockkit_tower::LockLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let locks = LockManager::new(MemoryDriver::new());
//! let pay = ServiceBuilder::new()
//!     // One request at a time for each path, in the whole fleet.
//!     .layer(LockLayer::new(move |request| Some(locks.mutex(request.uri.path()))))
//!     .service(service_fn(async |request: Request<String>| {
//!         let lock = request.extensions().get::<HeldLock>().expect("the layer puts it there");
//!         let token = lock.token()?; // give it along with every write
//!         Ok::<_, lockkit_core::Error>(Response::new(format!("paid, with token {token}")))
//!     }));
//! let request = Request::post("/invoices/42/pay").body(String::new()).unwrap();
//! assert_eq!(pay.oneshot(request).await.unwrap().status(), 200);
//! # }
//! ```
//!
//! # Behavior
//! - **The lock** is the one that the layer's function makes of a request, with the options that it
//!   sets; `None` runs the request without one.
//! - **A lock that is taken** is answered with 409 (Conflict), at once, or after the
//!   [wait](LockLayer::wait) that was allowed.
//! - **The handler** finds the [`HeldLock`] in the request's extensions.
//! - **When the lock is lost**, the handler is dropped at its next await point, and the answer is 503
//!   (Service Unavailable); so it is when the loss shows only at the release. Part of its work may be
//!   done: writes need the token, or a fence.
//! - **The lock is released** before the answer is returned. A body that is streamed is sent without
//!   the lock.
//! - **A client that hangs up** drops the request, and the lock is released in the background.
//! - Answers of the layer have an empty body, and a [`Rejection`] in their extensions, for a layer further
//!   out that writes one.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
#[cfg(doc)]
use lockkit_core::HeldLock;
use lockkit_core::sync::Mutex;
use lockkit_core::{Error, LossReason};
use tower_layer::Layer;
use tower_service::Service;

/// Runs each request under the lock that a function makes of it. See the [crate](self).
#[derive(Clone)]
pub struct LockLayer<F> {
    lock_of: F,
    wait: Duration,
}

impl<F> LockLayer<F>
where
    F: Fn(&Parts) -> Option<Mutex>,
{
    /// Locks what the function makes of a request; when that is taken, the answer is 409, at once.
    pub fn new(lock_of: F) -> Self {
        Self { lock_of, wait: Duration::ZERO }
    }

    /// Waits for a lock that is taken, but not longer than this. Those who wait come first, in their
    /// order.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }
}

impl<S, F: Clone> Layer<S> for LockLayer<F> {
    type Service = Locked<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Locked { inner, layer: self.clone() }
    }
}

impl<F> fmt::Debug for LockLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// The service that a [`LockLayer`] makes of another.
#[derive(Clone, Debug)]
pub struct Locked<S, F> {
    inner: S,
    layer: LockLayer<F>,
}

impl<S, F, B, R> Service<Request<B>> for Locked<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    F: Fn(&Parts) -> Option<Mutex>,
    B: Send + 'static,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that said that it is ready serves this request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let (parts, body) = request.into_parts();
        let lock = (self.layer.lock_of)(&parts);
        let request = Request::from_parts(parts, body);
        let wait = self.layer.wait;
        Box::pin(async move {
            match lock {
                Some(lock) => under(lock, wait, inner, request).await,
                None => inner.call(request).await,
            }
        })
    }
}

async fn under<S, B, R>(
    lock: Mutex,
    wait: Duration,
    mut inner: S,
    mut request: Request<B>,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    let guard = match lock.try_lock_for(wait).await {
        Ok(Some(guard)) => guard,
        Ok(None) => return Ok(Rejection::Busy.response()),
        Err(error) => return Ok(Rejection::of(error).response()),
    };
    request.extensions_mut().insert(guard.lease());
    let answer = tokio::select! {
        biased;
        reason = guard.lost() => Ok(Rejection::Lost(reason).response()),
        answer = inner.call(request) => answer,
    };
    match guard.release().await {
        Err(error @ Error::Lost { .. }) if answer.is_ok() => Ok(Rejection::of(error).response()),
        // The request was served while the lock was held; the release goes on in the background.
        _ => answer,
    }
}

/// Why the layer answered instead of the handler; in the extensions of its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// The lock was taken for as long as the layer may wait: 409.
    Busy,
    /// The lock was lost while the handler worked: 503.
    Lost(LossReason),
    /// The lock could not be asked for: 400 for a name that cannot be one, 503 when the backend failed
    /// or the manager is shut down, otherwise 500.
    Failed(Error),
}

impl Rejection {
    fn of(error: Error) -> Self {
        match error {
            Error::Lost { reason, .. } => Self::Lost(reason),
            error => Self::Failed(error),
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Busy => StatusCode::CONFLICT,
            Self::Failed(Error::InvalidName { .. }) => StatusCode::BAD_REQUEST,
            Self::Lost(_) | Self::Failed(Error::Backend { .. } | Error::Closed) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn response<R: Default>(self) -> Response<R> {
        let mut response = Response::new(R::default());
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self);
        response
    }
}

//! What a client of a locked service gets: its turn, 409, or 503.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use lockkit_core::testing::{self, TestControl};
use lockkit_core::{Error, HeldLock, LockManager, LossReason};
use lockkit_tower::{LockLayer, Rejection};
use tokio::sync::Notify;
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

type Client = BoxCloneSyncService<Request<()>, Response<String>, Error>;

/// A service whose handler waits for a word before it answers with its token.
struct Service {
    client: Client,
    control: TestControl,
    begun: Arc<AtomicUsize>,
    entered: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Service {
    fn new(wait: Duration) -> Self {
        let (locks, control) = testing::locks();
        let (begun, entered, go_on): (Arc<AtomicUsize>, Arc<Notify>, Arc<Notify>) =
            Default::default();
        let (count, enter, go) = (begun.clone(), entered.clone(), go_on.clone());
        let handler = service_fn(move |request: Request<()>| {
            let (count, enter, go) = (count.clone(), enter.clone(), go.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                let lease = request.extensions().get::<HeldLock>().cloned();
                enter.notify_one();
                go.notified().await;
                let token = lease.map(|lease| lease.token()).transpose()?;
                Ok(Response::new(format!("{token:?}")))
            }
        });
        let layer = LockLayer::new(move |request| lock_of(&locks, request)).wait(wait);
        let client = ServiceBuilder::new().layer(layer).service(handler);
        Self { client: BoxCloneSyncService::new(client), control, begun, entered, go_on }
    }

    fn send(&self, path: &str) -> tokio::task::JoinHandle<Response<String>> {
        let request = Request::get(path).body(()).unwrap();
        let client = self.client.clone();
        tokio::spawn(async move { client.oneshot(request).await.unwrap() })
    }
}

fn lock_of(
    locks: &LockManager,
    request: &http::request::Parts,
) -> Option<lockkit_core::sync::Mutex> {
    match request.uri.path() {
        "/open" => None,
        "/unnamed" => Some(locks.mutex("")),
        path => Some(locks.mutex(path)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_runs_with_the_lease_of_its_lock_and_releases_it() {
    let service = Service::new(Duration::ZERO);
    service.go_on.notify_one();
    let answer = service.send("/a").await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.body().starts_with("Some(Token("), "{}", answer.body());
    assert!(service.control.others().mutex("/a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_taken_is_409_and_the_handler_is_not_called() {
    let service = Service::new(Duration::ZERO);
    let _held = service.control.others().mutex("/a").lock().await.unwrap();
    let answer = service.send("/a").await.unwrap();
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    assert!(matches!(answer.extensions().get(), Some(Rejection::Busy)));
    service.go_on.notify_one();
    assert_eq!(service.send("/b").await.unwrap().status(), StatusCode::OK, "another lock");
    assert_eq!(service.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_its_turn_as_long_as_it_may() {
    let service = Service::new(3 * SECOND);
    let first = service.send("/a");
    service.entered.notified().await;
    let second = service.send("/a");
    tokio::time::sleep(SECOND).await;
    assert_eq!(service.begun.load(Ordering::SeqCst), 1, "one at a time");
    service.go_on.notify_one();
    assert_eq!(first.await.unwrap().status(), StatusCode::OK);
    service.go_on.notify_one();
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
    let _held = service.control.others().mutex("/a").lock().await.unwrap();
    assert_eq!(service.send("/a").await.unwrap().status(), StatusCode::CONFLICT);
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_lock_is_lost_is_stopped_and_answered_with_503() {
    let service = Service::new(Duration::ZERO);
    let request = service.send("/a");
    service.entered.notified().await;
    assert!(service.control.lose("/a", LossReason::Expired).await);
    let answer = request.await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(answer.extensions().get(), Some(Rejection::Lost(LossReason::Expired))));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_leaves_the_lock_free() {
    let service = Service::new(Duration::ZERO);
    let request = service.send("/a");
    service.entered.notified().await;
    request.abort();
    let freed = service.control.others().mutex("/a").try_lock_for(SECOND).await.unwrap();
    assert!(freed.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_locked_is_refused_and_what_has_no_lock_is_served() {
    let service = Service::new(Duration::ZERO);
    assert_eq!(service.send("/unnamed").await.unwrap().status(), StatusCode::BAD_REQUEST);
    service.control.refuse_next("/a", Error::retryable("test", "a cut connection"));
    let answer = service.send("/a").await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    service.go_on.notify_one();
    let answer = service.send("/open").await.unwrap();
    assert_eq!((answer.status(), answer.body().as_str()), (StatusCode::OK, "None"));
}

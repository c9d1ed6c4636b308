//! What renewals tell of the backend's servers is passed on to clients, and nothing of the service's own.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Evidence, LockDriver, Patience};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_http::HttpDriver;
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::RedisDriver;
use lockkit_server::Service;

use crate::served::Served;

async fn taken(driver: &dyn LockDriver, name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let (ttl, me) = (Duration::from_secs(60), Arc::new(ClientIdentity::of_this_process()));
    let claim = Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me));
    driver.acquire(&claim, Patience::Try).await.unwrap();
    claim
}

/// What is told with each of these claims.
async fn told(driver: &dyn LockDriver, claims: &[Arc<Claim>]) -> Vec<Option<Arc<Evidence>>> {
    let answers = driver.renew_with_evidence(claims).await.unwrap();
    answers.into_iter().map(|answer| answer.unwrap().evidence).collect()
}

#[tokio::test]
async fn the_backends_evidence_is_passed_on() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let backend: Arc<dyn LockDriver> = Arc::new(RedisDriver::connect(&server.url()).await.unwrap());
    let served = Served::of(Service::new(backend.clone()).unwrap(), None).await;
    let client = HttpDriver::connect(&format!("http://{}", served.address)).await.unwrap();
    let claims = [taken(&client, "a").await, taken(&client, "b").await];
    let before = told(&*backend, &claims).await.remove(0).unwrap();
    let passed = told(&client, &claims).await;
    let after = told(&*backend, &claims).await.remove(0).unwrap();
    for passed in passed {
        let passed = passed.expect("it is passed on");
        assert_eq!((&passed.run, passed.connection), (&before.run, before.connection));
        assert!(before.time <= passed.time && passed.time <= after.time, "{passed:?}");
    }
}

#[tokio::test]
async fn of_a_backend_that_tells_nothing_nothing_is_told() {
    let backend = Arc::new(MemoryDriver::new());
    let served = Served::of(Service::new(backend).unwrap(), None).await;
    let client = HttpDriver::connect(&format!("http://{}", served.address)).await.unwrap();
    let claim = taken(&client, "a").await;
    assert_eq!(told(&client, &[claim]).await, [None]);
}

//! With which neighbours a namespace shares its locks is stored in it.

use std::time::Duration;

use lockkit_core::state::Severity;
use lockkit_core::{Error, LockManager, Settings, Space};
use lockkit_lab::raw::resp::RespReply;
use lockkit_redis::{RedisDriver, RedisNeighbours, RedisOptions};

use super::{Place, soon};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_process_without_the_setting_or_with_another_is_refused_and_told_what_to_do() {
    let place = Place::new("set-nx").await;
    let plain = format!("{}?timeout=30s", place.server.url());
    // A namespace that no process has shared is as ever.
    let before = place.client_of(&plain, TTL).await;
    before.mutex("a").lock().await.unwrap().release().await.unwrap();
    let key = format!("lockkit:neighbours:{}", place.namespace);
    assert_eq!(place.ask(&["EXISTS", &key]).await, RespReply::Number(0));
    let ours = place.locks(TTL).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    assert_eq!(place.ask(&["GET", &key]).await.text(), "set-nx");
    for url in [plain.clone(), place.url("redisson")] {
        let locks = place.client_of(&url, TTL).await;
        for refused in [
            locks.mutex("b").lock().await.map(drop),
            locks.mutex("b").try_lock().await.map(drop),
            locks.inspect(Space::Lock, "a").await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            let error = error.to_string();
            for part in [&*place.namespace, "connect with ?neighbours=set-nx", &*key] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }
    guard.release().await.unwrap();
    // It is the namespace's, and no other's.
    let other = Settings::default().namespace(format!("{}-other", place.namespace));
    let driver = RedisDriver::connect(&plain).await.unwrap();
    let other = LockManager::with(std::sync::Arc::new(driver), other).unwrap();
    other.mutex("a").lock().await.unwrap().release().await.unwrap();
    // The way back.
    place.ask(&["DEL", &key]).await;
    let after = place.client_of(&plain, TTL).await;
    after.mutex("a").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_setting_that_is_no_text_is_an_error_that_names_its_key() {
    let place = Place::new("set-nx").await;
    let key = format!("lockkit:neighbours:{}", place.namespace);
    place.ask(&["HSET", &key, "a", "b"]).await;
    let plain = place.client_of(&format!("{}?timeout=30s", place.server.url()), TTL).await;
    let error = plain.mutex("a").lock().await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn a_cluster_is_refused_before_anything_is_sent() {
    let nowhere = "redis+cluster://127.0.0.1:1?neighbours=set-nx";
    for refused in [
        RedisDriver::check_url(nowhere),
        RedisDriver::connect(nowhere).await.map(drop),
        RedisOptions::default()
            .neighbours(RedisNeighbours::SetNx)
            .connect("redis+cluster://127.0.0.1:1")
            .await
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(error.to_string().contains("cluster"), "{error}");
    }
}

/// What `lockkit doctor` calls.
#[tokio::test]
async fn a_check_finds_a_neighbour_without_an_expiry() {
    let place = Place::new("set-nx").await;
    let (ours, other) = (place.locks(TTL).await, place.locks(TTL).await);
    place.ask(&["SET", &place.name, "redis-py without a timeout"]).await;
    let mutex = ours.mutex(&place.name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    soon("the wait", async {
        while ours.neighbour_wait(&place.name).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let wait = ours.neighbour_wait(&place.name).unwrap();
    assert_eq!(wait.remaining, None);
    let of_ours = |findings: &[lockkit_core::state::Finding]| {
        findings.iter().filter(|it| it.what.contains(&place.name)).cloned().collect::<Vec<_>>()
    };
    let found = of_ours(&other.probe(&ours).await.unwrap());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Problem);
    assert!(found[0].what.contains("no expiry"), "{found:?}");
    place.ask(&["PEXPIRE", &place.name, "60000"]).await;
    assert_eq!(of_ours(&other.probe(&ours).await.unwrap()), []);
    place.ask(&["DEL", &place.name]).await;
    let guard = soon("our turn", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

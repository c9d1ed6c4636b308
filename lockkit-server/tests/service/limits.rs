//! What the service does not take on, and how it stops.

use lockkit_server::{Limits, ServiceSettings};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::served::{Served, id};

fn limited(limits: Limits) -> ServiceSettings {
    ServiceSettings::new().limits(limits)
}

/// Waits until so many requests wait.
async fn waiting(served: &Served, number: usize) {
    let line = format!("lockkit_http_waiting_requests{{backend=\"memory\"}} {number}\n");
    let mut client = served.client().await;
    while !client.get("/metrics", "").await.body.contains(&line) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_not_wait_is_refused_before_anything_is_done() {
    let served = Served::new(limited(Limits { waiting: 1, ..Limits::default() })).await;
    let claim = |number| json!({"id": id(number), "name": "a"});
    served.ask(None, "/v1/acquire", json!({"claim": claim(1)})).await;
    let mut first = served.client().await;
    let wait = tokio::spawn(async move {
        first.post(None, "/v1/acquire", &json!({"claim": claim(2), "wait_ms": 25_000})).await
    });
    waiting(&served, 1).await;
    let body = json!({"claim": claim(3), "wait_ms": 25_000});
    let refused = served.ask(None, "/v1/acquire", body).await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("too_many")));
    assert!(refused.head.contains("\r\nretry-after: 1\r\n"), "{}", refused.head);
    let line = served.ask(None, "/v1/inspect", json!({"name": "a"})).await.json();
    assert_eq!(line["queue"].as_array().unwrap().len(), 2, "the third is not in the queue");
    served.ask(None, "/v1/release", json!({"claim": claim(1)})).await;
    assert_eq!(wait.await.unwrap().json()["state"], "held");
    waiting(&served, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_answers_those_that_wait_and_releases_nothing() {
    let served = Served::new(ServiceSettings::new()).await;
    let claim = |number| json!({"id": id(number), "name": "a", "ttl_ms": 60_000});
    served.ask(None, "/v1/acquire", json!({"claim": claim(1)})).await;
    let mut idle = served.client().await;
    assert_eq!(idle.get("/healthz", "").await.status, 200);
    let mut waits = served.client().await;
    let wait = tokio::spawn(async move {
        waits.post(None, "/v1/acquire", &json!({"claim": claim(2), "wait_ms": 25_000})).await
    });
    waiting(&served, 1).await;
    let (service, address) = (served.service.clone(), served.address.clone());
    served.stop().await.unwrap().unwrap();
    let told = wait.await.unwrap();
    assert_eq!((told.status, &told.json()["state"]), (202, &json!("waiting")));
    assert_eq!(idle.0.read(&mut [0; 1]).await.unwrap(), 0, "an idle connection is closed");
    tokio::net::TcpStream::connect(address).await.expect_err("nobody listens");
    let again = Served::of(service, None).await;
    let line = again.ask(None, "/v1/inspect", json!({"name": "a"})).await.json();
    assert_eq!(line["queue"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_heads_that_are_too_long_are_refused() {
    let served = Served::new(limited(Limits { body: 1_000, ..Limits::default() })).await;
    let long = "x".repeat(1_000);
    let refused = served.ask(None, "/v1/inspect", json!({"name": long})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (413, &json!("too_large")));
    let header = format!("x: {}\r\n", "x".repeat(20_000));
    assert_eq!(served.client().await.get("/healthz", &header).await.status, 431);
    let many = "x: y\r\n".repeat(100);
    assert_eq!(served.client().await.get("/healthz", &many).await.status, 431);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_beyond_the_limit_is_served_once_another_one_ends() {
    let served = Served::new(limited(Limits { connections: 2, ..Limits::default() })).await;
    let mut first = served.client().await;
    assert_eq!(first.get("/healthz", "").await.status, 200);
    let mut second = served.client().await;
    assert_eq!(second.get("/healthz", "").await.status, 200);
    let mut third = served.client().await;
    third.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let moment = std::time::Duration::from_millis(100);
    tokio::time::timeout(moment, third.answer()).await.expect_err("it is not accepted yet");
    drop(first);
    assert_eq!(third.answer().await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_has_too_many_connections_is_given_no_more_until_one_ends() {
    let limits = Limits { connections_per_peer: 2, ..Limits::default() };
    let served = Served::new(limited(limits)).await;
    let mut first = served.client().await;
    assert_eq!(first.get("/healthz", "").await.status, 200);
    let mut second = served.client().await;
    assert_eq!(second.get("/healthz", "").await.status, 200);
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut third = served.client().await;
    third.send(request).await;
    assert!(third.answer().await.is_none(), "it is closed");
    drop(first);
    // The server sees by and by that the first is gone.
    loop {
        let mut next = served.client().await;
        next.send(request).await;
        match next.answer().await {
            Some(answer) => break assert_eq!(answer.status, 200),
            None => tokio::task::yield_now().await,
        }
    }
    assert_eq!(second.get("/healthz", "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_paths_and_outcomes_and_no_names() {
    let served = Served::new(ServiceSettings::new()).await;
    let claim = json!({"id": id(1), "name": "secret-name", "namespace": "secret-namespace"});
    for _ in 0..3 {
        served.ask(None, "/v1/acquire", json!({"claim": claim})).await;
    }
    let mut other = claim.clone();
    other["id"] = id(2).into();
    served.ask(None, "/v1/acquire", json!({"claim": other, "no_wait": true})).await;
    served.ask(None, "/secret-path", json!({})).await;
    let page = served.client().await.get("/metrics", "").await.body;
    let count = |path: &str, outcome: &str| {
        format!("{{path=\"{path}\",backend=\"memory\",outcome=\"{outcome}\"}}")
    };
    for line in [
        format!("lockkit_http_requests_total{} 3\n", count("/v1/acquire", "ok")),
        format!("lockkit_http_requests_total{} 1\n", count("/v1/acquire", "busy")),
        format!("lockkit_http_requests_total{} 1\n", count("other", "not_found")),
        format!("lockkit_http_request_seconds_total{} ", count("/v1/acquire", "ok")),
    ] {
        assert!(page.contains(&line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("secret"), "{page}");
}

//! Requests for permits that can never be had.

use std::sync::Arc;

use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use lockkit_server::Service;
use serde_json::{Value, json};

use crate::served::{Served, id};

/// A service over Redis, which would put such a claim in line; embedded backends refuse it by
/// themselves.
struct Pool {
    served: Served,
    namespace: String,
}

impl Pool {
    async fn new() -> Self {
        let server = SharedServer::server(ServerKind::Redis).await.unwrap();
        let driver = RedisDriver::connect(server.url()).await.unwrap();
        let served = Served::of(Service::new(Arc::new(driver)).unwrap(), None).await;
        // Its own: the server is shared.
        Self { served, namespace: format!("permits-{}", rand::random::<u64>()) }
    }

    fn claim(&self, number: u128, permits: u32, limit: u32) -> Value {
        json!({
            "id": id(number), "namespace": self.namespace, "name": "s",
            "mode": "permits", "permits": permits, "limit": limit,
        })
    }

    async fn ask(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self.served.ask(None, path, body).await;
        (answer.status, answer.json())
    }

    async fn resize(&self, limit: u32, if_unset: bool) {
        let key = json!({"namespace": self.namespace, "name": "s", "space": "semaphore"});
        let body = json!({"key": key, "limit": limit, "if_unset": if_unset});
        assert_eq!(self.ask("/v1/resize", body).await, (200, json!({"limit": limit})));
    }
}

#[tokio::test]
async fn more_permits_than_the_limit_are_refused_and_block_nobody() {
    let pool = Pool::new().await;
    for (permits, limit) in [(9, 3), (1, 0)] {
        for no_wait in [false, true] {
            let body = json!({"claim": pool.claim(1, permits, limit), "no_wait": no_wait});
            let (status, refused) = pool.ask("/v1/acquire", body).await;
            let told = (status, &refused["code"]);
            assert_eq!(told, (400, &json!("invalid")), "{permits} of {limit}, no_wait {no_wait}");
        }
        let other = json!({"claim": pool.claim(2, 1, 3)});
        let (_, held) = pool.ask("/v1/acquire", other.clone()).await;
        assert_eq!(held["state"], "held", "it stands behind nobody: {held}");
        pool.ask("/v1/release", other).await;
    }
}

#[tokio::test]
async fn of_a_batch_only_the_acquire_of_too_many_permits_is_refused() {
    let pool = Pool::new().await;
    let batch = json!({
        "releases": [pool.claim(9, 1, 3)],
        "acquires": [
            {"claim": pool.claim(1, 9, 3)},
            {"claim": pool.claim(2, 2, 3)},
            {"claim": pool.claim(3, 1, 0), "no_wait": true},
            {"claim": pool.claim(4, 1, 3), "no_wait": true},
        ],
    });
    let (status, answer) = pool.ask("/v1/batch", batch).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["released"][0]["found"], "nothing");
    let acquired = answer["acquired"].as_array().unwrap();
    let codes: Vec<_> = acquired.iter().map(|answer| answer["code"].as_str()).collect();
    assert_eq!(codes, [Some("invalid"), None, Some("invalid"), None], "{answer}");
    let held = json!("held");
    assert_eq!((&acquired[1]["state"], &acquired[3]["state"]), (&held, &held));
}

#[tokio::test]
async fn a_resizable_semaphore_takes_the_request_and_no_other_verb_minds() {
    let pool = Pool::new().await;
    pool.resize(3, true).await;
    let body = json!({"claim": pool.claim(1, 9, 3), "resizable": true});
    let (status, waits) = pool.ask("/v1/acquire", body).await;
    assert_eq!((status, &waits["state"]), (202, &json!("waiting")), "{waits}");
    let only = json!({"claim": pool.claim(1, 9, 3)});
    for path in ["/v1/wait", "/v1/verify"] {
        assert_eq!(pool.ask(path, only.clone()).await.1["state"], "waiting", "{path}");
    }
    let claims = json!({"claims": [pool.claim(1, 9, 3)]});
    let (_, renewed) = pool.ask("/v1/renew", claims).await;
    assert_eq!(renewed["answers"][0]["state"], "waiting", "{renewed}");
    pool.resize(9, false).await;
    assert_eq!(pool.ask("/v1/wait", only.clone()).await.1["state"], "held");
    assert_eq!(pool.ask("/v1/release", only).await.1["found"], "claim");
    let batch = json!({"acquires": [{"claim": pool.claim(2, 10, 9), "resizable": true}]});
    let (_, answer) = pool.ask("/v1/batch", batch).await;
    assert_eq!(answer["acquired"][0]["state"], "waiting", "{answer}");
}

//! What NATS does as a store: swaps, lost answers, logins; and what is refused before a lock is taken.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use lockkit_core::Error;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::raw::nats::ask;
use lockkit_lab::{Group, Proxy, Server, ServerKind, SharedServer, TestCertificates};
use lockkit_store::{
    DocumentVersion, NatsStore, PutOutcome, Store, StoreDriver, StoreError, probe,
};
use serde_json::json;

use crate::contract::{self, stored, text};

/// A store in a bucket of its own, on the server that tests share.
async fn store(bucket: &str) -> (NatsStore, SharedServer) {
    let server = SharedServer::server(ServerKind::Nats).await.unwrap();
    let store = NatsStore::connect(&url(&server, bucket)).await.unwrap();
    store.examine().await.unwrap();
    (store, server)
}

fn url(server: &SharedServer, bucket: &str) -> String {
    format!("nats://{}/{bucket}", server.addr())
}

async fn is_conflict(store: &NatsStore, key: &str, at: Option<&DocumentVersion>) {
    let put = store.put_if(key, b"never", at).await;
    assert!(matches!(put, PutOutcome::Conflict(_)), "{put:?}");
}

async fn permanent(url: &str) -> String {
    let error = StoreDriver::connect_url(url).await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    error.to_string()
}

mod on_nats {
    use super::*;

    #[tokio::test]
    async fn documents_are_created_swapped_and_created_again_after_a_purge() {
        let (store, _server) = store("contract").await;
        contract::writes_are_conditional(&store).await;
        let first = stored(&store, "s/a", "one").await;
        store.remove("s/a").await.unwrap();
        let second = stored(&store, "s/a", "two").await;
        assert!(second.order() > first.order(), "{second:?} after {first:?}");
    }

    #[tokio::test]
    async fn of_many_racing_swaps_one_wins() {
        let (store, _server) = store("races").await;
        let mut version = stored(&store, "l/1", "begin").await;
        for _ in 0..20 {
            let racers = (0..6).map(|_| store.put_if("l/1", b"mine", Some(&version)));
            let outcomes = futures_util::future::join_all(racers).await;
            let won: Vec<_> = outcomes
                .into_iter()
                .filter_map(|outcome| match outcome {
                    PutOutcome::Stored(version) => Some(version),
                    PutOutcome::Conflict(_) => None,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(won.len(), 1, "{won:?}");
            version = won[0].clone();
        }
    }

    #[tokio::test]
    async fn keys_are_listed_in_order_and_in_pages() {
        let (store, _server) = store("listing").await;
        for key in ["s/c", "l/1", "s/a", "r/x/y", "r/x/z", "r/y/a", "s/b", "meta"] {
            stored(&store, key, "it").await;
        }
        let list = |prefix, after, limit| store.list(prefix, after, limit);
        assert_eq!(list("s/", None, 9).await.unwrap(), ["s/a", "s/b", "s/c"]);
        assert_eq!(list("s/", Some("s/a"), 1).await.unwrap(), ["s/b"]);
        assert_eq!(list("r/x/", None, 9).await.unwrap(), ["r/x/y", "r/x/z"]);
        assert_eq!(list("m", None, 9).await.unwrap(), ["meta"]);
        assert!(list("q/", None, 9).await.unwrap().is_empty());
    }

    /// As `nats kv del` does: the last message of the subject says that there is no document.
    #[tokio::test]
    async fn a_document_that_another_program_deleted_can_be_created_again() {
        let (store, server) = store("deleted").await;
        let first = stored(&store, "l/1", "one").await;
        let client = async_nats::connect(format!("nats://{}", server.addr())).await.unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        let sent = client.request_with_headers("$KV.deleted.l.1", headers, "".into()).await;
        sent.unwrap();
        assert_eq!(text(&store, "l/1").await, None);
        is_conflict(&store, "l/1", Some(&first)).await;
        let again = stored(&store, "l/1", "two").await;
        assert!(again.order() > first.order());
    }

    /// Repetitions by the client library would be further requests of this size.
    #[tokio::test]
    async fn a_swap_whose_answer_is_lost_is_unknown_and_was_sent_once() {
        let (direct, server) = store("lost").await;
        let proxy = Proxy::start(server.addr(), Protocol::Unknown).await.unwrap();
        let through = format!("nats://{}/lost", proxy.addr());
        let store = NatsStore::connect(&through).await.unwrap();
        let first = stored(&store, "l/1", "one").await;
        let long = "two".repeat(3_000);
        proxy.fault(ProxyFault::Mute, When::Now);
        let before = proxy.counts().bytes_to_server;
        let put = store.put_if("l/1", long.as_bytes(), Some(&first)).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let sent = proxy.counts().bytes_to_server - before;
        assert!((9_000..18_000).contains(&sent), "{sent} bytes were sent");
        assert_eq!(text(&direct, "l/1").await, Some(long));
    }

    #[tokio::test]
    async fn a_request_without_a_connection_was_certainly_not_carried_out() {
        let server = Server::start(ServerKind::Nats).await.unwrap();
        let store = NatsStore::connect(&server.url()).await.unwrap();
        store.examine().await.unwrap();
        server.kill().await;
        let put = loop {
            match store.put_if("l/1", b"one", None).await {
                // The end of the connection is not noticed yet.
                PutOutcome::Unknown(_) => {}
                other => break other,
            }
        };
        assert!(matches!(put, PutOutcome::Throttled { .. }), "{put:?}");
        let read = store.get("l/1", None).await.unwrap_err();
        assert!(matches!(read, StoreError::Unavailable(_)), "{read:?}");
    }

    #[tokio::test]
    async fn buckets_that_lose_locks_are_refused_with_what_to_do() {
        let (_, server) = store("origin").await;
        for (bucket, config, why) in [
            ("aged", json!({ "max_age": 60_000_000_000_u64 }), "--max-age=0"),
            ("forgetful", json!({ "storage": "memory" }), "name another bucket"),
            ("copy", json!({ "mirror": { "name": "KV_origin" } }), "is a copy"),
            ("kept", json!({ "deny_purge": true }), "deny_purge"),
            ("full", json!({ "max_bytes": 9_999_999, "discard": "old" }), "--discard=new"),
            ("small", json!({ "max_msg_size": 1_000 }), "--max-msg-size=-1"),
        ] {
            let name = format!("KV_{bucket}");
            let mut whole = json!({ "name": name, "storage": "file", "retention": "limits" });
            if config.get("mirror").is_none() {
                whole["subjects"] = json!([format!("$KV.{bucket}.>")]);
            }
            whole.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
            let create = format!("$JS.API.STREAM.CREATE.{name}");
            let created = ask(server.addr(), &create, &whole).await.unwrap();
            assert!(created.get("error").is_none(), "{created}");
            let refused = permanent(&url(&server, bucket)).await;
            assert!(refused.contains(why) && refused.contains(bucket), "{bucket}: {refused}");
        }
    }

    #[tokio::test]
    async fn a_bucket_with_other_replicas_than_asked_for_is_a_finding() {
        let (_, server) = store("single").await;
        let url = format!("{}?replicas=3", url(&server, "single"));
        let found = NatsStore::connect(&url).await.unwrap().examine().await.unwrap();
        assert!(found[0].advice.contains("--replicas=3"), "{found:?}");
        // One server cannot have three.
        let url = url.replace("single", "triple");
        let error = StoreDriver::connect_url(&url).await.unwrap_err().to_string();
        assert!(error.contains("nats kv add triple") && error.contains("--replicas=3"), "{error}");
    }

    #[tokio::test]
    async fn a_right_that_is_missing_is_named() {
        let users = r#"authorization { users: [
            { user: admin, password: hunter2 }
            { user: reader, password: hunter2, permissions: {
                publish: { allow: ["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.>"] }
                subscribe: { allow: ["_INBOX.>"] } } }
            { user: deaf, password: hunter2, permissions: { subscribe: { deny: [">"] } } }
        ] }"#;
        let server = Server::start_nats_with(users).await.unwrap();
        let url = |login: &str| format!("nats://{login}@{}/locks", server.addr());
        let wrong = permanent(&url("admin:hunter3")).await;
        assert!(!wrong.contains("hunter"), "{wrong}");
        let uncreated = permanent(&url("reader:hunter2")).await;
        assert!(uncreated.contains("$JS.API.STREAM.CREATE.KV_locks"), "{uncreated}");
        assert!(uncreated.contains("nats kv add locks"), "{uncreated}");
        StoreDriver::connect_url(&url("admin:hunter2")).await.unwrap();
        let deaf = permanent(&url("deaf:hunter2")).await;
        assert!(deaf.contains("_INBOX"), "{deaf}");
        let reader = NatsStore::connect(&url("reader:hunter2")).await.unwrap();
        match reader.put_if("l/1", b"it", None).await {
            PutOutcome::Forbidden(cause) => assert!(cause.to_string().contains("$KV.locks.l.1")),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_token_and_an_nkey_are_logins() {
        let server = Server::start_nats_with("authorization { token: hunter2 }").await.unwrap();
        let url = format!("nats://hunter2@{}/locks", server.addr());
        StoreDriver::connect_url(&url).await.unwrap();
        permanent(&url.replace("hunter2@", "")).await;
        // A pair of NATS' own documentation.
        let user = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
        let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
        let users = format!("authorization {{ users: [ {{ nkey: {user} }} ] }}");
        let server = Server::start_nats_with(&users).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seed");
        std::fs::write(&file, format!("{seed}\n")).unwrap();
        let url = format!("nats://{}/locks?nkey={}", server.addr(), file.display());
        StoreDriver::connect_url(&url).await.unwrap();
    }

    #[tokio::test]
    async fn tls_with_certificates_of_both_ends() {
        let tls = TestCertificates::issue().await.unwrap();
        let ((server_cert, server_key), ca) = (tls.server_files(), tls.authority());
        let settings = format!(
            "allow_non_tls: true\ntls {{ cert_file: {server_cert:?}, key_file: {server_key:?}, ca_file: {ca:?}, verify: true }}"
        );
        let server = Server::start_nats_with(&settings).await.unwrap();
        let (cert, key) = tls.client();
        let url = |ca: &std::path::Path| {
            let (cert, key) = (cert.display(), key.display());
            let ca = ca.display();
            format!("nats+tls://{}/locks?ca={ca}&cert={cert}&key={key}", server.addr())
        };
        StoreDriver::connect_url(&url(&ca)).await.unwrap();
        let stranger: Result<StoreDriver, Error> =
            StoreDriver::connect_url(&url(&tls.stranger())).await;
        assert!(stranger.is_err(), "an authority that vouches for nothing was believed");
    }

    #[tokio::test]
    async fn changes_are_reported() {
        let (store, server) = store("watched").await;
        let driver = StoreDriver::connect(Arc::new(store), Default::default()).await.unwrap();
        drop(driver);
        let waiting = StoreDriver::connect_url(&url(&server, "watched")).await.unwrap();
        let other = StoreDriver::connect_url(&url(&server, "watched")).await.unwrap();
        let [waiting, other] = [waiting, other].map(lockkit_core::LockManager::new);
        let held = other.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(async move {
            let guard = waiting.mutex("a").lock().await.unwrap();
            (std::time::Instant::now(), guard, waiting)
        });
        // Polls come every 2.5 s where reports do.
        tokio::time::sleep(Duration::from_millis(500)).await;
        held.release().await.unwrap();
        let released = std::time::Instant::now();
        let (granted, guard, _waiting) = waiter.await.unwrap();
        let took = granted.saturating_duration_since(released);
        assert!(took < Duration::from_millis(1_500), "it was woken after {took:?}");
        guard.release().await.unwrap();
    }
}

mod on_debians_nats {
    use super::*;

    /// Its replicas let several of concurrent swaps succeed. A driver does not get as far as the probe.
    #[tokio::test]
    async fn three_replicas_of_an_old_version_are_refused_and_convicted_by_the_probe() {
        let group = Group::start_debians_nats().await.unwrap();
        // It creates the bucket.
        let refused = permanent(&group.url()).await;
        assert!(refused.contains("2.9.") && refused.contains("upgrade to 2.10.23"), "{refused}");
        let store = Arc::new(NatsStore::connect(&group.url()).await.unwrap());
        for _ in 0..20 {
            let convicted = probe(store.clone()).await.unwrap_err();
            assert!(!convicted.is_retryable(), "{convicted}");
            assert!(convicted.to_string().contains("at most one may"), "{convicted}");
        }
    }
}

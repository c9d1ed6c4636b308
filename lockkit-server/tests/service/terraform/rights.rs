//! Who may do what, and that secrets stay where they are.

use std::sync::Arc;
use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lockkit_core::MemoryDriver;
use lockkit_server::{AccessTokens, ServiceSettings};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::client::{Subject, info};
use crate::served::Answer;

struct Guarded(Subject);

fn line(name: &str, rights: &str) -> String {
    let token = format!("token-of-{name}");
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hash} {rights}\n")
}

fn basic(user: &str, token: &str) -> String {
    format!("authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("{user}:{token}")))
}

impl Guarded {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        let lines = [
            line("team", "terraform@shop:network"),
            line("ops", "terraform,break@shop:network"),
            line("chief", "terraform@shop break@shop:lockkit.terraform/"),
            line("reader", "read,lock,break@*"),
            line("both", "read,lock@shop terraform@shop:network"),
        ];
        std::fs::write(&file, lines.concat()).unwrap();
        let settings = ServiceSettings::new().tokens(AccessTokens::load(&file).unwrap());
        let mut subject = Subject::on(Arc::new(MemoryDriver::new()), settings, Some(folder)).await;
        "shop".clone_into(&mut subject.namespace);
        Self(subject)
    }

    async fn ask(&self, who: &str, method: &str, query: &str, body: &[u8]) -> Answer {
        let login = basic("anything", &format!("token-of-{who}"));
        self.0.ask(method, &self.0.path(query), &login, body).await
    }

    /// A request to the general endpoints.
    async fn general(&self, who: &str, path: &str, body: serde_json::Value) -> Answer {
        self.0.served.ask(Some(&format!("token-of-{who}")), path, body).await
    }
}

#[tokio::test]
async fn the_password_is_the_token_on_these_paths_only() {
    let guarded = Guarded::new().await;
    let path = guarded.0.path("");
    for (headers, expected) in [
        (basic("", "token-of-team"), 404),
        (basic("a:b", "token-of-team"), 401),
        (basic("token-of-team", ""), 401),
        ("authorization: Bearer token-of-team\r\n".to_owned(), 404),
        ("authorization: bAsIc OnRva2VuLW9mLXRlYW0=\r\n".to_owned(), 404),
        ("authorization: Basic ?\r\n".to_owned(), 401),
        ("authorization: Basic\r\n".to_owned(), 401),
        (basic("", "token-of-team") + &basic("", "token-of-team"), 401),
        (String::new(), 401),
    ] {
        let answer = guarded.0.ask("GET", &path, &headers, b"").await;
        assert_eq!(answer.status, expected, "{headers}");
        if expected == 401 {
            assert!(answer.head.contains("\r\nwww-authenticate: basic realm="), "{}", answer.head);
        }
        for method in ["LOCK", "POST", "DELETE", "UNLOCK"] {
            let answer = guarded.0.ask(method, &path, &headers, b"{}").await;
            assert_eq!(answer.status == 401, expected == 401, "{method} {headers}");
        }
    }
    let login = basic("", "token-of-reader");
    for path in ["/v1/capabilities", "/metrics", "/v1/terraform", "/v1/terraformed/a"] {
        let answer = guarded.0.ask("GET", path, &login, b"").await;
        assert!([401, 404].contains(&answer.status), "{path}: {answer:?}");
        assert!(!answer.head.contains("basic"), "{}", answer.head);
    }
}

#[tokio::test]
async fn a_token_is_for_the_states_whose_names_begin_as_its_right_says() {
    let mut guarded = Guarded::new().await;
    for (namespace, name, expected) in [
        ("shop", "network", 404),
        ("shop", "network/eu", 404),
        ("shop", "net", 403),
        ("shop", "Network", 403),
        ("", "network", 403),
        ("shop2", "network", 403),
    ] {
        namespace.clone_into(&mut guarded.0.namespace);
        name.clone_into(&mut guarded.0.name);
        assert_eq!(
            guarded.ask("team", "GET", "", b"").await.status,
            expected,
            "{namespace} {name}"
        );
        for (method, body) in [("LOCK", &*info("one")), ("POST", "{}"), ("UNLOCK", &info("one"))] {
            let status = guarded.ask("team", method, "&ID=one", body.as_bytes()).await.status;
            assert_eq!(status == 403, expected == 403, "{method} {namespace} {name}");
            // No other right is that to a state.
            let status = guarded.ask("reader", method, "&ID=one", body.as_bytes()).await.status;
            assert_eq!(status, 403, "{method} {namespace} {name}");
        }
    }
}

#[tokio::test]
async fn an_unlock_without_an_id_needs_the_right_to_break() {
    let guarded = Guarded::new().await;
    for who in ["ops", "chief"] {
        let id = format!("id of {who}");
        assert_eq!(guarded.ask("team", "LOCK", "", info(&id).as_bytes()).await.status, 200);
        assert_eq!(guarded.ask("team", "UNLOCK", "", b"").await.status, 403);
        assert!(guarded.0.holder().await.is_some());
        assert_eq!(guarded.ask(who, "UNLOCK", "", b"").await.status, 200);
        let state = guarded.0.driver.inspect(&guarded.0.key()).await.unwrap();
        assert_eq!(state.last_break.unwrap().by.program, who, "the record has the token's name");
    }
}

#[tokio::test]
async fn a_lock_is_the_ids_and_not_the_tokens() {
    let guarded = Guarded::new().await;
    assert_eq!(guarded.ask("team", "LOCK", "", info("one").as_bytes()).await.status, 200);
    assert_eq!(guarded.ask("ops", "LOCK", "", info("one").as_bytes()).await.status, 200);
    assert_eq!(guarded.ask("chief", "POST", "&ID=one", b"{}").await.status, 200);
    assert_eq!(guarded.ask("both", "UNLOCK", "", info("one").as_bytes()).await.status, 200);
    assert!(guarded.0.holder().await.is_none());
}

#[tokio::test]
async fn the_registers_of_a_state_are_closed_to_tokens_without_the_right_to_it() {
    let guarded = Guarded::new().await;
    guarded.ask("team", "LOCK", "", info("one").as_bytes()).await;
    guarded.ask("team", "POST", "&ID=one", b"{\"password\":1}").await;
    let names = guarded.0.names().await;
    assert_eq!(names.len(), 2);
    guarded.0.store("zebra", Some(b"z".to_vec()), None).await;
    for name in &names {
        let at = json!({"name": name, "namespace": "shop"});
        let write = json!({"write_id": "0".repeat(32)});
        let requests = [
            ("/v1/registers/load", at.clone()),
            ("/v1/registers/changed", json!({"register": at, "wait_ms": 0})),
            ("/v1/registers/delete", json!({"register": at, "write": write})),
            (
                "/v1/registers/store",
                json!({"register": at, "value": {"text": "x"}, "write": write}),
            ),
            ("/v1/watch", json!({"register": at})),
        ];
        for (path, body) in requests {
            let who: &[&str] = match path.ends_with("delete") || path.ends_with("store") {
                true => &["reader", "both"], // one that is no head would lose the state
                false => &["reader"],
            };
            for who in who {
                let answer = guarded.general(who, path, body.clone()).await;
                assert_eq!(answer.status, 403, "{who} {path} {name}: {answer:?}");
            }
        }
        let load = guarded.general("both", "/v1/registers/load", at.clone()).await;
        assert_eq!(load.status, 200, "with both rights");
        assert_eq!(guarded.general("team", "/v1/registers/load", at).await.status, 403);
    }
    for (who, limit, expected) in
        [("reader", 1, vec!["zebra"]), ("reader", 10, vec!["zebra"]), ("both", 10, vec![])]
    {
        let body = json!({"namespace": "shop", "limit": limit});
        let page = guarded.general(who, "/v1/registers/list", body).await;
        let shown = page.json()["registers"].as_array().unwrap().clone();
        match expected.is_empty() {
            true => assert_eq!(shown.len(), 3),
            false => assert_eq!(shown.iter().map(|it| &it["name"]).collect::<Vec<_>>(), expected),
        }
    }
    let body = json!({"namespace": "shop", "names": "lockkit.terraform/"});
    assert_eq!(guarded.general("reader", "/v1/registers/list", body).await.status, 403);
}

#[tokio::test]
async fn a_break_at_the_service_is_a_forced_one() {
    let guarded = Guarded::new().await;
    guarded.ask("team", "LOCK", "", info("one").as_bytes()).await;
    let token = guarded.0.holder().await.unwrap().token.to_string();
    let key = json!({"name": "lockkit.terraform/network", "namespace": "shop"});
    let answer = guarded.general("reader", "/v1/break", json!({"key": key, "token": token})).await;
    assert_eq!((answer.status, &answer.json()["found"]), (200, &json!(true)));
    let state = guarded.0.driver.inspect(&guarded.0.key()).await.unwrap();
    assert!(state.queue.is_empty() && state.last_break.unwrap().forced);
}

/// What all threads log, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_id_body_or_token_is_in_a_log_or_a_metric() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // Of this thread, on which the whole test runs.
    let _guard = tracing::subscriber::set_default(subscriber);
    tracing::info!("the log is read");
    let guarded = Guarded::new().await;
    let lock = info("secret-id");
    guarded.ask("team", "LOCK", "", lock.as_bytes()).await;
    guarded.ask("team", "POST", "&ID=secret-id", b"{\"password\":\"secret-body\"}").await;
    guarded.ask("team", "POST", "&ID=secret-other", b"{\"password\":\"secret-body\"}").await;
    guarded.ask("team", "GET", "", b"").await;
    guarded.0.store("lockkit.terraform/network", Some(b"secret-head".to_vec()), None).await;
    guarded.ask("team", "GET", "", b"").await;
    guarded.ask("team", "LOCK", "", b"{\"ID\":\"secret-id\",").await;
    guarded.ask("secret-wrong", "GET", "", b"").await;
    let page = guarded.0.served.client().await;
    let mut page = page;
    let bearer = "authorization: Bearer token-of-reader\r\n";
    let page = page.get("/metrics", bearer).await.body;
    assert!(page.contains("/v1/terraform/{name}"), "{page}");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("the log is read"));
    for text in [&log, &page] {
        for secret in ["secret", "token-of", "network"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

//! Tokens and rights, as a caller meets them.

use std::path::PathBuf;
use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{LockManager, Settings as LockSettings};
use lockkit_server::{AccessTokens, Limits, Service, ServiceSettings};
use lockkit_sql::SqliteDriver;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::served::{Served, id};

struct Guarded {
    served: Served,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

fn line(name: &str, token: &str, rights: &str) -> String {
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hash} {rights}\n")
}

impl Guarded {
    async fn new() -> Self {
        Self::over(Arc::new(MemoryDriver::new()), tempfile::tempdir().unwrap()).await
    }

    async fn over(driver: Arc<dyn LockDriver>, folder: tempfile::TempDir) -> Self {
        let file = folder.path().join("tokens");
        let lines = [
            line("alice", "token-of-alice", "read,lock@billing:invoice/ lock@"),
            line("bob", "token-of-bob", "read,lock@billing lock@"),
            line("operator", "token-of-operator", "read,break@*"),
        ];
        std::fs::write(&file, lines.concat()).unwrap();
        let limits = Limits { waiting_per_caller: 1, ..Limits::default() };
        let settings =
            ServiceSettings::new().limits(limits).tokens(AccessTokens::load(&file).unwrap());
        let service = Service::with(driver, settings).unwrap();
        Self { served: Served::of(service, None).await, file, _folder: folder }
    }

    /// Status and body.
    async fn ask(&self, who: &str, path: &str, body: Value) -> (u16, Value) {
        let answer = self.served.ask(Some(&format!("token-of-{who}")), path, body).await;
        (answer.status, answer.json())
    }
}

fn claim(number: u128, namespace: &str, name: &str) -> Value {
    json!({"claim": {"id": id(number), "namespace": namespace, "name": name}})
}

#[tokio::test]
async fn nobody_without_a_token_gets_further_than_the_health_of_the_server() {
    let guarded = Guarded::new().await;
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer \r\n",
        "authorization: Basic token-of-alice\r\n",
        "authorization: token-of-alice\r\n",
        "authorization: Bearer token-of-alice\r\nauthorization: Bearer token-of-bob\r\n",
    ] {
        let mut client = guarded.served.client().await;
        for path in ["/v1/capabilities", "/v1/health", "/v1/list", "/metrics", "/v1/acquire"] {
            let answer = client.get(path, headers).await;
            // A path that takes no GET is not even told from one that does not exist.
            assert!([401, 404].contains(&answer.status), "{path} {headers}: {answer:?}");
            assert!(!answer.body.contains("token-of"), "{answer:?}");
        }
        let answer = client.get("/v1/capabilities", headers).await;
        assert!(answer.head.contains("\r\nwww-authenticate: bearer\r\n"), "{answer:?}");
        assert_eq!(client.get("/healthz", headers).await.status, 200);
        assert_eq!(client.get("/readyz", headers).await.status, 200);
    }
    let answer = guarded.served.ask(None, "/v1/acquire", claim(1, "", "a")).await;
    assert_eq!((answer.status, &answer.json()["code"]), (401, &json!("unauthorized")));
}

#[tokio::test]
async fn a_caller_does_what_its_rights_say_and_nothing_else() {
    let guarded = Guarded::new().await;
    for path in ["/v1/acquire", "/v1/wait", "/v1/verify", "/v1/downgrade", "/v1/release"] {
        for (namespace, name) in [("billing", "invoice"), ("billing", "x"), ("other", "invoice/1")]
        {
            let (status, body) = guarded.ask("alice", path, claim(1, namespace, name)).await;
            assert_eq!((status, &body["code"]), (403, &json!("forbidden")), "{path} {name}");
        }
        let (status, _) = guarded.ask("operator", path, claim(1, "billing", "invoice/1")).await;
        assert_eq!(status, 403, "{path}");
    }
    let (status, held) =
        guarded.ask("alice", "/v1/acquire", claim(1, "billing", "invoice/1")).await;
    assert_eq!(status, 200, "{held}");
    let key = json!({"namespace": "billing", "name": "invoice/1"});
    let hidden = json!({"namespace": "billing", "name": "x"});
    for who in ["alice", "bob", "operator"] {
        assert_eq!(guarded.ask(who, "/v1/inspect", key.clone()).await.0, 200, "{who}");
        let expected = if who == "alice" { 403 } else { 200 };
        let looks = [
            ("/v1/inspect", hidden.clone()),
            ("/v1/changed", json!({"key": hidden, "known": []})),
            ("/v1/list", json!({"namespace": "billing"})),
            ("/v1/list", json!({"namespace": "billing", "names": "inv"})),
            ("/v1/registers/load", hidden.clone()),
            ("/v1/watch", json!({"lock": hidden})),
            ("/v1/watch", json!({"register": hidden})),
            ("/v1/registers/changed", json!({"register": hidden})),
        ];
        for (path, body) in looks {
            assert_eq!(guarded.ask(who, path, body).await.0, expected, "{who} {path}");
        }
    }
    let list = json!({"namespace": "billing", "names": "invoice/"});
    assert_eq!(guarded.ask("alice", "/v1/list", list).await.0, 200);
    let write = json!({"write_id": id(5)});
    let store = json!({"register": hidden, "value": {"text": ""}, "write": write});
    assert_eq!(guarded.ask("alice", "/v1/registers/store", store.clone()).await.0, 403);
    assert_eq!(guarded.ask("operator", "/v1/registers/store", store.clone()).await.0, 403);
    assert_eq!(guarded.ask("bob", "/v1/registers/store", store).await.0, 200);
    let delete = json!({"register": hidden, "write": write});
    assert_eq!(guarded.ask("alice", "/v1/registers/delete", delete).await.0, 403);
    let semaphore = json!({"namespace": "billing", "name": "x", "space": "semaphore"});
    let resize = json!({"key": semaphore, "limit": 2});
    assert_eq!(guarded.ask("alice", "/v1/resize", resize.clone()).await.0, 403);
    assert_eq!(guarded.ask("bob", "/v1/resize", resize).await.0, 200);

    let by = json!({"host": "h", "pid": 1, "program": "alice"});
    let force = json!({"key": key, "token": held["token"], "force": true, "by": by});
    assert_eq!(guarded.ask("alice", "/v1/break", force.clone()).await.0, 403);
    let (status, broke) = guarded.ask("operator", "/v1/break", force).await;
    assert_eq!((status, &broke["found"]), (200, &json!(true)));
    let (_, lost) = guarded.ask("alice", "/v1/verify", claim(1, "billing", "invoice/1")).await;
    assert_eq!(lost["break"]["by"]["program"], "operator", "whose token it was: {lost}");
}

#[tokio::test]
async fn a_caller_sees_the_namespaces_and_registers_that_it_may_read_and_no_other() {
    let store = MemoryDriver::new();
    let guarded = Guarded::over(Arc::new(store.clone()), tempfile::tempdir().unwrap()).await;
    let backend: Arc<dyn LockDriver> = Arc::new(store);
    for namespace in ["", "a", "billing", "billing2", "z"] {
        let settings = LockSettings::default().namespace(namespace);
        let locks = LockManager::with(backend.clone(), settings).unwrap();
        locks.register("invoice/last").store("4711").await.unwrap();
        locks.register("x").store("").await.unwrap();
    }
    let all = ["", "a", "billing", "billing2", "z"];
    for (who, expected) in [("alice", &["billing"][..]), ("bob", &["billing"]), ("operator", &all)]
    {
        for limit in [1, 2, 1_000] {
            let (mut seen, mut more) = (Vec::<String>::new(), true);
            while more {
                let request = json!({"after": seen.last(), "limit": limit});
                let (status, page) = guarded.ask(who, "/v1/namespaces", request).await;
                assert_eq!(status, 200, "{page}");
                let some = page["namespaces"].as_array().unwrap();
                assert!(some.len() <= limit, "{page}");
                seen.extend(some.iter().map(|it| it.as_str().unwrap().to_owned()));
                more = page["more"].as_bool().unwrap();
            }
            assert_eq!(seen, expected, "{who}, in pages of {limit}");
        }
    }
    let list = "/v1/registers/list";
    let own = json!({"namespace": "billing", "names": "invoice/"});
    let (status, page) = guarded.ask("alice", list, own).await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(page["registers"][0]["name"], "invoice/last");
    assert_eq!((&page["registers"][0]["bytes"], &page["more"]), (&json!(4), &json!(false)));
    for beyond in [json!({"namespace": "billing"}), json!({"namespace": "a", "names": "invoice/"})]
    {
        assert_eq!(guarded.ask("alice", list, beyond).await.0, 403);
    }
}

#[tokio::test]
async fn no_operation_of_a_batch_is_carried_out_if_one_is_not_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let driver = SqliteDriver::connect(&url).await.unwrap();
    let guarded = Guarded::over(Arc::new(driver), folder).await;
    let acquires = [claim(1, "billing", "invoice/1"), claim(2, "billing", "x")];
    let batch = json!({"acquires": acquires});
    assert_eq!(guarded.ask("alice", "/v1/batch", batch).await.0, 403);
    let key = json!({"namespace": "billing", "name": "invoice/1"});
    let (_, state) = guarded.ask("alice", "/v1/inspect", key).await;
    assert_eq!(state["queue"], json!([]));
    let claims = [claim(1, "billing", "invoice/1"), claim(2, "billing", "x")];
    let claims: Vec<_> = claims.iter().map(|it| it["claim"].clone()).collect();
    assert_eq!(guarded.ask("alice", "/v1/renew", json!({"claims": claims})).await.0, 403);
}

#[tokio::test]
async fn an_id_is_of_no_use_to_another_caller() {
    let guarded = Guarded::new().await;
    let mine = claim(1, "", "a");
    assert_eq!(guarded.ask("alice", "/v1/acquire", mine.clone()).await.1["state"], "held");
    assert_eq!(guarded.ask("bob", "/v1/verify", mine.clone()).await.1["state"], "ended");
    assert_eq!(guarded.ask("bob", "/v1/release", mine.clone()).await.1["found"], "others_only");
    let mut again = mine.clone();
    again["no_wait"] = true.into();
    assert_eq!(guarded.ask("bob", "/v1/acquire", again).await.1["state"], "busy");
    assert_eq!(guarded.ask("alice", "/v1/verify", mine).await.1["state"], "held");
}

#[tokio::test]
async fn a_token_is_replaced_without_losing_a_lock_and_a_broken_file_changes_nothing() {
    let guarded = Guarded::new().await;
    let mine = claim(1, "", "a");
    guarded.ask("alice", "/v1/acquire", mine.clone()).await;
    std::fs::write(&guarded.file, "nonsense").unwrap();
    guarded.served.service.reload().unwrap_err();
    assert_eq!(guarded.ask("alice", "/v1/verify", mine.clone()).await.1["state"], "held");
    std::fs::write(&guarded.file, line("alice", "token-of-new-alice", "lock@*")).unwrap();
    guarded.served.service.reload().unwrap();
    assert_eq!(guarded.ask("alice", "/v1/verify", mine.clone()).await.0, 401);
    assert_eq!(guarded.ask("new-alice", "/v1/verify", mine).await.1["state"], "held");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_that_waits_much_does_not_keep_another_from_waiting() {
    let guarded = Guarded::new().await;
    guarded.ask("alice", "/v1/acquire", claim(1, "", "a")).await;
    let waits = |number| {
        let mut body = claim(number, "", "a");
        body["wait_ms"] = 25_000.into();
        body
    };
    let mut client = guarded.served.client().await;
    let body = waits(2);
    let wait =
        tokio::spawn(
            async move { client.post(Some("token-of-alice"), "/v1/acquire", &body).await },
        );
    // Once the first waits; until then this one has not been put in line either, or holds nothing.
    while guarded.ask("bob", "/v1/acquire", claim(9, "", "a")).await.1["ahead"] != json!(2) {
        guarded.ask("bob", "/v1/release", claim(9, "", "a")).await;
    }
    assert_eq!(guarded.ask("alice", "/v1/acquire", waits(3)).await.0, 429);
    let mut client = guarded.served.client().await;
    let body = waits(9);
    let other =
        tokio::spawn(async move { client.post(Some("token-of-bob"), "/v1/wait", &body).await });
    guarded.ask("alice", "/v1/release", claim(1, "", "a")).await;
    assert_eq!(wait.await.unwrap().status, 200);
    guarded.ask("alice", "/v1/release", claim(2, "", "a")).await;
    assert_eq!(other.await.unwrap().status, 200);
}

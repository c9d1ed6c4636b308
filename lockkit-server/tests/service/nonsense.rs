//! Requests that make no sense: each is answered, none with a failure of the server.
//!
//! `LOCKKIT_NONSENSE` says how many; the seed is printed, and `LOCKKIT_SEED` repeats a run.

use lockkit_server::{AccessTokens, ServiceSettings};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::served::{Client, Served};

const TOKEN: &str = "token-of-a-test";

const PATHS: [&str; 36] = [
    "/v1/acquire",
    "/v1/wait",
    "/v1/release",
    "/v1/batch",
    "/v1/renew",
    "/v1/verify",
    "/v1/shorten",
    "/v1/downgrade",
    "/v1/inspect",
    "/v1/list",
    "/v1/changed",
    "/v1/watch",
    "/v1/break",
    "/v1/resize",
    "/v1/registers/load",
    "/v1/registers/store",
    "/v1/registers/delete",
    "/v1/registers/changed",
    "/v1/registers/list",
    "/v1/namespaces",
    "/v1/terraform/a",
    "/v1/terraform/a?ID=a",
    "/v1/terraform/b?ID=a&namespace=p",
    "/v1/terraform/%2f%00?version=previous",
    "/v1/terraform-lock/a",
    "/v1/capabilities",
    "/v1/promises",
    "/v1/health",
    "/healthz",
    "/readyz",
    "/metrics",
    "/",
    "/page.css",
    "/page.js",
    "/openapi.json",
    "/%2e%2e//v1/acquire?x=%00",
];

/// The fields of all requests: any of them may stand anywhere.
const FIELDS: [&str; 37] = [
    "claim",
    "claims",
    "acquires",
    "releases",
    "acquire",
    "release",
    "id",
    "namespace",
    "name",
    "mode",
    "permits",
    "limit",
    "ttl_ms",
    "wait_ttl_ms",
    "holder",
    "note",
    "no_wait",
    "resizable",
    "wait_ms",
    "token",
    "key",
    "space",
    "known",
    "lock",
    "names",
    "after",
    "force",
    "by",
    "reason",
    "register",
    "value",
    "write",
    "write_id",
    "version",
    "text",
    "base64",
    "host",
];

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_and_never_with_a_failure_of_the_server() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let all = number("LOCKKIT_NONSENSE").unwrap_or(10_000);
    let seed = number("LOCKKIT_SEED").unwrap_or_else(rand::random);
    println!("LOCKKIT_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(&file, format!("a {hash} read,lock,break,terraform@*\n")).unwrap();
    let served =
        Served::new(ServiceSettings::new().tokens(AccessTokens::load(&file).unwrap())).await;
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (service, address) = (served.service.clone(), served.address.clone());
            tokio::spawn(nonsense(service, address, seed.wrapping_add(task), all / 4))
        })
        .collect();
    let mut well = 0;
    for task in tasks {
        well += task.await.expect("no request fails");
    }
    assert!(well > all / 100, "most are refused, but not before anything was read: {well}");
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let page = served.client().await.get("/metrics", &bearer).await.body;
    assert!(page.contains("outcome=\"ended\""), "{page}");
    for outcome in ["ok", "locked", "busy", "invalid"] {
        let count = format!("terraform/{{name}}\",backend=\"memory\",outcome=\"{outcome}\"");
        assert!(page.contains(&count), "no {outcome} in {page}");
    }
    assert!(!page.contains("outcome=\"other\""), "{page}");
    assert_eq!(served.client().await.get("/readyz", "").await.status, 200);
}

#[test]
fn every_path_of_the_service_gets_nonsense() {
    let description: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    for path in description["paths"].as_object().unwrap().keys() {
        let path = path.replace("{name}", "a");
        assert!(PATHS.contains(&path.as_str()), "{path} gets none");
    }
}

/// Sends so many requests; how many were of use.
async fn nonsense(
    service: lockkit_server::Service,
    address: String,
    seed: u64,
    requests: u64,
) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let connect = async || {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        Client(tokio::io::BufStream::new(stream))
    };
    let (mut client, mut well) = (connect().await, 0);
    for _ in 0..requests {
        let (request, may_hang_up) = match rng.random_range(0..10) {
            0 => (bytes(&mut rng), true),
            1 => (bad_head(&mut rng), true),
            _ => (near(&mut rng), false),
        };
        client.send(&request).await;
        if may_hang_up {
            // What is no request may be the beginning of one: say that nothing follows.
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.0).await;
        }
        let mut answer = client.answer().await;
        if answer.is_none() && !may_hang_up {
            // The answer before did not wait for the body, so the connection had to end.
            client = connect().await;
            client.send(&request).await;
            answer = client.answer().await;
        }
        let streams = answer.as_ref().is_some_and(|it| it.head.contains("x-ndjson"));
        let shown = || String::from_utf8_lossy(&request).into_owned();
        match answer {
            Some(answer) => {
                assert!(answer.status < 500 || answer.status == 501, "{}\n{answer:?}", shown());
                well += u64::from(answer.status < 300);
            }
            None => assert!(may_hang_up, "no answer: {}", shown()),
        }
        if may_hang_up || streams {
            client = connect().await;
        }
    }
    drop(service);
    well
}

fn bytes(rng: &mut StdRng) -> Vec<u8> {
    let length = rng.random_range(1..300);
    (0..length).map(|_| rng.random()).collect()
}

fn bad_head(rng: &mut StdRng) -> Vec<u8> {
    let path = *PATHS.choose(rng).unwrap();
    let method = *["GET", "POST", "PUT", "LOCK", "UNLOCK", "OPTIONS", "CONNECT", "x", "POST /"]
        .choose(rng)
        .unwrap();
    let version = *["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "", "HTTP/1.1 "].choose(rng).unwrap();
    let headers = [
        "host: localhost",
        "host: evil.example",
        "host:",
        "host: \u{e4}",
        "content-type: application/json",
        "content-type: text/plain",
        "content-length: 0",
        "content-length: 99999999999999999999",
        "content-length: -1",
        "transfer-encoding: chunked",
        "transfer-encoding: chunked, chunked",
        "expect: 100-continue",
        "authorization: Bearer",
        "authorization: \u{1}",
        "origin: null",
        "upgrade: websocket",
        "connection: close",
        ": x",
        "x",
    ];
    let mut request = format!("{method} {path} {version}\r\n");
    for _ in 0..rng.random_range(0..8) {
        request.push_str(headers.choose(rng).unwrap());
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let mut request = request.into_bytes();
    request.extend(bytes(rng));
    request
}

/// A request with a good head, and JSON that is nearly what the path takes.
fn near(rng: &mut StdRng) -> Vec<u8> {
    let path = *PATHS.choose(rng).unwrap();
    let mut body = match rng.random_range(0..3) {
        0 => random(rng, 4).to_string().into_bytes(),
        _ => bent(rng, path).to_string().into_bytes(),
    };
    if rng.random_ratio(1, 20) && !body.is_empty() {
        let at = rng.random_range(0..body.len());
        body[at] = rng.random();
    }
    let method = method(rng, path);
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         authorization: Bearer {TOKEN}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.into_bytes(), body].concat()
}

fn method(rng: &mut StdRng, path: &str) -> &'static str {
    if path.starts_with("/v1/terraform") && rng.random() {
        return ["LOCK", "UNLOCK", "PUT", "DELETE"].choose(rng).unwrap();
    }
    if rng.random_ratio(1, 10) { "GET" } else { "POST" }
}

/// What the path takes, with some of it replaced.
fn bent(rng: &mut StdRng, path: &str) -> Value {
    let id = format!("{:032x}", rng.random_range(0_u32..4));
    // No head of a state: this token may store one, and what it damaged is a failure of the backend.
    let own = ["lockkit.once/a", "lockkit.slot/a/0", "lockkit.slot/a/+1"];
    let plain = ["a", "b", "", "..", "\u{0}", "á"];
    let name = *[&plain[..], &own].concat().choose(rng).unwrap();
    let claim = json!({"id": id, "name": name, "ttl_ms": 1_000, "mode": "exclusive"});
    let key = json!({"name": name});
    let write = json!({"write_id": id});
    let mut body = match path {
        "/v1/batch" => json!({"acquires": [{"claim": claim}]}),
        "/v1/renew" => json!({"claims": [claim]}),
        "/v1/shorten" => json!({"claim": claim, "ttl_ms": 200}),
        "/v1/inspect" | "/v1/registers/load" => key,
        "/v1/list" | "/v1/registers/list" => json!({"names": name, "limit": 3}),
        "/v1/namespaces" => json!({"limit": 3, "after": name}),
        "/v1/changed" => json!({"key": key, "known": [], "wait_ms": 1}),
        "/v1/break" => json!({"key": key, "token": "7"}),
        "/v1/resize" => json!({"key": {"name": name, "space": "semaphore"}, "limit": 2}),
        "/v1/registers/store" => {
            json!({"register": key, "value": {"text": "v"}, "write": write})
        }
        "/v1/registers/delete" => json!({"register": key, "write": write}),
        "/v1/registers/changed" => json!({"register": key, "wait_ms": 1}),
        _ if path.starts_with("/v1/terraform") => {
            let id = *["a", "a", "b", "c", "\u{e4}"].choose(rng).unwrap();
            json!({"ID": id, "Who": "alice@host", "Created": "2026-11-25T21:45:47Z"})
        }
        _ => json!({"claim": claim, "wait_ms": 1}),
    };
    if rng.random() {
        bend(rng, &mut body);
    }
    body
}

fn bend(rng: &mut StdRng, value: &mut Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && rng.random_ratio(3, 4) => {
            let at = rng.random_range(0..fields.len());
            let inner = fields.values_mut().nth(at).unwrap();
            bend(rng, inner);
        }
        Value::Object(fields) if rng.random() => {
            let field = (*FIELDS.choose(rng).unwrap()).to_owned();
            fields.insert(field, leaf(rng));
        }
        Value::Array(items) if rng.random() => {
            for item in items {
                bend(rng, item);
            }
        }
        other => *other = random(rng, 2),
    }
}

fn random(rng: &mut StdRng, depth: u32) -> Value {
    if depth == 0 || rng.random_ratio(1, 4) {
        return leaf(rng);
    }
    let length = rng.random_range(0..4);
    match rng.random() {
        true => (0..length).map(|_| random(rng, depth - 1)).collect(),
        false => {
            let field = |rng: &mut StdRng| (*FIELDS.choose(rng).unwrap()).to_owned();
            (0..length).map(|_| (field(rng), random(rng, depth - 1))).collect()
        }
    }
}

fn leaf(rng: &mut StdRng) -> Value {
    let numbers = [0, 1, 25_000, u64::from(u32::MAX), 1 << 53, i64::MAX as u64, u64::MAX];
    match rng.random_range(0..9) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 | 3 => (*numbers.choose(rng).unwrap()).into(),
        4 => rng.random::<i64>().into(),
        5 => rng.random::<f64>().into(),
        6 => (*numbers.choose(rng).unwrap()).to_string().into(),
        7 => "\u{202e}x".repeat(rng.random_range(0..400)).into(),
        _ => String::from_utf8_lossy(&bytes(rng)).into_owned().into(),
    }
}

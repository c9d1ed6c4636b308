//! A table as a store: what each answer means, how many requests operations take, what is refused, and that
//! locks hold when answers are lost. The server is DynamoDB Local; where it cannot say something (a global
//! table, throttling, expired credentials), a server before it says it in its place.

mod front;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Renewal};
use lockkit_lab::raw::dynamodb::ask;
use lockkit_lab::{ServerKind, SharedServer, create_table};
use lockkit_store::{DocumentVersion, DynamoStore, PutOutcome, Store, StoreError, probe};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use self::front::{Fate, Front, answer, refusal};
use crate::contract::{self, TTL, claim, driver, stored, take, text};
use crate::stores;

fn url(addr: SocketAddr, table: &str) -> String {
    format!("dynamodb://{table}?region=us-east-1&endpoint=http://{addr}")
}

async fn open(addr: SocketAddr, table: &str) -> Arc<dyn Store> {
    stores::open(&url(addr, table)).await.expect("the URL is valid")
}

mod on_dynamodb {
    use super::*;

    /// A table of its own on the server that tests share.
    async fn table(name: &str) -> (Arc<dyn Store>, SocketAddr) {
        let server = SharedServer::server(ServerKind::DynamoDb).await.expect("it starts");
        let created = create_table(server.addr(), name).await;
        created.expect("each test has a name of its own");
        (open(server.addr(), name).await, server.addr())
    }

    /// The same behind a server that loses answers on demand.
    async fn fronted(name: &str) -> (Arc<dyn Store>, Front) {
        let (_, addr) = table(name).await;
        let front = Front::start(Some(addr)).await;
        (open(front.addr(), name).await, front)
    }

    #[tokio::test]
    async fn writes_are_conditional_and_a_refusal_brings_the_document() {
        let (store, _) = table("contract").await;
        contract::writes_are_conditional(&*store).await;
        let first = stored(&*store, "l/1", "one").await;
        let found = async |key: &str, expected: Option<&DocumentVersion>| match store
            .put_if(key, b"two", expected)
            .await
        {
            PutOutcome::Conflict(document) => document.map(|document| document.bytes),
            other => panic!("{other:?}"),
        };
        assert_eq!(found("l/1", None).await.as_deref(), Some(&b"one"[..]));
        assert_eq!(found("l/2", Some(&first)).await, None);
        store.remove("l/1").await.expect("it works");
        let second = stored(&*store, "l/1", "one").await;
        assert_ne!(first, second, "the same contents have a version of their own");
        assert_eq!(found("l/1", Some(&first)).await.as_deref(), Some(&b"one"[..]));
    }

    #[tokio::test]
    async fn listings_are_in_order_and_over_all_partitions() {
        let (store, _) = table("listings").await;
        for key in ["s/c1", "s/a", "r/x/y", "s/3", "r/x-1", "s/a-b", "l/7", "l/12", "meta", "s/c0"]
        {
            stored(&*store, key, "{}").await;
        }
        let list = async |prefix: &'static str, after: Option<&'static str>, limit: usize| {
            store.list(prefix, after, limit).await.expect("it works")
        };
        assert_eq!(list("s/", None, 10).await, ["s/3", "s/a", "s/a-b", "s/c0", "s/c1"]);
        assert_eq!(list("s/", Some("s/a"), 2).await, ["s/a-b", "s/c0"]);
        assert_eq!(list("s/", Some("s/c0"), 10).await, ["s/c1"]);
        assert_eq!(list("s/c", Some("s/a"), 10).await, ["s/c0", "s/c1"]);
        assert_eq!(list("r/x/", None, 10).await, ["r/x/y"]);
        assert_eq!(list("r/", Some("r/x/~"), 10).await, Vec::<String>::new());
        assert_eq!(list("l/", None, 10).await, ["l/12", "l/7"]);
        assert_eq!(list("b/", None, 10).await, Vec::<String>::new());
        // More than a page, which has 1 MB.
        let long = "x".repeat(300_000);
        for n in 0..5 {
            stored(&*store, &format!("p/1{n}"), &long).await;
        }
        assert_eq!(list("p/", None, 10).await, ["p/10", "p/11", "p/12", "p/13", "p/14"]);
    }

    /// `LOCKKIT_PROBES` says how often.
    #[tokio::test]
    async fn the_probe_passes_and_leaves_nothing() {
        let (store, _) = table("probed").await;
        let rounds = std::env::var("LOCKKIT_PROBES").ok().and_then(|n| n.parse().ok());
        for _ in 0..rounds.unwrap_or(20) {
            probe(store.clone()).await.expect("it compares and swaps");
        }
        assert_eq!(store.list("p/", None, 10).await.expect("it works"), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_lost_answer_is_unknown_and_what_is_throttled_was_not_carried_out() {
        let (store, front) = fronted("lost").await;
        let version = stored(&*store, "l/1", "one").await;
        for (key, expected) in [("l/2", None), ("l/1", Some(&version))] {
            let before = text(&*store, key).await;
            for code in [
                "ProvisionedThroughputExceededException",
                "ThrottlingException",
                "RequestLimitExceeded",
                "ReplicatedWriteConflictException",
            ] {
                front.decide(move |_| Fate::Answered(Some(refusal(400, code))));
                let put = store.put_if(key, b"throttled", expected).await;
                assert!(matches!(put, PutOutcome::Throttled { .. }), "{code}: {put:?}");
                let read = store.get(key, None).await;
                assert!(matches!(read, Err(StoreError::Throttled { .. })), "{code}: {read:?}");
            }
            front.heal();
            assert_eq!(text(&*store, key).await, before);
        }
        let failed = refusal(500, "InternalServerError");
        for (key, fate) in [("l/3", Fate::Lost), ("l/4", Fate::CarriedOutBut(failed))] {
            front.decide(move |_| fate.clone());
            let put = store.put_if(key, b"carried out", None).await;
            assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
            let read = store.get(key, None).await;
            assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
            front.heal();
            assert_eq!(text(&*store, key).await.as_deref(), Some("carried out"));
        }
    }

    #[tokio::test]
    async fn tables_that_lose_locks_are_refused_with_what_to_do() {
        let (_, addr) = table("ordinary").await;
        let missing = contract::refusal(open(addr, "nowhere").await).await;
        assert!(
            missing.contains("there is no table nowhere") && missing.contains("lockkit schema")
        );
        let keys = |keys: [(&str, &str, &str); 2]| -> [Value; 2] {
            let attributes =
                keys.map(|(name, of, _)| json!({ "AttributeName": name, "AttributeType": of }));
            let schema =
                keys.map(|(name, _, role)| json!({ "AttributeName": name, "KeyType": role }));
            [json!(attributes), json!(schema)]
        };
        for (name, wrong) in [
            ("swapped", keys([("k", "S", "HASH"), ("p", "S", "RANGE")])),
            ("numbers", keys([("p", "S", "HASH"), ("k", "N", "RANGE")])),
        ] {
            let [attributes, schema] = wrong;
            let create = json!({
                "TableName": name, "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": attributes, "KeySchema": schema,
            });
            ask(addr, "CreateTable", &create).await.expect("it is created");
            let refused = contract::refusal(open(addr, name).await).await;
            assert!(refused.contains("has other keys than lockkit's"), "{refused}");
        }
        let (store, addr) = table("forgetful").await;
        let enable = json!({
            "TableName": "forgetful",
            "TimeToLiveSpecification": { "Enabled": true, "AttributeName": "ends" },
        });
        ask(addr, "UpdateTimeToLive", &enable).await.expect("it is enabled");
        let refused = contract::refusal(store).await;
        assert!(refused.contains("Enabled=false,AttributeName=ends"), "{refused}");
    }

    #[tokio::test]
    async fn a_table_that_can_be_deleted_is_a_finding_and_a_foreign_item_an_error() {
        let (store, addr) = table("unprotected").await;
        let found = store.examine().await.expect("it works");
        assert!(found[0].advice.contains("--deletion-protection-enabled"), "{found:?}");
        let foreign = json!({
            "TableName": "unprotected",
            "Item": { "p": { "S": "l/3" }, "k": { "S": "l/3" }, "price": { "N": "3" } },
        });
        ask(addr, "PutItem", &foreign).await.expect("it is written");
        let read = store.get("l/3", None).await.expect_err("it is not lockkit's");
        assert!(matches!(&read, StoreError::Forbidden(_)) && read.to_string().contains("l/3"));
        let update = json!({ "TableName": "unprotected", "DeletionProtectionEnabled": true });
        ask(addr, "UpdateTable", &update).await.expect("it is protected");
        assert_eq!(store.examine().await.expect("it works").len(), 0);
    }

    #[tokio::test]
    async fn a_right_that_is_missing_is_named() {
        let actions =
            ["DescribeTable", "DescribeTimeToLive", "GetItem", "PutItem", "DeleteItem", "Query"];
        for action in actions {
            let (store, front) = fronted(&format!("without.{action}")).await;
            front.decide(move |asked| match asked == action {
                true => Fate::Answered(Some(refusal(400, "AccessDeniedException"))),
                false => Fate::Passes,
            });
            let missing = contract::refusal(store).await;
            assert!(missing.contains(&format!("dynamodb:{action} on the table")), "{missing}");
        }
    }

    #[tokio::test]
    async fn operations_take_the_requests_that_the_page_says() {
        let (store, front) = fronted("counted").await;
        let driver = driver(store).await;
        let first = claim("a", TTL);
        front.take_actions();
        take(&driver, &first).await;
        // The session's creation, a read of the shard that is not known yet, and the swap.
        assert_eq!(front.take_actions(), ["PutItem", "GetItem", "PutItem"], "the first acquire");
        driver.release(&first).await.expect("it works");
        assert_eq!(front.take_actions(), ["PutItem"], "a release");
        take(&driver, &first).await;
        assert_eq!(front.take_actions(), ["PutItem"], "an acquire");
        sleep(TTL / 5).await;
        driver.release(&first).await.expect("it works");
        front.take_actions();
        take(&driver, &first).await;
        assert_eq!(front.take_actions(), ["PutItem", "PutItem"], "an acquire after a beat");
        let renewed = driver.renew_single(&first).await.expect("it works");
        assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
        assert_eq!(front.take_actions(), ["PutItem", "GetItem"], "a renewal");
    }

    #[tokio::test]
    async fn the_bytes_of_a_thousand_waiters_are_bounded() {
        let (store, front) = fronted("crowd").await;
        let (holder, waiting) = (driver(store.clone()).await, driver(store).await);
        let ttl = Duration::from_secs(60);
        let held = claim("a", ttl);
        take(&holder, &held).await;
        let waiters: Vec<_> = (0..1_000).map(|_| claim("a", ttl)).collect();
        let all = waiters.iter().map(|waiter| waiting.acquire(waiter, Patience::Wait));
        let mut queued = Vec::new();
        for (waiter, acquired) in waiters.iter().zip(futures_util::future::join_all(all).await) {
            match acquired {
                Ok(it) => {
                    assert!(matches!(it.result, Acquisition::Queued { .. }), "{it:?}");
                    queued.push(waiter);
                }
                Err(error) => assert!(
                    error.is_retryable() && error.to_string().contains("too many claims"),
                    "{error}"
                ),
            }
        }
        assert!((150..600).contains(&queued.len()), "{} waiters have room", queued.len());
        // One that never waits on its own shard is not in the way of the others.
        let granted = queued.iter().map(|waiter| waiting.granted(waiter));
        let watching = async {
            sleep(Duration::from_millis(1_500)).await;
            let before = front.bytes_to_client();
            sleep(Duration::from_secs(4)).await;
            front.bytes_to_client() - before
        };
        let bytes = tokio::select! {
            bytes = watching => bytes,
            _ = futures_util::future::select_all(granted.map(Box::pin)) => panic!("it is held"),
        };
        println!("{} waiters, {} bytes a second", queued.len(), bytes / 4);
        // A document of 64 KB is 86 KB in base64, and is read once a second by each process.
        assert!((1..130_000).contains(&(bytes / 4)), "{bytes} bytes in 4 s");
        // Releases never fail for want of room.
        holder.release(&held).await.expect("it works");
    }

    #[tokio::test]
    async fn a_hold_whose_credentials_expire_ends_in_time_with_the_reason() {
        let (store, front) = fronted("expiring").await;
        let expired = |_: &str| Fate::Answered(Some(refusal(400, "ExpiredTokenException")));
        let expire = async || front.decide(expired);
        contract::a_hold_ends_in_time(store, expire, "credentials have expired").await;
    }

    #[tokio::test]
    async fn locks_hold_while_answers_are_lost_and_requests_refused() {
        let (store, front) = fronted("turns").await;
        let mut number = 0;
        let disturb = || {
            front.decide(move |_| {
                number += 1;
                match number % 20 {
                    3 | 11 => Fate::Lost,
                    7 => Fate::CarriedOutBut(refusal(500, "InternalServerError")),
                    15 => Fate::Answered(Some(refusal(400, "ThrottlingException"))),
                    _ => Fate::Passes,
                }
            });
        };
        contract::take_turns(vec![store; 3], disturb).await;
    }
}

#[tokio::test]
async fn a_put_is_one_request_on_the_wire_whatever_becomes_of_it() {
    let version = DocumentVersion::opaque("0");
    let proxy = "HTTP/1.1 400 Bad Request\r\ncontent-length: 14\r\n\r\n<p>A proxy</p>\n";
    let answers = [
        Fate::Answered(Some(refusal(500, "InternalServerError"))),
        Fate::Answered(Some(refusal(503, "ServiceUnavailable"))),
        Fate::Answered(Some(refusal(500, "ThrottlingException"))),
        Fate::Answered(Some(answer(429, ""))),
        Fate::Answered(Some(answer(408, ""))),
        Fate::Answered(Some(answer(200, "no JSON"))),
        Fate::Answered(Some(proxy.to_owned())),
        Fate::Answered(Some(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"
                .to_owned(),
        )),
        Fate::Lost,
        Fate::Answered(None),
    ];
    let puts = answers.iter().flat_map(|fate| [(fate, None), (fate, Some(&version))]);
    let checked = puts.map(async |(fate, expected)| {
        let front = Front::start(None).await;
        let store = open(front.addr(), "locks").await;
        let given = fate.clone();
        front.decide(move |_| given.clone());
        let put = timeout(Duration::from_secs(12), store.put_if("l/1", b"it", expected)).await;
        let put = put.expect("it ends in bounded time");
        assert!(matches!(put, PutOutcome::Unknown(_)), "{fate:?}: {put:?}");
        assert_eq!(front.take_actions(), ["PutItem"], "{fate:?}");
    });
    futures_util::future::join_all(checked).await;
}

#[tokio::test]
async fn a_refused_put_is_sent_once_too() {
    for (code, is_right) in [
        (
            "ConditionalCheckFailedException",
            (|put| matches!(put, PutOutcome::Conflict(None))) as fn(&PutOutcome) -> bool,
        ),
        ("ThrottlingException", |put| matches!(put, PutOutcome::Throttled { .. })),
        ("ExpiredTokenException", |put| matches!(put, PutOutcome::Forbidden(_))),
        ("ValidationException", |put| matches!(put, PutOutcome::Forbidden(_))),
        ("ResourceNotFoundException", |put| matches!(put, PutOutcome::Forbidden(_))),
    ] {
        let front = Front::start(None).await;
        let store = open(front.addr(), "locks").await;
        front.decide(move |_| Fate::Answered(Some(refusal(400, code))));
        let put = store.put_if("l/1", b"it", None).await;
        assert!(is_right(&put), "{code}: {put:?}");
        assert_eq!(front.take_actions(), ["PutItem"], "{code}");
    }
}

#[tokio::test]
async fn a_request_on_a_connection_that_closes_is_not_sent_again() {
    for _ in 0..50 {
        let front = Front::start(None).await;
        let store = open(front.addr(), "locks").await;
        let mut is_first = true;
        front.decide(move |_| match std::mem::take(&mut is_first) {
            true => Fate::Answered(Some(answer(200, "{}"))),
            false => Fate::Lost,
        });
        let put = store.put_if("l/1", b"it", None).await;
        assert!(matches!(put, PutOutcome::Stored(_)), "{put:?}");
        let put = store.put_if("l/1", b"it", None).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        assert_eq!(front.take_actions().len(), 2);
    }
}

#[tokio::test]
async fn global_tables_are_refused_unless_they_are_strongly_consistent() {
    let described = |more: Value| {
        let mut table = json!({
            "TableName": "locks", "TableStatus": "ACTIVE", "DeletionProtectionEnabled": true,
            "AttributeDefinitions": [
                { "AttributeName": "p", "AttributeType": "S" },
                { "AttributeName": "k", "AttributeType": "S" },
            ],
            "KeySchema": [
                { "AttributeName": "p", "KeyType": "HASH" },
                { "AttributeName": "k", "KeyType": "RANGE" },
            ],
        });
        table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answer(200, &json!({ "Table": table }).to_string())
    };
    let examine = async |more: Value| {
        let front = Front::start(None).await;
        let store = open(front.addr(), "locks").await;
        let description = described(more);
        front.decide(move |action| match action {
            "DescribeTable" => Fate::Answered(Some(description.clone())),
            _ => Fate::Answered(Some(answer(
                200,
                r#"{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}"#,
            ))),
        });
        store.examine().await
    };
    assert_eq!(examine(json!({})).await.expect("it is of one region").len(), 0);
    let replicas = json!([{ "RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE" }]);
    for global in [
        json!({ "Replicas": replicas, "GlobalTableVersion": "2019.11.21" }),
        json!({ "Replicas": replicas, "MultiRegionConsistency": "EVENTUAL" }),
        json!({ "GlobalTableVersion": "2017.11.29" }),
    ] {
        let refused = examine(global.clone()).await.expect_err("the last writer wins");
        let says = refused.to_string();
        assert!(!refused.is_retryable() && says.contains("last write"), "{global}: {says}");
    }
    let strong = json!({
        "Replicas": replicas, "GlobalTableVersion": "2019.11.21", "MultiRegionConsistency": "STRONG",
    });
    examine(strong).await.expect("it is strongly consistent");
    let creating = examine(json!({ "TableStatus": "CREATING" })).await.expect_err("not yet");
    assert!(creating.is_retryable(), "{creating}");
    let gone = examine(json!({ "TableStatus": "DELETING" })).await.expect_err("not any more");
    assert!(!gone.is_retryable(), "{gone}");
}

/// Fails as those do who give no credentials.
#[derive(Debug)]
struct NoCredentials(fn() -> CredentialsError);

impl ProvideCredentials for NoCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err((self.0)()))
    }
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let none: fn() -> CredentialsError = || CredentialsError::not_loaded("none");
    let silent: fn() -> CredentialsError =
        || CredentialsError::provider_timed_out(Duration::from_secs(1));
    for (why, is_for_good) in [(none, true), (silent, false)] {
        let front = Front::start(None).await;
        let url = url(front.addr(), "locks");
        let store =
            DynamoStore::open_with(&url, |config| config.credentials_provider(NoCredentials(why)));
        let store = store.await.expect("the URL is valid");
        match store.put_if("l/1", b"it", None).await {
            PutOutcome::Forbidden(cause) if is_for_good => {
                assert!(cause.to_string().contains("AWS_PROFILE"), "{cause}");
            }
            PutOutcome::Throttled { .. } if !is_for_good => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(front.take_actions().len(), 0);
    }
}

#[test]
fn the_schema_has_a_command_a_template_and_the_least_rights() {
    let text = DynamoStore::schema("dynamodb://my-locks?region=eu-central-1").expect("valid");
    for part in [
        "aws dynamodb create-table --region eu-central-1 --table-name my-locks",
        "AttributeName=p,KeyType=HASH AttributeName=k,KeyType=RANGE",
        "Type: AWS::DynamoDB::Table",
        "\"dynamodb:PutItem\"",
        "\"arn:aws:dynamodb:eu-central-1:*:table/my-locks\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let policy = &text[text.find("\n{").expect("the policy is last")..];
    let policy: Value = serde_json::from_str(policy).expect("it is JSON");
    let actions = policy["Statement"][0]["Action"].as_array().expect("it has actions");
    assert_eq!(actions.len(), 6);
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_before_any_request() {
    let urls = [
        ("dynamodb://", "dynamodb://TABLE"),
        ("dynamodb:table", "dynamodb://TABLE"),
        ("dynamodb://ab?region=x", "3 to 255"),
        ("dynamodb://table/prefix?region=x", "3 to 255"),
        ("dynamodb://key:secret@table", "AWS_ACCESS_KEY_ID"),
        ("dynamodb://table?region=eu central", "region= is a name"),
        ("dynamodb://table?region=", "region= is a name"),
        ("dynamodb://table?endpoint=127.0.0.1:8000", "endpoint= begins with https://"),
        ("dynamodb://table?region=x&retries=3", "retries is no option of a table"),
        ("dynamodb://table?region=x&pace=soon", "soon"),
    ];
    contract::refused_before_any_request(DynamoStore::open, &urls).await;
}

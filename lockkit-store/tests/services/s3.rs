//! A bucket as a store: what each answer of the server means, how many requests operations take, what is
//! refused, and that locks hold when answers are lost. The server is the lab's, in a process of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Renewal};
use lockkit_lab::s3::{S3Faults, S3Server};
use lockkit_store::object_store::aws::S3ConditionalPut;
use lockkit_store::{DocumentVersion, PutOutcome, S3Store, Store, StoreDriver, StoreOptions};
use tokio::time::sleep;

use crate::contract::{self, TTL, attempt, claim, counting, take};

fn server() -> S3Server {
    S3Server::start().expect("it listens")
}

/// A store of a client with this access key.
fn store_of(server: &S3Server, bucket: &str, key: &str) -> S3Store {
    let url = format!("s3://{bucket}/some/locks?endpoint={}", server.endpoint());
    let store = S3Store::open_with(&url, |client| {
        client.with_access_key_id(key).with_secret_access_key("secret")
    });
    store.expect("the URL is valid")
}

fn store(server: &S3Server) -> S3Store {
    store_of(server, "locks", "test")
}

#[tokio::test]
async fn writes_are_conditional_and_reads_show_them() {
    let server = server();
    contract::writes_are_conditional(&store(&server)).await;
    assert_eq!(server.objects().expect("it answers").len(), 0);
}

#[tokio::test]
async fn listings_are_in_order_and_over_all_pages() {
    let server = server();
    contract::listings_are_in_order(&store(&server)).await;
}

#[tokio::test]
async fn the_probe_passes_a_right_server_and_convicts_those_that_ignore_conditions() {
    let server = server();
    contract::the_probe_passes((0..10).map(|_| Arc::new(store(&server)) as _).collect()).await;
    contract::the_probe_convicts(|bucket| Arc::new(store_of(&server, bucket, "test"))).await;
}

/// The permanent error of a connection.
async fn refusal(server: &S3Server, bucket: &str, key: &str) -> String {
    contract::refusal(Arc::new(store_of(server, bucket, key))).await
}

#[tokio::test]
async fn what_will_not_work_is_a_permanent_error_that_says_what_to_do() {
    let server = server();
    let no_bucket = refusal(&server, "nowhere", "test").await;
    assert!(no_bucket.contains("there is no bucket nowhere: create it"), "{no_bucket}");
    let elsewhere = refusal(&server, "elsewhere", "test").await;
    assert!(elsewhere.contains("another region: name that as region="), "{elsewhere}");
    for right in ["GetObject", "PutObject", "DeleteObject", "ListBucket"] {
        let missing = refusal(&server, "locks", &format!("without-{right}")).await;
        assert!(missing.contains(&format!("s3:{right} on")), "{right}: {missing}");
    }
    let expired = refusal(&server, "locks", "expired").await;
    assert!(expired.contains("have expired (ExpiredToken): start this process"), "{expired}");
    let unknown = refusal(&server, "locks", "unknown").await;
    assert!(unknown.contains("check AWS_ACCESS_KEY_ID"), "{unknown}");
}

#[tokio::test]
async fn a_bucket_that_is_deleted_is_no_conflict() {
    let server = server();
    let store = store_of(&server, "nowhere", "test");
    let version = DocumentVersion::opaque("\"0\"");
    contract::a_missing_bucket_is_no_conflict(&store, &version).await;
}

#[tokio::test]
async fn what_is_no_answer_of_the_store_is_unknown_and_a_409_is_a_conflict() {
    let server = server();
    let refusals: [contract::Refusal; 2] = [
        (S3Faults { slow_down: 1.0, ..S3Faults::default() }, |it| {
            matches!(it, PutOutcome::Unknown(_))
        }),
        (S3Faults { conflicts: 1.0, ..S3Faults::default() }, |it| {
            matches!(it, PutOutcome::Conflict(_))
        }),
    ];
    contract::writes_meet_faults(&server, &store(&server), &refusals).await;
}

/// A store at this address, with settings as an environment may have them.
fn store_at(address: SocketAddr) -> S3Store {
    let url = format!("s3://locks?endpoint=http://{address}");
    let store = S3Store::open_with(&url, |client| {
        client
            .with_access_key_id("test")
            .with_secret_access_key("secret")
            .with_conditional_put(S3ConditionalPut::Disabled)
            .with_retry(lockkit_store::object_store::RetryConfig::default())
    });
    store.expect("the URL is valid")
}

#[tokio::test]
async fn a_put_is_one_request_on_the_wire_whatever_becomes_of_it() {
    let version = DocumentVersion::opaque("\"0\"");
    contract::a_put_is_one_request(|address| Arc::new(store_at(address)), &version, &[]).await;
    let conflict = "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n";
    let (address, requests) = counting(conflict).await;
    let put = store_at(address).put_if("l/1", b"END", Some(&version)).await;
    assert!(matches!(put, PutOutcome::Conflict(_)), "{put:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_retryable_error() {
    contract::a_server_that_is_not_there_is_retryable(|address| Arc::new(store_at(address))).await;
}

#[tokio::test]
async fn a_bucket_that_keeps_old_versions_is_a_finding() {
    let server = server();
    let store = Arc::new(store_of(&server, "versioned", "test"));
    StoreDriver::connect(store.clone(), StoreOptions::default()).await.expect("it works");
    let driver = StoreDriver::connect(store, StoreOptions::default()).await.expect("it works");
    let health = driver.health().await.expect("it answers");
    let finding = health.findings.first().expect("there is one");
    assert!(finding.advice.contains("expires noncurrent versions"), "{finding:?}");
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_before_any_request() {
    let urls = [
        ("s3://", "s3://BUCKET/PREFIX"),
        ("s3:bucket", "s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket", "put them into AWS_ACCESS_KEY_ID"),
        ("s3://bucket/a//b?region=x", "single slashes"),
        ("s3://bucket/a/../b?region=x", "single slashes"),
        ("s3://fast--euc1-az1--x-s3?region=x", "general purpose bucket"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "endpoint= begins with https://"),
        ("s3://bucket?region=x&retries=3", "retries is no option of an S3 bucket"),
        ("s3://bucket?region=x&pace=soon", "soon"),
    ];
    contract::refused_before_any_request(async |url| S3Store::open(url), &urls).await;
}

#[test]
fn the_schema_names_the_bucket_the_prefix_and_the_least_rights() {
    let commands = S3Store::schema("s3://my-locks/a/b?region=eu-central-1").expect("valid");
    let rights = ["GetObject", "PutObject", "DeleteObject", "ListBucket"];
    assert!(rights.iter().all(|right| commands.contains(&format!("\"s3:{right}\""))), "{commands}");
    assert!(commands.contains("mb s3://my-locks --region eu-central-1"), "{commands}");
    assert!(commands.contains("\"arn:aws:s3:::my-locks/a/b/*\""), "{commands}");
    let whole = S3Store::schema("s3://my-locks").expect("valid");
    assert!(whole.contains("\"arn:aws:s3:::my-locks/*\"") && whole.contains("REGION"), "{whole}");
    let policy = &commands[commands.find("'{").expect("there is a policy") + 1..];
    let policy: serde_json::Value =
        serde_json::from_str(policy.trim_end().trim_end_matches('\'')).expect("the policy is JSON");
    assert_eq!(policy["Statement"].as_array().map(Vec::len), Some(2));
    let compatible = S3Store::schema("s3://my-locks?endpoint=http://127.0.0.1:9").unwrap_err();
    assert!(compatible.to_string().contains("endpoint="), "{compatible}");
}

async fn driver(server: &S3Server) -> StoreDriver {
    contract::driver(Arc::new(store(server))).await
}

/// The requests since the last time, as their actions.
fn actions(server: &S3Server) -> Vec<String> {
    let log = server.take_log().expect("it answers");
    log.iter().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn operations_take_the_requests_that_the_page_says() {
    let server = server();
    let driver = driver(&server).await;
    let first = claim("a", TTL);
    actions(&server);
    take(&driver, &first).await;
    // The session's creation, a read of the shard that is not known yet, and the swap.
    assert_eq!(actions(&server), ["PutObject", "GetObject", "PutObject"], "the first acquire");
    driver.release(&first).await.expect("it works");
    assert_eq!(actions(&server), ["PutObject"], "a release");
    take(&driver, &first).await;
    assert_eq!(actions(&server), ["PutObject"], "an acquire");
    sleep(TTL / 5).await;
    driver.release(&first).await.expect("it works");
    actions(&server);
    take(&driver, &first).await;
    assert_eq!(actions(&server), ["PutObject", "PutObject"], "an acquire, with a beat before it");
    let renewed = driver.renew_single(&first).await.expect("it works");
    assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
    assert_eq!(actions(&server), ["PutObject", "GetObject"], "a renewal");
}

#[tokio::test]
async fn a_process_that_waits_reads_its_shard_once_a_second_however_many_wait() {
    let server = server();
    let (holder, waiting) = (driver(&server).await, driver(&server).await);
    take(&holder, &claim("a", TTL)).await;
    let waiters: Vec<_> = (0..5).map(|_| claim("a", TTL)).collect();
    for waiter in &waiters {
        let queued = attempt(&waiting, waiter, Patience::Wait).await;
        assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
    }
    let granted = waiters.iter().map(|waiter| waiting.granted(waiter));
    let watching = async {
        sleep(Duration::from_millis(1_500)).await;
        server.take_log().expect("it answers");
        sleep(Duration::from_secs(3)).await;
        server.take_log().expect("it answers")
    };
    let log = tokio::select! {
        log = watching => log,
        _ = futures_util::future::select_all(granted) => panic!("it is held"),
    };
    let reads = |what: &str| log.iter().filter(|line| line.contains(what)).count();
    assert!((2..=4).contains(&reads("/l/")), "about one a second: {log:#?}");
    assert!(reads("/s/") <= 2, "and one of the holder's session now and then: {log:#?}");
    let changed = log.iter().filter(|line| line.starts_with("Get") && line.ends_with("200"));
    assert!(changed.count() <= 2, "what has not changed is not sent: {log:#?}");
}

#[tokio::test]
async fn a_hold_whose_credentials_expire_ends_in_time_with_the_reason() {
    let server = server();
    let expired = S3Faults { expired: true, ..S3Faults::default() };
    let expire = async || server.set_faults(&expired).expect("it answers");
    let says = "credentials have expired";
    contract::a_hold_ends_in_time(Arc::new(store(&server)), expire, says).await;
}

#[tokio::test]
async fn locks_hold_while_answers_are_lost_and_requests_refused() {
    let server = server();
    let mixed = S3Faults {
        lost: 0.1,
        failed: 0.05,
        slow_down: 0.05,
        conflicts: 0.05,
        delay_ms: 10,
        ..S3Faults::default()
    };
    let disturb = || server.set_faults(&mixed).expect("it answers");
    contract::take_turns((0..3).map(|_| Arc::new(store(&server)) as _).collect(), disturb).await;
}

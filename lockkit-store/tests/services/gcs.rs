//! A bucket of Google Cloud Storage as a store: what each answer means, how often it is written, what is
//! refused, and that locks hold when answers are lost. The server is the lab's, which speaks the XML API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lockkit_core::LockManager;
use lockkit_core::driver::LockDriver;
use lockkit_lab::s3::{S3Faults, S3Server};
use lockkit_store::object_store::gcp::GoogleCloudStorageBuilder;
use lockkit_store::{DocumentVersion, GcsStore, PutOutcome, ReadOutcome, Store, StoreDriver};
use tokio::time::{sleep, timeout};

use crate::contract::{self, counting, driver, stored};
use crate::stores::quick;

fn server() -> S3Server {
    S3Server::start().expect("it listens")
}

/// A store of a client with this token.
fn store_of(server: &S3Server, bucket: &str, token: &str) -> GcsStore {
    let url = format!("gs://{bucket}/some/locks?endpoint={}", server.endpoint());
    GcsStore::open_with(&url, |client| client.with_bearer_token(token)).expect("the URL is valid")
}

fn store(server: &S3Server) -> GcsStore {
    store_of(server, "locks", "test")
}

/// A store at this address, with settings as an environment may have them.
fn store_at(address: SocketAddr) -> GcsStore {
    let url = format!("gs://locks?endpoint=http://{address}");
    let repeats = lockkit_store::object_store::RetryConfig::default();
    let store = GcsStore::open_with(&url, |client: GoogleCloudStorageBuilder| {
        client.with_retry(repeats).with_bearer_token("test").with_base_url("http://127.0.0.1:9")
    });
    store.expect("the URL is valid")
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
async fn the_probe_passes_also_where_an_object_is_written_once_a_second() {
    let server = server();
    let stores = ["locks", "paced"].repeat(5).into_iter();
    let stores = stores.map(|bucket| Arc::new(store_of(&server, bucket, "test")) as _);
    contract::the_probe_passes(stores.collect()).await;
    assert_eq!(server.objects().expect("it answers").len(), 0);
}

/// As the emulator's media uploads do.
#[tokio::test]
async fn the_probe_convicts_servers_that_ignore_or_invert_conditions() {
    let server = server();
    contract::the_probe_convicts(|bucket| Arc::new(store_of(&server, bucket, "test"))).await;
}

async fn refusal(server: &S3Server, bucket: &str, token: &str) -> String {
    contract::refusal(Arc::new(store_of(server, bucket, token))).await
}

#[tokio::test]
async fn what_will_not_work_is_a_permanent_error_that_says_what_to_do() {
    let server = server();
    let no_bucket = refusal(&server, "nowhere", "test").await;
    assert!(no_bucket.contains("there is no bucket nowhere: create it"), "{no_bucket}");
    for (action, right) in [
        ("GetObject", "storage.objects.get"),
        ("PutObject", "storage.objects.create"),
        ("DeleteObject", "storage.objects.delete"),
        ("ListBucket", "storage.objects.list"),
    ] {
        let missing = refusal(&server, "locks", &format!("without-{action}")).await;
        assert!(missing.contains("a right is missing in locks"), "{missing}");
        assert!(missing.contains(right), "{right}: {missing}");
    }
    let expired = refusal(&server, "locks", "expired").await;
    assert!(expired.contains("the credentials are refused (AuthenticationRequired"), "{expired}");
}

#[tokio::test]
async fn a_bucket_that_is_deleted_is_no_conflict() {
    let server = server();
    let version = DocumentVersion::opaque("7 \"0\"");
    let store = store_of(&server, "nowhere", "test");
    contract::a_missing_bucket_is_no_conflict(&store, &version).await;
}

#[tokio::test]
async fn a_429_was_not_carried_out_and_other_refusals_are_unknown_or_conflicts() {
    let server = server();
    let is_throttled = |put: &PutOutcome| match put {
        PutOutcome::Throttled { pause, cause } => {
            *pause >= Duration::from_secs(1) && cause.to_string().contains("rate limit")
        }
        _ => false,
    };
    let refusals: [contract::Refusal; 3] = [
        (S3Faults { throttled: 1.0, ..S3Faults::default() }, is_throttled),
        (S3Faults { slow_down: 1.0, ..S3Faults::default() }, |it| {
            matches!(it, PutOutcome::Unknown(_))
        }),
        (S3Faults { conflicts: 1.0, ..S3Faults::default() }, |it| {
            matches!(it, PutOutcome::Conflict(_))
        }),
    ];
    contract::writes_meet_faults(&server, &store(&server), &refusals).await;
}

#[tokio::test]
async fn a_put_is_one_request_on_the_wire_whatever_becomes_of_it() {
    let version = DocumentVersion::opaque("7 \"0\"");
    // Without the service's own word, these are a proxy's.
    let further = [
        "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n",
    ];
    let open = |address| Arc::new(store_at(address)) as Arc<dyn Store>;
    contract::a_put_is_one_request(open, &version, &further).await;
    let throttled = "HTTP/1.1 429 Too Many\r\ncontent-length: 30\r\n\r\n\
                     <Error><Code>SlowDown</Code>  ";
    let (address, requests) = counting(throttled).await;
    let put = store_at(address).put_if("l/1", b"END", Some(&version)).await;
    assert!(matches!(put, PutOutcome::Throttled { .. }), "{put:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_retryable_error() {
    contract::a_server_that_is_not_there_is_retryable(|address| Arc::new(store_at(address))).await;
}

/// Holds one after the other, and many together, at the real pace: a swap a second, and none is refused.
#[tokio::test]
async fn a_process_writes_a_shard_once_a_second_at_most() {
    let server = server();
    let store = store_of(&server, "paced", "test");
    let locks = LockManager::new(driver(Arc::new(store)).await);
    let begun = Instant::now();
    for _ in 0..2 {
        let guard = locks.mutex("a").lock().await.expect("it is free");
        guard.release().await.expect("it works");
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    let together = (0..20).map(async |_| {
        let guard = locks.semaphore("many", 20).acquire().await.expect("it is free");
        guard.release().await.expect("it works");
    });
    let begun = Instant::now();
    futures_util::future::join_all(together).await;
    assert!(begun.elapsed() < Duration::from_secs(8), "they share swaps: {:?}", begun.elapsed());
    let log = server.take_log().expect("it answers");
    let refused: Vec<_> = log.iter().filter(|line| line.ends_with(" 429")).collect();
    assert!(refused.is_empty(), "{refused:?}");
    locks.shutdown().await;
}

#[tokio::test]
async fn a_hold_whose_credentials_expire_ends_in_time_with_the_reason() {
    let server = server();
    let expired = S3Faults { expired: true, ..S3Faults::default() };
    let expire = async || server.set_faults(&expired).expect("it answers");
    let says = "credentials are refused";
    contract::a_hold_ends_in_time(Arc::new(store(&server)), expire, says).await;
}

#[tokio::test]
async fn a_bucket_of_another_class_is_a_finding() {
    let server = server();
    let store = Arc::new(store_of(&server, "nearline", "test"));
    let connect = async || StoreDriver::connect(store.clone(), quick()).await;
    connect().await.expect("it works");
    let health = connect().await.expect("it works").health().await.expect("it answers");
    let finding = health.findings.first().expect("there is one");
    assert!(finding.advice.contains("STANDARD"), "{finding:?}");
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_before_any_request() {
    let urls = [
        ("gs://", "gs://BUCKET/PREFIX"),
        ("gs:bucket", "gs://BUCKET/PREFIX"),
        ("gs://key:secret@bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket/a//b", "single slashes"),
        ("gs://bucket?endpoint=127.0.0.1:9000", "endpoint= begins with https://"),
        ("gs://bucket?region=x", "region is no option of a bucket of Google Cloud Storage"),
        ("gs://bucket?pace=soon", "soon"),
    ];
    contract::refused_before_any_request(async |url| GcsStore::open(url), &urls).await;
}

#[test]
fn the_schema_names_the_bucket_and_the_least_rights() {
    let commands = GcsStore::schema("gs://my-locks/a").expect("the URL is valid");
    let rights =
        ["create", "delete", "get", "list"].map(|right| format!("storage.objects.{right}"));
    assert!(rights.iter().all(|right| commands.contains(right)), "{commands}");
    assert!(commands.contains("create gs://my-locks") && !commands.contains("{bucket}"));
}

#[tokio::test]
async fn locks_hold_while_answers_are_lost_and_requests_refused() {
    let server = server();
    let mixed = S3Faults {
        lost: 0.1,
        failed: 0.05,
        slow_down: 0.05,
        throttled: 0.05,
        conflicts: 0.05,
        delay_ms: 10,
        ..S3Faults::default()
    };
    let disturb = || server.set_faults(&mixed).expect("it answers");
    contract::take_turns((0..3).map(|_| Arc::new(store(&server)) as _).collect(), disturb).await;
}

/// Several processes at the pace of GCS on one shard: refusals are waited out.
#[tokio::test]
async fn processes_that_share_a_shard_wait_out_refusals() {
    let server = server();
    let turns = (0..3).map(async |_| {
        let store = Arc::new(store_of(&server, "paced", "test"));
        let locks = LockManager::new(driver(store).await);
        for _ in 0..2 {
            let guard = loop {
                match locks.mutex("a").lock().await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            sleep(Duration::from_millis(10)).await;
            let _ = guard.release().await;
        }
        locks.shutdown().await;
    });
    let turns = futures_util::future::join_all(turns);
    timeout(Duration::from_secs(120), turns).await.expect("it goes on");
}

#[tokio::test]
async fn a_read_that_moves_no_bytes_names_the_etag() {
    let server = server();
    let store = store(&server);
    let version = stored(&store, "l/1", "one").await;
    let (generation, etag) = version.as_str().split_once(' ').expect("both are in it");
    assert!(generation.parse::<u64>().is_ok() && etag.starts_with('"'), "{version:?}");
    let other = DocumentVersion::opaque(format!("{generation} \"other\""));
    let read = store.get("l/1", Some(&other)).await.expect("it works");
    assert!(matches!(read, ReadOutcome::Document(_)), "{read:?}");
}

//! A bucket as a store: what each answer of the server means, how many requests operations take, what is
//! refused, and that locks hold when answers are lost. The server is the lab's, in a process of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Renewal};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::s3::{S3Faults, S3Server};
use lockkit_store::object_store::aws::S3ConditionalPut;
use lockkit_store::{
    DocumentVersion, PutOutcome, ReadOutcome, S3Store, Store, StoreDriver, StoreError,
    StoreOptions, probe,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

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

async fn stored(store: &S3Store, key: &str, text: &str) -> DocumentVersion {
    match store.put_if(key, text.as_bytes(), None).await {
        PutOutcome::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

async fn text(store: &S3Store, key: &str) -> Option<String> {
    match store.get(key, None).await.expect("it works") {
        ReadOutcome::Document(document) => Some(String::from_utf8(document.bytes).expect("UTF-8")),
        ReadOutcome::Absent => None,
        ReadOutcome::Same => panic!("it was not asked for"),
    }
}

#[tokio::test]
async fn writes_are_conditional_and_reads_show_them() {
    let server = server();
    let store = store(&server);
    assert_eq!(text(&store, "l/1").await, None);
    let first = stored(&store, "l/1", "one").await;
    let again = store.put_if("l/1", b"two", None).await;
    assert!(matches!(again, PutOutcome::Conflict(_)), "{again:?}");
    let PutOutcome::Stored(second) = store.put_if("l/1", b"three", Some(&first)).await else {
        panic!("the version is right");
    };
    let stale = store.put_if("l/1", b"four", Some(&first)).await;
    assert!(matches!(stale, PutOutcome::Conflict(_)), "{stale:?}");
    let missing = store.put_if("l/2", b"five", Some(&first)).await;
    assert!(matches!(missing, PutOutcome::Conflict(_)), "{missing:?}");
    assert_eq!(text(&store, "l/1").await.as_deref(), Some("three"));
    assert_eq!(text(&store, "l/2").await, None);
    let same = store.get("l/1", Some(&second)).await.expect("it works");
    assert!(matches!(same, ReadOutcome::Same), "{same:?}");
    let other = store.get("l/1", Some(&first)).await.expect("it works");
    assert!(matches!(other, ReadOutcome::Document(_)), "{other:?}");
    store.remove("l/1").await.expect("it works");
    store.remove("l/1").await.expect("nothing is there");
    assert_eq!(text(&store, "l/1").await, None);
    assert_eq!(server.objects().expect("it answers").len(), 0);
}

#[tokio::test]
async fn listings_are_in_order_and_over_all_pages() {
    let server = server();
    let store = store(&server);
    for key in ["s/c", "s/a", "r/x/y", "s/b", "r/x-1"] {
        stored(&store, key, "{}").await;
    }
    let list = async |prefix: &'static str, after: Option<&'static str>, limit: usize| {
        store.list(prefix, after, limit).await.expect("it works")
    };
    assert_eq!(list("s/", None, 10).await, ["s/a", "s/b", "s/c"]);
    assert_eq!(list("s/", Some("s/a"), 1).await, ["s/b"]);
    assert_eq!(list("r/x/", None, 10).await, ["r/x/y"]);
    assert_eq!(list("r/", Some("r/x/~"), 10).await, Vec::<String>::new());
    assert_eq!(list("b/", None, 10).await, Vec::<String>::new());
    for n in 0..1_050 {
        stored(&store, &format!("p/{n:04}"), "{}").await;
    }
    let all = list("p/", None, 2_000).await;
    assert_eq!((all.len(), all.is_sorted()), (1_050, true));
}

#[tokio::test]
async fn the_probe_passes_a_right_server_and_convicts_those_that_ignore_conditions() {
    let server = server();
    for _ in 0..10 {
        probe(Arc::new(store(&server))).await.expect("it compares and swaps");
    }
    assert_eq!(server.objects().expect("it answers").len(), 0);
    for (bucket, check) in [
        ("lenient", "create of a key that exists: it succeeded"),
        ("inverted", "create of a new key: is refused"),
    ] {
        let wrong = Arc::new(store_of(&server, bucket, "test"));
        let refused = probe(wrong.clone()).await.expect_err("it is wrong");
        assert!(!refused.is_retryable() && refused.to_string().contains(check), "{refused}");
        let driver = StoreDriver::connect(wrong, StoreOptions::default()).await;
        assert!(driver.expect_err("it is wrong").to_string().contains(check));
    }
}

/// The permanent error of a connection.
async fn refusal(server: &S3Server, bucket: &str, key: &str) -> String {
    let store = Arc::new(store_of(server, bucket, key));
    let error = StoreDriver::connect(store, StoreOptions::default()).await.expect_err("refused");
    assert!(!error.is_retryable(), "{error}");
    error.to_string()
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
    for expected in [None, Some(&version)] {
        let put = store.put_if("l/1", b"{}", expected).await;
        assert!(matches!(put, PutOutcome::Forbidden(_)), "{put:?}");
    }
    let read = store.get("l/1", None).await;
    assert!(matches!(read, Err(StoreError::Forbidden(_))), "{read:?}");
}

#[tokio::test]
async fn what_is_no_answer_of_the_store_is_unknown_and_a_409_is_a_conflict() {
    let server = server();
    let store = store(&server);
    let version = stored(&store, "l/1", "one").await;
    let faults = |faults: S3Faults| server.set_faults(&faults).expect("it answers");
    for (key, expected) in [("l/2", None), ("l/1", Some(&version))] {
        let before = text(&store, key).await;
        faults(S3Faults { slow_down: 1.0, ..S3Faults::default() });
        let put = store.put_if(key, b"slow down", expected).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        faults(S3Faults { conflicts: 1.0, ..S3Faults::default() });
        let put = store.put_if(key, b"409", expected).await;
        assert!(matches!(put, PutOutcome::Conflict(_)), "{put:?}");
        faults(S3Faults::default());
        assert_eq!(text(&store, key).await, before);
    }
    for (key, lost, failed) in [("l/3", 1.0, 0.0), ("l/4", 0.0, 1.0)] {
        faults(S3Faults { lost, failed, ..S3Faults::default() });
        let put = store.put_if(key, b"carried out", None).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        let read = store.get(key, None).await;
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        faults(S3Faults::default());
        assert_eq!(text(&store, key).await.as_deref(), Some("carried out"));
    }
}

/// A server that counts requests and answers each with this, or with nothing.
async fn counting(answer: &'static str) -> (S3Store, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has one");
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let (mut read, mut on_this) = (Vec::new(), 0);
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    read.extend_from_slice(&buffer[..count]);
                    // Each document ends so.
                    if !read.ends_with(b"END") {
                        continue;
                    }
                    read.clear();
                    on_this += 1;
                    counted.fetch_add(1, Ordering::SeqCst);
                    match answer {
                        // The second request of a connection finds it closed.
                        "CLOSE" if on_this == 2 => return,
                        "CLOSE" => {
                            let created =
                                "HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: 0\r\n\r\n";
                            stream.write_all(created.as_bytes()).await.expect("it reads");
                        }
                        "SILENCE" => {}
                        answer => stream.write_all(answer.as_bytes()).await.expect("it reads"),
                    }
                }
            });
        }
    });
    let url = format!("s3://locks?endpoint=http://{address}");
    let store = S3Store::open_with(&url, |client| {
        // As an environment may have it.
        client
            .with_access_key_id("test")
            .with_secret_access_key("secret")
            .with_conditional_put(S3ConditionalPut::Disabled)
            .with_retry(lockkit_store::object_store::RetryConfig::default())
    });
    (store.expect("the URL is valid"), requests)
}

#[tokio::test]
async fn a_put_is_one_request_on_the_wire_whatever_becomes_of_it() {
    let version = DocumentVersion::opaque("\"0\"");
    let answers = [
        "HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 500 Internal Error\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\ncontent-length: 13\r\n\r\n<p>A proxy</p>",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 13\r\n\r\n<p>A proxy</p>",
        "SILENCE",
    ];
    let puts = answers.iter().flat_map(|answer| [(*answer, None), (*answer, Some(&version))]);
    let checked = puts.map(async |(answer, expected)| {
        let (store, requests) = counting(answer).await;
        let put = timeout(Duration::from_secs(8), store.put_if("l/1", b"END", expected)).await;
        let put = put.expect("it ends in bounded time");
        assert!(matches!(put, PutOutcome::Unknown(_)), "{answer}: {put:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{answer}");
    });
    futures_util::future::join_all(checked).await;
    let conflict = "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n";
    let (store, requests) = counting(conflict).await;
    let put = store.put_if("l/1", b"END", Some(&version)).await;
    assert!(matches!(put, PutOutcome::Conflict(_)), "{put:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_on_a_connection_that_closes_is_not_sent_again() {
    let version = DocumentVersion::opaque("\"0\"");
    for _ in 0..50 {
        let (store, requests) = counting("CLOSE").await;
        let put = store.put_if("l/1", b"END", None).await;
        assert!(matches!(put, PutOutcome::Stored(_)), "{put:?}");
        let put = store.put_if("l/1", b"END", Some(&version)).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_retryable_error() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = closed.local_addr().expect("it has one");
    drop(closed);
    let url = format!("s3://locks?endpoint=http://{address}");
    let store = S3Store::open_with(&url, |client| {
        client.with_access_key_id("test").with_secret_access_key("secret")
    });
    let store = Arc::new(store.expect("the URL is valid"));
    let error = StoreDriver::connect(store, StoreOptions::default()).await.expect_err("no server");
    assert!(error.is_retryable(), "{error}");
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

#[test]
fn urls_that_cannot_work_are_refused_before_any_request() {
    for (url, says) in [
        ("s3://", "s3://BUCKET/PREFIX"),
        ("s3:bucket", "s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket", "put them into AWS_ACCESS_KEY_ID"),
        ("s3://bucket/a//b?region=x", "single slashes"),
        ("s3://bucket/a/../b?region=x", "single slashes"),
        ("s3://fast--euc1-az1--x-s3?region=x", "general purpose bucket"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "endpoint= begins with https://"),
        ("s3://bucket?region=x&retries=3", "retries is no option of an S3 bucket"),
        ("s3://bucket?region=x&pace=soon", "soon"),
    ] {
        let refused = S3Store::open(url).expect_err("it cannot work");
        assert!(matches!(refused, Error::Config(_)), "{url}: {refused}");
        let shown = refused.to_string();
        assert!(shown.contains(says) && !shown.contains("secret"), "{url}: {shown}");
    }
}

const TTL: Duration = Duration::from_secs(6);

async fn driver(server: &S3Server) -> StoreDriver {
    let options = StoreOptions::default().skip_probe();
    StoreDriver::connect(Arc::new(store(server)), options).await.expect("it works")
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).expect("it is valid"));
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, me))
}

async fn take(driver: &StoreDriver, claim: &Arc<Claim>, patience: Patience) -> Acquisition {
    driver.acquire(claim, patience).await.expect("it works").result
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
    let (first, second) = (claim("a"), claim("b"));
    actions(&server);
    assert!(matches!(take(&driver, &first, Patience::Try).await, Acquisition::Granted(_)));
    // The session's creation, a read of the shard that is not known yet, and the swap.
    assert_eq!(actions(&server), ["PutObject", "GetObject", "PutObject"], "the first acquire");
    driver.release(&first).await.expect("it works");
    assert_eq!(actions(&server), ["PutObject"], "a release");
    assert!(matches!(take(&driver, &first, Patience::Try).await, Acquisition::Granted(_)));
    assert_eq!(actions(&server), ["PutObject"], "an acquire");
    sleep(TTL / 5).await;
    driver.release(&first).await.expect("it works");
    actions(&server);
    assert!(matches!(take(&driver, &first, Patience::Try).await, Acquisition::Granted(_)));
    assert_eq!(actions(&server), ["PutObject", "PutObject"], "an acquire, with a beat before it");
    let renewed = driver.renew_single(&first).await.expect("it works");
    assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
    assert_eq!(actions(&server), ["PutObject", "GetObject"], "a renewal");
    let _ = second;
}

#[tokio::test]
async fn a_process_that_waits_reads_its_shard_once_a_second_however_many_wait() {
    let server = server();
    let (holder, waiting) = (driver(&server).await, driver(&server).await);
    assert!(matches!(take(&holder, &claim("a"), Patience::Try).await, Acquisition::Granted(_)));
    let waiters: Vec<_> = (0..5).map(|_| claim("a")).collect();
    for waiter in &waiters {
        assert!(matches!(take(&waiting, waiter, Patience::Wait).await, Acquisition::Queued { .. }));
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
    let settings = Settings::default().ttl(TTL);
    let locks = LockManager::with(Arc::new(driver(&server).await), settings).expect("valid");
    let guard = locks.mutex("a").lock().await.expect("it is free");
    server.set_faults(&S3Faults { expired: true, ..S3Faults::default() }).expect("it answers");
    let reason = timeout(TTL, guard.lost()).await.expect("it ends with its lease");
    assert!(reason.to_string().contains("credentials have expired"), "{reason}");
    server.set_faults(&S3Faults::default()).expect("it answers");
}

/// Clients take a lock again and again; it is never held twice, and tokens grow.
async fn take_turns(server: &S3Server, faults: S3Faults) {
    let (is_held, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let options = StoreOptions::default()
            .skip_probe()
            .pace(Duration::from_millis(50))
            .min_ttl(Duration::from_millis(500));
        let connected = StoreDriver::connect(Arc::new(store(server)), options).await;
        let driver = Arc::new(connected.expect("nothing is disturbed yet"));
        let (is_held, last) = (is_held.clone(), last.clone());
        tasks.push(async move {
            let locks = LockManager::with(driver, Settings::default().ttl(TTL)).expect("valid");
            for _ in 0..8 {
                let guard = loop {
                    match locks.mutex("turns").lock().await {
                        Ok(guard) => break guard,
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                };
                assert!(!is_held.swap(true, Ordering::SeqCst), "two hold at once");
                let token = guard.token().expect("it is held").get();
                let before = last.swap(token as usize, Ordering::SeqCst);
                assert!(token as usize > before, "{token} after {before}");
                sleep(Duration::from_millis(2)).await;
                is_held.store(false, Ordering::SeqCst);
                let _ = guard.release().await;
            }
            locks.shutdown().await;
        });
    }
    server.set_faults(&faults).expect("it answers");
    futures_util::future::join_all(tasks).await;
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
    timeout(Duration::from_secs(60), take_turns(&server, mixed)).await.expect("it goes on");
}

//! What tests of the services have in common: the contract of a store, a server that counts what it is sent, and
//! clients that take turns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::s3::{S3Faults, S3Server};
use lockkit_store::{
    DocumentVersion, PutOutcome, ReadOutcome, Store, StoreDriver, StoreError, StoreOptions, probe,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::stores::quick;

pub(crate) const TTL: Duration = Duration::from_secs(6);

pub(crate) fn claim(name: &str, ttl: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).expect("it is valid"));
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me))
}

/// A driver at the store's own pace.
pub(crate) async fn driver(store: Arc<dyn Store>) -> StoreDriver {
    let options = StoreOptions::default().skip_probe();
    StoreDriver::connect(store, options).await.expect("it works")
}

pub(crate) async fn attempt(
    driver: &StoreDriver,
    claim: &Arc<Claim>,
    patience: Patience,
) -> Acquisition {
    driver.acquire(claim, patience).await.expect("it works").result
}

pub(crate) async fn take(driver: &StoreDriver, claim: &Arc<Claim>) {
    let taken = attempt(driver, claim, Patience::Try).await;
    assert!(matches!(taken, Acquisition::Granted(_)), "{taken:?}");
}

pub(crate) async fn stored(store: &dyn Store, key: &str, text: &str) -> DocumentVersion {
    match store.put_if(key, text.as_bytes(), None).await {
        PutOutcome::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn text(store: &dyn Store, key: &str) -> Option<String> {
    match store.get(key, None).await.expect("it works") {
        ReadOutcome::Document(document) => Some(String::from_utf8(document.bytes).expect("UTF-8")),
        ReadOutcome::Absent => None,
        ReadOutcome::Same => panic!("it was not asked for"),
    }
}

/// Writes under all conditions, and reads.
pub(crate) async fn writes_are_conditional(store: &dyn Store) {
    assert_eq!(text(store, "l/1").await, None);
    let first = stored(store, "l/1", "one").await;
    let again = store.put_if("l/1", b"two", None).await;
    assert!(matches!(again, PutOutcome::Conflict(_)), "{again:?}");
    let PutOutcome::Stored(second) = store.put_if("l/1", b"three", Some(&first)).await else {
        panic!("the version is right");
    };
    let stale = store.put_if("l/1", b"four", Some(&first)).await;
    assert!(matches!(stale, PutOutcome::Conflict(_)), "{stale:?}");
    let missing = store.put_if("l/2", b"five", Some(&first)).await;
    assert!(matches!(missing, PutOutcome::Conflict(_)), "{missing:?}");
    assert_eq!(text(store, "l/1").await.as_deref(), Some("three"));
    assert_eq!(text(store, "l/2").await, None);
    let same = store.get("l/1", Some(&second)).await.expect("it works");
    assert!(matches!(same, ReadOutcome::Same), "{same:?}");
    let other = store.get("l/1", Some(&first)).await.expect("it works");
    assert!(matches!(other, ReadOutcome::Document(_)), "{other:?}");
    store.remove("l/1").await.expect("it works");
    store.remove("l/1").await.expect("nothing is there");
    assert_eq!(text(store, "l/1").await, None);
    let removed = store.put_if("l/1", b"six", Some(&second)).await;
    assert!(matches!(removed, PutOutcome::Conflict(_)), "{removed:?}");
}

/// Pages of keys, in a store that has none.
pub(crate) async fn listings_are_in_order(store: &dyn Store) {
    for key in ["s/c", "s/a", "r/x/y", "s/b", "r/x-1"] {
        stored(store, key, "{}").await;
    }
    let list = async |prefix: &'static str, after: Option<&'static str>, limit: usize| {
        store.list(prefix, after, limit).await.expect("it works")
    };
    assert_eq!(list("s/", None, 10).await, ["s/a", "s/b", "s/c"]);
    assert_eq!(list("s/", Some("s/a"), 1).await, ["s/b"]);
    assert_eq!(list("r/x/", None, 10).await, ["r/x/y"]);
    assert_eq!(list("r/", Some("r/x/~"), 10).await, Vec::<String>::new());
    assert_eq!(list("b/", None, 10).await, Vec::<String>::new());
    let keys: Vec<_> = (0..1_050).map(|n| format!("p/{n:04}")).collect();
    for keys in keys.chunks(50) {
        futures_util::future::join_all(keys.iter().map(|key| stored(store, key, "{}"))).await;
    }
    let all = list("p/", None, 2_000).await;
    assert_eq!((all.len(), all.is_sorted()), (1_050, true));
    assert_eq!(list("p/", Some("p/1000"), 2_000).await.len(), 49);
}

/// The probe passes each of these stores, and leaves nothing behind.
pub(crate) async fn the_probe_passes(stores: Vec<Arc<dyn Store>>) {
    let looking = stores.first().cloned().expect("there is one");
    let probes = stores.into_iter().map(probe);
    for passed in futures_util::future::join_all(probes).await {
        passed.expect("it compares and swaps");
    }
    assert_eq!(looking.list("", None, 10).await.expect("it works"), Vec::<String>::new());
}

/// The probe convicts servers that ignore or invert conditions, the buckets `lenient` and `inverted`.
pub(crate) async fn the_probe_convicts(open: impl Fn(&str) -> Arc<dyn Store>) {
    for (bucket, check) in [
        ("lenient", "create of a key that exists: it succeeded"),
        ("inverted", "create of a new key: is refused"),
    ] {
        let refused = probe(open(bucket)).await.expect_err("it is wrong");
        assert!(!refused.is_retryable() && refused.to_string().contains(check), "{refused}");
        let driver = StoreDriver::connect(open(bucket), StoreOptions::default()).await;
        assert!(driver.expect_err("it is wrong").to_string().contains(check));
    }
}

/// A fault, and which answers to a write are right under it.
pub(crate) type Refusal = (S3Faults, fn(&PutOutcome) -> bool);

/// Under each of these faults nothing is carried out, and the answer is the right one; what is carried out while
/// its answer is lost is unknown.
pub(crate) async fn writes_meet_faults(server: &S3Server, store: &dyn Store, refusals: &[Refusal]) {
    let version = stored(store, "l/1", "one").await;
    let set = |faults: &S3Faults| server.set_faults(faults).expect("it answers");
    for (key, expected) in [("l/2", None), ("l/1", Some(&version))] {
        let before = text(store, key).await;
        for (faults, is_right) in refusals {
            set(faults);
            let put = store.put_if(key, b"refused", expected).await;
            assert!(is_right(&put), "{faults:?}: {put:?}");
        }
        set(&S3Faults::default());
        assert_eq!(text(store, key).await, before);
    }
    for (key, lost, failed) in [("l/3", 1.0, 0.0), ("l/4", 0.0, 1.0)] {
        set(&S3Faults { lost, failed, ..S3Faults::default() });
        let put = store.put_if(key, b"carried out", None).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        let read = store.get(key, None).await;
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        set(&S3Faults::default());
        assert_eq!(text(store, key).await.as_deref(), Some("carried out"));
    }
}

/// A hold ends with its lease, and says why, once its store refuses.
pub(crate) async fn a_hold_ends_in_time(
    store: Arc<dyn Store>,
    refuse: impl AsyncFnOnce(),
    says: &str,
) {
    let driver = StoreDriver::connect(store, quick()).await.expect("it works");
    let settings = Settings::default().ttl(TTL);
    let locks = LockManager::with(Arc::new(driver), settings).expect("valid");
    let guard = locks.mutex("a").lock().await.expect("it is free");
    refuse().await;
    let reason = timeout(TTL, guard.lost()).await.expect("it ends with its lease");
    assert!(reason.to_string().contains(says), "{reason}");
}

/// The permanent error of a connection.
pub(crate) async fn refusal(store: Arc<dyn Store>) -> String {
    let error = StoreDriver::connect(store, StoreOptions::default()).await.expect_err("refused");
    assert!(!error.is_retryable(), "{error}");
    error.to_string()
}

/// A bucket that is not there is neither a conflict nor an object that is not there.
pub(crate) async fn a_missing_bucket_is_no_conflict(store: &dyn Store, version: &DocumentVersion) {
    for expected in [None, Some(version)] {
        let put = store.put_if("l/1", b"{}", expected).await;
        assert!(matches!(put, PutOutcome::Forbidden(_)), "{put:?}");
    }
    let read = store.get("l/1", None).await;
    assert!(matches!(read, Err(StoreError::Forbidden(_))), "{read:?}");
}

/// A server that counts requests and answers each with this, or with nothing.
pub(crate) async fn counting(answer: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
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
                            let created = "HTTP/1.1 200 OK\r\netag: \"1\"\r\nx-goog-generation: 1\r\n\
                                           content-length: 0\r\n\r\n";
                            stream.write_all(created.as_bytes()).await.expect("it reads");
                        }
                        "SILENCE" => {}
                        answer => stream.write_all(answer.as_bytes()).await.expect("it reads"),
                    }
                }
            });
        }
    });
    (address, requests)
}

/// What a proxy may answer, which says nothing about the store.
const NO_ANSWERS: [&str; 9] = [
    "HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 500 Internal Error\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 500 Internal Error\r\ncontent-length: 69\r\n\r\n\
     <Error><Code>InternalError</Code><Message>an error</Message></Error>\n",
    "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 307 Temporary Redirect\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 403 Forbidden\r\ncontent-length: 14\r\n\r\n<p>A proxy</p>",
    "HTTP/1.1 404 Not Found\r\ncontent-length: 14\r\n\r\n<p>A proxy</p>",
    "SILENCE",
];

/// A put is one request, and unknown where the store itself does not answer; also on a connection that closes.
pub(crate) async fn a_put_is_one_request(
    open: impl Fn(SocketAddr) -> Arc<dyn Store>,
    version: &DocumentVersion,
    further: &[&'static str],
) {
    let answers = NO_ANSWERS.iter().chain(further);
    let puts = answers.flat_map(|answer| [(*answer, None), (*answer, Some(version))]);
    let checked = puts.map(async |(answer, expected)| {
        let (address, requests) = counting(answer).await;
        let store = open(address);
        let put = timeout(Duration::from_secs(8), store.put_if("l/1", b"END", expected)).await;
        let put = put.expect("it ends in bounded time");
        assert!(matches!(put, PutOutcome::Unknown(_)), "{answer}: {put:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{answer}");
    });
    futures_util::future::join_all(checked).await;
    for _ in 0..50 {
        let (address, requests) = counting("CLOSE").await;
        let store = open(address);
        let put = store.put_if("l/1", b"END", None).await;
        assert!(matches!(put, PutOutcome::Stored(_)), "{put:?}");
        let put = store.put_if("l/1", b"END", Some(version)).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }
}

/// Where nothing listens.
pub(crate) async fn a_server_that_is_not_there_is_retryable(
    open: impl Fn(SocketAddr) -> Arc<dyn Store>,
) {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = closed.local_addr().expect("it has one");
    drop(closed);
    let connected = StoreDriver::connect(open(address), StoreOptions::default()).await;
    let error = connected.expect_err("no server");
    assert!(error.is_retryable(), "{error}");
}

/// URLs that cannot work, and what the errors say.
pub(crate) async fn refused_before_any_request<S: std::fmt::Debug>(
    open: impl AsyncFn(&str) -> Result<S, Error>,
    urls: &[(&str, &str)],
) {
    for (url, says) in urls {
        let refused = open(url).await.expect_err("it cannot work");
        assert!(matches!(refused, Error::Config(_)), "{url}: {refused}");
        let shown = refused.to_string();
        assert!(shown.contains(says) && !shown.contains("secret"), "{url}: {shown}");
    }
}

/// Clients take a lock again and again, in a store that is disturbed; it is never held twice, and tokens grow.
pub(crate) async fn take_turns(stores: Vec<Arc<dyn Store>>, disturb: impl FnOnce()) {
    let (is_held, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for store in stores {
        let connected = StoreDriver::connect(store, quick()).await;
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
    disturb();
    let turns = futures_util::future::join_all(tasks);
    timeout(Duration::from_secs(90), turns).await.expect("it goes on");
}

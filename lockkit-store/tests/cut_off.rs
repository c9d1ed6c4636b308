//! A process that is cut off for longer than its TTL: its session is ended by others, its guard has ended
//! before, and its waiters enter their queue again under another session.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::TokioClock;
use lockkit_core::{Guard, LockManager, LossReason, Settings, Space};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::s3::S3Server;
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{S3Store, StoreDriver, StoreOptions};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LOCK: &str = "a";
const TTL: Duration = Duration::from_secs(3);

fn manager(driver: StoreDriver) -> LockManager {
    let settings = Settings::default().ttl(TTL).wait_ttl(TTL);
    LockManager::with(Arc::new(driver), settings).expect("the settings are valid")
}

/// A wait for the lock in the background.
fn wait(locks: &LockManager) -> JoinHandle<Result<Guard, lockkit_core::Error>> {
    let mutex = locks.mutex(LOCK);
    tokio::spawn(async move { mutex.lock().await })
}

async fn token(waiting: JoinHandle<Result<Guard, lockkit_core::Error>>) -> (u64, Guard) {
    let waited = timeout(TTL * 10, waiting).await.expect("it is not forgotten");
    let guard = waited.expect("it does not panic").expect("a wait outlasts the fault");
    (guard.token().expect("it is valid").get(), guard)
}

/// The token of a turn, which is over at once.
async fn turn(waiting: JoinHandle<Result<Guard, lockkit_core::Error>>) -> u64 {
    let (token, guard) = token(waiting).await;
    guard.release().await.expect("it is held");
    token
}

async fn queue_of(locks: &LockManager, length: usize) {
    let queued = async {
        while locks
            .inspect(Space::Lock, LOCK)
            .await
            .map_or(true, |state| state.queue.len() != length)
        {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TTL * 4, queued).await.expect("the claims enter the queue");
}

/// Three of the process that is cut off: a holder, a waiter that is queued by then, and one that asks for the
/// lock meanwhile; and a waiter of another process.
async fn all_have_their_turn<H: Future<Output = ()>>(
    (ours, theirs): (LockManager, LockManager),
    cut: impl FnOnce(),
    heal: impl FnOnce() -> H,
) {
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    let first = guard.token().expect("it is valid").get();
    let queued = wait(&ours);
    queue_of(&theirs, 2).await;
    let waiting = wait(&theirs);
    queue_of(&theirs, 3).await;
    cut();
    let late = wait(&ours);
    let (second, next) = token(waiting).await;
    assert!(!guard.is_valid(), "the guard has ended before another one begins");
    assert!(second > first, "{second} after {first}");
    let told = timeout(TTL, guard.lost()).await.expect("the one who is cut off knows");
    assert!(matches!(told, LossReason::Unreachable(_)), "{told:?}");
    heal().await;
    drop(guard);
    assert_eq!(next.verify().await.expect("it holds still").get(), second);
    drop(next);
    // In either order: both enter the queue again.
    let (third, fourth) = tokio::join!(turn(queued), turn(late));
    assert!(third > second && fourth > second && third != fourth, "{third}, {fourth}");
    // Nothing is left of the claims that ended with their session.
    queue_of(&theirs, 0).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_that_was_cut_off_wait_on() {
    let store = TestStore::new();
    let cut_off = store.client(1);
    let connect = async |store: &TestStore| {
        let options = StoreOptions::default().clock(TokioClock::shared());
        manager(StoreDriver::connect(Arc::new(store.clone()), options).await.expect("it works"))
    };
    let managers = (connect(&cut_off).await, connect(&store).await);
    let is_partitioned = |is_partitioned| Faults { is_partitioned, ..Faults::default() };
    let cut = || cut_off.set_faults(is_partitioned(true));
    all_have_their_turn(managers, cut, async || cut_off.set_faults(is_partitioned(false))).await;
}

#[tokio::test]
async fn waiters_of_a_process_that_was_cut_off_from_a_bucket_wait_on() {
    let server = S3Server::start().expect("it listens");
    let target = server.endpoint();
    let address = target.strip_prefix("http://").and_then(|it| it.parse().ok());
    let proxy = Proxy::start(address.expect("it is an address"), Protocol::Unknown).await;
    let proxy = proxy.expect("it listens");
    let connect = async |endpoint: &str| {
        let url = format!("s3://locks/test?endpoint={endpoint}");
        let store = S3Store::open_with(&url, |client| {
            client.with_access_key_id("test").with_secret_access_key("secret")
        });
        let options =
            StoreOptions::default().pace(Duration::from_millis(50)).min_ttl(TTL / 6).skip_probe();
        let store = Arc::new(store.expect("the URL is valid"));
        manager(StoreDriver::connect(store, options).await.expect("it works"))
    };
    let through = format!("http://{}", proxy.addr());
    let managers = (connect(&through).await, connect(&target).await);
    let cut = || drop(proxy.fault(ProxyFault::BlackHole, When::Now));
    all_have_their_turn(managers, cut, async || proxy.heal().await.expect("it heals")).await;
}

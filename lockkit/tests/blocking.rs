//! Locks for threads: renewed while the thread works, released by the time a guard is gone, and
//! refused where they would stop a runtime.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockkit::blocking::{LockManager, connect};
use lockkit::{Error, LossReason, MemoryDriver};

const SECOND: Duration = Duration::from_secs(1);

/// Two managers, each with a thread, on one store: as if of two processes.
fn two() -> (LockManager, LockManager) {
    let store = MemoryDriver::new();
    let open = |driver: MemoryDriver| {
        LockManager::open(async move || Ok(lockkit::LockManager::new(driver))).unwrap()
    };
    (open(store.clone()), open(store))
}

#[test]
fn the_lock_is_renewed_while_its_thread_works() {
    let locks = connect("memory:").unwrap();
    let guard = locks.mutex("a").ttl(6 * SECOND).lock().unwrap();
    let (begun, mut before) = (Instant::now(), guard.remaining());
    // Once the lease has become longer by itself, it was renewed.
    let renewed = std::iter::repeat_with(|| {
        thread::sleep(Duration::from_millis(1)); // the work, which lets nothing else run here
        let now = guard.remaining();
        std::mem::replace(&mut before, now) < now
    });
    let busy = 60 * SECOND;
    assert!(renewed.take_while(|_| begun.elapsed() < busy).any(|renewed| renewed));
    guard.release().expect("it was held until now");
}

#[test]
fn async_work_that_blocks_a_current_thread_runtime_loses_its_lease() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = lockkit::connect("memory:").await.unwrap();
        let guard = locks.mutex("a").ttl(SECOND / 5).lock().await.unwrap();
        thread::sleep(SECOND / 4); // longer than the ttl: nothing renews it meanwhile
        assert!(matches!(guard.token(), Err(Error::Lost { reason: LossReason::Expired, .. })));
        locks.shutdown().await;
    });
}

#[test]
fn a_guard_that_is_dropped_has_released_the_lock() {
    let (locks, others) = two();
    let guard = locks.mutex("a").lock().unwrap();
    assert!(others.mutex("a").try_lock().unwrap().is_none());
    drop(guard);
    assert!(others.mutex("a").try_lock().unwrap().is_some(), "without a wait");
    let writer = locks.rwlock("a").write().unwrap();
    assert!(others.rwlock("a").try_read().unwrap().is_none());
    drop(writer);
    assert!(others.rwlock("a").try_write().unwrap().is_some(), "without a wait");
}

#[test]
fn every_form_has_its_try_and_its_limit() {
    let (locks, others) = two();
    // A claim that gave up leaves the line in the background: what comes behind it waits a moment.
    let (short, long) = (Duration::from_millis(20), 60 * SECOND);
    let held = locks.mutex("a").lock().unwrap();
    assert!(others.mutex("a").try_lock().unwrap().is_none());
    assert!(others.mutex("a").try_lock_for(short).unwrap().is_none());
    held.release().unwrap();
    assert!(others.mutex("a").try_lock_for(long).unwrap().is_some());

    let reader = locks.rwlock("b").read().unwrap();
    assert!(others.rwlock("b").try_read().unwrap().is_some());
    assert!(others.rwlock("b").try_write_for(short).unwrap().is_none());
    drop(reader);
    let reader = others.rwlock("b").try_write_for(long).unwrap().unwrap().downgrade().unwrap();
    assert!(locks.rwlock("b").try_read_for(long).unwrap().is_some());
    reader.release().unwrap();

    let two = locks.semaphore("c", 3).acquire_many(2).unwrap();
    assert_eq!(others.semaphore("c", 3).available_permits().unwrap(), 1);
    assert!(others.semaphore("c", 3).try_acquire().unwrap().is_some());
    assert!(others.semaphore("c", 3).try_acquire_many_for(2, short).unwrap().is_none());
    assert!(others.semaphore("c", 3).try_acquire_for(long).unwrap().is_some());
    two.release().unwrap();
}

#[test]
fn a_waiting_thread_gets_the_lock_with_a_greater_token() {
    let (locks, others) = two();
    let guard = locks.mutex("a").lock().unwrap();
    let token = guard.token().unwrap();
    let waiting = thread::spawn(move || others.mutex("a").lock().unwrap().token().unwrap());
    while locks.wait(async |locks| {
        use lockkit::{Key, Name, Namespace, Space};
        let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
        locks.driver().inspect(&key).await.unwrap().waiters().next().is_none()
    }) {
        thread::yield_now();
    }
    guard.release().unwrap();
    assert!(waiting.join().unwrap() > token);
}

#[test]
fn a_loss_is_told_and_the_release_says_so() {
    let locks = connect("memory:").unwrap();
    let guard = locks.mutex("a").ttl(SECOND / 10).auto_renew(false).lock().unwrap();
    assert_eq!(guard.lost_within(60 * SECOND), Some(LossReason::Expired));
    assert!(!guard.is_valid());
    assert!(matches!(guard.verify(), Err(Error::Lost { .. })));
    assert!(matches!(guard.release(), Err(Error::Lost { .. })));
    let guard = locks.mutex("a").lock().unwrap();
    assert_eq!(guard.lost_within(Duration::from_millis(1)), None);
}

#[test]
fn a_guard_outlives_its_manager_and_is_released_by_the_last_of_them() {
    let store = MemoryDriver::new();
    let driver = store.clone();
    let locks = LockManager::open(async move || Ok(lockkit::LockManager::new(driver))).unwrap();
    let guard = locks.mutex("a").lock().unwrap();
    drop(locks);
    guard.token().expect("its thread lives");
    drop(guard);
    let others = LockManager::open(async move || Ok(lockkit::LockManager::new(store))).unwrap();
    assert!(others.mutex("a").try_lock().unwrap().is_some());
}

#[test]
fn an_error_of_the_connection_is_an_error_here() {
    let error = connect("carrier-pigeon://coop").unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[test]
fn inside_an_async_context_it_panics_instead_of_stopping_the_runtime() {
    let locks = connect("memory:").unwrap();
    let guard = locks.mutex("a").lock().unwrap();
    let mutex = locks.mutex("a");
    let (tell, told) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let panicked = runtime.block_on(async {
        drop(guard); // does not panic, and releases in the background
        tokio::spawn(async move { drop(mutex.lock()) }).await.unwrap_err().into_panic()
    });
    let message = panicked.downcast_ref::<&str>().map(|text| text.to_string());
    let message = message.or_else(|| panicked.downcast_ref::<String>().cloned()).unwrap();
    assert!(message.contains("from within a runtime"), "{message}");
    // A thread for blocking work is the place.
    let mutex = locks.mutex("a");
    runtime.block_on(async {
        tokio::task::spawn_blocking(move || tell.send(mutex.lock().is_ok()))
            .await
            .unwrap()
            .unwrap();
    });
    assert_eq!(told.recv(), Ok(true));
}

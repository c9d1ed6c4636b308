//! What a program's log says when it ends, or lets go of its manager, while it holds locks.

mod log;

use lockkit_core::driver::BreakMode;
use lockkit_core::{LockManager, MemoryDriver, Space};
use log::Log;

/// The warnings of this work.
fn warnings_of(work: impl FnOnce()) -> String {
    let (log, listening) = Log::listen(tracing::Level::WARN);
    work();
    drop(listening);
    log.take()
}

/// As `#[tokio::main]` does: the runtime ends when the body has.
fn main_of(body: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body);
}

#[test]
fn a_main_that_returns_with_a_live_guard_is_warned() {
    let log = warnings_of(|| {
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            let _guard = locks.mutex("nightly").lock().await.unwrap();
        });
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("the runtime ended before its locks were released"), "{log}");
    assert!(log.contains("held: 0, being released: 1"), "{log}");
    assert!(log.contains("shutdown().await"), "{log}");
}

#[test]
fn a_runtime_that_ends_under_a_guard_is_told_with_its_name() {
    let mut kept = None;
    let log = warnings_of(|| {
        let locks = LockManager::new(MemoryDriver::new());
        main_of(async {
            let guard = locks.mutex("nightly").lock().await.unwrap();
            kept = Some((locks.clone(), guard));
        });
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("held: 1 \"nightly\", being released: 0"), "{log}");
    drop(kept);
}

#[test]
fn a_manager_that_goes_before_its_guards_is_told_and_its_clones_are_not() {
    let log = warnings_of(|| {
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            let clone = locks.clone();
            let guard = locks.mutex("nightly").lock().await.unwrap();
            drop(locks);
            guard.token().unwrap();
            drop(clone);
            guard.release().await.unwrap();
        });
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("the last LockManager was dropped"), "{log}");
    assert!(log.contains("\"nightly\""), "{log}");
}

#[test]
fn a_main_that_shuts_down_or_releases_is_not_warned() {
    let log = warnings_of(|| {
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            let _guard = locks.mutex("nightly").lock().await.unwrap();
            locks.shutdown().await;
        });
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            locks.mutex("nightly").lock().await.unwrap().release().await.unwrap();
        });
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            drop(locks.mutex("nightly").lock().await.unwrap());
            locks.shutdown().await;
        });
    });
    assert_eq!(log, "");
}

#[test]
fn a_loss_that_a_downgrade_finds_is_logged_as_any_other() {
    let log = warnings_of(|| {
        main_of(async {
            let locks = LockManager::new(MemoryDriver::new());
            let writer = locks.rwlock("prices").write().await.unwrap();
            let (admin, token) = (locks.admin(), writer.token().unwrap());
            admin.break_lock(Space::Lock, "prices", token, BreakMode::Forced, None).await.unwrap();
            let error = writer.downgrade().await.unwrap_err();
            assert!(error.loss().is_some(), "{error}");
            locks.shutdown().await;
        });
    });
    assert_eq!(log.matches("lock lost: ").count(), 1, "{log}");
}

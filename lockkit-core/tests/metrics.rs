//! The figures that core emits, as a recorder of the `metrics` facade sees them.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, LockManager, MemoryDriver, Space};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn a_lock_is_counted_from_its_acquisition_to_its_loss_and_never_by_name() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(work());
    });
    let mut seen = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        assert!(!labels.join(" ").contains("invoice/42"), "the name is in {labels:?}");
        seen.insert(format!("{} {}", key.name(), labels.join(" ")), value);
    }
    let count = |key: &str| match seen.get(key) {
        Some(DebugValue::Counter(n)) => *n as f64,
        Some(DebugValue::Gauge(n)) => n.into_inner(),
        Some(DebugValue::Histogram(values)) => values.len() as f64,
        None => panic!("{key} is missing from {:#?}", seen.keys()),
    };
    let mutex = "backend=memory kind=mutex";
    assert_eq!(
        count(&format!("lockkit_acquire_seconds {mutex} class=invoice outcome=granted")),
        2.0
    );
    assert_eq!(count(&format!("lockkit_acquire_seconds {mutex} class=invoice outcome=busy")), 1.0);
    assert_eq!(count(&format!("lockkit_hold_seconds {mutex} class=invoice outcome=released")), 1.0);
    assert_eq!(count(&format!("lockkit_held {mutex} class=invoice")), 0.0);
    assert_eq!(count(&format!("lockkit_waiting {mutex} class=invoice")), 0.0);
    assert_eq!(count(&format!("lockkit_lost_total {mutex} class=invoice reason=broken")), 1.0);
    assert_eq!(count("lockkit_breaks_total backend=memory outcome=forced"), 1.0);
    assert!(count("lockkit_renew_seconds backend=memory outcome=renewed") >= 2.0);
    assert!(count("lockkit_lease_margin_seconds backend=memory") >= 2.0);
}

#[test]
fn what_is_asked_for_again_is_counted_by_operation() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(async {
            let (locks, hand) = lockkit_core::testing::locks();
            for _ in 0..3 {
                hand.refuse_next("a", Error::retryable("test", "the connection was cut"));
            }
            let guard = locks.mutex("a").lock().await.unwrap();
            hand.hold_up_renewals("a", Duration::from_secs(5));
            tokio::time::sleep(Duration::from_secs(20)).await;
            guard.release().await.unwrap();
        });
    });
    let mut retries = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if key.key().name() == "lockkit_retries_total"
            && let DebugValue::Counter(number) = value
        {
            let labels = key.key().labels().map(|l| (l.key().to_owned(), l.value().to_owned()));
            retries.insert(labels.collect::<BTreeMap<_, _>>(), number);
        }
    }
    let of = |operation: &str| {
        let labels = [("backend", "memory"), ("operation", operation)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        retries.get(&BTreeMap::from(labels)).copied()
    };
    assert_eq!(of("acquire"), Some(3), "{retries:?}");
    assert_eq!(of("release"), None, "{retries:?}");
}

async fn work() {
    let locks = LockManager::new(MemoryDriver::new());
    let mutex = locks.mutex("invoice/42").class("invoice");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(25)).await;
    guard.release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let token = guard.token().unwrap();
    let broken =
        locks.admin().break_lock(Space::Lock, "invoice/42", token, BreakMode::Forced, None).await;
    assert!(broken.unwrap());
    guard.lost().await;
}

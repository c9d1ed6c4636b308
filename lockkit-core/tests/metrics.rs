//! The figures that core emits, as a recorder of the `metrics` facade sees them.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkit_core::driver::Force;
use lockkit_core::{LockManager, MemoryDriver, Space};
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

async fn work() {
    let locks = LockManager::new(MemoryDriver::new());
    let mutex = locks.mutex("invoice/42").class("invoice");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(25)).await;
    guard.release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let token = guard.token().unwrap();
    let broken = locks.break_lock(Space::Lock, "invoice/42", token, Force::Immediate, None).await;
    assert!(broken.unwrap());
    guard.lost().await;
}

//! The memory driver through the manager: what lockkit itself costs, without any I/O.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lockkit::{LockManager, MemoryDriver, Space};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn cycles(c: &mut Criterion) {
    let rt = runtime();
    let locks = LockManager::new(MemoryDriver::new());
    let mut group = c.benchmark_group("memory");
    group.throughput(Throughput::Elements(1));
    let mutex = locks.mutex("invoice/42");
    group.bench_function("lock+release", |b| {
        b.to_async(&rt).iter(async || mutex.lock().await.unwrap().release().await.unwrap());
    });
    let held = rt.block_on(mutex.lock()).unwrap();
    group.bench_function("try_lock when held", |b| {
        b.to_async(&rt).iter(async || assert!(mutex.try_lock().await.unwrap().is_none()));
    });
    drop(held);
    group.finish();
}

/// A release costs the same with 10 as with 10,000 waiting: each iteration hands the lock on once,
/// and the one that had it stands in line again.
fn hand_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory hand-over");
    for waiting in [10, 1_000, 10_000] {
        let rt = runtime();
        let locks = LockManager::new(MemoryDriver::new());
        let (turns, mut taken) = tokio::sync::mpsc::unbounded_channel();
        rt.block_on(async {
            for _ in 0..waiting {
                let (locks, turns) = (locks.clone(), turns.clone());
                tokio::spawn(async move {
                    while let Ok(guard) = locks.mutex("a").lock().await {
                        if turns.send(guard).is_err() {
                            return;
                        }
                    }
                });
            }
            while locks.inspect(Space::Lock, "a").await.unwrap().queue.len() < waiting {
                tokio::task::yield_now().await;
            }
        });
        group.bench_function(BenchmarkId::from_parameter(waiting), |b| {
            b.iter_custom(|rounds| {
                rt.block_on(async {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        let guard: lockkit::Guard = taken.recv().await.unwrap();
                        let begun = Instant::now();
                        guard.release().await.unwrap();
                        spent += begun.elapsed();
                    }
                    spent
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, cycles, hand_over);
criterion_main!(benches);

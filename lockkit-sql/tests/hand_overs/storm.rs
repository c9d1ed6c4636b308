//! One contended lock, two processes, and answers that get lost after the server has acted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use lockkit_core::{LockManager, Settings, Token};
use lockkit_lab::proxy::{ProxyFault, When};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use super::scene::{KINDS, LONG, SOON, Scene};

const TASKS: usize = 12;
const LASTS: Duration = Duration::from_secs(8);

/// What all tasks know of the lock.
#[derive(Default)]
struct Witness {
    is_held: AtomicBool,
    last: AtomicU64,
    grants: AtomicU64,
    is_over: AtomicBool,
}

impl Witness {
    async fn hold(&self, token: Token) {
        assert!(!self.is_held.swap(true, SeqCst), "two hold");
        let before = self.last.swap(token.get(), SeqCst);
        assert!(before < token.get(), "token {token} after {before}");
        self.grants.fetch_add(1, SeqCst);
        tokio::task::yield_now().await;
        self.is_held.store(false, SeqCst);
    }
}

/// Leases outlast the test, so that a waiter that was forgotten would wait until its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_waiter_is_forgotten_when_answers_are_lost() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let settings = Settings::default().ttl(LONG).wait_ttl(LONG);
        let witness = Arc::new(Witness::default());
        let mut tasks = JoinSet::new();
        for driver in [scene.connect().await, scene.connect().await] {
            let locks = LockManager::with(driver, settings.clone()).unwrap();
            for _ in 0..TASKS {
                let (locks, witness) = (locks.clone(), witness.clone());
                tasks.spawn(async move {
                    while !witness.is_over.load(SeqCst) {
                        // The server may not be reached for too long: core withdraws the claim then.
                        let guard = match locks.mutex("hot").lock().await {
                            Ok(guard) => guard,
                            Err(error) => {
                                assert!(error.is_retryable(), "{error}");
                                continue;
                            }
                        };
                        witness.hold(guard.token().unwrap()).await;
                        if let Err(error) = guard.release().await {
                            assert!(error.is_retryable(), "{error}");
                        }
                    }
                });
            }
        }
        let (begun, mut rng, mut cuts) = (Instant::now(), StdRng::seed_from_u64(26), 0);
        while begun.elapsed() < LASTS {
            let before = witness.grants.load(SeqCst);
            let nth = rng.random_range(1..200);
            let mut cut = scene.proxy.fault(ProxyFault::Cut, When::Answer(nth));
            let struck = tokio::time::timeout(SOON, cut.struck()).await;
            struck.expect("requests go on while there are waiters");
            cuts += 1;
            let since = Instant::now();
            while witness.grants.load(SeqCst) < before + 1 {
                assert!(since.elapsed() < SOON, "{kind:?}: no grant after {cuts} lost answers");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        witness.is_over.store(true, SeqCst);
        while let Some(done) = tokio::time::timeout(SOON, tasks.join_next()).await.unwrap() {
            done.unwrap();
        }
        let grants = witness.grants.load(SeqCst);
        println!("{kind:?}: {grants} grants, {cuts} lost answers");
    }
}

//! The probe convicts stores that are wrong in the ways in which real ones are, and passes the right ones.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::TokioClock;
use lockkit_core::state::Finding;
use lockkit_core::{Error, LockManager};
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{
    Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreDriver, StoreError, StoreFacts,
    StoreOptions, probe,
};

/// How a store is wrong.
#[derive(Clone, Copy, Debug)]
enum Defect {
    /// As Incus: `If-None-Match` is not looked at.
    CreatesAnyway,
    SwapsAnyway,
    /// As Ceph: a create succeeds where there is a document, and only there.
    InvertedCreate,
    /// Compares first and writes later.
    RacesOnCreate,
    RacesOnSwap,
    CreatesOnSwap,
    StaleReads,
    /// A read says that nothing has changed.
    SameAnyway,
    /// A removed document is still there.
    KeepsRemoved,
    /// The answer is a conflict, and the document is written.
    WritesOnConflict,
}

#[derive(Debug)]
struct WrongStore {
    store: TestStore,
    defect: Defect,
}

impl WrongStore {
    async fn stored(&self, key: &str) -> Option<Document> {
        match self.store.get(key, None).await.expect("it works") {
            ReadOutcome::Document(document) => Some(document),
            _ => None,
        }
    }

    async fn version(&self, key: &str) -> Option<DocumentVersion> {
        self.stored(key).await.map(|document| document.version)
    }

    /// Writes, whatever is stored.
    async fn put(&self, key: &str, document: &[u8]) -> PutOutcome {
        loop {
            let version = self.version(key).await;
            let put = self.store.put_if(key, document, version.as_ref()).await;
            if let PutOutcome::Stored(_) = put {
                return put;
            }
        }
    }
}

#[async_trait]
impl Store for WrongStore {
    fn facts(&self) -> &StoreFacts {
        self.store.facts()
    }

    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        match self.defect {
            Defect::SameAnyway if unless.is_some() => Ok(ReadOutcome::Same),
            Defect::StaleReads => {
                let read = self.store.get(key, unless).await;
                // What is answered was read before a write that has ended meanwhile.
                tokio::time::sleep(Duration::from_millis(1)).await;
                match read {
                    Ok(ReadOutcome::Document(_)) => Ok(ReadOutcome::Absent),
                    read => read,
                }
            }
            _ => self.store.get(key, unless).await,
        }
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        match (self.defect, expected) {
            (Defect::CreatesAnyway, None) => self.put(key, document).await,
            (Defect::SwapsAnyway, Some(_)) => match self.version(key).await {
                Some(_) => self.put(key, document).await,
                None => PutOutcome::Conflict(None),
            },
            (Defect::InvertedCreate, None) => match self.version(key).await {
                Some(_) => self.put(key, document).await,
                None => PutOutcome::Conflict(None),
            },
            (Defect::RacesOnCreate, None) | (Defect::RacesOnSwap, Some(_)) => {
                if self.version(key).await.as_ref() != expected {
                    return PutOutcome::Conflict(None);
                }
                self.put(key, document).await
            }
            (Defect::CreatesOnSwap, Some(_)) if self.version(key).await.is_none() => {
                self.put(key, document).await
            }
            (Defect::WritesOnConflict, _) => {
                let put = self.store.put_if(key, document, expected).await;
                if let PutOutcome::Conflict(_) = put {
                    self.put(key, document).await;
                }
                put
            }
            _ => self.store.put_if(key, document, expected).await,
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        match self.defect {
            Defect::KeepsRemoved => Ok(()),
            _ => self.store.remove(key).await,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.store.list(prefix, after, limit).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

const TIMES: usize = 20;

async fn is_convicted(defect: Defect, check: &str) {
    for _ in 0..TIMES {
        let store = WrongStore { store: TestStore::new(), defect };
        let convicted = probe(Arc::new(store)).await.expect_err("it is wrong");
        assert!(!convicted.is_retryable(), "{defect:?}: {convicted}");
        assert!(convicted.to_string().contains(check), "{defect:?}: {convicted}");
        assert!(convicted.to_string().contains("conditional writes, or use another store"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_wrong_store_is_convicted_by_the_check_that_is_made_for_it() {
    is_convicted(Defect::CreatesAnyway, "create of a key that exists: it succeeded").await;
    is_convicted(Defect::SwapsAnyway, "swap at an old version: it succeeded").await;
    is_convicted(Defect::InvertedCreate, "create of a new key: is refused as a conflict").await;
    is_convicted(Defect::RacesOnCreate, "concurrent creates: ").await;
    is_convicted(Defect::RacesOnSwap, "concurrent swaps: ").await;
    is_convicted(Defect::CreatesOnSwap, "swap of a missing key: it succeeded").await;
    is_convicted(Defect::StaleReads, "read after a write: ").await;
    is_convicted(Defect::SameAnyway, "is said to be the same").await;
    is_convicted(Defect::KeepsRemoved, "read after a removal: ").await;
    is_convicted(Defect::WritesOnConflict, "read after a write: ").await;
}

/// A store that is right passes, whatever is lost on the way.
async fn passes(store: impl Fn() -> TestStore) {
    for time in 0..100 {
        let store = store().client(time);
        probe(Arc::new(store.clone())).await.unwrap_or_else(|error| panic!("{time}: {error}"));
        let left: Vec<_> = store.documents();
        assert!(left.is_empty(), "{time}: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_store_passes_and_nothing_is_left_in_it() {
    passes(TestStore::new).await;
    passes(TestStore::ordered).await;
}

async fn passes_under(ordered: bool, faults: Faults) {
    for time in 0..100 {
        let store = if ordered { TestStore::ordered() } else { TestStore::new() };
        let store = store.client(time);
        store.set_faults(faults.clone());
        probe(Arc::new(store)).await.unwrap_or_else(|error| panic!("{time}: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn lost_late_and_refused_requests_convict_nothing() {
    let latency = Duration::from_millis(20);
    let faults = Faults { latency, lost_answers: 0.1, ..Faults::default() };
    passes_under(false, faults).await;
    let late_by = Duration::from_secs(1);
    let faults = Faults { latency, late_effects: 0.1, late_by, ..Faults::default() };
    passes_under(false, faults).await;
    let faults = Faults { latency, throttled: 0.1, bare_conflicts: 0.5, ..Faults::default() };
    passes_under(false, faults).await;
    let stale_by = Duration::from_millis(300);
    let faults = Faults { latency, stale_reads: 0.5, stale_by, ..Faults::default() };
    passes_under(true, faults).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_given_up_after_a_minute_and_can_be_asked_again() {
    let store = TestStore::new();
    store.set_faults(Faults { is_partitioned: true, ..Faults::default() });
    let begun = tokio::time::Instant::now();
    let error = probe(Arc::new(store.clone())).await.expect_err("nothing is answered");
    assert!(error.is_retryable() && error.to_string().contains("60 s"), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 60);
    store.set_faults(Faults { lost_answers: 1.0, ..Faults::default() });
    let error = probe(Arc::new(store)).await.expect_err("nothing is answered");
    assert!(error.is_retryable() && error.to_string().contains("the answer was lost"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named() {
    let store = TestStore::new();
    store.set_faults(Faults { read_only: true, ..Faults::default() });
    let error = probe(Arc::new(store)).await.expect_err("nothing can be written");
    assert!(!error.is_retryable() && error.to_string().contains("right to write"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_probe_left_is_removed_after_a_day() {
    let store = TestStore::new();
    let now = lockkit_core::clock::unix_ms();
    let day = 24 * 60 * 60 * 1_000;
    let key = |made: u64| format!("p/{made:013}-00");
    let (old, recent) = (key(now - day - 60_000), key(now - day + 600_000));
    for key in [&*old, &*recent, "meta"] {
        store.put_if(key, b"{}", None).await;
    }
    probe(Arc::new(store.clone())).await.expect("it works");
    let left: Vec<_> = store.documents().into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, ["meta", &*recent]);
}

fn options() -> StoreOptions {
    StoreOptions::default().clock(TokioClock::shared())
}

#[tokio::test(start_paused = true)]
async fn a_wrong_store_gets_no_layout_and_a_right_one_is_probed_once() {
    let wrong = WrongStore { store: TestStore::new(), defect: Defect::RacesOnSwap };
    let documents = wrong.store.clone();
    let refused = StoreDriver::connect(Arc::new(wrong), options()).await.expect_err("it is wrong");
    assert!(refused.to_string().contains("concurrent swaps"), "{refused}");
    assert!(documents.documents().is_empty(), "nothing stays in it");

    let store = TestStore::new();
    StoreDriver::connect(Arc::new(store.clone()), options()).await.expect("it works");
    let first = store.requests();
    assert!((150..400).contains(&(first.reads + first.swaps)), "{first:?}");
    let again = store.client(1);
    StoreDriver::connect(Arc::new(again.clone()), options()).await.expect("it works");
    let again = again.requests();
    assert_eq!((again.reads, again.swaps), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn several_processes_may_probe_one_new_store_at_once() {
    let store = TestStore::new();
    let connecting = (0..4).map(|seed| {
        let client = store.client(seed);
        client.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::default() });
        StoreDriver::connect(Arc::new(client), options())
    });
    for connected in futures_util::future::join_all(connecting).await {
        connected.expect("it works");
    }
    let keys: Vec<_> = store.documents().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["meta"]);
}

#[tokio::test(start_paused = true)]
async fn the_operators_check_probes_a_store_that_is_in_use() {
    let wrong = WrongStore { store: TestStore::new(), defect: Defect::CreatesOnSwap };
    let store: Arc<dyn Store> = Arc::new(wrong);
    let connect = async || {
        let driver = StoreDriver::connect(store.clone(), options().skip_probe()).await;
        LockManager::new(driver.expect("it is not probed"))
    };
    let (one, other) = (connect().await, connect().await);
    let findings = one.probe(&other).await.expect("it works");
    let convicted = findings.iter().any(|finding| finding.what.contains("swap of a missing key"));
    assert!(convicted, "{findings:?}");
}

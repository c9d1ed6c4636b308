//! A store in the test's own process, which misbehaves by a seed: for tests of programs and of the driver,
//! and as an example of a [`Store`]. It works on tokio's clock, so also on paused time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::locked;
use lockkit_core::state::Finding;
use lockkit_core::{Error, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::store::{
    Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError, StoreFacts, because,
};

/// How a [`TestStore`] misbehaves; probabilities are from 0 to 1. By default it does not.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The longest time that a request takes each way, beyond [`least_latency`](Self::least_latency).
    pub latency: Duration,
    /// The shortest time that a request takes each way.
    pub least_latency: Duration,
    /// A write is carried out, and its answer is lost.
    pub lost_answers: f64,
    /// A write has no answer, and is carried out later, up to [`late_by`](Self::late_by).
    pub late_effects: f64,
    /// How much later at most.
    pub late_by: Duration,
    /// A request is refused for now.
    pub throttled: f64,
    /// A conflict does not say what is stored.
    pub bare_conflicts: f64,
    /// A read shows an older document, up to [`stale_by`](Self::stale_by). Only of a store with ordered
    /// versions.
    pub stale_reads: f64,
    /// How much older at most.
    pub stale_by: Duration,
    /// Writes are refused for good.
    pub read_only: bool,
    /// No request arrives, and none is answered.
    pub is_partitioned: bool,
}

/// A store in the memory of this process. Clones share its documents and its faults;
/// [`client`](Self::client) makes a store that shares the documents only.
///
/// ```
/// use lockkit_store::testing::{Faults, TestStore};
///
/// let store = TestStore::new();
/// // Another process's connection, which loses every tenth answer.
/// let client = store.client(7);
/// client.set_faults(Faults { lost_answers: 0.1, ..Faults::default() });
/// ```
#[derive(Clone, Debug)]
pub struct TestStore {
    shared: Arc<StoredDocuments>,
    client: Arc<Client>,
    facts: Arc<StoreFacts>,
}

#[derive(Debug)]
struct StoredDocuments {
    documents: Mutex<Documents>,
    is_ordered: bool,
}

#[derive(Debug, Default)]
struct Documents {
    revision: u64,
    /// Every state of each key: when it began, its revision, and its contents.
    states: BTreeMap<String, Vec<DocumentState>>,
}

#[derive(Clone, Debug)]
struct DocumentState {
    since: Instant,
    revision: u64,
    bytes: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Client {
    faults: watch::Sender<Faults>,
    random: Mutex<StdRng>,
    reads: AtomicU64,
    swaps: AtomicU64,
}

/// How many requests a [`TestStore`] was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCount {
    /// Reads.
    pub reads: u64,
    /// Swaps, also those that were refused.
    pub swaps: u64,
}

impl TestStore {
    /// An empty store that works.
    pub fn new() -> Self {
        Self::build(false)
    }

    /// An empty store whose versions have an order, and whose reads may therefore be stale.
    pub fn ordered() -> Self {
        Self::build(true)
    }

    fn build(is_ordered: bool) -> Self {
        let mut facts = StoreFacts::of("test-store");
        facts.pace = Duration::from_millis(50);
        facts.min_ttl = Duration::from_millis(500);
        let shared = StoredDocuments { documents: Mutex::default(), is_ordered };
        Self { shared: Arc::new(shared), client: Arc::new(Client::new(0)), facts: Arc::new(facts) }
    }

    /// The same documents through another connection, with faults and random numbers of its own.
    #[must_use]
    pub fn client(&self, seed: u64) -> Self {
        Self { client: Arc::new(Client::new(seed)), ..self.clone() }
    }

    /// The same documents, described by other facts.
    #[must_use]
    pub fn with_facts(mut self, facts: StoreFacts) -> Self {
        self.facts = Arc::new(facts);
        self
    }

    /// Misbehaves so from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.client.faults.send_replace(faults);
    }

    /// How many requests were sent through this connection.
    pub fn requests(&self) -> RequestCount {
        RequestCount {
            reads: self.client.reads.load(Ordering::Relaxed),
            swaps: self.client.swaps.load(Ordering::Relaxed),
        }
    }

    /// All documents as they are stored.
    pub fn documents(&self) -> Vec<(String, Vec<u8>)> {
        let documents = locked(&self.shared.documents);
        let last = |(key, states): (&String, &Vec<DocumentState>)| {
            Some((key.clone(), states.last()?.bytes.clone()?))
        };
        documents.states.iter().filter_map(last).collect()
    }

    /// Loses all documents, as a purge does.
    pub fn lose_all(&self) {
        let keys: Vec<_> = self.documents().into_iter().map(|(key, _)| key).collect();
        for key in &keys {
            self.erase(key);
        }
    }

    /// Loses what was written since that moment, as a store does that is restored from a backup. Only of a store
    /// with [ordered](Self::ordered) versions.
    pub fn lose_since(&self, moment: Instant) {
        let mut documents = locked(&self.shared.documents);
        for states in documents.states.values_mut() {
            states.retain(|state| state.since <= moment);
        }
        let revisions = documents.states.values().flatten().map(|state| state.revision);
        documents.revision = revisions.max().unwrap_or(0);
    }

    fn faults(&self) -> Faults {
        self.client.faults.borrow().clone()
    }

    fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && locked(&self.client.random).random_bool(probability)
    }

    fn part_of(&self, duration: Duration) -> Duration {
        duration.mul_f64(locked(&self.client.random).random())
    }

    /// One way between client and store; never arrives while they are partitioned.
    async fn travel(&self, faults: &Faults) {
        if self.client.faults.borrow().is_partitioned {
            let _ = self.client.faults.subscribe().wait_for(|faults| !faults.is_partitioned).await;
        }
        match faults.least_latency + self.part_of(faults.latency) {
            Duration::ZERO => tokio::task::yield_now().await,
            latency => tokio::time::sleep(latency).await,
        }
    }

    fn version(&self, revision: u64) -> DocumentVersion {
        match self.shared.is_ordered {
            true => DocumentVersion::ordered(revision),
            false => DocumentVersion::opaque(revision.to_string()),
        }
    }

    /// What a read shows: the last state, or an older one where reads may be stale.
    fn state(&self, key: &str, faults: &Faults) -> Option<Document> {
        let is_stale = self.shared.is_ordered && self.happens(faults.stale_reads);
        let age = if is_stale { self.part_of(faults.stale_by) } else { Duration::ZERO };
        let at = Instant::now().checked_sub(age)?;
        let documents = locked(&self.shared.documents);
        let states = documents.states.get(key)?;
        let state = match is_stale {
            true => states.iter().rev().find(|state| state.since <= at),
            false => states.last(),
        };
        let DocumentState { revision, bytes, .. } = state?.clone();
        Some(Document { bytes: bytes?, version: self.version(revision) })
    }

    /// One atomic step: comparison and write are under one lock.
    fn swap(&self, key: &str, bytes: &[u8], expected: Option<&DocumentVersion>) -> PutOutcome {
        let mut documents = locked(&self.shared.documents);
        let last = documents.states.get(key).and_then(|states| states.last());
        let now = last.and_then(|DocumentState { revision, bytes, .. }| {
            Some(Document { bytes: bytes.clone()?, version: self.version(*revision) })
        });
        if now.as_ref().map(|now| &now.version) != expected {
            return PutOutcome::Conflict(now);
        }
        let revision = documents.write(key, Some(bytes.to_vec()), self.shared.is_ordered);
        PutOutcome::Stored(self.version(revision))
    }

    /// Removes a document that is there.
    fn erase(&self, key: &str) {
        let mut documents = locked(&self.shared.documents);
        let last = documents.states.get(key).and_then(|states| states.last());
        if last.is_some_and(|state| state.bytes.is_some()) {
            documents.write(key, None, self.shared.is_ordered);
        }
    }
}

impl Documents {
    /// A new state of a document; earlier ones stay where reads may be stale.
    fn write(&mut self, key: &str, bytes: Option<Vec<u8>>, keeps_states: bool) -> u64 {
        self.revision += 1;
        let states = self.states.entry(key.to_owned()).or_default();
        if !keeps_states {
            states.clear();
        }
        states.push(DocumentState { since: Instant::now(), revision: self.revision, bytes });
        self.revision
    }
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    fn new(seed: u64) -> Self {
        Self {
            faults: watch::Sender::default(),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            reads: AtomicU64::new(0),
            swaps: AtomicU64::new(0),
        }
    }
}

#[async_trait]
impl Store for TestStore {
    fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        self.client.reads.fetch_add(1, Ordering::Relaxed);
        let faults = self.faults();
        self.travel(&faults).await;
        if self.happens(faults.throttled) {
            return Err(StoreError::Throttled {
                pause: PAUSE,
                cause: because("too many requests"),
            });
        }
        let state = self.state(key, &faults);
        self.travel(&faults).await;
        if self.happens(faults.lost_answers) {
            return Err(StoreError::Unavailable(because("the answer was lost")));
        }
        Ok(match state {
            None => ReadOutcome::Absent,
            Some(state) if Some(&state.version) == unless => ReadOutcome::Same,
            Some(state) => ReadOutcome::Document(state),
        })
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        self.client.swaps.fetch_add(1, Ordering::Relaxed);
        let faults = self.faults();
        if self.happens(faults.late_effects) {
            let (store, by) = (self.clone(), self.part_of(faults.late_by));
            let (key, document) = (key.to_owned(), document.to_vec());
            let expected = expected.cloned();
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                store.swap(&key, &document, expected.as_ref());
            });
            self.travel(&faults).await;
            return PutOutcome::Unknown(because("the request is late"));
        }
        self.travel(&faults).await;
        if self.happens(faults.throttled) {
            return PutOutcome::Throttled { pause: PAUSE, cause: because("too many requests") };
        }
        if faults.read_only {
            return PutOutcome::Forbidden(because("the right to write is missing"));
        }
        let outcome = self.swap(key, document, expected);
        self.travel(&faults).await;
        match outcome {
            _ if self.happens(faults.lost_answers) => {
                PutOutcome::Unknown(because("the answer was lost"))
            }
            PutOutcome::Conflict(_) if self.happens(faults.bare_conflicts) => {
                PutOutcome::Conflict(None)
            }
            outcome => outcome,
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.travel(&self.faults()).await;
        self.erase(key);
        Ok(())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.travel(&self.faults()).await;
        let documents = locked(&self.shared.documents);
        let is_asked = |key: &&String| {
            key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after)
        };
        let exists =
            |states: &Vec<DocumentState>| states.last().is_some_and(|state| state.bytes.is_some());
        let keys = documents.states.iter().filter(|(_, states)| exists(states));
        Ok(keys.map(|(key, _)| key).filter(is_asked).take(limit).cloned().collect())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

/// The pause that the store asks for.
const PAUSE: Duration = Duration::from_millis(20);

//! What the parts of a driver share: the store, its clocks, and how its documents are read.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::clock::{Clock, ClockPair, Moment, SteadyClock, unix_ms};
use lockkit_core::driver::{ClaimId, locked};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::document::{decode, encode};
use crate::kept_sights::SightsFile;
use crate::options::StoreOptions;
use crate::rules::{Rules, StoreRule};
use crate::sights::{Sights, Swept};
use crate::store::{Document, DocumentVersion, ReadOutcome, Store, StoreError, StoreFacts, Swap};

/// How often a read is repeated that is older than one before.
const OLD_READS: u32 = 8;
/// For how long an operation is repeated before it fails. Shorter where schedules are searched, whose TTLs are
/// short as well.
pub(crate) const LONGEST_ATTEMPT: Duration =
    Duration::from_millis(if cfg!(test) { 300 } else { 5_000 });
/// Keys whose newest version is remembered on ordered stores.
const MOST_ORDERS: usize = 100_000;

/// What the parts of a driver share.
pub(crate) struct StoreContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) facts: StoreFacts,
    /// As written in the layout, which the facts may differ from.
    pub(crate) shards: u32,
    /// The random id of the store, as written in the layout.
    pub(crate) store_id: String,
    pub(crate) clock: Arc<dyn Clock>,
    /// What an observer reads besides `clock`, where that is not the system's.
    raw_clock: Arc<dyn Clock>,
    /// Whether `clock` is the system's, which observers read more carefully.
    is_system_clock: bool,
    pub(crate) rules: Rules,
    pub(crate) sights: Sights,
    sights_file: Option<SightsFile>,
    pub(crate) swept: tokio::sync::Mutex<Swept>,
    random: Option<Mutex<StdRng>>,
    /// The newest version seen of each key, on stores whose reads may go back.
    orders: Mutex<HashMap<String, u64>>,
}

impl fmt::Debug for StoreContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreContext").field("store", &self.store).finish_non_exhaustive()
    }
}

impl StoreContext {
    pub(crate) fn new(store: Arc<dyn Store>, options: &StoreOptions) -> Self {
        let mut facts = store.facts().clone();
        facts.pace = options.pace.unwrap_or(facts.pace);
        facts.swap_pace = options.swap_pace.unwrap_or(facts.swap_pace);
        facts.min_ttl = options.min_ttl.unwrap_or(facts.min_ttl);
        let clock = options.clock.clone().unwrap_or_else(SteadyClock::shared);
        Self {
            shards: facts.shards,
            store_id: String::new(),
            sights_file: options.state.as_deref().and_then(SightsFile::of_this_boot),
            store,
            facts,
            raw_clock: options.raw_clock.clone().unwrap_or_else(|| clock.clone()),
            clock,
            is_system_clock: options.clock.is_none(),
            rules: options.rules,
            sights: Sights::default(),
            swept: tokio::sync::Mutex::default(),
            random: options.seed.map(|seed| Mutex::new(StdRng::seed_from_u64(seed))),
            orders: Mutex::default(),
        }
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.facts.name
    }

    /// Now, for an owner: on the clock that counts what the faster of two clocks counts.
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Now, for an observer: a pair of clocks, of which the slower counts.
    pub(crate) fn observed_now(&self) -> ClockPair {
        match self.is_system_clock {
            true => ClockPair::now(),
            false => ClockPair { boot: self.clock.now(), raw: self.raw_clock.now() },
        }
    }

    /// The wall clock, in milliseconds since 1970.
    pub(crate) fn wall_ms(&self) -> u64 {
        self.wall_us() / 1_000
    }

    /// The wall clock, in microseconds since 1970.
    pub(crate) fn wall_us(&self) -> u64 {
        match self.is_system_clock {
            true => unix_ms().saturating_mul(1_000),
            false => self.clock.now().as_nanos() / 1_000,
        }
    }

    /// A new random id in hexadecimal.
    pub(crate) fn id(&self) -> String {
        match &self.random {
            None => ClaimId::random().to_hex(),
            Some(random) => {
                let mut bytes = [0; 16];
                locked(random).fill_bytes(&mut bytes);
                ClaimId::from_bytes(bytes).to_hex()
            }
        }
    }

    /// A random part of a duration.
    pub(crate) fn part_of(&self, duration: Duration) -> Duration {
        let part: f64 = match &self.random {
            None => rand::rng().random(),
            Some(random) => locked(random).random(),
        };
        duration.mul_f64(part)
    }

    /// Takes over what other processes of this host saw of sessions.
    pub(crate) fn restore_sights(&self) {
        let Some(file) = self.sights_file.as_ref().filter(|_| self.is_system_clock) else { return };
        match file.read(self.observed_now()) {
            Ok(mut kept) => {
                kept.retain(|sight| sight.store == self.store_id);
                self.sights.restore(kept);
            }
            Err(error) => tracing::warn!(%error, "what was seen of sessions before is ignored"),
        }
    }

    /// Keeps for other processes what this one saw of the sessions of others.
    pub(crate) fn keep_sights(&self, is_own: impl Fn(&str) -> bool) {
        let Some(file) = self.sights_file.as_ref().filter(|_| self.is_system_clock) else { return };
        let kept = self.sights.kept(&self.store_id, is_own);
        if kept.is_empty() {
            return;
        }
        if let Err(error) = file.add(self.observed_now(), kept) {
            tracing::warn!(%error, "what was seen of sessions could not be kept");
        }
    }

    /// The error of a request to the store.
    pub(crate) fn failed(&self, error: StoreError) -> Error {
        error.into_error(self.backend())
    }

    /// The same, after the pause that the store asks for.
    pub(crate) async fn failed_after_pause(&self, error: StoreError) -> Error {
        if let StoreError::Throttled { pause, .. } = error {
            tokio::time::sleep(pause + self.part_of(pause)).await;
        }
        self.failed(error)
    }

    /// The error of an operation that found no answer in time.
    pub(crate) fn unavailable(&self, why: impl Into<String>) -> Error {
        Error::retryable(self.backend(), why.into())
    }

    /// Reads a document; `None` where there is none. Repeats a read that is older than one before.
    pub(crate) async fn read(&self, key: &str) -> Result<Option<Document>, Error> {
        match self.read_unless(key, None).await? {
            ReadOutcome::Document(document) => Ok(Some(document)),
            ReadOutcome::Absent | ReadOutcome::Same => Ok(None),
        }
    }

    /// Reads a document of a kind that errors call so.
    pub(crate) async fn load<T: DeserializeOwned>(
        &self,
        key: &str,
        what: &str,
    ) -> Result<Option<(T, DocumentVersion)>, Error> {
        let Some(Document { bytes, version }) = self.read(key).await? else { return Ok(None) };
        Ok(Some((decode(self.backend(), what, &bytes)?, version)))
    }

    /// The keys that begin with `prefix` and are greater than `after`, at most `limit`.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Error> {
        self.store.list(prefix, after, limit).await.map_err(|error| self.failed(error))
    }

    /// Swaps a document once. An error is a swap without a result, be it that it may have been carried out.
    pub(crate) async fn swap(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> Result<Swap, StoreError> {
        let before = locked(&self.orders).get(key).copied();
        let swap = self.store.put_if(key, document, expected).await.answer()?;
        if let Swap::Stored(version) = &swap
            && !self.goes_forward(key, Some(version))
            && before > version.order()
        {
            // What was seen before it was sent is gone: the store has lost writes.
            self.removed(key);
            self.goes_forward(key, Some(version));
        }
        Ok(swap)
    }

    /// Whether such a swap was certainly carried out.
    pub(crate) async fn is_swapped(
        &self,
        key: &str,
        document: &impl Serialize,
        expected: Option<&DocumentVersion>,
    ) -> bool {
        matches!(self.swap(key, &encode(document), expected).await, Ok(Swap::Stored(_)))
    }

    /// As [`read`](Self::read), for a document that is known in this version.
    pub(crate) async fn read_unless(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, Error> {
        for attempt in 1..=OLD_READS {
            let unless = unless.filter(|_| attempt < OLD_READS);
            let outcome = self.read_once(key, unless).await?;
            let version = match &outcome {
                ReadOutcome::Document(document) => Some(&document.version),
                ReadOutcome::Same => unless,
                ReadOutcome::Absent => None,
            };
            if self.goes_forward(key, version) {
                return Ok(outcome);
            }
            if attempt == OLD_READS {
                return self.read_after_loss(key, outcome).await;
            }
            tokio::time::sleep(self.part_of(Duration::from_millis(10 << attempt))).await;
        }
        Ok(ReadOutcome::Absent)
    }

    /// What is stored where each read shows an older document than was seen before: the store may have lost
    /// writes, as after a crash or when a backup is restored, or a leader answers that was deposed. The latter
    /// cannot swap.
    async fn read_after_loss(&self, key: &str, old: ReadOutcome) -> Result<ReadOutcome, Error> {
        let ReadOutcome::Document(Document { bytes, version }) = old else { return Ok(old) };
        match self.swap(key, &bytes, Some(&version)).await {
            Ok(Swap::Stored(version)) => {
                tracing::warn!(key, "the store has lost writes that were seen before");
                Ok(ReadOutcome::Document(Document { bytes, version }))
            }
            _ => {
                Err(self
                    .unavailable("the store keeps answering with an older document than before"))
            }
        }
    }

    async fn read_once(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, Error> {
        let outcome = match self.store.get(key, unless).await {
            Err(throttled @ StoreError::Throttled { .. }) => {
                self.failed_after_pause(throttled).await;
                self.store.get(key, unless).await
            }
            outcome => outcome,
        };
        outcome.map_err(|error| self.failed(error))
    }

    /// Notes a version that was read or written; `false` when a newer one was seen before.
    pub(crate) fn goes_forward(&self, key: &str, version: Option<&DocumentVersion>) -> bool {
        let order = match version {
            Some(version) => match version.order() {
                Some(order) => order,
                None => return true,
            },
            None => 0,
        };
        let mut orders = locked(&self.orders);
        if orders.len() >= MOST_ORDERS {
            orders.clear();
        }
        let seen = orders.entry(key.to_owned()).or_default();
        let forward = order >= *seen;
        *seen = order.max(*seen);
        forward || !self.rules.applies(StoreRule::ReadsGoForward)
    }

    /// The document was removed by this process: its absence is no older read.
    pub(crate) fn removed(&self, key: &str) {
        locked(&self.orders).remove(key);
    }
}

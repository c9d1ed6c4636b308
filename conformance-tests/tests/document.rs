//! The teaching driver of docs/driver-guide.md: locks in a store of documents that can compare and
//! swap, by core's line. The whole suite runs on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::capabilities::{LeaseClock, WakeUp};
use lockkit_core::claim_list::{
    ClaimList, ListOperation, OperationResult, QueuedClaim, TokenSequence,
};
use lockkit_core::clock::Moment;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, Grant,
    LeaseStart, LockDriver, Patience, Released, Renewal, submit_each,
};
use lockkit_core::state::{ClaimState, Cursor, Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, LossReason, Token};

// The lines between these marks are in docs/driver-guide.md.
// [driver]
/// A list as a document: its claims, the last token, and how claims were broken.
#[derive(Clone, Debug, Default)]
struct Document {
    claims: Vec<QueuedClaim<Arc<Claim>>>,
    last_token: u64,
    broken: Vec<(ClaimId, BreakRecord, Moment)>,
}

/// Stands for the backend: a document has a revision, and is replaced only if it still has the
/// revision that was read.
#[derive(Debug, Default)]
struct Store(Mutex<BTreeMap<Key, (u64, Document)>>);

impl Store {
    fn get(&self, key: &Key) -> (u64, Document) {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        documents.get(key).cloned().unwrap_or_default()
    }

    fn replace(&self, key: &Key, revision: u64, document: Document) -> bool {
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = documents.entry(key.clone()).or_default();
        let unchanged = found.0 == revision;
        if unchanged {
            *found = (revision + 1, document);
        }
        unchanged
    }

    fn keys(&self) -> Vec<Key> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        documents.keys().cloned().collect()
    }
}

/// The driver: loads a document, applies a step, and replaces the document.
#[derive(Debug)]
struct DocumentDriver {
    store: Arc<Store>,
    capabilities: Capabilities,
}

impl DocumentDriver {
    fn new(store: Arc<Store>) -> Self {
        let mut capabilities = Capabilities::of("document");
        capabilities.lease_clock = LeaseClock::Machine;
        capabilities.wake_up = WakeUp::Poll { within: Duration::from_millis(50) };
        capabilities.shorten = true;
        capabilities.raise = true;
        capabilities.detached = true;
        capabilities.round_trips = None;
        Self { store, capabilities }
    }

    /// Applies a step in one atomic step of the store: what was computed from a document that
    /// another client replaced meanwhile is thrown away, and computed again.
    fn step(
        &self,
        key: &Key,
        step: &ListOperation<'_, Arc<Claim>>,
        record: Option<&BreakRecord>,
    ) -> Result<(OperationResult, ClaimList<Arc<Claim>>), Error> {
        loop {
            let (revision, mut document) = self.store.get(key);
            let now = self.clock().now();
            let mut line = ClaimList::window(std::mem::take(&mut document.claims), None, None);
            let mut tokens = TokenSequence::above(document.last_token);
            let used_up = |_| Error::permanent("document", "all tokens were given");
            let answer = line.apply(step, now, &mut tokens).map_err(used_up)?.answer;
            document.claims = line.entries().cloned().collect();
            document.last_token = tokens.last();
            if let (OperationResult::BrokenClaims(broke), Some(record)) = (&answer, record) {
                let told = |one: &lockkit_core::claim_list::BrokenClaim| {
                    (one.id, record.clone(), one.until)
                };
                document.broken.retain(|(_, _, until)| now < *until);
                document.broken.extend(broke.iter().map(told));
            }
            if self.store.replace(key, revision, document) {
                return Ok((answer, line));
            }
        }
    }

    fn how_broken(&self, claim: &Claim) -> Option<BreakRecord> {
        let broken = self.store.get(&claim.key).1.broken;
        broken.into_iter().rev().find(|(id, ..)| *id == claim.id).map(|(_, record, _)| record)
    }

    fn lost(&self, claim: &Claim) -> Error {
        let reason = self.how_broken(claim).map_or(LossReason::Expired, LossReason::Broken);
        Error::lost(reason)
    }

    fn renewal(
        &self,
        claim: &Claim,
        step: &ListOperation<'_, Arc<Claim>>,
    ) -> Result<Renewal, Error> {
        Ok(match self.step(&claim.key, step, None)? {
            (OperationResult::Holds(grant), _) => Renewal::Holds(grant),
            (OperationResult::Waits(sequence), line) => {
                Renewal::Waits { ahead: line.ahead(sequence) }
            }
            _ => {
                Renewal::Ended(self.how_broken(claim).map_or(ClaimEnd::NotFound, ClaimEnd::Broken))
            }
        })
    }
}

impl DocumentDriver {
    fn acquire_one(&self, claim: &Arc<Claim>, patience: Patience) -> Result<Acquisition, Error> {
        let (asked, weight) = (claim.mode.capacity(), claim.mode.weight());
        if weight == 0 || weight > asked {
            return Err(Error::config(format!("{weight} permits of {asked}")));
        }
        let step = ListOperation::Acquire { claim, with: claim.clone(), patience, given: None };
        Ok(match self.step(&claim.key, &step, None)? {
            (OperationResult::Holds(grant), _) => Acquisition::Granted(grant),
            (OperationResult::Waits(sequence), line) => {
                Acquisition::Queued { ahead: line.ahead(sequence) }
            }
            (OperationResult::OtherLimit(in_use), _) => {
                let name = claim.key.name.as_str().to_owned();
                return Err(Error::limit_mismatch(name, in_use, asked));
            }
            (OperationResult::Broken, _) => return Err(self.lost(claim)),
            _ => Acquisition::Busy,
        })
    }

    fn release_one(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        match self.step(&claim.key, &ListOperation::Release(claim), None)?.0 {
            OperationResult::Released(released) => Ok(released),
            other => Err(Error::permanent("document", format!("{other:?}"))),
        }
    }
}

#[async_trait]
impl LockDriver for DocumentDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        // This store always answers. One that is asked over a network says of each error how many
        // requests got no answer: `BatchError::unknown(error).after(n)`.
        let acquire = |one: Acquire| async move {
            let acquired = self.acquire_one(&one.claim, one.patience);
            acquired.map(Attempted::from).map_err(BatchError::refused)
        };
        let release = |claim| async move {
            self.release_one(&claim).map(Attempted::from).map_err(BatchError::refused)
        };
        Ok(submit_each(batch, acquire, release).await)
    }

    /// Polls. A client that polls lets the list move on.
    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        loop {
            let (_, line) = self.step(&claim.key, &ListOperation::Advance, None)?;
            let found = line.find(&claim.id).and_then(|sequence| line.get(sequence));
            match found {
                Some(entry) if entry.broken => return Err(self.lost(claim)),
                Some(entry) if entry.holds() => {
                    return Ok(Grant {
                        token: entry.token,
                        ttl: entry.hold_ttl,
                        start: LeaseStart::LastAnswered,
                        margin: Duration::ZERO,
                    });
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                None => return Err(self.lost(claim)),
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(claims.iter().map(|claim| self.renewal(claim, &ListOperation::Renew(claim))).collect())
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.renewal(claim, &ListOperation::Shorten(claim, ttl))
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.renewal(claim, &ListOperation::Downgrade(claim))
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.renewal(claim, &ListOperation::Raise(claim, token))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (answer, _) = self.step(key, &ListOperation::Break(token, force), Some(record))?;
        Ok(matches!(answer, OperationResult::BrokenClaims(broke) if !broke.is_empty()))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let (_, document) = self.store.get(key);
        let now = self.clock().now();
        let line = ClaimList::window(document.claims, None, None);
        let shown = line.live_entries(now).map(|(entry, mode, holds)| {
            let mut standing = ClaimState::new(entry.token, mode, (*entry.with.identity).clone());
            let held = entry.held_since.map_or(Duration::ZERO, |since| now.since(since));
            standing.note = entry.with.note.as_deref().map(str::to_owned);
            standing.ttl = entry.hold_ttl;
            standing.expires_in = entry.expires.since(now);
            standing.queued_for = now.since(entry.queued_at);
            standing.held_for = holds.then_some(held);
            standing.broken = entry.broken;
            standing
        });
        let last_break = document.broken.into_iter().next_back().map(|(_, record, _)| record);
        Ok(LockState::new(key.clone(), shown.collect(), last_break))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let after = request.after.as_ref().map(|Cursor(bytes)| bytes.clone());
        let cursor = |key: &Key| {
            let mut bytes = vec![key.space as u8];
            bytes.extend_from_slice(key.name.as_str().as_bytes());
            bytes
        };
        let mut page = Page { states: Vec::new(), next: None };
        for key in self.store.keys() {
            let asked_for = key.namespace == request.namespace
                && request.space.is_none_or(|space| space == key.space)
                && key.name.as_str().starts_with(&request.prefix)
                && after.as_ref().is_none_or(|after| cursor(&key) > *after);
            let state = if asked_for { self.inspect(&key).await? } else { continue };
            if state.queue.is_empty() {
                continue;
            }
            if page.states.len() == request.limit.max(1) {
                page.next = page.states.last().map(|last| Cursor(cursor(&last.key)));
                break;
            }
            page.states.push(state);
        }
        Ok(page)
    }

    async fn health(&self) -> Result<Health, Error> {
        Ok(Health::well("documents of this process"))
    }
}
// [/driver]

struct Documents(Arc<Store>);

#[async_trait]
impl Harness for Documents {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(DocumentDriver::new(self.0.clone())))
    }
}

lockkit_conformance::suite!(Documents(Arc::default()));

/// The guide shows what the suite runs on.
#[test]
fn the_guide_has_this_driver() {
    let ours = include_str!("document.rs");
    let (_, driver) = ours.split_once("// [driver]\n").unwrap();
    let (driver, _) = driver.split_once("// [/driver]").unwrap();
    let guide = include_str!("../../docs/driver-guide.md");
    assert!(guide.contains(driver), "put the driver into docs/driver-guide.md as it is here");
    let lines = driver.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines < 260, "{lines} lines are too many to teach with");
}

//! A session of this driver: the document that keeps all its claims of one TTL alive, and the task that
//! beats it.
//!
//! The owner counts from the *sending* of the beat that is found in the store (rule 3), and a beat that is
//! found must be the last confirmed one or one sent since (rule 5): anything else means that the session was
//! ended and created again, or that another process has its id. A session id is created once, by one
//! request; anything but success means a new id (rule 4).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{ClaimId, locked};
use lockkit_core::{BreakRecord, Error};
use tokio::sync::{mpsc, oneshot};

use crate::context::{LONGEST_ATTEMPT, StoreContext};
use crate::document::{SessionDocument, SessionId, decode, encode, session_key};
use crate::rules::StoreRule;
use crate::store::{Document, DocumentVersion, StoreError, Swap};

/// A session is created under a new id this often before that fails.
const CREATIONS: u32 = 3;

/// Why a session has no fresh beat.
#[derive(Clone, Debug)]
pub(crate) enum BeatError {
    /// It has ended.
    Lost,
    /// The store did not answer, or refused.
    Store(Error),
}

/// A session of this driver.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl: Duration,
    state: Arc<Mutex<SessionState>>,
    requests: mpsc::UnboundedSender<BeatRequest>,
}

#[derive(Debug)]
struct SessionState {
    /// When the beat was sent that was found last.
    beat_sent: Moment,
    lost: bool,
    broken: HashMap<String, BreakRecord>,
}

#[derive(Debug)]
struct BeatRequest {
    since: Moment,
    reply: oneshot::Sender<Result<Moment, BeatError>>,
}

impl Session {
    /// Creates a session in the store.
    ///
    /// # Cancel safety
    /// Dropping it may leave a session that no process uses; it ends after its TTL.
    pub(crate) async fn create(
        context: &Arc<StoreContext>,
        ttl: Duration,
        is_claim_here: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Error> {
        let mut failure = context.unavailable("the id of a session exists");
        let mut id = context.id();
        for _ in 0..CREATIONS {
            let (beat, sent) = (context.id(), context.now());
            let document = SessionDocument::new(context.id(), beat, ttl);
            let created = context.swap(&session_key(&id), &encode(&document), None).await;
            let version = match created {
                Ok(Swap::Stored(version)) => Some(version),
                // What the rule forbids: a creation that was repeated is taken for one's own.
                Ok(Swap::Conflict(_)) if !context.rules.applies(StoreRule::CreateOnce) => None,
                Ok(Swap::Conflict(_)) => {
                    id = context.id();
                    continue;
                }
                Err(error) => {
                    failure = context.failed_after_pause(error).await;
                    if !failure.is_retryable() {
                        break;
                    }
                    if context.rules.applies(StoreRule::CreateOnce) {
                        id = context.id();
                    }
                    continue;
                }
            };
            return Ok(Self::begin(context, id, ttl, sent, (version, document), is_claim_here));
        }
        Err(failure)
    }

    fn begin(
        context: &Arc<StoreContext>,
        id: SessionId,
        ttl: Duration,
        sent: Moment,
        (version, document): (Option<DocumentVersion>, SessionDocument),
        is_claim_here: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        context.sights.saw(&id, &document, context.observed_now(), context.rules);
        let state = SessionState { beat_sent: sent, lost: false, broken: HashMap::new() };
        let state = Arc::new(Mutex::new(state));
        let (requests, received) = mpsc::unbounded_channel();
        let beats = vec![(document.beat.clone(), sent)];
        let owner = SessionOwner {
            key: session_key(&id),
            id: id.clone(),
            context: context.clone(),
            state: state.clone(),
            document,
            version,
            beats,
            is_claim_here: Box::new(is_claim_here),
        };
        tokio::spawn(owner.run(received));
        Arc::new(Self { id, ttl, state, requests })
    }

    /// When a beat was sent that was found in the store and is not older than `since`; beats if need be.
    ///
    /// # Cancel safety
    /// Dropping it leaves the beat to the session's task.
    pub(crate) async fn fresh(&self, since: Moment) -> Result<Moment, BeatError> {
        {
            let state = locked(&self.state);
            if state.lost {
                return Err(BeatError::Lost);
            }
            if state.beat_sent >= since {
                return Ok(state.beat_sent);
            }
        }
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(BeatRequest { since, reply });
        answer.await.unwrap_or_else(|_| {
            // Its task ended with its runtime: the session cannot be kept alive any more.
            locked(&self.state).lost = true;
            Err(BeatError::Lost)
        })
    }

    /// When the beat was sent that was found last.
    pub(crate) fn beat_sent(&self) -> Moment {
        locked(&self.state).beat_sent
    }

    /// Gives up the session, where a moment is given, unless a beat was sent since then: from now on no claim
    /// enters a queue with it, not even one that waits for a beat. Says whether this call gave it up, so that it
    /// may be removed from the store: one that was lost may be in use by a copy of this machine.
    pub(crate) fn retire(&self, unless_since: Option<Moment>) -> bool {
        let mut state = locked(&self.state);
        let is_unused = unless_since.is_none_or(|since| state.beat_sent < since);
        let retires = !state.lost && is_unused;
        state.lost |= retires;
        retires
    }

    /// Whether it has ended.
    pub(crate) fn is_lost(&self) -> bool {
        locked(&self.state).lost
    }

    /// How a claim was broken gracefully, if it was.
    pub(crate) fn mark(&self, claim: &ClaimId) -> Option<BreakRecord> {
        locked(&self.state).broken.get(&claim.to_hex()).cloned()
    }
}

/// The task that writes a session.
struct SessionOwner {
    key: String,
    id: SessionId,
    context: Arc<StoreContext>,
    state: Arc<Mutex<SessionState>>,
    /// The document as it was found or written last.
    document: SessionDocument,
    version: Option<DocumentVersion>,
    /// The last confirmed beat, and those sent since, with the moments of their sending.
    beats: Vec<(String, Moment)>,
    /// Whether a claim still is one of this driver, so that its mark stays.
    is_claim_here: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl SessionOwner {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<BeatRequest>) {
        while let Some(request) = requests.recv().await {
            let mut waiting = vec![request];
            while let Ok(request) = requests.try_recv() {
                waiting.push(request);
            }
            let since = waiting.iter().map(|request| request.since).max();
            let beat = self.beat(since.unwrap_or_else(|| self.context.now())).await;
            for BeatRequest { reply, .. } in waiting {
                let _ = reply.send(beat.clone());
            }
        }
    }

    async fn beat(&mut self, since: Moment) -> Result<Moment, BeatError> {
        let context = self.context.clone();
        let begun = context.now();
        let mut pause = Duration::from_millis(10);
        loop {
            if locked(&self.state).lost {
                return Err(BeatError::Lost);
            }
            let found = locked(&self.state).beat_sent;
            if found >= since {
                return Ok(found);
            }
            let failure = match self.version.clone() {
                Some(version) => self.swap(&version).await,
                None => self.read().await,
            };
            match failure {
                Ok(()) => continue,
                Err(error) if !error.is_retryable() => return Err(BeatError::Store(error)),
                Err(error) if context.now().since(begun) > LONGEST_ATTEMPT => {
                    return Err(BeatError::Store(error));
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause + context.part_of(pause)).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Writes another beat over the version that is known.
    async fn swap(&mut self, version: &DocumentVersion) -> Result<(), Error> {
        let context = self.context.clone();
        let mut document = self.document.clone();
        (document.write, document.beat) = (context.id(), context.id());
        document.broken.retain(|mark| (self.is_claim_here)(&mark.claim));
        let sent = context.now();
        self.beats.push((document.beat.clone(), sent));
        let swapped = context.swap(&self.key, &encode(&document), Some(version)).await;
        if !matches!(swapped, Ok(Swap::Stored(_)) | Err(StoreError::Unavailable(_))) {
            // It was certainly not carried out.
            self.beats.pop();
        }
        match swapped {
            Ok(Swap::Stored(version)) => self.found(document, version),
            Ok(Swap::Conflict(Some(Document { bytes, version }))) => {
                self.found(decode(context.backend(), "a session", &bytes)?, version);
            }
            Ok(Swap::Conflict(None)) => self.version = None,
            Err(error) => {
                if let StoreError::Unavailable(_) = error {
                    self.version = None;
                }
                return Err(context.failed_after_pause(error).await);
            }
        }
        Ok(())
    }

    /// Reads what is there.
    async fn read(&mut self) -> Result<(), Error> {
        match self.context.load(&self.key, "a session").await? {
            Some((document, version)) => self.found(document, version),
            None => self.lost(),
        }
        Ok(())
    }

    /// Takes in what the store has.
    fn found(&mut self, document: SessionDocument, version: DocumentVersion) {
        let rules = self.context.rules;
        self.context.sights.saw(&self.id, &document, self.context.observed_now(), rules);
        let known = self.beats.iter().position(|(beat, _)| *beat == document.beat);
        let sent = match known {
            Some(known) => {
                self.beats.drain(..known);
                self.beats[0].1
            }
            None if !rules.applies(StoreRule::KnownBeat) => self.context.now(),
            None => return self.lost(),
        };
        if document.dead {
            return self.lost();
        }
        let counted =
            if rules.applies(StoreRule::CountFromSending) { sent } else { self.context.now() };
        let mut state = locked(&self.state);
        state.beat_sent = state.beat_sent.max(counted);
        let marks = document.broken.iter().map(|mark| (mark.claim.clone(), mark.record.clone()));
        state.broken = marks.collect();
        drop(state);
        (self.document, self.version) = (document, Some(version));
    }

    /// This process uses the session no longer. That is no proof of its end: where it is not dead in the
    /// store, this process watches it from now on as that of another one.
    fn lost(&self) {
        locked(&self.state).lost = true;
    }
}

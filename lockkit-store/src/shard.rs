//! One shard: the task that carries out all operations of this driver on its document, one swap in flight at
//! a time. A caller that is dropped loses nothing: the task goes on.
//!
//! "Not there", "busy" and "released" come only from a read, not from a cache; and while a swap of this
//! process is unanswered, only after a swap of its own succeeded, be it one that changes nothing (rule 7).
//! Otherwise a late acquire becomes a claim that its living session keeps for ever.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::claim_list::OperationResult;
use lockkit_core::clock::{ClockPair, Moment, sleep_until};
use lockkit_core::driver::BatchError;
use lockkit_core::{Claim, Error, Key};
use tokio::sync::{mpsc, oneshot};

use crate::context::{LONGEST_ATTEMPT, StoreContext};
use crate::document::{SessionId, ShardDocument, shard_key};
use crate::queues::{Applying, Attempt, Operation, ShardAnswer};
use crate::rules::StoreRule;
use crate::store::{Document, DocumentVersion, ReadOutcome, StoreError, Swap};
use crate::waiters::Waiters;

mod contention;

/// For how long the record of a break is shown at least.
const KEEP_BREAKS: Duration = Duration::from_secs(60);

/// What a shard's task is asked for.
pub(crate) enum ShardRequest {
    Apply(PendingOperation),
    /// Something may have changed: waiters are to be looked after, and what has ended is to be pruned.
    Poll,
}

/// An operation, and where its answer goes.
pub(crate) struct PendingOperation {
    pub(crate) operation: Operation,
    pub(crate) begun: Moment,
    pub(crate) reply: oneshot::Sender<ShardReply>,
}

/// An answer, and how many swaps before it got none.
pub(crate) type ShardReply = Result<(ShardAnswer, u32), BatchError>;

/// The task of a shard.
pub(crate) struct ShardWorker {
    context: Arc<StoreContext>,
    key: String,
    shard: u32,
    waiters: Arc<Waiters>,
    sender: mpsc::WeakUnboundedSender<ShardRequest>,
    /// The document as it was read or written last; `None` where that is not known.
    known: Option<KnownShard>,
    /// Whether a swap is unanswered that may still take effect.
    unanswered: bool,
    /// How long a swap took lately.
    swap_time: Duration,
    /// How many conflicts there were for each swap lately.
    contention: f64,
    /// How many conflicts there were since the last swap, also of operations that failed.
    conflicts: u32,
    /// When a swap was answered last, or given up.
    swapped: Option<Moment>,
    /// When a record of a break was first seen.
    breaks_seen: HashMap<String, ClockPair>,
    /// Whether a poll was asked for during a round.
    is_polled: bool,
}

/// A shard as it is stored; a version of `None` means that there is no document.
struct KnownShard {
    document: ShardDocument,
    version: Option<DocumentVersion>,
    bytes: usize,
}

/// One round: the attempts for the operations that came together.
struct Round {
    begun: Moment,
    /// Whether the document was read since the operations came.
    is_fresh: bool,
    ambiguous: u32,
    /// What failed for other reasons than conflicts.
    failures: u32,
    /// Whether an attempt failed, for whatever reason.
    has_failed: bool,
    has_swapped: bool,
    /// Swaps without an answer, by their write id, and what they would have answered.
    pending: Vec<(String, Attempt)>,
}

impl Round {
    fn begin(begun: Moment) -> Self {
        Self {
            begun,
            is_fresh: false,
            ambiguous: 0,
            failures: 0,
            has_failed: false,
            has_swapped: false,
            pending: Vec::new(),
        }
    }
}

impl ShardWorker {
    /// Starts the task of a shard, which ends with the last sender.
    pub(crate) fn start(
        context: &Arc<StoreContext>,
        waiters: &Arc<Waiters>,
        shard: u32,
    ) -> mpsc::UnboundedSender<ShardRequest> {
        let (sender, requests) = mpsc::unbounded_channel();
        let worker = Self {
            context: context.clone(),
            key: shard_key(shard),
            shard,
            waiters: waiters.clone(),
            sender: sender.downgrade(),
            known: None,
            unanswered: false,
            swap_time: Duration::from_millis(5),
            contention: 0.0,
            conflicts: 0,
            swapped: None,
            breaks_seen: HashMap::new(),
            is_polled: false,
        };
        tokio::spawn(worker.run(requests));
        sender
    }

    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<ShardRequest>) {
        loop {
            let pace = self.waiters.pace(self.context.facts.pace);
            let first = match self.waiters.is_watched(self.shard) {
                _ if self.is_polled => Some(None),
                false => requests.recv().await.map(Some),
                true => match tokio::time::timeout(pace, requests.recv()).await {
                    Ok(request) => request.map(Some),
                    Err(_) => Some(None),
                },
            };
            let Some(first) = first else { return };
            // A renewal seldom needs a swap.
            if let Some(ShardRequest::Apply(first)) = &first
                && !matches!(first.operation, Operation::Renew(_))
            {
                self.keep_pace().await;
            }
            let mut operations = Vec::new();
            let mut is_polled = std::mem::take(&mut self.is_polled);
            // Operations that are asked for at the same time share a swap.
            tokio::task::yield_now().await;
            let more = std::iter::from_fn(|| requests.try_recv().ok());
            for request in first.into_iter().chain(more) {
                match request {
                    ShardRequest::Apply(operation) => operations.push(operation),
                    ShardRequest::Poll => is_polled = true,
                }
            }
            if !operations.is_empty() || is_polled || self.waiters.is_watched(self.shard) {
                let has_swapped = self.round(operations, &mut requests).await;
                if has_swapped {
                    self.give_way().await;
                }
            }
        }
    }

    /// Says whether it changed the document.
    async fn round(
        &mut self,
        mut operations: Vec<PendingOperation>,
        requests: &mut mpsc::UnboundedReceiver<ShardRequest>,
    ) -> bool {
        let mut round = Round::begin(self.context.now());
        let (watched, ended) = loop {
            if round.has_failed && round.is_fresh {
                self.answer_renewals(&round, &mut operations);
            }
            let watched = self.waiters.keys(self.shard);
            let asked: Vec<&Operation> = operations.iter().map(|it| &it.operation).collect();
            let conflicts = self.conflicts;
            match self.attempt(&mut round, &asked, &watched).await {
                Ok(Some(attempt)) => break (watched, Ok(attempt)),
                Ok(None) => {}
                Err(error) if !error.is_retryable() => break (watched, Err(error)),
                Err(error) => {
                    round.has_failed = true;
                    if self.gives_up(&round, &mut operations, &error) {
                        break (watched, Err(error));
                    }
                    if self.conflicts > conflicts {
                        self.let_older_swap().await;
                    } else {
                        round.failures += 1;
                        self.pause(round.failures).await;
                    }
                    self.take_along(&mut round, &mut operations, requests);
                }
            }
        };
        let asked = operations.iter().map(|it| &it.operation);
        match ended {
            Ok(attempt) => {
                let document = &attempt.document;
                // Those in the way of a refused claim are looked at before that is answered.
                let is_refused = |answer: &Result<ShardAnswer, Error>| {
                    answer.as_ref().is_ok_and(|it| it.answer == OperationResult::Busy)
                };
                let others = asked.zip(&attempt.answers).filter(|(_, it)| !is_refused(it));
                let keys = others.map(|(operation, _)| operation.key().clone());
                let keys: BTreeSet<Key> = keys.chain(watched).collect();
                self.waiters.saw(&self.context, self.shard, document, self.unanswered);
                self.observe(document, &keys);
                for (pending, answer) in operations.into_iter().zip(attempt.answers) {
                    let reply = answer.map(|answer| (answer, round.ambiguous));
                    let reply = reply.map_err(|e| BatchError::refused(e).after(round.ambiguous));
                    let _ = pending.reply.send(reply);
                }
            }
            Err(error) => {
                let error = BatchError::refused(error).after(round.ambiguous);
                for pending in operations {
                    let _ = pending.reply.send(Err(error.clone()));
                }
            }
        }
        round.has_swapped
    }

    /// Answers the renewals of claims that hold, as the document shows: they do not wait until other operations
    /// win a race for it. Not once a swap of the round is unanswered, whose answers are in the operations' order.
    fn answer_renewals(&self, round: &Round, operations: &mut Vec<PendingOperation>) {
        let Some(known) = self.known.as_ref().filter(|_| round.pending.is_empty()) else { return };
        let holds = |claim: &Claim| {
            let queue = known.document.queues.get(&claim.key);
            queue.is_some_and(|it| it.entries.iter().any(|it| it.id == claim.id && it.holding))
        };
        let (watched, old_breaks) = (BTreeSet::new(), BTreeSet::new());
        let (context, bytes) = (&*self.context, known.bytes);
        let applying = Applying { context, bytes, watched: &watched, old_breaks: &old_breaks };
        for pending in std::mem::take(operations) {
            let answer = match &pending.operation {
                Operation::Renew(claim) if holds(claim) => {
                    applying.apply(&known.document, &[&pending.operation]).answers.pop()
                }
                _ => None,
            };
            match answer {
                Some(Ok(answer)) if matches!(answer.answer, OperationResult::Holds(_)) => {
                    let _ = pending.reply.send(Ok((answer, round.ambiguous)));
                }
                _ => operations.push(pending),
            }
        }
    }

    /// Waits until the document may be swapped again, where the store bounds that.
    async fn keep_pace(&self) {
        let pace = self.context.facts.swap_pace;
        if let Some(swapped) = self.swapped.filter(|_| !pace.is_zero()) {
            sleep_until(&*self.context.clock, swapped.after(pace)).await;
        }
    }

    /// Fails the operations that were repeated for too long; says whether that ends the round. All of them end
    /// together once a swap is unanswered, since its document may be found as the answer to each.
    fn gives_up(
        &self,
        round: &Round,
        operations: &mut Vec<PendingOperation>,
        error: &Error,
    ) -> bool {
        let now = self.context.now();
        let is_late = |begun: Moment| now.since(begun) > LONGEST_ATTEMPT;
        if !round.pending.is_empty() {
            return is_late(round.begun) || operations.iter().any(|it| is_late(it.begun));
        }
        let was_asked = !operations.is_empty();
        for late in operations.extract_if(.., |it| is_late(it.begun)) {
            let _ = late.reply.send(Err(BatchError::refused(error.clone())));
        }
        operations.is_empty() && (was_asked || is_late(round.begun))
    }

    /// Operations that came meanwhile share the next swap; but not once one is unanswered.
    fn take_along(
        &mut self,
        round: &mut Round,
        operations: &mut Vec<PendingOperation>,
        requests: &mut mpsc::UnboundedReceiver<ShardRequest>,
    ) {
        while round.pending.is_empty()
            && let Ok(request) = requests.try_recv()
        {
            match request {
                ShardRequest::Apply(operation) => {
                    operations.push(operation);
                    // What was read before is no answer to it.
                    round.is_fresh = false;
                }
                ShardRequest::Poll => self.is_polled = true,
            }
        }
    }

    /// One attempt: answers where it succeeded, `None` where another is to be made at once.
    async fn attempt(
        &mut self,
        round: &mut Round,
        asked: &[&Operation],
        watched: &BTreeSet<Key>,
    ) -> Result<Option<Attempt>, Error> {
        // A poll is there to see what others did.
        let must_read = asked.is_empty() && !round.is_fresh;
        if self.known.is_none() || must_read {
            return self.read(round).await;
        }
        let Some(known) = self.known.take() else { return Ok(None) };
        let old_breaks = self.old_breaks(&known.document);
        let (context, bytes) = (self.context.clone(), known.bytes);
        let applying = Applying { context: &context, bytes, watched, old_breaks: &old_breaks };
        let attempt = applying.apply(&known.document, asked);
        let version = known.version.clone();
        self.known = Some(known);
        let rules = self.context.rules;
        if !attempt.changed {
            if !round.is_fresh && rules.applies(StoreRule::ReadBeforeDenial) {
                self.read(round).await?;
                return Ok(None);
            }
            let must_swap = self.unanswered && rules.applies(StoreRule::SwapBeforeDenial);
            if !must_swap {
                return Ok(Some(attempt));
            }
        }
        self.swap(round, attempt, version).await
    }

    /// Reads the document. Where it is the result of an unanswered swap of this round, that is the answer.
    async fn read(&mut self, round: &mut Round) -> Result<Option<Attempt>, Error> {
        let version = self.known.as_ref().and_then(|known| known.version.clone());
        match self.context.read_unless(&self.key, version.as_ref()).await? {
            ReadOutcome::Same => {}
            ReadOutcome::Document(document) => self.know(document)?,
            ReadOutcome::Absent => {
                let document = ShardDocument::default();
                self.known = Some(KnownShard { document, version: None, bytes: 0 });
            }
        }
        round.is_fresh = true;
        let Some(known) = &self.known else { return Ok(None) };
        let found = round.pending.iter().position(|(write, _)| *write == known.document.write);
        let Some(found) = found else { return Ok(None) };
        self.unanswered = false;
        round.ambiguous = round.ambiguous.saturating_sub(1);
        Ok(Some(round.pending.swap_remove(found).1))
    }

    fn know(&mut self, document: Document) -> Result<(), Error> {
        let Document { bytes, version } = document;
        let document = ShardDocument::decode(self.context.backend(), &bytes)?;
        self.known = Some(KnownShard { document, version: Some(version), bytes: bytes.len() });
        Ok(())
    }

    async fn swap(
        &mut self,
        round: &mut Round,
        mut attempt: Attempt,
        expected: Option<DocumentVersion>,
    ) -> Result<Option<Attempt>, Error> {
        let context = self.context.clone();
        attempt.document.write = context.id();
        let bytes = attempt.document.encode();
        self.keep_pace().await;
        let sent = context.now();
        let swapped = context.swap(&self.key, &bytes, expected.as_ref()).await;
        let answered = context.now();
        let took = answered.since(sent);
        // From the answer, since the store may have been slow to take it.
        self.swapped = Some(answered);
        self.swap_time = (self.swap_time * 3 + took) / 4;
        match swapped {
            Ok(Swap::Stored(version)) => {
                self.unanswered = false;
                round.has_swapped = true;
                let conflicts = std::mem::take(&mut self.conflicts);
                self.contention = f64::midpoint(self.contention, f64::from(conflicts));
                let (document, bytes) = (attempt.document.clone(), bytes.len());
                self.known = Some(KnownShard { document, version: Some(version), bytes });
                if !context.rules.applies(StoreRule::KeepShards)
                    && attempt.document.queues.is_empty()
                {
                    // What the rule forbids.
                    let _ = context.store.remove(&self.key).await;
                    self.known = None;
                }
                Ok(Some(attempt))
            }
            Ok(Swap::Conflict(found)) => {
                self.conflicts += 1;
                self.known = None;
                if let Some(found) = found
                    && context.goes_forward(&self.key, Some(&found.version))
                {
                    self.know(found)?;
                    round.is_fresh = true;
                }
                Err(context.unavailable("other clients keep writing the shard of this lock"))
            }
            Err(error) => {
                if let StoreError::Unavailable(_) = error {
                    self.unanswered = true;
                    self.known = None;
                    round.ambiguous += 1;
                    round.pending.push((attempt.document.write.clone(), attempt));
                }
                Err(context.failed_after_pause(error).await)
            }
        }
    }

    /// Records of breaks that were seen for long enough, so that their owners know.
    fn old_breaks(&mut self, document: &ShardDocument) -> BTreeSet<String> {
        let now = self.context.observed_now();
        let all: BTreeMap<_, _> = document
            .queues
            .values()
            .flat_map(|queue| &queue.breaks)
            .map(|it| (it.claim.clone(), Duration::from_micros(it.ttl_us)))
            .collect();
        self.breaks_seen.retain(|claim, _| all.contains_key(claim));
        let mut old = BTreeSet::new();
        for (claim, ttl) in all {
            let seen = *self.breaks_seen.entry(claim.clone()).or_insert(now);
            if now.since(seen) >= KEEP_BREAKS.max(ttl * 2) {
                old.insert(claim);
            }
        }
        old
    }

    /// Has the sessions read that are in the way, holders first: those that were not read for a while.
    fn observe(&self, document: &ShardDocument, keys: &BTreeSet<Key>) {
        let queues = keys.iter().filter_map(|key| document.queues.get(key));
        let entries = queues.flat_map(|queue| &queue.entries);
        let mut sessions: Vec<SessionId> = Vec::new();
        for entry in entries {
            if !sessions.contains(&entry.details.session) {
                sessions.push(entry.details.session.clone());
            }
        }
        sessions.retain(|session| !self.waiters.is_own_session(session));
        let sender = self.sender.clone();
        self.context.observe_due(sessions, move || {
            if let Some(sender) = sender.upgrade() {
                let _ = sender.send(ShardRequest::Poll);
            }
        });
    }
}

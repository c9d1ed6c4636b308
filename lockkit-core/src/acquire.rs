//! One lock operation of a user: a claim is made, enters the queue, is waited for, and becomes a guard;
//! or it is withdrawn, wherever its future was dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::background::PendingGuard;
use crate::batcher::{NotSubmitted, Submission, Submitted};
use crate::capabilities::LeaseScope;
use crate::clock::Moment;
use crate::deadline::backoff;
use crate::driver::{Acquisition, Attempted, BatchError, Grant, Patience};
use crate::fresh;
use crate::guard::Guard;
use crate::observe::{self, Labels, Outcome};
use crate::record::{ClaimRecord, LeaseLeft, RecordOptions};
use crate::registry::Release;
use crate::renewer;
use crate::settings::check_ttl;
use crate::shared::Core;
use crate::state::with_lock_delay;
use crate::{Claim, Error, Key, LossReason, Mode, Space, Token};

mod gate;
mod options;

pub(crate) use options::Options;

/// What one lock operation asks for.
pub(crate) struct Request<'a> {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) options: &'a Options,
    pub(crate) labels: Labels,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitBudget {
    No,
    For(Duration),
    Forever,
}

impl WaitBudget {
    /// What an attempt comes to within it, given whether it may wait; `None` when the time is over.
    pub(crate) async fn within<T, F>(
        self,
        attempt: impl FnOnce(bool) -> F,
    ) -> Result<Option<T>, Error>
    where
        F: Future<Output = Result<Option<T>, Error>>,
    {
        match self {
            Self::No | Self::For(Duration::ZERO) => attempt(false).await,
            Self::Forever => attempt(true).await,
            Self::For(limit) => {
                tokio::time::timeout(limit, attempt(true)).await.unwrap_or(Ok(None))
            }
        }
    }
}

/// Gets the lock, or `None` when it was busy for as long as the caller would wait.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    request: &Request<'_>,
    wait: WaitBudget,
) -> Result<Option<Guard>, Error> {
    check(core, request)?;
    let started = core.clock().now();
    let name = request.key.name.as_str();
    let span = observe::acquire_span(request.labels, name);
    let attempts = wait.within(|waits| {
        let wait = if waits { wait } else { WaitBudget::No };
        attempt(core, request, wait, started)
    });
    let result = attempts.instrument(span.clone()).await;
    let outcome = match (&result, wait) {
        (Ok(Some(_)), _) => Outcome::Granted,
        (Ok(None), WaitBudget::No) => Outcome::Busy,
        (Ok(None), _) => Outcome::TimedOut,
        (Err(_), _) => Outcome::Failed,
    };
    span.record("lockkit.outcome", outcome.as_str());
    match &result {
        Ok(_) if span.is_disabled() => {}
        Ok(guard) => {
            let token = guard.as_ref().and_then(|guard| guard.token().ok());
            span.record("lockkit.token", token.map(Token::as_i64));
        }
        Err(error) => observe::failed(&span, error),
    }
    let took = core.clock().now().since(started);
    observe::acquired(request.labels, name, outcome, took);
    result
}

/// Refuses what cannot work, before any I/O.
fn check(core: &Core, request: &Request<'_>) -> Result<(), Error> {
    let options = request.options;
    core.check_open()?;
    let capabilities = core.driver().capabilities();
    let margin = core.margin();
    check_ttl("ttl", options.ttl, margin, capabilities)?;
    check_ttl("wait_ttl", options.wait_ttl, margin, capabilities)?;
    options.check_combination()?;
    check_ttl("ttl with its lock delay", options.hold_ttl(), margin, capabilities)?;
    if options.max_hold == Some(Duration::ZERO) {
        return Err(Error::config("a max_hold of zero holds nothing: use a longer one, or none"));
    }
    if request.mode.space() == Space::Semaphore && !capabilities.permits {
        return Err(core.driver().unsupported("semaphores"));
    }
    request.mode.check(options.resizable)?;
    if let Some(gate) = core.driver().gate() {
        gate::check(gate, request)?;
    }
    if options.detached && !capabilities.detached {
        return Err(core.driver().unsupported("claims that outlive their process"));
    }
    Ok(())
}

/// How often a try asks since the answers come too late; after one ttl it does not ask again.
const TRIES: u32 = 3;

/// Acquires, and again with another claim as long as it waits and the claim gets lost in the queue, or is
/// granted too late.
async fn attempt(
    core: &Arc<Core>,
    request: &Request<'_>,
    wait: WaitBudget,
    started: Moment,
) -> Result<Option<Guard>, Error> {
    renewer::ensure(&core.registry);
    let patience = if matches!(wait, WaitBudget::No) { Patience::Try } else { Patience::Wait };
    let mut late = 0;
    loop {
        let base = match (core.known_token_base(), patience) {
            (Some(base), _) => base,
            (None, Patience::Try) => core.namespace_counter().await?,
            (None, Patience::Wait) => {
                core.repeat("namespace_counter", None, || core.namespace_counter()).await?
            }
        };
        match Attempt::new(core, request, base).run(wait, patience).await? {
            AttemptResult::Granted(guard) => return Ok(Some(guard)),
            AttemptResult::Busy => return Ok(None),
            AttemptResult::Again => late += 1,
        }
        tokio::time::sleep(backoff(1)).await;
        let over = || core.clock().now().since(started) > request.options.ttl;
        if patience == Patience::Try && (late == TRIES || over()) {
            let what = "each answer came after the lease that it granted was over";
            return Err(Error::retryable(core.backend(), what));
        }
        core.check_open()?;
    }
}

enum AttemptResult {
    Granted(Guard),
    Busy,
    /// The claim was lost in the queue, or granted too late: try again with another one.
    Again,
}

/// What a claim that has ended means for its caller: another claim enters the queue behind those that wait,
/// unless this one was ended on purpose.
fn again_unless_final(reason: &LossReason) -> Result<AttemptResult, Error> {
    match reason {
        LossReason::Broken(_) => Err(Error::lost(reason.clone())),
        LossReason::ShutDown => Err(Error::Closed),
        _ => Ok(AttemptResult::Again),
    }
}

/// One claim on its way to a guard. Dropped before that, it releases the claim.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    claim: Arc<Claim>,
    how: RecordOptions,
    /// Once the claim is known to be in the queue.
    record: Option<Arc<ClaimRecord>>,
    /// Requests that were sent and not answered: they may yet put the claim in the queue.
    ambiguous: u32,
    /// The acquire that has no outcome yet.
    acquiring: Option<Submission<Acquisition>>,
    /// A shutdown waits for it: from the first request to the claim's being in the registry, and while it is
    /// given back.
    pending: Option<PendingGuard>,
    /// Whether nothing can be in the queue that would have to be removed.
    is_settled: bool,
    /// Whether an attempt to take the gate got no answer, and may yet take it.
    is_gate_ambiguous: bool,
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, request: &Request<'_>, base: u64) -> Self {
        let Request { options, labels, .. } = *request;
        let hold_ttl = options.hold_ttl();
        let wait_ttl = match core.driver().capabilities().lease_scope {
            // A session has the ttl for holding, also for a claim that only waits in it.
            LeaseScope::Session => options.wait_ttl.min(hold_ttl),
            _ => options.wait_ttl,
        };
        let (key, identity) = (request.key.clone(), core.identity.clone());
        let claim = Claim::new(key, request.mode, hold_ttl, wait_ttl, identity);
        let claim = claim
            .with_lifetime(options.lifetime(core.driver().capabilities()))
            .with_note(with_lock_delay(options.note.clone(), options.lock_delay))
            .with_resizable(options.resizable);
        let margin = core.margin();
        let Options { auto_renew: renew, max_hold, at_least, lock_delay, .. } = *options;
        let how = RecordOptions { margin, base, renew, max_hold, at_least, lock_delay, labels };
        let claim = Arc::new(claim);
        Self {
            core,
            claim,
            how,
            record: None,
            ambiguous: 0,
            acquiring: None,
            pending: None,
            is_settled: true,
            is_gate_ambiguous: false,
        }
    }

    async fn run(mut self, wait: WaitBudget, patience: Patience) -> Result<AttemptResult, Error> {
        let core = self.core;
        let first = core.clock().now();
        let mut failures = 0;
        loop {
            // Later it may have been in the queue, and ended there: while it waited, or as a holder.
            let shorter = self.claim.wait_ttl.min(self.claim.hold_ttl);
            let latest = (failures > 0).then(|| first.after(shorter));
            self.pending.get_or_insert_with(|| core.registry.asking(&self.claim));
            core.check_running()?; // counted before it checks, so that a shutdown waits, or is seen here
            let acquire = core.registry.batcher.submission(self.claim.clone(), patience, latest);
            let outcome = self.acquiring.insert(acquire).outcome().await;
            self.acquiring = None;
            let Submitted { sent, result } = match outcome {
                Ok(submitted) => submitted,
                Err(NotSubmitted::TooLate) => return Ok(AttemptResult::Again),
                Err(NotSubmitted::Closed) => return Err(Error::Closed),
            };
            let error = match result {
                Ok(Attempted { result, ambiguous }) => {
                    core.registry.outages.answered();
                    self.ambiguous += ambiguous;
                    self.is_settled = false;
                    return self.answered(result, sent, patience).await;
                }
                Err(BatchError { error, ambiguous, .. }) => {
                    self.ambiguous += ambiguous;
                    error
                }
            };
            self.is_settled = self.ambiguous == 0;
            if let Some(reason) = error.loss()
                && patience == Patience::Wait
            {
                // A request without an answer had put it into the queue, where it has ended.
                self.is_settled = false;
                return again_unless_final(reason);
            }
            // A server may become a primary within the caller's limit.
            let may_pass = error.is_read_only() && matches!(wait, WaitBudget::For(_));
            let error = if may_pass { error.with_retryable(true) } else { error };
            if patience == Patience::Try || !error.is_retryable() {
                return Err(error);
            }
            core.registry.note("acquire", sent, &error);
            failures += 1;
            tokio::time::sleep(core.registry.batcher.backoff(failures)).await;
        }
    }

    async fn answered(
        mut self,
        answer: Acquisition,
        asked: Moment,
        patience: Patience,
    ) -> Result<AttemptResult, Error> {
        match answer {
            Acquisition::Busy => {
                self.is_settled = self.ambiguous == 0;
                Ok(AttemptResult::Busy)
            }
            Acquisition::Granted(grant) => {
                self.check_lease(&grant)?;
                let record = self.enlist(asked);
                match record.grant(&grant, Some(asked)) {
                    LeaseLeft::Enough => self.hand_out(record, patience).await,
                    remaining => Box::pin(self.late(record, remaining, patience)).await,
                }
            }
            Acquisition::Queued { .. } => {
                let record = self.enlist(asked);
                record.waits(asked);
                self.register(&record)?;
                // Boxed, so that a lock that is free does not carry what waiting needs.
                Box::pin(self.wait(record)).await
            }
        }
    }

    /// Refuses a lease of which the lock delay would leave too little: a backend may give less than it is
    /// asked for.
    fn check_lease(&self, grant: &Grant) -> Result<(), Error> {
        let delay = self.how.lock_delay;
        let usable = self.claim.hold_ttl.saturating_sub(delay);
        if delay.is_zero() || grant.ttl.saturating_sub(delay) >= usable / 2 {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{} gives a lease of {:?}, too little for a ttl of {usable:?} and a lock delay of {delay:?}: \
             shorten them, or raise the longest lease of the server",
            self.core.backend(),
            grant.ttl
        )))
    }

    fn enlist(&mut self, asked: Moment) -> Arc<ClaimRecord> {
        let clock = self.core.clock().clone();
        let mut how = self.how;
        if self.core.registry.gate_of(&self.claim).is_some() {
            how.max_hold = None; // it counts from the moment at which the gate is taken
        }
        let record = Arc::new(ClaimRecord::new(self.claim.clone(), asked, clock, how));
        self.record = Some(record.clone());
        record
    }

    /// Has the registry take care of the claim; an error after a shutdown.
    fn register(&mut self, record: &Arc<ClaimRecord>) -> Result<(), Error> {
        self.core.registry.insert(self.claim.id, record)?;
        self.pending = None;
        Ok(())
    }

    async fn hand_out(
        mut self,
        record: Arc<ClaimRecord>,
        patience: Patience,
    ) -> Result<AttemptResult, Error> {
        self.register(&record)?;
        self.past_gate(record, patience).await
    }

    /// The guard of a claim that holds and is in the registry; with a gate, once that is taken.
    async fn past_gate(
        self,
        record: Arc<ClaimRecord>,
        patience: Patience,
    ) -> Result<AttemptResult, Error> {
        match self.core.registry.gate_of(&self.claim) {
            None => Ok(AttemptResult::Granted(self.into_guard(record))),
            // Boxed, so that a lock without one does not carry what it needs.
            Some(gate) => Box::pin(self.pass_gate(gate, record, patience)).await,
        }
    }

    /// The lease was over, or nearly so, when the answer came: renews it, where that is still possible,
    /// and gives it back otherwise, so that the next claim does not wait for its end.
    async fn late(
        mut self,
        record: Arc<ClaimRecord>,
        remaining: LeaseLeft,
        patience: Patience,
    ) -> Result<AttemptResult, Error> {
        if remaining == LeaseLeft::Little && fresh::renewed(self.core, &record).await? {
            return self.hand_out(record, patience).await;
        }
        if let Some(reason) = record.loss() {
            again_unless_final(&reason)?;
        }
        observe::granted_too_late(&self.claim);
        record.give_back();
        match self.core.registry.give_back(&self.claim).await {
            Ok(_) => self.is_settled = self.ambiguous == 0,
            // It would be refused for its own claim.
            Err(error) if patience == Patience::Try => return Err(error),
            Err(_) => {}
        }
        Ok(AttemptResult::Again)
    }

    /// Waits until the claim holds: by a notification of the driver, or by a renewal.
    async fn wait(mut self, record: Arc<ClaimRecord>) -> Result<AttemptResult, Error> {
        let mut failures = 0;
        let registry = &self.core.registry;
        loop {
            let asked = self.core.clock().now();
            let granted = tokio::select! {
                biased;
                () = record.settled() => break,
                granted = self.granted(&record) => granted,
            };
            match granted {
                Ok(()) => {}
                Err(Error::Lost { reason }) => drop(record.lose(reason)),
                Err(error) if error.is_retryable() => {
                    registry.note("wait", asked, &error);
                }
                Err(error) => return Err(error),
            }
            failures += 1;
            tokio::select! {
                biased;
                () = record.settled() => break,
                () = tokio::time::sleep(backoff(failures)) => {}
            }
        }
        match record.loss() {
            None if record.lease_left() == LeaseLeft::Enough => {
                self.core.registry.sooner(record.next_event());
                self.past_gate(record, Patience::Wait).await
            }
            None => {
                // Renewed here alone, and not ended by the renewer, until it has a guard.
                self.pending = Some(self.core.registry.asking(&self.claim));
                self.core.registry.remove(self.claim.id, &record);
                self.late(record, LeaseLeft::Little, Patience::Wait).await
            }
            // Lost in the queue; or granted, and over before this task ran.
            Some(reason) => again_unless_final(&reason),
        }
    }

    /// Waits for the driver's grant, and records it. Where it is old (so much time has passed since
    /// the last answer that the lease may be over), the backend is asked.
    async fn granted(&self, record: &ClaimRecord) -> Result<(), Error> {
        let grant = self.core.driver().granted(&self.claim).await?;
        self.check_lease(&grant)?;
        if record.grant(&grant, None) != LeaseLeft::Nothing || record.is_over() {
            return Ok(());
        }
        let sent = self.core.clock().now();
        let answer = self.core.driver().renew_single(&self.claim).await?;
        record.renewed(&answer, sent);
        Ok(())
    }

    fn into_guard(mut self, record: Arc<ClaimRecord>) -> Guard {
        self.is_settled = true;
        record.hand_out();
        if self.ambiguous > 0 {
            let until = self.core.clock().now().after(self.claim.hold_ttl);
            record.set_ambiguous(self.ambiguous, until);
        }
        if self.is_gate_ambiguous {
            record.set_gate_ambiguous(self.core.clock().now().after(self.claim.hold_ttl));
        }
        Guard::new(self.core.clone(), record)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.core.registry.is_forked() {
            // The parent's operation, in the parent's queue.
            std::mem::forget((self.acquiring.take(), self.pending.take()));
            return;
        }
        if self.acquiring.take().is_some_and(|mut acquire| !acquire.withdraw()) {
            self.ambiguous += 1;
            self.is_settled = false;
        }
        if self.is_settled {
            return;
        }
        let registry = &self.core.registry;
        if let Some(record) = &self.record {
            self.pending.get_or_insert_with(|| registry.releasing());
            registry.remove(self.claim.id, record);
            record.give_back();
        }
        let (mut ambiguous, is_gate_ambiguous) = (self.ambiguous, self.is_gate_ambiguous);
        if self.record.is_some() && ambiguous > 0 {
            ambiguous += 1; // the claim that is in its queue is found before
        }
        let release = Release::of(self.claim.clone(), registry.clock.now());
        registry.release(Release { ambiguous, is_gate_ambiguous, ..release });
    }
}

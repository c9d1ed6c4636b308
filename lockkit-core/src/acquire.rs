//! How a lock is had: one request of a user becomes a claim, is put in line, waited for, and handed
//! out as a guard; or is taken back, wherever its future was dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::clock::Moment;
use crate::collector::{Answer, Passenger};
use crate::deadline::backoff;
use crate::driver::{Acquisition, Attempted, Patience, Reply, Step};
use crate::fresh;
use crate::guard::Guard;
use crate::observe::{self, Labels, Outcome};
use crate::record::{How, Left, Record};
use crate::registry::{Pending, Release};
use crate::renewer;
use crate::settings::{Settings, check_ttl};
use crate::shared::Core;
use crate::{Claim, Error, Key, Lifetime, LossReason, Mode, Space, Token};

/// What one lock operation asks for.
pub(crate) struct Request<'a> {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) options: &'a Options,
    pub(crate) labels: Labels,
}

/// What can be set for each lock.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait_ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) note: Option<Arc<str>>,
    /// Whether it is renewed in the background while it is held.
    pub(crate) auto_renew: bool,
    pub(crate) detached: bool,
    pub(crate) class: Option<&'static str>,
    /// Whether the limit is the backend's to say, so that any number of permits may be asked for.
    pub(crate) resizable: bool,
}

impl Options {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            ttl: settings.default_ttl(),
            wait_ttl: settings.default_wait_ttl(),
            max_hold: None,
            note: None,
            auto_renew: true,
            detached: false,
            class: None,
            resizable: false,
        }
    }

    fn lifetime(&self) -> Lifetime {
        match (self.detached, self.auto_renew) {
            (true, _) => Lifetime::Detached,
            (false, true) => Lifetime::Renewed,
            (false, false) => Lifetime::Fixed,
        }
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

/// Gets the lock, or `None` when it was busy for as long as the caller would wait.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    request: &Request<'_>,
    wait: Wait,
) -> Result<Option<Guard>, Error> {
    check(core, request)?;
    let started = core.clock().now();
    let name = request.key.name.as_str();
    let span = observe::acquire_span(request.labels, name);
    let result = within(core, request, wait, started).instrument(span.clone()).await;
    let outcome = match (&result, wait) {
        (Ok(Some(_)), _) => Outcome::Granted,
        (Ok(None), Wait::No) => Outcome::Busy,
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

async fn within(
    core: &Arc<Core>,
    request: &Request<'_>,
    wait: Wait,
    started: Moment,
) -> Result<Option<Guard>, Error> {
    match wait {
        Wait::For(Duration::ZERO) => attempt(core, request, Wait::No, started).await,
        Wait::No | Wait::Forever => attempt(core, request, wait, started).await,
        Wait::For(limit) => {
            let attempt = attempt(core, request, wait, started);
            tokio::time::timeout(limit, attempt).await.unwrap_or(Ok(None))
        }
    }
}

/// Refuses what cannot work, before any I/O.
fn check(core: &Core, request: &Request<'_>) -> Result<(), Error> {
    let options = request.options;
    core.check_open()?;
    let capabilities = core.driver().capabilities();
    let margin = core.margin();
    check_ttl("ttl", options.ttl, margin, capabilities)?;
    check_ttl("wait_ttl", options.wait_ttl, margin, capabilities)?;
    if options.max_hold == Some(Duration::ZERO) {
        return Err(Error::config("a max_hold of zero holds nothing: use a longer one, or none"));
    }
    if request.mode.space() == Space::Semaphore && !capabilities.permits {
        return Err(core.driver().unsupported("semaphores"));
    }
    request.mode.check(options.resizable)?;
    if options.detached && !capabilities.detached {
        return Err(core.driver().unsupported("claims that outlive their process"));
    }
    Ok(())
}

/// How often a try asks since the answers come too late; after one ttl it does not ask again.
const TRIES: u32 = 3;

/// Claims, and claims again as long as it waits and the claim gets lost in line, or is granted too
/// late.
async fn attempt(
    core: &Arc<Core>,
    request: &Request<'_>,
    wait: Wait,
    started: Moment,
) -> Result<Option<Guard>, Error> {
    renewer::ensure(&core.registry);
    let patience = if matches!(wait, Wait::No) { Patience::Try } else { Patience::Wait };
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
            Came::Granted(guard) => return Ok(Some(guard)),
            Came::Busy => return Ok(None),
            Came::Again => late += 1,
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

enum Came {
    Granted(Guard),
    Busy,
    /// The claim was lost in line, or granted too late: ask with another one.
    Again,
}

/// One claim on its way to a guard. Dropped before that, it takes the claim out again.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    claim: Arc<Claim>,
    how: How,
    /// Once the claim is known to be in line.
    record: Option<Arc<Record>>,
    /// Requests that were sent, and not answered: they may yet put the claim in line.
    under_way: u32,
    /// The request that is under way.
    asking: Option<Passenger>,
    /// A shutdown waits for it, from the first request to the claim's being in the registry.
    pending: Option<Pending>,
    /// Whether nothing is in line that would have to be taken out.
    settled: bool,
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, request: &Request<'_>, base: u64) -> Self {
        let Request { options, labels, .. } = *request;
        let claim = Claim::new(
            request.key.clone(),
            request.mode,
            options.ttl,
            options.wait_ttl,
            core.identity.clone(),
        );
        let claim = claim
            .with_lifetime(options.lifetime())
            .with_note(options.note.clone())
            .with_resizable(options.resizable);
        let margin = core.margin();
        let Options { auto_renew: renew, max_hold, .. } = *options;
        let how = How { margin, base, renew, max_hold, labels };
        let claim = Arc::new(claim);
        Self {
            core,
            claim,
            how,
            record: None,
            under_way: 0,
            asking: None,
            pending: None,
            settled: true,
        }
    }

    async fn run(mut self, wait: Wait, patience: Patience) -> Result<Came, Error> {
        let core = self.core;
        let first = core.clock().now();
        let mut failures = 0;
        loop {
            // Later it may have been in line, and ended there.
            let latest = (failures > 0).then(|| first.after(self.claim.wait_ttl));
            self.pending.get_or_insert_with(|| core.registry.asking(&self.claim));
            core.check_running()?; // counted before it looks: so a shutdown waits, or is seen here
            let step = Step::Acquire { claim: self.claim.clone(), patience };
            let asking = self.asking.insert(core.registry.collector.step(step, latest));
            let answer = asking.answer().await?;
            self.asking = None;
            let Some(Answer { departed, reply }) = answer else {
                return Ok(Came::Again);
            };
            self.under_way += 1;
            self.settled = false;
            let error = match reply {
                Ok(Attempted { result: Reply::Acquired(answer), ambiguous }) => {
                    core.registry.outages.answered();
                    self.under_way += ambiguous;
                    self.under_way -= 1;
                    return self.answered(answer, departed, patience).await;
                }
                Ok(_) => core.driver().no_reply(),
                // A server may become a primary within the caller's limit.
                Err(error) if error.is_read_only() && matches!(wait, Wait::For(_)) => {
                    error.with_retryable(true)
                }
                Err(error) => error,
            };
            if !matches!(error, Error::Backend { .. }) {
                self.under_way -= 1;
                self.settled = self.under_way == 0;
                return Err(error);
            }
            self.under_way += 1; // a driver that gives up may have sent it on two connections
            if patience == Patience::Try || !error.is_retryable() {
                return Err(error);
            }
            core.registry.note("acquire", departed, &error);
            failures += 1;
            tokio::time::sleep(core.registry.collector.jitter.backoff(failures)).await;
        }
    }

    async fn answered(
        mut self,
        answer: Acquisition,
        asked: Moment,
        patience: Patience,
    ) -> Result<Came, Error> {
        match answer {
            Acquisition::Busy => {
                self.settled = self.under_way == 0;
                Ok(Came::Busy)
            }
            Acquisition::Granted(grant) => {
                let record = self.enlist(asked);
                match record.grant(&grant, Some(asked)) {
                    Left::Enough => self.hand_out(record),
                    left => Box::pin(self.late(record, left, patience)).await,
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

    fn enlist(&mut self, asked: Moment) -> Arc<Record> {
        let clock = self.core.clock().clone();
        let record = Arc::new(Record::new(self.claim.clone(), asked, clock, self.how));
        self.record = Some(record.clone());
        record
    }

    /// Has the registry take care of the claim; an error after a shutdown.
    fn register(&mut self, record: &Arc<Record>) -> Result<(), Error> {
        self.core.registry.insert(self.claim.id, record)?;
        self.pending = None;
        Ok(())
    }

    fn hand_out(mut self, record: Arc<Record>) -> Result<Came, Error> {
        self.register(&record)?;
        Ok(Came::Granted(self.into_guard(record)))
    }

    /// The lease was over, or nearly so, when the answer came: renews it, where that is still possible,
    /// and gives it back otherwise, so that the next claim does not wait for its end.
    async fn late(
        mut self,
        record: Arc<Record>,
        left: Left,
        patience: Patience,
    ) -> Result<Came, Error> {
        if left == Left::Little && fresh::renewed(self.core, &record).await? {
            return self.hand_out(record);
        }
        match record.loss() {
            Some(reason @ LossReason::Broken(_)) => return Err(Error::Lost { reason }),
            Some(LossReason::ShutDown) => return Err(Error::Closed),
            _ => {}
        }
        observe::granted_too_late(&self.claim);
        record.give_back();
        match self.core.registry.give_back(&self.claim).await {
            Ok(_) => self.settled = self.under_way == 0,
            // It would be refused for its own claim.
            Err(error) if patience == Patience::Try => return Err(error),
            Err(_) => {}
        }
        Ok(Came::Again)
    }

    /// Waits until the claim holds: told by the driver, or by a renewal.
    async fn wait(mut self, record: Arc<Record>) -> Result<Came, Error> {
        let mut failures = 0;
        let registry = &self.core.registry;
        loop {
            let asked = self.core.clock().now();
            let heard = tokio::select! {
                biased;
                () = record.settled() => break,
                heard = self.hear(&record) => heard,
            };
            match heard {
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
            None if record.lease_left() == Left::Enough => {
                self.core.registry.sooner(record.next_event());
                Ok(Came::Granted(self.into_guard(record)))
            }
            None => {
                // Renewed here alone, and not ended by the renewer, until it has a guard.
                self.pending = Some(self.core.registry.asking(&self.claim));
                self.core.registry.remove(self.claim.id, &record);
                self.late(record, Left::Little, Patience::Wait).await
            }
            Some(reason @ LossReason::Broken(_)) => Err(Error::Lost { reason }),
            Some(LossReason::ShutDown) => Err(Error::Closed),
            // Lost in line; or granted, and over before this task ran.
            Some(_) => Ok(Came::Again),
        }
    }

    /// Waits for word of the turn, and takes it in. Where it is old (so much time has passed since
    /// the last answer that the lease may be over), the backend is asked.
    async fn hear(&self, record: &Record) -> Result<(), Error> {
        let grant = self.core.driver().granted(&self.claim).await?;
        if record.grant(&grant, None) != Left::Nothing || record.is_over() {
            return Ok(());
        }
        let sent = self.core.clock().now();
        let answer = self.core.driver().renew_single(&self.claim).await?;
        record.renewed(&answer, sent);
        Ok(())
    }

    fn into_guard(mut self, record: Arc<Record>) -> Guard {
        self.settled = true;
        record.hand_out();
        if self.under_way > 0 {
            let until = self.core.clock().now().after(self.claim.hold_ttl);
            record.set_under_way(self.under_way, until);
        }
        Guard::new(self.core.clone(), record)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.core.registry.is_forked() {
            // The parent's request, in the parent's queue.
            std::mem::forget((self.asking.take(), self.pending.take()));
            return;
        }
        if self.asking.take().is_some_and(|mut asking| !asking.withdraw()) {
            self.under_way += 1;
            self.settled = false;
        }
        if self.settled {
            return;
        }
        let registry = &self.core.registry;
        if let Some(record) = &self.record {
            registry.remove(self.claim.id, record);
            record.give_back();
        }
        let now = registry.clock.now();
        let give_up = now.after(self.claim.hold_ttl.max(self.claim.wait_ttl));
        registry.release(Release {
            claim: self.claim.clone(),
            not_before: now,
            give_up,
            under_way: self.under_way,
        });
    }
}

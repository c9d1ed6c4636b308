//! How a lock is had: one request of a user becomes a claim, is put in line, waited for, and handed
//! out as a guard; or is taken back, wherever its future was dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::clock::Moment;
use crate::deadline::backoff;
use crate::driver::{Acquisition, Answered, Grant, Patience};
use crate::guard::Guard;
use crate::manager::Core;
use crate::observe::{self, Labels, Outcome};
use crate::record::{How, Record};
use crate::registry::Release;
use crate::settings::check_ttl;
use crate::{Claim, Error, Key, Lifetime, LossReason, Mode};

/// What one lock operation asks for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) wait_ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lifetime: Lifetime,
    /// Whether it is renewed in the background while it is held.
    pub(crate) renew: bool,
    pub(crate) note: Option<Arc<str>>,
    /// Whether its limit may change while it waits.
    pub(crate) resizable: bool,
    pub(crate) labels: Labels,
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
    request: &Request,
    wait: Wait,
) -> Result<Option<Guard>, Error> {
    check(core, request)?;
    let started = core.clock().now();
    let name = request.key.name.as_str();
    let span = tracing::debug_span!("acquire", name, kind = request.labels.kind);
    let result = within(core, request, wait).instrument(span).await;
    let outcome = match (&result, wait) {
        (Ok(Some(_)), _) => Outcome::Granted,
        (Ok(None), Wait::No) => Outcome::Busy,
        (Ok(None), _) => Outcome::TimedOut,
        (Err(_), _) => Outcome::Failed,
    };
    let took = core.clock().now().since(started);
    observe::acquired(request.labels, name, outcome, took);
    result
}

async fn within(core: &Arc<Core>, request: &Request, wait: Wait) -> Result<Option<Guard>, Error> {
    match wait {
        Wait::No | Wait::For(Duration::ZERO) => attempt(core, request, Patience::Try).await,
        Wait::Forever => attempt(core, request, Patience::Wait).await,
        Wait::For(limit) => {
            let attempt = attempt(core, request, Patience::Wait);
            tokio::time::timeout(limit, attempt).await.unwrap_or(Ok(None))
        }
    }
}

/// Refuses what cannot work, before any I/O.
fn check(core: &Core, request: &Request) -> Result<(), Error> {
    core.check_open()?;
    let capabilities = core.driver().capabilities();
    let margin = core.settings.margin;
    check_ttl("ttl", request.ttl, margin, capabilities)?;
    check_ttl("wait_ttl", request.wait_ttl, margin, capabilities)?;
    if request.max_hold == Some(Duration::ZERO) {
        return Err(Error::config("a max_hold of zero holds nothing: use a longer one, or none"));
    }
    if let Mode::Permits { permits, limit } = request.mode {
        if !capabilities.permits {
            return Err(core.driver().unsupported("semaphores"));
        }
        if permits == 0 || (limit == 0 && !request.resizable) {
            return Err(Error::config("a semaphore has, and gives, one permit at least"));
        }
        if permits > limit && !request.resizable {
            let message = format!("{permits} permits of a semaphore of {limit} can never be had");
            return Err(Error::Config(message));
        }
    }
    if request.lifetime == Lifetime::Detached && !capabilities.detached {
        return Err(core.driver().unsupported("claims that outlive their process"));
    }
    Ok(())
}

/// Claims, and claims anew as long as it waits and the claim gets lost in line.
async fn attempt(
    core: &Arc<Core>,
    request: &Request,
    patience: Patience,
) -> Result<Option<Guard>, Error> {
    core.registry.ensure_renewer();
    let mut failures = 0;
    loop {
        let base = match core.token_base().await {
            Ok(base) => base,
            Err(error) if patience == Patience::Wait && error.is_retryable() => {
                failures += 1;
                tokio::time::sleep(backoff(failures)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        match Attempt::new(core, request, base).run(patience).await? {
            Answer::Granted(guard) => return Ok(Some(guard)),
            Answer::Busy => return Ok(None),
            Answer::Again => tokio::time::sleep(backoff(1)).await,
        }
        core.check_open()?;
    }
}

enum Answer {
    Granted(Guard),
    Busy,
    /// The claim was lost in line: stand in line with another one.
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
    /// Whether nothing is in line that would have to be taken out.
    settled: bool,
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, request: &Request, base: u64) -> Self {
        let claim = Claim::new(
            request.key.clone(),
            request.mode,
            request.ttl,
            request.wait_ttl,
            core.identity.clone(),
        );
        let claim = claim.with_lifetime(request.lifetime).with_note(request.note.clone());
        let margin = core.settings.margin;
        let Request { renew, max_hold, labels, .. } = *request;
        let how = How { margin, base, renew, max_hold, labels };
        Self { core, claim: Arc::new(claim), how, record: None, under_way: 0, settled: false }
    }

    async fn run(mut self, patience: Patience) -> Result<Answer, Error> {
        let first = self.core.clock().now();
        let mut failures = 0;
        loop {
            let asked = self.core.clock().now();
            if failures > 0 && asked.since(first) >= self.claim.wait_ttl {
                return Ok(Answer::Again); // it may have been in line, and ended there
            }
            self.under_way += 1;
            let error = match self.core.driver().acquire(&self.claim, patience).await {
                Ok(Answered { answer, unanswered }) => {
                    self.under_way += unanswered;
                    self.under_way -= 1;
                    return self.answered(answer, asked).await;
                }
                Err(error) => error,
            };
            if !matches!(error, Error::Backend { .. }) {
                self.under_way -= 1;
                self.settled = self.under_way == 0;
                return Err(error);
            }
            if patience == Patience::Try || !error.is_retryable() {
                return Err(error);
            }
            observe::acquire_failed(&self.claim, &error);
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
            self.core.check_open()?;
        }
    }

    async fn answered(mut self, answer: Acquisition, asked: Moment) -> Result<Answer, Error> {
        self.core.check_open()?; // shut down while the request was under way
        match answer {
            Acquisition::Busy => {
                self.settled = self.under_way == 0;
                Ok(Answer::Busy)
            }
            Acquisition::Granted(grant) => {
                let record = self.enlist(asked);
                self.take(&record, &grant, Some(asked))
            }
            Acquisition::Queued { .. } => {
                let record = self.enlist(asked);
                self.core.registry.insert(self.claim.id, &record);
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

    /// Makes a guard of a grant that has just been answered.
    fn take(
        self,
        record: &Arc<Record>,
        grant: &Grant,
        asked: Option<Moment>,
    ) -> Result<Answer, Error> {
        if record.grant(grant, asked) {
            self.core.registry.insert(self.claim.id, record);
            return Ok(Answer::Granted(self.into_guard(record.clone())));
        }
        // Never a guard of a lease that is over already.
        Err(Error::Lost { reason: LossReason::Expired })
    }

    /// Waits until the claim holds: told by the driver, or by a renewal.
    async fn wait(self, record: Arc<Record>) -> Result<Answer, Error> {
        let driver = self.core.driver();
        let mut failures = 0;
        let error = loop {
            let granted = tokio::select! {
                biased;
                () = record.settled() => break None,
                granted = driver.granted(&self.claim) => granted,
            };
            match granted {
                Ok(grant) if record.grant(&grant, None) => break None,
                // The grant is old: so much time has passed that the backend has to be asked.
                Ok(_) if record.is_over() => break None,
                Ok(_) => self.confirm(&record).await?,
                Err(Error::Lost { reason }) => {
                    record.lose(reason);
                    break None;
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    tokio::select! {
                        () = record.settled() => break None,
                        () = tokio::time::sleep(backoff(failures)) => {}
                    }
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = error {
            return Err(error);
        }
        if record.is_holding() {
            self.core.registry.sooner(record.next_event());
            return Ok(Answer::Granted(self.into_guard(record)));
        }
        match record.loss() {
            Some(reason @ LossReason::Broken(_)) => Err(Error::Lost { reason }),
            Some(LossReason::ShutDown) => Err(Error::Closed),
            _ => Ok(Answer::Again),
        }
    }

    async fn confirm(&self, record: &Record) -> Result<(), Error> {
        let sent = self.core.clock().now();
        let answer = self.core.driver().renew_single(&self.claim).await?;
        record.renewed(&answer, sent);
        match record.is_holding() || record.is_over() {
            true => Ok(()),
            false => Err(Error::Lost { reason: LossReason::Expired }),
        }
    }

    fn into_guard(mut self, record: Arc<Record>) -> Guard {
        self.settled = true;
        if self.under_way > 0 {
            let until = self.core.clock().now().after(self.claim.hold_ttl);
            record.set_under_way(self.under_way, until);
        }
        Guard::new(self.core.clone(), record)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let registry = &self.core.registry;
        if let Some(record) = &self.record {
            registry.remove(self.claim.id);
            record.close();
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

//! The one background task of a manager. It renews all claims in one call a tick, tries again when
//! that fails, ends what could not be saved, and releases what was dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::background::PendingGuard;
use crate::clock::{Moment, sleep_until};
use crate::deadline::renewal_limit;
use crate::driver::{Attempted, Released, Renewal};
use crate::error::no_answer;
use crate::observe;
use crate::outage::NOTABLE;
use crate::record::{ClaimRecord, NEVER};
use crate::registry::{Registry, Release};
use crate::runtimes::{Heartbeat, Runtimes, interval, patience};
use crate::{Claim, Error, LossReason};

enum Job {
    Renewal,
    Release,
}

/// Starts the renewer unless it runs. (It ends when its runtime does.)
pub(crate) fn ensure(registry: &Arc<Registry>) {
    let here = Handle::current();
    let mut runtimes = registry.runtimes();
    if !runtimes.has_renewer() {
        runtimes.task = start(registry, &here);
        runtimes.home = Some(here.clone());
    }
    let Some(home) = runtimes.home.clone() else { return };
    if !runtimes.are_several() && home.id() != here.id() {
        registry.renewer_polled();
        start_heartbeat(&mut runtimes, registry, &home);
        registry.share();
    }
    if runtimes.are_several() && runtimes.is_new(&here) {
        start_heartbeat(&mut runtimes, registry, &here);
    }
}

fn start_heartbeat(runtimes: &mut Runtimes, registry: &Arc<Registry>, runtime: &Handle) {
    let heartbeat = runtimes.add(runtime, registry.clock.now());
    runtime.spawn(keep_heartbeat(Arc::downgrade(registry), heartbeat, runtime.clone()));
}

async fn keep_heartbeat(registry: Weak<Registry>, heartbeat: Arc<Heartbeat>, runtime: Handle) {
    loop {
        let pause = {
            let Some(registry) = registry.upgrade() else { return };
            let now = registry.clock.now();
            heartbeat.store(now.as_nanos(), Ordering::SeqCst);
            take_over(&registry, &runtime, now);
            interval(registry.shortest())
        };
        tokio::time::sleep(pause).await;
    }
}

/// Goes on in this runtime where the renewer was not polled for too long.
fn take_over(registry: &Arc<Registry>, here: &Handle, now: Moment) {
    let is_blocked = || now.since(registry.polled()) > patience(registry.shortest());
    if !is_blocked() {
        return;
    }
    let mut runtimes = registry.runtimes();
    // Another runtime was faster, or nothing is left to do.
    if !is_blocked() || (registry.is_orphaned() && !runtimes.has_renewer()) {
        return;
    }
    registry.renewer_polled();
    // The wake-up that the blocked one waits for would otherwise be missed here.
    registry.wake();
    runtimes.task = start(registry, here);
    runtimes.home = Some(here.clone());
}

/// The renewer's runtime ended, and others that use this manager may live: goes on in the one
/// of a claim, if there is one; says whether it does.
fn revive(registry: &Arc<Registry>) -> bool {
    let mut runtimes = registry.runtimes();
    let mut ended = Vec::new();
    for runtime in registry.all().iter().filter_map(|record| record.runtime()) {
        if ended.contains(&runtime.id()) {
            continue;
        }
        runtimes.task = start(registry, runtime);
        if runtimes.task.is_some() {
            runtimes.home = Some(runtime.clone());
            return true;
        }
        ended.push(runtime.id());
    }
    false
}

/// `None` when the runtime has ended.
fn start(registry: &Arc<Registry>, runtime: &Handle) -> Option<JoinHandle<()>> {
    let begun = Arc::new(AtomicBool::new(false));
    let number = registry.next_renewer();
    let running = Running { registry: registry.clone(), begun: begun.clone(), number };
    let task = runtime.spawn(run(registry.clone(), running));
    begun.store(true, Ordering::SeqCst);
    (!task.is_finished()).then_some(task)
}

/// Runs until the last handle of the manager is gone and everything is released, or until its runtime
/// ends.
async fn run(registry: Arc<Registry>, running: Running) {
    let mut jobs: FuturesUnordered<BoxFuture<'static, Job>> = FuturesUnordered::new();
    // Dropped before the jobs, so that it still counts the releases that end with them.
    let running = running;
    let mut renewing = false;
    let mut next = Moment::from_nanos(0);
    let mut watch = Watch { next: NEVER, last: (NEVER, 0) };
    loop {
        if running.is_replaced() {
            while jobs.next().await.is_some() {}
            return;
        }
        registry.renewer_polled();
        let now = registry.clock.now();
        if next <= now {
            registry.expire(now);
            if !renewing {
                let batch = due(&registry, now);
                if !batch.is_empty() {
                    renewing = true;
                    jobs.push(renew(registry.clone(), batch).map(|()| Job::Renewal).boxed());
                }
            }
            // What is due while a renewal is under way waits for it, but deadlines pass meanwhile.
            let soonest = if renewing { now.after(Duration::from_millis(20)) } else { now };
            next = registry.plan_sleep(soonest);
        }
        // Read before the list: what its last handle wants released is in the list by then.
        let is_orphaned = registry.is_orphaned();
        for (order, pending) in registry.take_releases() {
            let job = release(registry.clone(), order, pending);
            jobs.push(job.map(|()| Job::Release).boxed());
        }
        if is_orphaned && jobs.is_empty() {
            return;
        }
        watch.check(&registry, now);
        let tick = match registry.is_shared() {
            true => now.after(interval(registry.shortest())),
            false => NEVER,
        };
        tokio::select! {
            () = sleep_until(&*registry.clock, next.min(watch.next).min(tick)) => {}
            () = registry.woken() => next = registry.sleeps_until(),
            Some(job) = jobs.next() => if matches!(job, Job::Renewal) {
                renewing = false;
                next = now;
            },
        }
    }
}

/// Looks twice within [`NOTABLE`], while claims are asked for, whether anything is answered.
struct Watch {
    /// `NEVER` while nothing is asked for.
    next: Moment,
    /// When it looked last, and how many answers there were.
    last: (Moment, u64),
}

impl Watch {
    fn check(&mut self, registry: &Registry, now: Moment) {
        let answers = registry.outages.answers();
        let goes_on = match self.next {
            NEVER => registry.is_watched(),
            next if now < next => return,
            _ => registry.look_for_answers(self.last.0, answers != self.last.1),
        };
        self.last = (now, answers);
        self.next = if goes_on { now.after(NOTABLE / 2) } else { NEVER };
    }
}

/// Goes with the renewer: dropped when that ends, or its runtime does, polled or not.
struct Running {
    registry: Arc<Registry>,
    /// Whether it did begin to run.
    begun: Arc<AtomicBool>,
    /// Each renewer of a manager has its own.
    number: u64,
}

impl Running {
    /// Whether another one took over while this one was blocked: it goes on with what it has begun,
    /// and does nothing else.
    fn is_replaced(&self) -> bool {
        self.registry.renewers() != self.number
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.begun.load(Ordering::SeqCst) || self.is_replaced() {
            return;
        }
        let registry = &self.registry;
        let unreleased = registry.unreleased();
        if !registry.is_orphaned() && revive(registry) {
            return;
        }
        let held = registry.held();
        let was_shut_down = registry.closed.load(Ordering::SeqCst);
        if unreleased + held.len() > 0 && !was_shut_down {
            observe::runtime_gone(registry.backend(), &held, unreleased);
        }
    }
}

/// The claims to renew in this tick: none unless one is due, then all that may as well go along.
fn due(registry: &Registry, now: Moment) -> Vec<Arc<ClaimRecord>> {
    if registry.next_event() > now {
        return Vec::new();
    }
    let mut all = registry.all();
    all.retain(|record| record.renewable(now));
    if registry.is_shared() {
        let runtimes = registry.runtimes();
        let later = now.after(interval(registry.shortest()));
        all.retain(|record| {
            let hangs = runtimes.hangs(record, now);
            if hangs {
                record.postpone(later);
            }
            !hangs
        });
    }
    all
}

async fn renew(registry: Arc<Registry>, mut batch: Vec<Arc<ClaimRecord>>) {
    let sent = registry.clock.now();
    // A renewal of a lost claim would keep its name closed for longer than its lock delay. It may have
    // been lost since it was found to be due: threads stand still anywhere.
    batch.retain(|record| !record.has_lock_delay() || !record.is_over_at(sent));
    if batch.is_empty() {
        return;
    }
    // What is over already sets no limit to the others.
    let remaining =
        batch.iter().map(|r| r.savable_for(sent)).filter(|remaining| !remaining.is_zero()).min();
    let remaining = remaining.unwrap_or(Duration::MAX);
    let limit = renewal_limit(remaining);
    let claims_renewed = renew_claims(&registry, &batch, sent, remaining);
    match registry.driver.gate() {
        None => claims_renewed.await,
        Some(_) => drop(join(claims_renewed, registry.keep_gates(&batch, limit)).await),
    }
}

async fn renew_claims(
    registry: &Registry,
    batch: &[Arc<ClaimRecord>],
    sent: Moment,
    remaining: Duration,
) {
    let claims: Vec<_> = batch.iter().map(|r| r.claim()).collect();
    let asked = registry.watched(registry.driver.renew_with_evidence(&claims));
    let answer = tokio::time::timeout(renewal_limit(remaining), asked).await;
    let took = registry.clock.now().since(sent);
    observe::renewal(registry.backend(), answer.as_ref().ok(), claims.len(), remaining, took);
    match answer {
        Ok(Ok(answers)) if answers.len() == batch.len() => {
            if let Some(error) = answers.iter().find_map(|answer| answer.as_ref().err()) {
                registry.note("renew", sent, error);
            }
            if answers.iter().any(Result::is_ok) {
                registry.outages.answered();
            }
            registry.all_renewed(batch, &answers, sent);
        }
        answer => {
            let error = match answer {
                Ok(Ok(_)) => registry.driver.no_reply(),
                Ok(Err(error)) => error,
                Err(_) => no_answer(registry.backend()),
            };
            registry.note("renew", sent, &error);
            let failing = LossReason::of_renewals(&error);
            batch.iter().for_each(|record| record.renewal_failed(&failing));
        }
    }
}

/// Releases a claim until the backend says that it did, or until its lease is over anyway: a refusal
/// may pass as well, and the lock would stay taken. When its acquire may still be under way, again and again until then, so that it leaves no ghost.
async fn release(registry: Arc<Registry>, order: Release, pending: PendingGuard) {
    let Release { claim, not_before, give_up, mut ambiguous, is_gate_ambiguous, least } = order;
    let mut pending = Some(pending);
    sleep_until(&*registry.clock, not_before).await;
    if let Some(until) = least {
        // A request under way could lengthen a lease that was shortened before.
        if ambiguous == 0 && left_lease(&registry, &claim, until).await {
            return;
        }
        registry.renew_released(&claim).await;
        sleep_until(&*registry.clock, until).await;
    }
    let (mut round, mut failed) = (0, false);
    loop {
        round += 1;
        let sent = registry.clock.now();
        let answer = registry.watched(registry.give_back(&claim)).await;
        match &answer {
            // A claim that was found uses up one of the requests that may put it in. Not where the release
            // was sent twice and found nothing: it may have come before all of them.
            Ok(Attempted { result: Released::Removed, .. }) => {
                ambiguous = ambiguous.saturating_sub(1);
            }
            Ok(_) => {}
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    observe::release_failed(&claim, error);
                }
                registry.note("release", sent, error);
            }
        }
        let finished = answer.is_ok() && ambiguous == 0 && !is_gate_ambiguous;
        if answer.is_ok() {
            pending = None; // what follows is only for ghosts
        }
        let over = registry.clock.now() >= give_up;
        if finished || over {
            drop(pending);
            return;
        }
        tokio::time::sleep(registry.batcher.backoff(round)).await;
    }
}

/// Leaves a claim to a lease that ends at `until`; `false` when that is over, or the backend cannot.
async fn left_lease(registry: &Registry, claim: &Arc<Claim>, until: Moment) -> bool {
    let mut failures = 0;
    while registry.can_leave_lease(claim) && registry.clock.now() < until {
        let sent = registry.clock.now();
        match registry.watched(registry.leave_lease(claim, until)).await {
            Ok(Renewal::Holds(_) | Renewal::Ended(_)) => return true,
            Ok(Renewal::Waits { .. }) | Err(Error::Unsupported { .. }) => return false,
            Err(error) => registry.note("release", sent, &error),
        }
        failures += 1;
        tokio::time::sleep(registry.batcher.backoff(failures)).await;
    }
    false
}

//! The one background task of a manager. It renews all claims in one call a tick, tries again when
//! that fails, ends what could not be saved, and releases what was dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::LossReason;
use crate::clock::{Moment, sleep_until};
use crate::deadline::renewal_limit;
use crate::driver::Released;
use crate::error::no_answer;
use crate::observe;
use crate::record::Record;
use crate::registry::{Pending, Registry, Release};

enum Job {
    Renewal,
    Release,
}

/// Starts the renewer unless it runs. (It ends when its runtime does.)
pub(crate) fn ensure(registry: &Arc<Registry>) {
    let mut task = registry.renewer();
    if task.as_ref().is_none_or(JoinHandle::is_finished) {
        *task = start(registry, &Handle::current());
    }
}

/// The renewer's runtime ended, and others that use this manager may live: goes on in the one
/// of a claim, if there is one; says whether it does.
fn revive(registry: &Arc<Registry>) -> bool {
    let mut task = registry.renewer();
    let mut ended = Vec::new();
    for runtime in registry.all().iter().filter_map(|record| record.runtime()) {
        if ended.contains(&runtime.id()) {
            continue;
        }
        *task = start(registry, runtime);
        if task.is_some() {
            return true;
        }
        ended.push(runtime.id());
    }
    false
}

/// `None` when the runtime has ended.
fn start(registry: &Arc<Registry>, runtime: &Handle) -> Option<JoinHandle<()>> {
    let begun = Arc::new(AtomicBool::new(false));
    let running = Running { registry: registry.clone(), begun: begun.clone() };
    let task = runtime.spawn(run(registry.clone(), running));
    begun.store(true, Ordering::SeqCst);
    (!task.is_finished()).then_some(task)
}

/// Runs until nobody can use the manager any more and everything is released, or until its runtime
/// ends.
async fn run(registry: Arc<Registry>, running: Running) {
    let mut jobs: FuturesUnordered<BoxFuture<'static, Job>> = FuturesUnordered::new();
    // Dropped before the jobs, so that it still counts the releases that end with them.
    let _running = running;
    let mut renewing = false;
    let mut next = Moment::from_nanos(0);
    loop {
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
        for (order, pending) in registry.take_releases() {
            let job = release(registry.clone(), order, pending);
            jobs.push(job.map(|()| Job::Release).boxed());
        }
        if registry.is_orphaned() && jobs.is_empty() {
            return;
        }
        tokio::select! {
            () = sleep_until(&*registry.clock, next) => {}
            () = registry.woken() => next = registry.sleeps_until(),
            Some(job) = jobs.next() => if matches!(job, Job::Renewal) {
                renewing = false;
                next = now;
            },
        }
    }
}

/// Goes with the renewer: dropped when that ends, or its runtime does, polled or not.
struct Running {
    registry: Arc<Registry>,
    /// Whether it did begin to run.
    begun: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.begun.load(Ordering::SeqCst) {
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
fn due(registry: &Registry, now: Moment) -> Vec<Arc<Record>> {
    if registry.next_event() > now {
        return Vec::new();
    }
    let mut all = registry.all();
    all.retain(|record| record.renewable(now));
    all
}

async fn renew(registry: Arc<Registry>, batch: Vec<Arc<Record>>) {
    let sent = registry.clock.now();
    // What is over already sets no limit to the others.
    let left = batch.iter().map(|r| r.left(sent)).filter(|left| !left.is_zero()).min();
    let left = left.unwrap_or(Duration::MAX);
    let claims: Vec<_> = batch.iter().map(|r| r.claim()).collect();
    let answer = tokio::time::timeout(renewal_limit(left), registry.driver.renew(&claims)).await;
    let took = registry.clock.now().since(sent);
    observe::renewal(registry.backend(), answer.as_ref().ok(), claims.len(), left, took);
    match answer {
        Ok(Ok(answers)) if answers.len() == batch.len() => {
            for (record, answer) in batch.iter().zip(&answers) {
                match answer {
                    Ok(answer) => registry.renewed(record, answer, sent),
                    Err(error) => record.renewal_failed(&LossReason::of_renewals(error)),
                }
            }
        }
        answer => {
            let error = match answer {
                Ok(Ok(_)) => registry.driver.no_reply(),
                Ok(Err(error)) => error,
                Err(_) => no_answer(registry.backend()),
            };
            let failing = LossReason::of_renewals(&error);
            batch.iter().for_each(|record| record.renewal_failed(&failing));
        }
    }
}

/// Releases a claim until the backend says that it did, or until its lease is over anyway: a refusal
/// may pass as well, and the lock would stay taken. When its acquire may still be under way, again and again until then, so that it leaves no ghost.
async fn release(registry: Arc<Registry>, order: Release, pending: Pending) {
    let Release { claim, not_before, give_up, mut under_way } = order;
    let mut pending = Some(pending);
    sleep_until(&*registry.clock, not_before).await;
    let mut round = 0;
    loop {
        round += 1;
        let answer = registry.give_back(&claim).await;
        match &answer {
            // A claim that was found uses up one of the requests that may put it in.
            Ok(Released::Removed) => under_way = under_way.saturating_sub(1),
            Ok(_) => {}
            Err(error) => observe::release_failed(&claim, error),
        }
        let finished = answer.is_ok() && under_way == 0;
        if answer.is_ok() {
            pending = None; // what follows is only for ghosts
        }
        let over = registry.clock.now() >= give_up;
        if finished || over {
            drop(pending);
            return;
        }
        tokio::time::sleep(registry.collector.jitter.backoff(round)).await;
    }
}

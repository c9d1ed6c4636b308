//! How a driver begins and ends: the layout of the store, the capabilities, and the tasks in the background.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkit_core::capabilities::{LeaseClock, LeaseScope, RoundTrips, TokenSource, WakeUp};
use lockkit_core::clock::sleep_until;
use lockkit_core::driver::{BatchLimits, KnownBases, locked};
use lockkit_core::state::Health;
use lockkit_core::waiting::RegisterWatchers;
use lockkit_core::{Capabilities, Error, Result};
use tokio::time::Instant;

use crate::background::BackgroundTasks;
use crate::claims::{OwnClaim, OwnClaims};
use crate::context::StoreContext;
use crate::document::{FORMAT, META, MetaDocument, encode, session_key};
use crate::driver::{DriverInner, StoreDriver};
use crate::observer::SweepResult;
use crate::options::StoreOptions;
use crate::probe::probe;
use crate::queues::Operation;
use crate::store::{ChangeReporter, Store, StoreFacts, Swap};
use crate::waiters::Waiters;

/// A release that failed is repeated after this.
const RELEASE_AGAIN: Duration = Duration::from_millis(500);
/// How often some sessions of others are looked at, to remove those of crashed processes.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// The pause while there are such sessions.
const BETWEEN_PAGES: Duration = Duration::from_secs(1);
/// Attempts to find or write the layout: a store that was just created may not answer for a while.
const LAYOUT_ATTEMPTS: u32 = 5;
const LAYOUT_PAUSE: Duration = Duration::from_millis(100);

impl StoreDriver {
    /// Opens a store: checks its configuration and, when it is first used, [probes](crate::probe) it for up to
    /// a minute and writes the layout.
    ///
    /// # Cancel safety
    /// Dropping it leaves the store without the layout or with it, and perhaps some keys under `p/`, which a
    /// probe removes after a day.
    pub async fn connect(store: Arc<dyn Store>, options: StoreOptions) -> Result<Self> {
        let findings = store.examine().await?;
        let mut context = StoreContext::new(store, &options);
        let layout = layout(&context, options.skips_probe).await?;
        (context.shards, context.store_id) = (layout.shards, layout.id);
        context.restore_sights();
        let context = Arc::new(context);
        let own = Arc::new(OwnClaims::default());
        let inner = Arc::new(DriverInner {
            waiters: Arc::new(Waiters::new(own.clone(), context.shards)),
            capabilities: context.facts.capabilities(),
            context,
            own,
            workers: Mutex::new(HashMap::new()),
            offsets: KnownBases::default(),
            register_watchers: RegisterWatchers::default(),
            findings,
            tasks: Mutex::default(),
        });
        *locked(&inner.tasks) = Some(background_tasks(&inner));
        Ok(Self { inner })
    }
}

fn background_tasks(inner: &Arc<DriverInner>) -> BackgroundTasks {
    let driver = Arc::downgrade(inner);
    let overdue = tokio::spawn(end_overdue(driver.clone()));
    let sweep = tokio::spawn(sweep(driver.clone()));
    let watch = tokio::spawn(watch(driver));
    BackgroundTasks::of([overdue, sweep, watch])
}

/// The layout, after writing it if it is missing: last, since several processes may probe a new store at once.
async fn layout(context: &StoreContext, mut is_probed: bool) -> Result<MetaDocument> {
    let mut failure = context.unavailable("the layout could not be written");
    for _ in 0..LAYOUT_ATTEMPTS {
        let found = match context.load::<MetaDocument>(META, "the layout").await {
            Err(error) if error.is_retryable() => {
                failure = error;
                tokio::time::sleep(LAYOUT_PAUSE).await;
                continue;
            }
            found => found?,
        };
        if let Some((meta, _)) = found {
            if meta.format == FORMAT && meta.shards > 0 {
                return Ok(meta);
            }
            let message = format!(
                "the store has format {} of lockkit's layout, and this version knows format {FORMAT}",
                meta.format
            );
            return Err(Error::permanent(context.backend(), message));
        }
        if !is_probed {
            probe(context.store.clone()).await?;
            is_probed = true;
        }
        let meta = MetaDocument { format: FORMAT, shards: context.facts.shards, id: context.id() };
        match context.swap(META, &encode(&meta), None).await {
            Ok(Swap::Stored(_)) => return Ok(meta),
            Ok(Swap::Conflict(_)) => {}
            Err(error) => {
                failure = context.failed_after_pause(error).await;
                if !failure.is_retryable() {
                    break;
                }
            }
        }
    }
    Err(failure)
}

impl StoreFacts {
    /// What the driver over a store of these facts does and does not do.
    pub fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::of(self.name);
        capabilities.lease_clock = LeaseClock::Observers;
        capabilities.lease_scope = LeaseScope::Session;
        capabilities.min_ttl = self.min_ttl;
        // A beat is seen one pause between reads late; the last one is acted upon at the next poll, and then
        // the queue is read and swapped.
        capabilities.expiry_slack = self.session_pace() * 2 + self.pace * 4;
        capabilities.wake_up = match self.reports_changes {
            true => WakeUp::Push,
            false => WakeUp::Poll { within: self.poll_within() },
        };
        capabilities.token_source = TokenSource::ClientClocks;
        capabilities.raise = true;
        capabilities.resize = true;
        capabilities.registers = true;
        capabilities.namespaces = true;
        capabilities.round_trips = Some(ROUND_TRIPS);
        capabilities.batches = BatchLimits::of(64, 16);
        capabilities.batches.same_key = true;
        capabilities.faults = self.faults;
        capabilities
    }
}

/// A renewal beats, and then reads the shards; a waiter that is woken reads its shard.
const ROUND_TRIPS: RoundTrips = {
    let mut trips = RoundTrips::BUDGET;
    trips.renew = 2;
    trips.once_woken = 1;
    trips
};

/// Takes out the claims that core stopped renewing, although other claims keep their session alive.
async fn end_overdue(driver: Weak<DriverInner>) {
    while let Some(inner) = driver.upgrade() {
        let context = inner.context.clone();
        let (over, next) = inner.own.end_overdue(context.now());
        let releases = over.iter().map(|own| inner.end(own));
        futures_util::future::join_all(releases).await;
        if !over.is_empty() {
            continue;
        }
        let own = inner.own.clone();
        drop(inner);
        tokio::select! {
            () = own.changed() => {}
            () = async {
                match next {
                    Some(next) => sleep_until(&*context.clock, next).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

/// Now and then, looks for sessions of processes that crashed, and drops sessions that are not used.
async fn sweep(driver: Weak<DriverInner>) {
    let pause = |inner: &DriverInner| SWEEP_EVERY / 2 + inner.context.part_of(SWEEP_EVERY);
    let Some(mut page) = driver.upgrade().map(|inner| Instant::now() + pause(&inner)) else {
        return;
    };
    let mut next = page;
    loop {
        tokio::time::sleep_until(next).await;
        let Some(inner) = driver.upgrade() else { return };
        let now = Instant::now();
        let swept = inner.context.sweep(page <= now).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "looking for sessions of crashed processes failed");
            SweepResult::default()
        });
        if swept.has_removed {
            page = now + BETWEEN_PAGES;
        } else if page <= now {
            page = now + pause(&inner);
        }
        next = swept.next.map_or(page, |due| page.min(now + due)).max(now + BETWEEN_PAGES);
        inner.remove_unused_sessions(false).await;
    }
}

/// Listens for changes, where the store reports them.
async fn watch(driver: Weak<DriverInner>) {
    let mut failures = 0;
    loop {
        let Some(inner) = driver.upgrade() else { return };
        let (store, waiters) = (inner.context.store.clone(), inner.waiters.clone());
        drop(inner);
        let (reported, listener) = (driver.clone(), waiters.clone());
        let reporter = ChangeReporter::new(move |key| {
            let Some(inner) = reported.upgrade() else { return };
            match key {
                Some(key) => inner.changed(key),
                None => {
                    listener.set_notified(true);
                    inner.poll_all();
                }
            }
        });
        let ended = store.watch(&reporter).await;
        waiters.set_notified(false);
        if let Err(error) = ended {
            tracing::debug!(%error, "changes are not reported now; waiters poll");
        }
        failures += 1;
        tokio::time::sleep(lockkit_core::driver::backoff(failures)).await;
    }
}

impl DriverInner {
    /// Starts the tasks again whose runtime has ended.
    pub(crate) fn keep_running(self: &Arc<Self>) {
        let mut tasks = locked(&self.tasks);
        if let Some(tasks) = tasks.as_mut().filter(|tasks| tasks.have_ended()) {
            *tasks = background_tasks(self);
        }
    }

    async fn end(&self, own: &OwnClaim) {
        match self.apply(Operation::Release(own.claim.clone())).await {
            Ok(_) => self.own.forget(&own.claim.id),
            Err(error) => {
                tracing::debug!(%error, "a claim that is not renewed could not be released yet");
                self.own.end_again(&own.claim.id, self.context.now().after(RELEASE_AGAIN));
            }
        }
    }

    fn changed(&self, key: &str) {
        let shard = key.strip_prefix("l/").and_then(|shard| shard.parse().ok());
        if let Some(shard) = shard.filter(|shard| self.waiters.is_watched(*shard)) {
            self.poll(shard);
        } else if key.starts_with(crate::document::REGISTERS) {
            self.register_watchers.notify(Some(key));
        }
    }

    fn poll_all(&self) {
        let watched = (0..self.context.shards).filter(|shard| self.waiters.is_watched(*shard));
        watched.for_each(|shard| self.poll(shard));
        self.register_watchers.notify(None);
    }

    pub(crate) async fn remove_unused_sessions(&self, at_end: bool) {
        for session in self.own.retire_unused(self.context.now(), at_end).await {
            if let Err(error) = self.context.store.remove(&session_key(&session.id)).await {
                tracing::debug!(%error, "a session could not be removed; it will end by itself");
            }
        }
    }

    pub(crate) async fn health(&self) -> Result<Health> {
        let mut health = Health::well(self.context.backend());
        self.context.read(META).await?;
        for finding in &self.findings {
            health = health.with(finding.clone());
        }
        Ok(health)
    }

    pub(crate) async fn close(&self) {
        drop(locked(&self.tasks).take());
        self.context.keep_sights(|session| self.waiters.is_own_session(session));
        self.remove_unused_sessions(true).await;
        locked(&self.workers).clear();
    }
}

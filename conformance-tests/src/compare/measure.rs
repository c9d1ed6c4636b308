//! Rates and times, taken in turns: one round of each set-up after the other, so that a moment in
//! which the machine is slow is not the bad luck of one. Medians count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{Error, LockManager, Mode, Space};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{Effort, StopSignal, Subject};
use crate::context::CaseContext;

/// Tasks of the crowded rate.
pub(super) const MANY: usize = 64;

/// Leases of managers: lockkit's defaults.
const TTL: Duration = Duration::from_secs(30);
const WAIT_TTL: Duration = Duration::from_secs(10);

/// The name that all tasks contend for in the crowded run.
const HOT: &str = "hot";

/// Tasks that contend for one lock in the run that is drawn, and the turns of each.
const CONTENDERS: usize = 4;
const TURNS: usize = 5;

/// What was measured of one set-up. Times are seconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    /// Locks and releases a second of one task, uncontended.
    pub one_task: f64,
    /// The same of 64 tasks of one process, each with a lock of its own, in all.
    pub many_tasks: f64,
    /// One lock for which 64 tasks of one process wait.
    pub hot: Hot,
    /// From the sending of a release until the next waiter knows that it holds.
    pub hand_over: f64,
    /// The lease of a holder that died, as granted.
    pub dead_ttl: f64,
    /// From its grant until the next waiter held.
    pub dead_freed: f64,
    /// A short run of four tasks that contend for one lock.
    pub turns: Vec<HoldSpan>,
}

/// One lock that tasks pass on, each of which holds it for no time. Times are seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Hot {
    /// Hand-overs a second.
    pub rate: f64,
    /// From one grant to the next, in half of all hand-overs at most.
    pub p50: f64,
    /// The same in 99 of 100.
    pub p99: f64,
    /// Requests for a hand-over, where they are counted.
    pub requests: Option<f64>,
}

/// One turn at the contended lock, in seconds since the run began.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HoldSpan {
    /// Which task.
    pub task: usize,
    /// When it asked.
    pub asked: f64,
    /// When it had it.
    pub granted: f64,
    /// When it was about to release it.
    pub released: f64,
    /// Its fencing token.
    pub token: u64,
}

/// Measures all of them; none when it was stopped.
pub(super) async fn in_turns(
    subjects: &[Subject],
    effort: Effort,
    say: &(dyn Fn(&str) + Sync),
    stop: StopSignal,
) -> Result<Option<Vec<Measured>>, Error> {
    let courses = try_join_all(subjects.iter().map(Course::new)).await?;
    let measured = tokio::select! {
        measured = all(subjects, &courses, effort, say) => measured.map(Some),
        () = stop => Ok(None),
    };
    for course in &courses {
        course.context.clean_up().await;
    }
    measured
}

async fn all(
    subjects: &[Subject],
    courses: &[Course],
    effort: Effort,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Vec<Measured>, Error> {
    let mut found = vec![[const { Vec::new() }; 4]; courses.len()];
    let mut gaps = vec![Vec::new(); courses.len()];
    for course in courses {
        // Connections, scripts, caches.
        course.rate(MANY, Duration::from_millis(50)).await?;
    }
    for round in 1..=effort.rounds {
        for (((course, [one, many, hand_overs, hot]), gaps), subject) in
            courses.iter().zip(&mut found).zip(&mut gaps).zip(subjects)
        {
            say(&format!("measuring, round {round} of {}: {}", effort.rounds, subject.name()));
            one.push(course.rate(1, effort.turn).await?);
            many.push(course.rate(MANY, effort.turn).await?);
            let (rate, between) = hot_lock(&course.ours, effort.turn).await?;
            hot.push(rate);
            gaps.extend(between);
            for _ in 0..3 {
                hand_overs.push(course.hand_over().await?);
            }
        }
    }
    say("waiting for leases of dead holders to end");
    // All at once: it is waiting, not work.
    let deaths = try_join_all(courses.iter().map(Course::death)).await?;
    let mut measured = Vec::with_capacity(courses.len());
    let found = courses.iter().zip(subjects).zip(found).zip(gaps).zip(deaths);
    for ((((course, subject), found), mut gaps), (ttl, freed)) in found {
        let [one_task, many_tasks, hand_over, rate] = found.map(median);
        gaps.sort_by(f64::total_cmp);
        let [p50, p99] = [50, 99].map(|percent| percentile(&gaps, percent));
        let hot = Hot { rate, p50, p99, requests: requests(course, subject, effort.turn).await? };
        let turns = course.contended().await?;
        let (dead_ttl, dead_freed) = (ttl.as_secs_f64(), freed.as_secs_f64());
        measured.push(Measured {
            one_task,
            many_tasks,
            hot,
            hand_over,
            dead_ttl,
            dead_freed,
            turns,
        });
    }
    Ok(measured)
}

/// How many requests a hand-over is, on a connection on which they are counted.
async fn requests(
    course: &Course,
    subject: &Subject,
    lasts: Duration,
) -> Result<Option<f64>, Error> {
    let Some(counted) = subject.counted() else { return Ok(None) };
    let driver = (counted.connect)().await?;
    let locks =
        course.context.manager_with(driver, |settings| settings.ttl(TTL).wait_ttl(WAIT_TTL));
    // Connections, scripts, caches; and the tasks that give up at the end of a run do not count.
    hot_lock(&locks, lasts).await?;
    let before = (counted.requests)();
    let (_, gaps) = hot_lock(&locks, lasts).await?;
    let after = (counted.requests)();
    Ok(Some(after.saturating_sub(before) as f64 / gaps.len().max(1) as f64))
}

/// Hand-overs a second of one lock that 64 tasks contend for, and the times from one grant to the next.
async fn hot_lock(locks: &LockManager, lasts: Duration) -> Result<(f64, Vec<f64>), Error> {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..MANY {
        let lock = locks.mutex(HOT);
        running.spawn(async move {
            let mut granted = Vec::new();
            // Where no order is kept, the last ones would wait for long.
            while let Some(left) = lasts.checked_sub(begun.elapsed()) {
                let Some(guard) = lock.try_lock_for(left).await? else { break };
                granted.push(begun.elapsed().as_secs_f64());
                guard.release().await?;
            }
            Ok::<_, Error>(granted)
        });
    }
    let mut granted = Vec::new();
    for done in running.join_all().await {
        granted.extend(done?);
    }
    granted.sort_by(f64::total_cmp);
    let gaps: Vec<_> = granted.windows(2).map(|two| two[1] - two[0]).collect();
    Ok((granted.len() as f64 / begun.elapsed().as_secs_f64(), gaps))
}

/// Two programs and a dying one, on one backend.
struct Course {
    context: CaseContext,
    ours: LockManager,
    theirs: LockManager,
    dying: Arc<dyn LockDriver>,
}

impl Course {
    async fn new(subject: &Subject) -> Result<Self, Error> {
        let harness = subject.harness();
        let context = CaseContext::new(harness.clone()).await?;
        let [ours, theirs, dying] =
            [harness.driver().await?, harness.driver().await?, harness.driver().await?];
        let manager =
            |driver| context.manager_with(driver, |settings| settings.ttl(TTL).wait_ttl(WAIT_TTL));
        let (ours, theirs) = (manager(ours), manager(theirs));
        Ok(Self { ours, theirs, dying, context })
    }

    /// Pairs of lock and release a second, by so many tasks that have a lock each.
    async fn rate(&self, tasks: usize, lasts: Duration) -> Result<f64, Error> {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let lock = self.ours.mutex(format!("rate/{task}"));
            running.spawn(async move {
                let mut pairs = 0_u32;
                while begun.elapsed() < lasts {
                    lock.lock().await?.release().await?;
                    pairs += 1;
                }
                Ok::<_, Error>(pairs)
            });
        }
        let mut pairs = 0;
        for done in running.join_all().await {
            pairs += done?;
        }
        Ok(f64::from(pairs) / begun.elapsed().as_secs_f64())
    }

    /// In seconds.
    async fn hand_over(&self) -> Result<f64, Error> {
        let held = self.ours.mutex("hand-over").lock().await?;
        let next = self.waiter("hand-over").await?;
        let begun = Instant::now();
        held.release().await?;
        let at = next.await.map_err(ended)??;
        Ok(at.duration_since(begun).as_secs_f64())
    }

    /// A holder that is never heard of again: its lease, and when the next had the lock.
    async fn death(&self) -> Result<(Duration, Duration), Error> {
        let ttl = self.context.capabilities().min_ttl.max(Duration::from_secs(1));
        let claim = self.context.claim_for("death", Mode::Exclusive, ttl);
        let begun = Instant::now();
        let answer = self.dying.acquire(&claim, Patience::Try).await?.result;
        let Acquisition::Granted(grant) = answer else {
            return Err(Error::config("a lock of a new namespace is not free"));
        };
        let at = self.waiter("death").await?.await.map_err(ended)??;
        Ok((grant.ttl, at.duration_since(begun)))
    }

    /// Another program that waits for this lock, tells when it has it, and releases it.
    async fn waiter(
        &self,
        name: &'static str,
    ) -> Result<tokio::task::JoinHandle<Result<Instant, Error>>, Error> {
        let next = self.theirs.mutex(name);
        let waiting = tokio::spawn(async move {
            let guard = next.lock().await?;
            let at = Instant::now();
            guard.release().await?;
            Ok(at)
        });
        if !self.context.has_line() {
            // That it waits is not visible: it is given time to be refused once.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Ok(waiting);
        }
        while !waiting.is_finished() && self.ours.inspect(Space::Lock, name).await?.queue.len() < 2
        {
        }
        // What the backend told it is on its way.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(waiting)
    }

    async fn contended(&self) -> Result<Vec<HoldSpan>, Error> {
        let begun = Instant::now();
        let now = move || begun.elapsed().as_secs_f64();
        let mut running = JoinSet::new();
        for task in 0..CONTENDERS {
            let program = if task % 2 == 0 { &self.ours } else { &self.theirs };
            let lock = program.mutex("contended");
            running.spawn(async move {
                let mut turns = Vec::with_capacity(TURNS);
                for _ in 0..TURNS {
                    let asked = now();
                    let guard = lock.lock().await?;
                    let (granted, token) = (now(), guard.token()?.get());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    turns.push(HoldSpan { task, asked, granted, released: now(), token });
                    guard.release().await?;
                }
                Ok::<_, Error>(turns)
            });
        }
        let mut turns = Vec::new();
        for done in running.join_all().await {
            turns.extend(done?);
        }
        turns.sort_by(|a: &HoldSpan, b| a.granted.total_cmp(&b.granted));
        Ok(turns)
    }
}

fn ended(error: tokio::task::JoinError) -> Error {
    Error::permanent("measuring", error)
}

/// The one below which so many of a hundred are.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = sorted.len() * percent / 100;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// The one in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

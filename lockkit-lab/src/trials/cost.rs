//! What operations cost, counted on the wire under latency, so that the counts are exact: what
//! leaves before an answer comes back is one round trip.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::Mode;
use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::{Acquisition, Attempted, LockDriver, Patience, Renewal};
use tokio::task::JoinSet;

use super::scene::settled;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::Costs;
use crate::proxy::{Counts, Proxy};
use lockkit_conformance::context::{CaseContext, MustSucceed};

const LATENCY: Duration = Duration::from_millis(10);

/// For very many requests at once: a client that a busy machine slows down still sends the last one
/// before the first is answered.
const MUCH_LATENCY: Duration = Duration::from_millis(150);

/// Odd: the count in the middle stands. One or two may be disturbed by what a connection does now
/// and then to keep itself alive.
const ROUNDS: usize = 5;

pub async fn cost_01_a_free_lock_is_acquired_within_the_budget(stage: TrialSetup) -> TrialResult {
    let meter = Meter::new(&stage).await;
    let context = stage.context();
    let of = budget(&stage);
    let (exclusive, wait) = (Mode::Exclusive, Patience::Wait);
    let mut ways = vec![
        (exclusive, wait, "b", of.acquire),
        (exclusive, Patience::Try, "b", of.granted_try),
        (exclusive, wait, "never used", of.first_use),
        (Mode::Shared, wait, "b", of.acquire_shared),
    ];
    if context.capabilities().permits {
        let permits = Mode::Permits { permits: 2, limit: 5 };
        meter.acquire(context, permits, wait, "b").await;
        ways.push((permits, wait, "b", of.acquire_shared));
    }
    meter.acquire(context, exclusive, wait, "b").await;
    for (mode, patience, name, budget) in ways {
        let mut counts = Vec::new();
        for round in 0..ROUNDS {
            let name = match name {
                "never used" => format!("{name} {round}"),
                used => used.to_owned(),
            };
            counts.push(meter.acquire(context, mode, patience, &name).await);
        }
        costs(&format!("acquire, {mode:?}, {patience:?}, {name}"), counts, budget, of);
    }
    Ok(())
}

pub async fn cost_02_a_release_without_waiters_is_within_the_budget(
    stage: TrialSetup,
) -> TrialResult {
    let meter = Meter::new(&stage).await;
    let mut counts = Vec::new();
    for round in 0..ROUNDS {
        let claim = stage.context().exclusive(&format!("{round}"));
        meter.driver.grant(&claim).await;
        let (_, count) = meter.count(meter.driver.let_go(&claim)).await;
        counts.push(count);
    }
    let of = budget(&stage);
    costs("release", counts, of.release, of);
    Ok(())
}

pub async fn cost_03_a_refused_try_is_within_the_budget(stage: TrialSetup) -> TrialResult {
    let meter = Meter::new(&stage).await;
    let holder = stage.context().exclusive("a");
    let other = stage.context().driver().await;
    other.grant(&holder).await;
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        let claim = stage.context().exclusive("a");
        let (_, count) = meter.count(meter.driver.refuse(&claim)).await;
        counts.push(count);
    }
    let of = budget(&stage);
    costs("a refused try", counts, of.refused_try, of);
    other.let_go(&holder).await;
    Ok(())
}

pub async fn cost_04_a_thousand_claims_are_renewed_in_one_round_trip(
    stage: TrialSetup,
) -> TrialResult {
    let meter = Meter::new(&stage).await;
    meter.proxy.latency(Duration::ZERO);
    let claims: Vec<_> = (0..1_000).map(|i| stage.context().exclusive(&format!("{i}"))).collect();
    for some in claims.chunks(100) {
        join_all(some.iter().map(|claim| meter.driver.grant(claim))).await;
    }
    meter.proxy.latency(MUCH_LATENCY);
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        let (answers, count) = meter.count(meter.driver.renew(&claims)).await;
        let answers = answers.unwrap_or_else(|e| panic!("1,000 claims are renewed: {e}"));
        assert_eq!(answers.len(), claims.len());
        assert!(answers.iter().all(|a| matches!(a, Ok(Renewal::Holds(_)))), "all hold");
        counts.push(count);
    }
    let of = budget(&stage);
    let each = of.renew_thousand;
    costs("renewing 1,000 claims", counts, each * of.renewed_side_by_side, of);
    Ok(())
}

pub async fn cost_05_a_thousand_waiters_are_silent(stage: TrialSetup) -> TrialResult {
    pushed(stage.context())?;
    let meter = Meter::new(&stage).await;
    meter.proxy.latency(Duration::ZERO);
    let holder = stage.context().exclusive("a");
    let other = stage.context().driver().await;
    other.grant(&holder).await;
    let mut waiting = JoinSet::new();
    let claims: Vec<_> = (0..1_000).map(|_| stage.context().exclusive("a")).collect();
    for some in claims.chunks(100) {
        join_all(some.iter().map(|claim| meter.driver.queue(claim))).await;
    }
    for claim in claims {
        let driver = meter.driver.clone();
        waiting.spawn(async move { driver.granted(&claim).await });
    }
    settled(&meter.proxy).await;
    // A connection may say now and then that it is alive; waiters who ask do so in every window.
    let window = Duration::from_millis(1_500);
    let mut seen = Vec::new();
    for _ in 0..3 {
        meter.proxy.reset();
        tokio::time::sleep(window).await;
        let count = meter.proxy.counts();
        if (count.requests, count.pushes) == (0, 0) {
            assert!(waiting.try_join_next().is_none(), "they all wait");
            return Ok(());
        }
        seen.push(count);
    }
    panic!("1,000 waiters are never silent for {window:?}: {seen:?}");
}

pub async fn cost_06_the_next_knows_by_one_message(stage: TrialSetup) -> TrialResult {
    pushed(stage.context())?;
    let (giver, next) = (Meter::new(&stage).await, Meter::new(&stage).await);
    let (mut given, mut looks, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("{round}");
        let claims = [stage.context().exclusive(&name), stage.context().exclusive(&name)];
        giver.driver.grant(&claims[0]).await;
        next.driver.queue(&claims[1]).await;
        let waiting = tokio::spawn({
            let (driver, claim) = (next.driver.clone(), claims[1].clone());
            let proxy = next.proxy.clone();
            async move {
                driver.turn(&claim).await;
                proxy.counts()
            }
        });
        settled(&next.proxy).await;
        next.proxy.reset();
        let (_, count) = giver.count(giver.driver.let_go(&claims[0])).await;
        given.push(count);
        let known = stage.context().soon("the next knows", waiting).await.expect("no panic");
        looks.push(known);
        tokio::time::sleep(3 * LATENCY).await;
        taken.push(next.proxy.counts());
        next.driver.let_go(&claims[1]).await;
    }
    let of = budget(&stage);
    costs("the way in", given, of.release, of);
    costs_by("messages out", taken, 1..=1, |count| count.pushes);
    // What it asks when it knows already has no answer yet.
    let look = of.look_when_woken;
    let least = look.saturating_sub(of.fewer_at_times).max(look.min(1));
    costs_by("looks of the one who was woken", looks, least..=look, |count| {
        count.round_trips.min(count.answers)
    });
    Ok(())
}

pub async fn cost_07_a_release_sends_one_wake_up(stage: TrialSetup) -> TrialResult {
    pushed(stage.context())?;
    // All waiters behind one proxy, each with a driver of its own.
    let proxy = stage.proxy().await;
    let drivers = join_all((0..10).map(|_| stage.through(&proxy))).await;
    let giver = stage.context().driver().await;
    let mut counts = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("{round}");
        let holder = stage.context().exclusive(&name);
        giver.grant(&holder).await;
        let mut waiting = JoinSet::new();
        let mut claims = Vec::new();
        for driver in &drivers {
            let claim = stage.context().exclusive(&name);
            driver.queue(&claim).await;
            claims.push(claim.clone());
            let driver = driver.clone();
            waiting.spawn(async move { driver.turn(&claim).await });
        }
        settled(&proxy).await;
        proxy.reset();
        giver.let_go(&holder).await;
        let first = stage.context().soon("the next knows", waiting.join_next()).await;
        assert!(first.is_some_and(|first| first.is_ok()));
        tokio::time::sleep(10 * LATENCY).await;
        counts.push(proxy.counts());
        assert!(waiting.try_join_next().is_none(), "one only");
        waiting.shutdown().await;
        for (driver, claim) in drivers.iter().zip(&claims).rev() {
            driver.let_go(claim).await;
        }
    }
    let wake_ups = budget(&stage).wake_ups;
    costs_by("wake-ups", counts, wake_ups..=wake_ups, |count| count.pushes);
    Ok(())
}

/// What the site says that operations cost, which must be what the driver says for the docs.
fn budget(stage: &TrialSetup) -> Costs {
    let costs = stage.site().costs();
    let said =
        stage.context().capabilities().round_trips.expect("the driver states its round trips");
    let told = [said.acquire, said.release, said.refused_try, said.renew, said.once_woken];
    let Costs { acquire, release, refused_try, renew_thousand, look_when_woken, .. } = costs;
    let site = [acquire, release, refused_try, renew_thousand, look_when_woken];
    assert_eq!(told, site, "Capabilities::round_trips and Site::costs differ");
    costs
}

fn pushed(context: &CaseContext) -> TrialResult {
    match context.capabilities().wake_up {
        WakeUp::Push => Ok(()),
        _ => NotApplicable::because("waiters of this backend look by themselves"),
    }
}

/// A driver behind a proxy that counts, both warm.
struct Meter {
    proxy: Arc<Proxy>,
    driver: Arc<dyn LockDriver>,
}

impl Meter {
    async fn new(stage: &TrialSetup) -> Self {
        let proxy = stage.proxy().await;
        let driver = stage.through(&proxy).await;
        for mode in [Mode::Exclusive, Mode::Shared] {
            let claim = stage.context().claim("warm", mode);
            driver.grant(&claim).await;
            let _ = driver.renew_one(&claim).await;
            driver.refuse(&stage.context().exclusive("warm")).await;
            driver.let_go(&claim).await;
        }
        settled(&proxy).await;
        proxy.latency(LATENCY);
        Self { proxy: Arc::new(proxy), driver }
    }

    /// What an acquire costs that is granted; it is released again.
    async fn acquire(
        &self,
        context: &CaseContext,
        mode: Mode,
        patience: Patience,
        name: &str,
    ) -> Counts {
        let claim = context.claim(name, mode);
        let (answer, count) = self.count(self.driver.acquire(&claim, patience)).await;
        assert!(
            matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })),
            "{answer:?}"
        );
        self.driver.let_go(&claim).await;
        count
    }

    /// What passes while this is done, and right after it.
    async fn count<T>(&self, work: impl Future<Output = T>) -> (T, Counts) {
        self.proxy.reset();
        let done = work.await;
        tokio::time::sleep(3 * LATENCY).await;
        (done, self.proxy.counts())
    }
}

/// The count in the middle must be what the budget says: neither more, nor less, since a count that
/// is too low has missed something. On a machine that keeps stalling, whose clients cannot send in
/// one go what belongs together, most counts are too high: there the least one must be.
fn costs(what: &str, counts: Vec<Counts>, budget: u64, of: Costs) {
    let least = budget.saturating_sub(of.fewer_at_times).max(budget.min(1));
    costs_by(what, counts, least..=budget, |count| count.round_trips);
}

fn costs_by(
    what: &str,
    mut counts: Vec<Counts>,
    budget: RangeInclusive<u64>,
    figure: fn(&Counts) -> u64,
) {
    counts.sort_by_key(figure);
    let middle = &counts[counts.len() / 2];
    remark!("{what}: {} (budget {budget:?}); {middle:?}", figure(middle));
    let within = |count| budget.contains(&figure(count));
    assert!(
        within(middle) || within(&counts[0]),
        "{what}: over or under the budget of {budget:?}; counted: {counts:#?}"
    );
}

//! When leases end, and when not.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{BreakMode, ClaimEnd, Grant, LockDriver, Renewal};
use lockkit_core::{Claim, Error, LossReason, Mode, Token, parse_duration};

use crate::context::{CaseContext, LONG, MustSucceed, PATIENCE, undisturbed};
use crate::listing::record;
use crate::wrap::tampers::Late;
use crate::wrap::{DriverMethod, Tampered};

pub async fn lease_01_a_lease_ends_after_its_ttl_and_not_before(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let ttl = context.short();
    let (holder, waiter) = (context.claim_for("a", Mode::Exclusive, ttl), context.exclusive("a"));
    let asked = ours.clock().now();
    let grant = ours.grant(&holder).await;
    theirs.queue(&waiter).await;
    let limit = context.after(grant.ttl);
    let granted = context.within(limit, "the lease ends", theirs.granted(&waiter)).await;
    let passed = ours.clock().now().since(asked);
    assert!(passed >= ttl, "a lease of {ttl:?} ended after {passed:?}");
    assert!(granted.expect("its turn").token > grant.token);
    assert!(matches!(ours.renew_one(&holder).await, Renewal::Ended(_)));
}

pub async fn lease_02_renewal_carries_a_lease_beyond_its_ttl(context: CaseContext) {
    let driver = context.driver().await;
    let (context, driver) = (&context, &driver);
    undisturbed(context.short() * 2, |ttl, name| async move {
        let holder = context.claim_for(&name, Mode::Exclusive, ttl);
        let grant = driver.grant(&holder).await;
        for _ in 0..8 {
            tokio::time::sleep(ttl / 4).await;
            assert_eq!(driver.holds(&holder).await.token, grant.token);
            driver.refuse(&context.exclusive(&name)).await;
        }
    })
    .await;
    // The manager does the same by itself.
    undisturbed(context.lively(), |ttl, name| async move {
        let manager = context.manager().await;
        let guard = manager.mutex(&name).ttl(ttl).lock().await.expect("it is free");
        tokio::time::sleep(ttl.mul_f64(1.2)).await;
        assert!(guard.is_valid(), "a renewed guard outlasts its ttl: {:?}", guard.loss());
        driver.refuse(&context.exclusive(&name)).await;
    })
    .await;
}

pub async fn lease_03_a_shortened_lease_ends_early(context: CaseContext) {
    let manager = context.manager().await;
    let driver = context.driver().await;
    let guard = manager.mutex("a").ttl(LONG).lock().await.expect("it is free");
    let waiter = context.exclusive("a");
    driver.queue(&waiter).await;
    let before = guard.remaining();
    let asked = driver.clock().now();
    guard.shorten(context.short()).await.expect("it is held");
    assert!(guard.remaining() < before.min(context.short()), "the own deadline is lowered");
    let limit = context.after(context.short());
    let granted = context.within(limit, "it ends early", driver.granted(&waiter)).await;
    let passed = driver.clock().now().since(asked);
    granted.expect("its turn");
    assert!(!guard.is_valid(), "the guard knew before the lock was handed on");
    if context.capabilities().shorten {
        assert!(
            passed >= context.short(),
            "shortened to {:?}, gone after {passed:?}",
            context.short()
        );
    } else {
        crate::need::no_shorten(&context, &driver).await;
    }
}

pub async fn lease_04_renewing_an_ended_claim_says_gone(context: CaseContext) {
    let driver = context.driver().await;
    let gone = async |claim: &Arc<Claim>| {
        let answer = driver.renew_one(claim).await;
        assert_eq!(answer, Renewal::Ended(ClaimEnd::NotFound), "it is not in the list");
    };
    let never = context.exclusive("never");
    gone(&never).await;

    let released = context.exclusive("released");
    driver.grant(&released).await;
    driver.let_go(&released).await;
    gone(&released).await;

    let expired = context.claim_for("expired", Mode::Exclusive, context.short());
    driver.grant(&expired).await;
    context.free(&driver, &expired.key, context.after(context.short())).await;
    gone(&expired).await;

    let broken = context.exclusive("broken");
    let token = driver.grant(&broken).await.token;
    let why = record("the case says so", true);
    let done = driver.break_claim(&broken.key, token, BreakMode::Forced, &why).await;
    assert!(done.expect("it works"));
    let answer = driver.renew_one(&broken).await;
    assert_eq!(answer, Renewal::Ended(ClaimEnd::Broken(why)));

    // In one go with others, in the order given.
    let alive = context.exclusive("alive");
    driver.grant(&alive).await;
    let claims = [released, alive.clone(), expired, alive];
    let answers = driver.renew(&claims).await.expect("it works");
    let hold: Vec<_> = answers.iter().map(|a| matches!(a, Ok(Renewal::Holds(_)))).collect();
    assert_eq!(hold, [false, true, false, true], "{answers:?}");
    assert!(driver.renew(&[]).await.expect("nothing to renew").is_empty());
}

pub async fn lease_05_a_waiter_gets_it_once_the_lease_ended(context: CaseContext) {
    let driver = context.driver().await;
    let dead = context.claim_for("a", Mode::Exclusive, context.short());
    let first = driver.grant(&dead).await;
    let manager = context.manager().await;
    let limit = context.after(first.ttl);
    let guard = context.within(limit, "the waiter gets it", manager.mutex("a").lock()).await;
    let guard = guard.expect("its turn");
    assert!(guard.token().expect("it holds") > first.token);
}

pub async fn lease_06_a_grant_that_arrives_after_its_own_end_is_an_error(context: CaseContext) {
    let ttl = context.short();
    let late = |method| {
        let by = ttl + ttl / 2;
        Arc::new(Late { method, by })
    };
    // At once, but the answer takes longer than the lease.
    let slow = Tampered::new(context.driver().await, late(DriverMethod::Acquire));
    let manager = context.manager_over(Arc::new(slow));
    let answer = manager.mutex("a").ttl(ttl).auto_renew(false).try_lock().await;
    // Nothing was held, so nothing was lost: a try may be repeated.
    assert!(answer.as_ref().is_err_and(Error::is_retryable), "the lease was over: {answer:?}");
    let driver = context.driver().await;
    context.free(&driver, &context.key("a"), context.after(ttl)).await;
    // Pushed, but the message takes longer than the lease.
    let holder = context.manager().await;
    let held = holder.mutex("b").lock().await.expect("it is free");
    let slow = Tampered::new(context.driver().await, late(DriverMethod::Granted));
    let manager = context.manager_over(Arc::new(slow));
    let waiting = tokio::spawn(async move {
        let mutex = manager.mutex("b").ttl(ttl).auto_renew(false);
        mutex.lock().await.map(|guard| (guard.is_valid(), guard))
    });
    context.waiters(&driver, &context.key("b"), 1).await;
    held.release().await.expect("it was held");
    let limit = context.after(ttl * 4);
    let told = tokio::time::timeout(limit, waiting).await;
    // Queued again, and again too late, it may also wait for ever.
    match told {
        Ok(told) => {
            let (valid, _guard) = told.expect("no panic").expect("nothing was lost");
            assert!(valid, "a guard was handed out whose lease was over");
        }
        Err(_goes_on) => {}
    }
}

pub async fn lease_07_odd_durations_are_errors_or_work(context: CaseContext) {
    let manager = context.manager().await;
    let too_short = context.capabilities().min_ttl.saturating_sub(Duration::from_nanos(1));
    let odd = [Duration::ZERO, Duration::from_nanos(1), too_short, Duration::MAX];
    for ttl in odd {
        for mutex in [manager.mutex("a").ttl(ttl), manager.mutex("a").wait_ttl(ttl)] {
            let answer = mutex.try_lock().await;
            assert!(matches!(answer, Err(Error::Config(_))), "{ttl:?}: {answer:?}");
        }
    }
    let free = manager.inspect(lockkit_core::Space::Lock, "a").await.expect("it works");
    assert!(free.is_free(), "nothing was left: {free:?}");
    for text in ["-1", "-5s", "1e3", "", "soon", "99999999999999999999d"] {
        assert!(parse_duration(text).is_err(), "{text:?} is not a duration");
    }
    assert!(manager.mutex("a").max_hold(Duration::ZERO).try_lock().await.is_err());

    let year = Duration::from_secs(365 * 86_400);
    let fine = [(context.capabilities().min_ttl.max(Duration::from_millis(10)), "b"), (year, "c")];
    for (ttl, name) in fine {
        let mutex = manager.mutex(name).ttl(ttl).max_hold(Duration::MAX);
        // On a machine that stalls, the shortest lease may be over before it is known of.
        let trying = || async {
            match mutex.try_lock().await {
                Err(e) if e.is_retryable() || e.loss().is_some() => None,
                answer => answer.expect("it works"),
            }
        };
        let guard = context.until(PATIENCE, "it is locked", trying).await;
        let least = context.given(ttl);
        assert!(guard.granted_ttl() >= least, "{:?} for {ttl:?}", guard.granted_ttl());
    }
    let none = manager.mutex("b").try_lock_for(Duration::ZERO).await;
    none.expect("waiting for no time at all is a try");
    let long = manager.mutex("d").try_lock_for(Duration::MAX).await;
    drop(long.expect("waiting for ever is fine").expect("it is free"));
}

pub async fn lease_08_the_ttl_that_was_granted_is_reported(context: CaseContext) {
    let driver = context.driver().await;
    let grain = context.capabilities().granularity;
    for (i, ttl) in [context.short(), Duration::from_millis(1_234), LONG].into_iter().enumerate() {
        let ttl = ttl.max(context.capabilities().min_ttl);
        let claim = context.claim_for(&format!("n{i}"), Mode::Exclusive, ttl);
        let granted = driver.grant(&claim).await.ttl;
        // A lease that several claims share may be longer by what is left of it anyway.
        assert!(granted >= context.given(ttl), "{granted:?} for {ttl:?}");
        assert!(granted <= ttl + grain, "{granted:?} for {ttl:?}, in steps of {grain:?}");
        assert_eq!(driver.holds(&claim).await.ttl, granted, "renewed by the same");
    }
    // What is reported is what is given.
    let (holder, waiter) =
        (context.claim_for("a", Mode::Exclusive, context.short()), context.exclusive("a"));
    let asked = driver.clock().now();
    let grant = driver.grant(&holder).await;
    // A lease that several claims share counts from before this one asked, and says so.
    let (reported, since) = (grant.ttl, grant.start.or(asked));
    driver.queue(&waiter).await;
    let limit = context.after(reported);
    context.within(limit, "the lease ends", driver.granted(&waiter)).await.expect("its turn");
    let passed = driver.clock().now().since(since);
    assert!(passed >= reported, "{reported:?} were reported, {passed:?} given");
    let guard = context.manager().await.mutex("b").ttl(context.short()).lock().await;
    assert!(guard.expect("it is free").granted_ttl() >= context.short());
}

pub async fn lease_09_ended_claims_leave_nothing_behind(context: CaseContext) {
    let driver = context.driver().await;
    let used = async |from: usize, to: usize| {
        let ttl = context.short();
        let mut expiring = Vec::new();
        for i in from..to {
            let (released, expired) = (
                context.exclusive(&format!("released {i}")),
                context.claim_for(&format!("expired {i}"), Mode::Shared, ttl),
            );
            driver.grant(&released).await;
            let waited = context.exclusive(&format!("released {i}"));
            driver.queue(&waited).await;
            driver.grant(&expired).await;
            driver.let_go(&released).await;
            driver.turn(&waited).await;
            driver.let_go(&waited).await;
            expiring.push(expired.key.clone());
        }
        for key in expiring {
            context.free(&driver, &key, context.after(ttl)).await;
        }
    };
    let settled = async |enough| {
        let count = context.settled(enough, context.after(context.short())).await;
        count.expect("it can be counted").expect("this harness counts")
    };
    used(0, 5).await;
    let few = settled(10).await;
    used(5, 45).await;
    let many = settled(few).await;
    assert!(many <= few, "{few} things were kept after 10 locks, {many} after 90");
}

pub async fn lease_10_a_late_renewal_as_a_waiter_does_not_shorten(context: CaseContext) {
    let driver = context.driver().await;
    let holder = context.exclusive("a");
    let mut waiter = Claim::clone(&context.exclusive("a"));
    waiter.wait_ttl = context.short();
    let waiter = Arc::new(waiter);
    // Queued and promoted within its short waiting lease, also on a slow machine.
    let (ours, theirs, on) = (&holder, &waiter, &driver);
    undisturbed(context.short(), |_, _| async move {
        on.let_go(ours).await;
        on.let_go(theirs).await;
        on.grant(ours).await;
        on.queue(theirs).await;
        on.let_go(ours).await;
        on.holds(theirs).await;
    })
    .await;
    // The client that renews believes that it still waits; the server knows better.
    let answer = driver.holds(&waiter).await;
    assert!(answer.ttl >= context.given(LONG), "the lease of a holder: {answer:?}");
    tokio::time::sleep(context.short() * 2 + context.capabilities().expiry_slack).await;
    driver.refuse(&context.exclusive("a")).await;
    driver.holds(&waiter).await;
}

pub async fn lease_11_renewals_that_overtake_each_other_never_shorten(context: CaseContext) {
    let driver = context.driver().await;
    let long = context.exclusive("a");
    driver.grant(&long).await;
    let mut brief = Claim::clone(&long);
    brief.hold_ttl = context.short();
    brief.wait_ttl = context.short();
    let brief = Arc::new(brief);
    driver.holds(&brief).await;
    let both = [long.clone(), brief.clone()];
    driver.renew(&both).await.expect("it works");
    let (a, b) = (driver.clone(), driver.clone());
    tokio::join!(a.holds(&long), b.holds(&brief));
    driver.holds(&brief).await;
    let state = context.queue(&driver, &long.key).await;
    let given = context.given(LONG);
    assert!(state[0].expires_in > given / 2, "{:?} are left", state[0].expires_in);
    tokio::time::sleep(context.short() * 2 + context.capabilities().expiry_slack).await;
    driver.refuse(&context.exclusive("a")).await;
    driver.holds(&long).await;
}

pub async fn lease_12_a_renewal_never_revives_an_expired_claim(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let ttl = context.short();
    let names = ["nobody looked", "an inspection", "another holder", "another's renewal"];
    let claims = names.map(|name| context.claim_for(name, Mode::Exclusive, ttl));
    let mut granted = Vec::new();
    for claim in &claims {
        granted.push(ours.grant(claim).await);
    }
    let longest = granted.iter().map(|g: &Grant| g.ttl).max().unwrap_or(ttl);
    let waiter = context.exclusive(names[3]);
    theirs.queue(&waiter).await;
    // The first request that finds it expired comes a moment after it must have.
    let slack = context.capabilities().expiry_slack + Duration::from_millis(200);
    tokio::time::sleep(longest + slack).await;
    let gone = async |claim| {
        for driver in [&ours, &theirs, &ours] {
            let answer = driver.renew_one(claim).await;
            let ended = matches!(answer, Renewal::Ended(_));
            assert!(ended, "{:?} saw it end, then {answer:?}", claim.key.name);
        }
    };
    gone(&claims[0]).await;
    assert!(context.queue(&theirs, &claims[1].key).await.is_empty(), "it has ended");
    gone(&claims[1]).await;
    let next = context.exclusive(names[2]);
    theirs.grant(&next).await;
    gone(&claims[2]).await;
    theirs.let_go(&next).await;
    gone(&claims[2]).await;
    theirs.holds(&waiter).await;
    gone(&claims[3]).await;
    theirs.let_go(&waiter).await;
    gone(&claims[3]).await;
}

pub async fn lease_13_the_second_waiter_gets_it_when_holder_and_first_both_died(
    context: CaseContext,
) {
    let driver = context.driver().await;
    let ttl = context.short();
    let holder = context.claim_for("a", Mode::Exclusive, ttl);
    let mut first = Claim::clone(&context.claim_for("a", Mode::Exclusive, ttl));
    first.wait_ttl = ttl;
    let (first, second) = (Arc::new(first), context.exclusive("a"));
    driver.grant(&holder).await;
    driver.queue(&first).await;
    driver.queue(&second).await;
    // No message arrives, since no task waits for one: only renewals move the lock on.
    let what = "renewals alone make the second waiter a holder";
    context
        .until(context.after(ttl * 2), what, || async {
            matches!(driver.renew_one(&second).await, Renewal::Holds(_)).then_some(())
        })
        .await;

    // The same for a user, who waits with a short lease of its own.
    let (holder, mut first) = (
        context.claim_for("b", Mode::Exclusive, ttl),
        Claim::clone(&context.claim_for("b", Mode::Exclusive, ttl)),
    );
    first.wait_ttl = ttl;
    driver.grant(&holder).await;
    let answer = driver.acquire(&Arc::new(first), lockkit_core::driver::Patience::Wait).await;
    answer.expect("it works");
    let manager = context.manager().await;
    let limit = context.after(ttl * 2);
    let guard = context.within(limit, "the second gets it", manager.mutex("b").lock()).await;
    drop(guard.expect("its turn"));
}

pub async fn lease_14_max_hold_ends_a_holder_that_hangs(context: CaseContext) {
    let manager = context.manager().await;
    let ttl = context.short() * 2;
    let mutex = manager.mutex("a").ttl(ttl).max_hold(ttl * 2);
    let driver = context.driver().await;
    let asked = driver.clock().now();
    let guard = mutex.lock().await.expect("it is free");
    let waiter = context.exclusive("a");
    driver.queue(&waiter).await;
    let limit = context.after(ttl * 3);
    let granted = context.within(limit, "the next gets it", driver.granted(&waiter)).await;
    granted.expect("its turn");
    assert!(!guard.is_valid(), "it knew before");
    let reason = context.soon("the holder is told", guard.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    let passed = driver.clock().now().since(asked);
    assert!(passed >= ttl, "it was held for {passed:?} only");
    assert!(guard.release().await.is_err());
}

pub async fn lease_15_a_downgrade_renews_the_lease(context: CaseContext) {
    renews(&context, |driver, claim| async move { driver.downgrade(&claim).await }).await;
}

pub async fn lease_16_a_raise_renews_the_lease(context: CaseContext) {
    renews(&context, |driver, claim| async move {
        let state = driver.inspect(&claim.key).await.expect("it works");
        let token = state.queue[0].token.get() + 1_000_000;
        driver.raise(&claim, Token::new(token).expect("it fits")).await
    })
    .await;
}

/// Core counts a deadline from the answer of such a call as from that of a renewal, so the backend must keep the
/// claim for as long as that says.
async fn renews<F>(context: &CaseContext, change: impl Fn(Arc<dyn LockDriver>, Arc<Claim>) -> F)
where
    F: Future<Output = Result<Renewal, Error>>,
{
    let (context, change) = (context, &change);
    undisturbed(context.lively() * 2, |ttl, name| async move {
        let driver = context.driver().await;
        let claim = context.claim_for(&name, Mode::Exclusive, ttl);
        driver.grant(&claim).await;
        tokio::time::sleep(ttl / 4).await;
        let asked = driver.clock().now();
        let grant = match change(driver.clone(), claim.clone()).await.expect("it works") {
            Renewal::Holds(grant) => grant,
            other => panic!("it holds, so: {other:?}"),
        };
        let expires_in = context.queue(&driver, &claim.key).await[0].expires_in;
        let passed = driver.clock().now().since(grant.start.or(asked));
        // Less what the margin of a guard allows for.
        let least = (grant.ttl - grant.ttl / 10).saturating_sub(passed);
        assert!(expires_in >= least, "{grant:?}, {passed:?} ago: {expires_in:?} are left");
    })
    .await;
}

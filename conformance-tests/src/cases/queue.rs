//! Leases of claims in a queue with others: promoted claims, and renewals with others waiting. A claim
//! that waits and one that holds have different ttls, and the server picks by state.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::capabilities::LeaseScope;
use lockkit_core::driver::{LockDriver, Renewal};
use lockkit_core::{Mode, Token};

use crate::context::{CaseContext, LONG, MustSucceed, undisturbed};

pub async fn queue_01_a_waiter_promoted_by_a_release_holds_for_its_hold_ttl(context: CaseContext) {
    let (driver, context) = (&context.driver().await, &context);
    undisturbed(context.short(), |wait, name| async move {
        let (holder, waiter) = (context.exclusive(&name), brief_waiter(context, &name, wait));
        driver.grant(&holder).await;
        driver.queue(&waiter).await;
        driver.let_go(&holder).await;
        holds_on(context, driver, &waiter).await;
    })
    .await;
}

pub async fn queue_02_a_waiter_promoted_by_an_expiry_holds_for_its_hold_ttl(context: CaseContext) {
    let (driver, context) = (&context.driver().await, &context);
    undisturbed(context.short(), |ttl, name| async move {
        let waiter = behind_a_dead_holder(context, driver, &name, ttl).await;
        driver.turn(&waiter).await;
        holds_on(context, driver, &waiter).await;
    })
    .await;
}

pub async fn queue_03_a_waiter_promoted_by_another_s_renewal_holds_for_its_hold_ttl(
    context: CaseContext,
) {
    let (driver, context) = (&context.driver().await, &context);
    undisturbed(context.short(), |ttl, name| async move {
        let waiter = behind_a_dead_holder(context, driver, &name, ttl).await;
        let last = context.exclusive(&name);
        driver.queue(&last).await;
        // Only the last of the queue is renewed, until only the waiter is ahead of it.
        context
            .until(context.after(ttl), "the lock moves on", || async {
                let answer = driver.renew_one(&last).await;
                matches!(answer, Renewal::Waits { ahead: 1 }).then_some(())
            })
            .await;
        holds_on(context, driver, &waiter).await;
    })
    .await;
}

pub async fn queue_04_readers_promoted_together_hold_for_their_hold_ttls(context: CaseContext) {
    let (driver, context) = (&context.driver().await, &context);
    undisturbed(context.short(), |wait, name| async move {
        let writer = context.exclusive(&name);
        driver.grant(&writer).await;
        let readers = [0; 3].map(|_| {
            let mut reader = Claim::clone(&context.shared(&name));
            reader.wait_ttl = wait;
            Arc::new(reader)
        });
        for reader in &readers {
            driver.queue(reader).await;
        }
        driver.let_go(&writer).await;
        for reader in &readers {
            move_over(context, driver, reader).await;
        }
        for reader in &readers {
            holds_on(context, driver, reader).await;
        }
    })
    .await;
}

pub async fn queue_05_a_renewal_with_others_queued_never_shortens(context: CaseContext) {
    let driver = context.driver().await;
    let brief = |claim: &Arc<Claim>| {
        let mut brief = Claim::clone(claim);
        (brief.hold_ttl, brief.wait_ttl) = (context.short(), context.short());
        Arc::new(brief)
    };
    // A holder before a waiter, readers beside each other before a waiting writer, and each waiter.
    let [writer, waiter] = [0; 2].map(|_| context.exclusive("a"));
    let readers = [0; 2].map(|_| context.shared("b"));
    let behind = context.exclusive("b");
    for holder in [&writer, &readers[0], &readers[1]] {
        driver.grant(holder).await;
    }
    for waiting in [&waiter, &behind] {
        driver.queue(waiting).await;
    }
    for claim in [&writer, &readers[0], &readers[1], &waiter, &behind] {
        let brief = brief(claim);
        driver.renew_one(&brief).await;
        driver.renew_one(&brief).await;
    }
    for name in ["a", "b"] {
        for standing in context.queue(&driver, &context.key(name)).await {
            let left = standing.expires_in;
            let least = context.given(LONG) / 2;
            assert!(left > least, "{name}: {left:?} are left to {:?}", standing.mode);
        }
    }
    tokio::time::sleep(context.short() * 2 + context.capabilities().expiry_slack).await;
    for holder in [&writer, &readers[0], &readers[1]] {
        driver.holds(holder).await;
    }
    for waiting in [&waiter, &behind] {
        let answer = driver.renew_one(waiting).await;
        assert!(matches!(answer, Renewal::Waits { .. }), "it waits on: {answer:?}");
    }
}

pub async fn queue_06_an_expired_holder_with_others_queued_is_not_revived(context: CaseContext) {
    let driver = context.driver().await;
    let ttl = context.short();
    let dead = context.claim_for("a", Mode::Exclusive, ttl);
    let (reader, beside) = (context.claim_for("b", Mode::Shared, ttl), context.shared("b"));
    let mut longest = ttl;
    for holder in [&dead, &reader, &beside] {
        let grant = driver.grant(holder).await;
        if holder.hold_ttl == ttl {
            longest = longest.max(grant.ttl);
        }
    }
    let [waiter, behind] = ["a", "b"].map(|name| context.exclusive(name));
    for waiting in [&waiter, &behind] {
        driver.queue(waiting).await;
    }
    let slack = context.capabilities().expiry_slack + Duration::from_millis(200);
    tokio::time::sleep(longest + slack).await;
    // No request was sent since: the renewal itself finds that it is over.
    for ended in [&dead, &reader, &dead, &reader] {
        let answer = driver.renew_one(ended).await;
        assert!(matches!(answer, Renewal::Ended(_)), "{:?} ended: {answer:?}", ended.mode);
    }
    driver.turn(&waiter).await;
    driver.holds(&beside).await;
    driver.let_go(&beside).await;
    driver.turn(&behind).await;
}

/// One that waits for a short time without being renewed, and would hold for long.
pub(super) fn brief_waiter(context: &CaseContext, name: &str, wait: Duration) -> Arc<Claim> {
    let mut waiter = Claim::clone(&context.exclusive(name));
    waiter.wait_ttl = wait;
    Arc::new(waiter)
}

/// A waiter whose own lease ends a little after that of the holder before it, which is dead.
async fn behind_a_dead_holder(
    context: &CaseContext,
    driver: &Arc<dyn LockDriver>,
    name: &str,
    ttl: Duration,
) -> Arc<Claim> {
    let dead = context.claim_for(name, Mode::Exclusive, ttl);
    let over = driver.grant(&dead).await.ttl + context.capabilities().expiry_slack;
    let waiter = brief_waiter(context, name, over + ttl * 2);
    driver.queue(&waiter).await;
    waiter
}

/// A claim that was promoted holds for its hold ttl, without being renewed: that much is left of its lease,
/// and when its waiting lease is long over no other claim gets the lock.
async fn holds_on(context: &CaseContext, driver: &Arc<dyn LockDriver>, claim: &Arc<Claim>) {
    move_over(context, driver, claim).await;
    let other = context.driver().await;
    let left = |token: Option<Token>| {
        let (other, key) = (other.clone(), claim.key.clone());
        async move {
            let line = context.queue(&other, &key).await;
            let mut held = line.iter().filter(|s| s.holds());
            let standing = held.find(|s| token.is_none_or(|token| s.token == token));
            let standing = standing.unwrap_or_else(|| panic!("it was promoted: {line:?}"));
            standing.expires_in
        }
    };
    let before = left(None).await;
    let least = context.given(LONG) / 2;
    assert!(before > least, "a lease of {before:?} for one that holds for {LONG:?}");
    tokio::time::sleep(claim.wait_ttl + claim.wait_ttl / 4 + context.capabilities().expiry_slack)
        .await;
    other.refuse(&context.exclusive(claim.key.name.as_str())).await;
    let token = driver.holds(claim).await.token;
    let after = left(Some(token)).await;
    assert!(after > least, "a lease of {after:?} for one that holds for {LONG:?}");
}

/// Where claims share leases, only the client can move one from a short lease to a long one, which its
/// first renewal does.
async fn move_over(context: &CaseContext, driver: &Arc<dyn LockDriver>, claim: &Arc<Claim>) {
    if context.capabilities().lease_scope == LeaseScope::Shared {
        driver.turn(claim).await;
        driver.holds(claim).await;
    }
}

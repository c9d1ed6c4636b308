//! What people see of locks, and how they break them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use lockkit_core::capabilities::LeaseScope;
use lockkit_core::driver::{BreakMode, ClaimEnd, Patience, Renewal};
use lockkit_core::{ClientIdentity, LockManager, LossReason, Mode, Namespace, Space};

use super::queue::brief_waiter;
use crate::context::{CaseContext, LONG, MustSucceed, PATIENCE, undisturbed};
use crate::listing::{self, record};

pub async fn inspect_01_everything_worth_knowing_is_shown(context: CaseContext) {
    let identity = ClientIdentity::new("häst", 4711, "a program");
    let driver = context.driver().await;
    let manager = context.manager_with(driver, |s| s.identity(identity.clone()));
    let writer = manager.rwlock("a").note("prägt").write().await.expect("it is free");
    let waiting = tokio::spawn({
        let lock = manager.rwlock("a").ttl(LONG * 2);
        async move { lock.read().await }
    });
    let other = context.driver().await;
    context.waiters(&other, &context.key("a"), 1).await;
    let state = context.manager().await.inspect(Space::Lock, "a").await.expect("it works");
    assert_eq!((state.name().as_str(), state.space()), ("a", Space::Lock));
    assert_eq!(state.limit(), None);
    let [holder, waiters @ ..] = &state.queue[..] else {
        panic!("one holds: {state:?}");
    };
    assert!(holder.holds());
    assert_eq!(holder.token, writer.token().expect("it holds"));
    assert_eq!((holder.mode, &holder.identity), (Mode::Exclusive, &identity));
    assert_eq!(holder.note.as_deref(), Some("prägt"));
    // Some backends give less than was asked for, and show what they gave.
    let given = |asked| context.given(asked)..=asked;
    assert!(given(LONG).contains(&holder.ttl), "{:?}", holder.ttl);
    let shown = if context.has_line() { 1..=1 } else { 0..=1 };
    assert!(shown.contains(&waiters.len()), "one waits: {state:?}");
    for waiter in waiters {
        assert!(!waiter.holds() && waiter.token > holder.token);
        assert_eq!((waiter.mode, &waiter.identity), (Mode::Shared, &identity));
        assert_eq!(waiter.note.as_deref(), None);
        let shown = |asked| given(asked).contains(&waiter.ttl);
        assert!(shown(LONG) || shown(LONG * 2), "that of waiting, or of holding");
    }
    let most = LONG + context.capabilities().granularity;
    assert!(holder.expires_in <= most, "{:?} left of {LONG:?}", holder.expires_in);
    assert!(holder.expires_in > context.given(LONG) / 2, "{:?} left", holder.expires_in);
    assert!(holder.held_for.is_some_and(|held| held <= holder.queued_for + PATIENCE));
    assert!(!holder.broken && state.last_break.is_none());
    writer.release().await.expect("it was held");
    let reader = context.soon("the reader gets in", waiting).await.expect("no panic");
    drop(reader.expect("its turn"));

    if context.capabilities().permits {
        let semaphore = manager.semaphore("s", 5);
        let _permits = semaphore.acquire_many(2).await.expect("it is free");
        let state = manager.inspect(Space::Semaphore, "s").await.expect("it works");
        assert_eq!(state.limit(), Some(5));
        let mode = Mode::Permits { permits: 2, limit: 5 };
        assert_eq!(state.queue[0].mode, mode);
    }
    watched(&context).await;
}

/// Who watches sees the lock taken, broken gracefully, and given back.
async fn watched(context: &CaseContext) {
    let manager = context.manager().await;
    let mut states = Box::pin(manager.watch(Space::Lock, "w"));
    let mut next = async |what| {
        let state = context.soon(what, states.next()).await.expect("it goes on").expect("it works");
        (state.holders().count(), state.queue.iter().any(|s| s.broken))
    };
    assert_eq!(next("the state now").await, (0, false));
    let claim = context.exclusive("w");
    let driver = context.driver().await;
    let token = driver.grant(&claim).await.token;
    assert_eq!(next("it is taken").await, (1, false));
    let why = record("please", false);
    let broken = driver.break_claim(&claim.key, token, BreakMode::Graceful, &why).await;
    assert!(broken.expect("it works"));
    assert_eq!(next("it is broken gracefully").await, (1, true));
    driver.let_go(&claim).await;
    assert_eq!(next("it is free again").await, (0, false));
}

pub async fn inspect_02_a_free_lock_is_shown_as_free(context: CaseContext) {
    let manager = context.manager().await;
    for space in [Space::Lock, Space::Semaphore] {
        if space == Space::Semaphore && !context.capabilities().permits {
            continue;
        }
        let state = manager.inspect(space, "never used").await.expect("it works");
        assert!(state.is_free() && state.limit().is_none(), "{state:?}");
        assert_eq!((state.name().as_str(), state.space()), ("never used", space));
    }
    let guard = manager.mutex("used").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    let state = manager.inspect(Space::Lock, "used").await.expect("it works");
    assert!(state.is_free(), "{state:?}");
    let driver = context.driver().await;
    let all = listing::whole(&driver, context.namespace(), None, "", 10).await;
    let all = all.expect("it can be listed");
    assert!(all.iter().all(|s| s.is_free()), "nothing is in use: {all:?}");
    let health = manager.health().await.expect("it gives a sign of life");
    assert!(!health.server.is_empty());
}

pub async fn inspect_03_many_locks_are_listed_in_pages(context: CaseContext) {
    let locks = context.harness().many();
    let drivers = [context.driver().await, context.driver().await];
    let name = |i: usize| format!("n{:04}", (i * 7_919) % locks);
    stream::iter(0..locks)
        .for_each_concurrent(32, |i| {
            let (driver, claim) = (&drivers[i % 2], context.exclusive(&name(i)));
            async move {
                driver.grant(&claim).await;
            }
        })
        .await;
    let all: BTreeSet<_> = (0..locks).map(name).collect();
    for page in [locks / 5 - 1, locks, locks + 1] {
        let listed = listing::whole(&drivers[0], context.namespace(), None, "", page).await;
        let listed = listed.expect("it can be listed");
        assert_eq!(listed.len(), locks, "each is shown once, in pages of {page}");
        let names: BTreeSet<_> = listed.iter().map(|s| s.name().as_str().to_owned()).collect();
        assert_eq!(names, all);
        assert!(listed.iter().all(|s| s.holders().count() == 1));
    }
    let some = listing::whole(&drivers[0], context.namespace(), Some(Space::Lock), "n02", 9).await;
    assert_eq!(some.expect("it can be listed").len(), 100);
    let none = Some(Space::Semaphore);
    let none = listing::whole(&drivers[0], context.namespace(), none, "", 100).await;
    assert!(none.expect("it can be listed").is_empty(), "these are no semaphores");
    let manager = context.manager().await;
    let counted = manager.admin().list("n").try_fold(0, async |n, _| Ok(n + 1)).await;
    assert_eq!(counted.expect("it can be listed"), locks);
}

pub async fn inspect_04_a_graceful_break_waits_for_the_holder(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let ttl = context.lively();
    let holder = context.claim_for("a", Mode::Exclusive, ttl);
    let next = context.exclusive("a");
    let asked = ours.clock().now();
    let token = ours.grant(&holder).await.token;
    theirs.queue(&next).await;
    let why = record("please", false);
    let broken = theirs.break_claim(&holder.key, token, BreakMode::Graceful, &why).await;
    assert!(broken.expect("it works"));
    let state = context.state(&theirs, &holder.key).await;
    let too_slow = ours.clock().now().since(asked) >= ttl;
    if !too_slow {
        assert_eq!(state.holders().count(), 1, "it holds until it lets go: {state:?}");
        assert!(state.queue[0].broken && state.queue[0].token == token, "{state:?}");
        assert_eq!(state.last_break.as_ref(), Some(&why));
    }
    let answer = ours.renew_one(&holder).await;
    assert_eq!(answer, Renewal::Ended(ClaimEnd::Broken(why)), "the holder is told");
    let limit = context.after(ttl);
    let granted = context.within(limit, "its lease ends", theirs.granted(&next)).await;
    let passed = ours.clock().now().since(asked);
    granted.expect("its turn");
    assert!(passed >= ttl, "handed on after {passed:?} of {ttl:?}: two held");

    // A user is notified, lets go, and that hands it on before the lease ends.
    let manager = context.manager_with(context.driver().await, |s| s.ttl(context.lively() * 20));
    let guard = manager.mutex("b").lock().await.expect("it is free");
    let (mutex, token) = (context.manager().await, guard.token().expect("it holds"));
    let broken = mutex
        .admin()
        .break_lock(Space::Lock, "b", token, BreakMode::Graceful, Some("please"))
        .await;
    assert!(broken.expect("it works"));
    let other = mutex.mutex("b").try_lock().await.expect("it works");
    assert!(other.is_none(), "exclusion holds after a graceful break");
    let error = guard.verify().await.expect_err("it was broken");
    assert!(matches!(error.loss(), Some(LossReason::Broken(_))), "{error}");
    drop(guard);
    let limit = context.after(context.lively() * 20);
    let next = context.within(limit, "it is handed on", mutex.mutex("b").lock()).await;
    drop(next.expect("its turn"));
}

pub async fn inspect_05_a_forced_break_frees_at_once(context: CaseContext) {
    let driver = context.driver().await;
    let (holder, next) = (context.exclusive("a"), context.exclusive("a"));
    let token = driver.grant(&holder).await.token;
    driver.queue(&next).await;
    let why = record("it hangs", true);
    let broken = driver.break_claim(&holder.key, token, BreakMode::Forced, &why).await;
    assert!(broken.expect("it works"));
    let grant = driver.turn(&next).await;
    assert!(grant.token > token);
    let answer = driver.renew_one(&holder).await;
    assert_eq!(answer, Renewal::Ended(ClaimEnd::Broken(why.clone())), "the holder is told why");
    let state = context.state(&driver, &holder.key).await;
    assert_eq!(state.queue.len(), 1, "{state:?}");
    assert_eq!(state.last_break, Some(why), "it shows for as long as the list is in use");
    if !context.has_line() {
        return;
    }
    // Who waits can be broken as well.
    let waiter = context.exclusive("a");
    driver.queue(&waiter).await;
    let token = context.queue(&driver, &waiter.key).await[1].token;
    let why = record("not you", true);
    let broken = driver.break_claim(&waiter.key, token, BreakMode::Forced, &why).await;
    assert!(broken.expect("it works"));
    assert_eq!(driver.renew_one(&waiter).await, Renewal::Ended(ClaimEnd::Broken(why)));
    driver.holds(&next).await;
}

pub async fn inspect_06_a_break_with_an_old_token_breaks_no_claim(context: CaseContext) {
    let driver = context.driver().await;
    let old = context.exclusive("a");
    let old_token = driver.grant(&old).await.token;
    driver.let_go(&old).await;
    let successor = context.exclusive("a");
    let token = driver.grant(&successor).await.token;
    let why = record("too late", true);
    let unused = lockkit_core::Token::new(token.get() + 1_000).expect("it fits");
    for wrong in [old_token, unused] {
        for force in [BreakMode::Graceful, BreakMode::Forced] {
            let broken = driver.break_claim(&old.key, wrong, force, &why).await;
            assert!(!broken.expect("it works"), "nobody has the token {wrong}");
        }
    }
    driver.holds(&successor).await;
    let state = context.state(&driver, &old.key).await;
    assert!(!state.queue[0].broken, "{state:?}");
    let broken = driver.break_claim(&context.key("free"), token, BreakMode::Forced, &why).await;
    assert!(!broken.expect("it works"), "a free lock has nobody to break");
}

pub async fn inspect_07_inspecting_never_disturbs_the_lock(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let ttl = context.short() * 2;
    let (holder, waiter) = (context.claim_for("a", Mode::Exclusive, ttl), context.exclusive("a"));
    ours.grant(&holder).await;
    ours.queue(&waiter).await;
    let key = holder.key.clone();
    let looking = tokio::spawn({
        let (context, key) = (context.clone(), key.clone());
        async move {
            loop {
                context.state(&theirs, &key).await;
                let all = listing::whole(&theirs, context.namespace(), None, "", 2).await;
                all.expect("it can be listed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    // It ends in its time, however often it is inspected.
    let limit = context.after(ttl);
    context.within(limit, "the lease ends", ours.granted(&waiter)).await.expect("its turn");
    for _ in 0..20 {
        ours.holds(&waiter).await;
        let next = context.exclusive("a");
        let answer = ours.acquire(&next, Patience::Wait).await;
        answer.expect("it works");
        ours.let_go(&waiter).await;
        ours.turn(&next).await;
        ours.let_go(&next).await;
        ours.grant(&waiter).await;
    }
    looking.abort();
    let ended = looking.await;
    assert!(ended.is_err_and(|e| e.is_cancelled()), "looking always worked");
}

pub async fn inspect_08_pages_of_any_length_show_both_spaces_once(context: CaseContext) {
    let driver = context.driver().await;
    let names = ["a", "b", "c"];
    let mut both = Vec::new();
    for name in names {
        driver.grant(&context.exclusive(name)).await;
        both.push((Space::Lock, name.to_owned()));
        if context.capabilities().permits {
            driver.grant(&context.permits(name, 1, 2)).await;
            both.push((Space::Semaphore, name.to_owned()));
        }
    }
    for limit in 1..=both.len() + 1 {
        for only in [None, Some(Space::Lock), Some(Space::Semaphore)] {
            let listed = listing::whole(&driver, context.namespace(), only, "", limit).await;
            let listed = listed.expect("it can be listed").into_iter();
            let mut listed: Vec<_> = listed.map(|s| (s.space(), s.name().to_string())).collect();
            let mut all = both.clone();
            all.retain(|(space, _)| only.is_none_or(|only| only == *space));
            let order = |a: &(Space, String), b: &(Space, String)| {
                (&a.1, a.0.as_str()).cmp(&(&b.1, b.0.as_str()))
            };
            listed.sort_by(order);
            all.sort_by(order);
            assert_eq!(listed, all, "in pages of {limit}, {only:?}");
        }
    }
}

pub async fn inspect_09_a_namespace_with_a_lock_or_a_register_is_listed_once(context: CaseContext) {
    let driver = context.driver().await;
    // Characters that backends use between the parts of a key, or to encode them; and beginnings of
    // each other.
    let ends = ["", ":", "/b", "/b%2Fc", "*", "é", "{x}", "_", "_never"];
    let own = context.namespace().as_str();
    let namespaces = ends.map(|end| format!("{own}{end}"));
    let (never, used) = namespaces.split_last().expect("there are some");
    let under = |namespace: &String| -> LockManager {
        context.manager_with(driver.clone(), |settings| settings.namespace(namespace))
    };
    let managers: Vec<_> = used.iter().map(under).collect();
    under(never).inspect(Space::Lock, "a").await.expect("it works");
    let mut held = Vec::new();
    for (at, manager) in managers.iter().enumerate() {
        let (semaphores, registers) =
            (context.capabilities().permits, context.capabilities().registers);
        match at % 3 {
            1 if registers => drop(manager.register("r").store("x").await.expect("it works")),
            2 if semaphores => {
                held.push(Ok(manager.semaphore("s", 2).acquire().await.expect("it is free")));
            }
            _ => {
                for name in ["a", "b"] {
                    held.push(Err(manager.mutex(name).lock().await.expect("it is free")));
                }
            }
        }
    }
    for limit in [1, 2, used.len(), 1_000] {
        let all = listing::namespaces(&driver, limit).await.expect("they can be listed");
        let shown = |namespace: &str| all.iter().filter(|it| it.as_str() == namespace).count();
        for namespace in used {
            assert_eq!(shown(namespace), 1, "{namespace:?}, in pages of {limit}: {all:?}");
        }
        assert_eq!(shown(never), 0, "nothing was ever there: {all:?}");
        let mut once: Vec<&Namespace> = all.iter().collect();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all.len(), "each once, in pages of {limit}: {all:?}");
    }
    for manager in managers.iter().filter(|_| context.capabilities().registers) {
        manager.register("r").delete().await.expect("it works");
    }
}

pub async fn inspect_10_a_waiter_broken_gracefully_gets_no_lease_for_holding(context: CaseContext) {
    let (driver, context) = (&context.driver().await, &context);
    undisturbed(context.short() * 2, |wait, name| async move {
        let [holder, next] = [0; 2].map(|_| context.exclusive(&name));
        let waiter = brief_waiter(context, &name, wait);
        driver.grant(&holder).await;
        driver.queue(&waiter).await;
        driver.queue(&next).await;
        let token = context.queue(driver, &holder.key).await[1].token;
        let why = record("not you", false);
        let broken = driver.break_claim(&holder.key, token, BreakMode::Graceful, &why).await;
        assert!(broken.expect("it works"));
        driver.let_go(&holder).await;
        // No claim is ahead of it, and its client may not know yet that it was broken. A guard may come of that
        // only on a shared lease, with which it ends.
        if context.capabilities().lease_scope == LeaseScope::Claim {
            let outcome = context.soon("it is told", driver.granted(&waiter)).await;
            let error = outcome.expect_err("it was broken");
            assert!(matches!(error.loss(), Some(LossReason::Broken(_))), "{error}");
        }
        assert_eq!(driver.renew_one(&waiter).await, Renewal::Ended(ClaimEnd::Broken(why)));
        let limit = context.after(wait);
        let turn = context.within(limit, "its waiting lease ends", driver.granted(&next)).await;
        turn.expect("its turn");
    })
    .await;
}

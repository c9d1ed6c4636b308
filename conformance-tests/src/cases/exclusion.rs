//! No two conflicting claims hold at once.

use std::time::Duration;

use lockkit_core::Space;
use lockkit_core::driver::{Acquisition, Patience, Released, Renewal};

use super::contention::count_together;
use crate::context::{CaseContext, MustSucceed};
use crate::worker::Crew;

pub async fn exclusion_01_a_free_lock_is_granted(context: CaseContext) {
    let manager = context.manager().await;
    let guard = manager.mutex("a").lock().await.expect("it is free");
    assert!(guard.is_valid());
    assert!(guard.remaining() <= guard.granted_ttl());
    guard.release().await.expect("it was held");

    let driver = context.driver().await;
    let claim = context.exclusive("b");
    let grant = driver.grant(&claim).await;
    // An answer may get lost, so asking again must not make a second claim.
    for patience in [Patience::Try, Patience::Wait] {
        let again = driver.acquire(&claim, patience).await.expect("asked again").result;
        let Acquisition::Granted(again) = again else {
            panic!("it holds already, yet asking again says {again:?}");
        };
        assert_eq!(again.token, grant.token, "the same claim keeps its token");
    }
    let line = context.queue(&driver, &claim.key).await;
    assert_eq!(line.len(), 1, "asked for three times, it stands there once: {line:?}");
}

pub async fn exclusion_02_a_second_claim_is_refused_or_queued(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let holder = context.exclusive("a");
    let grant = ours.grant(&holder).await;
    let before = context.queue(&ours, &holder.key).await;

    let hasty = context.exclusive("a");
    theirs.refuse(&hasty).await;
    let after_try = context.queue(&ours, &holder.key).await;
    assert_eq!(after_try.len(), 1, "a refused try leaves nothing: {after_try:?}");

    let patient = context.exclusive("a");
    assert_eq!(theirs.queue(&patient).await, 1);
    assert_eq!(theirs.queue(&patient).await, 1, "asking again changes nothing");
    let after = context.queue(&ours, &holder.key).await;
    if context.has_line() {
        assert_eq!(after.len(), 2, "{after:?}");
        assert!(!after[1].holds());
    }
    assert!(after[0].holds());
    assert_eq!(after[0].token, before[0].token);
    assert_eq!(ours.holds(&holder).await.token, grant.token, "the holder is untouched");
    assert!(matches!(theirs.renew_one(&patient).await, Renewal::Waits { ahead: 1 }));

    // A claim that waits, asked for as a try, leaves.
    theirs.refuse(&patient).await;
    assert_eq!(context.queue(&ours, &holder.key).await.len(), 1);
}

pub async fn exclusion_03_different_names_do_not_meet(context: CaseContext) {
    let manager = context.manager().await;
    let mut guards = Vec::new();
    for i in 0..20 {
        let guard = manager.mutex(format!("n{i}")).try_lock().await;
        guards.push(guard.expect("it works").expect("another name is free"));
    }
    let driver = context.driver().await;
    guards.remove(7).release().await.expect("it was held");
    for i in 0..20 {
        let state = context.state(&driver, &context.key(&format!("n{i}"))).await;
        assert_eq!(state.is_free(), i == 7, "only n7 was released: {state:?}");
    }
}

pub async fn exclusion_04_a_lock_is_free_again_right_after_its_release(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    for round in 0..20 {
        let manager = if round % 2 == 0 { &ours } else { &theirs };
        let guard = manager.mutex("a").try_lock().await.expect("it works");
        let guard = guard.unwrap_or_else(|| panic!("round {round}: not free after a release"));
        guard.release().await.expect("it was held");
    }
}

pub async fn exclusion_05_tasks_are_never_inside_together(context: CaseContext) {
    let manager = context.manager().await;
    count_together(vec![manager; 8], 15).await;
}

pub async fn exclusion_06_independent_managers_are_never_inside_together(context: CaseContext) {
    let mut managers = Vec::new();
    for _ in 0..4 {
        let manager = context.manager().await;
        managers.extend([manager.clone(), manager]);
    }
    count_together(managers, 10).await;
}

pub async fn exclusion_07_processes_are_never_inside_together(context: CaseContext) {
    let crew = Crew::of(&context);
    let file = crew.folder().join("count");
    std::fs::write(&file, "0").expect("a temporary file can be written");
    let rounds = 25;
    let mut workers = Vec::new();
    for _ in 0..4 {
        let args = ["count", "counter", &rounds.to_string()];
        workers.push(crew.start(&args, &file));
    }
    for worker in workers {
        let limit = Duration::from_secs(120);
        context.within(limit, "a counting process ends", worker.finished()).await;
    }
    let count = std::fs::read_to_string(&file).expect("the file is there");
    assert_eq!(count.trim(), (4 * rounds).to_string(), "every round was counted");
    let tokens = std::fs::read_to_string(crew.folder().join("count.tokens")).expect("it is there");
    let tokens: Vec<u64> = tokens.lines().map(|t| t.parse().expect("a token")).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow: {tokens:?}");
}

pub async fn exclusion_08_a_claim_does_not_release_another_of_its_connection(context: CaseContext) {
    let driver = context.driver().await;
    let (first, second) = (context.exclusive("a"), context.exclusive("a"));
    driver.grant(&first).await;
    driver.queue(&second).await;
    assert_eq!(driver.let_go(&second).await, Released::Removed);
    driver.holds(&first).await;
    context.driver().await.refuse(&context.exclusive("a")).await;
    assert_eq!(driver.let_go(&second).await, Released::NotFound);
    driver.holds(&first).await;
}

pub async fn exclusion_09_the_lock_and_the_semaphore_of_one_name_do_not_meet(context: CaseContext) {
    let manager = context.manager().await;
    let lock = manager.mutex("a").try_lock().await.expect("it works");
    let lock = lock.expect("it is free");
    let permit = manager.semaphore("a", 1).try_acquire().await;
    let permit = permit.expect("it works").expect("the semaphore a is not the lock a");
    lock.release().await.expect("it was held");
    let state = manager.inspect(Space::Semaphore, "a").await.expect("it works");
    assert_eq!(state.holders().count(), 1, "the permit is still out");
    let state = manager.inspect(Space::Lock, "a").await.expect("it works");
    assert!(state.is_free(), "the lock is free: {state:?}");
    assert!(permit.is_valid());
}

//! A backend that stops answering is reported once a manager, not once a request: after two seconds,
//! every 30 s, and when it answers again.

use lockkit_core::{LockManager, Settings};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Level;

use super::log::Log;
use super::moody::{Mood, Moody};
use super::{MS, SECOND, locks, manager_of, settle};

/// The reports among what was logged: warnings and the end of the outage.
fn reports(log: &str) -> Vec<&str> {
    let of_it = |line: &&str| line.contains("has not answered") || line.contains("answers again");
    log.lines().filter(of_it).collect()
}

fn waiters(locks: &LockManager, number: usize) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for i in 0..number {
        let mutex = locks.mutex(format!("a{i}"));
        tasks.spawn(async move { drop(mutex.lock().await) });
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn acquires_that_get_no_answer_are_reported_after_two_seconds_and_every_thirty() {
    acquires_are_reported(Mood::Silent).await;
}

#[tokio::test(start_paused = true)]
async fn acquires_that_fail_are_reported_after_two_seconds_and_every_thirty() {
    acquires_are_reported(Mood::FailBefore).await;
}

async fn acquires_are_reported(mood: Mood) {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, locks) = locks();
    driver.always("acquire", mood);
    driver.always("release", mood);
    let tasks = waiters(&locks, 100);
    sleep(1900 * MS).await;
    assert_eq!(reports(&log.take()), [""; 0], "a lost packet is no outage");
    sleep(1200 * MS).await;
    let said = log.take();
    assert_eq!(reports(&said).len(), 1, "{said}");
    assert!(said.contains(" WARN ") && said.contains("100 wait"), "{said}");
    sleep(28 * SECOND).await;
    assert_eq!(reports(&log.take()), [""; 0]);
    sleep(3 * SECOND).await;
    assert_eq!(reports(&log.take()).len(), 1, "after thirty more");
    assert!(locks.outage().is_some_and(|it| it.lasted > 30 * SECOND));
    drop(tasks);
}

#[tokio::test(start_paused = true)]
async fn waiters_report_a_backend_that_falls_silent_and_its_return() {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, locks) = locks();
    let others = LockManager::new(driver.store().clone());
    let mut held = Vec::new();
    for i in 0..50 {
        held.push(others.mutex(format!("a{i}")).lock().await.unwrap());
    }
    let tasks = waiters(&locks, 50);
    settle().await;
    assert_eq!(driver.calls("acquire").len(), 50, "they wait");
    driver.always("renew", Mood::Silent);
    // Asked at a third of the lease of 10 s, and reported 2 s later.
    sleep(6 * SECOND).await;
    let said = log.take();
    assert_eq!(reports(&said).len(), 1, "{said}");
    assert!(said.contains("50 wait"), "{said}");
    driver.always("renew", Mood::Late(MS));
    sleep(5 * SECOND).await;
    let said = log.take();
    let reports = reports(&said);
    assert_eq!(reports.len(), 1, "{said}");
    assert!(reports[0].contains("INFO") && reports[0].contains("answers again"), "{said}");
    assert!(locks.outage().is_none());
    drop((tasks, held));
}

#[tokio::test(start_paused = true)]
async fn a_word_of_the_turn_that_fails_is_reported() {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, locks) = locks();
    let others = LockManager::new(driver.store().clone());
    let held = others.mutex("a0").lock().await.unwrap();
    driver.always("granted", Mood::FailBefore);
    driver.always("renew", Mood::FailBefore);
    let tasks = waiters(&locks, 1);
    sleep(3 * SECOND).await;
    let said = log.take();
    assert_eq!(reports(&said).len(), 1, "{said}");
    assert!(said.contains("the connection was cut"), "with the last error: {said}");
    drop((tasks, held));
}

#[tokio::test(start_paused = true)]
async fn a_look_without_an_answer_is_reported() {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, locks) = locks();
    driver.always("load", Mood::Silent);
    let register = locks.register("cursor");
    let loading = tokio::spawn(async move { register.load().await.map(drop) });
    sleep(2500 * MS).await;
    let said = log.take();
    assert_eq!(reports(&said).len(), 1, "{said}");
    drop(loading);
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_only_slow_for_one_is_no_outage() {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(6 * SECOND));
    let tasks = waiters(&locks, 1);
    settle().await;
    for _ in 0..80 {
        drop(locks.mutex("b").lock().await.unwrap());
        sleep(100 * MS).await;
    }
    assert_eq!(reports(&log.take()), [""; 0]);
    drop(tasks);
}

/// A manager with nothing to ask for looks at nothing: its renewer sleeps.
#[tokio::test(start_paused = true)]
async fn one_manager_does_not_report_for_another() {
    let (log, _listening) = Log::listen(Level::INFO);
    let (driver, silent) = locks();
    let lively = LockManager::with(
        std::sync::Arc::new(Moody::new(driver.store().clone())),
        Settings::default(),
    )
    .unwrap();
    driver.always("acquire", Mood::Silent);
    let tasks = waiters(&silent, 1);
    let guard = lively.mutex("b").lock().await.unwrap();
    sleep(5 * SECOND).await;
    assert!(lively.outage().is_none() && silent.outage().is_some());
    assert_eq!(reports(&log.take()).len(), 1);
    guard.release().await.unwrap();
    drop(tasks);
    drop(manager_of(&driver));
}

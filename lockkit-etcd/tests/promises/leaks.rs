//! Leases end with what stood on them.

use std::time::Duration;

use lockkit_core::driver::{
    BreakMode, LockDriver, Precondition, RegisterKey, Registers, Released, Write, WriteId,
    WriteResult,
};
use lockkit_core::{BreakRecord, ClientIdentity, LockManager, Name, Namespace, Settings};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::{Server, ServerKind};

use crate::stage::{claim, client, driver, keys, leases, take, until};

fn register(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

fn store(value: &str, expect: Precondition, ttl: Option<u64>) -> Write {
    Write {
        value: Some(value.into()),
        expect,
        token: None,
        write_id: WriteId::random(),
        repeated: false,
        ttl: ttl.map(Duration::from_secs),
    }
}

#[tokio::test]
async fn a_value_that_is_stored_again_and_again_with_a_ttl_has_one_lease() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let (ours, theirs) = (driver(&server.url()).await, driver(&server.url()).await);
    for n in 0..20 {
        let driver = if n % 3 == 0 { &theirs } else { &ours };
        let value = store("v", Precondition::Anything, Some(7 * 86_400));
        driver.write(&register("r"), &value).await.unwrap();
        // One that is refused leaves nothing, either.
        let refused = store("v", Precondition::Absent, Some(7 * 86_400));
        driver.write(&register("r"), &refused).await.unwrap();
    }
    until("one lease", || async { leases(&server).await.len() == 1 }).await;
    assert!(ours.load(&register("r")).await.unwrap().is_some());
    // Neither has a value that stays.
    ours.write(&register("r"), &store("w", Precondition::Anything, None)).await.unwrap();
    until("no lease", || async { leases(&server).await.is_empty() }).await;
    assert!(ours.load(&register("r")).await.unwrap().is_some());
}

#[tokio::test]
async fn deletions_share_the_lease_on_which_they_are_remembered() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    for n in 0..20 {
        let at = register(&format!("r{n}"));
        ours.write(&at, &store("v", Precondition::Absent, Some(60))).await.unwrap();
        let delete = Write::of(None);
        ours.write(&at, &delete).await.unwrap();
    }
    until("one lease", || async { leases(&server).await.len() == 1 }).await;
}

/// As an operator ends it, and as it is gone after older data were put back.
#[tokio::test]
async fn deletions_and_breaks_get_another_lease_when_theirs_is_revoked() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (forced, graceful) = (claim("forced", 60, 60), claim("graceful", 60, 60));
    let tokens = [take(&ours, &forced).await.token, take(&ours, &graceful).await.token];
    let of_claims = leases(&server).await;
    let delete = async |name: &str| {
        ours.write(&register(name), &store("v", Precondition::Absent, None)).await.unwrap();
        let deleted = ours.write(&register(name), &Write::of(None)).await.unwrap().result;
        assert!(matches!(deleted, WriteResult::Stored(_)), "{name}: {deleted:?}");
    };
    let revoke = async || {
        let mut all = leases(&server).await;
        all.retain(|id| !of_claims.contains(id));
        let [lasting] = all[..] else { panic!("they share one: {all:?}") };
        client(&server).await.lease_revoke(lasting).await.unwrap();
    };
    delete("first").await;
    revoke().await;
    delete("second").await;
    let modes = [BreakMode::Forced, BreakMode::Graceful];
    for ((claim, token), mode) in [forced, graceful].iter().zip(tokens).zip(modes) {
        revoke().await;
        let record = BreakRecord::new(ClientIdentity::of_this_process(), mode, None);
        assert!(ours.break_claim(&claim.key, token, mode, &record).await.unwrap(), "{mode:?}");
        let state = ours.inspect(&claim.key).await.unwrap();
        assert!(state.last_break.is_some(), "{mode:?}: {state:?}");
    }
}

#[tokio::test]
async fn a_ticket_that_is_released_takes_its_lease_along() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let manager = async || {
        let settings = Settings::default().ttl(Duration::from_secs(300));
        LockManager::with(driver(&server.url()).await, settings).unwrap()
    };
    for n in 0..5 {
        let (ours, theirs) = (manager().await, manager().await);
        let guard = ours.mutex(format!("a{n}")).detached().lock().await.unwrap();
        let ticket = guard.detach().unwrap();
        let theirs = theirs.resume(&ticket).await.unwrap();
        theirs.renew().await.unwrap();
        theirs.release().await.unwrap();
    }
    until("the leases' end", || async { leases(&server).await.is_empty() }).await;
}

/// As a command does it, which ends at once.
#[test]
fn a_ticket_that_is_released_by_a_program_at_its_end_takes_its_lease_along() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, ticket, url, lease) = runtime.block_on(async {
        let server = Server::start(ServerKind::Etcd).await.unwrap();
        let url = server.url();
        let locks = LockManager::new(EtcdDriver::connect(&url).await.unwrap());
        let guard = locks.mutex("a").detached().lock().await.unwrap();
        let lease = keys(&server, "a").await[0].lease();
        (server, guard.detach().unwrap(), url, lease)
    });
    let program = tokio::runtime::Runtime::new().unwrap();
    let released = program.block_on(async {
        let locks = LockManager::new(EtcdDriver::connect(&url).await.unwrap());
        locks.release_ticket(&ticket).await.unwrap()
    });
    program.shutdown_background();
    assert_eq!(released, Released::Removed);
    assert!(!runtime.block_on(leases(&server)).contains(&lease));
}

/// A program that uses locks in each way, shuts its managers down, and ends at once.
#[test]
fn a_program_that_ends_right_after_its_shutdown_leaves_no_lease_behind() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(ServerKind::Etcd)).unwrap();
    let url = server.url();
    let program = tokio::runtime::Runtime::new().unwrap();
    program.block_on(async {
        let settings = Settings::default().ttl(Duration::from_secs(3_600));
        let manager = async || LockManager::owning(driver(&url).await, settings.clone()).unwrap();
        let (ours, theirs) = (manager().await, manager().await);
        let guard = ours.mutex("a").lock().await.unwrap();
        assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn({
            let lock = theirs.mutex("a");
            async move { lock.lock().await.unwrap() }
        });
        until("a waiter", || async { keys(&server, "a").await.len() == 2 }).await;
        guard.release().await.unwrap();
        let by_hand = ours.mutex("b").auto_renew(false).lock().await.unwrap();
        let _held_to_the_end = ours.mutex("c").lock().await.unwrap();
        by_hand.release().await.unwrap();
        for n in 0..4 {
            let kept = ours.register("r").ttl(Duration::from_secs(3_600));
            kept.store(format!("{n}")).await.unwrap();
        }
        waiting.await.unwrap().release().await.unwrap();
        ours.shutdown().await;
        theirs.shutdown().await;
    });
    program.shutdown_background();
    // That of the register's present value.
    assert_eq!(runtime.block_on(leases(&server)).len(), 1);
    for name in ["a", "b", "c"] {
        assert!(runtime.block_on(keys(&server, name)).is_empty(), "{name}");
    }
}

/// A program that just ends: its leases end by themselves, and its keys with them.
#[test]
fn a_program_that_ends_without_a_word_leaves_nothing_beyond_its_leases() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(ServerKind::Etcd)).unwrap();
    let program = tokio::runtime::Runtime::new().unwrap();
    let locks = program.block_on(async {
        let ttl = Duration::from_secs(2);
        let settings = Settings::default().ttl(ttl).wait_ttl(ttl);
        let locks = LockManager::with(driver(&server.url()).await, settings).unwrap();
        std::mem::forget(locks.mutex("a").lock().await.unwrap());
        std::mem::forget(locks.mutex("b").auto_renew(false).lock().await.unwrap());
        locks
    });
    program.shutdown_background();
    runtime.block_on(async {
        until("the leases' end", || async { leases(&server).await.is_empty() }).await;
        assert!(keys(&server, "a").await.is_empty() && keys(&server, "b").await.is_empty());
    });
    drop(locks);
}

#[tokio::test]
async fn closing_waits_for_no_etcd_that_did_not_answer() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let locks = LockManager::with(ours.clone(), Settings::default()).unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    server.freeze().await;
    ours.health().await.expect_err("it stands still");
    let closing = tokio::time::timeout(Duration::from_millis(500), ours.close());
    closing.await.expect("it waits for nothing");
}

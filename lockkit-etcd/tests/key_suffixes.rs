//! A driver gives the keys of its claims to one claim after the other: what that must not lead to
//! when answers are lost, requests come late, claims are broken, and others wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, BreakMode, ClaimEnd, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Mode, Name, Namespace, Space, Token};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, CompactionOptions, GetOptions};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

/// Long enough for a machine that stalls; never waited out.
const PATIENCE: Duration = Duration::from_secs(60);
const LIST: &str = "lockkit/lock//a/";

async fn driver(url: &str) -> Arc<EtcdDriver> {
    Arc::new(EtcdDriver::connect(url).await.expect("etcd answers"))
}

fn claim_as(mode: Mode) -> Arc<Claim> {
    claim_on("a", mode)
}

fn claim_on(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let (ttl, me) = (Duration::from_secs(300), Arc::new(ClientIdentity::of_this_process()));
    Arc::new(Claim::new(key, mode, ttl, ttl, me))
}

fn claim() -> Arc<Claim> {
    claim_as(Mode::Exclusive)
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

async fn client(server: &Server) -> Client {
    Client::connect([server.addr().to_string()], None).await.unwrap()
}

/// The keys of the lock, by the order of their creation.
async fn keys(server: &Server) -> Vec<String> {
    let all = GetOptions::new().with_prefix();
    let mut kvs = client(server).await.get(LIST, Some(all)).await.unwrap().take_kvs();
    kvs.sort_by_key(|kv| kv.create_revision());
    kvs.iter().map(|kv| kv.key_str().unwrap().to_owned()).collect()
}

async fn only_key(server: &Server) -> String {
    let keys = keys(server).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.into_iter().next().unwrap()
}

async fn take(driver: &EtcdDriver, claim: &Arc<Claim>) -> Token {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

async fn renewed(driver: &EtcdDriver, claim: &Arc<Claim>) -> Renewal {
    driver.renew_single(claim).await.unwrap()
}

/// Takes the lock and lets it go; the key that it had.
async fn once(server: &Server, driver: &EtcdDriver) -> String {
    let claim = claim();
    take(driver, &claim).await;
    let key = only_key(server).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Released::Removed);
    key
}

#[tokio::test]
async fn a_lock_that_is_taken_again_and_again_has_one_key_and_those_beside_each_other_have_two() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let first = once(&server, &ours).await;
    let mut last = None;
    for patience in [Patience::Try, Patience::Wait].repeat(5) {
        let one = claim();
        let answer = ours.acquire(&one, patience).await.unwrap().result;
        let Acquisition::Granted(grant) = answer else { panic!("it is free: {answer:?}") };
        assert!(Some(grant.token) > last, "the next holder has a greater token");
        last = Some(grant.token);
        assert_eq!(only_key(&server).await, first);
        // Who is turned away has put no key.
        assert_eq!(ours.acquire(&claim(), Patience::Try).await.unwrap().result, Acquisition::Busy);
        ours.release(&one).await.unwrap();
    }
    let readers = [claim_as(Mode::Shared), claim_as(Mode::Shared)];
    for reader in &readers {
        take(&ours, reader).await;
    }
    let both = keys(&server).await;
    assert_eq!((both.len(), &both[0]), (2, &first));
    for reader in &readers {
        assert_eq!(ours.release(reader).await.unwrap(), Released::Removed);
    }
    let theirs = driver(&server.url()).await;
    assert!(!both.contains(&once(&server, &theirs).await), "another driver has keys of its own");
}

/// Nor do those who never find it empty leave a key each time.
#[tokio::test]
async fn readers_beside_others_and_those_who_had_to_wait_use_keys_again() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    for mode in [Mode::Shared, Mode::Exclusive] {
        let (mut used, mut holder) = (BTreeSet::new(), claim_as(mode));
        take(&ours, &holder).await;
        for _ in 0..20 {
            let next = claim_as(mode);
            ours.acquire(&next, Patience::Wait).await.unwrap();
            used.extend(keys(&server).await);
            assert_eq!(ours.release(&holder).await.unwrap(), Released::Removed);
            soon("its turn", ours.granted(&next)).await.unwrap();
            soon("the lease of a holder", on_the_lease_of_a_holder(&server)).await;
            // What moved it there has been answered when something later has.
            ours.health().await.unwrap();
            holder = next;
        }
        assert!(used.len() <= 4, "{used:?}");
        ours.release(&holder).await.unwrap();
    }
}

async fn on_the_lease_of_a_holder(server: &Server) {
    let mut client = client(server).await;
    loop {
        let all = client.get(LIST, Some(GetOptions::new().with_prefix())).await.unwrap();
        if all.kvs().iter().all(|kv| kv.value_str().unwrap().contains("held_at_ms")) {
            return;
        }
    }
}

#[tokio::test]
async fn who_was_released_is_not_taken_for_the_next_with_its_key() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (one, next) = (claim(), claim());
    take(&ours, &one).await;
    let key = only_key(&server).await;
    ours.release(&one).await.unwrap();
    take(&ours, &next).await;
    assert_eq!(only_key(&server).await, key);
    for _ in 0..2 {
        assert_eq!(ours.release(&one).await.unwrap(), Released::NotFound);
        assert_eq!(renewed(&ours, &one).await, Renewal::Ended(ClaimEnd::NotFound));
        let answer = ours.downgrade(&one).await.unwrap();
        assert_eq!(answer, Renewal::Ended(ClaimEnd::NotFound));
    }
    assert!(matches!(renewed(&ours, &next).await, Renewal::Holds(_)));
    assert_eq!(ours.release(&next).await.unwrap(), Released::Removed);
}

/// The answer to the first request was lost, and so it was sent again: the first may have been
/// carried out, or not yet.
#[tokio::test]
async fn a_claim_whose_request_was_repeated_keeps_its_key() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let ours = driver(&server.url_at(proxy.addr())).await;
    let first = once(&server, &ours).await;
    let lost = [When::Request(1), When::Answer(1)];
    for (patience, lost) in [Patience::Wait, Patience::Try].into_iter().zip(lost) {
        let one = claim();
        let spare = once(&server, &ours).await;
        proxy.fault(ProxyFault::Cut, lost);
        let answer = soon("an answer", async {
            loop {
                if let Ok(answered) = ours.acquire(&one, patience).await {
                    return answered.result;
                }
            }
        });
        assert!(matches!(answer.await, Acquisition::Granted(_)));
        assert_eq!(only_key(&server).await, spare);
        soon("a release", async { while ours.release(&one).await.is_err() {} }).await;
        assert_eq!(keys(&server).await, [""; 0]);
        assert_ne!(once(&server, &ours).await, spare);
    }
    assert_ne!(once(&server, &ours).await, first);
}

/// etcd put the claim in, the answer was lost, and nothing waits for it any more.
#[tokio::test]
async fn a_claim_that_was_given_up_is_found_by_its_release_and_its_key_is_not_used_again() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let ours = driver(&server.url_at(proxy.addr())).await;
    // Its lease is not revoked while this one lives on it.
    take(&ours, &claim_on("b", Mode::Exclusive)).await;
    let spare = once(&server, &ours).await;
    let ghost = claim();
    proxy.fault(ProxyFault::Mute, When::Request(1));
    {
        let acquire = ours.acquire(&ghost, Patience::Wait);
        let there = soon("the ghost", async {
            while keys(&server).await.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        tokio::pin!(there);
        tokio::select! {
            answer = acquire => {
                assert!(answer.is_err(), "no answer arrives: {answer:?}");
                there.await;
            }
            () = &mut there => {}
        } // dropped here, at the latest
    }
    assert_eq!(only_key(&server).await, spare);
    proxy.fault(ProxyFault::Cut, When::Now);
    proxy.heal().await.unwrap();
    let next = claim();
    let queued = soon("its place", async {
        loop {
            if let Ok(queued) = ours.acquire(&next, Patience::Wait).await {
                return queued.result;
            }
        }
    });
    assert_eq!(queued.await, Acquisition::Queued { ahead: 1 });
    assert_eq!(ours.release(&ghost).await.unwrap(), Released::Removed);
    let own = only_key(&server).await;
    assert_ne!(own, spare);
    // However often the ghost is released, no other client goes.
    assert_eq!(ours.release(&ghost).await.unwrap(), Released::NotFound);
    soon("its turn", ours.granted(&next)).await.unwrap();
    assert_eq!(ours.release(&next).await.unwrap(), Released::Removed);
    assert_ne!(once(&server, &ours).await, spare);
}

#[tokio::test]
async fn a_claim_that_was_broken_keeps_its_key_and_its_word() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let (ours, theirs) = (driver(&server.url()).await, driver(&server.url()).await);
    let by = ClientIdentity::of_this_process();
    for force in [BreakMode::Graceful, BreakMode::Forced] {
        let forced = force == BreakMode::Forced;
        let record = BreakRecord::from_parts(by.clone(), 1, None, forced);
        for told in [false, true] {
            let spare = once(&server, &ours).await;
            let one = claim();
            let token = take(&ours, &one).await;
            assert_eq!(only_key(&server).await, spare);
            assert!(theirs.break_claim(&one.key, token, force, &record).await.unwrap());
            if told {
                let answer = renewed(&ours, &one).await;
                assert!(matches!(answer, Renewal::Ended(ClaimEnd::Broken(_))), "{answer:?}");
            }
            let released = ours.release(&one).await.unwrap();
            let there =
                if force == BreakMode::Graceful { Released::Removed } else { Released::NoSuchLock };
            assert_eq!(released, there, "{force:?} {told}");
            assert_eq!(keys(&server).await, [""; 0]);
            let next = claim();
            take(&ours, &next).await;
            assert_ne!(only_key(&server).await, spare, "{force:?} {told}");
            assert!(matches!(renewed(&ours, &next).await, Renewal::Holds(_)), "{force:?} {told}");
            assert_eq!(ours.release(&next).await.unwrap(), Released::Removed);
        }
    }
}

/// A copy of this process, or a copy of etcd's data, brought an old key back.
#[tokio::test]
async fn what_stands_under_a_key_before_it_was_asked_for_is_another_claim() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let one = claim();
    take(&ours, &one).await;
    let mut client = client(&server).await;
    let key = only_key(&server).await;
    let value = client.get(&*key, None).await.unwrap().kvs()[0].value().to_vec();
    ours.release(&one).await.unwrap();
    client.put(&*key, value, None).await.unwrap();
    assert_eq!(ours.acquire(&claim(), Patience::Try).await.unwrap().result, Acquisition::Busy);
    client.delete(&*key, None).await.unwrap();
    let spare = once(&server, &ours).await;
    client.put(&*spare, "", None).await.unwrap();
    let next = claim();
    let answer = ours.acquire(&next, Patience::Wait).await.unwrap().result;
    assert_eq!(answer, Acquisition::Queued { ahead: 1 });
    let both = keys(&server).await;
    assert_eq!((both.len(), &both[0]), (2, &spare));
    client.delete(&*spare, None).await.unwrap();
    soon("its turn", ours.granted(&next)).await.unwrap();
}

/// Between two looks of who waits, the key that it waits for went and came back as another claim's,
/// which stands behind it.
#[tokio::test]
async fn a_waiter_does_not_take_the_next_claim_with_a_key_for_the_one_that_it_waited_for() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let near = driver(&server.url()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        for compacted in [false, true] {
            let (holder, waiter, next) = (claim(), claim_as(mode), claim());
            take(&near, &holder).await;
            let key = only_key(&server).await;
            far.acquire(&waiter, Patience::Wait).await.unwrap();
            let waiting = tokio::spawn({
                let (far, waiter) = (far.clone(), waiter.clone());
                async move { far.granted(&waiter).await }
            });
            tokio::task::yield_now().await;
            proxy.refuse().await;
            near.release(&holder).await.unwrap();
            let queued = near.acquire(&next, Patience::Wait).await.unwrap().result;
            assert_eq!(queued, Acquisition::Queued { ahead: 1 });
            assert_eq!(keys(&server).await[1], key, "it has the key of the one that went");
            if compacted {
                let mut client = client(&server).await;
                let now = client.put("x", "y", None).await.unwrap();
                let now = now.header().unwrap().revision();
                let options = CompactionOptions::new().with_physical();
                client.compact(now, Some(options)).await.unwrap();
            }
            proxy.accept().await.unwrap();
            soon("its turn", waiting).await.unwrap().unwrap();
            assert!(matches!(renewed(&near, &next).await, Renewal::Waits { ahead: 1 }));
            assert_eq!(far.release(&waiter).await.unwrap(), Released::Removed);
            soon("the next turn", near.granted(&next)).await.unwrap();
            assert_eq!(near.release(&next).await.unwrap(), Released::Removed);
        }
    }
}

//! Several sessions of one driver: claims have one of their ttl, and what happens to one session concerns
//! no other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{
    Acquire, Acquisition, Batch, Grant, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{Claim, Namespace};
use lockkit_lab::SharedServer;
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_zk::ZkDriver;
use lockkit_zk::zookeeper_client::Client;

use crate::{TTL, claim, end_session, namespace, server, session_of, silent, soon};

fn lasting(namespace: &Namespace, name: &str, ttl: Duration) -> Arc<Claim> {
    let mut claim = Claim::clone(&claim(namespace, name));
    claim.hold_ttl = ttl;
    Arc::new(claim)
}

async fn granted(driver: &ZkDriver, claim: &Arc<Claim>) -> Grant {
    match driver.acquire(claim, Patience::Try).await.unwrap().result {
        Acquisition::Granted(grant) => grant,
        other => panic!("it is free: {other:?}"),
    }
}

/// The connections through a proxy that are open.
fn open(proxy: &Proxy) -> usize {
    proxy.reset();
    proxy.connections().len()
}

#[tokio::test]
async fn a_dead_process_keeps_each_lock_for_the_ttl_of_that_lock() {
    let server = server().await;
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let (dead, other) = (crate::driver(proxy.addr()).await, crate::driver(server.addr()).await);
    let namespace = namespace();
    let ttl = Duration::from_secs(5);
    let brief = lasting(&namespace, "brief", ttl);
    let usual = lasting(&namespace, "usual", TTL);
    assert_eq!(granted(&dead, &brief).await.ttl, ttl);
    assert_eq!(granted(&dead, &usual).await.ttl, TTL);
    let next = claim(&namespace, "brief");
    let queued = other.acquire(&next, Patience::Wait).await.unwrap().result;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    proxy.refuse().await;
    proxy.fault(ProxyFault::BlackHole, When::Now);
    let died = Instant::now();
    let waiting = async {
        // As core does while it waits.
        tokio::select! {
            turn = other.granted(&next) => turn.unwrap(),
            () = renewing(&other, &next) => unreachable!("it renews until it is dropped"),
        }
    };
    soon("the turn", waiting).await;
    let kept = died.elapsed();
    let slack = dead.capabilities().expiry_slack;
    // What the leader hears of a session is a little old; nothing is kept for as long as the other.
    assert!(kept < ttl + slack, "{kept:?}, with a slack of {slack:?}");
    assert!(kept < TTL / 2, "{kept:?}");
    let line = other.inspect(&usual.key).await.unwrap().queue;
    assert_eq!(line.len(), 1, "the other one lasts longer: {line:?}");
}

async fn renewing(driver: &ZkDriver, claim: &Arc<Claim>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        driver.renew_single(claim).await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_lasts_as_its_guard_and_a_look_at_it_say() {
    let server = server().await;
    let driver = crate::driver(server.addr()).await;
    let namespace = namespace();
    let longest = driver.capabilities().max_ttl;
    let year = Duration::from_secs(365 * 86_400);
    for seconds in [5, 20, TTL.as_secs(), 45] {
        let asked = Duration::from_secs(seconds);
        let claim = lasting(&namespace, &format!("{seconds}"), asked);
        assert_eq!(granted(&driver, &claim).await.ttl, asked);
        let line = driver.inspect(&claim.key).await.unwrap().queue;
        assert_eq!(line[0].ttl, asked);
    }
    // The servers have a bound, and whatever is above it has that.
    let mut given = Vec::new();
    for more in [0, 1] {
        let claim = lasting(&namespace, &format!("year {more}"), year + Duration::from_secs(more));
        let grant = granted(&driver, &claim).await;
        assert!(longest <= grant.ttl && grant.ttl < year, "{:?}", grant.ttl);
        let line = driver.inspect(&claim.key).await.unwrap().queue;
        assert!(line[0].ttl.abs_diff(grant.ttl) < Duration::from_millis(1), "{line:?}");
        given.push(grant.ttl);
    }
    assert_eq!(given[0], given[1]);
}

#[tokio::test]
async fn sessions_for_other_ttls_are_few_and_go_when_nobody_needs_them() {
    let server = server().await;
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = crate::driver(proxy.addr()).await;
    let namespace = namespace();
    let mut claims = Vec::new();
    for n in 0..60 {
        let ttl = Duration::from_millis(9_000 + 500 * n);
        let claim = lasting(&namespace, &format!("{n}"), ttl);
        let grant = granted(&driver, &claim).await;
        assert!(grant.ttl <= ttl && grant.ttl > ttl / 2, "{:?} for {ttl:?}", grant.ttl);
        claims.push(claim);
    }
    // The main one, eight exact ones, and one for each power of two below the others.
    let many = open(&proxy);
    assert!((9..=13).contains(&many), "{many} connections");
    let answers = driver.renew(&claims).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::Holds(_)))), "{answers:?}");
    let last = claims.pop().unwrap();
    for claim in &claims {
        driver.release(claim).await.unwrap();
    }
    // One is in use, and the main one stays.
    soon("the end of the others", async {
        while open(&proxy) > 2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(driver.release(&last).await.unwrap(), Released::Removed);
    soon("the end of the last", async {
        while open(&proxy) > 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    granted(&driver, &lasting(&namespace, "again", Duration::from_secs(5))).await;
    assert_eq!(open(&proxy), 2);
}

#[tokio::test]
async fn the_end_of_one_session_costs_its_claims_and_no_others() {
    let server = server().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let driver = crate::driver(server.addr()).await;
    let namespace = namespace();
    let (usual, other) = (lasting(&namespace, "usual", TTL), lasting(&namespace, "other", TTL / 2));
    granted(&driver, &usual).await;
    granted(&driver, &other).await;
    end_session(server.addr(), session_of(&client, &namespace, "other").await).await;
    let both = [usual.clone(), other.clone()];
    let told = soon("the news", async {
        loop {
            match &driver.renew(&both).await.unwrap()[..] {
                [Ok(usual), Ok(other)] => return [usual.clone(), other.clone()],
                // While the client finds out.
                [Ok(Renewal::Holds(_)), Err(error)] if error.is_retryable() => {}
                told => panic!("{told:?}"),
            }
        }
    })
    .await;
    assert!(matches!(told, [Renewal::Holds(_), Renewal::Ended(_)]), "{told:?}");
    granted(&driver, &lasting(&namespace, "other", TTL / 2)).await;
}

/// The servers as one driver sees them: its main session leads through a proxy of its own, and all others
/// past that.
async fn apart() -> (SharedServer, Proxy, Proxy, ZkDriver) {
    let server = server().await;
    let start = |to| async move { Proxy::start(to, Protocol::ZooKeeper).await.unwrap() };
    let main = start(server.addr()).await;
    let front = start(main.addr()).await;
    let driver = crate::driver(front.addr()).await;
    front.lead_to(&[server.addr()]);
    (server, front, main, driver)
}

/// Core waits for the answers of all, and drops them when it has to ask again for the shortest lease.
#[tokio::test]
async fn a_session_that_hangs_does_not_hold_up_the_renewals_of_another() {
    let (_server, _front, main, driver) = apart().await;
    let namespace = namespace();
    let usual = lasting(&namespace, "usual", TTL);
    let brief = lasting(&namespace, "brief", Duration::from_secs(6));
    granted(&driver, &usual).await;
    granted(&driver, &brief).await;
    main.fault(ProxyFault::BlackHole, When::Now);
    let both = [usual.clone(), brief];
    let answers = tokio::select! {
        biased;
        alone = driver.renew(&both[..1]) => panic!("they wait for the one that hangs: {alone:?}"),
        answers = driver.renew(&both) => answers.unwrap(),
    };
    let [Err(error), Ok(Renewal::Holds(_))] = &answers[..] else { panic!("{answers:?}") };
    assert!(error.is_retryable(), "{error}");
}

/// The session of the acquire is not to be had: no server answers there any more.
#[tokio::test]
async fn a_release_does_not_wait_for_the_session_of_an_acquire_in_its_batch() {
    let (server, front, _main, driver) = apart().await;
    let other = crate::driver(server.addr()).await;
    let namespace = namespace();
    let brief = |name, seconds| lasting(&namespace, name, Duration::from_secs(seconds));
    let [known, held, next] = ["known", "held", "held"].map(|name| claim(&namespace, name));
    granted(&driver, &known).await; // so that its folder is known to be there
    driver.release(&known).await.unwrap();
    granted(&driver, &held).await;
    let queued = other.acquire(&next, Patience::Wait).await.unwrap().result;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    let silent = silent().await;
    front.lead_to(&[silent.local_addr().unwrap()]);
    let acquires = [Acquire { claim: brief("known", 8), patience: Patience::Wait }];
    let batch = Batch { releases: &[held], acquires: &acquires };
    let alone = brief("another", 7);
    tokio::select! {
        biased;
        failed = driver.acquire(&alone, Patience::Wait) => panic!("it waits as long: {failed:?}"),
        outcome = driver.submit(batch) => panic!("it has no session: {outcome:?}"),
        turn = other.granted(&next) => drop(turn.unwrap()),
    }
}

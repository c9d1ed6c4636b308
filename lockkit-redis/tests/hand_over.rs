//! One contended lock within a process: the answer of the request that passes it on says who holds it, and
//! nothing else is needed.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, Grant, LeaseStart, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::RedisDriver;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longer than any machine stands still; all leases are much longer.
const LONG: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, ClientIdentity::of_this_process().into()))
}

async fn connect(url: &str) -> RedisDriver {
    RedisDriver::connect(&format!("{url}?timeout=30s")).await.unwrap()
}

/// A server, a way to it that counts and disturbs, and a driver that goes it, to which messages arrive.
async fn scene() -> (Server, Proxy, RedisDriver) {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = connect(&server.url_at(proxy.addr())).await;
    // All scripts are known, and what a driver says when it begins has been said.
    let [a, b, c] = ["warm"; 3].map(claim);
    acquire(&driver, &a).await;
    acquire(&driver, &b).await;
    exchange(&driver, &a, &c).await;
    driver.release(&c).await.unwrap();
    driver.release(&b).await.unwrap();
    let mut before = 0;
    while before != proxy.counts().answers {
        before = proxy.counts().answers;
        tokio::time::sleep(200 * MS).await;
    }
    (server, proxy, driver)
}

async fn acquire(driver: &RedisDriver, claim: &Arc<Claim>) -> Acquisition {
    driver.acquire(claim, Patience::Wait).await.unwrap().result
}

async fn granted(driver: &RedisDriver, claim: &Arc<Claim>) -> Grant {
    timeout(LONG, driver.granted(claim)).await.expect("it is told").unwrap()
}

/// Releases one claim and acquires another, in one batch.
async fn exchange(driver: &RedisDriver, leaves: &Arc<Claim>, comes: &Arc<Claim>) -> Acquisition {
    let acquire = Acquire { claim: comes.clone(), patience: Patience::Wait };
    let batch = Batch { releases: from_ref(leaves), acquires: &[acquire] };
    let mut outcome = driver.submit(batch).await.unwrap();
    assert_eq!(outcome.released.remove(0).unwrap().result, Released::Removed);
    outcome.acquired.remove(0).unwrap().result
}

#[tokio::test]
async fn sixty_four_tasks_pass_a_lock_on_with_one_request_each_and_no_message() {
    let (_server, proxy, driver) = scene().await;
    let locks = LockManager::new(driver);
    proxy.latency(MS);
    proxy.reset();
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let mutex = locks.mutex("hot");
        tasks.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..20 {
                let guard = mutex.lock().await.unwrap();
                tokens.push(guard.token().unwrap().get());
                guard.release().await.unwrap();
            }
            tokens
        });
    }
    let mut tokens: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let (grants, counts) = (tokens.len() as u64, proxy.counts());
    println!("{grants} grants: {counts:?}");
    // What is left over: the first acquires, the last releases, renewals, a message of the driver to itself.
    assert!(counts.requests <= grants + grants / 10, "{counts:?}");
    assert!(counts.pushes <= 3, "{counts:?}");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len() as u64, grants, "no token twice");
}

#[tokio::test]
async fn the_answer_to_a_release_says_which_waiter_of_the_client_holds() {
    let (_server, proxy, driver) = scene().await;
    for shared in [false, true] {
        let [first, second, third] = ["a"; 3].map(claim);
        acquire(&driver, &first).await;
        assert_eq!(acquire(&driver, &second).await, Acquisition::Queued { ahead: 1 });
        proxy.latencies(Duration::ZERO, 300 * MS);
        proxy.reset();
        let before = SteadyClock.now();
        if shared {
            let queued = exchange(&driver, &first, &third).await;
            assert_eq!(queued, Acquisition::Queued { ahead: 1 });
        } else {
            driver.release(&first).await.unwrap();
        }
        let answered = SteadyClock.now();
        let grant = granted(&driver, &second).await;
        // Its lease counts from the sending of the request that promoted it, not from the answer.
        let LeaseStart::Sent(sent) = grant.start else { panic!("{grant:?}") };
        assert!(sent >= before && answered.since(sent) >= 300 * MS, "{grant:?}");
        let counts = proxy.counts();
        assert_eq!((counts.requests, counts.pushes), (1, 0), "{counts:?}");
        proxy.latency(Duration::ZERO);
        driver.release(&second).await.unwrap();
        driver.release(&third).await.unwrap();
    }
}

/// No message says what an answer says: one that nobody reads must not leave a waiter without a word.
#[tokio::test]
async fn a_release_that_was_dropped_before_its_answer_leaves_no_waiter_behind() {
    let (_server, proxy, driver) = scene().await;
    for with_another in [false, true] {
        let [first, second, third] = ["a"; 3].map(claim);
        acquire(&driver, &first).await;
        acquire(&driver, &second).await;
        proxy.latencies(Duration::ZERO, 500 * MS);
        let dropped = async {
            match with_another {
                true => drop(exchange(&driver, &first, &third).await),
                false => drop(driver.release(&first).await),
            }
        };
        // So soon that the connection is not taken for a silent one, after which all would be asked about.
        timeout(30 * MS, dropped).await.expect_err("the answer takes longer");
        proxy.latency(Duration::ZERO);
        granted(&driver, &second).await;
        driver.release(&second).await.unwrap();
        driver.release(&third).await.unwrap();
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_leaves_no_waiter_behind() {
    let (_server, proxy, driver) = scene().await;
    let [first, second, third] = ["a"; 3].map(claim);
    acquire(&driver, &first).await;
    acquire(&driver, &second).await;
    let mut strike = proxy.fault(ProxyFault::Cut, When::Answer(1));
    let acquire = Acquire { claim: third.clone(), patience: Patience::Wait };
    let batch = Batch { releases: from_ref(&first), acquires: &[acquire] };
    let outcome = driver.submit(batch).await.unwrap();
    strike.struck().await;
    // It was sent again, and says so: the claim had left, and the other one was in the queue.
    let (left, came) = (outcome.released[0].clone().unwrap(), outcome.acquired[0].clone().unwrap());
    assert_eq!((left.result, left.ambiguous), (Released::NotFound, 1));
    assert_eq!((came.result, came.ambiguous), (Acquisition::Queued { ahead: 1 }, 1));
    granted(&driver, &second).await;
    driver.release(&second).await.unwrap();
    granted(&driver, &third).await;
}

#[tokio::test]
async fn a_claim_of_another_client_is_told_by_a_message_and_keeps_its_place() {
    let (server, proxy, driver) = scene().await;
    let other = connect(&server.url()).await;
    let [first, foreign, own] = ["a"; 3].map(claim);
    acquire(&driver, &first).await;
    assert_eq!(acquire(&other, &foreign).await, Acquisition::Queued { ahead: 1 });
    let waiting = tokio::spawn({
        let foreign = foreign.clone();
        async move { (granted(&other, &foreign).await, other) }
    });
    assert_eq!(exchange(&driver, &first, &own).await, Acquisition::Queued { ahead: 1 });
    let (grant, other) = waiting.await.unwrap();
    let states = driver.inspect(&own.key).await.unwrap().queue;
    assert_eq!(states[0].token, grant.token);
    assert!(states[0].holds() && !states[1].holds() && states[1].token > grant.token);
    proxy.reset();
    other.release(&foreign).await.unwrap();
    granted(&driver, &own).await;
    assert_eq!(proxy.counts().pushes, 1, "released by another client");
}

#[tokio::test]
async fn a_waiter_that_leaves_is_no_gap_in_the_queue() {
    let (_server, _proxy, driver) = scene().await;
    let [a, b, c, d, e, f, g] = ["a"; 7].map(claim);
    for claim in [&a, &b, &c, &d, &e] {
        acquire(&driver, claim).await;
    }
    driver.release(&c).await.unwrap();
    for (claim, ahead) in [(&b, 1), (&d, 2), (&e, 3)] {
        assert_eq!(driver.renew_single(claim).await.unwrap(), Renewal::Waits { ahead });
    }
    let mut last = 0;
    for (leaves, comes, holds) in [(&a, &f, &b), (&b, &g, &d), (&d, &a, &e), (&e, &b, &f)] {
        assert_eq!(exchange(&driver, leaves, comes).await, Acquisition::Queued { ahead: 3 });
        let token = granted(&driver, holds).await.token.get();
        assert!(token > last);
        last = token;
    }
    assert_eq!(driver.inspect(&a.key).await.unwrap().queue.len(), 4);
}

#[tokio::test]
async fn a_hand_over_skips_a_waiter_whose_lease_has_ended() {
    let (server, _proxy, driver) = scene().await;
    let other = connect(&server.url()).await;
    let [first, third, last] = ["a"; 3].map(claim);
    let mut second = Claim::clone(&claim("a"));
    second.wait_ttl = 300 * MS;
    acquire(&driver, &first).await;
    acquire(&other, &Arc::new(second)).await;
    acquire(&other, &third).await;
    drop(other); // or it would poll, which prunes
    while driver.inspect(&first.key).await.unwrap().queue.len() == 3 {
        tokio::time::sleep(20 * MS).await;
    }
    assert_eq!(exchange(&driver, &first, &last).await, Acquisition::Queued { ahead: 1 });
    let queue = driver.inspect(&first.key).await.unwrap().queue;
    assert!(queue.len() == 2 && queue[0].holds() && !queue[1].holds(), "{queue:?}");
}

#[tokio::test]
async fn a_claim_that_is_in_the_queue_already_is_not_added_again_by_a_hand_over() {
    let (_server, _proxy, driver) = scene().await;
    let [first, second, third] = ["a"; 3].map(claim);
    for claim in [&first, &second, &third] {
        acquire(&driver, claim).await;
    }
    assert_eq!(exchange(&driver, &first, &third).await, Acquisition::Queued { ahead: 1 });
    granted(&driver, &second).await;
    assert_eq!(driver.inspect(&first.key).await.unwrap().queue.len(), 2);
    driver.release(&second).await.unwrap();
    granted(&driver, &third).await;
    driver.release(&third).await.unwrap();
    assert!(driver.inspect(&first.key).await.unwrap().is_free());
}

/// Half of the rate of one contended lock is the server's time.
#[tokio::test]
async fn a_hand_over_is_a_few_commands_at_the_server_however_many_wait() {
    let (server, _proxy, driver) = scene().await;
    let queue: Vec<_> = (0..200).map(|_| claim("a")).collect();
    for claim in &queue {
        acquire(&driver, claim).await;
    }
    reset_commands(&server).await;
    for leaves in &queue[..100] {
        exchange(&driver, leaves, &claim("a")).await;
    }
    let (commands, stats) = commands(&server).await;
    let commands = commands / 100;
    println!("{commands} commands a hand-over");
    assert!((6..=9).contains(&commands), "{commands}: {stats}");
}

/// Each waiter that leaves between two others leaves a number behind, for as long as the first one waits.
#[tokio::test]
async fn waiters_that_come_and_go_behind_one_that_stays_cost_nothing_later() {
    let (server, _proxy, driver) = scene().await;
    let [holder, stays, mut former, mut latter] = ["a"; 4].map(claim);
    for claim in [&holder, &stays, &former, &latter] {
        acquire(&driver, claim).await;
    }
    for _ in 0..5_000 {
        let next = claim("a");
        assert_eq!(exchange(&driver, &former, &next).await, Acquisition::Queued { ahead: 3 });
        (former, latter) = (latter, next);
    }
    let keys = resp::ask(server.addr(), &["KEYS", "lockkit:lock:*:a"]).await.unwrap();
    let RespReply::Array(keys) = keys else { panic!("{keys:?}") };
    let bytes = resp::ask(server.addr(), &["HSTRLEN", keys[0].text(), "gaps"]).await.unwrap();
    let RespReply::Number(bytes) = bytes else { panic!("{bytes:?}") };
    assert!(bytes < 30, "{bytes}");
    assert_eq!(driver.renew_single(&latter).await.unwrap(), Renewal::Waits { ahead: 3 });
    reset_commands(&server).await;
    driver.release(&holder).await.unwrap();
    granted(&driver, &stays).await;
    driver.release(&stays).await.unwrap();
    granted(&driver, &former).await;
    let (commands, stats) = commands(&server).await;
    println!("{commands} commands for two hand-overs");
    assert!(commands < 50, "{commands}: {stats}");
    assert_eq!(driver.renew_single(&latter).await.unwrap(), Renewal::Waits { ahead: 1 });
}

async fn reset_commands(server: &Server) {
    resp::ask(server.addr(), &["CONFIG", "RESETSTAT"]).await.unwrap();
}

/// How many commands the server has carried out, also within scripts; and which.
async fn commands(server: &Server) -> (u32, String) {
    let stats = resp::ask(server.addr(), &["INFO", "commandstats"]).await.unwrap();
    let calls = stats.text().lines().filter_map(|line| line.split_once("calls="));
    let calls = calls.filter_map(|(_, rest)| rest.split(',').next()?.parse::<u32>().ok());
    (calls.sum(), stats.text().to_owned())
}

/// What the fast path leaves to the general way comes to the same, in the same request.
#[tokio::test]
async fn an_exchange_of_a_lock_without_waiters_is_one_request_too() {
    let (_server, proxy, driver) = scene().await;
    let mut held = claim("a");
    acquire(&driver, &held).await;
    let mut last = 0;
    for _ in 0..3 {
        let next = claim("a");
        proxy.reset();
        let Acquisition::Granted(grant) = exchange(&driver, &held, &next).await else {
            panic!("nobody else waits")
        };
        assert_eq!(proxy.counts().requests, 1);
        assert!(grant.token.get() > last);
        (held, last) = (next, grant.token.get());
    }
}

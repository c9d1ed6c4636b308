//! Acquires and releases in one batch: what they cost, that each has the outcome that it would have
//! by itself, and what one of them costs the others.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, LockDriver, Patience, Released, Renewal,
    SetLimit,
};
use lockkit_core::state::LockState;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, Lifetime, LockManager, MemoryDriver, Mode, Name, Namespace,
    Settings, Space, Token,
};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::Client;
use lockkit_lab::proxy::{Counts, Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(300);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

fn alone(name: &str, mode: Mode) -> Claim {
    let space = if mode.limit().is_some() { Space::Semaphore } else { Space::Lock };
    let key = Key::new(Namespace::default(), space, Name::new(name).unwrap());
    Claim::new(key, mode, LONG, LONG, Arc::new(ClientIdentity::of_this_process()))
}

fn claim(name: &str) -> Arc<Claim> {
    Arc::new(alone(name, Mode::Exclusive))
}

fn permit(name: &str, limit: u32) -> Arc<Claim> {
    Arc::new(alone(name, Mode::Permits { permits: 1, limit }))
}

fn many(names: &str, n: usize) -> Vec<Arc<Claim>> {
    (0..n).map(|i| claim(&format!("{names}{i}"))).collect()
}

/// The operations of a batch.
#[derive(Clone, Debug, Default)]
struct Operations {
    releases: Vec<Arc<Claim>>,
    acquires: Vec<Acquire>,
}

impl Operations {
    fn batch(&self) -> Batch<'_> {
        Batch { releases: &self.releases, acquires: &self.acquires }
    }

    fn then(mut self, next: Self) -> Self {
        self.releases.extend(next.releases);
        self.acquires.extend(next.acquires);
        self
    }
}

/// Their results.
#[derive(Debug)]
struct Results {
    released: Vec<Result<Released, Error>>,
    acquired: Vec<Result<Acquisition, Error>>,
}

fn acquire(claim: &Arc<Claim>, patience: Patience) -> Operations {
    let acquires = vec![Acquire { claim: claim.clone(), patience }];
    Operations { acquires, ..Operations::default() }
}

fn acquires(claims: &[Arc<Claim>], patience: Patience) -> Operations {
    claims
        .iter()
        .map(|claim| acquire(claim, patience))
        .fold(Operations::default(), Operations::then)
}

fn waits(claims: &[Arc<Claim>]) -> Operations {
    acquires(claims, Patience::Wait)
}

fn releases(claims: &[Arc<Claim>]) -> Operations {
    Operations { releases: claims.to_vec(), ..Operations::default() }
}

async fn submit(driver: &EtcdDriver, operations: &Operations) -> Results {
    let outcome = driver.submit(operations.batch()).await.expect("etcd answers");
    Results {
        released: outcome.released.into_iter().map(sent_once).collect(),
        acquired: outcome.acquired.into_iter().map(sent_once).collect(),
    }
}

fn sent_once<T>(result: Result<Attempted<T>, BatchError>) -> Result<T, Error> {
    let (result, ambiguous) = match result {
        Ok(Attempted { result, ambiguous }) => (Ok(result), ambiguous),
        Err(BatchError { error, ambiguous, .. }) => (Err(error), ambiguous),
    };
    assert_eq!(ambiguous, 0);
    result
}

/// What was granted; all of it.
fn tokens(results: &Results) -> Vec<Token> {
    assert!(results.released.is_empty());
    results.acquired.iter().map(token).collect()
}

fn token(acquired: &Result<Acquisition, Error>) -> Token {
    match acquired {
        Ok(Acquisition::Granted(grant)) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

fn all_removed(results: &Results) -> bool {
    results.released.iter().all(|released| matches!(released, Ok(Released::Removed)))
}

async fn near() -> (Server, EtcdDriver) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = EtcdDriver::connect(&server.url()).await.unwrap();
    (server, driver)
}

/// A driver behind a proxy, its connection and its leases warm.
async fn warm() -> (Server, Proxy, EtcdDriver) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let first = claim("warm");
    driver.acquire(&first, Patience::Wait).await.unwrap();
    driver.renew_single(&first).await.unwrap();
    driver.release(&first).await.unwrap();
    (server, proxy, driver)
}

async fn counted(driver: &EtcdDriver, proxy: &Proxy, operations: &Operations) -> (Results, Counts) {
    proxy.reset();
    let results = submit(driver, operations).await;
    (results, proxy.counts())
}

#[tokio::test]
async fn a_batch_of_any_size_is_one_request_and_its_tokens_are_greater_than_those_before() {
    let (_server, proxy, driver) = warm().await;
    let most = driver.capabilities().batches.operations;
    for n in [1, 2, 40, most] {
        let (before, next) = (many("a", n), many("a", n));
        let (results, cost) = counted(&driver, &proxy, &waits(&before)).await;
        assert_eq!((cost.round_trips, cost.requests), (1, 1), "{n} acquires: {cost:?}");
        let first = tokens(&results);
        let (half, rest) = before.split_at(n.div_ceil(2));
        let others = many("b", n / 2);
        let mixed = releases(half).then(waits(&others));
        let (results, cost) = counted(&driver, &proxy, &mixed).await;
        assert_eq!((cost.round_trips, cost.requests), (1, 1), "{n} of both: {cost:?}");
        assert!(all_removed(&results), "{results:?}");
        assert!(results.acquired.iter().all(|acquired| token(acquired) > first[0]));
        for some in [rest, &others] {
            assert!(all_removed(&submit(&driver, &releases(some)).await));
        }
        let second = tokens(&submit(&driver, &waits(&next)).await);
        assert!(first.iter().zip(&second).all(|(first, second)| first < second));
        assert!(all_removed(&submit(&driver, &releases(&next)).await));
        let state = driver.inspect(&next[0].key).await.unwrap();
        assert!(state.queue.is_empty());
    }
}

#[tokio::test]
async fn each_operation_of_a_mixed_batch_has_its_own_result() {
    let (_server, proxy, driver) = warm().await;
    let (held, queue) = (claim("held"), claim("queue"));
    let (again, pool) = (claim("again"), permit("pool", 2));
    let before = [held.clone(), queue.clone(), again.clone(), pool.clone()];
    tokens(&submit(&driver, &waits(&before)).await);
    let by_hand = Arc::new(alone("hand", Mode::Exclusive).with_lifetime(Lifetime::Fixed));
    let operations = [
        releases(&[claim("free"), claim("held")]),
        acquire(&claim("held"), Patience::Try),
        acquire(&claim("free"), Patience::Try),
        acquire(&claim("queue"), Patience::Wait),
        acquire(&permit("pool", 3), Patience::Wait),
        acquire(&by_hand, Patience::Wait),
        acquire(&again, Patience::Wait),
        acquire(&Arc::new(alone("read", Mode::Shared)), Patience::Try),
    ];
    let operations = operations.into_iter().fold(Operations::default(), Operations::then);
    let Results { released, acquired } = submit(&driver, &operations).await;
    assert!(matches!(released[..], [Ok(Released::NoSuchLock), Ok(Released::NotFound)]));
    assert!(matches!(acquired[0], Ok(Acquisition::Busy)));
    assert!(matches!(acquired[2], Ok(Acquisition::Queued { ahead: 1 })));
    let refused = acquired[3].as_ref().unwrap_err();
    assert!(matches!(refused, Error::LimitMismatch { in_use: 2, asked: 3, .. }), "{refused:?}");
    for at in [1, 4, 5, 6] {
        token(&acquired[at]);
    }
    // A try that is refused costs no more than a read.
    tokens(&submit(&driver, &waits(&many("full", 20))).await);
    let tries = acquires(&many("full", 20), Patience::Try);
    let (results, cost) = counted(&driver, &proxy, &tries).await;
    assert!(results.acquired.iter().all(|result| matches!(result, Ok(Acquisition::Busy))));
    assert_eq!(cost.requests, 1, "{cost:?}");
}

/// etcd judges an acquire by the list as it was before the release that it travels with.
#[tokio::test]
async fn an_acquire_behind_the_release_of_its_list_holds() {
    let (_server, driver) = near().await;
    let shared = |name: &str| Arc::new(alone(name, Mode::Shared));
    type Make<'a> = &'a dyn Fn() -> Arc<Claim>;
    let kinds: [(Make<'_>, Make<'_>); 4] = [
        (&|| claim("a"), &|| claim("a")),
        (&|| claim("b"), &|| shared("b")),
        (&|| permit("c", 1), &|| permit("c", 1)),
        // The limit is that of who has left.
        (&|| permit("d", 1), &|| permit("d", 5)),
    ];
    for patience in [Patience::Wait, Patience::Try] {
        for (before, after) in kinds {
            let (holder, next) = (before(), after());
            let first = tokens(&submit(&driver, &waits(std::slice::from_ref(&holder))).await);
            let both = releases(&[holder]).then(acquire(&next, patience));
            let results = submit(&driver, &both).await;
            assert!(all_removed(&results), "{results:?}");
            assert!(token(&results.acquired[0]) > first[0]);
            assert!(matches!(driver.renew_single(&next).await, Ok(Renewal::Holds(_))));
            assert!(all_removed(&submit(&driver, &releases(&[next])).await));
        }
    }
}

#[tokio::test]
async fn those_whose_holders_leave_together_are_all_woken() {
    let (server, driver) = near().await;
    let theirs = EtcdDriver::connect(&server.url()).await.unwrap();
    let (holders, waiters) = (many("a", 40), many("a", 40));
    let before = tokens(&submit(&driver, &waits(&holders)).await);
    let queued = submit(&theirs, &waits(&waiters)).await;
    let queued = queued.acquired.iter();
    assert!({ queued }.all(|result| matches!(result, Ok(Acquisition::Queued { ahead: 1 }))));
    let turns = join_all(waiters.iter().map(|waiter| theirs.granted(waiter)));
    let leave = releases(&holders);
    let together = async { tokio::join!(turns, submit(&driver, &leave)) };
    let (turns, left) = soon("all turns", together).await;
    assert!(all_removed(&left));
    for (turn, before) in turns.into_iter().zip(before) {
        assert!(turn.unwrap().token > before);
    }
    assert!(all_removed(&submit(&theirs, &releases(&waiters)).await));
}

/// As many operations as fit, of the longest names, with all conditions that there are.
#[tokio::test]
async fn the_longest_batch_passes() {
    let (_server, proxy, driver) = warm().await;
    let limits = driver.capabilities().batches;
    let pool = |n: usize| permit(&format!("{n:/>512}"), 3);
    let fit = limits.operations.min(limits.bytes / pool(0).weight());
    assert!(fit > 30, "{fit}");
    let pools: Vec<_> = (0..fit).map(pool).collect();
    driver.resize(&pools[1].key, SetLimit::To(3)).await.unwrap();
    let (results, cost) = counted(&driver, &proxy, &waits(&pools)).await;
    tokens(&results);
    assert_eq!(cost.requests, 1);
    assert!(all_removed(&submit(&driver, &releases(&pools)).await));
    // And as many as may be, of short ones, none of which finds an empty list.
    let short = |_| (0..limits.operations).map(|n| permit(&format!("s{n}"), 9)).collect::<Vec<_>>();
    let (before, beside) = (short(()), short(()));
    assert!(limits.bytes >= before.iter().map(|claim| claim.weight()).sum());
    tokens(&submit(&driver, &waits(&before)).await);
    tokens(&submit(&driver, &waits(&beside)).await);
}

/// What etcd refuses is refused as a whole and for certain; core finds out which operation it was.
#[tokio::test]
async fn an_operation_that_etcd_does_not_take_spoils_no_other() {
    let (_server, driver) = near().await;
    let note: Arc<str> = "x".repeat(2 << 20).into();
    let huge = Arc::new(alone("huge", Mode::Exclusive).with_note(Some(note)));
    let (one, huge) = (acquire(&claim("a"), Patience::Try), acquire(&huge, Patience::Try));
    for operations in [one.clone().then(huge.clone()), huge] {
        let refused = driver.submit(operations.batch()).await.unwrap_err();
        assert!(!refused.error.is_retryable(), "{refused}");
        assert_eq!(refused.ambiguous, 0, "the server's refusal is certain");
    }
    assert!(driver.inspect(&claim("a").key).await.unwrap().queue.is_empty());
    tokens(&submit(&driver, &one).await);
}

#[tokio::test]
async fn an_error_says_that_a_request_got_no_answer() {
    let (_server, proxy, driver) = warm().await;
    proxy.fault(ProxyFault::BlackHole, When::Request(1));
    let operations = waits(&many("a", 2));
    let outcome = soon("an error", driver.submit(operations.batch())).await;
    let error = outcome.expect_err("no answer comes");
    assert!(error.error.is_retryable() && error.ambiguous == 1, "{error:?}");
}

/// Where no server can be reached nothing is sent.
#[tokio::test]
async fn an_error_of_a_batch_that_was_never_sent_is_certain() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::connect([nowhere.local_addr().unwrap().to_string()], None).await;
    let driver = EtcdDriver::with_client(client.unwrap(), "");
    drop(nowhere);
    let operations = waits(&[claim("a")]);
    let outcome = soon("an error", driver.submit(operations.batch())).await;
    let error = outcome.expect_err("there is no server");
    assert!(error.error.is_retryable() && error.ambiguous == 0, "{error:?}");
}

#[tokio::test]
async fn a_lease_that_has_ended_costs_those_who_name_it_a_new_one_and_others_nothing() {
    let (server, driver) = near().await;
    let short = |name: &str| {
        let ttl = Duration::from_secs(77);
        let Claim { key, mode, identity, .. } = alone(name, Mode::Exclusive);
        Arc::new(Claim::new(key, mode, ttl, ttl, identity))
    };
    let (lives, dies) = (claim("lives"), short("dies"));
    tokens(&submit(&driver, &waits(&[lives.clone(), dies.clone()])).await);
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let mut dead = None;
    for lease in client.leases().await.unwrap().leases() {
        let told = client.lease_time_to_live(lease.id(), None).await.unwrap();
        if told.granted_ttl() == 77 {
            dead = Some(lease.id());
        }
    }
    client.lease_revoke(dead.expect("it has a lease of its ttl")).await.unwrap();
    let by_hand = Arc::new(alone("hand", Mode::Exclusive).with_lifetime(Lifetime::Fixed));
    let five = waits(&[claim("a"), short("b"), by_hand, claim("c"), short("d")]);
    tokens(&soon("an answer", submit(&driver, &five)).await);
    assert!(matches!(driver.renew_single(&lives).await, Ok(Renewal::Holds(_))));
    // No client has to leave the lease that lives: there is it, the new one, and that of the one that
    // is renewed by hand (its first one is taken back).
    soon("the end of the spare lease", async {
        while client.leases().await.unwrap().leases().len() != 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The first attempt was carried out, its answer lost.
#[tokio::test]
async fn all_operations_of_a_batch_that_was_sent_twice_say_so() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let both = format!("etcd://{},{}", proxy.addr(), server.addr());
    let driver = EtcdDriver::connect(&both).await.unwrap();
    let held = many("held", 3);
    tokens(&submit(&driver, &waits(&held)).await);
    let came = many("came", 3);
    let operations = releases(&held).then(waits(&came));
    proxy.fault(ProxyFault::Cut, When::Answer(1));
    let outcome = soon("an answer", driver.submit(operations.batch())).await.unwrap();
    for released in outcome.released {
        let Attempted { result, ambiguous } = released.unwrap();
        assert_eq!((result, ambiguous), (Released::NoSuchLock, 1));
    }
    for acquired in outcome.acquired {
        let Attempted { result, ambiguous } = acquired.unwrap();
        assert!(matches!(result, Acquisition::Granted(_)) && ambiguous == 1, "{result:?}");
    }
    for one in &came {
        assert_eq!(driver.inspect(&one.key).await.unwrap().queue.len(), 1);
        assert!(matches!(driver.renew_single(one).await, Ok(Renewal::Holds(_))));
    }
}

#[tokio::test]
async fn tasks_that_lock_at_once_share_requests() {
    let (_server, proxy, driver) = warm().await;
    let settings = Settings::default().ttl(LONG).wait_ttl(LONG);
    let locks = LockManager::with(Arc::new(driver), settings).unwrap();
    locks.mutex("first").lock().await.unwrap().release().await.unwrap();
    proxy.reset();
    let guards = join_all((0..64).map(|n| {
        let mutex = locks.mutex(format!("n{n}"));
        async move { mutex.lock().await.unwrap() }
    }));
    let guards = guards.await;
    let acquires = proxy.counts().requests;
    assert!(acquires <= 8, "{acquires} requests");
    join_all(guards.into_iter().map(|guard| async { guard.release().await.unwrap() })).await;
    let releases = proxy.counts().requests - acquires;
    assert!(releases <= 8, "{releases} requests");
}

/// A result without what the backends may differ in.
fn comparable(acquired: &Result<Acquisition, Error>) -> String {
    match acquired {
        Ok(Acquisition::Granted(_)) => "granted".into(),
        Ok(other) => format!("{other:?}"),
        Err(Error::LimitMismatch { in_use, asked, .. }) => format!("{in_use} and not {asked}"),
        Err(other) => panic!("{other}"),
    }
}

/// The claims of a queue, and whether each holds.
fn claims_of(state: &LockState) -> Vec<(Option<String>, bool)> {
    let one = |s: &lockkit_core::state::ClaimState| (s.note.clone(), s.held_for.is_some());
    state.queue.iter().map(one).collect()
}

/// Random batches over few queues, compared with the memory driver, which carries out one operation
/// after the other.
#[tokio::test]
async fn a_batch_does_what_its_operations_do_one_by_one() {
    let (_server, ours) = near().await;
    let model = MemoryDriver::new();
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut number = 0;
        let (mut in_line, mut ended): (Vec<Arc<Claim>>, Vec<_>) = Default::default();
        for round in 0..60 {
            in_line.shuffle(&mut random);
            let leaving =
                in_line.split_off(in_line.len() - random.random_range(0..=in_line.len().min(4)));
            let mut operations = releases(&leaving);
            ended.shuffle(&mut random);
            operations.releases.extend(ended.iter().take(1).cloned());
            for list in (0..5).filter(|_| random.random_bool(0.7)).collect::<Vec<_>>() {
                number += 1;
                let new = Arc::new(on(seed, list, number, &mut random));
                let again = in_line.iter().find(|c| c.key == new.key).filter(|_| number % 5 == 0);
                let patience = [Patience::Wait, Patience::Try][random.random_range(0..2)];
                operations = operations.then(acquire(again.unwrap_or(&new), patience));
            }
            let here = submit(&ours, &operations).await;
            let there = model.submit(operations.batch()).await.unwrap();
            let released = there.released.into_iter().map(|one| sent_once(one).unwrap());
            let released: Vec<_> = released.collect();
            let removed: Vec<_> = here.released.into_iter().map(Result::unwrap).collect();
            assert_eq!(removed, released, "batch {round} of seed {seed}: {operations:#?}");
            let acquired: Vec<_> = there.acquired.into_iter().map(sent_once).collect();
            let compared = |all: &[_]| all.iter().map(comparable).collect::<Vec<_>>();
            let (ours_now, model_now) = (compared(&here.acquired), compared(&acquired));
            assert_eq!(ours_now, model_now, "batch {round} of seed {seed}: {operations:#?}");
            let gone = operations.releases.iter().map(|claim| (claim, false));
            let is_in = |one: &Result<Acquisition, Error>| {
                matches!(one, Ok(Acquisition::Granted(_) | Acquisition::Queued { .. }))
            };
            let came = operations.acquires.iter().zip(&here.acquired);
            let came = came.map(|(acquire, result)| (&acquire.claim, is_in(result)));
            for (claim, is_in) in gone.chain(came) {
                in_line.retain(|one| one.id != claim.id);
                let list = if is_in { &mut in_line } else { &mut ended };
                list.push(claim.clone());
            }
            for list in 0..5 {
                let key = on(seed, list, 0, &mut random).key;
                let (here, there) = (ours.inspect(&key).await, model.inspect(&key).await);
                let (here, there) = (claims_of(&here.unwrap()), claims_of(&there.unwrap()));
                assert_eq!(here, there, "queue {list} after batch {round} of seed {seed}");
            }
        }
    }
}

/// A claim of a random kind on a list; its number is its note.
fn on(seed: u64, list: usize, number: usize, random: &mut StdRng) -> Claim {
    let mode = match (list, random.random_range(0..6)) {
        (3.., 0) => Mode::Permits { permits: 1, limit: 4 },
        (3.., n) => Mode::Permits { permits: 1 + n / 4, limit: 3 },
        (_, 0..3) => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let note: Arc<str> = number.to_string().into();
    alone(&format!("{seed}/{list}"), mode).with_note(Some(note))
}

//! Acquires and releases that travel together: what they cost, that each is answered as if it
//! travelled alone, and what one of them spoils.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{
    Acquisition, Attempted, LockDriver, Patience, Released, Renewal, Reply, SetLimit, Step,
};
use lockkit_core::state::LockState;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, Lifetime, LockManager, MemoryDriver, Mode, Name, Namespace,
    Settings, Space, Token,
};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::Client;
use lockkit_lab::proxy::{Counts, Fault, Protocol, When};
use lockkit_lab::{Kind, Proxy, Server};
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

fn acquire(claim: &Arc<Claim>, patience: Patience) -> Step {
    Step::Acquire { claim: claim.clone(), patience }
}

fn waits(claims: &[Arc<Claim>]) -> Vec<Step> {
    claims.iter().map(|claim| acquire(claim, Patience::Wait)).collect()
}

fn releases(claims: &[Arc<Claim>]) -> Vec<Step> {
    claims.iter().map(|claim| Step::Release { claim: claim.clone() }).collect()
}

async fn carry(driver: &EtcdDriver, steps: &[Step]) -> Vec<Result<Reply, Error>> {
    let replies = driver.carry(steps).await.expect("etcd answers");
    let answer = |reply: Attempted<Reply>| {
        assert_eq!(reply.ambiguous, 0);
        reply.result
    };
    replies.into_iter().map(|reply| reply.map(answer)).collect()
}

/// What was granted; all of it.
fn tokens(replies: &[Result<Reply, Error>]) -> Vec<Token> {
    let token = |reply: &Result<Reply, Error>| match reply {
        Ok(Reply::Acquired(Acquisition::Granted(grant))) => grant.token,
        other => panic!("it is free: {other:?}"),
    };
    replies.iter().map(token).collect()
}

fn all_removed(replies: &[Result<Reply, Error>]) -> bool {
    replies.iter().all(|reply| matches!(reply, Ok(Reply::Released(Released::Removed))))
}

async fn near() -> (Server, EtcdDriver) {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let driver = EtcdDriver::connect(&server.url()).await.unwrap();
    (server, driver)
}

/// A driver behind a proxy, its connection and its leases warm.
async fn warm() -> (Server, Proxy, EtcdDriver) {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let first = claim("warm");
    driver.acquire(&first, Patience::Wait).await.unwrap();
    driver.renew_single(&first).await.unwrap();
    driver.release(&first).await.unwrap();
    (server, proxy, driver)
}

async fn counted(
    driver: &EtcdDriver,
    proxy: &Proxy,
    steps: &[Step],
) -> (Vec<Result<Reply, Error>>, Counts) {
    proxy.reset();
    let replies = carry(driver, steps).await;
    (replies, proxy.counts())
}

#[tokio::test]
async fn a_flight_of_any_size_is_one_request_and_its_tokens_are_greater_than_those_before() {
    let (_server, proxy, driver) = warm().await;
    let most = driver.capabilities().flights.steps;
    for n in [1, 2, 40, most] {
        let (before, next) = (many("a", n), many("a", n));
        let (replies, cost) = counted(&driver, &proxy, &waits(&before)).await;
        assert_eq!((cost.round_trips, cost.requests), (1, 1), "{n} acquires: {cost:?}");
        let first = tokens(&replies);
        let (half, rest) = before.split_at(n.div_ceil(2));
        let mut mixed = releases(half);
        let others = many("b", n / 2);
        mixed.extend(waits(&others));
        let (replies, cost) = counted(&driver, &proxy, &mixed).await;
        assert_eq!((cost.round_trips, cost.requests), (1, 1), "{n} of both: {cost:?}");
        let (left, came) = replies.split_at(half.len());
        assert!(all_removed(left), "{replies:?}");
        assert!(tokens(came).iter().all(|token| *token > first[0]));
        for some in [rest, &others] {
            assert!(all_removed(&carry(&driver, &releases(some)).await));
        }
        let second = tokens(&carry(&driver, &waits(&next)).await);
        assert!(first.iter().zip(&second).all(|(first, second)| first < second));
        assert!(all_removed(&carry(&driver, &releases(&next)).await));
        let state = driver.inspect(&next[0].key).await.unwrap();
        assert!(state.line.is_empty());
    }
}

#[tokio::test]
async fn each_step_of_a_mixed_flight_has_its_own_answer() {
    let (_server, proxy, driver) = warm().await;
    let (held, queue) = (claim("held"), claim("queue"));
    let (again, pool) = (claim("again"), permit("pool", 2));
    let before = [held.clone(), queue.clone(), again.clone(), pool.clone()];
    tokens(&carry(&driver, &waits(&before)).await);
    let by_hand = Arc::new(alone("hand", Mode::Exclusive).with_lifetime(Lifetime::Fixed));
    let (free, behind) = (claim("free"), claim("queue"));
    let steps = [
        Step::Release { claim: claim("nobody") },
        Step::Release { claim: claim("held") },
        acquire(&claim("held"), Patience::Try),
        acquire(&free, Patience::Try),
        acquire(&behind, Patience::Wait),
        acquire(&permit("pool", 3), Patience::Wait),
        acquire(&by_hand, Patience::Wait),
        acquire(&again, Patience::Wait),
        acquire(&Arc::new(alone("read", Mode::Shared)), Patience::Try),
    ];
    let replies = carry(&driver, &steps).await;
    let expected = |at: usize, reply: Reply| assert_eq!(*replies[at].as_ref().unwrap(), reply);
    expected(0, Reply::Released(Released::NoSuchLock));
    expected(1, Reply::Released(Released::NotFound));
    expected(2, Reply::Acquired(Acquisition::Busy));
    expected(4, Reply::Acquired(Acquisition::Queued { ahead: 1 }));
    let refused = replies[5].as_ref().unwrap_err();
    assert!(matches!(refused, Error::LimitMismatch { in_use: 2, asked: 3, .. }), "{refused:?}");
    for at in [3, 6, 7, 8] {
        tokens(&replies[at..=at].iter().map(copy).collect::<Vec<_>>());
    }
    // Those who beat nobody cost no more than a look.
    let tries: Vec<_> = many("full", 20).iter().map(|c| acquire(c, Patience::Try)).collect();
    tokens(&carry(&driver, &waits(&many("full", 20))).await);
    let (replies, cost) = counted(&driver, &proxy, &tries).await;
    assert!(replies.iter().all(|r| matches!(r, Ok(Reply::Acquired(Acquisition::Busy)))));
    assert_eq!(cost.requests, 1, "{cost:?}");
}

fn copy(reply: &Result<Reply, Error>) -> Result<Reply, Error> {
    Ok(*reply.as_ref().expect("it is answered"))
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
            let first = tokens(&carry(&driver, &waits(std::slice::from_ref(&holder))).await);
            let steps = [Step::Release { claim: holder }, acquire(&next, patience)];
            let replies = carry(&driver, &steps).await;
            assert!(all_removed(&replies[..1]), "{replies:?}");
            assert!(tokens(&replies[1..]) > first);
            assert!(matches!(driver.renew_single(&next).await, Ok(Renewal::Holds(_))));
            assert!(all_removed(&carry(&driver, &releases(&[next])).await));
        }
    }
}

#[tokio::test]
async fn those_whose_holders_leave_together_are_all_woken() {
    let (server, driver) = near().await;
    let theirs = EtcdDriver::connect(&server.url()).await.unwrap();
    let (holders, waiters) = (many("a", 40), many("a", 40));
    let before = tokens(&carry(&driver, &waits(&holders)).await);
    let queued = carry(&theirs, &waits(&waiters)).await;
    let in_line = Reply::Acquired(Acquisition::Queued { ahead: 1 });
    assert!(queued.iter().all(|reply| matches!(reply, Ok(reply) if *reply == in_line)));
    let turns = join_all(waiters.iter().map(|waiter| theirs.granted(waiter)));
    let leave = releases(&holders);
    let together = async { tokio::join!(turns, carry(&driver, &leave)) };
    let (turns, left) = soon("all turns", together).await;
    assert!(all_removed(&left));
    for (turn, before) in turns.into_iter().zip(before) {
        assert!(turn.unwrap().token > before);
    }
    assert!(all_removed(&carry(&theirs, &releases(&waiters)).await));
}

/// As many steps as fit, of the longest names, with all conditions that there are.
#[tokio::test]
async fn the_longest_flight_passes() {
    let (_server, proxy, driver) = warm().await;
    let flights = driver.capabilities().flights;
    let pool = |n: usize| permit(&format!("{n:/>512}"), 3);
    let fit = flights.steps.min(flights.bytes / pool(0).weight());
    assert!(fit > 30, "{fit}");
    let pools: Vec<_> = (0..fit).map(pool).collect();
    driver.resize(&pools[1].key, SetLimit::To(3)).await.unwrap();
    let (replies, cost) = counted(&driver, &proxy, &waits(&pools)).await;
    tokens(&replies);
    assert_eq!(cost.requests, 1);
    assert!(all_removed(&carry(&driver, &releases(&pools)).await));
    // And as many as may be, of short ones, none of which finds an empty list.
    let short = |_| (0..flights.steps).map(|n| permit(&format!("s{n}"), 9)).collect::<Vec<_>>();
    let (before, beside) = (short(()), short(()));
    assert!(flights.bytes >= before.iter().map(|claim| claim.weight()).sum());
    tokens(&carry(&driver, &waits(&before)).await);
    tokens(&carry(&driver, &waits(&beside)).await);
}

/// What etcd refuses is refused as a whole, for good; it is core that finds out which step it was.
#[tokio::test]
async fn a_step_that_etcd_does_not_take_spoils_no_other() {
    let (_server, driver) = near().await;
    let note: Arc<str> = "x".repeat(2 << 20).into();
    let huge = Arc::new(alone("huge", Mode::Exclusive).with_note(Some(note)));
    let steps = [acquire(&claim("a"), Patience::Try), acquire(&huge, Patience::Try)];
    let refused = driver.carry(&steps).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
    assert!(driver.inspect(&claim("a").key).await.unwrap().line.is_empty());
    assert!(!driver.carry(&steps[1..]).await.unwrap_err().is_retryable());
    tokens(&carry(&driver, &steps[..1]).await);
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
    tokens(&carry(&driver, &waits(&[lives.clone(), dies.clone()])).await);
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
    let steps = waits(&[claim("a"), short("b"), by_hand, claim("c"), short("d")]);
    tokens(&soon("an answer", carry(&driver, &steps)).await);
    assert!(matches!(driver.renew_single(&lives).await, Ok(Renewal::Holds(_))));
    // Nobody has to leave the lease that lives: there is it, the new one, and that of the one that
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
async fn all_steps_of_a_flight_that_was_sent_twice_say_so() {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let both = format!("etcd://{},{}", proxy.addr(), server.addr());
    let driver = EtcdDriver::connect(&both).await.unwrap();
    let held = many("held", 3);
    tokens(&carry(&driver, &waits(&held)).await);
    let came = many("came", 3);
    let steps: Vec<_> = releases(&held).into_iter().chain(waits(&came)).collect();
    proxy.fault(Fault::Cut, When::Answer(1));
    let replies = soon("an answer", driver.carry(&steps)).await.unwrap();
    for (at, reply) in replies.into_iter().enumerate() {
        let Attempted { result: answer, ambiguous } = reply.unwrap();
        assert!(ambiguous > 0);
        match answer {
            Reply::Released(released) => assert_eq!(released, Released::NoSuchLock),
            Reply::Acquired(Acquisition::Granted(_)) => assert!(at >= 3),
            other => panic!("it is free: {other:?}"),
        }
    }
    for one in &came {
        assert_eq!(driver.inspect(&one.key).await.unwrap().line.len(), 1);
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

/// A reply without what the backends may differ in.
fn told(reply: &Result<Attempted<Reply>, Error>) -> String {
    match reply {
        Ok(Attempted { result: Reply::Acquired(Acquisition::Granted(_)), .. }) => "granted".into(),
        Ok(Attempted { result: answer, .. }) => format!("{answer:?}"),
        Err(Error::LimitMismatch { in_use, asked, .. }) => format!("{in_use} and not {asked}"),
        Err(other) => panic!("{other}"),
    }
}

/// Who stands in a list, and who holds.
fn shown(state: &LockState) -> Vec<(Option<String>, bool)> {
    let one = |s: &lockkit_core::state::ClaimState| (s.note.clone(), s.held_for.is_some());
    state.line.iter().map(one).collect()
}

/// Random flights over few lists, beside the memory driver, which carries one step after the other.
#[tokio::test]
async fn a_flight_does_what_its_steps_do_one_by_one() {
    let (_server, ours) = near().await;
    let model = MemoryDriver::new();
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut number = 0;
        let (mut in_line, mut ended): (Vec<Arc<Claim>>, Vec<_>) = Default::default();
        for flight in 0..60 {
            in_line.shuffle(&mut random);
            let leaving =
                in_line.split_off(in_line.len() - random.random_range(0..=in_line.len().min(4)));
            let mut steps = releases(&leaving);
            ended.shuffle(&mut random);
            steps.extend(releases(&ended[..ended.len().min(1)]));
            for list in (0..5).filter(|_| random.random_bool(0.7)).collect::<Vec<_>>() {
                number += 1;
                let new = Arc::new(on(seed, list, number, &mut random));
                let again = in_line.iter().find(|c| c.key == new.key).filter(|_| number % 5 == 0);
                let patience = [Patience::Wait, Patience::Try][random.random_range(0..2)];
                steps.push(acquire(again.unwrap_or(&new), patience));
            }
            let (here, there) = (ours.carry(&steps).await, model.carry(&steps).await);
            let (here, there) = (here.unwrap(), there.unwrap());
            let tell = |replies: &[_]| replies.iter().map(told).collect::<Vec<_>>();
            assert_eq!(tell(&here), tell(&there), "flight {flight} of seed {seed}: {steps:#?}");
            for (step, reply) in steps.iter().zip(here) {
                let claim = step.claim();
                in_line.retain(|one| one.id != claim.id);
                match reply.map(|reply| reply.result) {
                    Ok(Reply::Acquired(Acquisition::Granted(_) | Acquisition::Queued { .. })) => {
                        in_line.push(claim.clone());
                    }
                    _ => ended.push(claim.clone()),
                }
            }
            for list in 0..5 {
                let key = on(seed, list, 0, &mut random).key;
                let (here, there) = (ours.inspect(&key).await, model.inspect(&key).await);
                let (here, there) = (shown(&here.unwrap()), shown(&there.unwrap()));
                assert_eq!(here, there, "list {list} after flight {flight} of seed {seed}");
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

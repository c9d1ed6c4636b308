//! What the conformance suite does not see: keys, commands and messages of a single server, and
//! what the driver does while the server is away, loses its data or forgets its scripts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Renewal};
use lockkit_core::state::Severity;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Space, Token,
};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Data, Kind, Server};
use lockkit_redis::{RedisDriver, RedisOptions};

const LONG: Duration = Duration::from_secs(60);

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    let name = Name::new(name).unwrap();
    let key = Key::new(Namespace::default(), mode.space(), name);
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, mode, LONG, LONG, identity))
}

async fn start() -> (Server, RedisDriver) {
    let server = Server::start(Kind::Redis).await.unwrap();
    let options = RedisOptions::default().timeout(LONG);
    let driver = options.connect(&server.url()).await.unwrap();
    (server, driver)
}

async fn ask(server: &Server, words: &[&str]) -> RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

async fn keys(server: &Server) -> Vec<String> {
    let RespReply::Array(keys) = ask(server, &["KEYS", "*"]).await else { panic!("KEYS") };
    let mut keys: Vec<_> = keys.iter().map(|key| key.text().to_owned()).collect();
    keys.retain(|key| key != "lockkit:format");
    keys.sort();
    keys
}

async fn take(driver: &RedisDriver, claim: &Arc<Claim>) -> Token {
    match driver.acquire(claim, Patience::Try).await.unwrap().result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lock_is_one_key_while_nobody_waits_and_none_after_its_use() {
    let (server, driver) = start().await;
    let (first, second) = (claim("a", Mode::Exclusive), claim("a", Mode::Exclusive));
    take(&driver, &first).await;
    let held = keys(&server).await;
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(held[0].starts_with("lockkit:lock:{") && held[0].ends_with("}::a"), "{held:?}");
    assert!(held[1].starts_with("lockkit:tokens:{"), "{held:?}");
    driver.acquire(&second, Patience::Wait).await.unwrap();
    assert_eq!(keys(&server).await, held);
    for claim in [&first, &second] {
        assert_eq!(driver.release(claim).await.unwrap(), Released::Removed);
    }
    assert_eq!(keys(&server).await, held[1..]);
}

#[tokio::test]
async fn while_somebody_waits_the_lock_does_not_vanish_when_its_lease_ends() {
    let (_server, driver) = start().await;
    let mut holder = Claim::clone(&claim("a", Mode::Exclusive));
    holder.hold_ttl = Duration::from_millis(100);
    let (waiter, newcomer) = (claim("a", Mode::Exclusive), claim("a", Mode::Exclusive));
    take(&driver, &Arc::new(holder)).await;
    driver.acquire(&waiter, Patience::Wait).await.unwrap();
    // Nobody else looks until the newcomer does, long after the lease ended.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(driver.acquire(&newcomer, Patience::Try).await.unwrap().result, Acquisition::Busy);
    let granted = tokio::time::timeout(LONG, driver.granted(&waiter)).await;
    granted.expect("told at once").unwrap();
}

#[tokio::test]
async fn tokens_grow_across_flushall_and_a_restart_without_data() {
    let (server, driver) = start().await;
    let mut highest = None;
    let driver = Arc::new(driver);
    for round in 0..6 {
        let claim = claim("a", Mode::Exclusive);
        let another = RedisDriver::connect(&server.url()).await.unwrap();
        let token = take(if round % 2 == 0 { &driver } else { &another }, &claim).await;
        assert!(Some(token) > highest, "{token} after {highest:?} in round {round}");
        highest = Some(token);
        match round {
            0 | 1 => drop(ask(&server, &["FLUSHALL"]).await),
            2 | 3 => server.restart(Data::Lose).await.unwrap(),
            _ => drop(driver.release(&claim).await.unwrap()),
        }
    }
}

#[tokio::test]
async fn a_counter_that_went_back_never_answers_less_than_the_client_has_seen() {
    let (server, driver) = start().await;
    let first = claim("a", Mode::Exclusive);
    let token = take(&driver, &first).await;
    let far = Token::new(token.get() + 3_600_000_000).unwrap();
    assert!(
        matches!(driver.raise(&first, far).await.unwrap(), Renewal::Holds(g) if g.token == far)
    );
    driver.release(&first).await.unwrap();
    let second = claim("a", Mode::Exclusive);
    let seen = take(&driver, &second).await;
    assert!(seen > far);
    ask(&server, &["FLUSHALL"]).await;
    assert!(take(&driver, &claim("a", Mode::Exclusive)).await > seen);
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let (server, driver) = start().await;
    let claim = claim("a", Mode::Exclusive);
    for _ in 0..2 {
        take(&driver, &claim).await;
        ask(&server, &["SCRIPT", "FLUSH"]).await;
        assert_eq!(driver.release(&claim).await.unwrap(), Released::Removed);
    }
}

#[tokio::test]
async fn a_server_that_is_away_costs_a_try_no_more_than_its_time_limit() {
    let (server, patient) = start().await;
    let options = RedisOptions::default().timeout(Duration::from_millis(300));
    let driver = options.connect(&server.url()).await.unwrap();
    let held = claim("a", Mode::Exclusive);
    take(&patient, &held).await;
    server.freeze().await;
    let begun = Instant::now();
    let tries = (0..8).map(|_| async {
        let error = driver.acquire(&claim("b", Mode::Exclusive), Patience::Try).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    });
    futures_util::future::join_all(tries).await;
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    server.thaw();
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(patient.release(&held).await.unwrap(), Released::Removed, "reconnected by itself");
}

#[tokio::test]
async fn a_waiter_gets_its_turn_although_server_and_subscription_were_gone() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let locks = LockManager::new(RedisDriver::connect(&server.url()).await.unwrap());
    let others = LockManager::new(RedisDriver::connect(&server.url()).await.unwrap());
    let held = locks.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(async move { others.mutex("a").lock().await });
    let key = locks.inspect(Space::Lock, "a");
    drop(key.await.unwrap());
    while locks.inspect(Space::Lock, "a").await.unwrap().queue.len() < 2 {
        tokio::task::yield_now().await;
    }
    server.restart(Data::Keep).await.unwrap();
    drop(held);
    let turn = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    drop(turn.expect("its turn came").unwrap().unwrap());
}

#[tokio::test]
async fn a_thousand_waiters_wait_on_one_subscription_and_a_release_sends_one_message() {
    let (server, driver) = start().await;
    // A release by the client that waits needs no message.
    let other = RedisDriver::connect(&server.url()).await.unwrap();
    let warm = [claim("warm", Mode::Exclusive), claim("warm", Mode::Exclusive)];
    take(&other, &warm[0]).await;
    other.acquire(&warm[1], Patience::Wait).await.unwrap();
    other.release(&warm[0]).await.unwrap(); // the script is known
    let holder = claim("a", Mode::Exclusive);
    take(&other, &holder).await;
    let waiters: Vec<_> = (0..1000).map(|_| claim("a", Mode::Exclusive)).collect();
    for waiter in &waiters {
        driver.acquire(waiter, Patience::Wait).await.unwrap();
    }
    let RespReply::Array(channels) = ask(&server, &["PUBSUB", "CHANNELS"]).await else { panic!() };
    let ours = channels.iter().filter(|c| c.text().starts_with("lockkit:wake:")).count();
    assert!(ours <= 3, "{channels:?}"); // the two drivers, and that of `start`
    ask(&server, &["CONFIG", "RESETSTAT"]).await;
    other.release(&holder).await.unwrap();
    let granted = tokio::time::timeout(LONG, driver.granted(&waiters[0])).await;
    granted.expect("told").unwrap();
    let stats = ask(&server, &["INFO", "commandstats"]).await.text().to_owned();
    let published = stats.lines().find(|line| line.starts_with("cmdstat_publish:"));
    assert!(published.is_some_and(|line| line.contains("calls=1,")), "{stats}");
    let scripts = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    assert!(scripts.is_some_and(|line| line.contains("calls=1,")), "{stats}");
}

#[tokio::test]
async fn ten_thousand_claims_are_renewed_in_one_flight() {
    let (server, driver) = start().await;
    let claims: Vec<_> = (0..10_000).map(|i| claim(&format!("{i}"), Mode::Exclusive)).collect();
    let taking = claims.iter().map(|claim| take(&driver, claim));
    futures_util::future::join_all(taking).await;
    ask(&server, &["CONFIG", "RESETSTAT"]).await;
    let renewed = driver.renew(&claims).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Ok(Renewal::Holds(_)))));
    let stats = ask(&server, &["INFO", "commandstats"]).await.text().to_owned();
    assert!(stats.contains("cmdstat_evalsha:calls=100,"), "{stats}");
}

#[tokio::test]
async fn a_grant_counts_only_when_enough_replicas_have_it() {
    let master = Server::start(Kind::Redis).await.unwrap();
    let replica = Server::start(Kind::Redis).await.unwrap();
    let port = master.addr().port().to_string();
    ask(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
    while !ask(&master, &["INFO", "replication"]).await.text().contains("state=online") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let connect = async |timeout: &str| {
        let url = format!("{}?min_replicas=1&timeout={timeout}", master.url());
        RedisDriver::connect(&url).await.unwrap()
    };
    let patient = connect("60s").await;
    let claim_ = claim("a", Mode::Exclusive);
    take(&patient, &claim_).await;
    patient.release(&claim_).await.unwrap();
    replica.freeze().await;
    // A stall of this machine may show as a time limit of another kind; then it is asked again.
    let driver = connect("1s").await;
    loop {
        let error = driver.acquire(&claim_, Patience::Try).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        if error.to_string().contains("replicas") {
            break;
        }
    }
    let state = patient.inspect(&claim_.key).await.unwrap();
    assert!(state.is_free(), "given back: {state:?}");
    replica.thaw();
    let error = RedisOptions::default().strict(true).connect(&replica.url()).await.unwrap_err();
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn what_may_drop_locks_is_a_finding_and_refused_when_strict() {
    let (server, driver) = start().await;
    assert!(driver.health().await.unwrap().findings.iter().all(|f| f.severity == Severity::Note));
    ask(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let findings = driver.health().await.unwrap().findings;
    assert!(findings[0].what.contains("allkeys-lru"), "{findings:?}");
    assert_eq!(findings[0].severity, Severity::Problem);
    let strict = RedisDriver::connect(&format!("{}?strict", server.url())).await;
    assert!(matches!(strict, Err(Error::Config(why)) if why.contains("allkeys-lru")));
}

#[tokio::test]
async fn a_wrong_password_is_a_lasting_error_that_does_not_show_it() {
    let (server, _driver) = start().await;
    ask(&server, &["CONFIG", "SET", "requirepass", "right"]).await;
    let url = |password| format!("redis://:{password}@{}", server.addr());
    let error = RedisDriver::connect(&url("wr0ng")).await.unwrap_err();
    assert!(!error.is_retryable() && !error.to_string().contains("wr0ng"), "{error}");
    RedisDriver::connect(&url("right")).await.unwrap();
}

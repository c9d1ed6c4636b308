//! Evidence of real servers: another run, older data, clocks that are stepped and that run fast; and what
//! guards make of it.

use std::sync::Arc;
use std::time::Duration;

use lockkit::driver::{Evidence, LockDriver, Patience, Renewal, Renewed};
use lockkit::etcd::EtcdDriver;
use lockkit::{
    Claim, ClientIdentity, Guard, Key, LockManager, LossReason, Mode, Name, Namespace, Settings,
};
use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_lab::{Data, Server, ServerKind, Shift};
use lockkit_redis::RedisDriver;
use lockkit_sql::{MySqlDriver, PostgresDriver};
use tokio::time::{Instant, sleep, timeout};

/// Renewed every two seconds.
const TTL: Duration = Duration::from_secs(6);

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

const HOUR: Duration = Duration::from_secs(3600);

/// Those whose answers show a clock.
const WITH_CLOCK: [ServerKind; 3] = [ServerKind::Redis, ServerKind::Postgres, ServerKind::MariaDb];

async fn locks(server: &Server) -> LockManager {
    let settings = Settings::default().ttl(TTL).wait_ttl(TTL);
    lockkit::connect_with(&server.url(), settings).await.unwrap()
}

/// A lock that has been renewed: its last answer came with evidence.
async fn renewed(locks: &LockManager) -> Guard {
    let guard = locks.mutex("a").lock().await.unwrap();
    next_renewal(&guard).await;
    guard
}

/// Returns when an answer moved the deadline; says how far.
async fn next_renewal(guard: &Guard) -> Duration {
    let renewing = async {
        loop {
            let before = guard.remaining();
            sleep(Duration::from_millis(10)).await;
            let left = guard.remaining();
            if left > before {
                return left;
            }
        }
    };
    timeout(LONG, renewing).await.unwrap_or_else(|_| panic!("not renewed: {guard:?}"))
}

async fn lost(guard: &Guard) -> LossReason {
    timeout(LONG, guard.lost()).await.unwrap_or_else(|_| panic!("not lost: {guard:?}"))
}

async fn driver(server: &Server) -> Arc<dyn LockDriver> {
    let url = server.url();
    match server.kind() {
        ServerKind::Redis => Arc::new(RedisDriver::connect(&url).await.unwrap()),
        ServerKind::Postgres => Arc::new(PostgresDriver::connect(&url).await.unwrap()),
        ServerKind::MariaDb => Arc::new(MySqlDriver::connect(&url).await.unwrap()),
        ServerKind::Etcd => Arc::new(EtcdDriver::connect(&url).await.unwrap()),
        other => panic!("{other} tells nothing"),
    }
}

async fn taken(driver: &dyn LockDriver, name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Mode::Exclusive.space(), Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    let claim = Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, me));
    driver.acquire(&claim, Patience::Try).await.unwrap();
    claim
}

/// Renews until it is answered: for each claim, whether it holds, and what was told.
async fn evidence(driver: &dyn LockDriver, claims: &[Arc<Claim>]) -> Vec<(bool, Arc<Evidence>)> {
    let until = Instant::now() + LONG;
    loop {
        let answers = driver.renew_with_evidence(claims).await;
        let answers: Result<Vec<Renewed>, _> = answers.and_then(|all| all.into_iter().collect());
        match answers {
            Ok(answers) => {
                let told = |it: Renewed| {
                    (matches!(it.renewal, Renewal::Holds(_)), it.evidence.expect("evidence"))
                };
                return answers.into_iter().map(told).collect();
            }
            Err(error) => assert!(Instant::now() < until && error.is_retryable(), "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn every_answer_of_one_request_tells_of_one_server() {
    for kind in WITH_CLOCK {
        let server = Server::start(kind).await.unwrap();
        let driver = driver(&server).await;
        let claims = [taken(&*driver, "a").await, taken(&*driver, "b").await];
        let begun = Instant::now();
        let first = evidence(&*driver, &claims).await;
        assert!(first.iter().all(|(holds, told)| *holds && *told == first[0].1), "{first:?}");
        sleep(Duration::from_millis(100)).await;
        let (first, second) = (&first[0].1, &evidence(&*driver, &claims).await[0].1);
        assert!(!first.run.is_empty() && first.run == second.run, "{first:?}, {second:?}");
        let passed = second.time.unwrap() - first.time.unwrap();
        assert!(passed >= Duration::from_millis(100) && passed <= begun.elapsed(), "{passed:?}");
        if kind == ServerKind::Postgres {
            assert!(second.position > first.position, "a renewal is in its log: {second:?}");
        }
        if kind == ServerKind::Redis {
            assert_eq!(first.connection, second.connection);
        }
    }
}

/// No clock, and no position: those of a member that lags would go back.
#[tokio::test]
async fn etcd_tells_its_cluster_and_no_more() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = driver(&server).await;
    let claims = [taken(&*driver, "a").await, taken(&*driver, "b").await];
    let first = evidence(&*driver, &claims).await;
    server.restart(Data::Keep).await.unwrap();
    let second = evidence(&*driver, &claims).await;
    for (_, told) in first.iter().chain(&second) {
        assert_eq!(*told, first[0].1);
        assert!(!told.run.is_empty() && told.time.is_none() && told.position.is_none(), "{told:?}");
    }
}

#[tokio::test]
async fn a_redis_that_was_restarted_is_another_run_and_a_claim_that_it_has_holds() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let driver = driver(&server).await;
    let claims = [taken(&*driver, "a").await];
    let before = evidence(&*driver, &claims).await.remove(0).1;
    server.restart(Data::Keep).await.unwrap();
    let (holds, after) = evidence(&*driver, &claims).await.remove(0);
    assert!(holds && after.run != before.run && after.connection != before.connection);
}

#[tokio::test]
async fn a_lock_that_a_new_redis_does_not_have_is_lost_to_another_server() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let locks = locks(&server).await;
    let guard = renewed(&locks).await;
    server.restart(Data::Lose).await.unwrap();
    assert_eq!(lost(&guard).await, LossReason::ServerChanged);
}

#[tokio::test]
async fn a_lock_that_a_redis_keeps_is_held_on_after_its_restart() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let locks = locks(&server).await;
    let guard = renewed(&locks).await;
    server.restart(Data::Keep).await.unwrap();
    next_renewal(&guard).await;
    next_renewal(&guard).await;
    assert!(guard.is_valid());
}

#[tokio::test]
async fn a_lock_that_a_step_of_the_servers_clock_ended_is_lost_to_that() {
    for kind in WITH_CLOCK {
        let server = Server::start_with_clock(kind).await.unwrap();
        let locks = locks(&server).await;
        let guard = renewed(&locks).await;
        server.move_clock(Shift::Ahead(HOUR)).unwrap();
        assert_eq!(lost(&guard).await, LossReason::ClockJump, "{kind}");
    }
}

#[tokio::test]
async fn a_step_back_of_the_servers_clock_shortens_nothing() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    let locks = locks(&server).await;
    let guard = renewed(&locks).await;
    let before = next_renewal(&guard).await;
    server.move_clock(Shift::Behind(HOUR)).unwrap();
    let after = next_renewal(&guard).await;
    assert!(after + TTL / 6 > before, "{after:?} after {before:?}");
}

/// A server whose clock gains half a second each second.
#[tokio::test]
async fn a_fast_server_is_trusted_for_as_long_as_its_leases_last() {
    let server = Arc::new(Server::start_with_clock(ServerKind::Redis).await.unwrap());
    let begun = Instant::now();
    let gains = tokio::spawn({
        let server = server.clone();
        async move {
            loop {
                server.move_clock(Shift::Ahead(begun.elapsed() / 2)).unwrap();
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut trusted = TTL;
    for _ in 0..6 {
        trusted = next_renewal(&guard).await;
    }
    assert!(trusted < TTL * 3 / 4, "{trusted:?} of {TTL:?}");
    assert!(guard.is_valid());
    gains.abort();
}

#[tokio::test]
async fn a_quorum_is_another_run_when_a_member_is() {
    let mut servers = Vec::new();
    let mut members: Vec<Arc<dyn LockDriver>> = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(ServerKind::Redis).await.unwrap());
        members.push(driver(servers.last().unwrap()).await);
    }
    let driver = QuorumDriver::new(members, QuorumOptions::default().max_ttl(LONG)).unwrap();
    let claims = [taken(&driver, "a").await];
    let (_, before) = evidence(&driver, &claims).await.remove(0);
    let (holds, same) = evidence(&driver, &claims).await.remove(0);
    assert!(holds && same == before);
    servers[1].restart(Data::Keep).await.unwrap();
    let until = Instant::now() + LONG;
    loop {
        let (holds, after) = evidence(&driver, &claims).await.remove(0);
        assert!(holds, "a majority keeps it");
        if after.run != before.run {
            break;
        }
        assert!(Instant::now() < until, "{after:?}");
    }
}

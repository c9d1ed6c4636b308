//! Exclusion beside programs that take PostgreSQL's advisory locks, with their own statements.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{ClaimId, GateAttempt, GateRenewal, LockDriver};
use lockkit_core::state::Severity;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, LossReason, Mode, Name, Namespace, Settings,
    Space,
};
use lockkit_lab::neighbours::{self, LEASE, NeighbourStorm, TakenFrom, late_answers};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, ServerKind, SharedServer};
use lockkit_sql::{PostgresDriver, ServerOptions, SqlNeighbours};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::time::timeout;

/// A time that no test outlasts.
const LONG: Duration = Duration::from_secs(300);
/// Much longer than what has to happen within it.
const SOON: Duration = Duration::from_secs(30);
/// Of a lock whose end is waited for.
const SHORT: Duration = Duration::from_secs(2);

struct Scene {
    server: SharedServer,
    settings: Settings,
    unique: String,
}

impl Scene {
    async fn set() -> Self {
        let server = SharedServer::server(ServerKind::Postgres).await.unwrap();
        let unique = ClaimId::random().to_hex()[..8].to_owned();
        let settings = Settings::default().namespace(format!("neighbours-{unique}")).ttl(LONG);
        Self { server, settings, unique }
    }

    /// A name that no other test has.
    fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.unique)
    }

    async fn driver(&self) -> Arc<PostgresDriver> {
        self.driver_at(self.server.url()).await
    }

    async fn driver_at(&self, url: &str) -> Arc<PostgresDriver> {
        let options = ServerOptions::default().neighbours(SqlNeighbours::Advisory);
        Arc::new(PostgresDriver::connect_with(url, options).await.unwrap())
    }

    async fn locks(&self) -> LockManager {
        LockManager::with(self.driver().await, self.settings.clone()).unwrap()
    }

    async fn neighbour(&self) -> Neighbour {
        Neighbour(PgConnection::connect(self.server.url()).await.unwrap())
    }

    fn claim(&self, name: &str, ttl: Duration) -> Arc<Claim> {
        let namespace = Namespace::new(self.settings.namespace_str()).unwrap();
        let key = Key::new(namespace, Space::Lock, Name::new(name).unwrap());
        let me = Arc::new(ClientIdentity::of_this_process());
        Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me))
    }
}

/// A program that knows nothing of lockkit.
struct Neighbour(PgConnection);

impl Neighbour {
    /// Calls a function of advisory locks, whose argument is SQL.
    async fn call(&mut self, function: &str, key: &str) -> bool {
        let call = format!("SELECT {function}({key})::text <> 'false'");
        self.0.fetch_one(sqlx::raw_sql(AssertSqlSafe(call))).await.unwrap().get(0)
    }

    async fn tries(&mut self, name: &str) -> bool {
        self.call("pg_try_advisory_lock", &hashed(name)).await
    }

    async fn unlocks(&mut self, name: &str) {
        assert!(self.call("pg_advisory_unlock", &hashed(name)).await);
    }

    /// Ends the sessions of the gates, of this process's drivers among others.
    async fn ends_session_with(&mut self, name: &str) {
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
             AND (classid::bigint << 32) | objid::bigint = {}",
            hashed(name)
        );
        assert_eq!(self.0.fetch_all(sqlx::raw_sql(AssertSqlSafe(end))).await.unwrap().len(), 1);
    }

    /// The same, if one of lockkit's has it.
    async fn ends_sessions_of_lockkit(&mut self, name: &str) {
        let end = format!(
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
             WHERE locktype = 'advisory' AND granted AND application_name = 'lockkit'
             AND (classid::bigint << 32) | objid::bigint = {}",
            hashed(name)
        );
        self.0.execute(sqlx::raw_sql(AssertSqlSafe(end))).await.unwrap();
    }
}

fn hashed(name: &str) -> String {
    format!("hashtext('{name}')")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_excludes_the_advisory_lock_of_its_name_and_is_excluded_by_it() {
    let scene = Scene::set().await;
    let (locks, mut neighbour) = (scene.locks().await, scene.neighbour().await);
    let number = u64::from_str_radix(&scene.unique, 16).unwrap().to_string();
    let text = scene.name("nightly");
    for (name, key) in [(&text, hashed(&text)), (&number, number.clone())] {
        assert!(neighbour.call("pg_advisory_lock", &key).await);
        assert!(locks.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
        assert!(neighbour.call("pg_advisory_unlock", &key).await);
        let guard = locks.mutex(name).try_lock().await.unwrap().expect("it is free");
        for function in
            ["pg_try_advisory_lock", "pg_try_advisory_xact_lock", "pg_try_advisory_lock_shared"]
        {
            assert!(!neighbour.call(function, &key).await, "{name}: {function}");
        }
        guard.release().await.unwrap();
        assert!(neighbour.call("pg_try_advisory_lock", &key).await, "{name} was given back");
        assert!(neighbour.call("pg_advisory_unlock", &key).await);
    }
    locks.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_waits_for_a_neighbour_and_a_neighbour_for_a_lock() {
    let scene = Scene::set().await;
    let (locks, mut neighbour) = (scene.locks().await, scene.neighbour().await);
    let name = scene.name("a");
    assert!(neighbour.tries(&name).await);
    let mutex = locks.mutex(&name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while locks.neighbour_wait(&name).is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    neighbour.unlocks(&name).await;
    let guard = timeout(SOON, waiting).await.expect("it is free").unwrap().unwrap();
    let blocked = tokio::spawn({
        let key = hashed(&name);
        async move {
            neighbour.call("pg_advisory_lock", &key).await;
            neighbour
        }
    });
    guard.release().await.unwrap();
    let mut neighbour = timeout(SOON, blocked).await.expect("it is free").unwrap();
    neighbour.unlocks(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_session_was_ended_is_lost_at_its_next_renewal() {
    let scene = Scene::set().await;
    let (locks, mut neighbour) = (scene.locks().await, scene.neighbour().await);
    let (name, other) = (scene.name("a"), scene.name("b"));
    let guard = locks.mutex(&name).lock().await.unwrap();
    let second = locks.mutex(&other).lock().await.unwrap();
    neighbour.ends_session_with(&name).await;
    while !neighbour.tries(&name).await {}
    let _ = guard.lease().renew().await;
    assert_eq!(timeout(SOON, guard.lease().lost()).await.unwrap(), LossReason::Neighbour);
    assert!(guard.token().is_err());
    // The neighbour keeps what it has got: a new session takes no lock that another one has.
    let _ = second.lease().renew().await;
    assert_eq!(timeout(SOON, second.lease().lost()).await.unwrap(), LossReason::Neighbour);
    drop((guard, second));
    let again = locks.mutex(&other).lock().await.unwrap();
    assert!(locks.mutex(&name).try_lock().await.unwrap().is_none());
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_ends_the_session_of_a_client_that_is_cut_off() {
    let scene = Scene::set().await;
    let proxy = Proxy::start(scene.server.addr(), Protocol::Postgres).await.unwrap();
    let driver = scene.driver_at(&scene.server.url_at(proxy.addr())).await;
    let settings = scene.settings.clone().ttl(SHORT);
    let locks = LockManager::with(driver, settings).unwrap();
    let name = scene.name("a");
    let guard = locks.mutex(&name).lock().await.unwrap();
    let mut neighbour = scene.neighbour().await;
    assert!(!neighbour.tries(&name).await);
    proxy.fault(ProxyFault::BlackHole, When::Now);
    timeout(SOON, neighbour.call("pg_advisory_lock", &hashed(&name))).await.expect("it is freed");
    assert!(guard.token().is_err(), "the guard ended before");
    proxy.heal().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lasts_as_long_as_that_of_the_longest_claim() {
    let scene = Scene::set().await;
    let driver = scene.driver().await;
    let gate = driver.gate().unwrap();
    let mut admin = scene.neighbour().await;
    let short = scene.claim(&scene.name("a"), SHORT);
    let long = scene.claim(&scene.name("b"), LONG);
    for (claim, ttl) in [(&short, SHORT), (&long, LONG), (&short, LONG)] {
        assert_eq!(gate.take(claim).await.unwrap(), GateAttempt::Taken { ttl });
    }
    let kept = gate.keep(&[short.clone(), long.clone()]).await.unwrap();
    let is_kept =
        |answer: &Result<GateRenewal, Error>| matches!(answer, Ok(GateRenewal::Kept { ttl: LONG }));
    assert!(kept.iter().all(is_kept), "{kept:?}");
    // Taken twice and given back once, it is free.
    gate.give(&short).await.unwrap();
    assert!(admin.tries(short.key.name.as_str()).await);
    assert!(!admin.tries(long.key.name.as_str()).await);
    let kept = gate.keep(&[short.clone(), long.clone()]).await.unwrap();
    assert!(matches!(kept[0], Ok(GateRenewal::NotFound)) && is_kept(&kept[1]), "{kept:?}");
    // Giving back what another has, or nobody, is no error.
    gate.give(&short).await.unwrap();
    gate.give(&long).await.unwrap();
    assert!(admin.tries(long.key.name.as_str()).await);
    driver.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_one_key_are_one_lock_and_a_multi_lock_of_them_is_refused() {
    let scene = Scene::set().await;
    let (driver, mut admin) = (scene.driver().await, scene.neighbour().await);
    let two = "SELECT array_agg('job/' || n) FROM generate_series(1, 400000) AS n
        GROUP BY hashtext('job/' || n) HAVING count(*) > 1 LIMIT 1";
    let two: Vec<String> = admin.0.fetch_one(two).await.unwrap().get(0);
    for names in [[two[0].clone(), two[1].clone()], ["7".to_owned(), "007".to_owned()]] {
        let gate = driver.gate().unwrap();
        let [one, other] = [0, 1].map(|at| scene.claim(&names[at], LONG));
        gate.take(&one).await.unwrap();
        let refused = gate.take(&other).await.unwrap();
        assert_eq!(refused, GateAttempt::Busy { remaining: None }, "{names:?}");
        // Nor does it give back what the first has.
        gate.give(&other).await.unwrap();
        assert!(matches!(
            gate.keep(std::slice::from_ref(&one)).await.unwrap()[0],
            Ok(GateRenewal::Kept { .. })
        ));
        gate.give(&one).await.unwrap();
        let locks = LockManager::with(driver.clone(), scene.settings.clone()).unwrap();
        let refused = locks.multi(&names).lock().await.unwrap_err();
        assert!(matches!(refused, Error::Config(_)), "{refused}");
        assert!(refused.to_string().contains("are one advisory lock"), "{refused}");
        let guard = locks.multi([&names[0], &scene.name("b")]).lock().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_the_neighbours_of_its_namespace_is_refused() {
    let scene = Scene::set().await;
    let plain = Arc::new(PostgresDriver::connect(scene.server.url()).await.unwrap());
    let locks = LockManager::with(plain.clone(), scene.settings.clone()).unwrap();
    locks.mutex(scene.name("a")).lock().await.unwrap().release().await.unwrap();
    let with = scene.locks().await;
    with.mutex(scene.name("a")).lock().await.unwrap().release().await.unwrap();
    let locks = LockManager::with(plain.clone(), scene.settings.clone()).unwrap();
    let refused = locks.mutex(scene.name("a")).lock().await.unwrap_err();
    assert!(matches!(refused, Error::Config(_)), "{refused}");
    for part in ["connect with ?neighbours=advisory", "UPDATE lockkit.lockkit_counters"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    // Another namespace has nothing to do with it, and the tokens' base stays.
    let other = Settings::default().namespace(scene.name("other"));
    let locks = LockManager::with(plain, other).unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let wrong = PostgresDriver::check_url("postgres://h/db?neighbours=all").unwrap_err();
    assert!(wrong.to_string().contains("neighbours is one of advisory"), "{wrong}");
}

const OURS: &str = "LOCKKIT_TEST_OURS";
const URL: &str = "LOCKKIT_TEST_URL";
const UNIQUE: &str = "LOCKKIT_TEST_UNIQUE";

/// The part of a client in a storm. By itself, a round.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_takes_and_gives_back() {
    let mut scene = Scene::set().await;
    let Ok(url) = std::env::var(URL) else {
        let (locks, mut neighbour) = (scene.locks().await, scene.neighbour().await);
        let name = scene.name("hot");
        locks.mutex(&name).lock().await.unwrap().release().await.unwrap();
        return assert!(neighbour.tries(&name).await);
    };
    scene.unique = std::env::var(UNIQUE).unwrap();
    let name = scene.name("hot");
    if std::env::var_os(OURS).is_some() {
        let settings = Settings::default().namespace(scene.name("storm")).ttl(LEASE);
        let url = format!("{url}?neighbours=advisory&timeout=30s");
        let driver = loop {
            // Its first connections may be cut.
            if let Ok(driver) = PostgresDriver::connect(&url).await {
                break driver;
            }
        };
        let locks = LockManager::with(Arc::new(driver), settings.wait_ttl(LEASE)).unwrap();
        neighbours::live(&locks, &name).await
    }
    let neighbour = tokio::sync::Mutex::new(scene.neighbour().await);
    neighbours::live_beside(
        None,
        async || neighbour.lock().await.tries(&name).await,
        async || neighbour.lock().await.unlocks(&name).await,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_hold_at_once_in_a_storm() {
    let scene = Scene::set().await;
    let (mut admin, name) = (scene.neighbour().await, scene.name("hot"));
    let proxy = Proxy::start(scene.server.addr(), Protocol::Postgres).await.unwrap();
    let ours = scene.server.url_at(proxy.addr());
    let start = |is_ours| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_child_takes_and_gives_back", "--nocapture"]);
        command.env(UNIQUE, &scene.unique).env(ServerKind::Postgres.variable(), scene.server.url());
        match is_ours {
            true => command.env(OURS, "1").env(URL, &ours),
            false => command.env(URL, scene.server.url()),
        };
        command
    };
    let mut storm = NeighbourStorm::new(&start);
    let faults = async |fault| match fault {
        0 => late_answers(&proxy).await,
        // Of a client of lockkit that holds, or waits for its turn with others.
        1 => {
            admin.ends_sessions_of_lockkit(&name).await;
            TakenFrom::Lockkit
        }
        _ => {
            proxy.fault(ProxyFault::Cut, When::Now);
            TakenFrom::Lockkit
        }
    };
    storm.rage(neighbours::storm_length(), 3, faults).await;
    storm.judge("advisory");
}

/// What `lockkit doctor` calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_a_neighbour_whose_lock_has_no_lease_and_not_lockkits_own() {
    let scene = Scene::set().await;
    let (locks, other) = (scene.locks().await, scene.locks().await);
    let (name, mut neighbour) = (scene.name("a"), scene.neighbour().await);
    let guard = locks.mutex(scene.name("ours")).lock().await.unwrap();
    assert!(neighbour.tries(&name).await);
    let mutex = locks.mutex(&name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while locks.neighbour_wait(&name).is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid: i32 = neighbour.0.fetch_one("SELECT pg_backend_pid()").await.unwrap().get(0);
    let found = other.probe(&locks).await.unwrap();
    let found: Vec<_> = found.iter().filter(|it| it.what.contains(&scene.unique)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Warning);
    for part in [format!("{name:?}"), format!("session {pid}"), "no lease".to_owned()] {
        assert!(found[0].what.contains(&part), "{found:?}");
    }
    assert!(found[0].advice.contains(&format!("pg_terminate_backend({pid})")), "{found:?}");
    neighbour.unlocks(&name).await;
    timeout(SOON, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
    let found = other.probe(&locks).await.unwrap();
    assert!(found.iter().all(|it| !it.what.contains(&scene.unique)), "{found:?}");
    guard.release().await.unwrap();
}

//! A database server whose clock goes an hour ahead and back again: what was set meanwhile ends as long
//! from then on as it was to last, not an hour later.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, LockDriver, Patience, Precondition, RegisterEntry, RegisterKey, Released, Renewal,
    Write, WriteResult,
};
use lockkit_core::{
    Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Settings, Space, Token,
};
use lockkit_lab::{Server, ServerKind, Shift};
use lockkit_sql::{MySqlDriver, PostgresDriver};
use tokio::time::{sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);
/// A lease that ends within a test.
const SHORT: Duration = Duration::from_secs(2);
/// One that does not.
const LONG: Duration = Duration::from_secs(600);
/// Far below an hour.
const SOON: Duration = Duration::from_secs(300);

struct Scene {
    server: Server,
    driver: Arc<dyn LockDriver>,
}

impl Scene {
    async fn on(kind: ServerKind) -> Self {
        let server = Server::start_with_clock(kind).await.unwrap();
        let driver = connect(kind, &server).await;
        Self { server, driver }
    }

    fn set(&self, shift: Shift) {
        self.server.move_clock(shift).unwrap();
    }

    /// Held, by somebody who dies now.
    async fn hold(&self, claim: &Arc<Claim>) {
        let answer = self.driver.acquire(claim, Patience::Try).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Granted(_)), "{answer:?}");
    }

    /// What tries alone see.
    async fn is_free_soon(&self, name: &str) {
        let next = claim(name, Mode::Exclusive, SHORT);
        let tries = async {
            while let Acquisition::Busy =
                self.driver.acquire(&next, Patience::Try).await.unwrap().result
            {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SOON, tries).await.expect("its holder is dead");
        assert_eq!(self.driver.release(&next).await.unwrap(), Released::Removed);
    }

    async fn expires_in(&self, key: &Key) -> Duration {
        self.driver.inspect(key).await.unwrap().queue[0].expires_in
    }
}

async fn connect(kind: ServerKind, server: &Server) -> Arc<dyn LockDriver> {
    match kind {
        ServerKind::Postgres => Arc::new(PostgresDriver::connect(&server.url()).await.unwrap()),
        _ => Arc::new(MySqlDriver::connect(&server.url()).await.unwrap()),
    }
}

fn claim(name: &str, mode: Mode, hold: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, mode, hold, LONG, identity))
}

async fn dead_holders_are_freed(kind: ServerKind) {
    let scene = Scene::on(kind).await;
    scene.set(Shift::Ahead(HOUR));
    let renewed = claim("renewed", Mode::Exclusive, SHORT);
    for claim in [&renewed, &claim("alone", Mode::Exclusive, SHORT)] {
        scene.hold(claim).await;
    }
    // Renewed while the clock is ahead still.
    scene.set(Shift::Ahead(HOUR + Duration::from_millis(500)));
    assert!(matches!(scene.driver.renew_single(&renewed).await.unwrap(), Renewal::Holds(_)));
    for _ in 0..2 {
        scene.hold(&claim("two", Mode::Shared, SHORT)).await;
    }
    // Behind one that holds, one waits and dies as well.
    scene.hold(&claim("waited", Mode::Exclusive, SHORT)).await;
    let dead = Key::new(Namespace::default(), Space::Lock, Name::new("waited").unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let dead = Arc::new(Claim::new(dead, Mode::Exclusive, SHORT, SHORT, identity));
    let queued = scene.driver.acquire(&dead, Patience::Wait).await.unwrap().result;
    assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
    scene.set(Shift::NONE);
    for name in ["renewed", "alone", "two", "waited"] {
        scene.is_free_soon(name).await;
    }
}

#[tokio::test]
async fn postgres_frees_what_dead_holders_held() {
    dead_holders_are_freed(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_frees_what_dead_holders_held() {
    dead_holders_are_freed(ServerKind::MariaDb).await;
}

/// Those who wait already, and ask with their renewals.
async fn waiters_get_their_turn(kind: ServerKind) {
    let scene = Scene::on(kind).await;
    scene.set(Shift::Ahead(HOUR));
    scene.hold(&claim("a", Mode::Exclusive, SHORT)).await;
    let settings = Settings::default().ttl(LONG).wait_ttl(SHORT);
    let locks = LockManager::with(connect(kind, &scene.server).await, settings).unwrap();
    let waiting = tokio::spawn({
        let lock = locks.mutex("a");
        async move { lock.lock().await }
    });
    while locks.inspect(Space::Lock, "a").await.unwrap().queue.len() < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    scene.set(Shift::NONE);
    let guard = timeout(SOON, waiting).await.expect("the holder is dead").unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn postgres_gives_waiters_their_turn() {
    waiters_get_their_turn(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_gives_waiters_their_turn() {
    waiters_get_their_turn(ServerKind::MariaDb).await;
}

/// Whether alone or with others: what was to last an hour lasts an hour, as a ticket's lease may.
async fn long_leases_stay_long(kind: ServerKind) {
    let scene = Scene::on(kind).await;
    scene.set(Shift::Ahead(HOUR));
    let lasting = [("alone", Mode::Exclusive), ("two", Mode::Shared)]
        .map(|(name, mode)| claim(name, mode, HOUR));
    for claim in &lasting {
        scene.hold(claim).await;
    }
    scene.hold(&claim("two", Mode::Shared, SHORT)).await;
    scene.set(Shift::NONE);
    for held in &lasting {
        let left = HOUR - SOON..=HOUR;
        let name = held.key.name.as_str();
        assert!(left.contains(&scene.expires_in(&held.key).await), "{name}: as it is shown");
        let other = claim(name, Mode::Exclusive, SHORT);
        let busy = scene.driver.acquire(&other, Patience::Try).await.unwrap().result;
        assert!(matches!(busy, Acquisition::Busy), "{name}: {busy:?}");
        assert!(left.contains(&scene.expires_in(&held.key).await), "{name}: as it is kept");
        assert!(matches!(scene.driver.renew_single(held).await.unwrap(), Renewal::Holds(_)));
        assert!(left.contains(&scene.expires_in(&held.key).await), "{name}: renewed");
    }
    // What was set before a clock went back, too.
    let early = claim("early", Mode::Exclusive, LONG);
    scene.hold(&early).await;
    scene.set(Shift::Behind(HOUR));
    let other = claim("early", Mode::Exclusive, SHORT);
    let busy = scene.driver.acquire(&other, Patience::Try).await.unwrap().result;
    assert!(matches!(busy, Acquisition::Busy), "{busy:?}");
    let left = scene.expires_in(&early.key).await;
    assert!((LONG - SOON..=LONG).contains(&left), "{left:?}");
}

#[tokio::test]
async fn postgres_keeps_leases_that_are_long() {
    long_leases_stay_long(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_keeps_leases_that_are_long() {
    long_leases_stay_long(ServerKind::MariaDb).await;
}

async fn registers_end(kind: ServerKind) {
    let scene = Scene::on(kind).await;
    let registers = scene.driver.registers().unwrap();
    let register =
        |name| RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() };
    let write = |ttl| Write { ttl: Some(ttl), ..Write::of(Some(b"value".to_vec())) };
    scene.set(Shift::Ahead(HOUR));
    for (name, ttl) in [("read", SHORT), ("written", SHORT), ("lasting", LONG)] {
        let token = Token::new(7);
        let stored = registers.write(&register(name), &Write { token, ..write(ttl) }).await;
        assert!(matches!(stored.unwrap().result, WriteResult::Stored(_)));
    }
    scene.set(Shift::NONE);
    let there =
        async |name| -> Option<RegisterEntry> { registers.load(&register(name)).await.unwrap() };
    assert!(there("lasting").await.is_some());
    let ends = async {
        while there("read").await.is_some() {
            sleep(Duration::from_millis(50)).await;
        }
        // Who never reads.
        let absent = || Write { expect: Precondition::Absent, ..write(LONG) };
        while let WriteResult::Conflict =
            registers.write(&register("written"), &absent()).await.unwrap().result
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, ends).await.expect("they were to last two seconds");
    assert!(there("lasting").await.is_some());
}

#[tokio::test]
async fn postgres_ends_values_of_registers() {
    registers_end(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_ends_values_of_registers() {
    registers_end(ServerKind::MariaDb).await;
}

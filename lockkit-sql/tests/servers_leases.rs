//! Leases in a database server, by what its rows say: who waits and who holds has another time to live,
//! nothing revives a lease that has ended, nothing shortens one, and the next holder hears of its turn soon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, ClaimEnd, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

/// Two times to live that no test outlasts, far from each other.
const SHORT: Duration = Duration::from_secs(300);
const LONG: Duration = Duration::from_secs(3_000);
const KINDS: [ServerKind; 2] = [ServerKind::Postgres, ServerKind::MariaDb];

/// A server, and an administrator's connection to it.
struct Scene {
    kind: ServerKind,
    server: Server,
    driver: Arc<dyn LockDriver>,
}

impl Scene {
    async fn on(kind: ServerKind) -> Self {
        let server = Server::start(kind).await.unwrap();
        let driver = connect(kind, &server).await;
        Self { kind, server, driver }
    }

    async fn ask(&self, postgres: &str, mysql: &str) {
        let url = self.server.url();
        match self.kind {
            ServerKind::Postgres => {
                let mut admin = PgConnection::connect(&url).await.unwrap();
                admin.execute(sqlx::raw_sql(AssertSqlSafe(postgres.to_owned()))).await.unwrap();
            }
            _ => {
                let mut admin = MySqlConnection::connect(&url).await.unwrap();
                admin.execute(sqlx::raw_sql(AssertSqlSafe(mysql.to_owned()))).await.unwrap();
            }
        }
    }

    /// Lets the lease of whoever holds end now. Nobody looks at it meanwhile.
    async fn end_leases_of_holders(&self) {
        let now = "lockkit.lockkit_clock() - 1";
        let mysql = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 1";
        let (names, claims) = ("WHERE expires > 0", "WHERE held IS NOT NULL");
        self.ask(
            &format!("UPDATE lockkit.lockkit_names SET expires = {now} {names}"),
            &format!("UPDATE lockkit_names SET expires = {mysql} {names}"),
        )
        .await;
        self.ask(
            &format!("UPDATE lockkit.lockkit_claims SET expires = {now} {claims}"),
            &format!("UPDATE lockkit_claims SET expires = {mysql} {claims}"),
        )
        .await;
    }

    /// Releases a claim as another machine would: nobody in this process hears of it.
    async fn release_elsewhere(&self, claim: &Claim) {
        let id = claim.id.to_hex();
        let name = claim.key.name.as_str();
        self.ask(
            &format!("SELECT lockkit.lockkit_release('', 0, '{name}', decode('{id}', 'hex'), '')"),
            &format!("CALL lockkit_release('', 0, '{name}', UNHEX('{id}'))"),
        )
        .await;
    }

    async fn holds(&self, claim: &Arc<Claim>) {
        let answer = self.driver.acquire(claim, Patience::Wait).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Granted(_)), "{:?}: {answer:?}", self.kind);
    }

    /// Puts a claim in line with a client that is gone afterwards, so that nobody looks for it.
    async fn waits(&self, claim: &Arc<Claim>) {
        let client = connect(self.kind, &self.server).await;
        let answer = client.acquire(claim, Patience::Wait).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Queued { .. }), "{:?}: {answer:?}", self.kind);
        client.close().await;
    }

    /// How long the lease of the claim at this place in the line still is.
    async fn left(&self, key: &Key, place: usize) -> Duration {
        self.driver.inspect(key).await.unwrap().queue[place].expires_in
    }
}

async fn connect(kind: ServerKind, server: &Server) -> Arc<dyn LockDriver> {
    match kind {
        ServerKind::Postgres => Arc::new(PostgresDriver::connect(&server.url()).await.unwrap()),
        _ => Arc::new(MySqlDriver::connect(&server.url()).await.unwrap()),
    }
}

fn claim(name: &str, hold: Duration, wait: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, hold, wait, me))
}

/// The same claim, renewed for other times.
fn with_ttls(claim: &Claim, hold: Duration, wait: Duration) -> Arc<Claim> {
    let mut other = claim.clone();
    (other.hold_ttl, other.wait_ttl) = (hold, wait);
    Arc::new(other)
}

/// More than the short time to live, so it is the long one.
fn is_long(left: Duration) -> bool {
    left > SHORT && left <= LONG
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_promoted_gets_the_lease_of_a_holder() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        // Whoever promotes it: the release of the one before, or its own renewal after an expiry.
        for by_renewal in [false, true] {
            let name = format!("job {by_renewal}");
            let first = claim(&name, LONG, LONG);
            let next = claim(&name, LONG, SHORT);
            scene.holds(&first).await;
            scene.waits(&next).await;
            assert!(scene.left(&next.key, 1).await <= SHORT, "{kind:?}: it waits");
            match by_renewal {
                false => scene.release_elsewhere(&first).await,
                true => {
                    scene.end_leases_of_holders().await;
                    // Under another claim's renewal of the list: its own would extend the lease.
                    let another = claim(&name, LONG, SHORT);
                    scene.waits(&another).await;
                }
            }
            let line = scene.driver.inspect(&next.key).await.unwrap().queue;
            assert!(line[0].holds(), "{kind:?}: {line:?}");
            assert!(is_long(line[0].expires_in), "{kind:?}: {:?}", line[0].expires_in);
        }
        // One that was to wait for longer than it is to hold keeps what it had.
        let (first, next) = (claim("patient", LONG, LONG), claim("patient", SHORT, LONG));
        scene.holds(&first).await;
        scene.waits(&next).await;
        scene.release_elsewhere(&first).await;
        assert!(is_long(scene.left(&next.key, 0).await), "{kind:?}: nothing shortens a lease");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_revives_a_lease_that_has_ended_though_nobody_saw_its_end() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        for followed in [false, true] {
            let name = format!("job {followed}");
            let holder = claim(&name, LONG, LONG);
            let waiter = claim(&name, LONG, LONG);
            scene.holds(&holder).await;
            if followed {
                scene.waits(&waiter).await;
            }
            scene.end_leases_of_holders().await;
            let answer = scene.driver.renew_single(&holder).await.unwrap();
            let gone = Renewal::Ended(ClaimEnd::NotFound);
            assert_eq!(answer, gone, "{kind:?}, followed: {followed}");
            if followed {
                let answer = scene.driver.renew_single(&waiter).await.unwrap();
                assert!(matches!(answer, Renewal::Holds(_)), "{kind:?}: {answer:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_shortens_a_lease_in_whatever_place_of_the_line() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        for followed in [false, true] {
            let name = format!("job {followed}");
            let (holder, waiter) = (claim(&name, LONG, LONG), claim(&name, LONG, LONG));
            scene.holds(&holder).await;
            let mut claims = vec![with_ttls(&holder, SHORT, SHORT)];
            if followed {
                scene.waits(&waiter).await;
                claims.push(with_ttls(&waiter, SHORT, SHORT));
            }
            for together in [false, true] {
                match together {
                    true => drop(scene.driver.renew(&claims).await.unwrap()),
                    false => drop(scene.driver.renew_single(&claims[0]).await.unwrap()),
                }
                for place in 0..claims.len() {
                    let left = scene.left(&holder.key, place).await;
                    assert!(
                        is_long(left),
                        "{kind:?}, followed: {followed}, place {place}: {left:?}"
                    );
                }
            }
            // Nor does asking for it again.
            scene.driver.acquire(&claims[0], Patience::Wait).await.unwrap();
            assert!(is_long(scene.left(&holder.key, 0).await), "{kind:?}, followed: {followed}");
        }
    }
}

/// PostgreSQL tells it, and on MariaDB it polls: within 200 ms, as the driver declares.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_holder_hears_of_its_turn_within_a_second_when_the_release_came_from_elsewhere() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let mut fastest = Duration::MAX;
        for _ in 0..6 {
            let (holder, next) = (claim("job", LONG, LONG), claim("job", LONG, LONG));
            scene.holds(&holder).await;
            let waits = scene.driver.acquire(&next, Patience::Wait).await.unwrap().result;
            assert_eq!(waits, Acquisition::Queued { ahead: 1 });
            let waiting = tokio::spawn({
                let (driver, next) = (scene.driver.clone(), next.clone());
                async move { driver.granted(&next).await }
            });
            scene.release_elsewhere(&holder).await;
            let released = Instant::now();
            let told = tokio::time::timeout(SHORT, waiting).await;
            told.expect("it is told").expect("no panic").expect("it holds");
            fastest = fastest.min(released.elapsed());
            scene.driver.release(&next).await.unwrap();
        }
        // Of six, one at least, on a machine that stalls at times.
        assert!(fastest < Duration::from_secs(1), "{kind:?}: {fastest:?}");
    }
}

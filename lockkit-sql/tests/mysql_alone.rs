//! The claim that is alone in its list, on MariaDB: it stands in the row of its name, and what it leaves
//! there is nobody's: its id stays, so that the row keeps its length and is written in place.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Anchored, BreakMode, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::state::ListRequest;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Mode, Name, Namespace, Space, Token};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};

const LONG: Duration = Duration::from_secs(300);

struct Scene {
    _server: Server,
    driver: MySqlDriver,
    admin: MySqlConnection,
}

impl Scene {
    async fn set() -> Self {
        let server = Server::start(ServerKind::MariaDb).await.unwrap();
        let options = ServerOptions::default().timeout(LONG);
        let driver = MySqlDriver::connect_with(&server.url(), options).await.unwrap();
        let admin = MySqlConnection::connect(&server.url()).await.unwrap();
        Self { _server: server, driver, admin }
    }

    async fn number(&mut self, query: &str) -> i64 {
        let query = AssertSqlSafe(query.to_owned());
        self.admin.fetch_one(query).await.unwrap().get(0)
    }

    async fn take(&self, claim: &Arc<Claim>) -> Token {
        match self.driver.acquire(claim, Patience::Try).await.unwrap().result {
            Acquisition::Granted(grant) => grant.token,
            other => panic!("it is free, and yet: {other:?}"),
        }
    }

    async fn give_back(&self, claim: &Arc<Claim>) {
        assert_eq!(self.driver.release(claim).await.unwrap(), Released::Removed);
    }

    /// Takes and gives back a lock until the id of a claim that has left stands in the row; says it,
    /// and its token. The first time goes by the procedures, the later ones by single statements.
    async fn leave_behind(&mut self, name: &str, times: usize) -> (Arc<Claim>, Token) {
        let mut last = None;
        for _ in 0..times {
            let claim = claim(name);
            last = Some((claim.clone(), self.take(&claim).await));
            self.give_back(&claim).await;
        }
        let left = format!(
            "SELECT COUNT(*) FROM lockkit_names WHERE name = '{name}' AND id IS NOT NULL \
             AND expires = 0 AND NOT has_claim_rows"
        );
        assert_eq!(self.number(&left).await, 1, "the row is what this test is about");
        last.unwrap()
    }

    async fn shows_nobody(&mut self, key: &Key) {
        assert!(self.driver.inspect(key).await.unwrap().queue.is_empty());
        let all = ListRequest {
            namespace: key.namespace.clone(),
            space: None,
            prefix: String::new(),
            after: None,
            limit: 100,
        };
        assert!(self.driver.list(&all).await.unwrap().states.is_empty());
        assert_eq!(self.number("SELECT COUNT(*) FROM lockkit_queue").await, 0);
        assert_eq!(self.number("SELECT COUNT(*) FROM lockkit_claims").await, 0);
    }
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
}

fn record() -> BreakRecord {
    BreakRecord::from_parts(ClientIdentity::of_this_process(), 1, Some("to see".into()), true)
}

#[tokio::test]
async fn the_id_that_a_claim_left_behind_is_nobodys() {
    let mut scene = Scene::set().await;
    for (name, times) in [("by the procedures", 1), ("by single statements", 3)] {
        for verb in 0..7 {
            let (gone, token) = scene.leave_behind(name, times).await;
            scene.shows_nobody(&gone.key).await;
            let driver = &scene.driver;
            let renewal = match verb {
                0 => driver.renew_single(&gone).await.unwrap(),
                1 => driver.shorten(&gone, LONG).await.unwrap(),
                2 => driver.downgrade(&gone).await.unwrap(),
                3 => driver.raise(&gone, token).await.unwrap(),
                4 => match driver.anchor(&gone).await.unwrap() {
                    Anchored::Ended(why) => Renewal::Ended(why),
                    at => panic!("{name}: {at:?}"),
                },
                5 => {
                    assert_eq!(driver.release(&gone).await.unwrap(), Released::NoSuchLock);
                    continue;
                }
                _ => {
                    let record = record();
                    let broke = driver.break_claim(&gone.key, token, BreakMode::Graceful, &record);
                    assert!(!broke.await.unwrap(), "{name}: there is nobody to break");
                    continue;
                }
            };
            assert!(matches!(renewal, Renewal::Ended(_)), "{name}, {verb}: {renewal:?}");
            scene.shows_nobody(&gone.key).await;
            assert_eq!(scene.number("SELECT COUNT(*) FROM lockkit_fences").await, 0);
            let next = claim(name);
            assert!(scene.take(&next).await > token, "{name}, {verb}");
            scene.give_back(&next).await;
        }
    }
}

#[tokio::test]
async fn the_record_of_a_break_goes_although_the_name_is_used_every_day() {
    let mut scene = Scene::set().await;
    let broken = claim("a");
    let token = scene.take(&broken).await;
    let record = record();
    let broke = scene.driver.break_claim(&broken.key, token, BreakMode::Forced, &record);
    assert!(broke.await.unwrap());
    scene.leave_behind("a", 2).await;
    scene.admin.execute("UPDATE lockkit_breaks SET expires = 1").await.unwrap();
    let next = claim("a");
    let sweep = "CALL lockkit_sweep('', -1, '', 1000, 86400000000)";
    scene.take(&next).await;
    scene.admin.execute(sqlx::raw_sql(sweep)).await.unwrap();
    let records = "SELECT COUNT(*) FROM lockkit_breaks";
    assert_eq!(scene.number(records).await, 1, "the list is in use");
    scene.give_back(&next).await;
    scene.admin.execute(sqlx::raw_sql(sweep)).await.unwrap();
    assert_eq!(scene.number(records).await, 0);
}

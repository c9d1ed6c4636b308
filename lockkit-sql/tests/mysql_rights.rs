//! MariaDB's rights: what `docs/sql.md` names is enough, and all of it is needed. Each right is withdrawn
//! by itself, from a program that starts and from one that holds locks: an operation that needs it fails
//! with its name, and leaves nothing half done.

mod submitting;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{
    Acquisition, Anchored, BreakMode, LockDriver, Patience, Released, Renewal, SetLimit,
};
use lockkit_core::state::ListRequest;
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Error, Fence, Key, LockManager, Mode, Name, Namespace,
    Space, Token,
};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, MySqlPool, Row};
use submitting::*;

const LONG: Duration = Duration::from_secs(300);
/// Each with operations that cannot do without it.
const RIGHTS: [(&str, &[&str]); 5] = [
    ("SELECT", &["look", "load", "queue"]),
    ("INSERT", &["acquire", "store", "fence"]),
    ("UPDATE", &["acquire", "release", "renew"]),
    ("DELETE", &["release", "break"]),
    ("EXECUTE", &["release", "renew", "batch"]),
];
const LOCKER: &str = "locker@'127.0.0.1'";

struct Scene {
    server: Server,
    admin: MySqlConnection,
    /// A driver that may do everything.
    root: MySqlDriver,
    /// The URL of the user of locks.
    login: String,
}

impl Scene {
    async fn set() -> Self {
        let server = Server::start(ServerKind::MariaDb).await.unwrap();
        let root = connect(&server.url()).await.unwrap();
        let admin = MySqlConnection::connect(&server.url()).await.unwrap();
        let login = server.url().replacen("root@", "locker@", 1);
        assert_ne!(login, server.url(), "the lab's URL names a user");
        let mut scene = Self { server, admin, root, login };
        scene.run(format!("CREATE USER {LOCKER}")).await;
        let rights = RIGHTS.map(|(right, _)| right).join(", ");
        scene.run(format!("GRANT {rights} ON lockkit.* TO {LOCKER}")).await;
        scene
    }

    async fn run(&mut self, statement: String) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
    }

    /// A connection knows the rights to its database from its beginning.
    async fn end_connections(&mut self) {
        let theirs = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                      WHERE user = 'locker'";
        let ids: Vec<i64> = sqlx::query_scalar(theirs).fetch_all(&mut self.admin).await.unwrap();
        for id in ids {
            // It may have ended by itself.
            let _ = self.admin.execute(sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}")))).await;
        }
    }

    async fn revoke(&mut self, right: &str) {
        self.run(format!("REVOKE {right} ON lockkit.* FROM {LOCKER}")).await;
        self.end_connections().await;
    }

    async fn grant(&mut self, right: &str) {
        self.run(format!("GRANT {right} ON lockkit.* TO {LOCKER}")).await;
        self.end_connections().await;
    }

    /// What is in the tables.
    async fn contents(&mut self) -> Vec<i64> {
        let tables = ["names", "claims", "fences", "breaks", "registers", "counters", "meta"];
        let tables: Vec<_> = tables.iter().map(|table| format!("lockkit_{table}")).collect();
        let sums = format!("CHECKSUM TABLE {}", tables.join(", "));
        let sums = self.admin.fetch_all(AssertSqlSafe(sums)).await.unwrap();
        sums.iter().map(|row| row.get(1)).collect()
    }
}

async fn connect(url: &str) -> Result<MySqlDriver, Error> {
    MySqlDriver::connect_with(url, ServerOptions::default().timeout(LONG)).await
}

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, mode, LONG, LONG, identity))
}

/// A claim that holds, by itself or with another one behind it.
struct Holder {
    claim: Arc<Claim>,
    token: Token,
    behind: Option<Arc<Claim>>,
}

impl Holder {
    async fn of(root: &MySqlDriver, name: &str, has_waiter: bool) -> Self {
        let holder = claim(name, Mode::Exclusive);
        let token = match root.acquire(&holder, Patience::Try).await.unwrap().result {
            Acquisition::Granted(grant) => grant.token,
            other => panic!("{name} is free, and yet: {other:?}"),
        };
        let mut behind = None;
        if has_waiter {
            let waiter = claim(name, Mode::Exclusive);
            let queued = root.acquire(&waiter, Patience::Wait).await.unwrap().result;
            assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
            behind = Some(waiter);
        }
        Self { claim: holder, token, behind }
    }
}

/// What the operations are about: each has locks of its own.
struct Locks {
    holders: Vec<Holder>,
    free: Vec<Arc<Claim>>,
}

const HOLDERS: usize = 18;

impl Locks {
    async fn made(root: &MySqlDriver, round: &str) -> Self {
        let mut holders = Vec::new();
        for number in 0..HOLDERS {
            holders.push(Holder::of(root, &format!("{round}/{number}"), number % 2 == 1).await);
        }
        let free = (0..4).map(|number| claim(&format!("{round}/free/{number}"), Mode::Exclusive));
        let free: Vec<_> = free.collect();
        // Two of them were in use before.
        for claim in &free[..2] {
            root.acquire(claim, Patience::Try).await.unwrap();
            assert_eq!(root.release(claim).await.unwrap(), Released::Removed);
        }
        let again = |claim: Arc<Claim>| self::claim(claim.key.name.as_str(), Mode::Exclusive);
        Self { holders, free: free.into_iter().map(again).collect() }
    }
}

type Work<'a> = (&'static str, BoxFuture<'a, Result<(), Error>>);

/// Every operation of the driver; none depends on another.
fn operations<'a>(driver: &'a MySqlDriver, login: &'a str, locks: &'a Locks) -> Vec<Work<'a>> {
    let mut all = of_lines(driver, locks);
    all.extend(of_claims(driver, locks));
    all.extend(beside_locks(driver, locks));
    all.push(("fence", Box::pin(fence(driver, login, locks))));
    all
}

/// What puts claims into lines, and takes them out.
fn of_lines<'a>(driver: &'a MySqlDriver, locks: &'a Locks) -> Vec<Work<'a>> {
    let held = move |number: usize| &locks.holders[number].claim;
    let mut all: Vec<Work<'a>> = Vec::new();
    for number in [2, 3] {
        let release = async move {
            assert_eq!(driver.release(held(number)).await?, Released::Removed);
            Ok(())
        };
        all.push(("release", Box::pin(release)));
    }
    for number in [0, 2] {
        let free = &locks.free[number];
        let acquire = async move { granted(driver.acquire(free, Patience::Try).await?.result) };
        all.push(("acquire", Box::pin(acquire)));
    }
    let queue = async move {
        let last = claim(held(4).key.name.as_str(), Mode::Exclusive);
        let answer = driver.acquire(&last, Patience::Wait).await?.result;
        assert!(matches!(answer, Acquisition::Queued { .. }), "{answer:?}");
        Ok(())
    };
    all.push(("queue", Box::pin(queue)));
    let batch = async move {
        let free = &locks.free;
        let operations = [release(held(6)), release(held(7)), try_it(&free[1]), try_it(&free[3])];
        for reply in submit(driver, &operations).await? {
            let reply = reply?.result;
            let is_done = matches!(
                reply,
                Outcome::Released(Released::Removed) | Outcome::Acquired(Acquisition::Granted(_))
            );
            assert!(is_done, "{reply:?}");
        }
        Ok(())
    };
    all.push(("batch", Box::pin(batch)));
    all
}

/// What changes claims that are in line.
fn of_claims<'a>(driver: &'a MySqlDriver, locks: &'a Locks) -> Vec<Work<'a>> {
    let holder = |number: usize| &locks.holders[number];
    let held = move |number: usize| &holder(number).claim;
    let mut all: Vec<Work<'a>> = Vec::new();
    for number in [0, 1] {
        let renew = async move { holds(driver.renew_single(held(number)).await?) };
        all.push(("renew", Box::pin(renew)));
    }
    for number in [8, 9] {
        let amended = async move {
            holds(driver.shorten(held(number), LONG / 2).await?)?;
            holds(driver.raise(held(number), holder(number).token).await?)
        };
        all.push(("shorten and raise", Box::pin(amended)));
    }
    for number in [10, 11] {
        let downgrade = async move { holds(driver.downgrade(held(number)).await?) };
        all.push(("downgrade", Box::pin(downgrade)));
    }
    for number in [12, 13] {
        let anchor = async move {
            let anchored = driver.anchor(held(number)).await?;
            assert!(matches!(anchored, Anchored::At(_)), "{anchored:?}");
            Ok(())
        };
        all.push(("anchor", Box::pin(anchor)));
    }
    for (number, force) in
        [(14, BreakMode::Forced), (15, BreakMode::Forced), (16, BreakMode::Graceful)]
    {
        let broken = async move {
            let (by, reason) = (ClientIdentity::of_this_process(), Some("to see".into()));
            let record = BreakRecord::from_parts(by, 1, reason, true);
            let token = holder(number).token;
            assert!(driver.break_claim(&held(number).key, token, force, &record).await?);
            Ok(())
        };
        all.push(("break", Box::pin(broken)));
    }
    all
}

/// Limits, registers, the base of tokens, and what only looks.
fn beside_locks<'a>(driver: &'a MySqlDriver, locks: &'a Locks) -> Vec<Work<'a>> {
    let key = &locks.holders[0].claim.key;
    let resize = async move {
        let pool = Key::new(Namespace::default(), Space::Semaphore, key.name.clone());
        assert_eq!(driver.resize(&pool, SetLimit::To(3)).await?, 3);
        Ok(())
    };
    let register = move || LockManager::new(driver.clone()).register(key.name.as_str());
    let look = async move {
        driver.inspect(key).await?;
        let namespace = Namespace::default();
        let (prefix, space, after) = (String::new(), None, None);
        driver.list(&ListRequest { namespace, space, prefix, after, limit: 10 }).await?;
        driver.namespaces(None, 10).await?;
        driver.namespace_counter(&Namespace::default()).await?;
        driver.health().await.map(drop)
    };
    vec![
        ("resize", Box::pin(resize)),
        ("store", Box::pin(async move { register().store(b"value").await.map(drop) })),
        ("load", Box::pin(async move { register().load().await.map(drop) })),
        (
            "raise the base",
            Box::pin(async move { driver.raise_namespace_counter(&Namespace::default(), 1).await }),
        ),
        ("look", Box::pin(look)),
    ]
}

/// A lock, and a transaction of the program that it fences.
async fn fence(driver: &MySqlDriver, login: &str, locks: &Locks) -> Result<(), Error> {
    let name = format!("{}/fenced", locks.holders[0].claim.key.name);
    let locks = LockManager::new(driver.clone());
    let mutex = locks.mutex(name).auto_renew(false).ttl(LONG);
    let guard = mutex.try_lock().await?.expect("it is free");
    let lease = guard.lease();
    // A guard that is dropped is released in the background, while the next operation is watched.
    std::mem::forget(guard);
    let data = MySqlPool::connect(login).await.unwrap();
    let mut tx = data.begin().await.unwrap();
    lease.fence(&mut tx).await?;
    tx.commit().await.unwrap();
    assert_eq!(driver.release(&lease.claim()).await?, Released::Removed);
    Ok(())
}

fn holds(renewal: Renewal) -> Result<(), Error> {
    assert!(matches!(renewal, Renewal::Holds(_)), "{renewal:?}");
    Ok(())
}

fn granted(answer: Acquisition) -> Result<(), Error> {
    assert!(matches!(answer, Acquisition::Granted(_)), "{answer:?}");
    Ok(())
}

fn names(error: &Error, right: &str) -> bool {
    !error.is_retryable()
        && error.to_string().to_uppercase().contains(&format!("{right} COMMAND DENIED"))
}

impl Scene {
    /// Tries everything without a right, and what was refused once more with it. Says what was refused.
    async fn without(
        &mut self,
        right: &str,
        driver: &MySqlDriver,
        locks: &Locks,
    ) -> Vec<&'static str> {
        let mut refused = Vec::new();
        let login = self.login.clone();
        for (at, (what, work)) in operations(driver, &login, locks).into_iter().enumerate() {
            let before = self.contents().await;
            let Err(error) = work.await else { continue };
            assert!(names(&error, right), "{what} without {right}: {error}");
            // What is of several steps, and stopped between them, is of several operations.
            if what != "fence" {
                assert_eq!(self.contents().await, before, "{what} without {right} is half done");
            }
            refused.push((at, what));
        }
        self.grant(right).await;
        for (at, (what, work)) in operations(driver, &login, locks).into_iter().enumerate() {
            if refused.contains(&(at, what)) && what != "fence" {
                work.await.unwrap_or_else(|error| panic!("{what} with {right} again: {error}"));
            }
        }
        refused.into_iter().map(|(_, what)| what).collect()
    }

    /// After everything was done, each waiter behind a holder that has left holds.
    async fn moved_on(&self, locks: &Locks) {
        for number in [3, 7, 15] {
            let waiter = locks.holders[number].behind.as_ref().unwrap();
            holds(self.root.renew_single(waiter).await.unwrap()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_during_a_hold_stops_what_needs_it_and_nothing_else() {
    let mut scene = Scene::set().await;
    for (right, needed_by) in RIGHTS {
        let driver = connect(&scene.login).await.unwrap();
        let locks = Locks::made(&driver, &format!("during {right}")).await;
        scene.revoke(right).await;
        let refused = scene.without(right, &driver, &locks).await;
        assert!(needed_by.iter().all(|what| refused.contains(what)), "{right}: {refused:?}");
        scene.moved_on(&locks).await;
        drop(driver);
    }
    assert!(scene.server.is_awake());
}

#[tokio::test]
async fn a_program_that_starts_without_a_right_is_told_which() {
    let mut scene = Scene::set().await;
    for (right, needed_by) in RIGHTS {
        let locks = Locks::made(&scene.root.clone(), &format!("before {right}")).await;
        scene.revoke(right).await;
        let before = scene.contents().await;
        match connect(&scene.login).await {
            Ok(driver) => {
                let refused = scene.without(right, &driver, &locks).await;
                assert!(
                    needed_by.iter().all(|what| refused.contains(what)),
                    "{right}: {refused:?}"
                );
                scene.moved_on(&locks).await;
            }
            Err(error) => {
                assert!(names(&error, right), "without {right}: {error}");
                assert_eq!(scene.contents().await, before, "without {right}");
                scene.grant(right).await;
                connect(&scene.login).await.unwrap();
            }
        }
    }
}

//! PostgreSQL: the rights that the documentation names suffice, and each that is withdrawn makes what
//! needs it fail, whole, with an error that names the right; before a hold and during one.

mod submitting;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BreakMode, LockDriver, Patience, RegisterKey, Released, Renewal,
    SetLimit, Write,
};
use lockkit_core::state::{ListRequest, RegisterRequest};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Error, Key, Mode, Name, Namespace, Space, Token,
};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use submitting::*;

const LONG: Duration = Duration::from_secs(300);
const TABLES: [&str; 6] = ["meta", "names", "claims", "breaks", "registers", "counters"];
/// What only the sweep needs, which goes on without what it may not; a fence, or a waiter that is not
/// notified; and what nothing needs.
const SPARE: [&str; 11] = [
    "INSERT ON lockkit_meta",
    "UPDATE ON lockkit_meta",
    "DELETE ON lockkit_meta",
    "DELETE ON lockkit_names",
    "UPDATE ON lockkit_breaks",
    "DELETE ON lockkit_registers",
    "DELETE ON lockkit_counters",
    "EXECUTE ON lockkit_fence",
    "EXECUTE ON lockkit_poll",
    // Of a register that was written while the clock was ahead.
    "EXECUTE ON lockkit_redate",
    "EXECUTE ON lockkit_sweep",
];

/// A right that is granted, and as the tests name it.
struct Right {
    grant: String,
    name: String,
}

async fn execute(admin: &mut PgConnection, text: String) {
    admin.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap();
}

/// The documented rights, one by one.
async fn rights(admin: &mut PgConnection) -> Vec<Right> {
    let usage = Right { grant: "USAGE ON SCHEMA lockkit".into(), name: "USAGE".into() };
    let mut rights = vec![usage];
    for table in TABLES {
        for verb in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
            let name = format!("{verb} ON lockkit_{table}");
            rights.push(Right { grant: format!("{verb} ON lockkit.lockkit_{table}"), name });
        }
    }
    let functions = "SELECT oid::regprocedure::text, proname::text FROM pg_proc
        WHERE pronamespace = 'lockkit'::regnamespace ORDER BY 2";
    let functions: Vec<(String, String)> =
        sqlx::query_as(functions).fetch_all(admin).await.unwrap();
    rights.extend(functions.into_iter().map(|(function, name)| Right {
        grant: format!("EXECUTE ON FUNCTION {function}"),
        name: format!("EXECUTE ON {name}"),
    }));
    rights
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, me))
}

async fn take(driver: &PostgresDriver, claim: &Arc<Claim>) -> Token {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

/// All that is stored.
async fn stored(admin: &mut PgConnection) -> String {
    let rows = |table: &str| {
        format!(
            "(SELECT string_agg(t::text, '|' ORDER BY t::text) FROM lockkit.lockkit_{table} AS t)"
        )
    };
    let text = format!("SELECT concat_ws('#', {})", TABLES.map(rows).join(", "));
    sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(admin).await.unwrap()
}

type Operation<'a> = (&'static str, Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>);

/// What a client had before a right was withdrawn.
struct Scene {
    driver: PostgresDriver,
    /// Another client, which the server notifies.
    other: PostgresDriver,
    held: Arc<Claim>,
    waits: Arc<Claim>,
    victim: (Arc<Claim>, Token),
    leaves: Arc<Claim>,
    /// The second waits behind the first, for the other client.
    pair: [Arc<Claim>; 2],
    /// The second waits behind the first.
    passed: [Arc<Claim>; 2],
    /// As those; the second is to give up.
    given_up: [Arc<Claim>; 2],
}

impl Scene {
    async fn set(url: &str, n: usize) -> Self {
        let options = ServerOptions::default().connections(2);
        let driver = PostgresDriver::connect_with(url, options.clone()).await.unwrap();
        let other = PostgresDriver::connect_with(url, options).await.unwrap();
        let [held, waits] = [0; 2].map(|_| claim(&format!("held {n}")));
        let (victim, leaves) = (claim(&format!("victim {n}")), claim(&format!("leaves {n}")));
        take(&driver, &held).await;
        let token = take(&driver, &victim).await;
        take(&driver, &leaves).await;
        let pair = [0; 2].map(|_| claim(&format!("pair {n}")));
        take(&driver, &pair[0]).await;
        let [passed, given_up] =
            ["passed", "given up"].map(|name| [0; 2].map(|_| claim(&format!("{name} {n}"))));
        take(&driver, &passed[0]).await;
        take(&driver, &given_up[0]).await;
        let waiters = [&waits, &passed[1], &given_up[1]].map(|waits| (&driver, waits));
        for (driver, waits) in waiters.into_iter().chain([(&other, &pair[1])]) {
            let answer = driver.acquire(waits, Patience::Wait).await.unwrap().result;
            assert!(matches!(answer, Acquisition::Queued { .. }), "{answer:?}");
        }
        let victim = (victim, token);
        Self { driver, other, held, waits, victim, leaves, pair, passed, given_up }
    }

    fn operations(&self, n: usize) -> Vec<Operation<'_>> {
        let driver = &self.driver;
        let new = move |what: &str| claim(&format!("{what} {n}"));
        let register = RegisterKey {
            namespace: Namespace::default(),
            name: Name::new(format!("r {n}")).unwrap(),
        };
        let at = register.clone();
        vec![
            (
                "a try",
                Box::pin(
                    async move { driver.acquire(&new("tried"), Patience::Try).await.map(drop) },
                ),
            ),
            (
                "an acquire behind others",
                Box::pin(
                    async move { driver.acquire(&new("held"), Patience::Wait).await.map(drop) },
                ),
            ),
            (
                "a batch",
                Box::pin(async move {
                    let operations = ["one", "two", "held"].map(|name| wait(&new(name)));
                    let outcomes = submit(driver, &operations).await?;
                    outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
                }),
            ),
            (
                "a renewal",
                Box::pin(async {
                    let claims = [self.held.clone(), self.waits.clone()];
                    driver
                        .renew(&claims)
                        .await?
                        .into_iter()
                        .try_for_each(|renewal| renewal.map(drop))
                }),
            ),
            ("a shortening", Box::pin(async { driver.shorten(&self.held, LONG).await.map(drop) })),
            (
                "a break",
                Box::pin(async {
                    let (victim, token) = &self.victim;
                    let by = ClientIdentity::of_this_process();
                    let record = BreakRecord::from_parts(by, 1, None, true);
                    driver
                        .break_claim(&victim.key, *token, BreakMode::Forced, &record)
                        .await
                        .map(drop)
                }),
            ),
            ("a release", Box::pin(async { driver.release(&self.leaves).await.map(drop) })),
            ("a hand-over", Box::pin(async { driver.release(&self.pair[0]).await.map(drop) })),
            (
                "a hand-over with the next acquire",
                Box::pin(async move { replace(driver, &self.passed[0], new("passed")).await }),
            ),
            (
                "a waiter that gives up with the next acquire",
                Box::pin(async move { replace(driver, &self.given_up[1], new("given up")).await }),
            ),
            (
                "a resize",
                Box::pin(async move {
                    let name = Name::new(format!("s {n}")).unwrap();
                    let key = Key::new(Namespace::default(), Space::Semaphore, name);
                    driver.resize(&key, SetLimit::To(3)).await.map(drop)
                }),
            ),
            ("an inspection", Box::pin(async { driver.inspect(&self.held.key).await.map(drop) })),
            (
                "a list",
                Box::pin(async {
                    let namespace = Namespace::default();
                    let prefix = String::new();
                    let request =
                        ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
                    driver.list(&request).await.map(drop)
                }),
            ),
            ("namespaces", Box::pin(async { driver.namespaces(None, 10).await.map(drop) })),
            (
                "a store",
                Box::pin(async move {
                    let write = Write::of(Some(b"x".to_vec()));
                    driver.registers().unwrap().write(&register, &write).await.map(drop)
                }),
            ),
            (
                "a load",
                Box::pin(async move { driver.registers().unwrap().load(&at).await.map(drop) }),
            ),
            (
                "registers",
                Box::pin(async {
                    let namespace = Namespace::default();
                    let prefix = String::new();
                    let request = RegisterRequest { namespace, prefix, after: None, limit: 10 };
                    driver.registers().unwrap().page(&request).await.map(drop)
                }),
            ),
            (
                "the base",
                Box::pin(async { driver.namespace_counter(&Namespace::default()).await.map(drop) }),
            ),
            (
                "a raise of the base",
                Box::pin(async { driver.raise_namespace_counter(&Namespace::default(), 1).await }),
            ),
            ("health", Box::pin(async { driver.health().await.map(drop) })),
        ]
    }

    /// As nothing had happened.
    async fn goes_on(&self) {
        let renewed = self.driver.renew_single(&self.held).await.unwrap();
        assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
        let renewed = self.driver.renew_single(&self.waits).await.unwrap();
        assert!(matches!(renewed, Renewal::Waits { ahead: 1 }), "{renewed:?}");
        assert_eq!(self.driver.release(&self.held).await.unwrap(), Released::Removed);
        let renewed = self.driver.renew_single(&self.waits).await.unwrap();
        assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
        self.driver.close().await;
        self.other.close().await;
    }
}

/// One claim leaves its queue, and another one enters it, in one request.
async fn replace(
    driver: &PostgresDriver,
    leaving: &Arc<Claim>,
    claim: Arc<Claim>,
) -> Result<(), Error> {
    let acquires = [Acquire { claim, patience: Patience::Wait }];
    let batch = Batch { releases: std::slice::from_ref(leaving), acquires: &acquires };
    let mut outcome = driver.submit(batch).await.map_err(|failed| failed.error)?;
    outcome.released.remove(0).map_err(|failed| failed.error)?;
    outcome.acquired.remove(0).map(drop).map_err(|failed| failed.error)
}

/// An error that stays, and that names what is missing.
fn names_the_right(error: &Error, right: &Right, what: &str) {
    let said = error.to_string();
    assert!(!error.is_retryable(), "{what} without {}: {said}", right.name);
    let object = right.name.rsplit(' ').next().unwrap();
    let denied = match object {
        "USAGE" => "permission denied for schema lockkit".to_owned(),
        object => format!(
            "permission denied for {} {object}",
            match right.name.split(' ').next() {
                Some("EXECUTE") => "function",
                _ => "table",
            }
        ),
    };
    assert!(said.contains(&denied), "{what} without {}: {said}", right.name);
    let (verb, place) = match right.name.split(' ').next() {
        Some("USAGE") => ("USAGE", "SCHEMA \"lockkit\""),
        Some("EXECUTE") => ("EXECUTE", "ALL FUNCTIONS IN SCHEMA \"lockkit\""),
        _ => ("SELECT, INSERT, UPDATE, DELETE", "ALL TABLES IN SCHEMA \"lockkit\""),
    };
    let missing = format!("GRANT {verb} ON {place} TO \"locker\" is missing");
    assert!(said.contains(&missing), "{what} without {}: {said}", right.name);
}

#[tokio::test]
async fn each_right_that_is_withdrawn_is_named_and_nothing_is_half_done() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    PostgresDriver::connect(&server.url()).await.unwrap().close().await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let setting = "CREATE ROLE locker LOGIN;
        REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkit FROM PUBLIC;
        GRANT USAGE ON SCHEMA lockkit TO locker;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkit TO locker;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lockkit TO locker";
    execute(&mut admin, setting.to_owned()).await;
    let login = server.url().replacen("//postgres@", "//locker@", 1);
    let mut spare = BTreeSet::new();
    for (n, right) in rights(&mut admin).await.iter().enumerate() {
        let scene = Scene::set(&login, n).await;
        execute(&mut admin, format!("REVOKE {} FROM locker", right.grant)).await;
        let mut failed = 0;
        for (what, operation) in scene.operations(n) {
            let before = stored(&mut admin).await;
            if let Err(error) = operation.await {
                names_the_right(&error, right, what);
                assert_eq!(stored(&mut admin).await, before, "{what} without {}", right.name);
                failed += 1;
            }
        }
        // Before a hold: connecting says it, or what is done later.
        match PostgresDriver::connect(&login).await {
            Ok(driver) => driver.close().await,
            Err(error) => names_the_right(&error, right, "connecting"),
        }
        if failed == 0 {
            spare.insert(right.name.clone());
        }
        execute(&mut admin, format!("GRANT {} TO locker", right.grant)).await;
        scene.goes_on().await;
    }
    assert_eq!(spare, SPARE.map(str::to_owned).into(), "what no operation needs");
}

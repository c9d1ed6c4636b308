//! PostgreSQL where clients have different isolation levels, as users' defaults may make them.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Attempted, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);
const LEVELS: [(&str, &str); 3] = [
    ("committed", "read committed"),
    ("repeatable", "repeatable read"),
    ("serializable", "serializable"),
];

/// A server with a user for each level.
async fn server() -> Server {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    for (user, level) in LEVELS {
        for statement in [
            format!("CREATE ROLE {user} LOGIN SUPERUSER"),
            format!("ALTER ROLE {user} SET default_transaction_isolation = '{level}'"),
        ] {
            admin.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
        }
    }
    server
}

async fn driver(server: &Server, user: &str) -> PostgresDriver {
    let url = server.url().replace("//postgres@", &format!("//{user}@"));
    PostgresDriver::connect(&url).await.unwrap()
}

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("job").unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, me))
}

async fn waits_for_a_row(server: &Server, user: &str) {
    let mut looking = PgConnection::connect(&server.url()).await.unwrap();
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity \
                   WHERE usename = $1 AND wait_event_type = 'Lock')";
    while !sqlx::query_scalar::<_, bool>(waiting).bind(user).fetch_one(&mut looking).await.unwrap()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A release that only locked the row of the name, without writing it, would let the next one go on
/// with what it saw before: it would stand behind a claim that is gone, and nobody would wake it.
#[tokio::test]
async fn who_asks_with_an_older_snapshot_does_not_wait_for_a_claim_that_has_left() {
    let server = server().await;
    let ours = driver(&server, "committed").await;
    for user in ["repeatable", "serializable"] {
        let theirs = driver(&server, user).await;
        let held = claim();
        let answer = ours.acquire(&held, Patience::Wait).await;
        assert!(
            matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })),
            "{answer:?}"
        );
        // Two in line, then one: the holder's claim has a row of its own.
        let second = claim();
        let answer = ours.acquire(&second, Patience::Wait).await;
        assert!(
            matches!(answer, Ok(Attempted { result: Acquisition::Queued { ahead: 1 }, .. })),
            "{answer:?}"
        );
        ours.release(&second).await.unwrap();

        // The release has happened, and is not seen yet.
        let mut releasing = PgConnection::connect(&server.url()).await.unwrap();
        let mut transaction = releasing.begin().await.unwrap();
        let outcome: i64 =
            sqlx::query_scalar("SELECT outcome FROM lockkit.lockkit_release($1, 0, $2, $3, $4)")
                .bind(held.key.namespace.as_str().as_bytes())
                .bind(held.key.name.as_str().as_bytes())
                .bind(&held.id.as_bytes()[..])
                .bind(&b""[..])
                .fetch_one(&mut *transaction)
                .await
                .unwrap();
        assert_eq!(outcome, 1, "it was in line");

        let next = claim();
        let asking = tokio::spawn({
            let (theirs, next) = (theirs.clone(), next.clone());
            async move { theirs.acquire(&next, Patience::Wait).await }
        });
        timeout(LONG, waits_for_a_row(&server, user)).await.expect("it waits for the name's row");
        transaction.commit().await.unwrap();
        let answer = timeout(LONG, asking).await.unwrap().unwrap();
        assert!(
            matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })),
            "{user}: {answer:?}"
        );
        theirs.release(&next).await.unwrap();
    }
}

#[tokio::test]
async fn clients_of_all_levels_exclude_each_other_and_all_get_their_turns() {
    let server = server().await;
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut working = JoinSet::new();
    for (user, _) in LEVELS {
        let locks = LockManager::new(driver(&server, user).await);
        for _ in 0..3 {
            let (locks, inside) = (locks.clone(), inside.clone());
            working.spawn(async move {
                for _ in 0..10 {
                    use std::sync::atomic::Ordering::SeqCst;
                    let guard = locks.mutex("job").lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    timeout(LONG, working.join_all()).await.expect("nobody waits in vain");
}

/// Notes the level of every transaction that changes the row of a name in these tables.
async fn note_levels(admin: &mut PgConnection, tables: &str) {
    let text = format!(
        "CREATE TABLE {tables}.levels (level text);
         GRANT INSERT ON {tables}.levels TO PUBLIC;
         CREATE FUNCTION {tables}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO {tables}.levels VALUES (current_setting('transaction_isolation'));
           RETURN NEW;
         END $$;
         CREATE TRIGGER note BEFORE INSERT OR UPDATE ON {tables}.lockkit_names
           FOR EACH ROW EXECUTE FUNCTION {tables}.note()"
    );
    admin.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap();
}

/// Otherwise a renewal at the level of the users' transactions takes part in what these depend on.
#[tokio::test]
async fn lockkits_statements_run_at_read_committed_whatever_the_default_is() {
    let server = server().await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    for (user, _) in LEVELS {
        let url = server.url().replace("//postgres@", &format!("//{user}@"));
        for pooled in [false, true] {
            let tables = format!("{user}_{pooled}");
            let options = ServerOptions::default().tables(&tables);
            let made = PostgresDriver::connect_with(&server.url(), options.clone()).await.unwrap();
            note_levels(&mut admin, &tables).await;
            let driver = match pooled {
                false => PostgresDriver::connect_with(&url, options).await.unwrap(),
                true => {
                    let pool = sqlx::PgPool::connect(&url).await.unwrap();
                    PostgresDriver::with_pool(pool, options).await.unwrap()
                }
            };
            let (held, waits) = (claim(), claim());
            driver.acquire(&held, Patience::Wait).await.unwrap();
            driver.acquire(&waits, Patience::Wait).await.unwrap();
            driver.renew(&[held.clone(), waits.clone()]).await.unwrap();
            driver.release(&waits).await.unwrap();
            driver.release(&held).await.unwrap();
            let text = format!("SELECT DISTINCT level FROM {tables}.levels");
            let levels: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(&mut admin).await.unwrap();
            assert_eq!(levels, ["read committed"], "{user}, pool: {pooled}");
            made.close().await;
        }
    }
}

//! PostgreSQL where clients have different isolation levels, as users' defaults may make them.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Answered, LockDriver, Patience};
use lockkit_core::{Claim, Identity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::{Kind, Server};
use lockkit_sql::PostgresDriver;
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
    let server = Server::start(Kind::Postgres).await.unwrap();
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
    let me = Arc::new(Identity::of_this_process());
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
            matches!(answer, Ok(Answered { answer: Acquisition::Granted(_), .. })),
            "{answer:?}"
        );
        // Two in line, then one: the holder's claim has a row of its own.
        let second = claim();
        let answer = ours.acquire(&second, Patience::Wait).await;
        assert!(
            matches!(answer, Ok(Answered { answer: Acquisition::Queued { ahead: 1 }, .. })),
            "{answer:?}"
        );
        ours.release(&second).await.unwrap();

        // The release has happened, and is not seen yet.
        let mut releasing = PgConnection::connect(&server.url()).await.unwrap();
        let mut transaction = releasing.begin().await.unwrap();
        let outcome: i64 =
            sqlx::query_scalar("SELECT outcome FROM lockkit.lockkit_release($1, 0, $2, $3)")
                .bind(held.key.namespace.as_str().as_bytes())
                .bind(held.key.name.as_str().as_bytes())
                .bind(&held.id.as_bytes()[..])
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
            matches!(answer, Ok(Answered { answer: Acquisition::Granted(_), .. })),
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

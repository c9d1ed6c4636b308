//! `doctor` on real servers: it tries what locks need, and says which right or setting is missing.

use std::process::Output;

use lockkit_lab::{Server, ServerKind, SharedServer};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use crate::stage::{Stage, code, stderr, stdout};

/// What it ended with, and all that it said.
fn doctor(stage: &Stage, url: &str, options: &[&str]) -> (i32, String) {
    let output: Output = stage.run(&[&["doctor", "--url", url], options].concat());
    (code(&output), format!("{}{}", stdout(&output), stderr(&output)))
}

/// The lines that tell a problem.
fn problems(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("PROBLEM")).collect()
}

struct Postgres {
    admin: PgConnection,
    /// Of a user that has the rights that `lockkit schema` prints.
    url: String,
    user: String,
    schema: String,
}

impl Postgres {
    async fn new(stage: &Stage, name: &str) -> Self {
        let root = SharedServer::server(ServerKind::Postgres).await.unwrap().url().to_owned();
        let (user, schema) = (format!("doctor_{name}"), format!("doctor_{name}"));
        let login = root.replacen("postgres@", &format!("{user}@"), 1);
        let mark = if login.contains('?') { '&' } else { '?' };
        let url = format!("{login}{mark}tables={schema}");
        let mut it = Self { admin: PgConnection::connect(&root).await.unwrap(), url, user, schema };
        it.execute(&format!("CREATE ROLE {} LOGIN", it.user)).await;
        let output = stage.run(&["schema", "--url", &it.url]);
        it.execute(&stdout(&output)).await;
        // The right of all, which other set-ups revoke.
        let functions = format!("ALL FUNCTIONS IN SCHEMA {}", it.schema);
        it.execute(&format!("REVOKE EXECUTE ON {functions} FROM public")).await;
        it.execute(&format!("GRANT EXECUTE ON {functions} TO {}", it.user)).await;
        it
    }

    async fn execute(&mut self, sql: &str) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    }
}

#[tokio::test]
async fn on_postgres_each_right_that_is_missing_is_a_problem_that_names_it() {
    let stage = Stage::new();
    let mut server = Postgres::new(&stage, "rights").await;
    let (url, user, schema) = (server.url.clone(), server.user.clone(), server.schema.clone());
    let (well, said) = doctor(&stage, &url, &[]);
    assert_eq!((well, problems(&said)), (0, Vec::new()), "{said}");
    assert!(!said.contains("waiters poll"), "{said}");
    for (right, on, names) in [
        ("EXECUTE", "ALL FUNCTIONS IN SCHEMA", "lockkit_"),
        ("UPDATE", "lockkit_names", "lockkit_names"),
        ("UPDATE", "lockkit_claims", "lockkit_claims"),
        ("DELETE", "lockkit_claims", "lockkit_claims"),
        ("UPDATE", "lockkit_registers", "lockkit_registers"),
    ] {
        let object = match on {
            "ALL FUNCTIONS IN SCHEMA" => format!("{on} {schema}"),
            table => format!("{schema}.{table}"),
        };
        server.execute(&format!("REVOKE {right} ON {object} FROM {user}")).await;
        let (ended, said) = doctor(&stage, &url, &[]);
        assert_eq!(ended, 1, "{right} {on}: {said}");
        let problems = problems(&said);
        assert!(!problems.is_empty(), "{right} {on}: {said}");
        assert!(problems.iter().all(|line| line.contains(names)), "{right} {on}: {said}");
        server.execute(&format!("GRANT {right} ON {object} TO {user}")).await;
    }
    let renew = format!("EXECUTE ON FUNCTION {schema}.lockkit_renew");
    server.execute(&format!("REVOKE {renew} FROM {user}")).await;
    let (ended, said) = doctor(&stage, &url, &[]);
    assert_eq!(ended, 1, "{said}");
    // It renews what it holds, before it waits and renews what waits.
    let is_found = |line: &&str| line.contains("renewing a lock") && line.contains("lockkit_renew");
    assert!(problems(&said).iter().any(is_found), "{said}");
    server.execute(&format!("GRANT {renew} TO {user}")).await;
    assert_eq!(doctor(&stage, &url, &[]).0, 0);
}

#[tokio::test]
async fn a_login_that_may_only_look_is_one_problem_and_none_with_look() {
    let stage = Stage::new();
    let mut server = Postgres::new(&stage, "looks").await;
    let (url, user, schema) = (server.url.clone(), server.user.clone(), server.schema.clone());
    let tables = format!("ALL TABLES IN SCHEMA {schema}");
    server.execute(&format!("REVOKE INSERT, UPDATE, DELETE ON {tables} FROM {user}")).await;
    let (ended, said) = doctor(&stage, &url, &[]);
    assert_eq!(ended, 1, "{said}");
    let problems = problems(&said);
    assert_eq!(problems.len(), 1, "{said}");
    assert!(problems[0].contains("this login may not take locks"), "{said}");
    let (ended, said) = doctor(&stage, &url, &["--read-only"]);
    assert_eq!(ended, 0, "{said}");
}

#[tokio::test]
async fn doctors_wait_for_each_other_and_leave_nothing() {
    let stage = Stage::new();
    let server = Postgres::new(&stage, "many").await;
    let all: Vec<_> = (0..4)
        .map(|_| {
            let mut command = stage.lockkit(&["doctor", "--url", &server.url]);
            command.stdout(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for one in all {
        let output = one.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{}", stdout(&output));
    }
    for what in [&["ls"][..], &["ls", "--registers"]] {
        let left = stage.run(&[what, &["--json", "--url", &server.url]].concat());
        assert_eq!(stdout(&left).trim(), "[]", "{what:?}");
    }
}

struct MariaDb {
    server: Server,
    admin: MySqlConnection,
    url: String,
}

impl MariaDb {
    /// With a user that has the documented rights, and the tables made.
    async fn new(stage: &Stage) -> Self {
        let server = Server::start(ServerKind::MariaDb).await.unwrap();
        let root = server.url();
        let made = stage.run(&["run", "--url", &root, "a", "true"]);
        assert_eq!(code(&made), 0, "{}", stderr(&made));
        let admin = MySqlConnection::connect(&root).await.unwrap();
        let url = root.replacen("root@", "locker@", 1);
        let mut it = Self { server, admin, url };
        it.execute("CREATE USER locker@'%'").await;
        it.execute("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON *.* TO locker@'%'").await;
        it
    }

    async fn execute(&mut self, sql: &str) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    }
}

#[tokio::test]
async fn on_mariadb_each_right_that_is_missing_is_a_problem_that_names_it() {
    let stage = Stage::new();
    let mut server = MariaDb::new(&stage).await;
    let url = server.url.clone();
    let (well, said) = doctor(&stage, &url, &[]);
    assert_eq!((well, problems(&said)), (0, Vec::new()), "{said}");
    for right in ["EXECUTE", "UPDATE", "DELETE", "INSERT"] {
        server.execute(&format!("REVOKE {right} ON *.* FROM locker@'%'")).await;
        let (ended, said) = doctor(&stage, &url, &[]);
        assert_eq!(ended, 1, "{right}: {said}");
        let words = right.to_lowercase();
        let problems = problems(&said);
        assert!(!problems.is_empty(), "{right}: {said}");
        assert!(problems[0].to_lowercase().contains(&words), "{right}: {said}");
        server.execute(&format!("GRANT {right} ON *.* TO locker@'%'")).await;
    }
    assert_eq!(doctor(&stage, &url, &[]).0, 0);
    drop(server.server);
}

#[tokio::test]
async fn on_mariadb_doctor_says_that_all_is_well_exactly_where_locks_work() {
    let stage = Stage::new();
    let mut server = MariaDb::new(&stage).await;
    let url = server.url.clone();
    for (variable, value, default) in [
        ("binlog_format", "STATEMENT", "MIXED"),
        ("sql_safe_updates", "1", "0"),
        ("completion_type", "1", "0"),
        ("completion_type", "2", "0"),
        ("tx_read_only", "1", "0"),
    ] {
        server.execute(&format!("SET GLOBAL {variable} = {value}")).await;
        // Held for several renewals, and handed over.
        let run = ["run", "--url", &url, "--wait", "10s", "--ttl", "1s", "a", "sleep", "1.5"];
        let works = code(&stage.run(&run)) == 0;
        let (ended, said) = doctor(&stage, &url, &[]);
        assert_eq!(ended == 0, works, "{variable}={value}: {said}");
        assert_eq!(problems(&said).is_empty(), works, "{variable}={value}: {said}");
        server.execute(&format!("SET GLOBAL {variable} = {default}")).await;
    }
    drop(server.server);
}

#[tokio::test]
async fn a_setting_that_every_lock_fails_with_is_a_problem_that_names_it() {
    let stage = Stage::new();
    // A log in statements is possible only where there is one.
    let server = Server::start_mariadb_with(&["--log-bin", "--binlog-format=STATEMENT"]);
    let server = server.await.unwrap();
    let (ended, said) = doctor(&stage, &server.url(), &[]);
    assert_eq!(ended, 1, "{said}");
    assert!(said.to_lowercase().contains("binlog_format"), "{said}");
}

#[tokio::test]
async fn on_redis_what_is_refused_is_a_problem_and_messages_that_do_not_come_are_a_warning() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let user = |name: &str| server.url().replacen("redis://", &format!("redis://{name}:pw@"), 1);
    let acl = async |name: &str, rules: &[&str]| {
        let words = [&["ACL", "SETUSER", name, "on", ">pw", "~*", "+@all"], rules].concat();
        lockkit_lab::raw::resp::ask(server.addr(), &words).await.unwrap();
    };
    acl("whole", &["&*"]).await;
    let (ended, said) = doctor(&stage, &user("whole"), &[]);
    assert_eq!((ended, problems(&said)), (0, Vec::new()), "{said}");
    assert!(!said.contains("warning"), "{said}");
    for (name, rules) in [("mute", &["&*", "-publish"][..]), ("deaf", &["resetchannels"])] {
        acl(name, rules).await;
        let (ended, said) = doctor(&stage, &user(name), &[]);
        assert_eq!(ended, 0, "{name}: {said}");
        assert!(said.contains("warning  waiters poll"), "{name}: {said}");
    }
    acl("half", &["&*", "-hdel"]).await;
    let (ended, said) = doctor(&stage, &user("half"), &[]);
    assert_eq!(ended, 1, "{said}");
    assert!(problems(&said).iter().any(|line| line.to_lowercase().contains("hdel")), "{said}");
}

#[tokio::test]
async fn an_eviction_policy_is_a_problem_and_run_says_it_once() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let ran = || {
        let output = stage.run(&["run", "--url", &server.url(), "a", "true"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(ran(), "");
    for policy in ["volatile-lru", "allkeys-lfu"] {
        let words = ["CONFIG", "SET", "maxmemory-policy", policy];
        lockkit_lab::raw::resp::ask(server.addr(), &words).await.unwrap();
        let (ended, said) = doctor(&stage, &server.url(), &["--read-only"]);
        assert_eq!(ended, 1, "{said}");
        assert!(problems(&said).iter().any(|line| line.contains(policy)), "{said}");
        let said = ran();
        assert!(said.lines().count() == 1 && said.contains(policy), "{said}");
    }
}

#[tokio::test]
async fn of_several_backends_each_is_tried_by_itself() {
    let stage = Stage::new();
    let good = stage.path("good.db").display().to_string();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let words =
        ["ACL", "SETUSER", "looker", "on", ">pw", "~*", "&*", "+@read", "+@connection", "+info"];
    lockkit_lab::raw::resp::ask(server.addr(), &words).await.unwrap();
    let bad = server.url().replacen("redis://", "redis://looker:pw@", 1);
    let (ended, said) = doctor(&stage, &format!("mirror:sqlite:{good},{bad}"), &[]);
    assert_eq!(ended, 1, "{said}");
    assert!(!said.contains("pw@"), "{said}");
    let shown = bad.replacen(":pw@", ":***@", 1);
    assert!(said.contains(&shown), "{said}");
}

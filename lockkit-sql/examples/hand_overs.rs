//! Measures hand-overs of one lock on servers that it starts: what they leave in the tables, and how long they
//! take between processes. `bench/README.md` has figures.
//!
//! ```console
//! $ cargo run -p lockkit-sql --example hand_overs -- rows postgres 120
//! $ cargo run -p lockkit-sql --example hand_overs -- rows postgres 120 snapshot    # one is held open
//! $ cargo run -p lockkit-sql --example hand_overs -- processes mariadb 20
//! ```
//! `SQL`, if it is set, is run before.

use std::error::Error;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkit_core::LockManager;
use lockkit_core::clock::{BootClock, Clock};
use lockkit_lab::{Server, ServerKind};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, Row};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const TASKS: usize = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["rows", kind, seconds] => rows(kind_of(kind)?, seconds.parse()?, false).await,
        ["rows", kind, seconds, "snapshot"] => rows(kind_of(kind)?, seconds.parse()?, true).await,
        ["processes", kind, seconds] => processes(kind_of(kind)?, seconds).await,
        ["process", url, seconds] => process(url, Duration::from_secs(seconds.parse()?)).await,
        _ => Err("rows postgres|mariadb SECONDS [snapshot] | processes mariadb SECONDS".into()),
    }
}

fn kind_of(name: &str) -> Result<ServerKind> {
    match name {
        "postgres" => Ok(ServerKind::Postgres),
        "mariadb" => Ok(ServerKind::MariaDb),
        _ => Err("postgres or mariadb".into()),
    }
}

/// A connection to look at the server with.
enum Admin {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Admin {
    async fn connect(kind: ServerKind, url: &str) -> Result<Self> {
        Ok(match kind {
            ServerKind::Postgres => Self::Postgres(PgConnection::connect(url).await?),
            _ => Self::MySql(MySqlConnection::connect(url).await?),
        })
    }

    async fn run(&mut self, sql: &str) -> Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Postgres(admin) => admin.execute(sql).await.map(drop)?,
            Self::MySql(admin) => admin.execute(sql).await.map(drop)?,
        }
        Ok(())
    }

    /// What the hand-overs have left, as a line.
    async fn report(&mut self) -> Result<String> {
        match self {
            Self::Postgres(admin) => {
                let sizes = "SELECT concat_ws(', ', relname, pg_table_size(relid) / 1024 || ' kB',
                        'indexes ' || pg_indexes_size(relid) / 1024 || ' kB', n_dead_tup || ' dead',
                        'HOT ' || n_tup_hot_upd || ' of ' || n_tup_upd || ' updates',
                        autovacuum_count || ' vacuums')
                    FROM pg_stat_user_tables
                    WHERE relname IN ('lockkit_names', 'lockkit_claims') ORDER BY 1";
                let rows = admin.fetch_all(sizes).await?;
                let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
                Ok(lines.join("; "))
            }
            Self::MySql(admin) => {
                let history = "SELECT count FROM information_schema.innodb_metrics
                    WHERE name = 'trx_rseg_history_len'";
                let history: i64 = admin.fetch_one(history).await?.get(0);
                let sizes = "SELECT CONVERT(GROUP_CONCAT(name, ' ', file_size DIV 1024, ' kB') USING utf8mb4)
                    FROM information_schema.innodb_sys_tablespaces
                    WHERE name LIKE '%lockkit_names' OR name LIKE '%lockkit_claims'
                    OR name LIKE '%system'";
                let sizes: Option<String> = admin.fetch_one(sizes).await?.get(0);
                Ok(format!("history {history}, {}", sizes.unwrap_or_default()))
            }
        }
    }
}

/// A server whose commits wait for the disk.
async fn start(kind: ServerKind) -> Result<(Server, Admin)> {
    let server = Server::start(kind).await?;
    let mut admin = Admin::connect(kind, &server.url()).await?;
    match kind {
        ServerKind::Postgres => {
            admin.run("ALTER SYSTEM SET fsync = on").await?;
            admin.run("SELECT pg_reload_conf()").await?;
        }
        _ => admin.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await?,
    }
    Ok((server, admin))
}

/// What hand-overs within a process leave in the tables.
async fn rows(kind: ServerKind, seconds: u64, has_snapshot: bool) -> Result<()> {
    let (server, mut admin) = start(kind).await?;
    let locks = lockkit::connect(&server.url()).await?;
    if let Ok(sql) = std::env::var("SQL") {
        admin.run(&sql).await?;
    }
    let mut old = Admin::connect(kind, &server.url()).await?;
    if has_snapshot {
        let begin = match kind {
            ServerKind::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
            _ => "START TRANSACTION WITH CONSISTENT SNAPSHOT",
        };
        old.run(begin).await?;
    }
    let done = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> =
        (0..TASKS).map(|_| tokio::spawn(pairs(locks.clone(), done.clone()))).collect();
    let mut before = 0;
    for tens in 1..=seconds / 10 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let now = done.load(Relaxed);
        println!("{:>4} s {:>6}/s  {}", tens * 10, (now - before) / 10, admin.report().await?);
        before = now;
    }
    tasks.iter().for_each(|task| task.abort());
    locks.shutdown().await;
    println!("{before} hand-overs");
    Ok(())
}

async fn pairs(locks: LockManager, done: Arc<AtomicU64>) -> Result<()> {
    let mutex = locks.mutex("hot");
    loop {
        mutex.lock().await?.release().await?;
        done.fetch_add(1, Relaxed);
    }
}

/// How long a release takes to reach the waiter in the other one of two processes.
async fn processes(kind: ServerKind, seconds: &str) -> Result<()> {
    let (server, mut admin) = start(kind).await?;
    let locks = lockkit::connect(&server.url()).await?;
    let before = statements(&mut admin).await?;
    let (program, url) = (std::env::current_exe()?, server.url());
    let start = || {
        let mut command = Command::new(&program);
        command.args(["process", url.as_str(), seconds]).stdout(Stdio::piped());
        command.kill_on_drop(true).spawn()
    };
    let [first, second] = [start()?, start()?];
    let (first, second) = tokio::try_join!(holds(first), holds(second))?;
    let asked = statements(&mut admin).await? - before;
    locks.shutdown().await;
    let polls = asked.saturating_sub((first.len() + second.len()) as u64 * 2);
    println!("{} polls a second and process", polls / seconds.parse::<u64>()? / 2);
    let mut all: Vec<_> = first.into_iter().map(|hold| (hold, 0)).collect();
    all.extend(second.into_iter().map(|hold| (hold, 1)));
    all.sort_unstable();
    let between = all.windows(2).filter(|two| two[0].1 != two[1].1);
    let (mut whole, mut after) = (Vec::new(), Vec::new());
    for [(holder, _), (next, _)] in between.filter_map(|two| two.first_chunk::<2>()) {
        whole.push(next.granted.saturating_sub(holder.releasing));
        after.push(next.granted.saturating_sub(holder.released));
    }
    print("from the sending of the release to the grant", whole);
    print("from its answer to the grant", after);
    Ok(())
}

fn print(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).map_or(0.0, |it| *it as f64 / 1e6);
    let (p50, p90, p99) = (at(50), at(90), at(99));
    println!(
        "{} hand-overs between two, {what}: p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2} ms",
        times.len()
    );
}

async fn statements(admin: &mut Admin) -> Result<u64> {
    let Admin::MySql(admin) = admin else { return Ok(0) };
    let count = "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'";
    Ok(admin.fetch_one(count).await?.get::<String, _>(1).parse()?)
}

/// When a process got the lock, when it began to release it, and when that was answered.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    granted: u64,
    releasing: u64,
    released: u64,
}

async fn holds(mut process: tokio::process::Child) -> Result<Vec<Hold>> {
    let output = process.stdout.take().ok_or("its output is piped")?;
    let (mut lines, mut holds) = (BufReader::new(output).lines(), Vec::new());
    while let Some(line) = lines.next_line().await? {
        let mut moments = line.split(' ').map(str::parse);
        let mut next = || moments.next().ok_or("three moments");
        holds.push(Hold { granted: next()??, releasing: next()??, released: next()?? });
    }
    process.wait().await?;
    Ok(holds)
}

/// One of two processes, each with a task that takes the lock again and again.
async fn process(url: &str, lasts: Duration) -> Result<()> {
    let locks = lockkit::connect(url).await?;
    let (begun, mutex) = (Instant::now(), locks.mutex("hot"));
    let (mut holds, now) = (Vec::new(), || BootClock.now().as_nanos());
    while begun.elapsed() < lasts {
        let guard = mutex.lock().await?;
        let granted = now();
        // The other one is in the queue by then.
        tokio::time::sleep(hold()).await;
        let releasing = now();
        guard.release().await?;
        holds.push(Hold { granted, releasing, released: now() });
    }
    locks.shutdown().await;
    for Hold { granted, releasing, released } in holds {
        println!("{granted} {releasing} {released}");
    }
    Ok(())
}

/// For how long the lock is held: `HOLD` in milliseconds.
fn hold() -> Duration {
    Duration::from_millis(std::env::var("HOLD").ok().and_then(|ms| ms.parse().ok()).unwrap_or(2))
}

//! A SQLite file, by the backup API, by `cp`, and row by row.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, LockDriver, Patience, Precondition, Renewal, Version, Write, WriteResult,
};
use lockkit_core::{LockManager, Mode, Namespace, Settings, Token};
use lockkit_sql::{SqliteDriver, SqliteOptions};
use rusqlite::Connection;

use crate::support::*;
use crate::{Clients, put_back_under};

/// Renewed every second.
const LEASE: Duration = Duration::from_secs(3);
const DAYS: Duration = Duration::from_secs(5 * 86_400);

/// How older data come back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// SQLite's backup API, as `.restore` of its shell.
    Backup,
    /// `cp` over the file, when the log is empty.
    Copy,
    /// The rows of claims, registers and counters are deleted, and the older ones inserted.
    Rows,
    /// The row that remembers the list's last place is deleted, and the counter is set back.
    Deleted,
}

/// An older state of a file, kept beside it.
struct Older {
    folder: tempfile::TempDir,
}

impl Older {
    fn of(file: &Path) -> Self {
        let older = Self { folder: folder() };
        let source = Connection::open(file).unwrap();
        source.backup("main", older.path(), None).unwrap();
        older
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("older.db")
    }

    fn put_back(&self, way: Way, file: &Path) {
        let mut target = Connection::open(file).unwrap();
        target.busy_timeout(Duration::from_secs(10)).unwrap();
        match way {
            Way::Backup => {
                target
                    .restore("main", self.path(), None::<fn(rusqlite::backup::Progress)>)
                    .unwrap();
            }
            Way::Copy => {
                let empty = target
                    .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
                assert_eq!(empty.unwrap(), 0, "nobody reads: the log is emptied");
                std::fs::copy(self.path(), file).unwrap();
            }
            Way::Rows => {
                target.execute("ATTACH ?1 AS older", [self.path().to_str().unwrap()]).unwrap();
                let tables = ["meta", "claims", "registers", "counters", "breaks", "limits"];
                let table = |table: &str| {
                    format!(
                        "DELETE FROM main.lockkit_{table};
                         INSERT INTO main.lockkit_{table} SELECT * FROM older.lockkit_{table};"
                    )
                };
                let all: String = tables.into_iter().map(table).collect();
                target.execute_batch(&format!("BEGIN IMMEDIATE; {all} COMMIT")).unwrap();
            }
            Way::Deleted => {
                let all =
                    "BEGIN IMMEDIATE; DELETE FROM lockkit_claims; DELETE FROM lockkit_registers;
                    UPDATE lockkit_meta SET token = 1, ceiling = 1; COMMIT";
                target.execute_batch(all).unwrap();
            }
        }
    }
}

async fn used(driver: &SqliteDriver) -> Token {
    let claim = exclusive("a");
    let token = take(driver, &claim).await.token;
    driver.release(&claim).await.unwrap();
    token
}

async fn stored(driver: &SqliteDriver) -> Version {
    let write = Write::of(Some(b"x".to_vec()));
    match driver.registers().unwrap().write(&register("r"), &write).await.unwrap().result {
        WriteResult::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

const FILE: &str = "LOCKKIT_TEST_FILE";

/// What another process does, which is this same binary; does nothing where it is none.
#[tokio::test]
async fn a_child_locks_and_writes_once() {
    if let Some(file) = std::env::var_os(FILE) {
        let driver = SqliteDriver::open(file, SqliteOptions::default()).await.unwrap();
        println!("\nnumbers {} {}", used(&driver).await, stored(&driver).await.0);
    }
}

/// The numbers of a process that knows nothing of those given before.
fn in_another_process(file: &Path) -> (Token, Version) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::a_child_locks_and_writes_once", "--nocapture"])
        .env(FILE, file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let numbers = said.lines().find_map(|line| line.strip_prefix("numbers "));
    let numbers = numbers.and_then(|numbers| numbers.split_once(' '));
    let (token, version) = numbers.unwrap_or_else(|| panic!("{child:?}"));
    (Token::new(token.parse().unwrap()).unwrap(), Version(version.parse().unwrap()))
}

#[tokio::test]
async fn tokens_and_versions_grow_although_older_data_are_put_back_under_an_open_file() {
    for way in [Way::Backup, Way::Copy, Way::Rows, Way::Deleted] {
        let folder = folder();
        let (ours, theirs) = (open(&folder).await, open(&folder).await);
        let namespace = Namespace::default();
        ours.raise_namespace_counter(&namespace, 1_000).await.unwrap();
        used(&ours).await;
        stored(&ours).await;
        let older = Older::of(ours.path());
        let (mut token, mut version) = (used(&ours).await, stored(&ours).await);
        for _ in 0..3 {
            (token, version) = (used(&theirs).await, stored(&theirs).await);
        }
        ours.raise_namespace_counter(&namespace, 2_000).await.unwrap();
        assert_eq!(ours.namespace_counter(&namespace).await.unwrap(), 2_000);
        older.put_back(way, ours.path());
        // Another process, then those who come later here, then those who had it open.
        let others = in_another_process(ours.path());
        assert!(others.0 > token, "{way:?}: {} after {token}", others.0);
        assert!(others.1 > version, "{way:?}: {:?} after {version:?}", others.1);
        (token, version) = others;
        let later = open(&folder).await;
        for driver in [&later, &ours, &theirs] {
            let (next, stored) = (used(driver).await, stored(driver).await);
            assert!(next > token, "{way:?}: {next} after {token}");
            assert!(stored > version, "{way:?}: {stored:?} after {version:?}");
            (token, version) = (next, stored);
        }
        let base = later.namespace_counter(&namespace).await.unwrap();
        if matches!(way, Way::Deleted) {
            assert_eq!(base, 2_000, "it was not deleted");
            continue;
        }
        assert_eq!(base, 1_000, "{way:?}: of before the older state was kept");
        let fell = ours.namespace_counter(&namespace).await.unwrap_err();
        assert!(fell.to_string().contains("went back from 2000 to 1000"), "{way:?}: {fell}");
    }
}

#[tokio::test]
async fn clients_that_hold_wait_watch_and_do_nothing_go_on_when_older_data_are_put_back() {
    for way in [Way::Backup, Way::Rows] {
        let folder = folder();
        let file = folder.path().join("locks.db");
        let connect = async || {
            let driver = SqliteDriver::open(&file, SqliteOptions::default()).await.unwrap();
            let settings = Settings::default().ttl(LEASE).wait_ttl(LEASE);
            LockManager::with(Arc::new(driver), settings).unwrap()
        };
        let clients = Clients {
            holds: connect().await,
            waits: connect().await,
            watches: connect().await,
            idle: connect().await,
        };
        let keep = async || Older::of(&file);
        put_back_under(&clients, keep, async |older| older.put_back(way, &file), connect).await;
    }
}

/// What is given exceeds the wall clock where a token was raised, or where the clock was set back.
#[tokio::test]
async fn what_this_process_has_given_is_never_given_again() {
    let folder = folder();
    let (ours, theirs) = (open(&folder).await, open(&folder).await);
    let older = Older::of(ours.path());
    let holder = exclusive("a");
    let token = take(&ours, &holder).await.token;
    let high = Token::new(token.get() + 1_000_000_000_000).unwrap();
    let raised = ours.raise(&holder, high).await.unwrap();
    assert!(matches!(raised, Renewal::Holds(grant) if grant.token == high), "{raised:?}");
    ours.release(&holder).await.unwrap();
    let version = stored(&ours).await;
    older.put_back(Way::Rows, ours.path());
    for driver in [&theirs, &ours] {
        assert!(used(driver).await > high);
    }
    assert!(stored(&theirs).await > version);
}

/// What a file counts in advance is a minute of tokens: so it waits for the disk once a minute for them.
#[tokio::test]
async fn a_file_waits_for_the_disk_once_a_minute_for_its_tokens() {
    let folder = folder();
    let driver = open(&folder).await;
    let token = used(&driver).await;
    let file = Connection::open(driver.path()).unwrap();
    let ceiling = || {
        file.query_row("SELECT ceiling FROM lockkit_meta", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let first = ceiling();
    let room = Duration::from_micros((first - token.as_i64()) as u64);
    assert!(room > Duration::from_secs(50) && room <= Duration::from_secs(60), "{room:?}");
    for _ in 0..100 {
        used(&driver).await;
    }
    assert_eq!(ceiling(), first);
    // As it is a minute later.
    file.execute("UPDATE lockkit_meta SET ceiling = ?1", [token.as_i64()]).unwrap();
    used(&driver).await;
    let next = ceiling();
    assert!(next >= first, "{next} after {first}");
    used(&driver).await;
    assert_eq!(ceiling(), next);
}

#[tokio::test]
async fn a_claim_of_another_boot_that_is_put_back_ends_after_one_ttl() {
    let folder = folder();
    let clock = Hand::new();
    let driver = open_at(&folder, &clock, "boot").await;
    let (holder, waiter) = (exclusive("a"), claim("a", Mode::Shared));
    take(&driver, &holder).await;
    queue(&driver, &waiter).await;
    let forgotten = exclusive("b");
    take(&driver, &forgotten).await;
    let days = DAYS.as_nanos() as i64;
    let file = Connection::open(driver.path()).unwrap();
    let text = "UPDATE lockkit_claims SET queued = queued + ?1, asked = asked + ?1,
        expires = expires + ?1, held = held + ?1";
    assert_eq!(file.execute(text, [days]).unwrap(), 3);
    // Whoever sees it first begins its ttl; asking again does not begin it again.
    let next = exclusive("a");
    queue(&driver, &next).await;
    clock.forward(TTL / 2);
    let other = open_at(&folder, &clock, "boot").await;
    let shown = other.inspect(&next.key).await.unwrap().queue;
    assert_eq!(shown.first().map(|first| first.expires_in), Some(TTL / 2));
    let busy = other.acquire(&exclusive("a"), Patience::Try).await.unwrap().result;
    assert_eq!(busy, Acquisition::Busy);
    // The waiter that was put back has gone by now, as it waits for 10 s; the holder goes now.
    other.renew(std::slice::from_ref(&next)).await.unwrap();
    clock.forward(TTL / 2);
    take(&other, &exclusive("a")).await;
    // In passing, also where nobody asks.
    let rows = || {
        let text = "SELECT count(*) FROM lockkit_claims WHERE name = 'b' AND expires > ?1";
        file.query_row(text, [clock_now(&clock)], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(rows(), 1);
    for _ in 0..1_100 {
        let claim = exclusive("busy");
        take(&other, &claim).await;
        other.release(&claim).await.unwrap();
    }
    clock.forward(TTL);
    assert_eq!(rows(), 0);
}

fn clock_now(clock: &Hand) -> i64 {
    lockkit_core::clock::Clock::now(clock).as_nanos() as i64
}

#[tokio::test]
async fn a_value_of_another_boot_that_is_put_back_ends_after_its_ttl() {
    let folder = folder();
    let clock = Hand::new();
    let driver = open_at(&folder, &clock, "boot").await;
    let registers = driver.registers().unwrap();
    let write = Write { ttl: Some(TTL), ..Write::of(Some(b"x".to_vec())) };
    for name in ["read", "written"] {
        registers.write(&register(name), &write).await.unwrap();
    }
    let delete = Write::of(None);
    registers.write(&register("empty"), &write).await.unwrap();
    registers.write(&register("empty"), &delete).await.unwrap();
    let file = Connection::open(driver.path()).unwrap();
    let text = "UPDATE lockkit_registers SET expires = expires + ?1, purge_at = purge_at + ?1";
    assert_eq!(file.execute(text, [DAYS.as_nanos() as i64]).unwrap(), 3);

    let if_absent = || Write { expect: Precondition::Absent, ..Write::of(Some(b"y".to_vec())) };
    let written =
        async || registers.write(&register("written"), &if_absent()).await.unwrap().result;
    assert!(registers.load(&register("read")).await.unwrap().is_some());
    assert_eq!(written().await, WriteResult::Conflict);
    clock.forward(TTL / 2);
    assert!(registers.load(&register("read")).await.unwrap().is_some());
    assert_eq!(written().await, WriteResult::Conflict);
    clock.forward(TTL / 2);
    assert!(registers.load(&register("read")).await.unwrap().is_none());
    assert!(matches!(written().await, WriteResult::Stored(_)));
    // What only remembers a write is swept ten minutes after it is noticed.
    let sweep = async || {
        for _ in 0..1_100 {
            used(&driver).await;
        }
    };
    sweep().await;
    clock.forward(Duration::from_secs(601));
    sweep().await;
    let text = "SELECT count(*) FROM lockkit_registers WHERE name = 'empty'";
    assert_eq!(file.query_row(text, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

/// Another boot goes on above the wall clock as well, however old the file is that it finds.
#[tokio::test]
async fn another_boot_that_finds_an_older_file_gives_greater_tokens() {
    let folder = folder();
    let clock = Hand::new();
    let before = open_at(&folder, &clock, "boot 1").await;
    let older = Older::of(before.path());
    let token = used(&before).await;
    older.put_back(Way::Rows, before.path());
    let options = SqliteOptions::default().clock_of_boot(clock.clone(), "boot 2");
    let after = SqliteDriver::open(before.path(), options).await.unwrap();
    assert!(used(&after).await > token);
}

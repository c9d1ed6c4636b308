//! Many processes on one file. The children are this same binary: the test
//! `a_child_does_its_part` is what they run, with their part in the environment.
#![allow(missing_docs)]

mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkit_core::Mode;
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_sql::{SqliteDriver, SqliteOptions};
use support::*;

const PART: &str = "LOCKKIT_TEST_PART";
const FOLDER: &str = "LOCKKIT_TEST_FOLDER";
const ROUNDS: usize = 50;
const BATCHES: usize = 6;
const BATCH: usize = 20;

#[tokio::test]
async fn a_child_does_its_part() {
    let own = folder();
    let folder = std::env::var_os(FOLDER).map_or_else(|| own.path().to_owned(), PathBuf::from);
    let part = std::env::var(PART).unwrap_or_else(|_| "count".to_owned());
    let driver =
        SqliteDriver::open(folder.join("locks.db"), SqliteOptions::default()).await.unwrap();
    match part.as_str() {
        "count" => count(&driver, &folder).await,
        "hold" => {
            let ttl = Duration::from_millis(700);
            take(&driver, &claim_for("a", Mode::Exclusive, ttl, ttl)).await;
            println!("\nheld");
            std::future::pending().await
        }
        "keep" => {
            let claim = exclusive("a");
            println!("\nheld {}", take(&driver, &claim).await.token);
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            let error = driver.renew(std::slice::from_ref(&claim)).await.unwrap_err();
            println!("\ntold {error}");
            println!("\nreleased {:?}", driver.release(&claim).await.is_ok());
        }
        "wait" => {
            for _ in 0..BATCHES * BATCH {
                let claim = exclusive("a");
                queue(&driver, &claim).await;
                println!("\nqueued");
                driver.granted(&claim).await.unwrap();
                let now = BootClock.now().as_nanos();
                println!("\ngranted {now}");
                driver.release(&claim).await.unwrap();
                println!("\nreleased");
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).unwrap();
            }
        }
        other => panic!("{other} is not a part"),
    }
}

async fn count(driver: &SqliteDriver, folder: &Path) {
    for _ in 0..ROUNDS {
        let claim = exclusive("counter");
        let token = match driver.acquire(&claim, Patience::Wait).await.unwrap().result {
            Acquisition::Granted(grant) => grant.token,
            Acquisition::Queued { .. } => driver.granted(&claim).await.unwrap().token,
            Acquisition::Busy => panic!("a waiting claim is not busy"),
        };
        let file = folder.join("count");
        let n: usize = std::fs::read_to_string(&file).map_or(0, |n| n.parse().unwrap());
        std::fs::write(&file, (n + 1).to_string()).unwrap();
        let mut tokens = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("tokens"))
            .unwrap();
        writeln!(tokens, "{token}").unwrap();
        driver.release(&claim).await.unwrap();
    }
}

/// A child that is gone when this is.
struct Process(Child);

impl Process {
    fn start(part: &str, folder: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_child_does_its_part", "--nocapture"])
            .env(PART, part)
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn lines(&mut self) -> Lines<BufReader<ChildStdout>> {
        BufReader::new(self.0.stdout.take().unwrap()).lines()
    }

    fn ends_well(&mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads until a line begins with `word`; returns the rest of it.
fn until(lines: &mut Lines<BufReader<ChildStdout>>, word: &str) -> String {
    lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix(word).map(str::to_owned))
        .unwrap_or_else(|| panic!("the child ended before it said {word}"))
}

#[test]
fn processes_that_count_lose_nothing_and_their_tokens_grow() {
    let folder = folder();
    // Nobody made the file before: they also start on it at once.
    let mut children: Vec<_> = (0..6).map(|_| Process::start("count", folder.path())).collect();
    children.iter_mut().for_each(Process::ends_well);
    let count = std::fs::read_to_string(folder.path().join("count")).unwrap();
    assert_eq!(count, (6 * ROUNDS).to_string());
    let tokens = std::fs::read_to_string(folder.path().join("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|t| t.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_is_followed_when_its_lease_is_over() {
    let folder = folder();
    let mut child = Process::start("hold", folder.path());
    until(&mut child.lines(), "held");
    let driver = open(&folder).await;
    let claim = exclusive("a");
    queue(&driver, &claim).await;
    child.0.kill().unwrap();
    driver.granted(&claim).await.unwrap();
}

/// What was in the log only is gone with it, and the index says who else is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_or_its_index_deleted_in_use_is_told_to_the_holder_and_repeats_no_token() {
    for (deleted, can_open) in
        [(&["-wal", "-shm"][..], true), (&["-wal"], false), (&["-shm"], true)]
    {
        let folder = folder();
        // The file was in use before: what the log has of it went into the file itself.
        let before = open(&folder).await;
        take(&before, &exclusive("b")).await;
        before.close().await;
        let mut child = Process::start("keep", folder.path());
        let mut lines = child.lines();
        let token: i64 = until(&mut lines, "held ").parse().unwrap();
        for suffix in deleted {
            std::fs::remove_file(folder.path().join(format!("locks.db{suffix}"))).unwrap();
        }
        if can_open {
            let driver = open(&folder).await;
            let next = take_after(&driver, deleted.len() == 2).await;
            assert!(next.is_none_or(|next| next > token), "{next:?} after {token}");
        }
        child.0.stdin.as_mut().unwrap().write_all(b"next\n").unwrap();
        let told = until(&mut lines, "told ");
        assert!(told.contains("deleted") && told.contains("void"), "{deleted:?}: {told}");
        assert_eq!(until(&mut lines, "released "), "false");
        child.ends_well();
    }
}

/// The token of the next holder, where the claim of the last one is lost.
async fn take_after(driver: &SqliteDriver, lost: bool) -> Option<i64> {
    match driver.acquire(&exclusive("a"), Patience::Try).await.unwrap().result {
        Acquisition::Granted(grant) => Some(grant.token.as_i64()),
        other => {
            assert!(!lost, "{other:?}: the claim was in the log alone");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_known_in_another_process_within_fifty_milliseconds() {
    let folder = folder();
    let driver = open(&folder).await;
    let mut claim = exclusive("a");
    take(&driver, &claim).await;
    let mut child = Process::start("wait", folder.path());
    let mut lines = child.lines();
    // In time once is enough: a busy machine may be late, a driver that looks too seldom always is.
    for _ in 0..BATCHES {
        let mut delays = Vec::new();
        for _ in 0..BATCH {
            until(&mut lines, "queued");
            // Its first look is over; from here on only polling tells it.
            tokio::time::sleep(Duration::from_millis(30)).await;
            let released = BootClock.now().as_nanos();
            driver.release(&claim).await.unwrap();
            let granted: u64 = until(&mut lines, "granted ").parse().unwrap();
            delays.push(Duration::from_nanos(granted - released));
            until(&mut lines, "released");
            // The child queues again only after this process holds again.
            claim = exclusive("a");
            take(&driver, &claim).await;
            child.0.stdin.as_mut().unwrap().write_all(b"next\n").unwrap();
        }
        delays.sort();
        let median = delays[delays.len() / 2];
        println!("hand-over between processes: median {median:?}, all {delays:?}");
        if median < Duration::from_millis(50) {
            return;
        }
    }
    panic!("never within 50 ms");
}

//! Every way in which a file can be wrong gets one clear sentence, and is left as it was.
#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lockkit_core::Error;
use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_sql::sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use lockkit_sql::sqlx::{self, ConnectOptions, Connection, Executor};
use lockkit_sql::{SqliteDriver, SqliteOptions};
use support::*;

/// All files of a folder with their bytes.
fn snapshot(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap_or_default())
        })
        .collect()
}

/// Opening fails with a message that has all of `words`, and changes nothing in the folder.
async fn refuses(path: &Path, words: &[&str]) {
    let before = snapshot(path.parent().unwrap());
    let error = SqliteDriver::open(path, SqliteOptions::default()).await.unwrap_err();
    let message = error.to_string();
    assert!(!error.is_retryable(), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert_eq!(message.lines().count(), 1, "{message}");
    let after = snapshot(path.parent().unwrap());
    let names = |s: &BTreeMap<String, Vec<u8>>| s.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    assert!(after == before, "a byte changed");
}

#[tokio::test]
async fn a_new_file_is_for_its_owner_only_and_nothing_else_is_left_there() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let driver = SqliteDriver::open(&path, SqliteOptions::default()).await.unwrap();
    assert_eq!(driver.path(), std::fs::canonicalize(&path).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    take(&driver, &exclusive("a")).await;
    driver.close().await;
    let left: Vec<_> = snapshot(path.parent().unwrap()).into_keys().collect();
    assert_eq!(left, ["locks.db"]);
}

#[tokio::test]
async fn a_folder_that_is_missing_is_not_made() {
    let folder = folder();
    let path = folder.path().join("mis/typed/locks.db");
    let refused = SqliteDriver::open(&path, SqliteOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("there is no folder"), "{refused}");
    assert!(!folder.path().join("mis").exists());
}

#[tokio::test]
async fn an_empty_file_is_filled() {
    let folder = folder();
    std::fs::write(folder.path().join("locks.db"), "").unwrap();
    let (a, b) = tokio::join!(open(&folder), open(&folder));
    take(&a, &exclusive("a")).await;
    assert_eq!(b.acquire(&exclusive("a"), Patience::Try).await.unwrap().result, Acquisition::Busy);
}

#[tokio::test]
async fn what_is_not_sqlite_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    for content in ["x", "a shopping list\n", &"long ".repeat(10_000)] {
        std::fs::write(&path, content).unwrap();
        refuses(&path, &["not a SQLite database", "choose another path"]).await;
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    for mode in ["DELETE", "WAL"] {
        let mut other = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .connect()
            .await
            .unwrap();
        let set = sqlx::AssertSqlSafe(format!("PRAGMA journal_mode = {mode}"));
        other.execute(set).await.unwrap();
        other.execute("CREATE TABLE IF NOT EXISTS t (a)").await.unwrap();
        other.close().await.unwrap();
        refuses(&path, &["another program"]).await;
    }
}

async fn made(folder: &tempfile::TempDir) -> std::path::PathBuf {
    let driver = open(folder).await;
    for i in 0..50 {
        take(&driver, &exclusive(&format!("{i}"))).await;
    }
    driver.close().await;
    driver.path().to_owned()
}

#[tokio::test]
async fn tables_of_another_version_are_refused_and_left_alone() {
    let folder = folder();
    let path = made(&folder).await;
    let mut bytes = std::fs::read(&path).unwrap();
    for version in [1, 7] {
        bytes[60..64].copy_from_slice(&u32::to_be_bytes(version));
        std::fs::write(&path, &bytes).unwrap();
        let told = format!("have version {version}, and this lockkit needs version 3");
        refuses(&path, &[&told, "use the lockkit that made them, or drop them"]).await;
    }
}

/// The header of such a file is another program's.
#[tokio::test]
async fn tables_of_another_version_beside_others_are_refused() {
    let folder = folder();
    let path = folder.path().join("app.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let open = || SqliteDriver::with_pool(pool.clone(), SqliteOptions::default());
    open().await.unwrap().close().await;
    for version in [1, 7] {
        let other = format!("UPDATE lockkit_meta SET version = {version}");
        pool.execute(lockkit_sql::sqlx::AssertSqlSafe(other)).await.unwrap();
        let refused = open().await.unwrap_err().to_string();
        let told = format!("have version {version}, and this lockkit needs version 3");
        assert!(refused.contains(&told), "{refused}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_left_alone() {
    let folder = folder();
    let path = made(&folder).await;
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    refuses(&path, &["damaged", "move it away"]).await;
    let mut garbled = whole.clone();
    garbled[100..8000].fill(0xa5);
    std::fs::write(&path, garbled).unwrap();
    refuses(&path, &["damaged", "move it away"]).await;
    std::fs::write(&path, whole).unwrap();
    open(&folder).await;
}

#[tokio::test]
async fn folders_devices_and_impossible_places_are_refused() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    refuses(&folder.path().join("sub"), &["is a folder"]).await;
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error =
        SqliteDriver::open(file.join("locks.db"), SqliteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("is a file, not a folder"), "{error}");
    let error = SqliteDriver::open("/dev/null", SqliteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let error =
        SqliteDriver::open("/proc/lockkit/locks.db", SqliteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("there is no folder /proc/lockkit"), "{error}");
}

/// The log goes by the path of the file: under two names there would be two logs, and two holders.
#[tokio::test]
async fn a_file_with_two_names_is_refused_under_both() {
    let folder = folder();
    let path = made(&folder).await;
    let other = folder.path().join("other.db");
    std::fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        refuses(name, &["2 names", "hard link", "remove the others"]).await;
    }
    std::fs::remove_file(&other).unwrap();
    open(&folder).await;
    // A symbolic link is followed to the one name.
    std::os::unix::fs::symlink(&path, &other).unwrap();
    let driver = SqliteDriver::open(&other, SqliteOptions::default()).await.unwrap();
    assert_eq!(driver.path(), std::fs::canonicalize(&path).unwrap());
}

/// A link may be put in place before there is a file.
#[tokio::test]
async fn a_link_to_a_file_that_does_not_exist_yet_is_followed() {
    let folder = folder();
    let (link, target) = (folder.path().join("link.db"), folder.path().join("target"));
    std::fs::create_dir(&target).unwrap();
    // By way of another link, in another folder, that counts from there.
    std::os::unix::fs::symlink("target/second.db", &link).unwrap();
    std::os::unix::fs::symlink("../target/./real.db", target.join("second.db")).unwrap();
    let open = || SqliteDriver::open(&link, SqliteOptions::default());
    let (first, second) = tokio::join!(open(), open());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.path(), std::fs::canonicalize(&target).unwrap().join("real.db"));
    assert_eq!(second.path(), first.path());
    take(&first, &exclusive("a")).await;
    let answer = second.acquire(&exclusive("a"), Patience::Try).await.unwrap().result;
    assert_eq!(answer, Acquisition::Busy, "it is one file");
    let later = open().await.unwrap();
    assert_eq!(later.path(), first.path());
    assert!(link.is_symlink(), "the link stays");
    drop((first, second, later));
}

#[tokio::test]
async fn a_link_that_leads_nowhere_is_refused_by_name() {
    let folder = folder();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink("missing/real.db", &link).unwrap();
    let missing = folder.path().join("missing");
    let words = ["there is no folder", missing.to_str().unwrap(), link.to_str().unwrap()];
    refuses(&link, &words).await;
    assert!(!missing.exists());

    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("other.db", &link).unwrap();
    std::os::unix::fs::symlink("link.db", folder.path().join("other.db")).unwrap();
    refuses(&link, &["leads in a circle", link.to_str().unwrap(), "other.db"]).await;
}

/// What the test below runs where it may mount: its own process again, in a mount namespace.
#[tokio::test]
async fn a_file_that_is_a_mount_point_is_refused() {
    if let Some(folder) = std::env::var_os("LOCKKIT_TEST_MOUNTED") {
        let folder = std::path::PathBuf::from(folder);
        refuses(&folder.join("inside/locks.db"), &["mount point", "mount its folder"]).await;
        // The folder may be a mount of its own.
        let whole = folder.join("whole/locks.db");
        SqliteDriver::open(&whole, SqliteOptions::default()).await.unwrap();
        return;
    }
    let folder = folder();
    made(&folder).await;
    let script = "set -e; cd \"$LOCKKIT_TEST_MOUNTED\"; mkdir inside whole; touch inside/locks.db; \
        mount --bind locks.db inside/locks.db; mount --bind . whole; \
        exec \"$0\" --exact a_file_that_is_a_mount_point_is_refused --nocapture";
    let run = |user: &[&str]| {
        std::process::Command::new("unshare")
            .args(user)
            .args(["--mount", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .env("LOCKKIT_TEST_MOUNTED", folder.path())
            .output()
            .unwrap()
    };
    let may_mount = |user: &[&str]| {
        let mut probe = std::process::Command::new("unshare");
        probe.args(user).args(["--mount", "true"]).output().unwrap().status.success()
    };
    let users: [&[&str]; 2] = [&[], &["--map-root-user"]];
    let Some(user) = users.into_iter().find(|user| may_mount(user)) else {
        eprintln!("skipped: this user may make no mount namespace");
        return;
    };
    let output = run(user);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

#[tokio::test]
async fn urls_that_cannot_work_are_told_so() {
    for (url, word) in [
        ("sqlite:", "needs a path"),
        ("sqlite::memory:", "use `memory:`"),
        ("sqlite://:memory:", "use `memory:`"),
        ("sqlite:x.db?mode=ro", "mode=ro"),
        ("redis:x", "sqlite:"),
    ] {
        match SqliteDriver::connect(url).await.unwrap_err() {
            Error::Config(message) => assert!(message.contains(word), "{url}: {message}"),
            other => panic!("{url}: {other}"),
        }
    }
}

#[tokio::test]
async fn a_url_names_a_file_with_any_characters() {
    let folder = folder();
    let path = folder.path().join("what? 100%.db");
    let url = format!("sqlite:{}?durability=everything", folder.path().display());
    let url = url.replace('?', "/what%3F 100%25.db?");
    let driver = SqliteDriver::connect(&url).await.unwrap();
    assert_eq!(driver.path(), std::fs::canonicalize(path).unwrap());
    take(&driver, &exclusive("a")).await;
}

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_in_use_is_noticed() {
    let folder = folder();
    let driver = open(&folder).await;
    let holder = exclusive("a");
    let before = take(&driver, &holder).await.token;
    std::fs::remove_file(driver.path()).unwrap();
    let error = driver.release(&holder).await.unwrap_err();
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
    // Who comes later makes a new file, whose tokens are greater all the same.
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.path().join(format!("locks.db{suffix}")));
    }
    let other = open(&folder).await;
    assert!(take(&other, &exclusive("a")).await.token > before);
    assert!(driver.release(&holder).await.is_err());
}

#[tokio::test]
async fn a_pool_of_the_users_gets_tables_beside_its_own() {
    let folder = folder();
    let path = folder.path().join("app.db");
    let pool = SqlitePool::connect_with(
        SqliteConnectOptions::new().filename(&path).create_if_missing(true),
    )
    .await
    .unwrap();
    pool.execute("CREATE TABLE orders (a)").await.unwrap();
    let a = SqliteDriver::with_pool(pool.clone(), SqliteOptions::default()).await.unwrap();
    let b = SqliteDriver::with_pool(pool.clone(), SqliteOptions::default()).await.unwrap();
    let (first, second) = (exclusive("a"), exclusive("a"));
    take(&a, &first).await;
    queue(&b, &second).await;
    a.release(&first).await.unwrap();
    b.granted(&second).await.unwrap();
    pool.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    let health = a.health().await.unwrap();
    assert_eq!(health.findings.len(), 1, "the journal mode: {health:?}");

    let memory = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let error = SqliteDriver::with_pool(memory, SqliteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("`memory:`"), "{error}");
}

#[tokio::test]
async fn twenty_that_open_a_missing_file_at_once_meet_in_one() {
    let folder = folder();
    let drivers = futures_util::future::join_all((0..20).map(|_| open(&folder))).await;
    let claim = exclusive("a");
    take(&drivers[0], &claim).await;
    for driver in &drivers[1..] {
        let answer = driver.acquire(&exclusive("a"), Patience::Try).await.unwrap().result;
        assert_eq!(answer, Acquisition::Busy);
    }
    drop(drivers);
    let left: Vec<_> = snapshot(folder.path()).into_keys().collect();
    assert!(left.iter().all(|name| !name.ends_with(".new")), "{left:?}");
}

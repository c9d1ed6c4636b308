//! docs/recipes/backups.md: restic on several hosts, Litestream on the one that leads.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::{Recipe, fetched};
use crate::stage::{code, stderr, stdout, wait_for};

fn recipe() -> Recipe {
    let mut recipe = Recipe::new("recipes/backup");
    recipe.set("RESTIC_REPOSITORY", recipe.stage.path("repository").display().to_string());
    recipe.set("RESTIC_PASSWORD", "a password of a test");
    recipe.set("RESTIC_CACHE_DIR", recipe.stage.path("cache").display().to_string());
    assert_eq!(restic(&recipe, "init"), 0);
    for name in ["a", "b"] {
        fs::create_dir(recipe.stage.path(&format!("data-{name}"))).unwrap();
        fs::write(recipe.stage.path(&format!("data-{name}/file")), name.repeat(1_000)).unwrap();
    }
    recipe
}

fn restic(recipe: &Recipe, words: &str) -> i32 {
    let ran = recipe.script(&format!("restic --quiet {words}")).output().unwrap();
    code(&ran)
}

#[test]
fn hosts_back_up_together_and_the_repository_is_cleaned_alone() {
    let recipe = recipe();
    // A backup that lasts until the test has looked: restic reads its input to the end.
    let slow = "{ until [ -e go ]; do sleep 0.05; done; echo data; } | ./backup.sh --stdin";
    let mut slow = recipe.host("slow", slow);
    wait_for("the first backup", || (recipe.queue("backup/repository") == [1, 0]).then_some(()));
    let mut hosts = ["a", "b"].map(|name| recipe.host(name, "./backup.sh data-$HOST"));
    for (host, name) in hosts.iter_mut().zip(["a", "b"]) {
        assert_eq!(host.end(), Some(0), "{}", recipe.log(name));
    }
    let mut clean = recipe.host("clean", "./clean.sh");
    wait_for("its place in the queue", || {
        (recipe.queue("backup/repository") == [1, 1]).then_some(())
    });
    assert!(clean.0.try_wait().unwrap().is_none(), "it waits for the backup");
    fs::write(recipe.stage.path("go"), "").unwrap();
    assert_eq!(slow.end(), Some(0), "{}", recipe.log("slow"));
    assert_eq!(clean.end(), Some(0), "{}", recipe.log("clean"));
    assert_eq!(restic(&recipe, "check"), 0);
}

#[test]
fn what_a_killed_backup_leaves_is_cleared_away() {
    let recipe = recipe();
    let locks = recipe.stage.path("repository/locks");
    // restic writes a lock under another name first.
    let locked = || {
        let files = fs::read_dir(&locks).unwrap().flatten();
        files.filter(|file| !file.file_name().to_string_lossy().contains('-')).count()
    };
    let slow = recipe.host("slow", "sleep 600 | ./backup.sh --stdin");
    wait_for("restic's own lock", || (locked() == 1).then_some(()));
    slow.kill();
    assert_eq!(locked(), 1);
    // On another host, which cannot see that the process is gone.
    let elsewhere = |script: &str| {
        let host = "unshare --user --map-root-user --uts sh -c 'hostname elsewhere && exec";
        recipe.script(&format!("{host} {script}'")).output().unwrap()
    };
    let alone = elsewhere("restic --quiet prune");
    assert_ne!(code(&alone), 0, "restic by itself refuses: {}", stderr(&alone));
    let clean = elsewhere("./clean.sh");
    assert_eq!(code(&clean), 0, "{}", stderr(&clean));
    assert_eq!(locked(), 0);
    assert_eq!(restic(&recipe, "check"), 0);
}

/// Adds its host to the table, and says so; then it serves.
const SERVE: &str = r#"#!/bin/sh
exec python3 -c '
import os, sqlite3, sys, time
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA journal_mode = wal")
db.execute("CREATE TABLE IF NOT EXISTS leaders (host TEXT)")
db.execute("INSERT INTO leaders VALUES (?)", [os.environ["HOST"]])
db.commit()
open("../serves-" + os.environ["HOST"], "w").close()
while True: time.sleep(0.1)' "$@"
"#;

#[test]
fn the_next_leader_restores_what_the_last_one_replicated_with_litestream() {
    let mut recipe = Recipe::new("recipes/backup");
    let Some(litestream) = fetched("litestream/litestream") else {
        eprintln!("skipped: `cargo xtask install` fetches the Litestream that this needs");
        return;
    };
    let at = |name: &str| recipe.stage.path(name);
    symlink(litestream, at("litestream")).unwrap();
    fs::write(at("serve"), SERVE).unwrap();
    fs::set_permissions(at("serve"), fs::Permissions::from_mode(0o755)).unwrap();
    let replica = format!("file://{}", at("replica").display());
    recipe.set("REPLICA", &replica);
    let start =
        |name: &str| recipe.host(name, "mkdir $HOST-data && cd $HOST-data && ../litestream.sh");
    let leaders = |file: &str| {
        let query = format!(
            "python3 -c 'import sqlite3; db = sqlite3.connect(\"{file}\"); \
             print(*[host for host, in db.execute(\"SELECT host FROM leaders\")])'"
        );
        stdout(&recipe.script(&query).output().unwrap()).trim().to_owned()
    };
    let serves = |name: &str| {
        let served = recipe.stage.path(&format!("serves-{name}"));
        move || served.exists().then_some(())
    };
    let first = start("first");
    wait_for("the first leader", serves("first"));
    let second = start("second");
    wait_for("the second candidate", || (recipe.queue("litestream/shop") == [1, 1]).then_some(()));
    // Litestream replicates after the commit: once a second.
    wait_for("the replica", || {
        let restore = "rm -f looked.db && litestream restore -o looked.db $REPLICA";
        let restored = recipe.script(restore).output().unwrap();
        (code(&restored) == 0 && leaders("looked.db") == "first").then_some(())
    });
    assert!(serves("second")().is_none(), "one host writes");
    first.kill();
    wait_for("the second leader", serves("second"));
    assert_eq!(leaders("second-data/shop.db"), "first second", "{}", recipe.log("second"));
    drop(second);
}

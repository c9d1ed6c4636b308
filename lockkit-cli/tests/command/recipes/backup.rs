//! docs/recipes/backups.md: restic on several hosts. Litestream is in no package of Debian: its script is
//! checked by the shell only.

use std::fs;

use super::Recipe;
use crate::stage::{code, stderr, wait_for};

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

#[test]
fn the_script_for_litestream_is_one() {
    let recipe = Recipe::new("recipes/backup");
    let read = recipe.script("sh -n litestream.sh").output().unwrap();
    assert_eq!(code(&read), 0, "{}", stderr(&read));
}

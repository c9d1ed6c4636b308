//! Command lines that look right and once were not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::stage::{Stage, code, stderr, stdout};

fn fails(output: &Output, expected: i32, words: &str) {
    let said = stderr(output);
    assert_eq!(code(output), expected, "{said}");
    assert!(said.contains(words), "{words:?} is not in {said:?}");
}

const PUT: &str = "\"$LOCKKIT\" put --fenced cursor 42";

#[test]
fn a_fenced_value_goes_where_the_lock_is() {
    let stage = Stage::new();
    let run = ["run", "--url", "sqlite:a.db", "--namespace", "p", "consumer", "sh", "-c", PUT];
    let ran = stage.run(&run);
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    assert!(!stage.state_folder().exists(), "it is not in the user's own file");
    let seen = stage.run(&["get", "--url", "sqlite:a.db", "--namespace", "p", "cursor"]);
    assert_eq!(stdout(&seen), "42");

    let mut ran = stage.lockkit(&["run", "--namespace", "q", "consumer", "sh", "-c", PUT]);
    let ran = ran.env("LOCKKIT_URL", "sqlite:a.db").output().unwrap();
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    assert_eq!(code(&stage.run(&["get", "--url", "sqlite:a.db", "cursor"])), 1);
    let seen = stage.run(&["get", "--url", "sqlite:a.db", "--namespace", "q", "cursor"]);
    assert_eq!(stdout(&seen), "42");
}

#[test]
fn a_child_that_changes_its_folder_finds_the_same_backend() {
    let stage = Stage::new();
    fs::create_dir(stage.path("else")).unwrap();
    fs::write(stage.path("url"), "sqlite:a.db?namespace=of-url").unwrap();
    let script = "cd else && \"$LOCKKIT\" put --fenced cursor 42";
    for name in ["LOCKKIT_URL", "LOCKKIT_URL_FILE"] {
        let value = if name == "LOCKKIT_URL" { "sqlite:a.db?namespace=of-url" } else { "url" };
        let mut run = stage.lockkit(&["run", "--namespace", name, "consumer", "sh", "-c", script]);
        let ran = run.env(name, value).output().unwrap();
        // A relative path in a file counts from the folder of whoever reads it.
        let expected = if name == "LOCKKIT_URL" { 0 } else { 64 };
        assert_eq!(code(&ran), expected, "{name}: {}", stderr(&ran));
    }
    let seen = stage.run(&["get", "--url", "sqlite:a.db", "--namespace", "LOCKKIT_URL", "cursor"]);
    assert_eq!(stdout(&seen), "42");
}

#[test]
fn a_token_of_another_backend_or_namespace_is_refused() {
    let stage = Stage::new();
    for options in ["--url sqlite:b.db", "--namespace q", "--local"] {
        let script = format!("\"$LOCKKIT\" put --fenced {options} cursor 42");
        let run =
            ["run", "--url", "sqlite:a.db", "--namespace", "p", "consumer", "sh", "-c", &script];
        fails(&stage.run(&run), 64, "does not fence");
    }
    let script = format!("LOCKKIT_URL=sqlite:b.db; export LOCKKIT_URL; {PUT}");
    fails(
        &stage.run(&["run", "--url", "sqlite:a.db", "a", "sh", "-c", &script]),
        64,
        "does not fence",
    );
    assert!(!stage.path("b.db").exists() && !stage.state_folder().exists());
}

#[test]
fn a_backend_with_a_secret_is_not_handed_on_nor_replaced_by_another() {
    let stage = Stage::new();
    let held = r#"[{"space":"lock","mode":"exclusive","namespace":"","name":"a","token":7,
        "backend":"redis://u:***@db:1","hidden":true}]"#;
    for verb in [&["put", "--fenced", "cursor", "42"][..], &["put", "cursor", "42"], &["ls"]] {
        let output = stage.lockkit(verb).env("LOCKKIT_HELD", held).output().unwrap();
        fails(&output, 64, "LOCKKIT_URL");
    }
    assert!(!stage.state_folder().exists());
}

#[test]
fn check_refuses_to_look_in_another_backend_than_that_of_the_lock() {
    let stage = Stage::new();
    for options in ["--url sqlite:b.db", "--local"] {
        let script = format!("\"$LOCKKIT\" check {options}");
        let run = ["run", "--url", "sqlite:a.db", "a", "sh", "-c", &script];
        fails(&stage.run(&run), 64, "is in sqlite:");
    }
    let same =
        ["run", "--url", "sqlite:a.db", "a", "sh", "-c", "\"$LOCKKIT\" check --url sqlite:a.db"];
    assert_eq!(code(&stage.run(&same)), 0);
    assert!(!stage.path("b.db").exists() && !stage.state_folder().exists());
}

#[test]
fn the_token_of_a_reader_does_not_fence() {
    let stage = Stage::new();
    fails(&stage.run(&["run", "--local", "-s", "a", "sh", "-c", PUT]), 64, "reader");
    let permit = ["run", "--local", "--limit", "1", "a", "sh", "-c", PUT];
    fails(&stage.run(&permit), 64, "permits of a semaphore do not fence");
}

#[test]
fn a_memory_is_refused_since_it_would_protect_nothing() {
    let stage = Stage::new();
    for url in ["memory:", "quorum:memory:,memory:,memory:", "mirror:memory:,sqlite:a.db"] {
        for verb in [&["run", "a", "touch", "ran"][..], &["acquire", "a"], &["put", "a", "b"]] {
            fails(&stage.run(&[&["--url", url], verb].concat()), 64, "protect nothing");
        }
    }
    assert!(!stage.path("ran").exists());
    let unknown = stderr(&stage.run(&["run", "--url", "pigeon://coop", "a", "true"]));
    assert!(unknown.trim_end().ends_with("memory:)"), "{unknown}");
}

#[test]
fn what_acquire_prints_is_the_ticket() {
    let stage = Stage::new();
    let script = "T=$(\"$LOCKKIT\" acquire --local job) && \"$LOCKKIT\" renew --local \"$T\" &&
        \"$LOCKKIT\" release --local \"$T\"";
    let output = stage.program("sh").args(["-c", script]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let json = stage.run(&["acquire", "--local", "--json", "--ttl", "90", "job"]);
    let seen: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(stage.state("job")["holders"][0]["token"], seen["token"]);
    assert_eq!((&seen["name"], &seen["space"]), (&"job".into(), &"lock".into()));
    assert_eq!(seen["ttl_ms"], 90_000);
    let ticket = seen["ticket"].as_str().unwrap();
    assert_eq!(code(&stage.run(&["release", "--local", ticket])), 0);
    let with_token = format!("{ticket} 17");
    fails(&stage.run(&["renew", "--local", &with_token]), 64, "one word");
}

#[test]
fn a_ticket_that_nobody_could_read_is_an_error_and_nothing_is_held() {
    let stage = Stage::new();
    for (redirection, expected) in [(">&-", 64), (">/dev/null", 64), (">/dev/full", 71)] {
        let script = format!("\"$LOCKKIT\" acquire --local job {redirection}");
        let output = stage.program("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(code(&output), expected, "{redirection}: {}", stderr(&output));
        assert!(stage.state("job")["holders"].as_array().unwrap().is_empty(), "{redirection}");
    }
}

#[test]
fn an_empty_namespace_shows_as_such() {
    let stage = Stage::new();
    let ticket = stdout(&stage.run(&["acquire", "--local", "a"]));
    let release = stage.run(&["release", "--local", "--namespace", "p", ticket.trim()]);
    fails(&release, 64, "--namespace ''");
    assert_eq!(code(&stage.run(&["release", "--local", "--namespace", "", ticket.trim()])), 0);
}

#[test]
fn a_command_may_use_the_time_of_max_hold() {
    for seconds in ["2", "3", "5"] {
        let stage = Stage::new();
        let script = "echo begun >>did; sleep 0.1; echo done >>did";
        let ran = stage.run(&["run", "--local", "--max-hold", seconds, "a", "sh", "-c", script]);
        assert_eq!(code(&ran), 0, "{seconds}: {}", stderr(&ran));
        assert_eq!(fs::read_to_string(stage.path("did")).unwrap(), "begun\ndone\n");
    }
    let stage = Stage::new();
    let refused = ["run", "--local", "--max-hold", "3", "--kill-after", "3", "a", "true"];
    fails(&stage.run(&refused), 64, "--kill-after");
    fails(&stage.run(&["run", "--local", "--max-hold", "50ms", "a", "true"]), 64, "100ms");
    let script = "echo begun >>did; sleep 0.1; echo done >>did; kill -INT $PPID";
    let led = stage.run(&["elect", "--local", "--max-term", "4", "a", "sh", "-c", script]);
    assert_eq!(fs::read_to_string(stage.path("did")).unwrap(), "begun\ndone\n", "{}", stderr(&led));
}

#[test]
fn the_end_of_max_hold_is_called_so() {
    let stage = Stage::new();
    let ran = stage.run(&["run", "--local", "--max-hold", "1", "a", "sleep", "1000"]);
    fails(&ran, 74, "the time of --max-hold (1 s) is over");
    assert!(!stderr(&ran).contains("renewed"), "{}", stderr(&ran));
}

#[test]
fn a_name_is_looked_for_among_locks_and_semaphores() {
    let stage = Stage::new();
    let hold = ["acquire", "--local", "--json", "--limit", "2", "--ttl", "1000", "pool"];
    let held: Value = serde_json::from_slice(&stage.run(&hold).stdout).unwrap();
    let shown = stdout(&stage.run(&["show", "--local", "pool"]));
    assert!(shown.contains("the semaphore \"pool\": held by 1"), "{shown}");
    assert!(!shown.contains("is free"), "{shown}");
    assert!(stdout(&stage.run(&["show", "--local", "--lock", "pool"])).contains("is free"));
    let token = held["token"].to_string();
    let broken = stage.run(&["break", "--local", "--force", "pool", "--token", &token]);
    fails(&broken, 0, "broke the semaphore \"pool\"");
    let shown = stdout(&stage.run(&["show", "--local", "pool"]));
    assert!(shown.contains("the lock \"pool\" is free"), "{shown}");
    let used: Value = serde_json::from_slice(&stage.run(&hold).stdout).unwrap();
    assert!(stage.run(&["acquire", "--local", "pool"]).status.success());
    let both = stdout(&stage.run(&["show", "--local", "--json", "pool"]));
    assert_eq!(both.lines().count(), 2, "{both}");
    assert!(both.contains(&used["token"].to_string()), "{both}");
}

#[test]
fn a_mistyped_path_makes_no_folders() {
    let stage = Stage::new();
    let url = format!("sqlite:{}", stage.path("no/such/locks.db").display());
    let ran = stage.run(&["run", "--url", &url, "a", "touch", "ran"]);
    fails(&ran, 64, "there is no folder");
    assert!(!stage.path("no").exists() && !stage.path("ran").exists());
    assert_eq!(code(&stage.run(&["run", "--url", "sqlite:made.db", "a", "true"])), 0);
    assert_eq!(code(&stage.run(&["run", "--local", "a", "true"])), 0, "the default is made");
}

#[test]
fn the_file_of_another_user_is_named() {
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["run", "--url", "sqlite:its.db", "a", "true"])), 0);
    fs::set_permissions(stage.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(stage.path("its.db"), fs::Permissions::from_mode(0o600)).unwrap();
    // Root may read everything, and becomes another user; others take their own rights away.
    let mut command = match rustix::process::getuid().is_root() {
        true => {
            let mut command = stage.program("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.arg(stage.copy_of_the_program());
            command
        }
        false => {
            let nothing = fs::Permissions::from_mode(0o000);
            fs::set_permissions(stage.path("its.db"), nothing).unwrap();
            stage.lockkit(&[])
        }
    };
    let ran = command.args(["run", "--url", "sqlite:its.db", "a", "true"]).output().unwrap();
    fails(&ran, 69, &stage.path("its.db").display().to_string());
}

#[test]
fn a_register_that_has_a_value_is_said_to_have_one() {
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["put", "--local", "--if-absent", "r", "1"])), 0);
    fails(&stage.run(&["put", "--local", "--if-absent", "r", "1"]), 1, "has a value already");
    fails(&stage.run(&["put", "--local", "--if-version", "9999", "r", "1"]), 1, "version 9999");
}

#[test]
fn a_long_note_is_called_a_note() {
    let stage = Stage::new();
    let long = "x".repeat(1_001);
    let ran = stage.run(&["run", "--local", "--note", &long, "a", "true"]);
    fails(&ran, 64, "a note has at most 1000 bytes");
    assert!(!stderr(&ran).contains("usable name"), "{}", stderr(&ran));
}

#[test]
fn a_latch_can_be_looked_at_without_its_count() {
    let stage = Stage::new();
    fails(&stage.run(&["latch", "show", "--local", "boot"]), 1, "give its COUNT");
    assert_eq!(code(&stage.run(&["latch", "down", "--local", "boot", "3", "--as", "a"])), 0);
    let shown = stage.run(&["latch", "show", "--local", "boot"]);
    assert_eq!(stdout(&shown), "missing 2\ncounted a\n", "{}", stderr(&shown));
    let other = stage.run(&["latch", "show", "--local", "boot", "4"]);
    fails(&other, 64, "has a count of 3, not 4");
    assert_eq!(code(&stage.run(&["latch", "reset", "--local", "boot", "1"])), 0);
    assert_eq!(stdout(&stage.run(&["latch", "show", "--local", "boot"])), "missing 1\n");
}

#[test]
fn without_proc_it_says_what_is_missing() {
    let stage = Stage::new();
    let script =
        "mount -t tmpfs none /proc && exec \"$LOCKKIT\" run --url redis://127.0.0.1:1 a true";
    let mut unshare = stage.program("unshare");
    let ran = unshare.args(["-Urm", "sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    if stderr(&ran).starts_with("unshare: ") {
        // This system lets nobody hide /proc, and so nobody be without it.
        return;
    }
    fails(&ran, 71, "/proc is not mounted");
}

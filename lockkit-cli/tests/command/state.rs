//! `get`, `put` and `latch`: state in registers; `resize`.

use std::fs;
use std::process::Stdio;

use crate::stage::{Stage, code, stderr, stdout};

#[test]
fn what_is_put_is_got_byte_for_byte() {
    let stage = Stage::new();
    let nothing = stage.run(&["get", "--local", "r"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", stderr(&nothing));
    let bytes: Vec<u8> = (0..=255).collect();
    fs::write(stage.path("in"), &bytes).unwrap();
    let stdin = fs::File::open(stage.path("in")).unwrap();
    let put = stage.lockkit(&["put", "--local", "r", "-"]).stdin(stdin).output().unwrap();
    assert_eq!(put.status.code(), Some(0), "{}", stderr(&put));
    assert_eq!(stage.run(&["get", "--local", "r"]).stdout, bytes);
    let put = stage.run(&["put", "--local", "r", "a b"]);
    let version: u64 = stdout(&put).trim().parse().unwrap();
    let seen = stage.run(&["get", "--local", "--json", "r"]);
    let seen: serde_json::Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(seen["version"], version);
    assert_eq!((&seen["value"], &seen["name"]), (&"a b".into(), &"r".into()));
    assert!(seen["token"].is_null() && seen["hex"].is_null());
    fs::write(stage.path("large"), vec![b'x'; 65_537]).unwrap();
    let stdin = Stdio::from(fs::File::open(stage.path("large")).unwrap());
    let large = stage.lockkit(&["put", "--local", "r", "-"]).stdin(stdin).output().unwrap();
    assert_eq!(large.status.code(), Some(64), "{}", stderr(&large));
}

#[test]
fn a_value_that_is_missing_or_empty_stores_nothing() {
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["put", "--local", "cursor", "42"])), 0);
    fs::write(stage.path("piped"), "7").unwrap();
    let piped = || Stdio::from(fs::File::open(stage.path("piped")).unwrap());
    for (arguments, stdin, advice) in [
        (&["cursor"][..], Stdio::null(), "add -"),
        (&["cursor"], piped(), "add -"),
        (&["cursor", ""], Stdio::null(), "--allow-empty"),
        (&["cursor", "-"], Stdio::null(), "--allow-empty"),
        (&["42"], Stdio::null(), "add -"),
    ] {
        let put = [&["put", "--local"], arguments].concat();
        let put = stage.lockkit(&put).stdin(stdin).output().unwrap();
        assert_eq!(code(&put), 64, "{arguments:?}: {}", stderr(&put));
        assert!(stderr(&put).contains(advice), "{arguments:?}: {}", stderr(&put));
    }
    assert_eq!(stdout(&stage.run(&["get", "--local", "cursor"])), "42");
    assert_eq!(code(&stage.run(&["get", "--local", "42"])), 1, "no register by that name");
    let empty = stage.run(&["put", "--local", "--allow-empty", "cursor", ""]);
    assert_eq!(code(&empty), 0, "{}", stderr(&empty));
    let got = stage.run(&["get", "--local", "cursor"]);
    assert_eq!((code(&got), &*stdout(&got)), (0, ""), "empty is not absent");
    let put = stage.lockkit(&["put", "--local", "cursor", "-"]).stdin(piped()).output().unwrap();
    assert_eq!(code(&put), 0, "{}", stderr(&put));
    assert_eq!(stdout(&stage.run(&["get", "--local", "cursor"])), "7");
}

#[test]
fn an_argument_that_a_script_left_empty_is_refused() {
    let stage = Stage::new();
    for (arguments, advice) in [
        (&["run", "--local", "--", "touch", "ran"][..], "NAME"),
        (&["run", "--local", "-n", "--", "touch", "ran"], "NAME"),
        (&["elect", "--local", "--", "touch", "ran"], "NAME"),
        (&["elect", "--local", "--value", "", "a", "touch", "ran"], "--value"),
        (&["latch", "down", "--local", "a", "2", "--as", ""], "--as"),
    ] {
        let output = stage.run(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(advice), "{arguments:?}: {}", stderr(&output));
    }
    assert!(!stage.path("ran").exists() && !stage.state_folder().exists());
    let named = stage.run(&["run", "--local", "a", "--", "echo", "--", "-x"]);
    assert_eq!((code(&named), &*stdout(&named)), (0, "-- -x\n"), "{}", stderr(&named));
}

#[test]
fn a_value_that_is_not_as_expected_is_left_alone() {
    let stage = Stage::new();
    let put = |options: &[&str], value: &str| {
        stage.run(&[&["put", "--local"], options, &["r", value]].concat())
    };
    let first = put(&["--if-absent"], "first");
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let version = stdout(&first).trim().to_owned();
    let again = put(&["--if-absent"], "again");
    assert_eq!(again.status.code(), Some(1), "{}", stderr(&again));
    assert_eq!(put(&["--if-version", &version], "second").status.code(), Some(0));
    assert_eq!(put(&["--if-version", &version], "third").status.code(), Some(1));
    assert_eq!(stdout(&stage.run(&["get", "--local", "r"])), "second");
}

#[test]
fn a_command_that_was_overtaken_puts_nothing() {
    let stage = Stage::new();
    let put = |value: &str| {
        let script = format!(
            "echo \"$LOCKKIT_HELD\" >held-{value}; $LOCKKIT put --fenced --local r {value}"
        );
        let output = stage.run(&["run", "--local", "consumer", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    put("first");
    put("second");
    // The first one was paused before it put, and goes on now.
    let held = fs::read_to_string(stage.path("held-first")).unwrap();
    let mut late = stage.lockkit(&["put", "--fenced", "--local", "r", "late"]);
    let late = late.env("LOCKKIT_HELD", held.trim()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(late.status.code(), Some(74), "{}", stderr(&late));
    assert_eq!(stdout(&stage.run(&["get", "--local", "r"])), "second");
}

#[test]
fn a_latch_opens_when_each_has_counted_once() {
    let stage = Stage::new();
    let latch = |arguments: &[&str]| {
        let output = stage.run(&[&["latch"], arguments].concat());
        (output.status.code().unwrap(), stdout(&output), stderr(&output))
    };
    let down = |id: &str| latch(&["down", "--local", "boot", "2", "--as", id]);
    assert_eq!(latch(&["wait", "--local", "boot", "2", "--wait", "100ms"]).0, 75);
    assert_eq!(down("a").1, "1\n");
    assert_eq!(down("a").1, "1\n", "said twice, counted once");
    assert_eq!(down("b").1, "0\n");
    assert_eq!(down("c").0, 1, "one too many");
    assert_eq!(latch(&["wait", "--local", "boot", "2"]).0, 0);
    assert_eq!(latch(&["show", "--local", "boot", "2"]).1, "missing 0\ncounted a\ncounted b\n");
    assert_eq!(latch(&["show", "--local", "boot", "3"]).0, 64, "another count");
    assert_eq!(latch(&["reset", "--local", "boot", "1"]).0, 0);
    assert_eq!(latch(&["show", "--local", "boot", "2"]).1, "missing 1\n");
    assert_eq!(latch(&["down", "--local", "boot", "2"]).1, "0\n", "as this host");
}

#[test]
fn resize_prints_the_limit_and_run_takes_permits_of_what_is_resizable() {
    let stage = Stage::new();
    for limit in ["0", "12"] {
        let resized = stage.run(&["resize", "--local", "pool", limit]);
        assert_eq!(resized.status.code(), Some(0), "{}", stderr(&resized));
        assert_eq!(stdout(&resized), format!("{limit}\n"));
    }
    let run = ["run", "--local", "--limit", "2", "--resizable"];
    for patience in [&["-n"][..], &["--wait", "60"], &[]] {
        let ran = stage.run(&[&run[..], patience, &["pool", "echo", "in"]].concat());
        assert_eq!((ran.status.code(), &*stdout(&ran)), (Some(0), "in\n"), "{}", stderr(&ran));
    }
    for wrong in [
        &["resize", "--local", "pool"][..],
        &["resize", "--local", "pool", "-1"],
        &["resize", "--local", "", "3"],
        &["run", "--local", "--resizable", "pool", "true"],
    ] {
        let output = stage.run(wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {}", stderr(&output));
    }
    let help = stage.run(&["resize", "--help"]);
    assert!(stdout(&help).contains("evicts nobody"), "{}", stdout(&help));
}

#[test]
fn a_limit_that_was_resized_holds_for_commands_that_come_later() {
    let stage = Stage::new();
    let run = |permits| {
        let take = ["--limit", "9", "--resizable", "--permits", permits];
        stage.run(&[&["run", "--local", "-n"][..], &take, &["pool", "true"]].concat())
    };
    for (limit, permits, code) in [("2", "2", 0), ("2", "3", 75), ("3", "3", 0), ("0", "1", 75)] {
        let resized = stage.run(&["resize", "--local", "pool", limit]);
        assert_eq!(resized.status.code(), Some(0), "{}", stderr(&resized));
        let ran = run(permits);
        assert_eq!(ran.status.code(), Some(code), "{permits} of {limit}: {}", stderr(&ran));
    }
}

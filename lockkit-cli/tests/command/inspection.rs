//! `ls`, `show`, `watch`, `break`, `doctor`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::stage::{Running, Stage, stderr, stdout};

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

const CLAIM: [&str; 10] = [
    "expires_in_ms",
    "held_for_ms",
    "identity",
    "mode",
    "note",
    "permits",
    "position",
    "token",
    "ttl_ms",
    "waiting_for_ms",
];

#[test]
fn show_json_has_its_shape_and_never_the_id() {
    let stage = Stage::new();
    let ticket = stdout(&stage.run(&["acquire", "--local", "--ttl", "1000", "--note", "why", "a"]));
    let _waiter = stage.start(&["run", "--local", "-s", "a", "true"]);
    stage.wait_for_waiters("a", 1);
    let state = stage.state("a");
    assert_eq!(keys(&state), ["holders", "limit", "name", "space", "waiters"]);
    assert_eq!((&state["name"], &state["space"]), (&"a".into(), &"lock".into()));
    assert!(state["limit"].is_null());
    let (holder, waiter) = (&state["holders"][0], &state["waiters"][0]);
    for claim in [holder, waiter] {
        assert_eq!(keys(claim), CLAIM);
        assert_eq!(keys(&claim["identity"]), ["host", "pid", "program"]);
        assert!(claim["permits"].is_null() && claim["expires_in_ms"].is_u64());
    }
    assert_eq!((&holder["mode"], &holder["note"]), (&"exclusive".into(), &"why".into()));
    assert_eq!((&holder["ttl_ms"], &holder["position"]), (&1_000_000.into(), &1.into()));
    assert!(holder["held_for_ms"].is_u64() && holder["waiting_for_ms"].is_null());
    assert_eq!((&waiter["mode"], &waiter["position"]), (&"shared".into(), &2.into()));
    assert!(waiter["held_for_ms"].is_null() && waiter["waiting_for_ms"].is_u64());
    assert!(waiter["token"].as_u64() > holder["token"].as_u64());
    let id = ticket.split('.').nth(4).unwrap();
    assert!(id.len() == 32 && !state.to_string().contains(id));
    let people = stdout(&stage.run(&["show", "--local", "a"]));
    assert!(
        people.contains("holds") && people.contains("waits") && !people.contains(id),
        "{people}"
    );
}

#[test]
fn ls_shows_the_locks_of_all_namespaces_and_says_when_there_is_nothing() {
    let stage = Stage::new();
    let ls = |options: &[&str]| stage.run(&[&["ls", "--local"], options].concat());
    let none = ls(&["--all-namespaces"]);
    assert!(none.status.success() && none.stdout.is_empty(), "{}", stderr(&none));
    assert!(stderr(&none).contains("in any namespace"), "{}", stderr(&none));
    for namespace in ["", "shop", "shop/eu"] {
        let taken = stage.run(&["acquire", "--local", "--namespace", namespace, "job"]);
        assert!(taken.status.success(), "{}", stderr(&taken));
    }
    assert_eq!(stdout(&ls(&["--namespace", "shop"])).lines().count(), 2, "only its own");
    let all = stdout(&ls(&["--all-namespaces"]));
    let columns = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect();
    let shown: Vec<Vec<String>> = all.lines().map(columns).collect();
    let expected = [["NAMESPACE", "NAME"], ["-", "job"], ["shop", "job"], ["shop/eu", "job"]];
    assert_eq!(shown, expected, "{all}");
    let states: Vec<Value> =
        serde_json::from_slice(&ls(&["--all-namespaces", "--json"]).stdout).unwrap();
    let namespaces: Vec<_> =
        states.iter().map(|state| state["namespace"].as_str().unwrap()).collect();
    assert_eq!(namespaces, ["", "shop", "shop/eu"]);
    for state in &states {
        assert_eq!(keys(state), ["holders", "limit", "name", "namespace", "space", "waiters"]);
    }
    let both = ls(&["--all-namespaces", "--namespace", "shop"]);
    assert_eq!(both.status.code(), Some(64), "{}", stderr(&both));
}

#[test]
fn ls_lists_registers_that_have_a_value() {
    let stage = Stage::new();
    let ls = |options: &[&str]| stage.run(&[&["ls", "--local", "--registers"], options].concat());
    let none = ls(&[]);
    assert!(none.status.success() && stderr(&none).contains("no such register"), "{none:?}");
    let mut versions = Vec::new();
    for (name, value) in [("cursor/a", "42"), ("cursor/b", ""), ("other", "x\ny")] {
        versions.push(stdout(&stage.run(&["put", "--local", "--allow-empty", name, value])));
    }
    stage.run(&["put", "--local", "--namespace", "shop", "cursor/c", "1"]);
    stage.run(&["put", "--local", "gone", "1"]);
    assert!(stage.run(&["delete", "--local", "gone"]).status.success());
    let latch = stage.run(&["latch", "down", "--local", "ready", "2"]);
    assert!(latch.status.success(), "{}", stderr(&latch));

    let shown: Vec<Value> = serde_json::from_slice(&ls(&["--json"]).stdout).unwrap();
    let found: Vec<_> = shown
        .iter()
        .zip(versions)
        .map(|(it, version)| {
            assert_eq!(keys(it), ["bytes", "name", "token", "version"]);
            assert_eq!(it["version"].to_string(), version.trim_end(), "{it}");
            assert!(it["token"].is_null());
            (it["name"].as_str().unwrap(), it["bytes"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [("cursor/a", 2), ("cursor/b", 0), ("other", 3)], "{shown:?}");
    let some = stdout(&ls(&["--all-namespaces", "cursor/"]));
    let columns = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect();
    let some: Vec<Vec<String>> = some.lines().skip(1).map(columns).collect();
    assert_eq!(some, [["-", "cursor/a"], ["-", "cursor/b"], ["shop", "cursor/c"]]);
    assert_eq!(ls(&["--waiting"]).status.code(), Some(64), "registers have no waiters");
}

#[test]
fn ls_lists_filters_and_has_the_same_shape() {
    let stage = Stage::new();
    let list = |options: &[&str]| -> Vec<String> {
        let output = stage.run(&[&["ls", "--local", "--json"], options].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let states: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        for state in &states {
            assert_eq!(keys(state), ["holders", "limit", "name", "space", "waiters"]);
        }
        states.iter().map(|s| format!("{}/{}", s["space"], s["name"]).replace('"', "")).collect()
    };
    assert_eq!(list(&[]), [""; 0]);
    for name in ["job/1", "job/2", "other"] {
        assert!(stage.run(&["acquire", "--local", name]).status.success());
    }
    assert!(stage.run(&["acquire", "--local", "--limit", "3", "job/1"]).status.success());
    let _waiter = stage.start(&["run", "--local", "job/2", "true"]);
    stage.wait_for_waiters("job/2", 1);
    assert_eq!(list(&[]), ["lock/job/1", "semaphore/job/1", "lock/job/2", "lock/other"]);
    assert_eq!(list(&["job/"]), ["lock/job/1", "semaphore/job/1", "lock/job/2"]);
    assert_eq!(list(&["%"]), [""; 0]);
    assert_eq!(list(&["--waiting"]), ["lock/job/2"]);
    assert_eq!(list(&["--held-over", "1h"]), [""; 0]);
    assert_eq!(list(&["--held-over", "0", "o"]), ["lock/other"]);
    let table = stdout(&stage.run(&["ls", "--local", "job/"]));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("NAME") && table.contains("1 of 3"), "{table}");
}

#[test]
fn show_semaphore_shows_the_other_space() {
    let stage = Stage::new();
    assert!(
        stage.run(&["acquire", "--local", "--permits", "2", "--limit", "3", "a"]).status.success()
    );
    assert!(stdout(&stage.run(&["show", "--local", "--lock", "a"])).contains("is free"));
    let output = stage.run(&["show", "--local", "--json", "--semaphore", "a"]);
    let state: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&state["limit"], &state["holders"][0]["permits"]), (&3.into(), &2.into()));
    assert_eq!(state["space"], "semaphore");
}

#[test]
fn watch_shows_the_state_now_and_each_change() {
    let stage = Stage::new();
    let mut command = stage.lockkit(&["watch", "--local", "--json", "a"]);
    let mut watch = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut holders = || -> usize {
        let state: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        state["holders"].as_array().unwrap().len()
    };
    assert_eq!(holders(), 0);
    let said = stdout(&stage.run(&["acquire", "--local", "a"]));
    assert_eq!(holders(), 1);
    let ticket = said.trim_end();
    assert!(stage.run(&["release", "--local", ticket]).status.success());
    assert_eq!(holders(), 0);
}

#[test]
fn break_needs_the_right_token() {
    let stage = Stage::new();
    assert!(stage.run(&["acquire", "--local", "--ttl", "1000", "a"]).status.success());
    let token = &stage.wait_for_holder("a").to_string();
    let wrong = stage.run(&["break", "--local", "a", "--token", "999999"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", stderr(&wrong));
    assert_eq!(stage.run(&["run", "--local", "-n", "a", "true"]).status.code(), Some(75));
    let right = ["break", "--local", "a", "--token", token, "--force", "--reason", "stuck"];
    assert_eq!(stage.run(&right).status.code(), Some(0));
    assert_eq!(stage.run(&["run", "--local", "-n", "a", "true"]).status.code(), Some(0));
}

#[test]
fn doctor_says_how_the_backend_is() {
    let stage = Stage::new();
    let output = stage.run(&["doctor", "--local"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("server   "), "{}", stdout(&output));
    let url = format!("sqlite:{}", stage.path("foreign").display());
    let text = "not a database at all, but long enough ".repeat(99);
    std::fs::write(stage.path("foreign"), &text).unwrap();
    let output = stage.run(&["doctor", "--url", &url]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(stage.path("foreign")).unwrap(), text);
}

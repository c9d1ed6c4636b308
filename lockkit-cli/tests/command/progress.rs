//! `--progress`: what is waited for, while it is.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Stage, wait_for};

/// The lines of JSON on stderr so far.
fn lines(stage: &Stage) -> Vec<Value> {
    let text = fs::read_to_string(stage.path("stderr")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn json_lines_have_the_place_the_holder_and_the_age_at_each_change() {
    let stage = Stage::new();
    let holder = stage.start(&["run", "--local", "--note", "tidying", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    let first = stage.start(&["run", "--local", "a", "sleep", "1000"]);
    stage.wait_for_waiters("a", 1);
    let mut waiter = stage.start(&["run", "--local", "--progress=json", "a", "touch", "ran"]);
    let found = |place: u64| {
        wait_for("a line with the place", || {
            lines(&stage).into_iter().find(|line| line["progress"]["position"] == place)
        })
    };
    let second = found(2);
    // As `watch --json` has it.
    assert_eq!(second["name"], "a");
    assert_eq!(second["holders"][0]["note"], "tidying");
    assert_eq!(second["waiters"].as_array().unwrap().len(), 2);
    assert_eq!(second["progress"]["phase"], "waiting");
    assert_eq!(second["progress"]["error"], Value::Null);
    let before = second["progress"]["waiting_for_ms"].as_u64().unwrap();
    first.signal(Signal::TERM);
    let next = found(1);
    assert!(next["progress"]["waiting_for_ms"].as_u64().unwrap() >= before, "{next}");
    holder.signal(Signal::TERM);
    assert_eq!(waiter.code(), 0);
    assert!(stage.path("ran").exists());
    let places: Vec<_> =
        lines(&stage).iter().map(|line| line["progress"]["position"].clone()).collect();
    assert!(places.len() <= 4, "a line a change, and one in 10 s: {places:?}");
}

#[test]
fn text_lines_say_the_same_and_none_is_written_for_a_free_lock() {
    let stage = Stage::new();
    let mut free = stage.start(&["run", "--local", "--progress", "a", "true"]);
    assert_eq!(free.code(), 0);
    assert_eq!(fs::read_to_string(stage.path("stderr")).unwrap(), "");
    let _holder = stage.start(&["run", "--local", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    let mut waiter = stage.start(&["run", "--local", "--progress", "a", "true"]);
    let said = stage.wait_for_file("stderr");
    assert!(said.starts_with("lockkit: waiting for the lock \"a\" for "), "{said}");
    assert!(said.contains("position 1 of 1, held by "), "{said}");
    waiter.signal(Signal::INT);
    waiter.end();
}

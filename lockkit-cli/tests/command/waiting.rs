//! While the lock is somebody else's.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::stage::{Stage, wait_for};

#[test]
fn after_a_second_stderr_says_who_holds_it_and_since_when() {
    let stage = Stage::new();
    let _holder = stage.start(&["run", "--local", "--note", "tidying up", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    let mut waiter = stage.start(&["run", "--local", "a", "true"]);
    let said = stage.wait_for_file("stderr");
    assert!(said.starts_with("lockkit: waiting for the lock \"a\": held by "), "{said}");
    assert!(said.contains(":sleep["), "{said}");
    assert!(said.contains(" for ") && said.contains("\"tidying up\""), "{said}");
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
}

#[test]
fn interrupted_while_waiting_it_withdraws_and_ends_with_128_plus_n() {
    let stage = Stage::new();
    let _holder = stage.start(&["run", "--local", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut waiter = stage.start(&["run", "--local", "a", "touch", "ran"]);
        stage.wait_for_waiters("a", 1);
        waiter.signal(signal);
        let status = waiter.end();
        assert_eq!(status.signal(), Some(code - 128), "so that the script around it ends too");
        assert_eq!(stage.state("a")["waiters"].as_array().unwrap().len(), 0);
    }
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_waiter_runs_its_command_when_the_holder_is_done() {
    let stage = Stage::new();
    let script = "until [ -e go ]; do sleep 0.01; done; echo first >>order";
    let mut holder = stage.start(&["run", "--local", "a", "sh", "-c", script]);
    stage.wait_for_holder("a");
    let mut waiter = stage.start(&["run", "--local", "a", "sh", "-c", "echo second >>order"]);
    stage.wait_for_waiters("a", 1);
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!((holder.code(), waiter.code()), (0, 0));
    let order = wait_for("the order", || fs::read_to_string(stage.path("order")).ok());
    assert_eq!(order, "first\nsecond\n");
}

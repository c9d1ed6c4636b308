//! `hold`: the rest of a script under a lock.

use std::fs;

use rustix::process::Signal;

use crate::stage::{Running, Stage, code, stderr, wait_for};

const WORK: &str = "echo $LOCKKIT_TOKEN >up; until [ -e go ]; do sleep 0.02; done; echo done >end";

fn script(stage: &Stage, options: &str, rest: &str) -> Running {
    let script = format!("eval \"$(\"$LOCKKIT\" hold --local {options} a)\"; {rest}");
    stage.start_command(stage.program("sh").args(["-c", &script]))
}

fn is_free(stage: &Stage) -> Option<()> {
    stage.state("a")["holders"].as_array().unwrap().is_empty().then_some(())
}

#[test]
fn a_script_holds_the_lock_until_it_ends() {
    let stage = Stage::new();
    let mut running = script(&stage, "--note why", WORK);
    let token = stage.wait_for_file("up");
    let holder = &stage.state("a")["holders"][0];
    assert_eq!(
        (holder["token"].to_string(), &holder["note"]),
        (token.trim().to_owned(), &"why".into())
    );
    assert_eq!(code(&stage.run(&["run", "--local", "-n", "a", "true"])), 75);
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!(running.code(), 0);
    assert!(stage.path("end").exists());
    wait_for("the release", || is_free(&stage));
}

#[test]
fn a_script_that_is_killed_frees_the_lock_at_once() {
    let stage = Stage::new();
    let mut running = script(&stage, "--ttl 1h", WORK);
    stage.wait_for_file("up");
    running.signal(Signal::KILL);
    running.end();
    wait_for("the release", || is_free(&stage));
}

#[test]
fn a_script_that_does_not_get_the_lock_ends() {
    let stage = Stage::new();
    assert!(stage.run(&["acquire", "--local", "--ttl", "1000", "a"]).status.success());
    assert_eq!(script(&stage, "-n", "touch ran").code(), 75);
    assert_eq!(script(&stage, "-n -E 9", "touch ran").code(), 9);
    assert_eq!(script(&stage, "--ttl soon", "touch ran").code(), 64);
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_script_whose_lock_is_broken_is_ended() {
    let stage = Stage::new();
    let mut running = script(&stage, "", &format!("trap 'echo TERM >got; exit 9' TERM; {WORK}"));
    let token = stage.wait_for_file("up");
    let broken = stage.run(&["break", "--local", "a", "--token", token.trim()]);
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    assert_eq!(running.code(), 9);
    assert_eq!(stage.wait_for_file("got"), "TERM\n");
    let stubborn = Stage::new();
    let mut running = script(&stubborn, "--ttl 2s", &format!("trap '' TERM; {WORK}"));
    let token = stubborn.wait_for_file("up");
    assert_eq!(code(&stubborn.run(&["break", "--local", "a", "--token", token.trim()])), 0);
    assert_eq!(running.code(), 137);
}

#[test]
fn a_script_that_is_interrupted_while_it_waits_leaves_nothing() {
    let stage = Stage::new();
    assert!(stage.run(&["acquire", "--local", "--ttl", "1000", "a"]).status.success());
    let hold = stage.lockkit(&["hold", "--local", "a"]);
    let mut hold = hold;
    let mut running = stage.start_command(&mut hold);
    stage.wait_for_waiters("a", 1);
    running.signal(Signal::INT);
    running.end();
    stage.wait_for_waiters("a", 0);
}

#[test]
fn the_script_is_known_even_from_a_subshell() {
    let stage = Stage::new();
    let line = "eval \"$( (\"$LOCKKIT\" hold --local a; :) )\"";
    let mut script = stage.program("sh");
    let mut running = stage.start_command(script.args(["-c", &format!("{line}; {WORK}")]));
    stage.wait_for_file("up");
    assert!(is_free(&stage).is_none(), "the subshell has ended");
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!(running.code(), 0);
    wait_for("the release", || is_free(&stage));
}

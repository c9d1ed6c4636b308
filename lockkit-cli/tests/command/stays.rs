//! `--at-least` and `--lock-delay`: a lock that outlasts its command.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::stage::{Stage, stderr, wait_for};

fn is_held(stage: &Stage, name: &str) -> bool {
    !stage.state(name)["holders"].as_array().unwrap().is_empty()
}

fn free_after(stage: &Stage, name: &str, since: Instant) -> Duration {
    wait_for("the lock is free", || (!is_held(stage, name)).then_some(()));
    since.elapsed()
}

#[test]
fn a_lock_stays_for_its_least_hold_and_the_command_line_is_back_at_once() {
    let stage = Stage::new();
    for (command, code) in [("true", 0), ("false", 1)] {
        let began = Instant::now();
        let run = stage.run(&["run", "--local", "--at-least", "4s", command, command]);
        let took = began.elapsed();
        assert_eq!(run.status.code(), Some(code), "{}", stderr(&run));
        assert!(is_held(&stage, command), "after {took:?}");
        let busy = stage.run(&["run", "--local", "--try", command, "true"]);
        assert_eq!(busy.status.code(), Some(75));
        let free = free_after(&stage, command, began);
        assert!(free >= Duration::from_secs(4), "free after {free:?}");
    }
}

#[test]
fn a_killed_lockkit_leaves_a_lease_of_the_least_hold() {
    let stage = Stage::new();
    let began = Instant::now();
    let holder =
        stage.start(&["run", "--local", "--ttl", "1s", "--at-least", "5s", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    holder.signal(Signal::KILL);
    let free = free_after(&stage, "a", began);
    assert!(free >= Duration::from_secs(5), "free after {free:?}");
}

#[test]
fn a_lost_lock_stays_closed_for_its_delay_and_a_released_one_opens() {
    let stage = Stage::new();
    let delay = ["--ttl", "2s", "--lock-delay", "5s"];
    let run = |more: &[&'static str]| [&["run", "--local"], &delay[..], more].concat();
    let released = stage.run(&run(&["a", "true"]));
    assert!(released.status.success(), "{}", stderr(&released));
    assert!(!is_held(&stage, "a"), "a release opens at once");
    // Not renewed, since the process stands still; its supervisor ends the command by the clock.
    let mut holder = stage.start(&run(&["a", "-c", "echo >up; exec sleep 1000"]));
    stage.wait_for_file("up");
    let shown = stage.state("a");
    assert_eq!(shown["holders"][0]["lock_delay_ms"], 5_000, "{shown}");
    assert_eq!(shown["holders"][0]["ttl_ms"], 2_000, "{shown}");
    let people = stage.run(&["show", "--local", "a"]);
    let people = String::from_utf8_lossy(&people.stdout).into_owned();
    assert!(people.contains("closed for 5 s after a loss"), "{people}");
    let stopped = Instant::now();
    holder.signal(Signal::STOP);
    // Longer than the ttl: what the supervisor does meanwhile is the subject.
    std::thread::sleep(Duration::from_millis(2_500));
    let lost = Instant::now();
    holder.signal(Signal::CONT);
    assert_eq!(holder.code(), 74);
    assert!(lost.elapsed() < Duration::from_secs(3), "it does not wait for the delay");
    let free = free_after(&stage, "a", stopped);
    assert!(
        free >= Duration::from_millis(6_200),
        "open {free:?} after the last renewal, or sooner"
    );
}

/// Where it cannot be left to the backend, `lockkit` itself stays. It renews at a third of the least hold.
#[test]
fn a_loss_after_the_command_is_not_one_while_it_ran() {
    let stage = Stage::new();
    let file = |name| stage.path(name).display().to_string();
    let url = format!("mirror:sqlite:{},sqlite:{}", file("old.db"), file("new.db"));
    let run = ["run", "--url", &url, "--at-least", "24s", "--ttl", "8s", "--progress=json"];
    let mut run = stage.start(&[&run[..], &["a", "false"]].concat());
    let said = || std::fs::read_to_string(stage.path("stderr")).unwrap();
    wait_for("the end of the command", || said().contains("\"phase\":\"held\"").then_some(()));
    let shown = stage.run(&["show", "--json", "--url", &url, "a"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let token = shown["holders"][0]["token"].to_string();
    let broken = stage.run(&["break", "--url", &url, "--force", "--token", &token, "a"]);
    assert!(broken.status.success(), "{}", stderr(&broken));
    assert_eq!(run.code(), 1, "{}", said());
    assert!(said().contains("did not stay held for all of --at-least"), "{}", said());
}

#[test]
fn a_ticket_has_neither() {
    let stage = Stage::new();
    for option in ["--at-least", "--lock-delay"] {
        let refused = stage.run(&["acquire", "--local", option, "5s", "a"]);
        assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("lockkit run"), "{}", stderr(&refused));
    }
    let hung = stage.run(&["run", "--local", "--at-least", "5s", "--max-hold", "4s", "a", "true"]);
    assert!(stderr(&hung).contains("longer than the max_hold"), "{}", stderr(&hung));
    assert!(!stage.state_folder().join("lockkit/locks.db").exists(), "before any I/O");
}

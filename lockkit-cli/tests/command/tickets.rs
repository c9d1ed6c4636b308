//! `acquire`, `renew`, `release`.

use std::io::Write;
use std::process::Stdio;

use crate::stage::{Stage, stderr, stdout};

#[test]
fn a_ticket_keeps_a_lock_beyond_the_process_until_it_is_released() {
    let stage = Stage::new();
    let output = stage.run(&["acquire", "--local", "--note", "by hand", "a b"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    let ticket = said.trim_end();
    let token = stage.state("a b")["holders"][0]["token"].to_string();
    assert_eq!(stage.run(&["run", "--local", "-n", "a b", "true"]).status.code(), Some(75));

    let renewed = stage.run(&["renew", "--local", ticket]);
    assert_eq!((renewed.status.code(), stdout(&renewed)), (Some(0), format!("{token}\n")));
    assert_eq!(stage.run(&["run", "--local", "-n", "a b", "true"]).status.code(), Some(75));

    assert_eq!(stage.run(&["release", "--local", ticket]).status.code(), Some(0));
    assert_eq!(stage.run(&["run", "--local", "-n", "a b", "true"]).status.code(), Some(0));
    for verb in ["release", "renew"] {
        let gone = stage.run(&[verb, "--local", ticket]);
        assert_eq!(gone.status.code(), Some(74), "{verb}: {}", stderr(&gone));
    }
}

#[test]
fn a_ticket_can_come_from_stdin_and_only_fits_its_namespace() {
    let stage = Stage::new();
    let said = stdout(&stage.run(&["acquire", "--local", "--namespace", "p", "a"]));
    let ticket = said.trim_end();
    let refused = stage.run(&["release", "--local", ticket]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(stderr(&refused).contains("--namespace p"), "{}", stderr(&refused));
    let mut command = stage.lockkit(&["release", "--local", "--namespace", "p", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_ticket_that_nobody_renews_ends_with_its_ttl() {
    let stage = Stage::new();
    // Long enough that the ticket is printed before it ends, also on a busy machine.
    let output = stage.run(&["acquire", "--local", "--json", "--ttl", "3s", "a"]);
    let held: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let token = held["token"].as_u64().unwrap();
    let script = "echo $LOCKKIT_TOKEN";
    let next = stage.run(&["run", "--local", "-w", "60", "a", "sh", "-c", script]);
    assert!(stdout(&next).trim().parse::<u64>().unwrap() > token, "{}", stderr(&next));
}

#[test]
fn acquire_is_refused_like_run_when_the_lock_is_taken() {
    let stage = Stage::new();
    assert!(stage.run(&["acquire", "--local", "a"]).status.success());
    assert_eq!(stage.run(&["acquire", "--local", "-n", "a"]).status.code(), Some(75));
    assert_eq!(
        stage.run(&["acquire", "--local", "-w", "50ms", "-E", "3", "a"]).status.code(),
        Some(3)
    );
}

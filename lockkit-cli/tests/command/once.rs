//! `run --once`: a job that many start and one does.

use std::fs;

use rustix::process::Signal;

use crate::stage::{Stage, stderr, wait_for};

/// How often the job ran.
fn runs(stage: &Stage) -> usize {
    fs::read_to_string(stage.path("ran")).unwrap_or_default().lines().count()
}

#[test]
fn a_job_runs_once_for_its_key() {
    let stage = Stage::new();
    let job = ["run", "--local", "--once", "today/report", "sh", "-c", "echo >>ran"];
    let first = stage.run(&job);
    assert_eq!((first.status.code(), stderr(&first)), (Some(0), String::new()));
    let second = stage.run(&job);
    let said = stderr(&second);
    assert_eq!(second.status.code(), Some(0), "{said}");
    assert!(
        said.contains("today/report") && said.contains("was done by ") && said.contains(":sh["),
        "{said}"
    );
    assert_eq!(runs(&stage), 1);
    let other = stage.run(&["run", "--local", "--once", "tomorrow", "sh", "-c", "echo >>ran"]);
    assert_eq!((other.status.code(), runs(&stage)), (Some(0), 2));
}

#[test]
fn a_job_that_failed_runs_again() {
    let stage = Stage::new();
    let job = |script| stage.run(&["run", "--local", "--once", "job", "sh", "-c", script]);
    assert_eq!(job("echo >>ran; exit 3").status.code(), Some(3));
    assert_eq!(job("echo >>ran; kill -9 $$").status.code(), Some(137));
    assert_eq!(job("echo >>ran").status.code(), Some(0));
    assert_eq!(job("echo >>ran; exit 3").status.code(), Some(0));
    assert_eq!(runs(&stage), 3);
}

#[test]
fn whoever_waits_does_nothing_once_it_was_done() {
    let stage = Stage::new();
    let script = "echo >>ran; echo >up; until test -e go; do sleep 0.01; done";
    let job = ["run", "--local", "--once", "job", "sh", "-c", script];
    let mut first = stage.start(&job);
    stage.wait_for_file("up");
    let busy = stage.run(&["run", "--local", "--once", "--try", "job", "true"]);
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    let mut second = stage.start(&job);
    stage.wait_for_waiters("job", 1);
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!((first.code(), second.code()), (0, 0));
    assert_eq!(runs(&stage), 1);
}

#[test]
fn a_runner_that_died_is_followed_after_its_lease() {
    let stage = Stage::new();
    let job = |ttl, script| ["run", "--local", "--ttl", ttl, "--once", "job", "sh", "-c", script];
    let first = stage.start(&job("6s", "echo >>ran; echo >up; sleep 1000"));
    stage.wait_for_file("up");
    first.signal(Signal::KILL);
    let mut second = stage.start(&job("60s", "echo >>ran"));
    assert_eq!(second.code(), 0);
    wait_for("the second run", || (runs(&stage) == 2).then_some(()));
}

#[test]
fn a_success_that_could_not_be_remembered_is_refused_before_the_job() {
    let stage = Stage::new();
    let job = ["run", "--local", "--once", "job", "--keep", "4000d", "sh", "-c", "echo >>ran"];
    let refused = stage.run(&job);
    let said = stderr(&refused);
    assert_eq!((refused.status.code(), runs(&stage)), (Some(64), 0), "{said}");
    assert!(said.contains("10 years at most"), "{said}");
}

/// A host that finds the job done would hold the name all the same.
#[test]
fn a_job_that_is_done_once_has_no_least_hold() {
    let stage = Stage::new();
    let run = ["run", "--local", "--once", "--at-least", "5s", "job", "true"];
    let refused = stage.run(&run);
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--at-least"), "{}", stderr(&refused));
    assert!(!stage.state_folder().join("lockkit/locks.db").exists(), "before any I/O");
}

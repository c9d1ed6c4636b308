//! docs/recipes/cron.md: the same crontab on three hosts.

use std::fs;

use super::Recipe;
use crate::stage::wait_for;

/// The command of the crontab that begins like this, as cron hands it to the shell, with the programs of
/// the test instead of those of a host.
fn command(recipe: &Recipe, job: &str) -> String {
    let text = fs::read_to_string(recipe.stage.path("crontab")).unwrap();
    let line = text.lines().find(|line| line.ends_with(job)).unwrap();
    let (_, command) = line.split_once("  lockkit").unwrap();
    format!("lockkit{}", command.replace("\\%", "%").replace("/usr/local/bin/", "./"))
}

fn program(recipe: &Recipe, name: &str, script: &str) {
    fs::write(recipe.stage.path("new"), format!("#!/bin/sh\n{script}\n")).unwrap();
    // By `cp`: a file that this process has open for writing cannot be run.
    let install = format!("cp new {name} && chmod +x {name}");
    assert!(recipe.script(&install).status().unwrap().success());
}

fn lines(recipe: &Recipe, file: &str) -> Vec<String> {
    let text = fs::read_to_string(recipe.stage.path(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn three_hosts_start_the_job_of_the_night_and_one_runs_it() {
    let recipe = Recipe::new("recipes/cron");
    program(&recipe, "report", "echo $HOST >>ran; sleep 0.3; echo $HOST >>done");
    let command = command(&recipe, "report");
    let mut hosts = ["a", "b", "c"].map(|name| recipe.host(name, &command));
    for host in &mut hosts {
        assert_eq!(host.end(), Some(0));
    }
    assert_eq!(lines(&recipe, "ran").len(), 1);
    // A host whose clock is late: it comes when the others have long ended.
    assert_eq!(recipe.host("d", &command).end(), Some(0));
    assert_eq!(lines(&recipe, "done").len(), 1);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(recipe.log(name), "", "cron would send this by mail");
    }
}

#[test]
fn the_job_of_a_host_that_dies_is_run_by_another_one() {
    let recipe = Recipe::new("recipes/cron");
    program(&recipe, "report", "echo $HOST >>ran; [ $HOST = b ] || sleep 60; echo $HOST >>done");
    let command = command(&recipe, "report");
    let first = recipe.host("a", &command);
    wait_for("its run", || (lines(&recipe, "ran") == ["a"]).then_some(()));
    let mut second = recipe.host("b", &command);
    first.kill();
    assert_eq!(second.end(), Some(0));
    assert_eq!(lines(&recipe, "ran"), ["a", "b"]);
    assert_eq!(lines(&recipe, "done"), ["b"]);
}

#[test]
fn a_job_that_is_still_at_work_elsewhere_is_skipped() {
    let recipe = Recipe::new("recipes/cron");
    let script = "echo $HOST >>ran; until [ -e go ]; do sleep 0.05; done";
    program(&recipe, "sync-stock", script);
    let command = command(&recipe, "sync-stock");
    let mut first = recipe.host("a", &command);
    wait_for("its run", || (lines(&recipe, "ran") == ["a"]).then_some(()));
    for name in ["b", "c"] {
        assert_eq!(recipe.host(name, &command).end(), Some(0), "no failure, and no mail");
        assert_eq!(recipe.log(name), "");
    }
    fs::write(recipe.stage.path("go"), "").unwrap();
    assert_eq!(first.end(), Some(0));
    assert_eq!(recipe.host("b", &command).end(), Some(0));
    assert_eq!(lines(&recipe, "ran"), ["a", "b"]);
}

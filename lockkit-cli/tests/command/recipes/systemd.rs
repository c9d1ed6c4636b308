//! docs/recipes/systemd.md: units that follow leadership. No systemd runs here: its own checker reads the
//! units, and the script that follows is run with a `systemctl` that starts and ends a process.

use std::fs;

use rustix::process::Signal;

use super::Recipe;
use crate::stage::{code, stderr, stdout, wait_for};

#[test]
fn systemd_finds_nothing_wrong_in_the_units() {
    let recipe = Recipe::new("systemd");
    // The programs of the units are not installed here.
    let script = "sed -i 's,/usr/local/[a-z/]*,/bin/true,' *.service; cp follow@.service follow@shop.service
        mkdir shop.service.d; cp shop.service.d-follow.conf shop.service.d/follow.conf
        printf '[Service]\\nExecStart=/bin/true\\n' >shop.service; cp shard@.service shard@7.service
        systemd-analyze verify --man=no ./nightly.service ./nightly.timer ./shard@7.service ./follow@shop.service ./shop.service";
    let ran = recipe.script(script).output().unwrap();
    assert_eq!((code(&ran), stderr(&ran)), (0, String::new()), "{}", stdout(&ran));
    let broken = "sed -i s/TimeoutStopSec/TimoutStopSec/ shop.service.d/follow.conf; systemd-analyze verify --man=no ./shop.service";
    let ran = recipe.script(broken).output().unwrap();
    assert!(stderr(&ran).contains("TimoutStopSec"), "it tells what is wrong: {}", stderr(&ran));
}

/// What a unit is here: a process whose id is in a file.
const SYSTEMCTL: &str = "#!/bin/sh
case \"$*\" in
'start shop.service') setsid sleep 1000 & echo $! >unit; echo start >>calls ;;
'--quiet is-active shop.service') kill -0 $(cat unit) 2>/dev/null ;;
'stop shop.service') kill $(cat unit); rm unit; echo stop >>calls ;;
*) exit 64 ;;
esac
";

#[test]
fn a_unit_runs_while_its_host_leads() {
    let recipe = Recipe::new("systemd");
    fs::write(recipe.stage.path("text"), SYSTEMCTL).unwrap();
    assert_eq!(code(&recipe.script("cp text systemctl; chmod +x systemctl").output().unwrap()), 0);
    let unit = fs::read_to_string(recipe.stage.path("follow@.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/env ")).unwrap();
    let start =
        start.replace("%i", "shop").replace("%H", "$HOST").replace("/usr/local/libexec/", "./");
    // A lease of the test, for which 9 s would be too long.
    let start = start.replace("--kill-after 9s", "--ttl 30s --kill-after 9s");
    let calls = || fs::read_to_string(recipe.stage.path("calls")).unwrap_or_default();
    let host = recipe.host("a", &format!("exec {start}"));
    wait_for("the start of the unit", || (calls() == "start\n").then_some(()));
    let leader = recipe.stage.run(&["elect", "--url", &recipe.url, "--show", "follow/shop"]);
    assert_eq!(stdout(&leader), "a\n");
    // Taken away: the unit is stopped, and started in the next term.
    let token = {
        let shown = recipe.stage.run(&["show", "--url", &recipe.url, "--json", "follow/shop"]);
        let state: serde_json::Value = serde_json::from_str(&stdout(&shown)).unwrap();
        state["holders"][0]["token"].to_string()
    };
    let broken = recipe.stage.run(&[
        "break",
        "--url",
        &recipe.url,
        "--force",
        "follow/shop",
        "--token",
        token.trim_matches('"'),
    ]);
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    wait_for("the next term", || (calls() == "start\nstop\nstart\n").then_some(()));
    let mut host = host;
    rustix::process::kill_process(rustix::process::Pid::from_child(&host.0), Signal::TERM).unwrap();
    assert_eq!(host.end(), Some(143));
    assert_eq!(calls(), "start\nstop\nstart\nstop\n");
}

//! The command never outlives the lease, whatever becomes of lockkit.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use lockkit::clock::ClockPair;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{
    PATIENCE, Running, Stage, children_called, process_state, stderr, stdout, wait_for,
    wait_for_death,
};

/// Does not end on SIGTERM, and has a child that does not either.
const STUBBORN: &str = "trap 'echo TERM >>got' TERM
    sh -c 'trap : TERM; echo $$ >grandchild; while :; do sleep 0.02; done' &
    echo $$ >command; while :; do sleep 0.02; done";

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn when_lockkit_is_killed_the_group_dies_at_once_and_the_lock_is_free_within_its_ttl() {
    let stage = Stage::new();
    let mut running = stage.start(&["run", "--local", "--ttl", "2", "a", "sh", "-c", STUBBORN]);
    let (command, grandchild) = (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
    running.signal(Signal::KILL);
    running.end();
    wait_for_death(command);
    wait_for_death(grandchild);
    assert!(!stage.path("got").exists(), "nobody is left who could wait for a graceful end");
    let next = stage.run(&["run", "--local", "--wait", "30", "a", "true"]);
    assert_eq!(next.status.code(), Some(0));
}

#[test]
fn when_lockkit_stands_still_the_group_is_dead_before_another_gets_the_lock() {
    let stage = Stage::new();
    let mut running = stage.start(&["run", "--local", "--ttl", "5", "a", "sh", "-c", STUBBORN]);
    let (command, grandchild) = (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
    running.signal(Signal::STOP);
    let script = format!(
        "for p in {command} {grandchild}; do
             case $(cut -d' ' -f3 /proc/$p/stat 2>/dev/null) in ''|Z|X) ;; *) exit 8;; esac
         done"
    );
    let next = stage.run(&["run", "--local", "--wait", "30", "a", "sh", "-c", &script]);
    assert_eq!(next.status.code(), Some(0), "8: the first command was still alive");
    assert_eq!(stage.wait_for_file("got"), "TERM\n", "it was asked to end before it was killed");
    running.signal(Signal::CONT);
    assert_eq!(running.code(), 74);
}

#[test]
fn a_killed_supervisor_is_replaced() {
    let stage = Stage::new();
    let mut running = stage.start(&["run", "--local", "a", "sh", "-c", STUBBORN]);
    let grandchild = stage.wait_for_pid("grandchild");
    let supervisors = || children_called(running.0.id(), "lk-supervisor");
    let first = wait_for("the supervisor", || supervisors().first().copied());
    kill(first, Signal::TERM);
    kill(first, Signal::HUP);
    assert!(process_state(first).is_some(), "it leaves only after its group");
    kill(first, Signal::KILL);
    wait_for("another", || supervisors().first().copied().filter(|pid| *pid != first));
    // Whose word is known to have been heard: it answers before lockkit goes on.
    wait_for("its word", || {
        fs::read_to_string(stage.path("stderr")).unwrap().contains("another one").then_some(())
    });
    running.signal(Signal::KILL);
    running.end();
    wait_for_death(grandchild);
}

#[test]
fn a_broken_lock_ends_the_command_with_term_then_kill_and_74() {
    for force in [false, true] {
        let stage = Stage::new();
        let mut running = stage.start(&["run", "--local", "--ttl", "3", "a", "sh", "-c", STUBBORN]);
        let (command, grandchild) =
            (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
        let token = stage.wait_for_holder("a").to_string();
        let mut arguments = vec!["break", "--local", "a", "--token", &token, "--reason", "enough"];
        if force {
            arguments.push("--force");
        }
        assert_eq!(stage.run(&arguments).status.code(), Some(0));
        assert_eq!(running.code(), 74);
        assert_eq!(stage.wait_for_file("got"), "TERM\n");
        assert!(process_state(command).is_none() && process_state(grandchild).is_none());
        let said = fs::read_to_string(stage.path("stderr")).unwrap();
        assert!(said.contains("enough"), "{said}");
        let next = stage.run(&["run", "--local", "-n", "a", "true"]);
        assert_eq!(next.status.code(), Some(0), "free as soon as its holder is gone");
    }
}

#[test]
fn a_lost_lock_is_74_whatever_the_command_returns() {
    let stage = Stage::new();
    let script = "trap 'exit 0' TERM; echo $$ >command; while :; do sleep 0.02; done";
    let mut running = stage.start(&["run", "--local", "--ttl", "3", "a", "sh", "-c", script]);
    stage.wait_for_pid("command");
    let token = stage.wait_for_holder("a").to_string();
    assert!(stage.run(&["break", "--local", "a", "--token", &token]).status.success());
    assert_eq!(running.code(), 74);
    // Even when it ends before lockkit has heard of the loss.
    let script = "\"$LOCKKIT\" break --local b --force --token $LOCKKIT_TOKEN; exit 0";
    assert_eq!(stage.run(&["run", "--local", "b", "sh", "-c", script]).status.code(), Some(74));
}

#[test]
fn max_hold_ends_the_command() {
    let stage = Stage::new();
    let options = ["run", "--local", "--ttl", "2", "--max-hold", "1500ms", "a"];
    let mut running = stage.start(&[&options[..], &["sh", "-c", STUBBORN]].concat());
    let grandchild = stage.wait_for_pid("grandchild");
    assert_eq!(running.code(), 74);
    assert_eq!(stage.wait_for_file("got"), "TERM\n");
    assert!(process_state(grandchild).is_none());
}

#[test]
fn when_the_backend_does_not_answer_the_command_ends_before_the_lease() {
    let stage = Stage::new();
    let url = format!("sqlite:{}", stage.path("locks.db").display());
    let mut running = stage.start(&["run", "--url", &url, "--ttl", "2", "a", "sh", "-c", STUBBORN]);
    let (command, grandchild) = (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
    // Another file in the database's place, which is none.
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = fs::write(stage.path(name), "x".repeat(100_000));
    }
    assert_eq!(running.code(), 74);
    assert_eq!(stage.wait_for_file("got"), "TERM\n");
    assert!(process_state(command).is_none() && process_state(grandchild).is_none());
}

/// Leaves a process behind in its group that ignores SIGINT, as those of a shell's `&` do.
const LEAVES: &str = "sh -c 'echo $$ >left; while [ ! -e go ]; do sleep 0.02; done; \
    echo done >finished' >/dev/null 2>&1 & while [ ! -s left ]; do sleep 0.02; done; exit 6";

fn says(stage: &Stage, words: &str) {
    wait_for(words, || {
        fs::read_to_string(stage.path("stderr")).unwrap().contains(words).then_some(())
    });
}

#[test]
fn the_lock_is_held_until_what_the_command_left_behind_has_ended() {
    let stage = Stage::new();
    let mut running = stage.start(&["run", "--local", "--ttl", "2", "-q", "a", "sh", "-c", LEAVES]);
    let left = stage.wait_for_pid("left");
    says(&stage, &format!("sh[{left}]"));
    says(&stage, "--leftovers=leave");
    assert!(process_state(left).is_some());
    let behind = wait_for("what was left behind", || {
        stage.state("a")["holders"][0]["leftovers"].as_str().map(str::to_owned)
    });
    assert!(behind.contains(&format!("sh[{left}]")), "{behind}");
    let shown = stdout(&stage.run(&["show", "--local", "a"]));
    assert!(shown.contains(&format!("its command ended and left behind: {behind}")), "{shown}");
    // Longer than a ttl: it is renewed.
    let wait = ["run", "--local", "--wait", "3", "a", "true"];
    assert_eq!(stage.run(&wait).status.code(), Some(75), "the lock is free while it works");
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!(running.code(), 6);
    assert!(stage.path("finished").exists());
    // A next holder is not said to be what was left behind.
    let next = ["run", "--local", "-n", "a", "sh", "-c", "\"$LOCKKIT\" show --local --json a"];
    let next = stage.run(&next);
    assert_eq!(next.status.code(), Some(0));
    assert!(stdout(&next).contains("holders") && !stdout(&next).contains("leftovers"));
}

#[test]
fn leave_releases_the_lock_and_what_was_left_behind_cannot_put_any_more() {
    let stage = Stage::new();
    let put = "\"$LOCKKIT\" put --local --fenced cursor 42 2>refused; echo $? >code";
    let script = format!(
        "sh -c 'echo $$ >left; while [ ! -e go ]; do sleep 0.02; done; {put}' >/dev/null 2>&1 &
         exit 6"
    );
    let run = ["run", "--local", "--leftovers=leave", "a", "sh", "-c", &script];
    let output = stage.run(&run);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(process_state(stage.wait_for_pid("left")).is_some());
    assert!(stderr(&output).contains("the lock is released"), "{}", stderr(&output));
    assert_eq!(stage.run(&["run", "--local", "-n", "a", "true"]).status.code(), Some(0));
    fs::write(stage.path("go"), "").unwrap();
    assert_eq!(stage.wait_for_file("code"), "74\n");
    assert_eq!(stage.run(&["get", "--local", "cursor"]).status.code(), Some(1), "nothing stored");
}

#[test]
fn end_ends_what_the_command_left_behind_after_a_moment() {
    let stage = Stage::new();
    let run = ["run", "--local", "--leftovers=end", "a", "sh", "-c"];
    let script = "(sleep 0.2; echo done >finished) & exit 6";
    let output = stage.run(&[&run[..], &[script]].concat());
    assert_eq!(output.status.code(), Some(6));
    assert!(stage.path("finished").exists(), "it worked under the lock");
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! >left; exit 6";
    let output = stage.run(&[&run[..], &[script]].concat());
    assert_eq!(output.status.code(), Some(6));
    assert!(process_state(stage.wait_for_pid("left")).is_none());
}

#[test]
fn a_loss_a_signal_and_max_hold_end_what_the_command_left_behind() {
    for how in ["broken", "signal", "max-hold"] {
        let stage = Stage::new();
        let mut options = vec!["run", "--local", "--ttl", "3"];
        if how == "max-hold" {
            options.extend(["--max-hold", "2500ms"]);
        }
        let mut running = stage.start(&[&options[..], &["a", "sh", "-c", LEAVES]].concat());
        let left = stage.wait_for_pid("left");
        let token = stage.wait_for_holder("a").to_string();
        let code = match how {
            "broken" => {
                says(&stage, "left processes behind");
                assert!(stage.run(&["break", "--local", "a", "--token", &token]).status.success());
                74
            }
            "signal" => {
                says(&stage, "left processes behind");
                running.signal(Signal::INT);
                6
            }
            _ => 74,
        };
        assert_eq!(running.code(), code, "{how}");
        assert!(process_state(left).is_none(), "{how}");
        assert!(!stage.path("finished").exists(), "{how}");
    }
}

#[test]
fn a_process_that_ended_but_that_no_parent_takes_away_is_not_waited_for() {
    let stage = Stage::new();
    // A session of its own, whose child in the command's group ends and stays a zombie.
    let parent = "import os, sys, time\n\
        child = os.fork()\n\
        if child == 0: os._exit(0)\n\
        os.setsid() if os.getpgrp() != os.getpid() else None\n\
        open('zombie', 'w').write(f'{child}\\n')\n\
        time.sleep(60)";
    fs::write(stage.path("parent.py"), parent).unwrap();
    let script = "python3 parent.py >/dev/null 2>&1 & echo $! >parent; \
        while [ ! -s zombie ]; do sleep 0.02; done; exit 6";
    let output = stage.run(&["run", "--local", "a", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(!stderr(&output).contains("left processes"), "{}", stderr(&output));
    kill(stage.wait_for_pid("parent"), Signal::KILL);
}

#[test]
fn a_release_that_fails_after_success_is_only_a_warning() {
    let stage = Stage::new();
    let script = "for f in locks.db locks.db-wal locks.db-shm; do
                      head -c 100000 /dev/zero | tr '\\0' x >$f
                  done; exit 0";
    let output = stage.run(&["run", "--url", "sqlite:locks.db", "a", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: the command is done"), "{}", stderr(&output));
}

/// A slewed boot clock comes to a deadline late, the clock that is not slewed counts no suspend.
#[test]
fn the_supervisor_ends_the_group_by_whichever_clock_comes_first() {
    const NEAR: Duration = Duration::from_millis(200);
    const FAR: Duration = Duration::from_secs(3_600);
    for (boot, raw) in [(NEAR, FAR), (FAR, NEAR)] {
        let stage = Stage::new();
        let command = Command::new("sleep").arg("3600").process_group(0).spawn().unwrap();
        let mut command = Running(command);
        let mut supervisor = stage.lockkit(&["__supervise"]);
        let supervisor = supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut supervisor = Running(supervisor);
        let (tell, told) = channel();
        let said = BufReader::new(supervisor.0.stdout.take().unwrap());
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line)))
        });
        let hears = |word| assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok(word));
        hears("ready");
        let now = ClockPair::now();
        let term = ClockPair { boot: now.boot.after(boot), raw: now.raw.after(raw) };
        let words = |pair: ClockPair| format!("{} {}", pair.boot.as_nanos(), pair.raw.as_nanos());
        let mut to = supervisor.0.stdin.take().unwrap();
        let group = command.0.id();
        writeln!(to, "lease {} {}", words(term), words(now.after(FAR))).unwrap();
        writeln!(to, "group {group}").unwrap();
        hears("guarding");
        hears("terminated");
        assert!(term.since(ClockPair::now()).is_zero(), "not before the first of the two");
        assert_eq!(command.code(), 128 + 15);
    }
}

//! One stroke at lockkit and whatever belongs to it: what the command started does not work on
//! beside the next holder.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Running, Stage, code, stderr, wait_for, wait_for_death};

/// Ignores SIGTERM, and has a child that does too.
const STUBBORN: &str = "trap '' TERM
    sh -c 'echo $$ >grandchild; while :; do sleep 0.02; done' &
    echo $$ >command; while :; do sleep 0.02; done";

/// What `pkill -f lockkit` would hit of this lockkit and what it started.
fn called_lockkit(running: &Running) -> Vec<Pid> {
    let all = [&[running.0.id() as i32][..], &children(running.0.id())].concat();
    let named = |pid: &i32| {
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        [read("comm"), read("cmdline")]
            .iter()
            .any(|text| text.windows(7).any(|word| word == b"lockkit"))
    };
    all.into_iter().filter(named).filter_map(Pid::from_raw).collect()
}

fn children(parent: u32) -> Vec<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(path).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn strike(victims: &[Pid], signal: Signal) {
    for pid in victims {
        kill_process(*pid, signal).unwrap();
    }
}

#[test]
fn a_kill_by_name_leaves_nothing_at_work() {
    for _ in 0..5 {
        let stage = Stage::new();
        let mut running = stage.start(&["run", "--local", "a", "sh", "-c", STUBBORN]);
        let (command, grandchild) =
            (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
        strike(&called_lockkit(&running), Signal::KILL);
        running.end();
        wait_for_death(command);
        wait_for_death(grandchild);
    }
}

#[test]
fn a_stop_by_name_leaves_nothing_at_work_beside_the_next_holder() {
    let stage = Stage::new();
    let run = ["run", "--local", "--ttl", "3", "a", "sh", "-c", STUBBORN];
    let running = stage.start(&run);
    let (command, grandchild) = (stage.wait_for_pid("command"), stage.wait_for_pid("grandchild"));
    let victims = called_lockkit(&running);
    strike(&victims, Signal::STOP);
    let script = format!(
        "for p in {command} {grandchild}; do
             case $(cut -d' ' -f3 /proc/$p/stat 2>/dev/null) in ''|Z|X) ;; *) exit 8;; esac
         done"
    );
    let next = stage.run(&["run", "--local", "--wait", "60", "a", "sh", "-c", &script]);
    strike(&victims, Signal::CONT);
    for pid in [command, grandchild] {
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
    }
    assert_eq!(code(&next), 0, "8: the first command was still alive; {}", stderr(&next));
}

/// The processes with this word among their arguments.
fn processes_with(word: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
    .collect()
}

/// Whether this system lets this user have a PID namespace.
fn contains(stage: &Stage) -> bool {
    let tried = stage.run(&["run", "--local", "--contain", "a", "true"]);
    match code(&tried) {
        0 => true,
        71 if stderr(&tried).contains("--contain") => false,
        other => panic!("{other}: {}", stderr(&tried)),
    }
}

#[test]
fn a_contained_command_ends_as_one_that_is_not() {
    let stage = Stage::new();
    if !contains(&stage) {
        return;
    }
    for (script, expected) in
        [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("trap 'exit 9' TERM; kill $$", 9)]
    {
        let ran = stage.run(&["run", "--local", "--contain", "a", "sh", "-c", script]);
        assert_eq!(code(&ran), expected, "{script}: {}", stderr(&ran));
    }
    let script = "trap 'echo TERM >got; exit 9' TERM; echo >up; while :; do sleep 0.02; done";
    let mut running = stage.start(&["run", "--local", "--contain", "a", "sh", "-c", script]);
    stage.wait_for_file("up");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 9);
    assert_eq!(stage.wait_for_file("got"), "TERM\n");
    // Also one that comes before the command is there.
    for _ in 0..10 {
        let mut asleep = stage.start(&["run", "--local", "--contain", "a", "sleep", "1000"]);
        wait_for("the command", || children(asleep.0.id()).len().ge(&2).then_some(()));
        asleep.signal(Signal::TERM);
        assert_eq!(asleep.code(), 143);
    }
}

#[test]
fn nothing_that_a_contained_command_started_survives_it_or_lockkit() {
    let stage = Stage::new();
    if !contains(&stage) {
        return;
    }
    let word = stage.path("daemon").display().to_string();
    let daemon = "trap '' TERM HUP; echo >up; while :; do sleep 0.02; done";
    let start =
        format!("rm -f up; setsid sh -c \"$1\" {word} & until [ -e up ]; do sleep 0.01; done");
    let run = |rest: &str| {
        let script = format!("{start}; {rest}");
        ["run", "--local", "--contain", "a", "sh", "-c", &script, "sh", daemon].map(str::to_owned)
    };
    let ran = stage.run(&run("exit 3").each_ref().map(String::as_str));
    assert_eq!(code(&ran), 3, "{}", stderr(&ran));
    assert_eq!(processes_with(&word), [""; 0], "a daemon that has a session of its own");

    let mut running = stage.start(&run("sleep 1000").each_ref().map(String::as_str));
    wait_for("the daemon", || (!processes_with(&word).is_empty()).then_some(()));
    // The supervisor as well, under whatever name.
    let everything = [&[running.0.id() as i32][..], &children(running.0.id())].concat();
    let everything: Vec<Pid> = everything.into_iter().filter_map(Pid::from_raw).collect();
    strike(&everything, Signal::KILL);
    running.end();
    wait_for("the end of the daemon", || processes_with(&word).is_empty().then_some(()));
}

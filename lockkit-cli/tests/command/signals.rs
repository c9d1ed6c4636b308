//! Signals that lockkit gets while the command runs.

use rustix::process::Signal;

use crate::stage::{Stage, process_state, wait_for};

#[test]
fn signals_are_passed_on_to_the_command() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::INT, "INT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let stage = Stage::new();
        let script = format!(
            "trap 'echo {name} >got; exit 9' {name}; echo $$ >up; while :; do sleep 0.02; done"
        );
        let mut running = stage.start(&["run", "--local", "a", "sh", "-c", &script]);
        stage.wait_for_file("up");
        running.signal(signal);
        assert_eq!(running.code(), 9, "{name}");
        assert_eq!(stage.wait_for_file("got"), format!("{name}\n"));
    }
}

#[test]
fn what_was_ignored_when_lockkit_began_stays_ignored() {
    let stage = Stage::new();
    let inner = "echo $$ >up; until [ -e go ]; do sleep 0.02; done; exit 5";
    let script = format!("trap '' HUP; exec \"$LOCKKIT\" run --local a sh -c '{inner}'");
    let mut running = stage.start_command(stage.program("sh").args(["-c", &script]));
    let command = stage.wait_for_pid("up");
    running.signal(Signal::HUP);
    // To the command itself as well, as a closing terminal would.
    let pid = rustix::process::Pid::from_raw(command).unwrap();
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    std::fs::write(stage.path("go"), "").unwrap();
    assert_eq!(running.code(), 5);
}

#[test]
fn exit_codes_survive_a_parent_that_ignores_the_death_of_children() {
    let stage = Stage::new();
    let script = "trap '' CHLD; exec \"$LOCKKIT\" run --local a sh -c 'exit 5'";
    let mut running = stage.start_command(stage.program("sh").args(["-c", script]));
    assert_eq!(running.code(), 5);
}

#[test]
fn a_command_that_is_stopped_by_somebody_keeps_its_lock() {
    let stage = Stage::new();
    let script = "echo $$ >up; until [ -e go ]; do sleep 0.02; done";
    let mut running = stage.start(&["run", "--local", "--ttl", "600ms", "a", "sh", "-c", script]);
    let token = stage.wait_for_holder("a");
    let command = stage.wait_for_pid("up");
    let pid = rustix::process::Pid::from_raw(command).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    wait_for("the stop", || (process_state(command) == Some('T')).then_some(()));
    // Beyond its ttl, as its renewals show.
    wait_for("renewals", || {
        let holder = &stage.state("a")["holders"][0];
        (holder["held_for_ms"].as_u64()? > 900).then(|| assert_eq!(holder["token"], token))
    });
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    std::fs::write(stage.path("go"), "").unwrap();
    assert_eq!(running.code(), 0);
}

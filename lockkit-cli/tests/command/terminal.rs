//! Under a terminal: a real one, with a shell that does job control.

use crate::pty::{CTRL_C, Terminal};
use crate::stage::{Stage, process_state, wait_for};

const CTRL_Z: &str = "\x1a";

/// What is typed is also shown: what a command says is put together by it.
const UP: &str = "printf 'i am %s\\n' up";

#[test]
fn ctrl_c_reaches_the_command_once() {
    let stage = Stage::new();
    let script =
        format!("trap 'echo INT >>got; sleep 0.2; exit 7' INT; {UP}; while :; do sleep 0.02; done");
    let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
    terminal.see("prompt> ");
    terminal.type_in(&format!("\"$LOCKKIT\" run --local a sh -c \"{script}\"; echo code=$?\n"));
    terminal.see("i am up");
    terminal.type_in(CTRL_C);
    terminal.see("code=7");
    assert_eq!(stage.wait_for_file("got"), "INT\n");
}

#[test]
fn ctrl_c_in_a_script_reaches_command_and_script() {
    let stage = Stage::new();
    let inner =
        format!("trap 'echo INT >>got; sleep 0.2; exit 7' INT; {UP}; while :; do sleep 0.02; done");
    std::fs::write(stage.path("inner"), inner).unwrap();
    let script = "trap 'echo script >>got' INT; \"$LOCKKIT\" run --local a sh inner; printf 'ended %s\\n' $?";
    std::fs::write(stage.path("script"), script).unwrap();
    let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
    terminal.see("prompt> ");
    terminal.type_in("sh script\n");
    terminal.see("i am up");
    terminal.type_in(CTRL_C);
    terminal.see("ended 7");
    assert_eq!(stage.wait_for_file("got"), "INT\nscript\n");
}

/// Bash ends a loop when what runs in it was ended by SIGINT.
#[test]
fn ctrl_c_ends_the_loop_around_lockkit_as_it_does_around_sleep() {
    let stage = Stage::new();
    // Not one long sleep: a shell that gets SIGINT while it forks waits for what it has forked.
    let inner = format!("{UP}; while :; do sleep 0.02; done");
    let round = format!("echo >>rounds; \"$LOCKKIT\" run --local a sh -c \"{inner}\"");
    let body = format!("while true; do {round}; done");
    std::fs::write(stage.path("script"), format!("{body}; echo >>survived")).unwrap();
    let mut terminal = Terminal::open(&stage, &["bash", "--norc", "-i"]);
    for typed in [&*body, "bash script"] {
        terminal.see("prompt> ");
        terminal.type_in(&format!("{typed}\n"));
        terminal.see("i am up");
        terminal.type_in(CTRL_C);
        terminal.see("prompt> ");
        terminal.type_in("printf 'again %s\\n' there\n");
        terminal.see("again there");
    }
    assert_eq!(stage.wait_for_file("rounds"), "\n\n");
    assert!(!stage.path("survived").exists());
    let next = stage.run(&["run", "--local", "-n", "a", "true"]);
    assert_eq!(next.status.code(), Some(0), "it cleaned up first");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it_with_the_terminal() {
    let stage = Stage::new();
    let script = format!("echo $$ >pid; {UP}; read x; printf 'got %s\\n' \"$x\"; exit 4");
    std::fs::write(stage.path("script"), script).unwrap();
    let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
    terminal.see("prompt> ");
    terminal.type_in("\"$LOCKKIT\" run --local a sh script; echo code=$?\n");
    terminal.see("i am up");
    let command = stage.wait_for_pid("pid");
    for _ in 0..2 {
        terminal.type_in(CTRL_Z);
        terminal.see("Stopped");
        terminal.see("prompt> ");
        wait_for("the stop", || (process_state(command) == Some('T')).then_some(()));
        terminal.type_in("fg\n");
        wait_for("it to go on", || (process_state(command) == Some('S')).then_some(()));
    }
    terminal.type_in("hello\n");
    terminal.see("got hello");
    terminal.see("prompt> ");
    terminal.type_in("echo again=$((40+2))\n");
    terminal.see("again=42");
}

#[test]
fn a_background_job_stops_when_it_wants_the_terminal_and_gets_it_with_fg() {
    let stage = Stage::new();
    std::fs::write(stage.path("script"), "read x; printf 'got %s\\n' \"$x\"").unwrap();
    let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
    terminal.see("prompt> ");
    terminal.type_in("\"$LOCKKIT\" run --local a sh script &\n");
    stage.wait_for_holder("a");
    wait_for("the stop", || {
        terminal.type_in("jobs\n");
        terminal.see("prompt> ").contains("Stopped").then_some(())
    });
    terminal.type_in("fg\n");
    terminal.type_in("hello\n");
    terminal.see("got hello");
}

#[test]
fn a_command_in_a_script_may_read_from_the_terminal_and_so_may_the_script_afterwards() {
    let stage = Stage::new();
    std::fs::write(stage.path("inner"), format!("{UP}; read x; printf 'inner %s\\n' \"$x\""))
        .unwrap();
    let script = "\"$LOCKKIT\" run --local a sh inner; read y; printf 'outer %s\\n' \"$y\"";
    std::fs::write(stage.path("script"), script).unwrap();
    for leader in [&["sh", "script"][..], &["sh", "-c", "sh script; true"]] {
        let mut terminal = Terminal::open(&stage, leader);
        terminal.see("i am up");
        terminal.type_in("one\n");
        terminal.see("inner one");
        terminal.type_in("two\n");
        terminal.see("outer two");
    }
}

#[test]
fn a_spinner_shows_the_wait_on_a_terminal() {
    let stage = Stage::new();
    let ticket = stage.run(&["acquire", "--local", "--ttl", "1000", "a"]);
    assert!(ticket.status.success());
    let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
    terminal.see("prompt> ");
    terminal.type_in("\"$LOCKKIT\" run --local a true\n");
    terminal.see("waiting for the lock \"a\": held by");
    terminal.see("\r/ ");
    terminal.type_in(CTRL_C);
    terminal.see("interrupted while waiting");
    terminal.see("prompt> ");
    terminal.type_in("echo code=$?\n");
    terminal.see("code=130");
}

//! `hold`: the rest of a script under a lock.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use lockkit_lab::{ServerKind, SharedServer};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::stage::{Running, Stage, children_called, code, stderr, stdout, wait_for};

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

/// The process that waits for the script to go on, killed.
fn kill_stand_in(stage: &Stage) {
    let keeper = stage.state("a")["holders"][0]["identity"]["pid"].as_u64().unwrap();
    let stand_in = wait_for("the stand-in", || children_called(keeper as u32, "exe").pop());
    kill_process(Pid::from_raw(stand_in).unwrap(), Signal::KILL).unwrap();
}

/// As by Ctrl-Z in an interactive shell. The lock is acquired meanwhile, and released.
#[test]
fn a_script_that_was_stopped_while_it_waited_does_not_go_on_without_the_lock() {
    let stage = Stage::new();
    let ticket = stage.run(&["acquire", "--local", "--ttl", "1000", "a"]);
    let line = "eval \"$(\"$LOCKKIT\" hold --local a)\"; touch ran";
    let mut running = stage.start_command(stage.program("sh").args(["-c", line]).process_group(0));
    stage.wait_for_waiters("a", 1);
    let group = Pid::from_child(&running.0);
    kill_process_group(group, Signal::STOP).unwrap();
    assert!(stage.run(&["release", "--local", stdout(&ticket).trim()]).status.success());
    stage.wait_for_holder("a");
    kill_stand_in(&stage);
    wait_for("the release", || is_free(&stage));
    kill_process_group(group, Signal::CONT).unwrap();
    assert_eq!(running.code(), 74);
    assert!(!stage.path("ran").exists());
    let said = fs::read_to_string(stage.path("stderr")).unwrap();
    assert!(said.contains("the lock \"a\" was given back"), "{said}");
}

/// The stand-in waits 10 s for it.
#[test]
fn a_script_that_evaluates_the_text_too_late_ends() {
    let too_late = |kill: fn(&Stage)| {
        let stage = Stage::new();
        let script = "text=$(\"$LOCKKIT\" hold --local a); echo >up; \
                      until [ -e go ]; do sleep 0.02; done; eval \"$text\"; touch ran";
        let mut running = stage.start_command(stage.program("sh").args(["-c", script]));
        stage.wait_for_file("up");
        kill(&stage);
        wait_for("the release", || is_free(&stage));
        fs::write(stage.path("go"), "").unwrap();
        assert_eq!(running.code(), 74);
        assert!(!stage.path("ran").exists());
        let said = fs::read_to_string(stage.path("stderr")).unwrap();
        assert!(said.contains("the lock \"a\" was given back"), "{said}");
    };
    too_late(kill_stand_in);
    too_late(|_| {});
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

/// The password in the URLs below. Redis accepts any for a user without one.
const PASSWORD: &str = "hunter2";

/// A script under `hold`, once for each way to give a URL that has a password.
fn with_a_password(url: &str, stage: &Stage, shell: &[&str], rest: &str) -> Vec<(String, String)> {
    fs::write(stage.path("url"), url).unwrap();
    let file = stage.path("url").display().to_string();
    let sources = [
        (format!("--url '{url}'"), None),
        (String::new(), Some(("LOCKKIT_URL", url.to_owned()))),
        (String::new(), Some(("LOCKKIT_URL_FILE", file))),
    ];
    let ran = sources.into_iter().map(|(option, variable)| {
        // Kept apart from the trace of the shell, which shows the command line that has the option.
        fs::write(stage.path("take"), format!("exec \"$LOCKKIT\" hold {option} a")).unwrap();
        let script = format!("eval \"$(sh ./take)\"; {rest}");
        let mut program = stage.program(shell[0]);
        let ran = program.args(&shell[1..]).args(["-c", &script]).envs(variable).output().unwrap();
        assert_eq!(code(&ran), 0, "{}", stderr(&ran));
        (stdout(&ran), stderr(&ran))
    });
    ran.collect()
}

#[tokio::test]
async fn no_output_or_trace_of_hold_shows_the_password_of_the_url() {
    let (stage, server) = (Stage::new(), SharedServer::server(ServerKind::Redis).await.unwrap());
    let url = server.url().replacen("redis://", &format!("redis://default:{PASSWORD}@"), 1);
    let url = format!("{url}?namespace={}", stage.path("").display());
    let rest = "\"$LOCKKIT\" check && \"$LOCKKIT\" put --fenced r 1 && echo inside";
    for (stdout, stderr) in with_a_password(&url, &stage, &["bash", "-x"], rest) {
        assert!(stdout.ends_with("inside\n"), "{stdout}{stderr}");
        assert!(stderr.contains("LOCKKIT_NAME"), "the trace shows what was evaluated: {stderr}");
        assert!(!stdout.contains(PASSWORD) && !stderr.contains(PASSWORD), "{stdout}{stderr}");
    }
}

#[tokio::test]
async fn the_file_with_the_url_is_the_users_own_and_goes_with_the_script() {
    let (stage, server) = (Stage::new(), SharedServer::server(ServerKind::Redis).await.unwrap());
    let url = server.url().replacen("redis://", &format!("redis://default:{PASSWORD}@"), 1);
    let url = format!("{url}?namespace={}", stage.path("").display());
    let rest =
        "echo \"$LOCKKIT_URL_FILE\"; stat -c %a \"$LOCKKIT_URL_FILE\"; [ -z \"$LOCKKIT_URL\" ]";
    for (stdout, _) in with_a_password(&url, &stage, &["sh"], rest) {
        let (file, mode) = stdout.trim().split_once('\n').unwrap();
        assert_eq!(mode, "600");
        wait_for("the end of the file", || fs::metadata(file).is_err().then_some(()));
    }
    let own = fs::metadata(stage.path("url")).unwrap();
    assert_ne!(own.permissions().mode() & 0o777, 0, "the user's own file stays");
}

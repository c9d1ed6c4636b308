//! `elect`: a command that runs while leading, again and again.

use std::fs;

use rustix::process::Signal;

use crate::stage::{Stage, stderr, stdout, wait_for};

/// A candidate whose command writes its token, a line for each term, and works on.
fn candidate(name: &str) -> [String; 10] {
    let script = format!("echo $LOCKKIT_TOKEN >>{name}; exec sleep 1000");
    ["elect", "--local", "--ttl", "20s", "--value", name, "e", "sh", "-c", &script]
        .map(str::to_owned)
}

fn tokens(stage: &Stage, name: &str) -> Vec<u64> {
    let text = fs::read_to_string(stage.path(name)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn the_next_candidate_leads_when_the_leader_is_told_to_end() {
    let stage = Stage::new();
    let start = |name| stage.start(&candidate(name).each_ref().map(String::as_str));
    let mut first = start("a");
    let token = wait_for("the first term", || tokens(&stage, "a").first().copied());
    assert_eq!(stage.state("e")["holders"][0]["note"], "a", "its value is shown");
    let shown = stage.run(&["elect", "--local", "--show", "e"]);
    assert_eq!((shown.status.code(), &*stdout(&shown)), (Some(0), "a\n"));
    let nobody = stage.run(&["elect", "--local", "--show", "another"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", stderr(&nobody));
    let mut second = start("b");
    stage.wait_for_waiters("e", 1);
    first.signal(Signal::TERM);
    assert_eq!(first.code(), 143, "the command's own code");
    let next = wait_for("the second term", || tokens(&stage, "b").first().copied());
    assert!(next > token);
    second.signal(Signal::TERM);
    assert_eq!(second.code(), 143);
}

#[test]
fn a_leader_that_is_deposed_ends_its_command_and_campaigns_again() {
    let stage = Stage::new();
    let mut leader = stage.start(&candidate("a").each_ref().map(String::as_str));
    let token = wait_for("the first term", || tokens(&stage, "a").first().copied());
    let broken = stage.run(&["break", "--local", "--force", "e", "--token", &token.to_string()]);
    assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
    let next = wait_for("another term", || tokens(&stage, "a").get(1).copied());
    assert!(next > token);
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), 143);
}

#[test]
fn a_command_that_ends_by_itself_is_run_again() {
    let stage = Stage::new();
    let mut leader = stage.start(&["elect", "--local", "e", "sh", "-c", "echo 1 >>a; exit 3"]);
    wait_for("two terms", || (tokens(&stage, "a").len() >= 2).then_some(()));
    leader.signal(Signal::TERM);
    let code = leader.code();
    assert!(code == 143 || code == 3, "{code}");
}

#[test]
fn a_signal_is_heard_in_every_phase_of_a_term() {
    let stage = Stage::new();
    for (round, later) in (0..200).step_by(25).enumerate() {
        let script = format!("echo 1 >>{round}; exit 3");
        let mut leader = stage.start(&["elect", "--local", "e", "sh", "-c", &script]);
        wait_for("a term", || tokens(&stage, &round.to_string()).first().copied());
        // Waits for nothing: in every round it strikes at another phase. While the command ends,
        // while it resigns, while it pauses, whatever it is at by then.
        std::thread::sleep(std::time::Duration::from_millis(later));
        leader.signal(Signal::TERM);
        let code = leader.code();
        assert!(code == 143 || code == 3, "{code}");
    }
}

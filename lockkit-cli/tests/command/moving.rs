//! `mirror:OLD,NEW` and `take-over`: the steps of a move from one file to another.

use crate::stage::{Stage, stderr, stdout};

#[test]
fn tokens_grow_from_step_to_step_of_a_move() {
    let stage = Stage::new();
    let old = format!("sqlite:{}", stage.path("old.db").display());
    let new = format!("sqlite:{}", stage.path("new.db").display());
    let mirror = format!("mirror:{old},{new}");
    let mut last = 0;
    let mut run = |url: &str| {
        let script = "echo $LOCKKIT_TOKEN";
        let ran = stage.run(&["run", "--url", url, "a", "--", "sh", "-c", script]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
        let token: u64 = stdout(&ran).trim().parse().unwrap();
        assert!(token > last, "{token} after {last} on {url}");
        last = token;
    };
    run(&old);
    run(&mirror);
    run(&old);
    let moved = stage.run(&["take-over", "--from", &old, "--url", &new]);
    assert_eq!(moved.status.code(), Some(0), "{}", stderr(&moved));
    assert!(stdout(&moved).starts_with("tokens begin above "), "{}", stdout(&moved));
    run(&mirror);
    run(&new);
    run(&mirror);
    run(&new);
}

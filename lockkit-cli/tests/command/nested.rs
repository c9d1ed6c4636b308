//! What a command is told by its environment: name and token, `check`, `run` inside `run`.

use crate::stage::{Stage, stderr, stdout};

#[test]
fn a_command_finds_name_and_a_growing_token_in_its_environment() {
    let stage = Stage::new();
    let mut last = 0;
    for _ in 0..3 {
        let script = "echo $LOCKKIT_NAME $LOCKKIT_TOKEN";
        let output = stage.run(&["run", "--local", "the name", "sh", "-c", script]);
        let said = stdout(&output);
        let token: u64 = said.trim().strip_prefix("the name ").unwrap().parse().unwrap();
        assert!(token > last);
        last = token;
    }
}

#[test]
fn run_inside_run_on_the_same_name_is_refused_however_deep() {
    let stage = Stage::new();
    let inner = "\"$LOCKKIT\" run --local a true";
    let deeper = format!("\"$LOCKKIT\" run --local b sh -c '{inner}'");
    for script in [inner, &deeper] {
        let output = stage.run(&["run", "--local", "a", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
        assert!(stderr(&output).contains("already runs under"), "{}", stderr(&output));
    }
}

#[test]
fn run_inside_run_on_another_name_space_or_namespace_is_fine() {
    let stage = Stage::new();
    for options in ["b", "--limit 2 a", "--namespace p a", "--url sqlite:other.db a"] {
        let local = if options.contains("--url") { "" } else { "--local" };
        let script = format!("\"$LOCKKIT\" run {local} {options} sh -c 'echo $LOCKKIT_NAME'");
        let output = stage.run(&["run", "--local", "a", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(0), "{options}: {}", stderr(&output));
    }
}

#[test]
fn check_says_whether_the_lock_still_holds() {
    let stage = Stage::new();
    let output = stage.run(&["run", "--local", "a", "sh", "-c", "cd / && \"$LOCKKIT\" check"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    // Broken by force: gone at once, whatever the holder has heard.
    let script = "trap '' TERM; \"$LOCKKIT\" break --local a --token $LOCKKIT_TOKEN --force; \
                  \"$LOCKKIT\" check; echo $? >checked; exit 0";
    let output = stage.run(&["run", "--local", "a", "sh", "-c", script]);
    assert_eq!(stage.wait_for_file("checked"), "74\n");
    assert_eq!(output.status.code(), Some(74), "{}", stderr(&output));
}

#[test]
fn check_asks_the_innermost_lock_under_its_own_namespace_and_url() {
    let stage = Stage::new();
    let script =
        "\"$LOCKKIT\" run --url sqlite:other.db --namespace p --limit 3 b \"$LOCKKIT\" -v check";
    let output = stage.run(&["run", "--local", "a", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("semaphore \"b\" is held"), "{}", stderr(&output));
}

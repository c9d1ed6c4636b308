//! `run --slots`, `hold --slots`: numbers that are held.

use std::collections::HashSet;
use std::fs;

use rustix::process::Signal;

use crate::stage::{Running, Stage, stderr, wait_for};

#[test]
fn each_command_has_a_number_of_its_own_and_its_token_fences() {
    let stage = Stage::new();
    let script = "echo $LOCKKIT_SLOT $LOCKKIT_TOKEN $LOCKKIT_NAME >$LOCKKIT_SLOT.tmp \
                  && mv $LOCKKIT_SLOT.tmp slot-$LOCKKIT_SLOT; until [ -e go ]; do sleep 0.01; done; \
                  $LOCKKIT check --local && $LOCKKIT put --local --fenced value-$LOCKKIT_SLOT done";
    let run = || stage.start(&["run", "--local", "--slots", "3", "gpu", "-c", script]);
    let mut commands: Vec<_> = (0..3).map(|_| run()).collect();
    let mut tokens = HashSet::new();
    for slot in 0..3 {
        let said = stage.wait_for_file(&format!("slot-{slot}"));
        let words: Vec<_> = said.split_whitespace().collect();
        assert_eq!((words[0], words[2]), (&*slot.to_string(), "gpu"), "{said}");
        let token = stage.wait_for_holder(&format!("lockkit.slot/gpu/{slot}"));
        assert_eq!(words[1], token.to_string(), "that of the slot's lock");
        tokens.insert(token);
    }
    assert_eq!(tokens.len(), 3);
    let busy = stage.run(&["run", "--local", "--try", "--slots", "3", "gpu", "true"]);
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    let other = stage.run(&["run", "--local", "--try", "--slots", "4", "gpu", "true"]);
    assert!(stderr(&other).contains("limit"), "{}", stderr(&other));
    fs::write(stage.path("go"), "").unwrap();
    for command in &mut commands {
        assert_eq!(command.code(), 0);
    }
    let stored = stage.run(&["get", "--local", "value-2"]);
    assert_eq!(String::from_utf8_lossy(&stored.stdout).trim(), "done");
}

#[test]
fn a_killed_holder_s_number_is_free_after_its_lease_and_not_before() {
    let stage = Stage::new();
    let holder =
        stage.start(&["run", "--local", "--ttl", "2s", "--slots", "1", "gpu", "sleep", "1000"]);
    stage.wait_for_holder("lockkit.slot/gpu/0");
    holder.signal(Signal::KILL);
    let busy = stage.run(&["run", "--local", "--try", "--slots", "1", "gpu", "true"]);
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    let next = stage.run(&["run", "--local", "--slots", "1", "gpu", "-c", "echo $LOCKKIT_SLOT"]);
    assert_eq!(String::from_utf8_lossy(&next.stdout).trim(), "0", "{}", stderr(&next));
}

#[test]
fn a_command_whose_permit_is_broken_is_ended() {
    let stage = Stage::new();
    let mut holder =
        stage.start(&["run", "--local", "--ttl", "3s", "--slots", "2", "gpu", "sleep", "1000"]);
    stage.wait_for_holder("lockkit.slot/gpu/0");
    let state = stage.run(&["show", "--local", "--json", "--semaphore", "gpu"]);
    let state: serde_json::Value = serde_json::from_slice(&state.stdout).unwrap();
    let token = state["holders"][0]["token"].to_string();
    let broken = stage.run(&[
        "break",
        "--local",
        "--force",
        "--semaphore",
        "gpu",
        "--token",
        token.trim_matches('"'),
    ]);
    assert!(broken.status.success(), "{}", stderr(&broken));
    assert_eq!(holder.code(), 74);
    wait_for("the end of the slot", || {
        stage.state("lockkit.slot/gpu/0")["holders"].as_array().unwrap().is_empty().then_some(())
    });
}

/// A script that holds one of two slots until there is the file `go`.
fn script(stage: &Stage, options: &str) -> Running {
    let script = format!(
        "eval \"$(\"$LOCKKIT\" hold --local --slots 2 {options} gpu)\"; \
         echo $LOCKKIT_SLOT $LOCKKIT_TOKEN $LOCKKIT_NAME >$LOCKKIT_SLOT.tmp; \
         mv $LOCKKIT_SLOT.tmp slot-$LOCKKIT_SLOT; until [ -e go ]; do sleep 0.02; done; \
         \"$LOCKKIT\" check --local && echo done >end-$LOCKKIT_SLOT"
    );
    stage.start_command(stage.program("sh").args(["-c", &script]))
}

#[test]
fn the_rest_of_a_script_holds_a_slot() {
    let stage = Stage::new();
    let mut scripts = [script(&stage, ""), script(&stage, "")];
    for slot in 0..2 {
        let said = stage.wait_for_file(&format!("slot-{slot}"));
        let token = stage.wait_for_holder(&format!("lockkit.slot/gpu/{slot}"));
        assert_eq!(said.trim(), format!("{slot} {token} gpu"));
    }
    assert_eq!(script(&stage, "--try -E 9").code(), 9, "no third");
    fs::write(stage.path("go"), "").unwrap();
    // Which of them has which slot is not known.
    let codes = scripts.each_mut().map(|script| script.code());
    assert_eq!(codes, [0, 0]);
    for slot in 0..2 {
        assert!(stage.path(&format!("end-{slot}")).exists());
    }
    wait_for("the release of slots and permits", || {
        let listed = stage.run(&["ls", "--local", "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed.as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn a_script_whose_slot_is_broken_is_ended() {
    let stage = Stage::new();
    let mut running = script(&stage, "--ttl 3s");
    stage.wait_for_file("slot-0");
    let token = stage.wait_for_holder("lockkit.slot/gpu/0").to_string();
    let words = ["break", "--local", "--force", "lockkit.slot/gpu/0", "--token", &token];
    let broken = stage.run(&words);
    assert!(broken.status.success(), "{}", stderr(&broken));
    running.end();
    assert!(!stage.path("end-0").exists());
}

#[test]
fn what_slots_cannot_be_together_with_is_refused_with_what_to_do() {
    let stage = Stage::new();
    for wrong in [
        &["--slots", "2", "--shared"][..],
        &["--slots", "2", "--limit", "3"],
        &["--slots", "2", "--once"],
        &["--slots", "0"],
    ] {
        let arguments = [&["run", "--local"], wrong, &["gpu", "true"]].concat();
        let refused = stage.run(&arguments);
        assert_eq!(refused.status.code(), Some(64), "{wrong:?}: {}", stderr(&refused));
    }
    for wrong in ["--shared", "--limit 3"] {
        assert_eq!(script(&stage, wrong).code(), 64, "{wrong}");
    }
    let name = "x".repeat(481);
    let refused = stage.run(&["run", "--local", "--slots", "2", &name, "true"]);
    assert!(stderr(&refused).contains("480 bytes"), "{}", stderr(&refused));
    assert!(!stage.state_folder().join("lockkit/locks.db").exists(), "before any I/O");
}

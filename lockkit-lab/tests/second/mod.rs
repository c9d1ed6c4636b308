//! A second opinion on a history: of a checker that shares no code with the judge.

use std::process::Command;

use lockkit_lab::history::Recorded;

/// Whether `checkers/linearizable.py` finds every lock and register of it linearizable.
pub(crate) fn finds_linearizable(recorded: &Recorded) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    recorded.save(&file).unwrap();
    let checker = concat!(env!("CARGO_MANIFEST_DIR"), "/checkers/linearizable.py");
    let done = Command::new("/usr/bin/python3").arg(checker).arg(&file).output().unwrap();
    match done.status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => panic!("{}", String::from_utf8_lossy(&done.stderr)),
    }
}

//! What it is all for: many processes, one at a time.

use std::fs;
use std::thread;

use crate::stage::{Stage, stderr};

#[test]
fn eight_shells_count_without_losing_one_and_their_tokens_grow() {
    let stage = Stage::new();
    fs::write(stage.path("f"), "0\n").unwrap();
    let script = "n=$(cat f); echo $((n+1)) >f; echo $LOCKKIT_TOKEN >>tokens";
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let output =
                        stage.run(&["run", "--local", "counter", "--", "sh", "-c", script]);
                    assert!(output.status.success(), "{}", stderr(&output));
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(stage.path("f")).unwrap(), "160\n");
    let tokens = fs::read_to_string(stage.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|t| t.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 160);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

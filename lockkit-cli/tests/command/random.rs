//! Command lines made at random, from the grammar and beside it: no panic, no exit code outside of
//! the table, one sentence, nothing that stays.

use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Stage, code, stderr};

/// A sequence that one number decides (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const VERBS: [&str; 30] = [
    "hold",
    "run",
    "run",
    "run",
    "run",
    "elect",
    "latch down",
    "latch wait",
    "latch show",
    "latch reset",
    "resize",
    "get",
    "put",
    "put",
    "delete",
    "acquire",
    "renew",
    "release",
    "check",
    "ls",
    "show",
    "break",
    "watch",
    "doctor",
    "schema",
    "top",
    "take-over",
    "completions",
    "man",
    "serve",
];
const OPTIONS: [&str; 49] = [
    "--ttl",
    "--wait",
    "-w",
    "-n",
    "--try",
    "-s",
    "--shared",
    "--permits",
    "--limit",
    "--resizable",
    "--note",
    "-E",
    "--max-hold",
    "--max-term",
    "--kill-after",
    "--once",
    "--keep",
    "--forget",
    "--url",
    "--namespace",
    "--local",
    "-q",
    "-v",
    "--json",
    "--held-over",
    "--waiting",
    "--all-namespaces",
    "--registers",
    "--semaphore",
    "--lock",
    "--token",
    "--force",
    "--reason",
    "--if-version",
    "--if-absent",
    "--fenced",
    "--as",
    "--value",
    "--color",
    "--contain",
    "-c",
    "--from",
    "--interval",
    "--show",
    "--help",
    "--version",
    "--",
    "--listen",
    "--nonsense",
];
const VALUES: [&str; 41] = [
    "127.0.0.1:0",
    "a",
    "b",
    "job/1",
    "",
    " ",
    "-",
    "--",
    "0",
    "1",
    "2",
    "-1",
    "3s",
    "1h30m",
    "30m1h",
    "200ms",
    "99d",
    "1e9",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "nan",
    "ä\u{301}",
    "a\nb",
    "\u{1b}[2J",
    "%00",
    "{a}",
    "*",
    "sqlite:x.db",
    "sqlite:",
    "sqlite:no/x.db",
    "sqlite:.",
    "redis://127.0.0.1:1?timeout=200ms",
    "postgres://u:p@127.0.0.1:1/x?timeout=200ms",
    "memory:",
    "quorum:a",
    "mirror:sqlite:x.db,sqlite:y.db",
    "true",
    "false",
    "LK1.x.1.1.1..a",
    "always",
];

/// A command line, most of it sensible half of the time.
fn line(dice: &mut Dice) -> Vec<String> {
    let mut words: Vec<&str> = dice.of(&VERBS).split(' ').collect();
    let sensible = dice.one_in(2);
    if sensible || dice.one_in(2) {
        words.extend(["--local"]);
    }
    for _ in 0..dice.below(4) {
        words.push(dice.of(&OPTIONS));
        if !dice.one_in(3) {
            words.push(dice.of(&VALUES));
        }
    }
    if sensible {
        words.extend([dice.of(&["a", "b"]), dice.of(&["true", "1", "2"])]);
    } else {
        for _ in 0..dice.below(4) {
            words.push(dice.of(&VALUES));
        }
    }
    if dice.one_in(10) {
        let at = dice.below(words.len());
        words.remove(at);
    }
    words.into_iter().map(str::to_owned).collect()
}

/// Ends what would wait or watch for ever, as a person would.
fn finished(mut child: Child) -> Output {
    let began = Instant::now();
    let pid = Pid::from_child(&child);
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(5) {
            kill_process(pid, Signal::TERM).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn check(stage: &Stage, line: &[String]) {
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = stage.lockkit(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finished(command.spawn().unwrap());
    let said = stderr(&output);
    let code = code(&output);
    let told_to = |word| line.iter().any(|one| one.starts_with(word));
    let own = told_to("-E") || told_to("--busy");
    let table = [0, 1, 64, 69, 71, 74, 75, 126, 127, 143];
    assert!(table.contains(&code) || own, "{code} is not in the table: {line:?}: {said}");
    assert!(!said.contains("panicked"), "{line:?}: {said}");
    if code == 64 {
        assert_eq!(said.lines().count(), 1, "{line:?}: {said}");
        let refuses = line.iter().any(|word| word == "hold");
        assert!(output.stdout.is_empty() || refuses, "{line:?}");
    }
    assert!(!said.contains("u:p@"), "a password is shown: {line:?}: {said}");
}

#[test]
fn of_300_command_lines_none_panics_or_leaves_the_table() {
    const THREADS: u64 = 6;
    thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn(move || {
                let mut dice = Dice(seed);
                // Each with locks of its own, now and then new ones.
                for _ in 0..5 {
                    let stage = Stage::new();
                    for _ in 0..10 {
                        check(&stage, &line(&mut dice));
                    }
                }
            });
        }
    });
}

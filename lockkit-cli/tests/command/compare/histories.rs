//! `storm` and `judge`.

use std::fs;
use std::time::Duration;

use lockkit_lab::Browser;
use lockkit_lab::history::{Event, EventKind, HeldMode, History, Recorded, RecordedPromises};

use crate::stage::{Stage, code, stderr};

fn stdout(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Two clients that hold one lock at the same time, a third that waits, and a fault that excuses
/// nothing.
fn violated() -> Recorded {
    const S: u64 = 1_000_000_000;
    let asks = |at, client| {
        let (lock, how) = ("lock/<0>".to_owned(), HeldMode::Exclusive);
        Event { at, client, what: EventKind::Asked { op: 1, lock, how } }
    };
    let granted = |at, client, token| {
        let (since, valid_until) = (at, at + 2 * S);
        Event { at, client, what: EventKind::Granted { op: 1, token, since, valid_until } }
    };
    let over = |at, client| Event { at, client, what: EventKind::Ended { op: 1, lost: None } };
    let fault = lockkit::capabilities::Fault::ConnectionCut;
    let on = "server".to_owned();
    let history = History::new(vec![
        asks(S, 1),
        granted(S + 1, 1, 7),
        asks(S + 2, 2),
        Event {
            at: S + S / 4,
            client: 0,
            what: EventKind::FaultBegins { fault, on: on.clone(), locks: vec![] },
        },
        Event { at: S + S / 3, client: 0, what: EventKind::FaultEnds { fault, on } },
        granted(S + S / 2, 2, 8),
        asks(S + S / 2, 3),
        over(2 * S, 1),
        over(2 * S + 1, 2),
        Event { at: 2 * S + 2, client: 3, what: EventKind::Refused { op: 1 } },
    ]);
    let (patience, lease) = (Duration::from_secs(5), Duration::from_secs(2));
    Recorded {
        history,
        promises: RecordedPromises {
            faults: Vec::new(),
            fifo: true,
            patience,
            idle: patience,
            lease,
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_violation_is_convicted_and_drawn_in_red() {
    let stage = Stage::new();
    violated().save(stage.path("h.jsonl")).unwrap();
    let judged = stage.run(&["judge", "h.jsonl", "--svg", "h.svg"]);
    assert_eq!(code(&judged), 1, "{}", stderr(&judged));
    let said = stdout(&judged);
    assert!(said.contains("VIOLATION: Exclusion of \"lock/<0>\""), "{said}");
    assert!(said.ends_with("convicted\n"), "{said}");

    let mut browser = Browser::start().await;
    super::open(&mut browser, &stage.path("h.svg")).await;
    browser.sees("document.documentElement.nodeName === 'svg'").await;
    browser.sees("document.querySelector('parsererror') === null").await;
    // Both who held, a line where it shows, and the sentence.
    browser.sees("document.querySelectorAll('rect[stroke=\"#c00\"]').length === 2").await;
    browser.sees("document.querySelectorAll('line[stroke=\"#c00\"]').length === 1").await;
    let texts = "[...document.querySelectorAll('text')].map((text) => text.textContent)";
    for shown in ["lock/<0> · client 3", "7", "8", "connection reset (server)"] {
        browser.sees(&format!("{texts}.includes('{shown}')")).await;
    }
    if let Some(folder) = super::pictures() {
        browser.set_appearance(1280, "light").await;
        browser.picture(&folder.join("violation.png")).await;
    }
}

#[test]
fn a_storm_is_written_down_and_judged_again_to_the_same_end() {
    let stage = Stage::new();
    let storm = stage.run(&[
        "storm",
        "--lasts",
        "5s",
        "--processes",
        "2",
        "--tasks",
        "2",
        "--ttl",
        "1s",
        "--wait-ttl",
        "2s",
        "--seed",
        "7",
        "--history",
        "h.jsonl",
    ]);
    assert_eq!(code(&storm), 0, "{}{}", stdout(&storm), stderr(&storm));
    assert!(stdout(&storm).ends_with("acquitted\nthe history is in h.jsonl\n"));
    let judged = stage.run(&["judge", "h.jsonl", "--svg", "h.svg"]);
    assert_eq!(code(&judged), 0, "{}", stderr(&judged));
    let verdict = stdout(&judged);
    assert_eq!(stdout(&storm), format!("{verdict}the history is in h.jsonl\n"));
    assert!(verdict.contains(" granted") && verdict.contains(" faults"), "{verdict}");
    let drawn = fs::read_to_string(stage.path("h.svg")).unwrap();
    let at_a_client = ["client crash", "client paused", "client partitioned"];
    assert!(at_a_client.iter().any(|fault| drawn.contains(fault)), "{drawn}");
}

#[test]
fn two_storms_of_one_seed_do_not_mix() {
    let storm = |stage: &Stage| {
        let size = ["--processes", "2", "--tasks", "2", "--ttl", "1s", "--wait-ttl", "2s"];
        let run = [&["storm", "--lasts", "5s", "--seed", "11"], &size[..]].concat();
        stage.run(&run)
    };
    let (first, second) = (Stage::new(), Stage::new());
    let (first, second) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| storm(&first));
        (storm(&second), beside.join().unwrap())
    });
    for storm in [first, second] {
        assert_eq!(code(&storm), 0, "{}{}", stdout(&storm), stderr(&storm));
    }
}

#[test]
fn what_is_no_whole_history_is_refused_in_a_sentence() {
    let stage = Stage::new();
    violated().save(stage.path("h.jsonl")).unwrap();
    let whole = fs::read_to_string(stage.path("h.jsonl")).unwrap();
    let lines: Vec<_> = whole.lines().collect();
    let half_a_line = format!("{}\n{}", lines[..3].join("\n"), &lines[3][..lines[3].len() / 2]);
    let middle_is_bad = whole.replace(lines[3], "{}");
    for (content, because) in [
        ("", "its first line is not that of a history"),
        ("{\"at\": 3}\n", "its first line is not that of a history"),
        (&*lines[..5].join("\n"), "it is cut off after 4 of its 10 events"),
        (&*half_a_line, "it is cut off after 2 of its 10 events"),
        (&*middle_is_bad, "line 4 is no event"),
    ] {
        fs::write(stage.path("bad.jsonl"), content).unwrap();
        let judged = stage.run(&["judge", "bad.jsonl", "--svg", "bad.svg"]);
        let said = stderr(&judged);
        assert_eq!((code(&judged), said.lines().count()), (64, 1), "{said}");
        assert!(said.contains("bad.jsonl") && said.contains(because), "{said}");
        assert!(!stage.path("bad.svg").exists());
    }
    let missing = stage.run(&["judge", "none.jsonl"]);
    assert_eq!(code(&missing), 64, "{}", stderr(&missing));
    fs::write(stage.path("binary"), [0xff, 0xfe, 0]).unwrap();
    let binary = stage.run(&["judge", "binary"]);
    assert_eq!((code(&binary), stderr(&binary).lines().count()), (64, 1), "{}", stderr(&binary));
}

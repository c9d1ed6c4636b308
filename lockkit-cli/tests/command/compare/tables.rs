//! `compare`, against real backends, in every form.

use std::fs;

use lockkit_conformance::CASES;
use lockkit_conformance::compare::{row_titles, shows};
use lockkit_lab::{Browser, ServerKind, SharedServer};
use serde_json::Value;

use crate::stage::{Stage, code, stderr};

fn stdout(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The cells of a line of a Markdown table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_sqlite_and_redis_are_compared_in_every_form() {
    let stage = Stage::new();
    let redis = SharedServer::server(ServerKind::Redis).await.unwrap();
    let redis = format!("Redis={}", redis.url());
    let compared = stage.run(&[
        "compare",
        "memory:",
        "file=sqlite:locks.db",
        &redis,
        "--rounds",
        "1",
        "--markdown",
        "-",
        "--json",
        "found.json",
        "--html",
        "page.html",
        "--from",
        "file",
        "--to",
        "redis",
    ]);
    assert_eq!(code(&compared), 0, "{}{}", stdout(&compared), stderr(&compared));
    let said = stderr(&compared);
    assert!(said.contains("in namespaces of its own") && said.lines().count() == 1, "{said}");

    let markdown = stdout(&compared);
    let mut lines = markdown.lines().filter(|line| line.starts_with('|'));
    for titles in row_titles() {
        assert_eq!(cells(lines.next().unwrap()), ["", "memory", "file", "Redis"]);
        assert!(lines.next().unwrap().starts_with("| --- |"));
        for title in titles {
            let row = cells(lines.next().unwrap());
            assert_eq!((row.len(), row[0]), (4, &*format!("**{title}**")), "{row:?}");
            assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        }
    }
    assert_eq!(lines.next(), None);
    assert!(markdown.contains("| first come, first served ✓ |"), "{markdown}");
    assert!(markdown.contains("## From file to Redis"), "{markdown}");

    let found: Value =
        serde_json::from_slice(&fs::read(stage.path("found.json")).unwrap()).unwrap();
    for (at, backend) in ["memory", "sqlite", "redis"].into_iter().enumerate() {
        let set_up = &found["set_ups"][at];
        assert_eq!(set_up["capabilities"]["backend"], backend);
        let outcomes: Vec<_> =
            set_up["reports"].as_array().unwrap().iter().map(|r| &r["outcome"]).collect();
        let run = CASES.iter().filter(|case| shows(case.name)).count();
        let passed = outcomes.iter().filter(|outcome| **outcome == "passed").count();
        assert_eq!((outcomes.len(), passed), (run, run), "{set_up}");
        let measured = &set_up["measured"];
        for figure in ["one_task", "many_tasks", "hand_over", "dead_ttl", "dead_freed"] {
            assert!(measured[figure].as_f64().unwrap() > 0.0, "{measured}");
        }
        for figure in ["rate", "p50", "p99"] {
            assert!(measured["hot"][figure].as_f64().unwrap() > 0.0, "{measured}");
        }
        let turns = measured["turns"].as_array().unwrap();
        let tokens: Vec<_> = turns.iter().map(|turn| turn["token"].as_u64().unwrap()).collect();
        assert!(tokens.len() == 20 && tokens.is_sorted(), "{tokens:?}");
        assert!(measured["dead_freed"].as_f64() >= measured["dead_ttl"].as_f64(), "{measured}");
    }
    let of = |about: &str| {
        let all = found["differences"].as_array().unwrap();
        all.iter().find(|d| d["about"] == about).unwrap_or_else(|| panic!("{about}: {all:#?}"))
    };
    assert!(of("Waiting")["sentence"].as_str().unwrap().contains("Redis wakes the next waiter"));
    assert!(of("Clock")["change"].as_str().unwrap().contains("slew"));

    let mut browser = Browser::start().await;
    super::open(&mut browser, &stage.path("page.html")).await;
    let rows: usize = row_titles().iter().map(Vec::len).sum::<usize>() - row_titles()[1].len();
    browser.sees(&format!("document.querySelectorAll('tbody tr').length === {rows}")).await;
    browser.sees("document.querySelectorAll('figure svg').length === 4 + 3").await;
    browser.sees("document.querySelectorAll('rect.bar').length === 4 * 3").await;
    browser.sees("document.querySelectorAll('td.tokens').length > 0").await;
    super::pictures_of(&mut browser, "compare").await;
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn from_and_to_print_the_differences_alone() {
    let stage = Stage::new();
    let compared = stage.run(&[
        "compare",
        "a=memory:",
        "b=sqlite:b.db",
        "--rounds",
        "1",
        "--from",
        "A",
        "--to",
        "b",
    ]);
    assert_eq!(code(&compared), 0, "{}", stderr(&compared));
    let said = stdout(&compared);
    assert!(
        said.starts_with("From a to b\n\nSafer under faults")
            || said.starts_with("From a to b\n\nLess"),
        "{said}"
    );
    assert!(said.contains("With b, waiters poll: the next one knows within 50 ms."), "{said}");
    assert!(!said.contains("operations a batch"), "{said}");
}

#[test]
fn the_lab_starts_what_is_named() {
    let stage = Stage::new();
    let compared = stage.run(&["compare", "--lab", "sqlite", "--rounds", "1"]);
    assert_eq!(code(&compared), 0, "{}", stderr(&compared));
    let said = stdout(&compared);
    assert!(said.starts_with("Semantics") && said.lines().next().unwrap().ends_with("SQLite"));
    assert!(said.contains("first come, first served ✓"), "{said}");
}

/// Its requests are counted, and its server is in the process of the command.
#[test]
fn stores_take_part_when_they_are_named() {
    let stage = Stage::new();
    let named = ["compare", "--lab", "s3", "--rounds", "1"];
    let refused = stage.lockkit(&named).env_remove("AWS_ACCESS_KEY_ID").output().unwrap();
    assert_eq!(code(&refused), 64);
    assert!(stderr(&refused).contains("set AWS_ACCESS_KEY_ID"), "{}", stderr(&refused));
    let keys = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let compared = stage.lockkit(&named).envs(keys).output().unwrap();
    assert_eq!(code(&compared), 0, "{}", stderr(&compared));
    let said = stdout(&compared);
    let hot = said.lines().find(|line| line.starts_with("one lock, 64 waiters")).expect(&said);
    assert!(hot.contains("requests each") && !hot.contains(" 0.00 requests"), "{hot}");
}

#[track_caller]
fn is_refused(arguments: &[&str], with: i32, because: &str) {
    let stage = Stage::new();
    let refused = stage.run(arguments);
    let said = stderr(&refused);
    assert_eq!(code(&refused), with, "{said}");
    assert_eq!(stdout(&refused), "");
    assert!(said.lines().count() == 1 && said.contains(because), "{said}");
}

#[test]
fn what_cannot_be_compared_is_refused_in_a_sentence() {
    is_refused(&["compare"], 64, "name the backends");
    is_refused(&["compare", "nosuch://x"], 64, "nosuch");
    is_refused(&["compare", "memory:", "--url", "memory:"], 64, "as arguments");
    is_refused(&["compare", "a=memory:", "a=memory:"], 64, "two backends are called \"a\"");
    is_refused(&["compare", "memory:", "--from", "memory"], 64, "--to");
    let unknown = ["compare", "a=memory:", "b=memory:", "--from", "a", "--to", "c"];
    is_refused(&unknown, 64, "no backend is called \"c\"; there are a, b");
    is_refused(&["compare", "--lab", "oracle"], 64, "the lab has no \"oracle\"");
    is_refused(&["compare", "redis://:secret@127.0.0.1:1"], 69, "while connecting to redis://");
    is_refused(&["compare", "sqlite:no/such/folder/x.db"], 64, "no/such/folder");
}

//! A lock that a client of another library has: what is shown of the wait, and what is refused.

use std::fs;

use lockkit_lab::raw::resp;
use lockkit_lab::{ServerKind, SharedServer};
use serde_json::Value;

use crate::stage::{Stage, code, stderr, stdout, wait_for};

/// A server, the URL with a namespace of this test's own, and a name in it.
async fn place(test: &str) -> (SharedServer, String, String) {
    let server = SharedServer::server(ServerKind::Redis).await.unwrap();
    let own = format!("{test}-{}", std::process::id());
    let url = format!("{}?neighbours=set-nx&namespace={own}", server.url());
    (server, url, own)
}

async fn ask(server: &SharedServer, words: &[&str]) {
    resp::ask(server.addr(), words).await.unwrap();
}

#[tokio::test]
async fn progress_shows_place_1_with_the_neighbour_and_its_lease() {
    let (server, url, name) = place("progress").await;
    ask(&server, &["SET", &name, "a neighbour", "PX", "60000"]).await;
    let stage = Stage::new();
    let run = ["run", "--url", &url, "--progress=json", &name, "touch", "ran"];
    let mut waiter = stage.start(&run);
    let line = wait_for("a line with the neighbour", || {
        let text = fs::read_to_string(stage.path("stderr")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["progress"]["reason"] == "neighbour")
    });
    assert_eq!(line["progress"]["position"], 1, "{line}");
    assert_eq!(line["progress"]["phase"], "waiting");
    let left = line["progress"]["remaining_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 60_000, "{left}");
    assert!(!stage.path("ran").exists());
    let busy = stage.run(&["run", "--url", &url, "--try", &name, "true"]);
    assert_ne!(code(&busy), 0);
    ask(&server, &["DEL", &name]).await;
    assert_eq!(waiter.code(), 0);
    assert!(stage.path("ran").exists());
}

#[tokio::test]
async fn text_says_who_has_it_and_doctor_finds_one_without_an_expiry() {
    let (server, url, name) = place("doctor").await;
    ask(&server, &["SET", &name, "a neighbour"]).await;
    let stage = Stage::new();
    let mut waiter = stage.start(&["run", "--url", &url, "--progress", &name, "true"]);
    let said = wait_for("a line with the neighbour", || {
        let text = fs::read_to_string(stage.path("stderr")).unwrap_or_default();
        text.contains("neighbour").then_some(text)
    });
    assert!(said.contains("position 1, held by a neighbour"), "{said}");
    let doctor = stage.run(&["doctor", "--url", &url]);
    let report = stdout(&doctor);
    assert!(report.contains("no expiry") && report.contains(&name), "{report}");
    assert_ne!(code(&doctor), 0);
    ask(&server, &["DEL", &name]).await;
    assert_eq!(waiter.code(), 0);
}

#[tokio::test]
async fn what_cannot_be_had_with_neighbours_is_refused_with_a_sentence() {
    let (server, url, name) = place("refused").await;
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["run", "--url", &url, &name, "true"])), 0);
    for (refused, why) in [
        (&["run", "--url", &url, "--shared", &name, "true"][..], "a read lock"),
        (&["run", "--url", &url, "--slots", "2", &name, "true"][..], "slots"),
        (&["acquire", "--url", &url, &name][..], "outlives its process"),
        (&["run", "--url", &url, "--at-least", "1s", &name, "true"][..], "least hold"),
        (&["serve", "--url", &url, "--listen", "127.0.0.1:0"][..], "excludes no neighbours"),
    ] {
        let output = stage.run(refused);
        assert_ne!(code(&output), 0, "{refused:?}");
        assert!(stderr(&output).contains(why), "{refused:?}: {}", stderr(&output));
    }
    let plain = url.replace("neighbours=set-nx&", "");
    let output = stage.run(&["run", "--url", &plain, &name, "true"]);
    assert_ne!(code(&output), 0);
    assert!(stderr(&output).contains("connect with ?neighbours=set-nx"), "{}", stderr(&output));
    ask(&server, &["DEL", &format!("lockkit:neighbours:{name}")]).await;
}

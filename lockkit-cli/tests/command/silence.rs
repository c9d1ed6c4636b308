//! While a server stands still: what is said, how a limited wait ends, how soon an interrupted one does.

use std::fs;
use std::time::{Duration, Instant};

use lockkit_lab::{Server, ServerKind};
use rustix::process::Signal;

use crate::stage::{Stage, code, stderr, wait_for};

/// A Redis server of its own whose requests may take a second, and its URL.
async fn server() -> (Server, String) {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let url = format!("{}?timeout=1s", server.url());
    (server, url)
}

/// Returns once stderr says this.
fn said(stage: &Stage, text: &str) -> String {
    wait_for(&format!("{text:?} on stderr"), || {
        let said = fs::read_to_string(stage.path("stderr")).unwrap();
        said.contains(text).then_some(said)
    })
}

#[tokio::test]
async fn a_wait_says_that_the_backend_fell_silent_and_ends_soon_after_a_signal() {
    let stage = Stage::new();
    let (server, url) = server().await;
    let held = stage.run(&["acquire", "--url", &url, "--ttl", "10m", "a"]);
    assert_eq!(code(&held), 0, "{}", stderr(&held));
    let mut waiting = stage.start(&["run", "--url", &url, "a", "true"]);
    said(&stage, "held by");
    server.freeze().await;
    said(&stage, "waiting for the lock \"a\": the backend has not answered for ");
    server.thaw();
    said(&stage, "answers again");
    server.freeze().await;
    let began = Instant::now();
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.code(), 143);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    server.thaw();
}

#[tokio::test]
async fn a_limit_without_an_answer_is_not_taken_for_a_busy_lock() {
    let stage = Stage::new();
    let (server, url) = server().await;
    let held = stage.run(&["acquire", "--url", &url, "--ttl", "10m", "a"]);
    assert_eq!(code(&held), 0, "{}", stderr(&held));
    let busy = stage.run(&["run", "--url", &url, "--wait", "3s", "a", "true"]);
    assert_eq!(code(&busy), 75, "it answered: {}", stderr(&busy));
    let mut waiting = stage.start(&["run", "--url", &url, "--wait", "12s", "a", "true"]);
    said(&stage, "held by");
    server.freeze().await;
    assert_eq!(waiting.code(), 69, "{}", fs::read_to_string(stage.path("stderr")).unwrap());
    said(&stage, "did not acquire the lock \"a\": the backend has not answered for ");
    server.thaw();
}

#[tokio::test]
async fn a_wait_for_a_latch_says_that_the_backend_fell_silent_and_does_not_call_it_closed() {
    let stage = Stage::new();
    let (server, url) = server().await;
    let closed = stage.run(&["latch", "wait", "--url", &url, "--wait", "3s", "boot", "2"]);
    assert_eq!(code(&closed), 75, "it answered: {}", stderr(&closed));
    let arguments = ["latch", "wait", "--url", &url, "--wait", "12s", "boot", "2"];
    let mut waiting = stage.start(&arguments);
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.freeze().await;
    said(&stage, "waiting for the latch \"boot\": the backend has not answered for ");
    assert_eq!(waiting.code(), 69, "{}", fs::read_to_string(stage.path("stderr")).unwrap());
    said(&stage, "may be open or closed");
    server.thaw();
}

//! `serve`: who is answered, and what its signals do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::stage::{Running, Stage, code, stderr, wait_for};

/// A token in the file `token`, and its line in `tokens`.
fn token_and_line(stage: &Stage, name: &str) -> String {
    let made = stage.run(&["serve", "token", name, "--may", "read,lock@", "--tokens", "tokens"]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    fs::write(stage.path("token"), &made.stdout).unwrap();
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// The URL at which it serves.
fn url(stage: &Stage) -> String {
    let said = stage.wait_for_file("stderr");
    said.trim().rsplit(' ').next().unwrap().to_owned()
}

fn serve(stage: &Stage, more: &[&str]) -> Running {
    stage.start(&[&["serve", "--local", "--listen", "127.0.0.1:0"], more].concat())
}

#[test]
fn a_caller_without_a_token_is_refused_and_a_file_with_an_error_changes_nothing() {
    let stage = Stage::new();
    let secret = token_and_line(&stage, "billing");
    let mut server = serve(&stage, &["--tokens", "tokens"]);
    let url = url(&stage);
    let with = format!("{url}?token_file=token");

    let refused = stage.run(&["run", "--url", &url, "a", "true"]);
    assert_eq!(code(&refused), 69, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("send a token"), "{}", stderr(&refused));
    let ran = stage.run(&["run", "--url", &with, "a", "true"]);
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    let ran = stage
        .lockkit(&["run", "--url", &url, "a", "--", "sh", "-c", "\"$LOCKKIT\" run b true"])
        .env("LOCKKIT_HTTP_TOKEN", &secret)
        .output()
        .unwrap();
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    // A command under the lock finds the same backend, with the same token.
    let nested =
        stage.run(&["run", "--url", &with, "a", "--", "sh", "-c", "\"$LOCKKIT\" run b true"]);
    assert_eq!(code(&nested), 0, "{}", stderr(&nested));
    let other = stage.run(&["run", "--url", &with, "--namespace", "p", "a", "true"]);
    assert_eq!(code(&other), 69, "{}", stderr(&other));
    assert!(stderr(&other).contains("no right to lock"), "{}", stderr(&other));

    let lines = || fs::read_to_string(stage.path("stderr")).unwrap().lines().count();
    let tokens = fs::read_to_string(stage.path("tokens")).unwrap();
    fs::write(stage.path("tokens"), "nonsense\n").unwrap();
    server.signal(Signal::HUP);
    wait_for("the complaint", || (lines() == 2).then_some(()));
    assert_eq!(code(&stage.run(&["run", "--url", &with, "a", "true"])), 0);
    fs::write(stage.path("tokens"), tokens.replace("billing", "other").replace("@", "@q")).unwrap();
    server.signal(Signal::HUP);
    wait_for("the new tokens", || (lines() == 3).then_some(()));
    assert_eq!(code(&stage.run(&["run", "--url", &with, "a", "true"])), 69);
    assert_eq!(code(&stage.run(&["run", "--url", &with, "--namespace", "q", "a", "true"])), 0);

    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    let said = fs::read_to_string(stage.path("stderr")).unwrap();
    assert!(said.contains("tokens, line 1") && !said.contains(&secret), "{said}");
}

#[test]
fn an_address_that_other_hosts_reach_wants_tokens_and_tls() {
    let stage = Stage::new();
    token_and_line(&stage, "billing");
    for more in [&[][..], &["--tokens", "tokens"]] {
        let refused = stage
            .run(&[&["serve", "--local", "--listen", "0.0.0.0:0", "--host", "h"], more].concat());
        assert_eq!(code(&refused), 64, "{}", stderr(&refused));
        assert!(stderr(&refused).contains("--tls-cert"), "{}", stderr(&refused));
    }
    let refused = stage.run(&["serve", "--local", "--tokens", "none"]);
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
    // In plain text, a token stays on this host.
    let refused = stage.run(&["run", "--url", "http://192.0.2.1?token_file=token", "a", "true"]);
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
}

#[test]
fn a_token_is_printed_once_and_its_line_is_the_one_that_a_shell_would_make() {
    let stage = Stage::new();
    let made = stage.run(&["serve", "token", "a b", "--may", "read@*", "--may", "lock@p:x/"]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let said = String::from_utf8(made.stdout).unwrap();
    let (secret, line) = said.trim().split_once('\n').unwrap();
    let hash = stage
        .program("sh")
        .args(["-c", "printf %s \"$1\" | sha256sum | cut -c-64", "sh", secret])
        .output()
        .unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    assert_eq!(line, format!("a%20b {} read@* lock@p:x/", hash.trim()));

    let secret = token_and_line(&stage, "billing");
    let tokens = fs::read_to_string(stage.path("tokens")).unwrap();
    assert!(tokens.starts_with("billing ") && !tokens.contains(&secret), "{tokens}");
    assert_eq!(fs::metadata(stage.path("tokens")).unwrap().permissions().mode() & 0o777, 0o600);
    for wrong in [&["a", "--may", "own@*"][..], &["a"], &["--may", "lock@*"]] {
        let refused = stage.run(&[&["serve", "token"], wrong, &["--tokens", "tokens"]].concat());
        assert_eq!(code(&refused), 64, "{}", stderr(&refused));
        assert_eq!(fs::read_to_string(stage.path("tokens")).unwrap(), tokens);
    }
}

#[test]
fn a_server_that_ends_releases_nothing() {
    let stage = Stage::new();
    let mut server = serve(&stage, &[]);
    let url = url(&stage);
    let ticket = stage.run(&["acquire", "--url", &url, "--ttl", "10m", "a"]);
    assert_eq!(code(&ticket), 0, "{}", stderr(&ticket));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    assert!(stage.wait_for_holder("a") > 0);
}

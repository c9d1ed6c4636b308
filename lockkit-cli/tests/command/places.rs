//! Errors name the backend that failed, of several the one, and no login.

use lockkit_lab::{Server, ServerKind};

use crate::stage::{Stage, code, stderr};

/// What it said, having failed because of a backend.
fn failure(stage: &Stage, arguments: &[&str]) -> String {
    let output = stage.run(arguments);
    assert_eq!(code(&output), 69, "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

#[tokio::test]
async fn take_over_names_the_backend_that_failed() {
    let stage = Stage::new();
    let new = stage.path("new.db").display().to_string();
    let url = format!("sqlite:{new}");
    let closed = "redis://me:hunter2@127.0.0.1:1";
    let said = failure(&stage, &["take-over", "--from", closed, "--url", &url]);
    assert!(said.contains("while connecting to redis://me:***@127.0.0.1:1"), "{said}");
    assert!(!said.contains(&new) && !said.contains("hunter2"), "{said}");
    // One that answers, and refuses.
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let acl =
        ["ACL", "SETUSER", "looker", "on", ">pw", "~*", "&*", "+@read", "+@connection", "+info"];
    lockkit_lab::raw::resp::ask(server.addr(), &acl).await.unwrap();
    let old = server.url().replacen("redis://", "redis://looker:pw@", 1);
    let said = failure(&stage, &["take-over", "--from", &old, "--url", &url]);
    assert!(said.contains(&old.replacen(":pw@", ":***@", 1)), "{said}");
    assert!(!said.contains(&new), "{said}");
}

#[tokio::test]
async fn check_names_the_backend_of_its_lock() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let url = server.url();
    let other = format!("sqlite:{}", stage.path("other.db").display());
    let script = format!(
        "echo >up; while [ ! -e go ]; do sleep 0.02; done; \
         LOCKKIT_URL={other} \"$LOCKKIT\" check 2>said.part; echo $? >>said.part; mv said.part said"
    );
    let run = ["run", "--url", &url, "--ttl", "5m", "a", "sh", "-c", &script];
    let _running = stage.start(&run);
    stage.wait_for_file("up");
    server.kill().await;
    std::fs::write(stage.path("go"), "").unwrap();
    let said = stage.wait_for_file("said");
    assert!(said.contains(&url) && !said.contains("other.db"), "{said}");
    assert!(said.ends_with("69\n"), "{said}");
}

#[test]
fn of_a_mirror_the_one_that_failed_is_named() {
    let stage = Stage::new();
    let good = format!("sqlite:{}", stage.path("good.db").display());
    for url in [
        format!("mirror:{good},redis://me:hunter2@127.0.0.1:1/0"),
        format!("mirror:redis://me:hunter2@127.0.0.1:1/0,{good}"),
    ] {
        let said = failure(&stage, &["run", "--url", &url, "a", "true"]);
        assert!(said.contains("redis: redis://127.0.0.1:1/0: "), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn of_a_quorum_all_that_failed_are_named() {
    let stage = Stage::new();
    let url = "quorum:redis://me:hunter2@127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3";
    let said = failure(&stage, &["run", "--url", url, "a", "true"]);
    for member in ["redis://127.0.0.1:1: ", "redis://127.0.0.1:2: ", "redis://127.0.0.1:3: "] {
        assert!(said.contains(&format!("; {member}")), "{said}");
    }
    assert!(!said.contains("hunter2") && !said.contains("one said"), "{said}");
}

#[test]
fn of_a_service_all_servers_that_failed_are_named() {
    let stage = Stage::new();
    let said = failure(&stage, &["ls", "--url", "http://127.0.0.1:1,127.0.0.1:2"]);
    for server in ["http://127.0.0.1:1: ", "; http://127.0.0.1:2: "] {
        assert!(said.contains(server), "{said}");
    }
}

#[test]
fn mariadb_is_called_mariadb() {
    let stage = Stage::new();
    let said = failure(&stage, &["ls", "--url", "mariadb://me@127.0.0.1:1/app"]);
    assert!(said.contains(": mariadb: ") && !said.contains("mysql"), "{said}");
}

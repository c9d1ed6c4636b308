//! A real Terraform, out of a wheel that `cargo xtask install` fetches. Its configurations have outputs
//! and nothing else, so it needs no provider.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::state::ClaimState;
use lockkit_lab::Proxy;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_server::{AccessTokens, Service, ServiceSettings};
use lockkit_sql::SqliteDriver;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::client::Subject;
use crate::served::Served;

const PATIENCE: Duration = Duration::from_secs(60);

const TOKEN: &str = "token-of-a-test";

/// A configuration with a state at a service over SQLite.
struct Project {
    subject: Subject,
    program: PathBuf,
    folder: tempfile::TempDir,
    tokens: PathBuf,
}

impl Project {
    /// `None`, said on stderr, where there is no Terraform on this machine.
    async fn new() -> Option<Self> {
        let program = match lockkit_lab::terraform() {
            Ok(program) => program,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(&tokens, format!("team {hash} terraform,break@*:network\n")).unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let driver = Arc::new(SqliteDriver::connect(&url).await.unwrap());
        let subject = Subject::on(driver, settings(&tokens), None).await;
        let project = Self { subject, program, folder, tokens };
        project.configure(&project.subject.served.address);
        project.works(&["init"]).await;
        Some(project)
    }

    /// Has the state at the service of this address.
    fn configure(&self, address: &str) {
        let url = |path| {
            format!("http://{address}/v1/{path}/network?namespace={}", self.subject.namespace)
        };
        let (state, lock) = (url("terraform"), url("terraform-lock"));
        let configuration = format!(
            "terraform {{\n  backend \"http\" {{\n    address = {state:?}\n    \
             lock_address = {lock:?}\n    lock_method = \"PUT\"\n    \
             unlock_address = {state:?}\n    retry_wait_min = 1\n    retry_wait_max = 1\n  }}\n}}\n\
             variable \"value\" {{\n  default = \"\"\n}}\n\
             output \"value\" {{\n  value = var.value\n}}\n\
             output \"big\" {{\n  value = fileexists(\"big\") ? file(\"big\") : \"\"\n}}\n"
        );
        std::fs::write(self.folder.path().join("main.tf"), configuration).unwrap();
    }

    fn terraform(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TF_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("CHECKPOINT_DISABLE", "1")
            .env("TF_HTTP_USERNAME", "team")
            .env("TF_HTTP_PASSWORD", TOKEN)
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let ended = self.terraform(arguments).output();
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends").unwrap()
    }

    async fn works(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    async fn apply(&self, value: &str) -> String {
        self.works(&["apply", "-auto-approve", &format!("-var=value={value}")]).await
    }

    async fn value(&self) -> String {
        self.works(&["output", "-raw", "value"]).await
    }

    /// An apply that holds the lock and asks whether to go on, and the id of its lock.
    async fn asking(&self, value: &str) -> (Child, String) {
        let mut command = self.terraform(&["apply", &format!("-var=value={value}")]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().unwrap();
        let holder = self.holder().await;
        let note: Value = serde_json::from_str(&holder.note.unwrap()).unwrap();
        (child, note["ID"].as_str().unwrap().to_owned())
    }

    async fn holder(&self) -> ClaimState {
        let begun = Instant::now();
        loop {
            if let Some(holder) = self.subject.holder().await {
                return holder;
            }
            assert!(begun.elapsed() < PATIENCE, "no apply took the lock");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn settings(tokens: &PathBuf) -> ServiceSettings {
    ServiceSettings::new().tokens(AccessTokens::load(tokens).unwrap())
}

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let all = streams.concat();
    // This version of Terraform logs to stderr.
    let lines = all.lines().filter(|line| !line.contains("[DEBUG]") && !line.contains("[TRACE]"));
    // Terraform breaks its messages into lines of the terminal's width.
    lines.collect::<Vec<_>>().join(" ")
}

/// Answers the question of an apply.
async fn yes(mut apply: Child) {
    apply.stdin.take().unwrap().write_all(b"yes\n").await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, apply.wait()).await.expect("it ends");
    assert!(ended.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_applies_at_once_one_waits_or_fails_with_terraform() {
    let Some(project) = Project::new().await else { return };
    project.apply("first").await;
    assert_eq!(project.value().await, "first");
    let (asking, id) = project.asking("second").await;
    let refused = project.fails(&["apply", "-auto-approve", "-var=value=third"]).await;
    assert!(refused.contains("already locked") && refused.contains(&id), "{refused}");
    let mut waits =
        project.terraform(&["apply", "-auto-approve", "-lock-timeout=60s", "-var=value=fourth"]);
    let waits = waits.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    yes(asking).await;
    let mut waits = waits;
    let waited = tokio::time::timeout(PATIENCE, waits.wait()).await.expect("it ends");
    assert!(waited.unwrap().success());
    assert_eq!(project.value().await, "fourth");
    let state: Value = serde_json::from_str(&project.works(&["state", "pull"]).await).unwrap();
    assert_eq!(state["serial"], 3, "none was lost: {state}");
    let previous = project.subject.head().await["previous"].is_object();
    assert!(previous && project.subject.holder().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_killed_apply_stays_until_force_unlock_with_terraform() {
    let Some(project) = Project::new().await else { return };
    project.apply("first").await;
    let (mut killed, id) = project.asking("second").await;
    killed.kill().await.unwrap();
    let holder = project.subject.holder().await.expect("its lock stays");
    let note = holder.note.unwrap();
    assert!(note.contains("OperationTypeApply") && note.contains("\"Who\""), "{note}");
    let refused = project.fails(&["apply", "-auto-approve"]).await;
    assert!(refused.contains(&id), "{refused}");
    project.works(&["force-unlock", "-force", &id]).await;
    assert!(project.subject.holder().await.is_none());
    project.apply("third").await;
    assert_eq!(project.value().await, "third");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_whose_lock_was_broken_writes_nothing_with_terraform() {
    let Some(project) = Project::new().await else { return };
    project.apply("first").await;
    let (mut asking, _) = project.asking("second").await;
    project.subject.break_holder().await;
    project.apply("third").await;
    asking.stdin.take().unwrap().write_all(b"yes\n").await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, asking.wait()).await.expect("it ends");
    assert!(!ended.unwrap().success());
    assert_eq!(project.value().await, "third");
    let kept = std::fs::read_to_string(project.folder.path().join("errored.tfstate")).unwrap();
    assert!(kept.contains("second"), "Terraform keeps what was refused: {kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_lost_answer_is_asked_for_again_with_terraform() {
    let Some(project) = Project::new().await else { return };
    let target = project.subject.served.address.parse().unwrap();
    let mut lost = 0;
    for number in 1..=6 {
        let proxy = Proxy::start(target, Protocol::Unknown).await.unwrap();
        project.configure(&proxy.addr().to_string());
        project.works(&["init", "-reconfigure"]).await;
        let fault = proxy.fault(ProxyFault::Cut, When::Answer(number));
        let value = format!("value {number}");
        project.apply(&value).await;
        lost += u32::from(fault.has_struck());
        assert!(project.subject.holder().await.is_none(), "answer {number}");
        project.configure(&project.subject.served.address);
        project.works(&["init", "-reconfigure"]).await;
        assert_eq!(project.value().await, value, "answer {number}");
    }
    assert!(lost >= 4, "of LOCK, GET, POST and UNLOCK at least: {lost}");
    let names = project.subject.names().await;
    assert_eq!(names.len(), 3, "the head and two versions of one part: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_5_mb_is_applied_and_read_with_terraform() {
    let Some(project) = Project::new().await else { return };
    project.apply("small").await;
    let big = super::client::state(1, 5_000_000);
    std::fs::write(project.folder.path().join("big"), &big).unwrap();
    let begun = Instant::now();
    project.apply("big").await;
    println!("an apply with a state of 5 MB took {:?}", begun.elapsed());
    assert_eq!(project.works(&["output", "-raw", "big"]).await.as_bytes(), big);
    let head = project.subject.head().await;
    let (length, parts) = (&head["current"]["length"], &head["current"]["parts"]);
    println!("{length} bytes are {parts} parts");
    assert!(length.as_u64().unwrap() > 5_000_000 && parts.as_u64().unwrap() > 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_reads_and_writes_nothing_with_terraform() {
    let Some(project) = Project::new().await else { return };
    project.apply("first").await;
    for arguments in
        [&["output"][..], &["apply", "-auto-approve"], &["force-unlock", "-force", "x"]]
    {
        let mut command = project.terraform(arguments);
        let output = command.env("TF_HTTP_PASSWORD", "wrong").output().await.unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let shown = text(&output);
        assert!(shown.contains("requires auth") || shown.contains("401"), "{arguments:?} {shown}");
    }
    assert_eq!(project.value().await, "first");
    assert!(project.subject.holder().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_service_takes_over_in_the_middle_of_an_apply_with_terraform() {
    let Some(project) = Project::new().await else { return };
    let Project { subject, tokens, .. } = &project;
    // A second service on the same backend, which the client is sent to from some time on.
    let service = Service::with(subject.driver.clone(), settings(tokens)).unwrap();
    let second = Served::of(service, None).await;
    let first = subject.served.address.parse().unwrap();
    let proxy = Proxy::start(first, Protocol::Unknown).await.unwrap();
    project.configure(&proxy.addr().to_string());
    project.works(&["init", "-reconfigure"]).await;
    let (asking, _) = project.asking("first").await;
    proxy.lead_to(&[second.address.parse().unwrap()]);
    drop(proxy.fault(ProxyFault::Cut, When::Now));
    yes(asking).await;
    assert_eq!(project.value().await, "first");
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let counts = second.client().await.get("/metrics", &bearer).await.body;
    assert!(counts.contains("path=\"/v1/terraform/{name}\""), "it was asked: {counts}");
}

//! The commands of docs/terraform.md, run with a real Terraform, and what `ls`, `show` and `break` say of
//! its locks.

use std::fs;
use std::path::Path;

use lockkit_lab::{ServerKind, SharedServer};

use crate::stage::{Running, Stage, code, stderr, stdout};

/// The commands of the page, with the lines of a here document, but for the one that starts a server.
fn commands() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/terraform.md");
    let text = fs::read_to_string(path).unwrap();
    let mut commands: Vec<String> = Vec::new();
    for block in text.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push(command.to_owned()),
                (None, Some(command)) => *command += &format!("\n{line}"),
                (None, None) => panic!("{line}"),
            }
        }
    }
    commands.retain(|command| command != "lockkit serve --local &");
    commands
}

/// A service over this backend, and `lockkit` and Terraform for scripts.
struct Page {
    stage: Stage,
    backend: Vec<String>,
    address: String,
    _server: Running,
}

impl Page {
    /// `None`, said on stderr, where there is no Terraform on this machine.
    fn new(backend: &[&str]) -> Option<Self> {
        let terraform = match lockkit_lab::terraform() {
            Ok(terraform) => terraform,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let stage = Stage::new();
        stage.copy_of_the_program();
        std::os::unix::fs::symlink(terraform, stage.path("terraform")).unwrap();
        let server = stage.start(&[&["serve", "--listen", "127.0.0.1:0"], backend].concat());
        let said = stage.wait_for_file("stderr");
        let address = said.trim().rsplit("http://").next().unwrap().to_owned();
        let backend = backend.iter().map(|word| (*word).to_owned()).collect();
        Some(Self { stage, backend, address, _server: server })
    }

    fn run(&self, script: &str) -> (i32, String) {
        let path = format!("{}:{}", self.stage.path("").display(), std::env::var("PATH").unwrap());
        let mut shell = self.stage.program("bash");
        let script = script.replace("127.0.0.1:7411", &self.address);
        shell.args(["-c", &format!("set -e\n{script}\n")]).env("PATH", path);
        shell.env("CHECKPOINT_DISABLE", "1").env_remove("TF_CLI_CONFIG_FILE");
        if let [_, url] = &*self.backend {
            shell.env("LOCKKIT_URL", url);
        }
        let ran = shell.output().unwrap();
        (code(&ran), stdout(&ran) + &stderr(&ran))
    }
}

/// Runs the page as a script.
fn run(backend: &[&str]) {
    let Some(page) = Page::new(backend) else { return };
    let commands = commands();
    assert!(commands.len() >= 8, "{commands:?}");
    let (status, said) = page.run(&commands.join("\n"));
    assert_eq!(status, 0, "{said}");
    let previous = fs::read_to_string(page.stage.path("previous.tfstate")).unwrap();
    assert!(previous.contains("10.0.0.0/16"), "{previous}");
    let tokens = fs::read_to_string(page.stage.path("tokens")).unwrap();
    assert!(tokens.contains(" terraform@:network\n"), "{tokens}");

    // The lock of a Terraform that was killed.
    let lock = "curl -sf -X LOCK -H 'content-type: application/json' \
        -d '{\"ID\":\"a-b\",\"Who\":\"alice@build-7\",\"Operation\":\"OperationTypeApply\"}' \
        http://127.0.0.1:7411/v1/terraform/network";
    let (status, said) = page.run(&format!("{lock}\nlockkit ls lockkit.terraform/"));
    assert_eq!(status, 0, "{said}");
    for shown in ["lockkit.terraform/network", "@build-7", "alice@build-7", "OperationTypeApply"] {
        assert!(said.contains(shown), "{shown} in {said}");
    }
    let (status, said) = page.run("terraform apply -auto-approve");
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("a-b"), "{said}");
    let by_token = "lockkit break lockkit.terraform/network --token \
        $(lockkit show --json lockkit.terraform/network | grep -o '\"token\": *[0-9]*' | grep -o '[0-9]*')";
    let (status, said) = page.run(by_token);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("forced break"), "{said}");
    let (status, said) = page.run("terraform apply -auto-approve");
    assert_eq!(status, 0, "{said}");
}

async fn on(kind: ServerKind) {
    let url = SharedServer::server(kind).await.unwrap().url().to_owned();
    tokio::task::spawn_blocking(move || run(&["--url", &url])).await.unwrap();
}

#[test]
fn the_commands_of_the_terraform_page_with_sqlite_and_with_terraform() {
    run(&["--local"]);
}

#[tokio::test]
async fn the_commands_of_the_terraform_page_with_redis_and_with_terraform() {
    on(ServerKind::Redis).await;
}

#[tokio::test]
async fn the_commands_of_the_terraform_page_with_mariadb_and_with_terraform() {
    on(ServerKind::MariaDb).await;
}

#[tokio::test]
async fn the_commands_of_the_terraform_page_with_etcd_and_with_terraform() {
    on(ServerKind::Etcd).await;
}

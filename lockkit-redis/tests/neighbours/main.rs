//! Locks of other libraries at the same server: redis-py's own `Lock`, and what Redisson's `RLock` sends.

mod both_ways;
mod conformance;
mod setting;
mod storm;
mod wire;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::{LockManager, Settings};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neighbours/neighbour.py");
const STYLES: [&str; 2] = ["set-nx", "redisson"];
/// Longer than any machine stands still.
const PATIENCE: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// Where redis-py is; `None`, said on stderr, where it is not there.
fn packages() -> Option<PathBuf> {
    let this = std::env::current_exe().unwrap();
    let folders = this.ancestors().map(|at| at.join("recipes"));
    let found = folders.into_iter().find(|at| at.join("installed.txt").exists());
    if found.is_none() {
        eprintln!("skipped: `cargo xtask install` fetches the packages of PyPI that this needs");
    }
    found
}

/// A namespace and a name of its own at a shared server.
struct Place {
    server: SharedServer,
    style: &'static str,
    namespace: String,
    name: String,
    packages: PathBuf,
}

impl Place {
    async fn new(style: &'static str) -> Self {
        let server = SharedServer::server(ServerKind::Redis).await.unwrap();
        let namespace = ClaimId::random().to_hex()[..12].to_owned();
        let name = format!("job {namespace}");
        Self { server, style, namespace, name, packages: packages().unwrap_or_default() }
    }

    fn url(&self, style: &str) -> String {
        format!("{}?neighbours={style}&timeout=30s", self.server.url())
    }

    /// A client of lockkit, which excludes these neighbours.
    async fn locks(&self, ttl: Duration) -> LockManager {
        self.client_of(&self.url(self.style), ttl).await
    }

    async fn client_of(&self, url: &str, ttl: Duration) -> LockManager {
        let driver = RedisDriver::connect(url).await.unwrap();
        let settings = Settings::default().namespace(&self.namespace).ttl(ttl).wait_ttl(ttl);
        LockManager::with(std::sync::Arc::new(driver), settings).unwrap()
    }

    fn neighbour(&self, work: &[&str]) -> Command {
        let mut command = Command::new(PYTHON);
        let port = self.server.addr().port().to_string();
        command.arg(SCRIPT).args([self.style, &*port, &*self.name]).args(work);
        command.env("PYTHONPATH", &self.packages).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Another process that takes the lock when it can, for a lease of so long.
    fn holder(&self, lease: Duration) -> (Child, Lines<BufReader<ChildStdout>>) {
        let lease = lease.as_millis().to_string();
        let mut child = self.neighbour(&["hold", &lease]).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, said)
    }

    async fn tries(&self) -> String {
        let output = soon("an answer", self.neighbour(&["try"]).output()).await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    async fn ask(&self, words: &[&str]) -> RespReply {
        resp::ask(self.server.addr(), words).await.unwrap()
    }

    /// How long the neighbours' lock lasts yet, in ms; -2 when it is not there.
    async fn left(&self) -> i64 {
        match self.ask(&["PTTL", &self.name]).await {
            RespReply::Number(left) => left,
            other => panic!("{other:?}"),
        }
    }
}

async fn word(said: &mut Lines<BufReader<ChildStdout>>) -> String {
    soon("a word", said.next_line()).await.unwrap().expect("it ended without a word")
}

/// Without them nothing here would be tested.
fn script_is_there() {
    assert!(Path::new(SCRIPT).exists() && Path::new(PYTHON).exists());
}

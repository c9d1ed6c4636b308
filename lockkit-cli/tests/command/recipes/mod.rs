//! The recipes of docs/recipes: the files of `examples/recipes` are run, on hosts that are processes here.
//! Where a file has a path or a time of a real host, a test puts its own in its place.

mod backup;
mod celery;
mod ci;
mod consumer;
mod cron;
mod idempotency;
mod kubernetes;
mod migrations;
mod pages;
mod scheduler;
mod systemd;

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockkit_lab::{ServerKind, SharedServer};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::stage::{Stage, code, stderr, stdout};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Where a recipe is run: its files, `lockkit` and `python3` first in `PATH`.
struct Recipe {
    stage: Stage,
    /// Of the locks.
    url: String,
    variables: Vec<(&'static str, String)>,
}

impl Recipe {
    /// With locks in a SQLite file, which end 2 s after their holder.
    fn new(folder: &str) -> Self {
        let stage = Stage::new();
        copy(&examples().join(folder), &stage.path(""));
        stage.copy_of_the_program();
        symlink("/usr/bin/python3", stage.path("python3")).unwrap();
        let url = format!("sqlite:{}?ttl=2s", stage.path("locks.db").display());
        Self { stage, url, variables: Vec::new() }
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.variables.push((name, value.into()));
    }

    /// A database of its own on the shared PostgreSQL, which has the locks too.
    fn on_postgres(&mut self, name: &str) {
        let server = shared(ServerKind::Postgres);
        let (head, _) = server.rsplit_once('/').unwrap();
        let name = format!("{name}_{}", std::process::id());
        let create = format!("CREATE DATABASE {name}");
        let mut psql = self.stage.program("psql");
        let made = psql.args(["-X", "-q", "-d", &server, "-c", &create]).output().unwrap();
        assert_eq!(code(&made), 0, "{}", stderr(&made));
        self.url = format!("{head}/{name}?ttl=2s");
        self.set("DATABASE_URL", format!("{head}/{name}"));
    }

    /// What a statement returns, without spaces.
    fn sql(&self, statement: &str) -> String {
        let (_, url) = self.variables.iter().find(|(name, _)| *name == "DATABASE_URL").unwrap();
        let mut psql = self.stage.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", statement]);
        let ran = psql.output().unwrap();
        assert_eq!(code(&ran), 0, "{statement}: {}", stderr(&ran));
        stdout(&ran).trim().to_owned()
    }

    /// A script on one host.
    fn script(&self, script: &str) -> Command {
        let mut shell = self.stage.program("sh");
        let path = format!("{}:{}", self.stage.path("").display(), env::var("PATH").unwrap());
        shell.args(["-c", script]).env("PATH", path).env("LOCKKIT_URL", &self.url);
        shell.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        shell.stdin(Stdio::null());
        shell
    }

    /// The same, started, with its output in a file of the host's name. It ends with the test.
    fn host(&self, name: &str, script: &str) -> Host {
        let log =
            fs::File::options().create(true).append(true).open(self.stage.path(name)).unwrap();
        let mut shell = self.script(script);
        shell.env("HOST", name).stdout(log.try_clone().unwrap()).stderr(log);
        Host(shell.process_group(0).spawn().unwrap())
    }

    /// What a host has printed.
    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.stage.path(name)).unwrap_or_default()
    }

    /// How many hold a lock, and how many wait for it.
    fn queue(&self, name: &str) -> [usize; 2] {
        let shown = self.stage.run(&["show", "--url", &self.url, "--json", name]);
        let state: serde_json::Value = serde_json::from_str(&stdout(&shown)).unwrap();
        ["holders", "waiters"].map(|which| state[which].as_array().map_or(0, Vec::len))
    }

    /// A lock service over the same backend; its URL.
    fn serve(&mut self) -> (Host, String) {
        let host = self.host("service", "exec lockkit serve --listen 127.0.0.1:0");
        let url = crate::stage::wait_for("the lock service", || {
            let log = self.log("service");
            let (_, rest) = log.split_once("http://")?;
            rest.split_once('\n').map(|(address, _)| format!("http://{}", address.trim()))
        });
        self.url.clone_from(&url);
        (host, url)
    }

    /// What the recipes need from PyPI; `None`, said on stderr, where it is not there.
    fn packages(&mut self) -> Option<()> {
        let Some(installed) = fetched("recipes/installed.txt") else {
            eprintln!(
                "skipped: `cargo xtask install` fetches the packages of PyPI that this needs"
            );
            return None;
        };
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/src");
        let path = env::join_paths([installed.parent().unwrap(), client.as_path()])
            .unwrap()
            .into_string()
            .unwrap();
        self.set("PYTHONPATH", path);
        Some(())
    }
}

/// A file that `cargo xtask install` puts beside what cargo builds, if it did.
fn fetched(file: &str) -> Option<PathBuf> {
    let this = env::current_exe().unwrap();
    this.ancestors().map(|at| at.join(file)).find(|at| at.is_file())
}

/// A host: the processes that a script starts.
struct Host(Child);

impl Host {
    /// Its exit code.
    fn end(&mut self) -> Option<i32> {
        crate::stage::wait_for("the end of a host", || self.0.try_wait().unwrap()).code()
    }

    fn signal(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.0), signal).unwrap();
    }

    /// As when its power fails: what lockkit guards ends with it.
    fn kill(mut self) {
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|end| end.is_none()) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

fn shared(kind: ServerKind) -> String {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().unwrap());
    runtime.block_on(SharedServer::server(kind)).unwrap().url().to_owned()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

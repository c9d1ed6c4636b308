//! The client processes of a storm: started, frozen, killed and replaced, and waited for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Storm;
use super::client::Orders;
use crate::history::{EventKind, Recorder, now};

/// What a URL for clients in Python begins with.
pub(super) const PYTHON: &str = "python+";

pub(super) struct Processes {
    program: PathBuf,
    subcommand: &'static str,
    urls: Vec<String>,
    orders: Orders,
    ends: Instant,
    running: Mutex<BTreeMap<u32, (Child, Orders)>>,
    next_client: Mutex<u32>,
}

impl Processes {
    /// Starts all of them, each as the program with this word and one of the URLs.
    pub(super) fn start(
        storm: &Storm,
        urls: &str,
        subcommand: &'static str,
        orders: &Orders,
    ) -> io::Result<Self> {
        let processes = Self {
            program: storm.program.clone(),
            subcommand,
            urls: urls.lines().map(str::to_owned).collect(),
            orders: orders.clone(),
            ends: Instant::now() + storm.lasts,
            running: Mutex::default(),
            next_client: Mutex::new(1),
        };
        for target in 0..storm.processes {
            processes.launch(target)?;
        }
        Ok(processes)
    }

    fn launch(&self, target: u32) -> io::Result<()> {
        let mut orders = self.orders.clone();
        {
            let mut next = self.next_client.lock().unwrap_or_else(PoisonError::into_inner);
            orders.client = *next;
            *next += orders.tasks;
        }
        orders.lasts = self.ends.saturating_duration_since(Instant::now());
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(orders.folder.join(format!("process-{target}.err")))?;
        let child = self
            .command(target)
            .args(orders.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()?;
        self.running().insert(target, (child, orders));
        Ok(())
    }

    fn command(&self, target: u32) -> Command {
        let url = &self.urls[target as usize % self.urls.len()];
        let Some(url) = url.strip_prefix(PYTHON) else {
            let mut command = Command::new(&self.program);
            command.args([self.subcommand, url]);
            return command;
        };
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("clients/python");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(client.join("tests/storm.py")).arg(url);
        command.env("PYTHONPATH", client.join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, (Child, Orders)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills a process, writes down that its clients are gone, and starts another in its place.
    pub(super) fn kill(&self, target: u32) -> io::Result<()> {
        if let Some((mut child, orders)) = self.running().remove(&target) {
            child.kill()?;
            child.wait()?;
            let at = now();
            for client in orders.client..orders.client + orders.tasks {
                let gone = orders.folder.join(format!("gone-{client}.jsonl"));
                Recorder::open(gone, client)?.record_at(at, EventKind::ClientCrashed)?;
            }
        }
        self.launch(target)
    }

    /// Stops a process for a while.
    pub(super) async fn freeze(&self, target: u32, lasts: Duration) -> io::Result<()> {
        self.signal(target, Signal::STOP)?;
        tokio::time::sleep(lasts).await;
        self.signal(target, Signal::CONT)
    }

    fn signal(&self, target: u32, signal: Signal) -> io::Result<()> {
        if let Some((child, _)) = self.running().get_mut(&target)
            && child.try_wait()?.is_none()
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Waits until all have ended by themselves; an error when one did so badly, or did not.
    pub(super) async fn join(&self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            {
                let mut running = self.running();
                let mut ended = Vec::new();
                for (target, (child, _)) in running.iter_mut() {
                    if let Some(status) = child.try_wait()? {
                        if !status.success() {
                            let what = format!("client process {target} failed: {status}");
                            return Err(io::Error::other(what));
                        }
                        ended.push(*target);
                    }
                }
                running.retain(|target, _| !ended.contains(target));
                if running.is_empty() {
                    return Ok(());
                }
                if Instant::now() > deadline {
                    let what = format!("{} client processes do not end", running.len());
                    return Err(io::Error::other(what));
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in self.running().values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

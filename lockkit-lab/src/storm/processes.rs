//! The client processes of a storm: started, frozen, killed and replaced, and waited for.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Storm;
use super::client::Orders;
use crate::history::{Recorder, What, now};

pub(super) struct Processes {
    command: Vec<std::ffi::OsString>,
    orders: Orders,
    ends: Instant,
    running: Mutex<BTreeMap<u32, (Child, Orders)>>,
    next_client: Mutex<u32>,
}

impl Processes {
    /// Starts all of them, each as the program with this word.
    pub(super) fn start(storm: &Storm, url: &str, verb: &str, orders: &Orders) -> io::Result<Self> {
        let command = vec![storm.program.clone().into_os_string(), verb.into(), url.into()];
        let processes = Self {
            command,
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
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .args(orders.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()?;
        self.running().insert(target, (child, orders));
        Ok(())
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
                Recorder::open(gone, client)?.record_at(at, What::Gone)?;
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

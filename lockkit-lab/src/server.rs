//! One server process with everything that a test may do to it. May not know
//! what kind it is: that is in its recipe.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::time;

use super::clock::{Clock, Shift};
use super::error::{Doing, LabError, Result};
use super::folder::{Folder, is_stopped, processes_in, signal};
use super::kind::ServerKind;
use super::server_dir::ServerDir;
use super::servers;
use super::servers::etcd::{Etcd, EtcdDemands};
use super::servers::mariadb::MariaDb;
use super::servers::nats::Nats;
use super::servers::redis::{Redis, VALKEY};
use super::servers::zookeeper::{ZooKeeper, ZooKeeperDemands};
use crate::servers::Recipe;

/// Why there is no Valkey on this machine, for tests that are skipped then: Debian 12 has none, and
/// `cargo xtask install` fetches one where it can.
pub fn missing_valkey() -> Option<LabError> {
    super::program::find(VALKEY).err()
}

/// Long, since machines that run tests stall for seconds; a server that works
/// never takes it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is about to be ready may take a question and never answer it
/// (ZooKeeper does). So it is asked again, but with ever more patience: machines
/// may be slow.
const FIRST_ANSWER: Duration = Duration::from_millis(50);
const LAST_ANSWER: Duration = Duration::from_secs(5);

const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// How often a start is repeated that failed because something else on the
/// machine, which is no lab, took a port.
const STARTS: usize = 3;

/// Whether a server that is started again finds what it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// It finds its data.
    Keep,
    /// Its data is gone.
    Lose,
    /// It finds what it had at the last [`sync`](Server::sync), as after a crash of its machine: all that
    /// was written later was not on disk.
    LoseUnsynced,
}

/// A server process of this lab; it ends and its folder goes when this is dropped.
#[derive(Debug)]
pub struct Server {
    recipe: Box<dyn Recipe>,
    home: ServerDir,
    clock: Option<Clock>,
    child: Mutex<Option<Child>>,
    folder: Arc<Folder>,
}

impl Server {
    /// Starts a server of its own for the caller, and returns once it answers.
    ///
    /// # Errors
    ///
    /// [`LabError::Missing`] if it is not installed; [`LabError::Ended`] and
    /// [`LabError::NotReady`] with the end of the server's log.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start(kind: ServerKind) -> Result<Self> {
        Self::start_fresh(kind, false).await
    }

    /// The same with a clock that [`move_clock`](Self::move_clock) moves.
    ///
    /// # Errors
    ///
    /// Like [`start`](Self::start); [`LabError::Unsupported`] for etcd.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_with_clock(kind: ServerKind) -> Result<Self> {
        if !kind.has_movable_clock() {
            return Err(LabError::Unsupported {
                server: kind.to_string(),
                cannot: "asks the kernel for the time: its clock cannot be moved".into(),
            });
        }
        Self::start_fresh(kind, true).await
    }

    /// Starts an etcd that has a second address, which is returned, at which clients must speak TLS
    /// and show certificates.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_demanding_etcd(demands: &EtcdDemands) -> Result<(Self, SocketAddr)> {
        for _ in 1..STARTS {
            match Self::start_demanding_once(demands).await {
                Err(LabError::Ended { .. }) => {}
                result => return result,
            }
        }
        Self::start_demanding_once(demands).await
    }

    async fn start_demanding_once(demands: &EtcdDemands) -> Result<(Self, SocketAddr)> {
        let (recipe, addr) = Etcd::demanding(demands.clone())?;
        let server = Self::create(Box::new(recipe), Arc::new(Folder::create()?), false).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok((server, addr))
    }

    /// Starts a MariaDB with these options of its command, for settings that a server that runs does
    /// not take.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_mariadb_with(options: &[&str]) -> Result<Self> {
        let recipe = MariaDb::with(options)?;
        let server = Self::create(Box::new(recipe), Arc::new(Folder::create()?), false).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok(server)
    }

    /// Starts a Valkey, which in all else is a [`ServerKind::Redis`].
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); [`missing_valkey`] tells beforehand whether there is one here.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_valkey() -> Result<Self> {
        let recipe = Box::new(Redis::single()?.served_by(VALKEY));
        let server = Self::create(recipe, Arc::new(Folder::create()?), false).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok(server)
    }

    /// Starts a NATS server with these lines in its configuration: users and their rights, TLS.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_nats_with(settings: &str) -> Result<Self> {
        let recipe = Box::new(Nats::configured(settings)?);
        let server = Self::create(recipe, Arc::new(Folder::create()?), false).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok(server)
    }

    /// Starts a ZooKeeper that demands this of its clients.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the server remains.
    pub async fn start_demanding_zookeeper(demands: &ZooKeeperDemands) -> Result<Self> {
        let recipe = ZooKeeper::demanding(demands.clone())?;
        let server = Self::create(Box::new(recipe), Arc::new(Folder::create()?), false).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok(server)
    }

    async fn start_fresh(kind: ServerKind, clock: bool) -> Result<Self> {
        for _ in 1..STARTS {
            match Self::start_once(kind, clock).await {
                Err(LabError::Ended { .. }) => {}
                result => return result,
            }
        }
        Self::start_once(kind, clock).await
    }

    async fn start_once(kind: ServerKind, clock: bool) -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let server = Self::create(servers::recipe(kind)?, folder, clock).await?;
        server.launch(Data::Keep).await?;
        server.ready().await?;
        Ok(server)
    }

    /// A server that is not started yet, in a folder that others may share.
    pub(crate) async fn create(
        recipe: Box<dyn Recipe>,
        folder: Arc<Folder>,
        clock: bool,
    ) -> Result<Self> {
        let home = ServerDir::create(folder.path().join(recipe.name()), recipe.account())?;
        let clock = if clock { Some(Clock::create(home.path()).await?) } else { None };
        Ok(Self { recipe, home, clock, child: Mutex::new(None), folder })
    }

    /// What it is called among the servers of its group, such as `redis-2`.
    pub fn name(&self) -> String {
        self.recipe.name()
    }

    /// What it is.
    pub fn kind(&self) -> ServerKind {
        self.recipe.kind()
    }

    /// Where it listens. It stays the same when the server is started again.
    pub fn addr(&self) -> SocketAddr {
        self.recipe.addr()
    }

    /// The URL under which lockkit finds this server.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// The same URL with another address: that of a proxy before this server.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        servers::url(self.kind(), addr)
    }

    /// The lab's temporary folder, which this server may share with its group.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All processes of this server.
    pub fn processes(&self) -> Vec<i32> {
        processes_in(self.home.path())
    }

    /// Whether it runs and is not frozen.
    pub fn is_awake(&self) -> bool {
        self.processes().into_iter().any(|pid| !is_stopped(pid))
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.home.log_tail()
    }

    /// Ends all its processes at once (SIGKILL), and returns when they are gone.
    /// A server that is down already stays so.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some processes may be left.
    pub async fn kill(&self) {
        while let processes @ [_, ..] = &self.processes()[..] {
            processes.iter().for_each(|pid| signal(*pid, Signal::KILL));
            time::sleep(Duration::from_millis(2)).await;
        }
        self.reap();
    }

    /// Kills it if it runs, starts it again, and returns once it answers.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start). A member of a group whose majority is down
    /// never answers: use [`launch`](Self::launch) there.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may be down, or not ready.
    pub async fn restart(&self, data: Data) -> Result<()> {
        self.launch(data).await?;
        self.ready().await
    }

    /// Kills it if it runs, and starts it again without waiting for an answer.
    ///
    /// # Errors
    ///
    /// If it is not installed, or its data cannot be prepared.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may be down.
    pub async fn launch(&self, data: Data) -> Result<()> {
        self.kill().await;
        match data {
            Data::Keep => {}
            Data::Lose => self.recipe.lose(&self.home).await?,
            Data::LoseUnsynced => {
                self.recipe.lose(&self.home).await?;
                self.copy("synced", "data").await?;
            }
        }
        self.recipe.prepare(&self.home).await?;
        let mut command = self.recipe.command(&self.home)?;
        if let Some(clock) = &self.clock {
            command.envs(clock.environment());
        }
        let child = command.spawn().doing(format!("starting {}", self.name()))?;
        *self.child() = Some(child);
        Ok(())
    }

    /// What it has by now is on disk: [`Data::LoseUnsynced`] puts it back. Restarts the server.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may be down.
    pub async fn sync(&self) -> Result<()> {
        self.kill().await;
        self.copy("data", "synced").await?;
        self.restart(Data::Keep).await
    }

    /// Copies a folder of its home over another one, or none.
    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let mut command = self.home.command("rsync")?;
        command.args(["-a", "--delete", &format!("{from}/"), to]);
        self.home.run(command).await
    }

    /// Returns once the server answers a real request.
    ///
    /// # Errors
    ///
    /// [`LabError::Ended`] and [`LabError::NotReady`] with the end of its log.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn ready(&self) -> Result<()> {
        let since = Instant::now();
        let mut patience = FIRST_ANSWER;
        loop {
            let answer = time::timeout(patience, self.recipe.answers()).await;
            let error = match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(late) => {
                    patience = (patience * 2).min(LAST_ANSWER);
                    late.into()
                }
            };
            self.still_runs()?;
            if since.elapsed() > PATIENCE {
                return Err(LabError::NotReady {
                    server: self.name(),
                    waited: since.elapsed(),
                    last: error.to_string(),
                    log: self.log_tail(),
                });
            }
            // Often while servers are quick to start; less so while it takes long.
            time::sleep((since.elapsed() / 20).clamp(MIN_PAUSE, MAX_PAUSE)).await;
        }
    }

    /// Stops all its processes (SIGSTOP) and returns when they stand still:
    /// connections stay open and nothing answers.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some processes may stand still;
    /// [`thaw`](Self::thaw) wakes them.
    pub async fn freeze(&self) {
        // Again and again: a process may start another one just before it stops.
        loop {
            let awake: Vec<_> =
                self.processes().into_iter().filter(|pid| !is_stopped(*pid)).collect();
            if awake.is_empty() {
                return;
            }
            awake.iter().for_each(|pid| signal(*pid, Signal::STOP));
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn thaw(&self) {
        self.processes().into_iter().for_each(|pid| signal(pid, Signal::CONT));
    }

    /// Moves its wall clock, at once and without a restart. The shift counts from
    /// the machine's time and survives restarts; [`Shift::NONE`] takes it back.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if it was not started by
    /// [`start_with_clock`](Self::start_with_clock).
    pub fn move_clock(&self, shift: Shift) -> Result<()> {
        let Some(clock) = &self.clock else {
            return Err(LabError::Unsupported {
                server: self.name(),
                cannot: "was not started with a clock that moves".into(),
            });
        };
        clock.set(shift)
    }

    fn still_runs(&self) -> Result<()> {
        let mut child = self.child();
        let status = match child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return Ok(()),
            Some(Ok(Some(status))) => status.to_string(),
            Some(Err(error)) => error.to_string(),
            None => "not started".into(),
        };
        Err(LabError::Ended { server: self.name(), status, log: self.log_tail() })
    }

    fn reap(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(|pid| signal(pid, Signal::KILL));
        self.reap();
    }
}

//! A primary and a replica of a SQL server, with replication that waits for the replica or does not, and
//! a failover by hand. May not know what is kept there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::time;

use super::error::{LabError, Result};
use super::folder::Folder;
use super::group::answered;
use super::raw::{mysql, postgres};
use super::server::{Data, Server};
use super::servers::mariadb::MariaDb;
use super::servers::postgres::{Follows, Postgres};
use crate::servers::Recipe;

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// How a replica follows its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replication {
    /// PostgreSQL, streaming; a commit does not wait for the standby.
    PostgresAsynchronous,
    /// The same with `synchronous_standby_names = '*'`.
    PostgresSynchronous,
    /// MariaDB, by global transaction ids; a commit does not wait for the replica.
    MariaDbAsynchronous,
    /// The same, semi-synchronous: a commit waits for the replica for an hour.
    MariaDbSemiSynchronous,
}

impl Replication {
    fn is_postgres(self) -> bool {
        matches!(self, Self::PostgresAsynchronous | Self::PostgresSynchronous)
    }
}

/// Two servers; they end and their folder goes when this is dropped.
#[derive(Debug)]
pub struct Pair {
    replication: Replication,
    servers: [Server; 2],
    /// Whom each of them would follow, on PostgreSQL.
    follows: [Follows; 2],
    primary: AtomicUsize,
}

impl Pair {
    /// Starts both, and returns once the replica follows.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of them remains.
    pub async fn start(replication: Replication) -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let follows = [Follows::default(), Follows::default()];
        let recipe = |number: usize| -> Result<Box<dyn Recipe>> {
            if replication.is_postgres() {
                let name = format!("postgres-{number}");
                return Ok(Box::new(Postgres::named(&name, follows[number - 1].clone())?));
            }
            let options =
                [&format!("--server-id={number}"), "--log-bin=bin", "--log-slave-updates"];
            let options = options.map(str::to_owned).to_vec();
            Ok(Box::new(MariaDb::named(&format!("mysql-{number}"), options)?))
        };
        let servers = [
            Server::create(recipe(1)?, Arc::clone(&folder), false).await?,
            Server::create(recipe(2)?, folder, false).await?,
        ];
        servers[0].restart(Data::Keep).await?;
        let pair = Self { replication, servers, follows, primary: AtomicUsize::new(0) };
        pair.follow(Data::Keep).await?;
        Ok(pair)
    }

    /// The server that takes writes.
    pub fn primary(&self) -> &Server {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    /// The other one.
    pub fn replica(&self) -> &Server {
        &self.servers[1 - self.primary.load(Ordering::SeqCst)]
    }

    /// Starts the replica as a copy of the primary, and waits until it follows.
    async fn follow(&self, data: Data) -> Result<()> {
        let (primary, replica) = (self.primary(), self.replica());
        let mine = &self.follows[1 - self.primary.load(Ordering::SeqCst)];
        *mine.lock().unwrap_or_else(PoisonError::into_inner) = Some(primary.addr());
        replica.restart(data).await?;
        let semi = self.replication == Replication::MariaDbSemiSynchronous;
        if !self.replication.is_postgres() {
            if semi {
                ask(replica, "SET GLOBAL rpl_semi_sync_slave_enabled = 1").await?;
            }
            let port = primary.addr().port();
            let change = format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, \
                 MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
            );
            ask(replica, &change).await?;
            ask(replica, "START SLAVE").await?;
            wait(replica, "SHOW STATUS LIKE 'Slave_running'", "ON").await?;
        }
        match self.replication {
            Replication::PostgresAsynchronous => {
                wait(primary, "SELECT state FROM pg_stat_replication", "streaming").await
            }
            Replication::PostgresSynchronous => {
                ask(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
                ask(primary, "SELECT pg_reload_conf()").await?;
                wait(primary, "SELECT sync_state FROM pg_stat_replication", "sync").await
            }
            Replication::MariaDbAsynchronous => Ok(()),
            Replication::MariaDbSemiSynchronous => {
                wait(primary, "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'", "1").await?;
                ask(primary, "SET GLOBAL rpl_semi_sync_master_timeout = 3600000").await?;
                ask(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1").await?;
                wait(primary, "SHOW STATUS LIKE 'Rpl_semi_sync_master_status'", "ON").await
            }
        }
    }

    /// From now on the replica gets nothing of what the primary writes.
    ///
    /// # Errors
    ///
    /// If the replica does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may have happened or not.
    pub async fn cut_off(&self) -> Result<()> {
        let replica = self.replica();
        if self.replication.is_postgres() {
            ask(replica, "ALTER SYSTEM SET primary_conninfo = ''").await?;
            ask(replica, "SELECT pg_reload_conf()").await?;
            return wait(replica, "SELECT count(*) FROM pg_stat_wal_receiver", "0").await;
        }
        ask(replica, "STOP SLAVE IO_THREAD").await.map(drop)
    }

    /// The replica takes over with what it has got, whatever the old primary does.
    ///
    /// # Errors
    ///
    /// If the replica does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may have happened or not.
    pub async fn promote(&self) -> Result<()> {
        let replica = self.replica();
        if self.replication.is_postgres() {
            ask(replica, "ALTER SYSTEM RESET synchronous_standby_names").await?;
            ask(replica, "SELECT pg_promote(true, 60)").await?;
            wait(replica, "SELECT pg_is_in_recovery()", "f").await?;
        } else {
            ask(replica, "STOP SLAVE IO_THREAD").await?;
            wait(replica, "SHOW SLAVE STATUS", "has read all relay log").await?;
            ask(replica, "STOP SLAVE").await?;
        }
        self.primary.fetch_xor(1, Ordering::SeqCst);
        Ok(())
    }

    /// The server that was the primary becomes the replica: it is killed, and starts as a copy of the one
    /// that is the primary now. Of PostgreSQL only.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the replica may be down.
    pub async fn rejoin(&self) -> Result<()> {
        self.follow(Data::Lose).await
    }
}

/// The rows that the server answers.
pub(crate) async fn ask(server: &Server, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let rows = async {
        match server.kind() {
            super::ServerKind::Postgres => {
                postgres::PostgresConnection::open(server.addr()).await?.query(sql).await
            }
            _ => mysql::MySqlClient::open(server.addr()).await?.query(sql).await,
        }
    };
    answered(rows.await)
}

/// Asks until some value has these words in it.
pub(crate) async fn wait(server: &Server, sql: &str, words: &str) -> Result<()> {
    let since = Instant::now();
    loop {
        let rows = ask(server, sql).await?;
        let mut values = rows.iter().flatten().flatten();
        let there = match words.len() {
            1..4 => values.any(|value| value == words),
            _ => values.any(|value| value.contains(words)),
        };
        if there {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            return Err(LabError::NotReady {
                server: server.name(),
                waited: since.elapsed(),
                last: format!("{sql}: {rows:?}"),
                log: server.log_tail(),
            });
        }
        time::sleep(PAUSE).await;
    }
}

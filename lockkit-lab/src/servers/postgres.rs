//! A PostgreSQL server.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::error::{Doing, Result};
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program;
use crate::raw::postgres;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

#[derive(Debug)]
pub(crate) struct Postgres {
    name: String,
    port: Port,
    follows: Follows,
}

/// The primary that a server is made a copy of, and follows, when it has no data.
pub(crate) type Follows = Arc<Mutex<Option<SocketAddr>>>;

impl Postgres {
    pub(crate) fn new() -> Result<Self> {
        Self::named("postgres", Follows::default())
    }

    pub(crate) fn named(name: &str, follows: Follows) -> Result<Self> {
        Ok(Self { name: name.into(), port: Port::take()?, follows })
    }
}

#[async_trait]
impl Recipe for Postgres {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::Postgres
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    fn account(&self) -> Option<&'static str> {
        Some("postgres")
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        if home.data().exists() {
            return Ok(());
        }
        let follows = *self.follows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(primary) = follows {
            let mut command = home.command("pg_basebackup")?;
            command.args(["-h", "127.0.0.1", "-p", &primary.port().to_string(), "-U", "postgres"]);
            command.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"]).arg(home.data());
            return home.run(command).await;
        }
        let mut command = home.command("initdb")?;
        command.args(["-U", "postgres", "-A", "trust", "-N", "-D"]).arg(home.data());
        // No message catalogues and no collations of the machine: tests are alike
        // everywhere.
        command.args(["--locale=C", "--encoding=UTF8"]);
        home.run(command).await?;
        // A killed process loses nothing that it had written; only the machine could, and the lab
        // does not kill the machine. In the file, so that who measures may set it otherwise.
        let settings = home.data().join("postgresql.conf");
        let mut file = File::options().append(true).open(&settings).doing("opening settings")?;
        file.write_all(b"\nfsync = off\n").doing("writing settings")
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command("postgres")?;
        command.arg("-D").arg(home.data()).args(["-p", &self.port.number().to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            &format!("unix_socket_directories={}", home.path().display()),
            // Files in the folder instead of shared memory that a kill leaves behind.
            "dynamic_shared_memory_type=mmap",
            "max_connections=300",
        ] {
            command.args(["-c", setting]);
        }
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        postgres::PostgresConnection::open(self.addr()).await?.query("SELECT 1").await.map(drop)
    }

    async fn lose(&self, home: &ServerDir) -> Result<()> {
        free_segment(home).await?;
        let data = home.data();
        std::fs::remove_dir_all(&data).doing(format!("removing {}", data.display()))
    }
}

/// A killed PostgreSQL leaves a segment of shared memory behind, whose id only its
/// data knows: the last word of the seventh line of this file.
async fn free_segment(home: &ServerDir) -> Result<()> {
    let note = std::fs::read_to_string(home.data().join("postmaster.pid")).unwrap_or_default();
    let Some(id) = note.lines().nth(6).and_then(|line| line.split_whitespace().last()) else {
        return Ok(());
    };
    let mut command = tokio::process::Command::new(program::find("ipcrm")?);
    command.args(["-m", id]).output().await.doing("freeing shared memory").map(drop)
}

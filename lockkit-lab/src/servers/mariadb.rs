//! A MariaDB server; or MySQL, where a variable says where that is.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::raw::mysql;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The database that its URL names.
pub(crate) const DATABASE: &str = "lockkit";

#[derive(Debug)]
pub(crate) struct MariaDb {
    name: String,
    port: Port,
    /// What it is started with beside what all are.
    options: Vec<String>,
}

impl MariaDb {
    pub(crate) fn new() -> Result<Self> {
        Self::with(&[])
    }

    pub(crate) fn with(options: &[&str]) -> Result<Self> {
        Self::named("mysql", options.iter().map(|&option| option.to_owned()).collect())
    }

    pub(crate) fn named(name: &str, options: Vec<String>) -> Result<Self> {
        Ok(Self { name: name.into(), port: Port::take()?, options })
    }
}

/// `mysqld`, or its path, to be used instead of MariaDB.
fn mysqld() -> Option<String> {
    std::env::var("LOCKKIT_LAB_MYSQLD").ok()
}

#[async_trait]
impl Recipe for MariaDb {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::MariaDb
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    fn account(&self) -> Option<&'static str> {
        Some("mysql")
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        if home.data().exists() {
            return Ok(());
        }
        if let Some(mysqld) = mysqld() {
            let mut command = home.command(&mysqld)?;
            // Without names of hosts, 127.0.0.1 is not localhost.
            home.write("first.sql", "RENAME USER root@localhost TO root@'127.0.0.1';")?;
            command.args(["--no-defaults", "--initialize-insecure"]);
            command.arg(format!("--init-file={}", home.path().join("first.sql").display()));
            command.arg(format!("--datadir={}", home.data().display()));
            command.arg(format!("--tmpdir={}", home.path().display()));
            return home.run(command).await;
        }
        let mut command = home.command("mariadb-install-db")?;
        command.arg("--no-defaults").arg(format!("--datadir={}", home.data().display()));
        command.arg(format!("--tmpdir={}", home.path().display())).args([
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]);
        home.run(command).await
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command(mysqld().as_deref().unwrap_or("mariadbd"))?;
        let file = |name: &str| home.path().join(name).display().to_string();
        command.arg("--no-defaults").args([
            format!("--datadir={}", home.data().display()),
            format!("--port={}", self.port.number()),
            format!("--socket={}", file("socket")),
            format!("--pid-file={}", file("pid")),
            // A server that starts removes all temporary tables from the folder for them: also
            // those of a neighbour.
            format!("--tmpdir={}", home.path().display()),
            "--bind-address=127.0.0.1".into(),
            "--skip-name-resolve".into(),
            "--max-connections=300".into(),
            "--innodb-buffer-pool-size=16M".into(),
            // A killed process loses nothing that it had written; only the machine
            // could, and the lab does not kill the machine.
            "--innodb-flush-log-at-trx-commit=2".into(),
        ]);
        command.args(&self.options);
        if mysqld().is_some() {
            // Another port, the same for all; and TLS, through which no proxy sees.
            command.args(["--mysqlx=OFF", "--tls-version="]);
        }
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        let create = format!("CREATE DATABASE IF NOT EXISTS {DATABASE}");
        mysql::MySqlClient::open(self.addr()).await?.query(&create).await.map(drop)
    }
}

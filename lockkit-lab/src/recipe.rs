//! What differs between kinds of servers: how data is prepared, which command
//! serves it, and which question shows that it serves. May not start processes
//! that stay: that is `server`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use super::error::{Doing, Result};
use super::home::Home;
use super::kind::Kind;

#[async_trait]
pub(crate) trait Recipe: Send + Sync + std::fmt::Debug {
    /// Its name among the servers of one lab folder.
    fn name(&self) -> String;

    fn kind(&self) -> Kind;

    fn addr(&self) -> SocketAddr;

    /// The account to run under when the lab is run by root.
    fn account(&self) -> Option<&'static str> {
        None
    }

    /// Makes the data, where there is none.
    async fn prepare(&self, home: &Home) -> Result<()>;

    /// The command that serves the data.
    fn command(&self, home: &Home) -> Result<Command>;

    /// Asks the server something that only a server in working order answers.
    async fn answers(&self) -> io::Result<()>;

    /// Removes the data of a server that is down.
    async fn lose(&self, home: &Home) -> Result<()> {
        let data = home.data();
        fs::remove_dir_all(&data).doing(format!("removing {}", data.display()))
    }
}

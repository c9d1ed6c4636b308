//! Azurite, the emulator of Azure Blob Storage. Its blobs are in its memory.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program::AZURITE;
use crate::raw::azure;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The container that URLs name.
const CONTAINER: &str = "lockkit";

#[derive(Debug)]
pub(crate) struct Azurite {
    port: Port,
}

impl Azurite {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { port: Port::take()? })
    }
}

pub(crate) fn url(addr: SocketAddr) -> String {
    let account = azure::ACCOUNT;
    format!("az://{CONTAINER}?account={account}&endpoint=http://{addr}/{account}")
}

#[async_trait]
impl Recipe for Azurite {
    fn name(&self) -> String {
        "azurite".into()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::Azurite
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.make_data()
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command(AZURITE)?;
        let port = self.port.number().to_string();
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port]);
        // Versions of the protocol that are newer than it differ in nothing that is used here.
        command.args(["--inMemoryPersistence", "--disableTelemetry", "--silent"]);
        command.arg("--skipApiVersionCheck");
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        azure::create_container(self.addr(), CONTAINER).await
    }
}

//! An emulator of Google Cloud Storage, with objects in its memory. It looks at the generation that a write
//! expects in some kinds of writes only.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program::FAKE_GCS;
use crate::raw::http;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The bucket that URLs name.
pub(crate) const BUCKET: &str = "lockkit";

#[derive(Debug)]
pub(crate) struct FakeGcs {
    port: Port,
}

impl FakeGcs {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { port: Port::take()? })
    }
}

#[async_trait]
impl Recipe for FakeGcs {
    fn name(&self) -> String {
        "fake-gcs".into()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::FakeGcs
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.make_data()
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command(FAKE_GCS)?;
        command.args(["-scheme", "http", "-host", "127.0.0.1", "-backend", "memory", "-port"]);
        command.arg(self.port.number().to_string());
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        let bucket = format!("{{\"name\":\"{BUCKET}\"}}");
        let target = "/storage/v1/b?project=lab";
        let kind = ["content-type: application/json"];
        let answer = http::ask(self.addr(), "POST", target, &kind, bucket.as_bytes()).await?;
        match answer.status {
            200 | 409 => Ok(()),
            status => Err(io::Error::other(format!("{status} to the creation of {BUCKET}"))),
        }
    }
}

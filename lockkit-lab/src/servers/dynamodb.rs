//! DynamoDB Local, with its data in memory and one table, which is made when it starts.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;
use serde_json::json;

use crate::error::{Doing, LabError, Result};
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program::{self, DYNAMODB};
use crate::raw::dynamodb;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The table that URLs name.
pub(crate) const TABLE: &str = "lockkit";

const LIBRARY: &str = "loopback.so";

#[derive(Debug)]
pub(crate) struct DynamoDb {
    port: Port,
}

impl DynamoDb {
    pub(crate) fn single() -> Result<Self> {
        Ok(Self { port: Port::take()? })
    }
}

/// Its URL, whose options are those of a server nearby.
pub(crate) fn url(addr: SocketAddr) -> String {
    format!("dynamodb://{TABLE}?region=us-east-1&endpoint=http://{addr}&pace=50ms&min_ttl=500ms")
}

#[async_trait]
impl Recipe for DynamoDb {
    fn name(&self) -> String {
        "dynamodb".into()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::DynamoDb
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.write("loopback.c", include_str!("loopback.c"))?;
        let mut compile = home.command("cc")?;
        compile.args(["-shared", "-fPIC", "-O2", "-o", LIBRARY, "loopback.c", "-ldl"]);
        home.run(compile).await
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let jar = program::find(DYNAMODB)?;
        let folder = jar.parent().ok_or(LabError::Missing { program: DYNAMODB.into() })?;
        let mut command = home.command("java")?;
        // Small, and quick to start rather than quick in the long run.
        command.args(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        command.args(["-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"]);
        command.arg(format!("-Djava.library.path={}", folder.join("DynamoDBLocal_lib").display()));
        command.arg("-jar").arg(&jar);
        command.args(["-inMemory", "-sharedDb", "-disableTelemetry", "-port"]);
        command.arg(self.port.number().to_string());
        command.env("LD_PRELOAD", home.path().join(LIBRARY));
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        match create_table(self.addr(), TABLE).await {
            Err(error) if error.to_string().contains("ResourceInUseException") => Ok(()),
            created => created,
        }
    }

    /// It has none but in its memory.
    async fn lose(&self, home: &ServerDir) -> Result<()> {
        let data = home.data();
        match data.exists() {
            true => fs::remove_dir_all(&data).doing(format!("removing {}", data.display())),
            false => Ok(()),
        }
    }
}

/// Makes a table for locks, as `lockkit schema` says.
pub async fn create_table(addr: SocketAddr, name: &str) -> io::Result<()> {
    let create = json!({
        "TableName": name, "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            { "AttributeName": "p", "AttributeType": "S" }, { "AttributeName": "k", "AttributeType": "S" },
        ],
        "KeySchema": [
            { "AttributeName": "p", "KeyType": "HASH" }, { "AttributeName": "k", "KeyType": "RANGE" },
        ],
    });
    dynamodb::ask(addr, "CreateTable", &create).await.map(drop)
}

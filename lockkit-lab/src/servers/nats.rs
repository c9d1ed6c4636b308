//! A NATS server with JetStream: alone, or as a member of a cluster.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::error::{Doing, Result};
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program::NATS;
use crate::raw::nats;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The bucket that URLs name.
pub(crate) const BUCKET: &str = "lockkit";

const NO_STREAM: u64 = 10_059;

#[derive(Debug)]
pub(crate) struct Nats {
    at: usize,
    members: Arc<Vec<Member>>,
    /// Further settings, such as users and their rights.
    settings: String,
    program: &'static str,
}

#[derive(Debug)]
struct Member {
    client: Port,
    peer: Port,
}

impl Nats {
    pub(crate) fn single() -> Result<Self> {
        Ok(Self::cluster(1, NATS)?.remove(0))
    }

    /// One with further settings in its configuration.
    pub(crate) fn configured(settings: &str) -> Result<Self> {
        let mut alone = Self::single()?;
        alone.settings = settings.to_owned();
        Ok(alone)
    }

    pub(crate) fn cluster(size: usize, program: &'static str) -> Result<Vec<Self>> {
        let member = |_| Ok(Member { client: Port::take()?, peer: Port::take()? });
        let members = Arc::new((0..size).map(member).collect::<Result<Vec<_>>>()?);
        let member =
            |at| Self { at, members: Arc::clone(&members), settings: String::new(), program };
        Ok((0..size).map(member).collect())
    }

    fn configuration(&self, home: &ServerDir) -> String {
        let listen = self.addr();
        let mut text = format!(
            "server_name: {}\nlisten: \"{listen}\"\njetstream {{ store_dir: \"{}\" }}\n{}\n",
            self.name(),
            home.data().display(),
            self.settings,
        );
        if self.members.len() > 1 {
            let routes =
                self.members.iter().map(|member| format!("\"nats://{}\"", member.peer.addr()));
            text.push_str(&format!(
                "cluster {{ name: lockkit-lab, listen: \"{}\", no_advertise: true, routes: [{}] }}\n",
                self.members[self.at].peer.addr(),
                routes.collect::<Vec<_>>().join(", "),
            ));
        }
        text
    }
}

#[async_trait]
impl Recipe for Nats {
    fn name(&self) -> String {
        match self.members.len() {
            1 => "nats".into(),
            _ => format!("nats-{}", self.at + 1),
        }
    }

    fn kind(&self) -> ServerKind {
        ServerKind::Nats
    }

    fn addr(&self) -> SocketAddr {
        self.members[self.at].client.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.make_data()?;
        home.write("nats.conf", &self.configuration(home))
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command(self.program)?;
        command.args(["--config", "nats.conf"]);
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        // In a cluster it is answered only when there is a leader of JetStream.
        match nats::ask(self.addr(), "$JS.API.INFO", &json!({})).await {
            // A test has had it demand logins or TLS: that is an answer, too.
            Err(error) if error.to_string().contains("-ERR") => Ok(()),
            answer => succeeded(answer?).map(drop),
        }
    }

    async fn lose(&self, home: &ServerDir) -> Result<()> {
        let data = home.data();
        fs::remove_dir_all(&data).doing(format!("removing {}", data.display()))
    }
}

/// The name of the member that leads the bucket.
pub(crate) async fn leader(addr: SocketAddr) -> io::Result<String> {
    let info = succeeded(bucket(addr).await?)?;
    Ok(info["cluster"]["leader"].as_str().unwrap_or_default().to_owned())
}

/// Whether streams can have so many replicas, and the bucket's, where there is one, are complete.
pub(crate) async fn has_all_replicas(addr: SocketAddr, size: usize) -> io::Result<()> {
    let stream =
        json!({ "name": "LAB", "subjects": ["lab"], "num_replicas": size, "storage": "file" });
    succeeded(nats::ask(addr, "$JS.API.STREAM.CREATE.LAB", &stream).await?)?;
    let info = bucket(addr).await?;
    if info["error"]["err_code"].as_u64() == Some(NO_STREAM) {
        return Ok(());
    }
    let replicas = succeeded(info)?["cluster"]["replicas"].as_array().cloned().unwrap_or_default();
    let is_well = |replica: &Value| replica["current"] == true && replica["offline"] != true;
    match replicas.len() + 1 == size && replicas.iter().all(is_well) {
        true => Ok(()),
        false => Err(io::Error::other(format!("replicas of the bucket: {replicas:?}"))),
    }
}

async fn bucket(addr: SocketAddr) -> io::Result<Value> {
    nats::ask(addr, &format!("$JS.API.STREAM.INFO.KV_{BUCKET}"), &json!({})).await
}

fn succeeded(answer: Value) -> io::Result<Value> {
    match answer.get("error") {
        None => Ok(answer),
        Some(error) => Err(io::Error::other(error.to_string())),
    }
}

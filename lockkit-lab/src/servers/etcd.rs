//! An etcd server: alone, or as a member of a cluster.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time;

use crate::error::{Doing, LabError, Result};
use crate::kind::ServerKind;
use crate::port::Port;
use crate::raw::etcd;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// How long the others may refuse to change the list of members.
const REPLACING: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Etcd {
    at: usize,
    members: Arc<Vec<Member>>,
    /// The others know it as a new member of an old cluster: it lost its data.
    joins: AtomicBool,
    secured: Option<Secured>,
    /// Where the members look for each other, if not where they are.
    detours: Vec<SocketAddr>,
}

/// What an etcd demands of its clients.
#[derive(Debug, Clone)]
pub struct EtcdDemands {
    /// How long a login lasts that is not used.
    pub login_lasts: Duration,
    /// The authority whose certificates clients must show, as PEM.
    pub authority: PathBuf,
    /// The server's own certificate.
    pub certificate: PathBuf,
    /// And its key.
    pub key: PathBuf,
}

/// A second address, for clients that speak TLS.
#[derive(Debug)]
struct Secured {
    port: Port,
    demands: EtcdDemands,
}

#[derive(Debug)]
struct Member {
    client: Port,
    peer: Port,
}

impl Etcd {
    pub(crate) fn single() -> Result<Self> {
        Ok(Self::cluster(1)?.remove(0))
    }

    /// One that has a second address, at which it makes these demands.
    pub(crate) fn demanding(demands: EtcdDemands) -> Result<(Self, SocketAddr)> {
        let mut alone = Self::single()?;
        let port = Port::take()?;
        let addr = port.addr();
        alone.secured = Some(Secured { port, demands });
        Ok((alone, addr))
    }

    pub(crate) fn cluster(size: usize) -> Result<Vec<Self>> {
        let member = |_| Ok(Member { client: Port::take()?, peer: Port::take()? });
        let members = Arc::new((0..size).map(member).collect::<Result<Vec<_>>>()?);
        Ok((0..size)
            .map(|at| Self {
                at,
                members: Arc::clone(&members),
                joins: AtomicBool::new(false),
                secured: None,
                detours: Vec::new(),
            })
            .collect())
    }

    /// Where the others reach this member.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.members[self.at].peer.addr()
    }

    /// Has this member look for all, itself among them, at these addresses.
    pub(crate) fn detour(&mut self, addrs: Vec<SocketAddr>) {
        self.detours = addrs;
    }

    fn peer_url(&self, at: usize) -> String {
        let addr = self.members[at].peer.addr();
        format!("http://{}", self.detours.get(at).unwrap_or(&addr))
    }

    /// Has the other members forget this one and expect it again.
    async fn replace(&self) -> Result<()> {
        let until = Instant::now() + REPLACING;
        loop {
            let Err(error) = self.try_to_replace().await else {
                return Ok(());
            };
            if Instant::now() > until {
                return Err(error).doing(format!("replacing {} in its cluster", self.name()));
            }
            time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn try_to_replace(&self) -> io::Result<()> {
        let others = (0..self.members.len()).filter(|at| *at != self.at);
        let mut last = io::Error::other("it has no others");
        for addr in others.map(|at| self.members[at].client.addr()) {
            match self.replace_at(addr).await {
                Err(error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    async fn replace_at(&self, addr: SocketAddr) -> io::Result<()> {
        let mine = json!([self.peer_url(self.at)]);
        let list = etcd::ask(addr, "cluster/member/list", &json!({})).await?;
        let known = list["members"].as_array().into_iter().flatten();
        for member in known.filter(|member| member["peerURLs"] == mine) {
            etcd::ask(addr, "cluster/member/remove", &json!({ "ID": member["ID"] })).await?;
        }
        etcd::ask(addr, "cluster/member/add", &json!({ "peerURLs": mine })).await.map(drop)
    }
}

#[async_trait]
impl Recipe for Etcd {
    fn name(&self) -> String {
        match self.members.len() {
            1 => "etcd".into(),
            _ => format!("etcd-{}", self.at + 1),
        }
    }

    fn kind(&self) -> ServerKind {
        ServerKind::Etcd
    }

    fn addr(&self) -> SocketAddr {
        self.members[self.at].client.addr()
    }

    async fn prepare(&self, _: &ServerDir) -> Result<()> {
        // It makes its folder itself, with the rights that it wants.
        Ok(())
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut client = format!("http://{}", self.addr());
        if let Some(Secured { port, .. }) = &self.secured {
            client = format!("{client},https://{}", port.addr());
        }
        let peer = self.peer_url(self.at);
        let all: Vec<_> = (0..self.members.len())
            .map(|at| format!("etcd-{}={}", at + 1, self.peer_url(at)))
            .collect();
        let state = if self.joins.load(Ordering::SeqCst) { "existing" } else { "new" };
        let mut command = home.command("etcd")?;
        // Its own idea of supported machines is no business of the lab's.
        command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
        command.arg("--data-dir").arg(home.data()).args([
            "--name",
            &format!("etcd-{}", self.at + 1),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &format!("http://{}", self.peer()),
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &all.join(","),
            "--initial-cluster-state",
            state,
            "--initial-cluster-token",
            "lockkit-lab",
        ]);
        if let Some(Secured { demands, .. }) = &self.secured {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&demands.authority);
            command.arg("--cert-file").arg(&demands.certificate);
            command.arg("--key-file").arg(&demands.key);
            let seconds = demands.login_lasts.as_secs().max(1).to_string();
            command.args(["--auth-token-ttl", &seconds]);
        }
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        // Not serializable: it is answered only when there is a leader.
        match etcd::ask(self.addr(), "kv/range", &json!({ "key": "AA==" })).await {
            // A test has had it demand logins: that is an answer, too.
            Err(error) if error.to_string().contains("user name is empty") => Ok(()),
            answer => answer.map(drop),
        }
    }

    async fn lose(&self, home: &ServerDir) -> Result<()> {
        let data = home.data();
        fs::remove_dir_all(&data).doing(format!("removing {}", data.display()))?;
        if self.members.len() > 1 {
            // A member that comes back without its data would break its promises to
            // the others; etcd takes it only under a new identity.
            self.replace().await?;
            self.joins.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Whether the member at this address is the leader.
pub(crate) async fn leads(addr: SocketAddr) -> Result<bool> {
    let status = etcd::ask(addr, "maintenance/status", &json!({})).await.doing("asking etcd")?;
    match (&status["header"]["member_id"], &status["leader"]) {
        (Value::String(me), Value::String(leader)) => Ok(me == leader),
        (Value::String(_), _) => Ok(false),
        _ => Err(LabError::Answer(status.to_string())),
    }
}

/// What the member at this address calls itself among the members.
pub(crate) async fn id(addr: SocketAddr) -> Result<String> {
    let status = etcd::ask(addr, "maintenance/status", &json!({})).await.doing("asking etcd")?;
    let id = status["header"]["member_id"].as_str().and_then(|id| id.parse::<u64>().ok());
    id.map(|id| format!("{id:x}")).ok_or_else(|| LabError::Answer(status.to_string()))
}

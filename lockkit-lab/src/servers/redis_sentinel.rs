//! A Redis Sentinel, which watches a master and puts a replica in its place.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::raw::resp::{self, RespReply};
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

/// The name of the master whom the sentinels watch.
pub(crate) const MASTER: &str = "main";

#[derive(Debug)]
pub(crate) struct Sentinel {
    name: String,
    port: Port,
    master: SocketAddr,
}

impl Sentinel {
    pub(crate) fn new(name: &str, master: SocketAddr) -> Result<Self> {
        Ok(Self { name: name.into(), port: Port::take()?, master })
    }
}

#[async_trait]
impl Recipe for Sentinel {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> ServerKind {
        ServerKind::Redis
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.make_data()?;
        if home.data().join("sentinel.conf").exists() {
            return Ok(());
        }
        let (ip, port) = (self.master.ip(), self.master.port());
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {MASTER} {ip} {port} 2\n\
             sentinel down-after-milliseconds {MASTER} 15000\n\
             sentinel failover-timeout {MASTER} 3000\n",
            self.port.number(),
            home.data().display(),
        );
        // Its configuration is its data: it writes down there what it learns.
        home.write("data/sentinel.conf", &text)
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut command = home.command("redis-server")?;
        command.arg(home.data().join("sentinel.conf")).arg("--sentinel");
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        // They look at each other and at the servers every 2 s and 10 s, unless told
        // (since Redis 7): they meet sooner, and sooner turn a master that has come
        // back into a replica. How soon they fail over stays what it is.
        let mut sentinel = resp::RespConnection::open(self.addr()).await?;
        let often = ["SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "300"];
        sentinel.call(&often).await.map(drop)
    }
}

/// From now on this sentinel misses a master that is silent for so long.
pub(crate) async fn be_patient_for(sentinel: SocketAddr, silence: Duration) -> io::Result<()> {
    let millis = silence.as_millis().to_string();
    let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", &millis];
    resp::ask(sentinel, &set).await.map(drop)
}

/// Whom this sentinel takes for the master.
pub(crate) async fn master(sentinel: SocketAddr) -> io::Result<SocketAddr> {
    let answer = resp::ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await?;
    match &answer {
        RespReply::Array(parts) => match &parts[..] {
            [ip, port] => format!("{}:{}", ip.text(), port.text()).parse().ok(),
            _ => None,
        },
        _ => None,
    }
    .ok_or_else(|| io::Error::other(format!("no master in {answer:?}")))
}

/// Whether this sentinel knows a master, its replica, and all other sentinels: it
/// would take part in a failover, and the failover would succeed.
pub(crate) async fn knows_all(sentinel: SocketAddr, sentinels: usize) -> io::Result<()> {
    let answer = resp::ask(sentinel, &["SENTINEL", "MASTER", MASTER]).await?;
    let fields = pairs(&answer);
    let field = |name: &str| fields.iter().find(|(key, _)| *key == name).map_or("", |(_, v)| *v);
    let others = (sentinels - 1).to_string();
    if field("flags") != "master"
        || field("num-slaves") != "1"
        || field("num-other-sentinels") != others
    {
        return Err(io::Error::other(format!("it knows only {fields:?}")));
    }
    let answer = resp::ask(sentinel, &["SENTINEL", "REPLICAS", MASTER]).await?;
    match &answer {
        RespReply::Array(replicas)
            if replicas.iter().all(|r| pairs(r).contains(&("master-link-status", "ok"))) =>
        {
            Ok(())
        }
        _ => Err(io::Error::other("the replica does not follow yet")),
    }
}

fn pairs(reply: &RespReply) -> Vec<(&str, &str)> {
    match reply {
        RespReply::Array(flat) => {
            flat.chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
        }
        _ => Vec::new(),
    }
}

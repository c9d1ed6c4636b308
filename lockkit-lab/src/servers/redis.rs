//! A Redis server, or a Valkey: alone, as a master or replica under sentinels, as a node of a
//! cluster.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::raw::resp;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;

#[derive(Debug)]
pub(crate) struct Redis {
    name: String,
    port: Port,
    role: Role,
    program: &'static str,
}

/// The program of Redis, and that of Valkey, which takes the same configuration.
pub(crate) const REDIS: &str = "redis-server";
pub(crate) const VALKEY: &str = "valkey-server";

#[derive(Debug)]
enum Role {
    Single,
    ReplicaOf(SocketAddr),
    Node { bus: Port },
}

impl Redis {
    pub(crate) fn single() -> Result<Self> {
        Self::new("redis", Role::Single)
    }

    pub(crate) fn master(name: &str) -> Result<Self> {
        Self::new(name, Role::Single)
    }

    pub(crate) fn replica(name: &str, of: SocketAddr) -> Result<Self> {
        Self::new(name, Role::ReplicaOf(of))
    }

    pub(crate) fn node(name: &str) -> Result<Self> {
        Self::new(name, Role::Node { bus: Port::take()? })
    }

    /// Where a node of a cluster talks with the others.
    pub(crate) fn bus(&self) -> Option<u16> {
        match &self.role {
            Role::Node { bus } => Some(bus.number()),
            _ => None,
        }
    }

    fn new(name: &str, role: Role) -> Result<Self> {
        Ok(Self { name: name.into(), port: Port::take()?, role, program: REDIS })
    }

    pub(crate) fn served_by(self, program: &'static str) -> Self {
        Self { program, ..self }
    }
}

#[async_trait]
impl Recipe for Redis {
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
        // What sentinels and clusters tell a server is in its configuration,
        // which outlives its data; they would otherwise forget each other.
        if !home.path().join("redis.conf").exists() {
            let mut text = format!(
                "port {}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly yes\nappendfsync no\n",
                self.port.number(),
                home.data().display(),
            );
            match &self.role {
                Role::Single => {}
                // Without the delay of 5 s a replica is there as soon as it can be.
                Role::ReplicaOf(of) => text += &format!("replicaof {} {}\n", of.ip(), of.port()),
                Role::Node { bus } => {
                    text += &format!(
                        "cluster-enabled yes\ncluster-node-timeout 15000\ncluster-port {}\n\
                         cluster-replica-validity-factor 0\ncluster-config-file {}\n",
                        bus.number(),
                        home.path().join("nodes.conf").display(),
                    );
                }
            }
            text += "repl-diskless-sync-delay 0\n";
            home.write("redis.conf", &text)?;
        }
        Ok(())
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        // appendfsync no: a killed process loses nothing that it had written; only
        // the machine could, and the lab does not kill the machine.
        let mut command = home.command(self.program)?;
        command.arg(home.path().join("redis.conf"));
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        resp::ask(self.addr(), &["PING"]).await.map(drop)
    }
}

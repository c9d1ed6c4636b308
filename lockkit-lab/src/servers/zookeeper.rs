//! A ZooKeeper server: alone, or as a member of an ensemble.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::kind::ServerKind;
use crate::port::Port;
use crate::program;
use crate::raw::zookeeper;
use crate::server_dir::ServerDir;
use crate::servers::Recipe;
use crate::tls::TestCertificates;

/// Where Debian puts what the server consists of.
const JARS: [&str; 4] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-api.jar",
    "/usr/share/java/slf4j-log4j12.jar",
    "/usr/share/java/log4j-1.2.jar",
];

/// What it needs besides to speak TLS.
const TLS_JARS: [&str; 7] = [
    "/usr/share/java/netty-buffer.jar",
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-common.jar",
    "/usr/share/java/netty-handler.jar",
    "/usr/share/java/netty-resolver.jar",
    "/usr/share/java/netty-transport.jar",
    "/usr/share/java/netty-transport-native-epoll.jar",
];

/// The server's key and certificate, and the users that it knows.
const KEYS: &str = "server.pem";
const LOGINS: &str = "jaas.conf";

const LOGGING: &str = "log4j.rootLogger=INFO, out\n\
    log4j.appender.out=org.apache.log4j.ConsoleAppender\n\
    log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
    log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n\n";

#[derive(Debug)]
pub(crate) struct ZooKeeper {
    port: Port,
    ensemble: Option<(usize, Arc<Vec<Peer>>)>,
    /// The SOCKS proxy through which this member dials the others, if it does not by itself.
    socks: Option<SocketAddr>,
    /// After which silence the members of an ensemble give up on each other.
    patience: Duration,
    demands: ZooKeeperDemands,
}

/// What a ZooKeeper knows of its clients, and what it does for them.
#[derive(Debug, Clone, Default)]
pub struct ZooKeeperDemands {
    /// Users and their passwords, for SASL (DIGEST-MD5). Who is none of them may come, too, and
    /// fail at what belongs to them.
    pub users: Vec<(String, String)>,
    /// A second address, where clients must speak TLS and show certificates.
    pub tls: Option<Arc<TestCertificates>>,
    /// Whether an answer waits until its transaction is on the disk.
    pub durable: bool,
}

const TICK: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(2);

/// Ports over which the members of an ensemble follow and elect a leader.
#[derive(Debug)]
pub(crate) struct Peer {
    follow: Port,
    elect: Port,
}

impl ZooKeeper {
    pub(crate) fn single() -> Result<Self> {
        Self::demanding(ZooKeeperDemands::default())
    }

    /// One that stands alone and demands this of its clients.
    pub(crate) fn demanding(demands: ZooKeeperDemands) -> Result<Self> {
        Ok(Self { port: Port::take()?, ensemble: None, socks: None, patience: PATIENCE, demands })
    }

    pub(crate) fn ensemble(size: usize) -> Result<Vec<Self>> {
        let peer = |_| Ok(Peer { follow: Port::take()?, elect: Port::take()? });
        let peers = Arc::new((0..size).map(peer).collect::<Result<Vec<_>>>()?);
        (0..size)
            .map(|at| {
                Ok(Self {
                    port: Port::take()?,
                    ensemble: Some((at, Arc::clone(&peers))),
                    socks: None,
                    patience: PATIENCE,
                    demands: ZooKeeperDemands::default(),
                })
            })
            .collect()
    }

    /// Where the others find this member.
    pub(crate) fn meets_at(&self) -> Vec<SocketAddr> {
        let peer = self.ensemble.iter().map(|(at, peers)| &peers[*at]);
        peer.flat_map(|peer| [peer.follow.addr(), peer.elect.addr()]).collect()
    }

    /// Has this member dial the others through a SOCKS proxy.
    pub(crate) fn dial_through(&mut self, socks: SocketAddr) {
        self.socks = Some(socks);
    }

    /// Has this member wait for the others for so long.
    pub(crate) fn be_patient_for(&mut self, silence: Duration) {
        self.patience = silence;
    }

    fn configuration(&self, home: &ServerDir) -> String {
        let mut text = format!(
            "tickTime={}\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n\
             initLimit=20\nsyncLimit={}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nclientPortAddress=127.0.0.1\nclientPort={}\ndataDir={}\n",
            TICK.as_millis(),
            self.patience.as_millis() / TICK.as_millis(),
            self.port.number(),
            home.data().display(),
        );
        for (at, peer) in self.ensemble.iter().flat_map(|(_, peers)| peers.iter().enumerate()) {
            let (follow, elect) = (peer.follow.number(), peer.elect.number());
            text += &format!("server.{}=127.0.0.1:{follow}:{elect}\n", at + 1);
        }
        if let Some(tls) = &self.demands.tls {
            text += &format!(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 secureClientPortAddress=127.0.0.1\nsecureClientPort={}\n\
                 ssl.keyStore.type=PEM\nssl.keyStore.location={}\n\
                 ssl.trustStore.type=PEM\nssl.trustStore.location={}\n",
                tls.addr().port(),
                home.path().join(KEYS).display(),
                tls.authority().display(),
            );
        }
        text
    }

    /// Who may log in, as Java's authentication service reads it.
    fn logins(&self) -> String {
        let user = |(user, password): &(String, String)| format!("  user_{user}=\"{password}\"\n");
        let users: String = self.demands.users.iter().map(user).collect();
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
        format!("Server {{\n  {module}\n{users};\n}};\n")
    }
}

#[async_trait]
impl Recipe for ZooKeeper {
    fn name(&self) -> String {
        self.ensemble.as_ref().map_or("zk".into(), |(at, _)| format!("zk-{}", at + 1))
    }

    fn kind(&self) -> ServerKind {
        ServerKind::ZooKeeper
    }

    fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    async fn prepare(&self, home: &ServerDir) -> Result<()> {
        home.make_data()?;
        home.write("zoo.cfg", &self.configuration(home))?;
        home.write("log4j.properties", LOGGING)?;
        home.write(LOGINS, &self.logins())?;
        if let Some(tls) = &self.demands.tls {
            home.write(KEYS, &tls.server()?)?;
        }
        match &self.ensemble {
            Some((at, _)) => home.write("data/myid", &format!("{}\n", at + 1)),
            None => Ok(()),
        }
    }

    fn command(&self, home: &ServerDir) -> Result<Command> {
        let mut classes = home.path().display().to_string();
        let more = self.demands.tls.iter().flat_map(|_| TLS_JARS);
        for jar in JARS.into_iter().chain(more) {
            classes += &format!(":{}", program::file(jar)?.display());
        }
        let mut command = home.command("java")?;
        // Small, and quick to start rather than quick in the long run. A killed process loses nothing
        // that it had written: no need to force it to disk, unless that is what is measured.
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        let force_sync = if self.demands.durable { "yes" } else { "no" };
        command.arg("-XX:-UsePerfData").arg(format!("-Dzookeeper.forceSync={force_sync}"));
        command.args(["-cp", &classes]);
        if let Some(socks) = self.socks {
            command.arg(format!("-DsocksProxyHost={}", socks.ip()));
            command.arg(format!("-DsocksProxyPort={}", socks.port()));
            // By itself, Java dials addresses of the machine directly.
            command.arg("-DsocksNonProxyHosts=");
        }
        if !self.demands.users.is_empty() {
            let logins = home.path().join(LOGINS);
            command.arg(format!("-Djava.security.auth.login.config={}", logins.display()));
            command.arg("-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider");
        }
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
        command.arg(home.path().join("zoo.cfg"));
        Ok(command)
    }

    async fn answers(&self) -> io::Result<()> {
        let mut session = zookeeper::ZkConnection::open(self.addr()).await?;
        session.exists("/", false).await?;
        session.close().await
    }
}

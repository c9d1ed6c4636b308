//! Makes a cluster of running Redis nodes: masters first, then a replica for each,
//! if there are more. May not start or stop them.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::raw::resp::{self, RespReply};

const SLOTS: usize = 16_384;
const PAUSE: Duration = Duration::from_millis(25);
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives each master its part of the slots, and introduces the others to the first.
pub(crate) async fn form(nodes: &[(SocketAddr, u16)], masters: usize) -> io::Result<()> {
    for (at, (addr, _)) in nodes.iter().enumerate() {
        // Nodes with equal epochs would first have to settle who yields.
        let epoch = (at + 1).to_string();
        resp::ask(*addr, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
        // They talk more often while they are in a hurry.
        be_patient_for(*addr, Duration::from_secs(1)).await?;
        if at < masters {
            let first = (at * SLOTS).div_ceil(masters).to_string();
            let last = (((at + 1) * SLOTS).div_ceil(masters) - 1).to_string();
            resp::ask(*addr, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
        }
    }
    let mut meeting = Meeting::of(nodes).await?;
    for (at, (addr, _)) in nodes.iter().enumerate().skip(masters) {
        let master = id(nodes[at % masters].0).await?;
        // It refuses until it has heard of its master.
        while let Err(why) = resp::ask(*addr, &["CLUSTER", "REPLICATE", &master]).await {
            meeting.goes_on(why).await?;
        }
    }
    for (addr, _) in nodes {
        while let Err(why) = serves(*addr, masters, nodes.len()).await {
            meeting.goes_on(why).await?;
        }
    }
    Ok(())
}

/// Nodes that get to know each other.
struct Meeting<'a> {
    nodes: &'a [(SocketAddr, u16)],
    since: Instant,
    introduced: Instant,
}

impl<'a> Meeting<'a> {
    async fn of(nodes: &'a [(SocketAddr, u16)]) -> io::Result<Self> {
        let now = Instant::now();
        let mut meeting = Self { nodes, since: now, introduced: now };
        meeting.introduce().await?;
        Ok(meeting)
    }

    async fn introduce(&mut self) -> io::Result<()> {
        for (addr, bus) in &self.nodes[1..] {
            let (ip, port, bus) = (addr.ip().to_string(), addr.port().to_string(), bus.to_string());
            resp::ask(self.nodes[0].0, &["CLUSTER", "MEET", &ip, &port, &bus]).await?;
        }
        self.introduced = Instant::now();
        Ok(())
    }

    /// Waits a moment longer. Who has not answered within a second was forgotten again, so all are
    /// introduced again now and then, which does nothing to those that know each other.
    async fn goes_on(&mut self, why: io::Error) -> io::Result<()> {
        if self.since.elapsed() > PATIENCE {
            return Err(why);
        }
        if self.introduced.elapsed() > Duration::from_secs(2) {
            self.introduce().await?;
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// From now on this node misses others that are silent for so long.
pub(crate) async fn be_patient_for(addr: SocketAddr, silence: Duration) -> io::Result<()> {
    let millis = silence.as_millis().to_string();
    resp::ask(addr, &["CONFIG", "SET", "cluster-node-timeout", &millis]).await.map(drop)
}

pub(crate) async fn id(addr: SocketAddr) -> io::Result<String> {
    Ok(resp::ask(addr, &["CLUSTER", "MYID"]).await?.text().to_owned())
}

/// Whether this node sees the whole cluster in order, and serves; a replica also
/// follows its master.
pub(crate) async fn serves(addr: SocketAddr, masters: usize, nodes: usize) -> io::Result<()> {
    let info = resp::ask(addr, &["CLUSTER", "INFO"]).await?;
    let in_order = [
        "cluster_state:ok".to_owned(),
        format!("cluster_size:{masters}\r\n"),
        format!("cluster_known_nodes:{nodes}\r\n"),
    ];
    if let Some(missing) = in_order.iter().find(|fact| !info.text().contains(*fact)) {
        return Err(io::Error::other(format!("no {missing} in {}", info.text())));
    }
    let replication = resp::ask(addr, &["INFO", "replication"]).await?;
    match replication.text().contains("master_link_status:down") {
        false => Ok(()),
        true => Err(io::Error::other("a replica does not follow yet")),
    }
}

/// The slot of a key.
pub(crate) async fn slot(addr: SocketAddr, key: &str) -> io::Result<u16> {
    match resp::ask(addr, &["CLUSTER", "KEYSLOT", key]).await? {
        RespReply::Number(slot) => u16::try_from(slot).map_err(io::Error::other),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

/// The port of the master that this node takes for the holder of a slot.
pub(crate) async fn port_of(addr: SocketAddr, slot: u16) -> io::Result<u16> {
    let RespReply::Array(ranges) = resp::ask(addr, &["CLUSTER", "SLOTS"]).await? else {
        return Err(io::Error::other("no table of slots"));
    };
    for range in &ranges {
        if let RespReply::Array(parts) = range
            && let [RespReply::Number(first), RespReply::Number(last), RespReply::Array(master), ..] =
                &parts[..]
            && (*first..=*last).contains(&i64::from(slot))
            && let Some(RespReply::Number(port)) = master.get(1)
        {
            return u16::try_from(*port).map_err(io::Error::other);
        }
    }
    Err(io::Error::other(format!("nobody holds slot {slot}")))
}

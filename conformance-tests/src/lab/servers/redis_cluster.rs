//! Makes a cluster of running Redis nodes that are all masters.

use std::io;
use std::net::SocketAddr;

use crate::lab::raw::resp::{self, Reply};

const SLOTS: usize = 16_384;

/// Gives each node its part of the slots and introduces the others to the first.
pub(crate) async fn form(nodes: &[(SocketAddr, u16)]) -> io::Result<()> {
    for (at, (addr, _)) in nodes.iter().enumerate() {
        let (first, last) = (start(at, nodes.len()), start(at + 1, nodes.len()) - 1);
        // Nodes with equal epochs would first have to settle who yields.
        let epoch = (at + 1).to_string();
        resp::ask(*addr, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
        let (first, last) = (first.to_string(), last.to_string());
        resp::ask(*addr, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
    }
    for (addr, bus) in &nodes[1..] {
        let (ip, port, bus) = (addr.ip().to_string(), addr.port().to_string(), bus.to_string());
        resp::ask(nodes[0].0, &["CLUSTER", "MEET", &ip, &port, &bus]).await?;
    }
    Ok(())
}

/// Whether this node sees the whole cluster in order, and serves.
pub(crate) async fn serves(addr: SocketAddr, nodes: usize) -> io::Result<()> {
    let info = resp::ask(addr, &["CLUSTER", "INFO"]).await?;
    let all = format!("cluster_size:{nodes}\r\n");
    if info.text().contains("cluster_state:ok") && info.text().contains(&all) {
        Ok(())
    } else {
        Err(io::Error::other(info.text().to_owned()))
    }
}

/// Which of the nodes holds a key.
pub(crate) async fn holder(addr: SocketAddr, nodes: usize, key: &str) -> io::Result<usize> {
    match resp::ask(addr, &["CLUSTER", "KEYSLOT", key]).await? {
        Reply::Number(slot) => (0..nodes)
            .rev()
            .find(|at| usize::try_from(slot).is_ok_and(|slot| slot >= start(*at, nodes)))
            .ok_or_else(|| io::Error::other("no such slot")),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

fn start(at: usize, nodes: usize) -> usize {
    (at * SLOTS).div_ceil(nodes)
}

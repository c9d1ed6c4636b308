//! Three nodes of MariaDB with Galera, each of which takes writes. May not know what is kept there.

use std::sync::Arc;

use super::error::Result;
use super::folder::Folder;
use super::pair::wait;
use super::port::Port;
use super::program;
use super::server::{Data, Server};
use super::servers::mariadb::MariaDb;

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// A cluster; its nodes end and their folder goes when this is dropped.
#[derive(Debug)]
pub struct Galera {
    nodes: Vec<Server>,
    /// Of the nodes among themselves.
    _ports: Vec<Port>,
}

impl Galera {
    /// Starts three nodes, and returns once all of them take writes. Takes some ten seconds, since each
    /// gets a copy of the first one's data.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of them remains.
    pub async fn start() -> Result<Self> {
        program::file(PROVIDER)?;
        let folder = Arc::new(Folder::create()?);
        let mut galera = Self { nodes: Vec::new(), _ports: Vec::new() };
        let mut first = String::new();
        for number in 1..=3 {
            let [group, increments, copies] = [Port::take()?, Port::take()?, Port::take()?];
            let options = vec![
                "--wsrep-on=ON".to_owned(),
                format!("--wsrep-provider={PROVIDER}"),
                format!("--wsrep-cluster-address=gcomm://{first}"),
                format!("--wsrep-node-address={}", group.addr()),
                format!("--wsrep-node-name=node-{number}"),
                "--wsrep-sst-method=rsync".to_owned(),
                format!("--wsrep-sst-receive-address={}", copies.addr()),
                "--binlog-format=ROW".to_owned(),
                "--innodb-autoinc-lock-mode=2".to_owned(),
                // They meet at once, and miss a node that is frozen only after 15 s.
                format!(
                    "--wsrep-provider-options=gmcast.listen_addr=tcp://{};ist.recv_addr={};\
                     gcache.size=16M;pc.announce_timeout=PT0.2S;evs.join_retrans_period=PT0.2S;\
                     evs.suspect_timeout=PT60S;evs.inactive_timeout=PT60S",
                    group.addr(),
                    increments.addr()
                ),
            ];
            if first.is_empty() {
                first = group.addr().to_string();
            }
            let recipe = MariaDb::named(&format!("mysql-{number}"), options)?;
            let node = Server::create(Box::new(recipe), Arc::clone(&folder), false).await?;
            node.restart(Data::Keep).await?;
            wait(&node, "SHOW STATUS LIKE 'wsrep_local_state_comment'", "Synced").await?;
            galera.nodes.push(node);
            galera._ports.extend([group, increments, copies]);
        }
        Ok(galera)
    }

    /// Its three nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }
}

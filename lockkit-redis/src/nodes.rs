//! Asking the nodes of a cluster one by one. Never by a command that the client crate itself sends to
//! several: it may let such a command lie until something else happens on the connection (seen with
//! redis 1.8.1: nothing wakes its task after the parts have been queued).

use std::collections::BTreeSet;

use lockkit_core::Error;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Value};

use crate::driver::Shared;
use crate::link::Link;
use crate::reply;

/// Where a node of a cluster is.
pub(crate) type Node = (String, u16);

/// Every master of the cluster; `None` for the only server.
pub(crate) async fn masters(shared: &Shared) -> Result<Vec<Option<Node>>, Error> {
    if !matches!(shared.link, Link::Cluster(..)) {
        return Ok(vec![None]);
    }
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let mut nodes = BTreeSet::new();
    for range in reply::array(shared.command(&slots).await?)? {
        let range = reply::array(range)?;
        let Some(Value::Array(master)) = range.get(2) else { continue };
        if let (Some(host), Some(port)) =
            (master.first().and_then(reply::text), master.get(1).and_then(reply::number))
        {
            nodes.insert((host.to_owned(), port as u16));
        }
    }
    Ok(nodes.into_iter().map(Some).collect())
}

/// Asks this node of the cluster, or the only server.
pub(crate) async fn ask(shared: &Shared, node: Option<&Node>, cmd: Cmd) -> Result<Value, Error> {
    match (node, &shared.link) {
        (Some((host, port)), Link::Cluster(cluster)) => {
            let to = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
            let answer = cluster.send_to(cmd, RoutingInfo::SingleNode(to)).await;
            answer.map_err(|e| shared.link.error(e))
        }
        _ => shared.command(&cmd).await,
    }
}

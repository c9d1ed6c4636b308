//! Asking the nodes of a cluster one by one.

use lockkit_core::Error;
use redis::{Cmd, Value};

use crate::driver::Shared;
use crate::failure::to_error;
use crate::link::Link;
use crate::source::Address;

/// Every master of the cluster; `None` for the only server.
pub(crate) async fn masters(shared: &Shared) -> Result<Vec<Option<Address>>, Error> {
    let Link::Cluster(cluster) = &shared.link else { return Ok(vec![None]) };
    let masters = cluster.masters().await.map_err(to_error)?;
    Ok(masters.into_iter().map(Some).collect())
}

/// Asks this node of the cluster, or the only server.
pub(crate) async fn ask(shared: &Shared, node: Option<&Address>, cmd: Cmd) -> Result<Value, Error> {
    let answer = match (node, &shared.link) {
        (Some(node), Link::Cluster(cluster)) => cluster.look_at(node, &cmd).await,
        _ => shared.link.look(&cmd, "").await,
    };
    Ok(answer?)
}

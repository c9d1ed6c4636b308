//! How commands reach the server, and what is sent once more by ourselves. An attempt ends in bounded
//! time; nothing here knows what a lock is.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Client, Cmd, Pipeline, Value};
use tokio::sync::Notify;

use crate::cluster::Cluster;
use crate::connection::ServerConnection;
use crate::error::{RequestError, bounded};
use crate::peer::Response;
use crate::server::{Address, Priority, ask};

/// How commands reach the server.
pub(crate) enum Transport {
    /// A connection of our own.
    Server(Box<ServerConnection>),
    /// The user's, which reconnects by itself. When it did is not seen from here.
    Manager(ConnectionManager, Duration),
    /// A cluster.
    Cluster(Cluster),
}

impl Transport {
    /// Sends a command once, to the server that has `key`.
    pub(crate) async fn send(
        &self,
        cmd: &Cmd,
        key: &str,
        priority: Priority,
    ) -> Result<Response<Value>, RequestError> {
        match self {
            Self::Server(server) => server.send(cmd, priority).await,
            Self::Manager(manager, limit) => {
                let answer = bounded(*limit, ask(&mut manager.clone(), cmd)).await;
                answer.map(|value| Response::new(value, None)).map_err(RequestError::of)
            }
            // Boxed: all that single servers do not need.
            Self::Cluster(cluster) => Box::pin(cluster.send(cmd, key, priority)).await,
        }
    }

    /// Sends so many commands at once, all to the server that has `key`.
    pub(crate) async fn send_all(
        &self,
        pipe: &Pipeline,
        count: usize,
        key: &str,
    ) -> Result<Response<Vec<Value>>, RequestError> {
        match self {
            Self::Server(server) => server.send_all(pipe, count).await,
            Self::Manager(manager, limit) => {
                let mut connection = manager.clone();
                let answers = bounded(*limit, connection.req_packed_commands(pipe, 0, count)).await;
                answers.map(|values| Response::new(values, None)).map_err(RequestError::of)
            }
            Self::Cluster(cluster) => cluster.send_all(pipe, count, key).await,
        }
    }

    /// Sends a command that only reads, to this node of the cluster or to the only server; once more
    /// when the connection turns out to be dead.
    pub(crate) async fn read(
        &self,
        node: Option<&Address>,
        cmd: &Cmd,
    ) -> Result<Value, RequestError> {
        let read = async || match (node, self) {
            (Some(node), Self::Cluster(cluster)) => cluster.send_to(node, cmd).await,
            _ => self.send(cmd, "", Priority::Waits).await,
        };
        let answer = match read().await {
            Err(failed) if failed.retry => read().await,
            answer => answer,
        };
        Ok(answer?.value)
    }

    /// Every master of the cluster; `None` for the only server.
    pub(crate) async fn masters(&self) -> Result<Vec<Option<Address>>, RequestError> {
        let Self::Cluster(cluster) = self else { return Ok(vec![None]) };
        let masters = cluster.masters().await.map_err(RequestError::of)?;
        Ok(masters.into_iter().map(Some).collect())
    }

    /// The server to which commands go, where it is known.
    pub(crate) async fn server(&self) -> Result<Option<Client>, RequestError> {
        match self {
            Self::Server(server) => server.client().await.map(Some).map_err(RequestError::unsent),
            _ => Ok(None),
        }
    }

    /// Notified when commands go over another connection. Never where that is not seen from here.
    pub(crate) fn reconnected(&self) -> Arc<Notify> {
        match self {
            Self::Server(server) => server.reconnected(),
            _ => Arc::default(),
        }
    }

    /// Drops the connection; the next command would build another one.
    pub(crate) fn close(&self) {
        match self {
            Self::Server(server) => server.close(),
            Self::Cluster(cluster) => cluster.close(),
            Self::Manager(..) => {}
        }
    }
}

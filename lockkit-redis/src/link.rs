//! How commands reach the server, and what is sent once more by ourselves. An attempt ends in bounded
//! time; nothing here knows what a lock is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Client, Cmd, Pipeline, Value};
use tokio::sync::Notify;

use crate::cluster::Cluster;
use crate::failure::{Again, Failed, bounded};
use crate::own::{Own, ask};
use crate::peer::Heard;

/// How commands reach the server.
pub(crate) enum Link {
    /// A connection of our own.
    Own(Box<Own>),
    /// The user's, which reconnects by itself. When it did is not seen from here.
    Manager(ConnectionManager, Duration),
    /// A cluster.
    Cluster(Cluster),
}

/// Whether a request waits for its turn where many are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It does.
    Waits,
    /// It goes first: what keeps a claim alive, or ends it.
    First,
}

impl Link {
    /// Sends a command once, to the server that has `key`.
    pub(crate) async fn send(
        &self,
        cmd: &Cmd,
        key: &str,
        turn: Turn,
    ) -> Result<Heard<Value>, Failed> {
        match self {
            Self::Own(own) => own.send(cmd, turn).await,
            Self::Manager(manager, limit) => {
                let mut connection = manager.clone();
                let answer = bounded(*limit, ask(&mut connection, cmd)).await;
                answer.map(|answer| Heard { answer, from: None }).map_err(Failed::for_good)
            }
            // Boxed: all that single servers do not need.
            Self::Cluster(cluster) => Box::pin(cluster.send(cmd, key, turn)).await,
        }
    }

    /// Sends so many commands in one flight, all to the server that has `key`.
    pub(crate) async fn send_all(
        &self,
        pipe: &Pipeline,
        count: usize,
        key: &str,
    ) -> Result<Heard<Vec<Value>>, Failed> {
        match self {
            Self::Own(own) => own.send_all(pipe, count).await,
            Self::Manager(manager, limit) => {
                let mut connection = manager.clone();
                let answers = connection.req_packed_commands(pipe, 0, count);
                let answers = bounded(*limit, answers).await;
                answers.map(|answer| Heard { answer, from: None }).map_err(Failed::for_good)
            }
            Self::Cluster(cluster) => cluster.send_all(pipe, count, key).await,
        }
    }

    /// Sends a command that only looks; once more when the connection turns out to be dead.
    pub(crate) async fn look(&self, cmd: &Cmd, key: &str) -> Result<Value, Failed> {
        let answer = match self.send(cmd, key, Turn::Waits).await {
            Err(failed) if failed.again != Again::No => self.send(cmd, key, Turn::Waits).await,
            answer => answer,
        };
        Ok(answer?.answer)
    }

    /// The server to which commands go, where that is one of which we know.
    pub(crate) async fn server(&self) -> Result<Option<Client>, Failed> {
        match self {
            Self::Own(own) => own.server().await.map(Some).map_err(Failed::for_good),
            _ => Ok(None),
        }
    }

    /// Rung when commands go over another connection. Never where that is not seen from here.
    pub(crate) fn connected_anew(&self) -> Arc<Notify> {
        match self {
            Self::Own(own) => own.connected_anew(),
            _ => Arc::default(),
        }
    }

    /// Lets go of the connection; the next command would build another one.
    pub(crate) fn close(&self) {
        match self {
            Self::Own(own) => own.close(),
            Self::Cluster(cluster) => cluster.close(),
            Self::Manager(..) => {}
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Manager(..) => "Manager",
            Self::Cluster(..) => "Cluster",
        })
    }
}

//! What a trial does to the server that it stands on: the one, or all members of a group at once.
//! Knows nothing of locks.

use std::io;

use futures_util::future::{join_all, try_join_all};

use crate::site::Act;
use crate::{Data, Group, LabError, Layout, Server, Shift};

/// A server, or a group that makes one service.
#[derive(Debug)]
pub enum TrialServers {
    /// It stands alone.
    One(Server),
    /// What befalls the server befalls all of them.
    Group(Group),
}

impl TrialServers {
    fn all(&self) -> &[Server] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Group(group) => group.members(),
        }
    }

    /// As [`Server::kill`].
    ///
    /// # Cancel safety
    /// Some may be left.
    pub async fn kill(&self) {
        join_all(self.all().iter().map(Server::kill)).await;
    }

    /// As [`Server::restart`]; a group is complete afterwards.
    ///
    /// # Errors
    /// The lab's.
    ///
    /// # Cancel safety
    /// Some may be down, or not ready.
    pub async fn restart(&self, data: Data) -> Result<(), LabError> {
        match self {
            Self::One(server) => server.restart(data).await,
            Self::Group(group) => {
                // No member may bring back to another one what both are to lose.
                self.kill().await;
                try_join_all(group.members().iter().map(|server| server.launch(data))).await?;
                group.complete().await
            }
        }
    }

    /// As [`Server::freeze`].
    ///
    /// # Cancel safety
    /// Some may stand still.
    pub async fn freeze(&self) {
        join_all(self.all().iter().map(Server::freeze)).await;
    }

    /// As [`Server::thaw`].
    pub fn thaw(&self) {
        self.all().iter().for_each(Server::thaw);
    }

    /// As [`Server::move_clock`].
    ///
    /// # Errors
    /// The lab's.
    pub fn move_clock(&self, shift: Shift) -> Result<(), LabError> {
        self.all().iter().try_for_each(|server| server.move_clock(shift))
    }

    /// Does this to the server, to all masters of a cluster, or to the one that leads a group.
    ///
    /// # Errors
    /// The act's.
    ///
    /// # Cancel safety
    /// It may have been done to some.
    pub async fn act(&self, act: Act) -> io::Result<()> {
        match self {
            Self::One(server) => act(server).await,
            Self::Group(group) if group.layout() == Layout::RedisCluster => {
                try_join_all(group.members().iter().map(act)).await.map(drop)
            }
            Self::Group(group) if group.layout() == Layout::RedisSentinel => {
                act(group.named_master().await.map_err(io::Error::other)?).await
            }
            Self::Group(group) => act(group.leader().await.map_err(io::Error::other)?).await,
        }
    }
}

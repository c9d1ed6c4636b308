//! Groups of which one member can be cut off from the others while clients still reach all.

use std::sync::Arc;
use std::time::Duration;

use super::division::{Division, Rift};
use super::error::{LabError, Result};
use super::folder::Folder;
use super::group::{Group, SIZE, boxed};
use super::kind::Layout;
use super::servers::{etcd, zookeeper as zk};

impl Group {
    /// Starts a ZooKeeper ensemble of which any member, also the leader, can be
    /// [cut off](Self::cut_off) from the others. Members give up on each other after
    /// `patience`. What passes between them passes through this process, on the
    /// runtime that runs this.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`](crate::Server::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_divisible_ensemble(patience: Duration) -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let mut recipes = zk::ZooKeeper::ensemble(SIZE)?;
        let places: Vec<_> = recipes.iter().map(zk::ZooKeeper::meets_at).collect();
        let division = Division::behind(&places).await?;
        for (recipe, socks) in recipes.iter_mut().zip(division.addrs()) {
            recipe.dial_through(socks);
            recipe.be_patient_for(patience);
        }
        let mut group = Self::empty(Layout::ZooKeeperEnsemble);
        group.division = Some(division);
        group.add(boxed(recipes), &folder, false).await?;
        Ok(group)
    }

    /// Starts an etcd cluster of which any member, also the leader, can be
    /// [cut off](Self::cut_off) from the others. What passes between the members
    /// passes through this process, on the runtime that runs this.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`](crate::Server::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_divisible_cluster() -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let mut recipes = etcd::Etcd::cluster(SIZE)?;
        let places: Vec<_> = recipes.iter().map(etcd::Etcd::peer).collect();
        let division = Division::before(&places).await?;
        recipes.iter_mut().for_each(|recipe| recipe.detour(division.addrs()));
        let mut group = Self::empty(Layout::EtcdCluster);
        group.division = Some(division);
        group.add(boxed(recipes), &folder, false).await?;
        group.complete().await?;
        Ok(group)
    }

    /// Whether members can be [cut off](Self::cut_off) from the others.
    pub fn is_divisible(&self) -> bool {
        self.division.is_some()
    }

    /// Cuts a member off from the others: nothing passes between them any more, and
    /// nothing closes, but for what the others [see](Rift). Clients still reach it. A
    /// follower of ZooKeeper goes on answering their reads and pings until it misses its
    /// leader; a leader takes itself for one until it misses the others, in etcd for
    /// about 2 s.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] unless this is a
    /// [divisible ensemble](Self::start_divisible_ensemble) or
    /// [cluster](Self::start_divisible_cluster).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing has changed.
    pub async fn cut_off(&self, member: usize, rift: Rift) -> Result<()> {
        let server = &self.members()[member];
        let Some(division) = &self.division else {
            return Err(LabError::Unsupported {
                server: server.name(),
                cannot: "cannot be cut off: the group is not divisible".into(),
            });
        };
        let id = match self.layout() {
            Layout::EtcdCluster => etcd::id(server.addr()).await?,
            _ => member.to_string(),
        };
        division.cut_off(member, id, rift);
        Ok(())
    }

    /// Lets all members reach each other again.
    pub fn rejoin(&self) {
        self.division.iter().for_each(Division::rejoin);
    }
}

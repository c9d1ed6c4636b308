//! Groups of which one member can be cut off from the others while clients still reach all.

use std::sync::Arc;

use super::division::Division;
use super::error::{LabError, Result};
use super::folder::Folder;
use super::group::{Group, SIZE, boxed};
use super::kind::Layout;
use super::proxy::{Fault, Protocol, Proxy, When};
use super::servers::{etcd, zookeeper as zk};

/// The way from one member to another.
#[derive(Debug)]
pub(super) struct Link {
    ends: [usize; 2],
    proxy: Proxy,
}

impl Group {
    /// Starts a ZooKeeper ensemble whose followers can be
    /// [cut off](Self::cut_off) from the leader. What passes between the members
    /// passes through this process, on the runtime that runs this.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`](crate::lab::Server::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_divisible_ensemble() -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let mut recipes = zk::ZooKeeper::ensemble(SIZE)?;
        let mut group = Self::empty(Layout::ZooKeeperEnsemble);
        let places: Vec<_> = recipes.iter().filter_map(zk::ZooKeeper::leads_at).collect();
        for (from, recipe) in recipes.iter_mut().enumerate() {
            for (to, addr) in places.iter().enumerate().filter(|(to, _)| *to != from) {
                let proxy = Proxy::start(*addr, Protocol::Unknown).await?;
                recipe.detour(to, proxy.addr().port());
                group.links.push(Link { ends: [from, to], proxy });
            }
        }
        group.add(boxed(recipes), &folder, false).await?;
        Ok(group)
    }

    /// Starts an etcd cluster of which any member, also the leader, can be
    /// [cut off](Self::cut_off) from the others. What passes between the members
    /// passes through this process, on the runtime that runs this.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`](crate::lab::Server::start).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_divisible_cluster() -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let mut recipes = etcd::Etcd::cluster(SIZE)?;
        let places: Vec<_> = recipes.iter().map(etcd::Etcd::peer).collect();
        let division = Division::start(&places).await?;
        recipes.iter_mut().for_each(|recipe| recipe.detour(division.addrs()));
        let mut group = Self::empty(Layout::EtcdCluster);
        group.division = Some(division);
        group.add(boxed(recipes), &folder, false).await?;
        group.complete().await?;
        Ok(group)
    }

    /// Whether members can be [cut off](Self::cut_off) from the others.
    pub fn is_divisible(&self) -> bool {
        !self.links.is_empty() || self.division.is_some()
    }

    /// Cuts a member off from the others: nothing passes between them any more, and
    /// nothing closes. Clients still reach it. A follower of ZooKeeper goes on
    /// answering their reads and pings until it misses its leader, after 2 s; a leader
    /// of etcd takes itself for one for about as long.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] unless this is a
    /// [divisible ensemble](Self::start_divisible_ensemble) or
    /// [cluster](Self::start_divisible_cluster), and for the leader of an ensemble: it
    /// would still be elected, over connections that members open at addresses that
    /// they tell each other. Freeze it instead.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing has changed.
    pub async fn cut_off(&self, member: usize) -> Result<()> {
        let server = &self.members()[member];
        if let Some(division) = &self.division {
            division.cut_off(member, etcd::id(server.addr()).await?);
            return Ok(());
        }
        if !self.is_divisible() || self.leader().await?.addr() == server.addr() {
            return Err(LabError::Unsupported {
                server: server.name(),
                cannot: "cannot be cut off: it leads, or the group is not divisible".into(),
            });
        }
        for link in self.links.iter().filter(|link| link.ends.contains(&member)) {
            link.proxy.fault(Fault::BlackHole, When::Now);
        }
        Ok(())
    }

    /// Lets all members reach each other again.
    ///
    /// # Errors
    ///
    /// None that is known.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some may still be cut off.
    pub async fn rejoin(&self) -> Result<()> {
        self.division.iter().for_each(Division::rejoin);
        for link in &self.links {
            link.proxy.heal().await?;
        }
        Ok(())
    }
}

//! A fault injector for a group of servers that has a leader: kills it, or has it stand still, so that the
//! others elect another; and cuts a follower off from it, or it from all others, where the group can
//! be divided.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::{FaultInjector, Target};
use crate::{Data, Group, LabError, Rift};

/// Strikes at the leader of a group.
#[derive(Debug)]
pub struct LeaderInjector {
    group: Group,
    fault: Fault,
    /// How many there were: each is of the next kind in turn.
    faults: AtomicUsize,
}

impl LeaderInjector {
    /// Strikes at the leader of this group. What that costs is `LeaderLost` in a majority, and
    /// `Failover` where a replica may lag.
    pub fn new(group: Group, fault: Fault) -> Self {
        Self { group, fault, faults: AtomicUsize::new(0) }
    }

    async fn lose_leader(&self, lasts: Duration) -> Result<(), LabError> {
        let leader = self.group.leader().await?;
        let kinds = if self.group.is_divisible() { 4 } else { 2 };
        match self.faults.fetch_add(1, Ordering::Relaxed) % kinds {
            0 => {
                leader.kill().await;
                tokio::time::sleep(lasts).await;
                leader.launch(Data::Keep).await?;
            }
            1 => {
                leader.freeze().await;
                tokio::time::sleep(lasts).await;
                leader.thaw();
            }
            nth => {
                let leads = nth == 3;
                let mut members = self.group.members().iter();
                let alone = members.position(|m| leads == (m.addr() == leader.addr()));
                self.group.cut_off(alone.unwrap_or(0), Rift::Silent).await?;
                tokio::time::sleep(lasts).await;
                self.group.rejoin();
            }
        }
        self.group.complete().await
    }
}

#[async_trait]
impl FaultInjector for LeaderInjector {
    fn faults(&self) -> Vec<Fault> {
        vec![self.fault]
    }

    fn log(&self) -> String {
        let logs = self.group.members().iter().map(|m| format!("{}:\n{}", m.name(), m.log_tail()));
        logs.collect::<Vec<_>>().join("\n")
    }

    async fn aim(&self, _: Fault, _: &[String]) -> Target {
        let leader = self.group.leader().await;
        Target::whole(leader.map_or_else(|error| error.to_string(), crate::Server::name))
    }

    async fn inject(&self, _: Fault, lasts: Duration, _: &Target) {
        // The storm goes on when a strike fails; its report shows what did not work afterwards.
        if let Err(error) = self.lose_leader(lasts).await {
            eprintln!("storm: the leader was not lost, or did not come back: {error}");
        }
    }
}
